use std::sync::Barrier;

use gristmill_store::Error;
use gristmill_store::lease::HeartbeatResult;
use gristmill_store::thumbnails::{
    CAPACITY, MediaType, NewThumbnail, ThumbFormat, ThumbLimits, ThumbOutcome, ThumbStatus, ThumbnailRow,
};

use crate::{Bench, LEASE, seconds, token};

pub(crate) fn wanted(key: &str, media_type: MediaType) -> NewThumbnail {
    NewThumbnail {
        thumb_key: key.to_owned(),
        file_id: 7,
        group_key: Some("g".to_owned()),
        media_type,
        format: ThumbFormat::Jpeg,
        max_dimension: 256,
        version: 2,
        source_size_bytes: 10,
        source_mtime_ns: 20,
        output_relpath: format!("aa/bb/{key}.jpg"),
    }
}

pub(crate) fn ready() -> ThumbOutcome {
    ThumbOutcome::Ready { width: 4, height: 3, bytes_size: 99 }
}

pub(crate) fn failed() -> ThumbOutcome {
    ThumbOutcome::Failed { code: "THUMB_DECODE_FAILED".to_owned(), message: "no picture".to_owned() }
}

impl Bench {
    pub(crate) fn thumb(&self, key: &str, media_type: MediaType) -> ThumbnailRow {
        self.store.thumbnails().request(wanted(key, media_type), CAPACITY).unwrap()
    }

    pub(crate) fn take_thumb(&self, worker: &str) -> Option<ThumbnailRow> {
        self.store.thumbnails().claim(&token(worker), LEASE, ThumbLimits::default()).unwrap()
    }

    pub(crate) fn end_thumb(&self, id: i64, outcome: ThumbOutcome) -> ThumbnailRow {
        self.store.thumbnails().finish(id, &token("a"), outcome).unwrap()
    }
}

#[test]
fn a_thumbnail_from_request_to_ready() {
    let bench = Bench::new();
    bench.library_file();
    let made = bench.thumb("k", MediaType::Image);
    assert_eq!((made.status, made.version, made.error_count), (ThumbStatus::Pending, 2, 0));
    assert_eq!(made.output_relpath.as_deref(), Some("aa/bb/k.jpg"));
    let claimed = bench.take_thumb("a").unwrap();
    assert_eq!((claimed.id, claimed.status), (made.id, ThumbStatus::Running));
    assert_eq!(
        (claimed.started_at, claimed.lease_expires_at),
        (Some(bench.now()), Some(bench.now().plus(LEASE)))
    );
    bench.pass(seconds(30));
    let beat = |worker: &str| bench.store.thumbnails().heartbeat(made.id, &token(worker), LEASE).unwrap();
    assert_eq!((beat("a"), beat("b")), (HeartbeatResult::Kept, HeartbeatResult::Lost));
    let refused = bench.store.thumbnails().finish(made.id, &token("b"), ready());
    assert!(matches!(refused, Err(Error::Conflict(_))));
    let done = bench.end_thumb(made.id, ready());
    assert_eq!(
        (done.status, done.width, done.height, done.bytes_size),
        (ThumbStatus::Ready, Some(4), Some(3), Some(99))
    );
    assert_eq!((done.finished_at, done.lease_expires_at), (Some(bench.now()), None));
    // Asked for again, it is simply there; and nothing overwrites it.
    assert_eq!(bench.thumb("k", MediaType::Image), done);
    assert!(bench.store.thumbnails().finish(made.id, &token("a"), failed()).is_err());
    assert_eq!(bench.store.thumbnails().get("k").unwrap(), done);
    assert_eq!(bench.store.thumbnails().counts().unwrap(), [(ThumbStatus::Ready, 1)]);
}

#[test]
fn a_request_is_made_once() {
    let bench = Bench::new();
    bench.library_file();
    let first = bench.thumb("k", MediaType::Image);
    assert_eq!(bench.thumb("k", MediaType::Image), first);
    assert_eq!(bench.second().thumbnails().request(wanted("k", MediaType::Image), 1).unwrap(), first);
}

#[test]
fn a_failed_one_waits_longer_each_time() {
    let bench = Bench::new();
    bench.library_file();
    let id = bench.thumb("k", MediaType::Image).id;
    for (failures, delay) in
        [(1, 30), (2, 60), (3, 120), (4, 240), (5, 480), (6, 960), (7, 1_800), (8, 1_800)]
    {
        assert_eq!(bench.take_thumb("a").map(|row| row.id), Some(id));
        let row = bench.end_thumb(id, failed());
        assert_eq!((row.status, row.error_count), (ThumbStatus::Failed, failures));
        assert_eq!(row.error_code.as_deref(), Some("THUMB_DECODE_FAILED"));
        assert_eq!(row.error_message.as_deref(), Some("no picture"));
        assert_eq!(row.retry_after, Some(bench.now().plus(seconds(delay))));
        bench.pass(seconds(delay - 1));
        assert_eq!(bench.thumb("k", MediaType::Image).status, ThumbStatus::Failed);
        assert_eq!(bench.take_thumb("a"), None);
        bench.pass(seconds(1));
        let again = bench.thumb("k", MediaType::Image);
        assert_eq!((again.id, again.status, again.error_count), (id, ThumbStatus::Pending, failures));
        assert_eq!((again.error_code, again.retry_after, again.started_at), (None, None, None));
        assert_eq!((again.worker_id, again.finished_at), (None, None));
    }
    bench.take_thumb("a").unwrap();
    let done = bench.end_thumb(id, ready());
    assert_eq!((done.error_count, done.error_code, done.retry_after), (0, None, None));
}

