use std::time::Duration;

use gristmill_store::tasks::NewTask;
use gristmill_store::wal::{MIN_INTERVAL, WalMode, WalRequest, WalRequestResult, WalRow, WalStatus};

use crate::{Fixture, LEASE, seconds, token};

fn request(mode: WalMode) -> WalRequest {
    WalRequest {
        mode,
        requested_by: "api".to_owned(),
        reason: Some("why not".to_owned()),
        min_interval: Some(MIN_INTERVAL),
    }
}

impl Fixture {
    fn enqueue_checkpoint(&self, mode: WalMode) -> WalRow {
        match self.store.wal().enqueue(request(mode)).unwrap() {
            WalRequestResult::Queued(row) => row,
            other => panic!("{other:?}"),
        }
    }

    fn claim_checkpoint(&self) -> Option<WalRow> {
        self.store.wal().claim(&token("a"), LEASE).unwrap()
    }

    fn wal_size(&self) -> u64 {
        self.store.wal().metrics().unwrap().wal_size_bytes
    }
}

#[test]
fn every_mode_runs_and_stores_its_frame_counts() {
    for mode in WalMode::ALL.iter().copied() {
        let fixture = Fixture::new();
        let created = fixture.enqueue_checkpoint(mode);
        assert_eq!((created.status, created.retry_count), (WalStatus::Pending, 0));
        assert_eq!((created.execute_after, created.retry_after), (fixture.now(), Some(fixture.now())));
        let claimed = fixture.claim_checkpoint().unwrap();
        assert_eq!((claimed.id, claimed.status), (created.id, WalStatus::Running));
        assert_eq!((claimed.started_at, claimed.requested_mode), (Some(fixture.now()), mode));
        assert_eq!(fixture.claim_checkpoint(), None);
        let size = fixture.wal_size();
        let done = fixture.store.wal().run(&claimed, &token("a")).unwrap();
        assert_eq!((done.status, done.checkpoint_busy), (WalStatus::Completed, Some(0)), "{mode:?}");
        assert_eq!(done.checkpoint_log_frames, done.checkpointed_frames, "{mode:?}");
        assert_eq!((done.finished_at, done.lease_expires_at), (Some(fixture.now()), None));
        assert!(fixture.store.wal().run(&claimed, &token("a")).is_err());
        assert_eq!(fixture.store.wal().latest().unwrap(), Some(done));
        if mode == WalMode::Truncate {
            // Truncated, except for the frames of the row update.
            assert!(fixture.wal_size() < size, "{size}");
        }
        let metrics = fixture.store.wal().metrics().unwrap();
        assert_eq!((metrics.completed, metrics.pending, metrics.running), (1, 0, 0));
        assert_eq!(metrics.latest_completed_at, Some(fixture.now()));
    }
}

#[test]
fn checkpoint_with_a_wrong_token_is_refused() {
    let fixture = Fixture::new();
    fixture.enqueue_checkpoint(WalMode::Passive);
    let claimed = fixture.claim_checkpoint().unwrap();
    assert!(fixture.store.wal().run(&claimed, &token("b")).is_err());
    assert_eq!(fixture.store.wal().latest().unwrap(), Some(claimed));
}

