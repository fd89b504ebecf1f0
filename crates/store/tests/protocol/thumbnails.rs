use std::sync::Barrier;

use gristmill_store::Error;
use gristmill_store::lease::HeartbeatResult;
use gristmill_store::thumbnails::{
    CAPACITY, MediaType, NewThumbnail, ThumbFormat, ThumbLimits, ThumbOutcome, ThumbStatus, ThumbnailRow,
};

use crate::{Fixture, LEASE, seconds, token};

pub(crate) fn new_thumbnail(key: &str, media_type: MediaType) -> NewThumbnail {
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

impl Fixture {
    pub(crate) fn request_thumbnail(&self, key: &str, media_type: MediaType) -> ThumbnailRow {
        self.store.thumbnails().request(new_thumbnail(key, media_type), CAPACITY).unwrap()
    }

    pub(crate) fn claim_thumbnail(&self, worker: &str) -> Option<ThumbnailRow> {
        self.store.thumbnails().claim(&token(worker), LEASE, ThumbLimits::default()).unwrap()
    }

    pub(crate) fn finish_thumbnail(&self, id: i64, outcome: ThumbOutcome) -> ThumbnailRow {
        self.store.thumbnails().finish(id, &token("a"), outcome).unwrap()
    }
}

#[test]
fn thumbnail_moves_from_request_to_ready() {
    let fixture = Fixture::new();
    fixture.library_file();
    let created = fixture.request_thumbnail("k", MediaType::Image);
    assert_eq!((created.status, created.version, created.error_count), (ThumbStatus::Pending, 2, 0));
    assert_eq!(created.output_relpath.as_deref(), Some("aa/bb/k.jpg"));
    let claimed = fixture.claim_thumbnail("a").unwrap();
    assert_eq!((claimed.id, claimed.status), (created.id, ThumbStatus::Running));
    assert_eq!((claimed.started_at, claimed.lease_expires_at), (Some(fixture.now()), Some(fixture.now().plus(LEASE))));
    fixture.advance(seconds(30));
    let heartbeat = |worker: &str| fixture.store.thumbnails().heartbeat(created.id, &token(worker), LEASE).unwrap();
    assert_eq!((heartbeat("a"), heartbeat("b")), (HeartbeatResult::Kept, HeartbeatResult::Lost));
    let refused = fixture.store.thumbnails().finish(created.id, &token("b"), ready());
    assert!(matches!(refused, Err(Error::Conflict(_))));
    let done = fixture.finish_thumbnail(created.id, ready());
    assert_eq!(
        (done.status, done.width, done.height, done.bytes_size),
        (ThumbStatus::Ready, Some(4), Some(3), Some(99))
    );
    assert_eq!((done.finished_at, done.lease_expires_at), (Some(fixture.now()), None));
    // A repeated request returns the row, and nothing overwrites it.
    assert_eq!(fixture.request_thumbnail("k", MediaType::Image), done);
    assert!(fixture.store.thumbnails().finish(created.id, &token("a"), failed()).is_err());
    assert_eq!(fixture.store.thumbnails().get("k").unwrap(), done);
    assert_eq!(fixture.store.thumbnails().counts().unwrap(), [(ThumbStatus::Ready, 1)]);
}

#[test]
fn repeated_request_returns_the_same_row() {
    let fixture = Fixture::new();
    fixture.library_file();
    let first = fixture.request_thumbnail("k", MediaType::Image);
    assert_eq!(fixture.request_thumbnail("k", MediaType::Image), first);
    assert_eq!(fixture.second().thumbnails().request(new_thumbnail("k", MediaType::Image), 1).unwrap(), first);
}

#[test]
fn retry_delay_grows_with_each_failure() {
    let fixture = Fixture::new();
    fixture.library_file();
    let id = fixture.request_thumbnail("k", MediaType::Image).id;
    for (failures, delay) in [(1, 30), (2, 60), (3, 120), (4, 240), (5, 480), (6, 960), (7, 1_800), (8, 1_800)] {
        assert_eq!(fixture.claim_thumbnail("a").map(|row| row.id), Some(id));
        let row = fixture.finish_thumbnail(id, failed());
        assert_eq!((row.status, row.error_count), (ThumbStatus::Failed, failures));
        assert_eq!(row.error_code.as_deref(), Some("THUMB_DECODE_FAILED"));
        assert_eq!(row.error_message.as_deref(), Some("no picture"));
        assert_eq!(row.retry_after, Some(fixture.now().plus(seconds(delay))));
        fixture.advance(seconds(delay - 1));
        assert_eq!(fixture.request_thumbnail("k", MediaType::Image).status, ThumbStatus::Failed);
        assert_eq!(fixture.claim_thumbnail("a"), None);
        fixture.advance(seconds(1));
        let again = fixture.request_thumbnail("k", MediaType::Image);
        assert_eq!((again.id, again.status, again.error_count), (id, ThumbStatus::Pending, failures));
        assert_eq!((again.error_code, again.retry_after, again.started_at), (None, None, None));
        assert_eq!((again.worker_id, again.finished_at), (None, None));
    }
    fixture.sql("UPDATE thumbnails SET error_count = 9223372036854775807");
    fixture.claim_thumbnail("a").unwrap();
    let row = fixture.finish_thumbnail(id, failed());
    assert_eq!((row.error_count, row.retry_after), (i64::MAX, Some(fixture.now().plus(seconds(1_800)))));
    fixture.advance(seconds(1_800));
    fixture.request_thumbnail("k", MediaType::Image);
    fixture.claim_thumbnail("a").unwrap();
    let done = fixture.finish_thumbnail(id, ready());
    assert_eq!((done.error_count, done.error_code, done.retry_after), (0, None, None));
}

#[test]
fn request_is_refused_when_capacity_is_reached() {
    let fixture = Fixture::new();
    fixture.library_file();
    let request = |key: &str| fixture.store.thumbnails().request(new_thumbnail(key, MediaType::Image), 2);
    let failed_one = request("f").unwrap().id;
    fixture.claim_thumbnail("a").unwrap();
    fixture.finish_thumbnail(failed_one, failed());
    fixture.advance(seconds(30));
    request("1").unwrap();
    fixture.claim_thumbnail("a").unwrap();
    request("2").unwrap();
    // One runs, one is pending: no capacity for a new one, nor for a failed one; existing ones are still returned.
    assert!(matches!(request("3"), Err(Error::QueueFull(_))));
    assert!(matches!(request("f"), Err(Error::QueueFull(_))));
    assert_eq!(fixture.store.thumbnails().get("f").unwrap().status, ThumbStatus::Failed);
    assert!(matches!(fixture.store.thumbnails().get("3"), Err(Error::NotFound(_))));
    request("2").unwrap();
    let running = request("1").unwrap().id;
    fixture.finish_thumbnail(running, ready());
    request("3").unwrap();
}

#[test]
fn concurrent_requests_do_not_exceed_capacity() {
    let fixture = Fixture::new();
    fixture.library_file();
    let stores = [fixture.store.clone(), fixture.second()];
    let start = Barrier::new(8);
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (store, start) = (&stores[thread % 2], &start);
                scope.spawn(move || {
                    start.wait();
                    let keys = (0..5).map(|n| new_thumbnail(&format!("{thread}-{n}"), MediaType::Image));
                    keys.filter(|new| store.thumbnails().request(new.clone(), 11).is_ok()).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 11);
    assert_eq!(fixture.store.thumbnails().counts().unwrap(), [(ThumbStatus::Pending, 11)]);
}

#[test]
fn images_and_videos_have_separate_limits() {
    let fixture = Fixture::new();
    fixture.library_file();
    for key in ["i1", "i2", "i3", "v1", "v2"] {
        let media = if key.starts_with('i') { MediaType::Image } else { MediaType::Video };
        fixture.request_thumbnail(key, media);
    }
    let claim = || fixture.claim_thumbnail("a").map(|row| row.thumb_key);
    let claimed: Vec<_> = (0..4).map(|_| claim()).collect();
    assert_eq!(claimed, [Some("i1".into()), Some("i2".into()), Some("v1".into()), None]);
    assert_eq!(fixture.second().thumbnails().claim(&token("b"), LEASE, ThumbLimits::default()).unwrap(), None);
    fixture.finish_thumbnail(fixture.store.thumbnails().get("v1").unwrap().id, ready());
    assert_eq!((claim(), claim()), (Some("v2".into()), None));
    fixture.finish_thumbnail(fixture.store.thumbnails().get("i1").unwrap().id, failed());
    assert_eq!((claim(), claim()), (Some("i3".into()), None));
}

#[test]
fn oldest_thumbnail_of_both_media_types_is_claimed_first() {
    let fixture = Fixture::new();
    fixture.library_file();
    for (key, media, time) in [
        ("c", MediaType::Image, "2026-01-19 07:00:00.000001"),
        ("b", MediaType::Video, "2026-01-19 07:00:00"),
        ("a", MediaType::Image, "2026-01-19 07:00:01"),
    ] {
        fixture.request_thumbnail(key, media);
        fixture.sql(&format!("UPDATE thumbnails SET created_at = '{time}' WHERE thumb_key = '{key}'"));
    }
    let order: Vec<_> = (0..3).map(|_| fixture.claim_thumbnail("a").unwrap().thumb_key).collect();
    assert_eq!(order, ["b", "c", "a"]);
}

#[test]
fn expired_thumbnail_is_pending_again() {
    let fixture = Fixture::new();
    fixture.library_file();
    let id = fixture.request_thumbnail("k", MediaType::Video).id;
    fixture.claim_thumbnail("a").unwrap();
    fixture.advance(LEASE);
    assert_eq!(fixture.store.thumbnails().recover().unwrap(), 1);
    let row = fixture.store.thumbnails().get("k").unwrap();
    assert_eq!((row.status, row.error_code.as_deref()), (ThumbStatus::Pending, Some("LEASE_EXPIRED")));
    assert_eq!((row.worker_id, row.lease_expires_at, row.error_count), (None, None, 0));
    // A claim recovers them, too.
    fixture.claim_thumbnail("a").unwrap();
    fixture.advance(LEASE);
    assert_eq!(fixture.claim_thumbnail("b").unwrap().id, id);
    // A late owner can finish what was not recovered.
    fixture.advance(LEASE);
    assert_eq!(fixture.store.thumbnails().heartbeat(id, &token("b"), LEASE).unwrap(), HeartbeatResult::Kept);
    fixture.advance(LEASE);
    fixture.claim_thumbnail("a").unwrap();
    assert_eq!(fixture.store.thumbnails().release(id, &token("a")).unwrap().status, ThumbStatus::Pending);
    assert!(fixture.store.thumbnails().release(id, &token("a")).is_err());
}

#[test]
fn pending_thumbnail_is_not_claimed_before_retry_after() {
    let fixture = Fixture::new();
    fixture.library_file();
    fixture.request_thumbnail("k", MediaType::Image);
    fixture.sql("UPDATE thumbnails SET retry_after = '2026-01-19 07:08:10+00:00'");
    assert_eq!(fixture.claim_thumbnail("a"), None);
    fixture.advance(seconds(1));
    assert!(fixture.claim_thumbnail("a").is_some());
}

#[test]
fn invalid_request_is_refused() {
    let fixture = Fixture::new();
    let request = |new| fixture.store.thumbnails().request(new, CAPACITY);
    assert!(matches!(request(new_thumbnail("k", MediaType::Image)), Err(Error::NotFound(_))));
    fixture.library_file();
    assert!(matches!(request(new_thumbnail("", MediaType::Image)), Err(Error::Invalid(_))));
    let mut none = new_thumbnail("k", MediaType::Image);
    none.max_dimension = 0;
    assert!(matches!(request(none), Err(Error::Invalid(_))));
}

#[test]
fn metrics_count_what_waits() {
    let fixture = Fixture::new();
    fixture.library_file();
    let metrics = || serde_json::to_string(&fixture.store.thumbnails().metrics().unwrap()).unwrap();
    let numbers = |numbers: [u32; 9]| {
        let [depth, pending, running, backlog, ready, cleanups, cleaning, overdue, lag] = numbers;
        format!(
            r#"{{"generated_at":"{}","queue_depth":{depth},"queue_pending":{pending},"queue_running":{running},"#,
            fixture.now().rfc3339()
        ) + &format!(
            r#""retry_backlog":{backlog},"retry_ready":{ready},"cleanup_pending":{cleanups},"cleanup_running":{cleaning},"#
        ) + &format!(r#""cleanup_overdue":{overdue},"cleanup_max_lag_seconds":{lag}}}"#)
    };
    assert_eq!(metrics(), numbers([0; 9]));
    let ids: Vec<i64> =
        ["a", "b", "c", "d"].map(|key| fixture.request_thumbnail(key, MediaType::Image).id).into_iter().collect();
    (0..2).for_each(|_| assert!(fixture.claim_thumbnail("a").is_some()));
    fixture.finish_thumbnail(ids[0], failed());
    fixture.finish_thumbnail(ids[1], ready());
    fixture.claim_thumbnail("a").unwrap();
    fixture.cleanup_at("x", 30);
    fixture.cleanup_at("y", 20);
    assert_eq!(metrics(), numbers([2, 1, 1, 1, 0, 2, 0, 0, 0]));
    // The failed one may be requested again after 30 seconds. Lags are whole seconds.
    fixture.advance(std::time::Duration::from_micros(29_999_999));
    assert_eq!(metrics(), numbers([2, 1, 1, 1, 0, 2, 0, 1, 9]));
    fixture.advance(std::time::Duration::from_micros(1));
    assert_eq!(metrics(), numbers([2, 1, 1, 0, 1, 2, 0, 2, 10]));
    // Another program writes short times, or no time for a retry.
    fixture.sql(
        "UPDATE thumbnails SET retry_after = NULL WHERE status = 'failed';
        UPDATE thumbnail_cleanup_jobs SET execute_after = '2026-01-19 07:08:09' WHERE group_key = 'x';
        UPDATE thumbnail_cleanup_jobs SET status = 'running' WHERE group_key = 'y'",
    );
    assert_eq!(metrics(), numbers([2, 1, 1, 0, 1, 1, 1, 1, 30]));
}
