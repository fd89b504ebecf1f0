use gristmill_store::Error;
use gristmill_store::cleanup::{CleanupRow, CleanupStatus};
use gristmill_store::thumbnails::MediaType;

use crate::thumbnails::{failed, ready};
use crate::{Fixture, LEASE, seconds, token};

impl Fixture {
    pub(crate) fn cleanup_at(&self, group: &str, after: u64) -> CleanupRow {
        self.store.cleanups().schedule(group, self.now().plus(seconds(after))).unwrap()
    }

    fn claim_cleanup(&self) -> Option<CleanupRow> {
        self.store.cleanups().claim(&token("a"), LEASE).unwrap()
    }
}

#[test]
fn cleanup_is_not_claimed_before_execute_after() {
    let fixture = Fixture::new();
    let created = fixture.cleanup_at("g", 60);
    assert_eq!((created.status, created.execute_after), (CleanupStatus::Pending, fixture.now().plus(seconds(60))));
    assert_eq!(fixture.claim_cleanup(), None);
    fixture.advance(seconds(60));
    let claimed = fixture.claim_cleanup().unwrap();
    assert_eq!((claimed.id, claimed.status), (created.id, CleanupStatus::Running));
    assert_eq!(claimed.lease_expires_at, Some(fixture.now().plus(LEASE)));
    assert_eq!(fixture.claim_cleanup(), None);
    assert!(fixture.store.cleanups().finish(created.id, &token("b"), Ok(())).is_err());
    let done = fixture.store.cleanups().finish(created.id, &token("a"), Ok(())).unwrap();
    assert_eq!((done.status, done.finished_at), (CleanupStatus::Completed, Some(fixture.now())));
    assert_eq!((done.lease_expires_at, done.error_code.clone()), (None, None));
    assert!(fixture.store.cleanups().finish(created.id, &token("a"), Err("no".into())).is_err());
    assert_eq!(fixture.store.cleanups().get("g").unwrap(), done);
}

#[test]
fn failed_cleanup_stores_code_and_message() {
    let fixture = Fixture::new();
    let id = fixture.cleanup_at("g", 0).id;
    fixture.claim_cleanup().unwrap();
    let row = fixture.store.cleanups().finish(id, &token("a"), Err("disk".into())).unwrap();
    assert_eq!((row.status, row.error_code.as_deref()), (CleanupStatus::Failed, Some("THUMB_CLEANUP_FAILED")));
    assert_eq!(row.error_message.as_deref(), Some("disk"));
    // It can be scheduled again.
    let again = fixture.cleanup_at("g", 5);
    assert_eq!((again.id, again.status), (id, CleanupStatus::Pending));
    assert_eq!((again.error_code, again.error_message, again.finished_at), (None, None, None));
    assert_eq!((again.worker_id, again.execute_after), (None, fixture.now().plus(seconds(5))));
}

#[test]
fn running_cleanup_is_not_rescheduled() {
    let fixture = Fixture::new();
    fixture.cleanup_at("g", 50);
    fixture.cleanup_at("g", 0);
    fixture.claim_cleanup().unwrap();
    let before = fixture.store.cleanups().get("g").unwrap();
    let result = fixture.store.cleanups().schedule("g", fixture.now());
    assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
    assert_eq!(fixture.store.cleanups().get("g").unwrap(), before);
    // Unless its lease has expired.
    fixture.advance(LEASE);
    assert_eq!(fixture.cleanup_at("g", 9).status, CleanupStatus::Pending);
}

#[test]
fn cleanup_waits_for_unfinished_thumbnails() {
    let fixture = Fixture::new();
    fixture.library_file();
    let id = fixture.request_thumbnail("k", MediaType::Image).id;
    fixture.cleanup_at("g", 0);
    fixture.cleanup_at("other", 0);
    assert_eq!(fixture.claim_cleanup().unwrap().group_key, "other");
    assert_eq!(fixture.claim_cleanup(), None);
    fixture.claim_thumbnail("a").unwrap();
    assert_eq!(fixture.claim_cleanup(), None);
    fixture.finish_thumbnail(id, ready());
    assert_eq!(fixture.claim_cleanup().unwrap().group_key, "g");
}