#[test]
fn checkpoint_is_retryable_while_a_reader_blocks_it() {
    let fixture = Fixture::new();
    fixture.enqueue_checkpoint(WalMode::Truncate);
    let reader = fixture.other_connection();
    reader.execute_batch("BEGIN; SELECT count(*) FROM jobs").unwrap();
    for count in 1..=2 {
        let claimed = fixture.claim_checkpoint().unwrap();
        let row = fixture.store.wal().run(&claimed, &token("a")).unwrap();
        assert_eq!((row.status, row.checkpoint_busy), (WalStatus::Retryable, Some(1)));
        assert_eq!(row.error_code.as_deref(), Some("WAL_CHECKPOINT_BUSY"));
        assert!(row.error_message.unwrap().starts_with("WAL checkpoint busy=1 log_frames="));
        assert_eq!((row.retry_count, row.retry_after), (count, Some(fixture.now().plus(seconds(120)))));
        assert_eq!((row.finished_at, row.lease_expires_at), (None, None));
        // It counts as active, and is not due yet.
        let again = fixture.store.wal().enqueue(request(WalMode::Passive)).unwrap();
        assert!(matches!(again, WalRequestResult::Active(active) if active.id == claimed.id));
        fixture.advance(seconds(119));
        assert_eq!(fixture.claim_checkpoint(), None);
        fixture.advance(seconds(1));
    }
    drop(reader);
    let claimed = fixture.claim_checkpoint().unwrap();
    let done = fixture.store.wal().run(&claimed, &token("a")).unwrap();
    assert_eq!((done.status, done.error_code), (WalStatus::Completed, None));
    assert_eq!((done.retry_count, done.retry_after), (2, claimed.retry_after));
}

#[test]
fn only_one_checkpoint_is_active_and_min_interval_is_respected() {
    let fixture = Fixture::new();
    let first = fixture.enqueue_checkpoint(WalMode::Passive);
    let active = |result| matches!(result, WalRequestResult::Active(row) if row.id == first.id);
    assert!(active(fixture.store.wal().enqueue(request(WalMode::Restart)).unwrap()));
    let claimed = fixture.claim_checkpoint().unwrap();
    assert!(active(fixture.second().wal().enqueue(request(WalMode::Restart)).unwrap()));
    fixture.store.wal().run(&claimed, &token("a")).unwrap();
    let next = fixture.now().plus(MIN_INTERVAL);
    fixture.advance(MIN_INTERVAL - Duration::from_micros(1));
    assert_eq!(fixture.store.wal().enqueue(request(WalMode::Passive)).unwrap(), WalRequestResult::TooSoon(next));
    let forced = WalRequest { min_interval: None, ..request(WalMode::Passive) };
    let WalRequestResult::Queued(forced) = fixture.store.wal().enqueue(forced).unwrap() else { panic!("not queued") };
    assert_ne!(forced.id, first.id);
    assert_eq!(fixture.store.wal().latest().unwrap().map(|row| row.id), Some(forced.id));
}

#[test]
fn min_interval_is_not_extended_by_a_clock_set_back() {
    let fixture = Fixture::new();
    fixture.enqueue_checkpoint(WalMode::Passive);
    let claimed = fixture.claim_checkpoint().unwrap();
    fixture.store.wal().run(&claimed, &token("a")).unwrap();
    fixture.set_back(seconds(1_000_000));
    let queued = fixture.enqueue_checkpoint(WalMode::Passive);
    fixture.sql(&format!("DELETE FROM wal_maintenance_jobs WHERE id = {}", queued.id));
    fixture.advance(seconds(1_000_000) + MIN_INTERVAL);
    fixture.enqueue_checkpoint(WalMode::Passive);
}

#[test]
fn expired_checkpoint_is_retried_later() {
    let fixture = Fixture::new();
    let id = fixture.enqueue_checkpoint(WalMode::Passive).id;
    let claimed = fixture.claim_checkpoint().unwrap();
    // A fraction that rounds up must not become another second.
    fixture.advance(LEASE + Duration::from_micros(749_999));
    assert_eq!(fixture.now().to_string(), "2026-01-19 07:13:09.999999");
    assert_eq!(fixture.claim_checkpoint(), None);
    let row = fixture.store.wal().latest().unwrap().unwrap();
    assert_eq!((row.id, row.status), (id, WalStatus::Retryable));
    assert_eq!(row.error_code.as_deref(), Some("LEASE_EXPIRED"));
    assert_eq!((row.retry_count, row.retry_after), (1, Some(fixture.now().plus(seconds(120)))));
    assert_eq!((row.worker_id, row.lease_expires_at, row.finished_at), (None, None, None));
    // An update of the previous owner is refused.
    assert!(fixture.store.wal().run(&claimed, &token("a")).is_err());
    fixture.advance(seconds(120));
    fixture.claim_checkpoint().unwrap();
    fixture.advance(LEASE);
    assert_eq!(fixture.second().wal().recover().unwrap(), 1);
    assert_eq!(fixture.store.wal().metrics().unwrap().retryable, 1);
}

