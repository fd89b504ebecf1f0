use gristmill_store::Error;
use gristmill_store::cleanup::{CleanupRow, CleanupStatus};
use gristmill_store::thumbnails::MediaType;

use crate::thumbnails::{failed, ready};
use crate::{Bench, LEASE, seconds, token};

impl Bench {
    fn cleanup_at(&self, group: &str, after: u64) -> CleanupRow {
        self.store.cleanups().schedule(group, self.now().plus(seconds(after))).unwrap()
    }

    fn take_cleanup(&self) -> Option<CleanupRow> {
        self.store.cleanups().claim(&token("a"), LEASE).unwrap()
    }
}

#[test]
fn a_cleanup_waits_for_its_time() {
    let bench = Bench::new();
    let made = bench.cleanup_at("g", 60);
    assert_eq!((made.status, made.execute_after), (CleanupStatus::Pending, bench.now().plus(seconds(60))));
    assert_eq!(bench.take_cleanup(), None);
    bench.pass(seconds(60));
    let claimed = bench.take_cleanup().unwrap();
    assert_eq!((claimed.id, claimed.status), (made.id, CleanupStatus::Running));
    assert_eq!(claimed.lease_expires_at, Some(bench.now().plus(LEASE)));
    assert_eq!(bench.take_cleanup(), None);
    assert!(bench.store.cleanups().finish(made.id, &token("b"), Ok(())).is_err());
    let done = bench.store.cleanups().finish(made.id, &token("a"), Ok(())).unwrap();
    assert_eq!((done.status, done.finished_at), (CleanupStatus::Completed, Some(bench.now())));
    assert_eq!((done.lease_expires_at, done.error_code.clone()), (None, None));
    assert!(bench.store.cleanups().finish(made.id, &token("a"), Err("no".into())).is_err());
    assert_eq!(bench.store.cleanups().get("g").unwrap(), done);
}

#[test]
fn a_failed_cleanup_says_so() {
    let bench = Bench::new();
    let id = bench.cleanup_at("g", 0).id;
    bench.take_cleanup().unwrap();
    let row = bench.store.cleanups().finish(id, &token("a"), Err("disk".into())).unwrap();
    assert_eq!(
        (row.status, row.error_code.as_deref()),
        (CleanupStatus::Failed, Some("THUMB_CLEANUP_FAILED"))
    );
    assert_eq!(row.error_message.as_deref(), Some("disk"));
    // And can be asked for again.
    let again = bench.cleanup_at("g", 5);
    assert_eq!((again.id, again.status), (id, CleanupStatus::Pending));
    assert_eq!((again.error_code, again.error_message, again.finished_at), (None, None, None));
    assert_eq!((again.worker_id, again.execute_after), (None, bench.now().plus(seconds(5))));
}

#[test]
fn a_cleanup_in_hand_is_not_rescheduled() {
    let bench = Bench::new();
    bench.cleanup_at("g", 50);
    bench.cleanup_at("g", 0);
    bench.take_cleanup().unwrap();
    let before = bench.store.cleanups().get("g").unwrap();
    let result = bench.store.cleanups().schedule("g", bench.now());
    assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
    assert_eq!(bench.store.cleanups().get("g").unwrap(), before);
    // Unless its worker is gone.
    bench.pass(LEASE);
    assert_eq!(bench.cleanup_at("g", 9).status, CleanupStatus::Pending);
}

#[test]
fn unfinished_thumbnails_hold_it_up() {
    let bench = Bench::new();
    bench.library_file();
    let id = bench.thumb("k", MediaType::Image).id;
    bench.cleanup_at("g", 0);
    bench.cleanup_at("other", 0);
    assert_eq!(bench.take_cleanup().unwrap().group_key, "other");
    assert_eq!(bench.take_cleanup(), None);
    bench.take_thumb("a").unwrap();
    assert_eq!(bench.take_cleanup(), None);
    bench.end_thumb(id, ready());
    assert_eq!(bench.take_cleanup().unwrap().group_key, "g");
}

#[test]
fn cleanups_are_taken_in_the_order_of_their_times() {
    let bench = Bench::new();
    for (group, time) in [
        ("b", "2026-01-19 07:00:00.000001+00:00"),
        ("a", "2026-01-19 07:00:00"),
        ("c", "2026-01-19 07:00:01"),
    ] {
        bench.cleanup_at(group, 0);
        bench.sql(&format!(
            "UPDATE thumbnail_cleanup_jobs SET execute_after = '{time}' WHERE group_key = '{group}'"
        ));
    }
    let order: Vec<_> = (0..3).map(|_| bench.take_cleanup().unwrap().group_key).collect();
    assert_eq!(order, ["a", "b", "c"]);
}

#[test]
fn only_finished_thumbnails_are_removed_and_only_by_the_owner() {
    let bench = Bench::new();
    let other = bench.cleanup_at("other", 0).id;
    bench.take_cleanup().unwrap();
    let cleanup = bench.cleanup_at("g", 0).id;
    bench.take_cleanup().unwrap();
    bench.library_file();
    for (key, outcome) in [("r", Some(ready())), ("f", Some(failed())), ("run", None)] {
        let id = bench.thumb(key, MediaType::Image).id;
        bench.take_thumb("a").unwrap();
        if let Some(outcome) = outcome {
            bench.end_thumb(id, outcome);
        }
    }
    bench.thumb("wait", MediaType::Image);
    let keys: Vec<_> =
        bench.store.thumbnails().finished("g").unwrap().into_iter().map(|row| row.thumb_key).collect();
    assert_eq!(keys, ["r", "f"]);
    let remove = |id, owner: &str| bench.store.cleanups().remove_finished_thumbnails(id, &token(owner));
    assert!(remove(other, "a").unwrap().is_empty());
    assert!(matches!(remove(cleanup, "b"), Err(Error::Conflict(_))));
    let mut paths = remove(cleanup, "a").unwrap();
    paths.sort();
    assert_eq!(paths, ["aa/bb/f.jpg", "aa/bb/r.jpg"]);
    let thumbnails = bench.store.thumbnails();
    assert!(thumbnails.get("r").is_err() && thumbnails.get("f").is_err());
    assert!(thumbnails.get("run").is_ok() && thumbnails.get("wait").is_ok());
}

#[test]
fn what_was_left_behind_waits_again() {
    let bench = Bench::new();
    let id = bench.cleanup_at("g", 0).id;
    bench.take_cleanup().unwrap();
    bench.pass(LEASE);
    assert_eq!(bench.store.cleanups().recover().unwrap(), 1);
    let row = bench.store.cleanups().get("g").unwrap();
    assert_eq!((row.status, row.error_code.as_deref()), (CleanupStatus::Pending, Some("LEASE_EXPIRED")));
    assert_eq!((row.worker_id, row.lease_expires_at), (None, None));
    bench.take_cleanup().unwrap();
    bench.pass(LEASE);
    assert_eq!(bench.second().cleanups().claim(&token("b"), LEASE).unwrap().unwrap().id, id);
    assert!(bench.store.cleanups().finish(id, &token("a"), Ok(())).is_err());
    assert!(bench.store.cleanups().release(id, &token("a")).is_err());
    assert_eq!(bench.store.cleanups().release(id, &token("b")).unwrap().status, CleanupStatus::Pending);
}

#[test]
fn group_keys_are_checked() {
    let bench = Bench::new();
    for key in ["", "  ", &"x".repeat(257)] {
        let result = bench.store.cleanups().schedule(key, bench.now());
        assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    }
}