#[test]
fn cleanups_are_claimed_by_execute_after() {
    let fixture = Fixture::new();
    for (group, time) in
        [("b", "2026-01-19 07:00:00.000001+00:00"), ("a", "2026-01-19 07:00:00"), ("c", "2026-01-19 07:00:01")]
    {
        fixture.cleanup_at(group, 0);
        fixture.sql(&format!("UPDATE thumbnail_cleanup_jobs SET execute_after = '{time}' WHERE group_key = '{group}'"));
    }
    let order: Vec<_> = (0..3).map(|_| fixture.claim_cleanup().unwrap().group_key).collect();
    assert_eq!(order, ["a", "b", "c"]);
}

#[test]
fn owner_removes_only_finished_thumbnails() {
    let fixture = Fixture::new();
    let other = fixture.cleanup_at("other", 0).id;
    fixture.claim_cleanup().unwrap();
    let cleanup = fixture.cleanup_at("g", 0).id;
    fixture.claim_cleanup().unwrap();
    fixture.library_file();
    for (key, outcome) in [("r", Some(ready())), ("f", Some(failed())), ("run", None)] {
        let id = fixture.request_thumbnail(key, MediaType::Image).id;
        fixture.claim_thumbnail("a").unwrap();
        if let Some(outcome) = outcome {
            fixture.finish_thumbnail(id, outcome);
        }
    }
    fixture.request_thumbnail("wait", MediaType::Image);
    let keys: Vec<_> = fixture.store.thumbnails().finished("g").unwrap().into_iter().map(|row| row.thumb_key).collect();
    assert_eq!(keys, ["r", "f"]);
    let remove = |id, owner: &str| fixture.store.cleanups().remove_finished_thumbnails(id, &token(owner));
    assert!(remove(other, "a").unwrap().is_empty());
    assert!(matches!(remove(cleanup, "b"), Err(Error::Conflict(_))));
    let mut paths = remove(cleanup, "a").unwrap();
    paths.sort();
    assert_eq!(paths, ["aa/bb/f.jpg", "aa/bb/r.jpg"]);
    let thumbnails = fixture.store.thumbnails();
    assert!(thumbnails.get("r").is_err() && thumbnails.get("f").is_err());
    assert!(thumbnails.get("run").is_ok() && thumbnails.get("wait").is_ok());
}

#[test]
fn expired_cleanup_is_pending_again() {
    let fixture = Fixture::new();
    let id = fixture.cleanup_at("g", 0).id;
    fixture.claim_cleanup().unwrap();
    fixture.advance(LEASE);
    assert_eq!(fixture.store.cleanups().recover().unwrap(), 1);
    let row = fixture.store.cleanups().get("g").unwrap();
    assert_eq!((row.status, row.error_code.as_deref()), (CleanupStatus::Pending, Some("LEASE_EXPIRED")));
    assert_eq!((row.worker_id, row.lease_expires_at), (None, None));
    fixture.claim_cleanup().unwrap();
    fixture.advance(LEASE);
    assert_eq!(fixture.second().cleanups().claim(&token("b"), LEASE).unwrap().unwrap().id, id);
    assert!(fixture.store.cleanups().finish(id, &token("a"), Ok(())).is_err());
    assert!(fixture.store.cleanups().release(id, &token("a")).is_err());
    assert_eq!(fixture.store.cleanups().release(id, &token("b")).unwrap().status, CleanupStatus::Pending);
}

#[test]
fn invalid_group_key_is_refused() {
    let fixture = Fixture::new();
    for key in ["", "  ", &"x".repeat(257)] {
        let result = fixture.store.cleanups().schedule(key, fixture.now());
        assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    }
}