#[test]
fn checkpoints_are_claimed_by_due_time() {
    let fixture = Fixture::new();
    for (id, status, execute, retry) in [
        (1, "pending", "2026-01-19 07:00:03", "NULL"),
        (2, "retryable", "2026-01-19 06:00:00", "'2026-01-19 07:00:02.5+00:00'"),
        (3, "pending", "2026-01-19 07:00:01", "'2026-01-19 07:00:01.000000'"),
        (4, "retryable", "2026-01-19 06:00:00", "'2026-01-19 08:00:00'"),
        (5, "failed", "2026-01-19 06:00:00", "NULL"),
        (6, "retryable", "2026-01-19 07:00:04", "NULL"),
    ] {
        fixture.sql(&format!(
            "INSERT INTO wal_maintenance_jobs (id, status, execute_after, retry_after)
             VALUES ({id}, '{status}', '{execute}', {retry})"
        ));
    }
    let order: Vec<_> = (0..5).map(|_| fixture.claim_checkpoint().map(|row| row.id)).collect();
    assert_eq!(order, [Some(3), Some(2), Some(1), Some(6), None]);
}

#[test]
fn pending_checkpoint_ignores_retry_after() {
    let fixture = Fixture::new();
    for (id, execute, retry) in
        [(1, "2026-01-19 07:00:00", "'2030-01-01 00:00:00'"), (2, "2030-01-01 00:00:00", "'2026-01-19 06:00:00'")]
    {
        fixture.sql(&format!(
            "INSERT INTO wal_maintenance_jobs (id, status, execute_after, retry_after)
             VALUES ({id}, 'pending', '{execute}', {retry})"
        ));
    }
    let order: Vec<_> = (0..2).map(|_| fixture.claim_checkpoint().map(|row| row.id)).collect();
    assert_eq!(order, [Some(1), None]);
}

#[test]
fn completed_checkpoint_keeps_retry_after() {
    let fixture = Fixture::new();
    let created = fixture.enqueue_checkpoint(WalMode::Passive);
    let claimed = fixture.claim_checkpoint().unwrap();
    let done = fixture.store.wal().run(&claimed, &token("a")).unwrap();
    assert_eq!((done.status, done.retry_after), (WalStatus::Completed, created.retry_after));
    assert_ne!(done.retry_after, None);
}

#[test]
fn state_has_the_sizes_and_the_latest_checkpoint() {
    let fixture = Fixture::new();
    fixture.store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    let state = fixture.store.wal().state().unwrap();
    let size = |suffix: &str| {
        let mut path = fixture.store.path().as_os_str().to_owned();
        path.push(suffix);
        std::fs::metadata(path).unwrap().len()
    };
    assert!(state.wal_size_bytes > 0 && state.database_size_bytes > 0);
    assert_eq!((state.wal_size_bytes, state.database_size_bytes), (size("-wal"), size("")));
    assert_eq!((state.page_size_bytes, state.latest_checkpoint), (4_096, None));
    let requested = fixture.enqueue_checkpoint(WalMode::Truncate);
    let claimed = fixture.claim_checkpoint().unwrap();
    assert_eq!(claimed.id, requested.id);
    let done = fixture.store.wal().run(&claimed, &token("a")).unwrap();
    let state = fixture.store.wal().state().unwrap();
    assert_eq!(state.latest_checkpoint, Some(done));
    assert_eq!(state.database_size_bytes, size(""));
    let json = serde_json::to_value(&state).unwrap();
    assert_eq!(json["latest_checkpoint"]["status"], "completed");
    assert_eq!(json["page_size_bytes"], 4_096);
}