#[test]
fn the_line_is_bounded() {
    let bench = Bench::new();
    bench.library_file();
    let request = |key: &str| bench.store.thumbnails().request(wanted(key, MediaType::Image), 2);
    let failed_one = request("f").unwrap().id;
    bench.take_thumb("a").unwrap();
    bench.end_thumb(failed_one, failed());
    bench.pass(seconds(30));
    request("1").unwrap();
    bench.take_thumb("a").unwrap();
    request("2").unwrap();
    // One runs, one waits: no room for a new one, nor for a failed one; those in the line are still found.
    assert!(matches!(request("3"), Err(Error::QueueFull(_))));
    assert!(matches!(request("f"), Err(Error::QueueFull(_))));
    assert_eq!(bench.store.thumbnails().get("f").unwrap().status, ThumbStatus::Failed);
    assert!(matches!(bench.store.thumbnails().get("3"), Err(Error::NotFound(_))));
    request("2").unwrap();
    let running = request("1").unwrap().id;
    bench.end_thumb(running, ready());
    request("3").unwrap();
}

#[test]
fn no_two_requests_share_the_last_place() {
    let bench = Bench::new();
    bench.library_file();
    let stores = [bench.store.clone(), bench.second()];
    let start = Barrier::new(8);
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (store, start) = (&stores[thread % 2], &start);
                scope.spawn(move || {
                    start.wait();
                    let keys = (0..5).map(|n| wanted(&format!("{thread}-{n}"), MediaType::Image));
                    keys.filter(|new| store.thumbnails().request(new.clone(), 11).is_ok()).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 11);
    assert_eq!(bench.store.thumbnails().counts().unwrap(), [(ThumbStatus::Pending, 11)]);
}

#[test]
fn images_and_videos_have_limits_of_their_own() {
    let bench = Bench::new();
    bench.library_file();
    for key in ["i1", "i2", "i3", "v1", "v2"] {
        let media = if key.starts_with('i') { MediaType::Image } else { MediaType::Video };
        bench.thumb(key, media);
    }
    let take = || bench.take_thumb("a").map(|row| row.thumb_key);
    let taken: Vec<_> = (0..4).map(|_| take()).collect();
    assert_eq!(taken, [Some("i1".into()), Some("i2".into()), Some("v1".into()), None]);
    assert_eq!(bench.second().thumbnails().claim(&token("b"), LEASE, ThumbLimits::default()).unwrap(), None);
    bench.end_thumb(bench.store.thumbnails().get("v1").unwrap().id, ready());
    assert_eq!((take(), take()), (Some("v2".into()), None));
    bench.end_thumb(bench.store.thumbnails().get("i1").unwrap().id, failed());
    assert_eq!((take(), take()), (Some("i3".into()), None));
}

#[test]
fn the_oldest_of_both_kinds_comes_first() {
    let bench = Bench::new();
    bench.library_file();
    for (key, media, time) in [
        ("c", MediaType::Image, "2026-01-19 07:00:00.000001"),
        ("b", MediaType::Video, "2026-01-19 07:00:00"),
        ("a", MediaType::Image, "2026-01-19 07:00:01"),
    ] {
        bench.thumb(key, media);
        bench.sql(&format!("UPDATE thumbnails SET created_at = '{time}' WHERE thumb_key = '{key}'"));
    }
    let order: Vec<_> = (0..3).map(|_| bench.take_thumb("a").unwrap().thumb_key).collect();
    assert_eq!(order, ["b", "c", "a"]);
}

#[test]
fn what_was_left_behind_waits_again() {
    let bench = Bench::new();
    bench.library_file();
    let id = bench.thumb("k", MediaType::Video).id;
    bench.take_thumb("a").unwrap();
    bench.pass(LEASE);
    assert_eq!(bench.store.thumbnails().recover().unwrap(), 1);
    let row = bench.store.thumbnails().get("k").unwrap();
    assert_eq!((row.status, row.error_code.as_deref()), (ThumbStatus::Pending, Some("LEASE_EXPIRED")));
    assert_eq!((row.worker_id, row.lease_expires_at, row.error_count), (None, None, 0));
    // A claim finds them by itself, too.
    bench.take_thumb("a").unwrap();
    bench.pass(LEASE);
    assert_eq!(bench.take_thumb("b").unwrap().id, id);
    // A late owner keeps what nobody took.
    bench.pass(LEASE);
    assert_eq!(bench.store.thumbnails().heartbeat(id, &token("b"), LEASE).unwrap(), HeartbeatResult::Kept);
    bench.pass(LEASE);
    bench.take_thumb("a").unwrap();
    assert_eq!(bench.store.thumbnails().release(id, &token("a")).unwrap().status, ThumbStatus::Pending);
    assert!(bench.store.thumbnails().release(id, &token("a")).is_err());
}

#[test]
fn a_pending_one_with_a_time_is_not_taken_before_it() {
    let bench = Bench::new();
    bench.library_file();
    bench.thumb("k", MediaType::Image);
    bench.sql("UPDATE thumbnails SET retry_after = '2026-01-19 07:08:10+00:00'");
    assert_eq!(bench.take_thumb("a"), None);
    bench.pass(seconds(1));
    assert!(bench.take_thumb("a").is_some());
}

#[test]
fn requests_are_checked() {
    let bench = Bench::new();
    let request = |new| bench.store.thumbnails().request(new, CAPACITY);
    assert!(matches!(request(wanted("k", MediaType::Image)), Err(Error::NotFound(_))));
    bench.library_file();
    assert!(matches!(request(wanted("", MediaType::Image)), Err(Error::Invalid(_))));
    let mut none = wanted("k", MediaType::Image);
    none.max_dimension = 0;
    assert!(matches!(request(none), Err(Error::Invalid(_))));
}
