use std::time::Duration;

use gristmill_store::wal::{MIN_INTERVAL, WalMode, WalRequest, WalRequestResult, WalRow, WalStatus};

use crate::{Bench, LEASE, seconds, token};

fn request(mode: WalMode) -> WalRequest {
    WalRequest {
        mode,
        requested_by: "api".to_owned(),
        reason: Some("why not".to_owned()),
        min_interval: Some(MIN_INTERVAL),
    }
}

impl Bench {
    fn ask(&self, mode: WalMode) -> WalRow {
        match self.store.wal().enqueue(request(mode)).unwrap() {
            WalRequestResult::Queued(row) => row,
            other => panic!("{other:?}"),
        }
    }

    fn take_wal(&self) -> Option<WalRow> {
        self.store.wal().claim(&token("a"), LEASE).unwrap()
    }

    fn log_size(&self) -> u64 {
        self.store.wal().metrics().unwrap().wal_size_bytes
    }
}

#[test]
fn every_mode_is_run_and_its_numbers_are_kept() {
    for mode in WalMode::ALL.iter().copied() {
        let bench = Bench::new();
        let made = bench.ask(mode);
        assert_eq!((made.status, made.retry_count), (WalStatus::Pending, 0));
        assert_eq!((made.execute_after, made.retry_after), (bench.now(), Some(bench.now())));
        let claimed = bench.take_wal().unwrap();
        assert_eq!((claimed.id, claimed.status), (made.id, WalStatus::Running));
        assert_eq!((claimed.started_at, claimed.requested_mode), (Some(bench.now()), mode));
        assert_eq!(bench.take_wal(), None);
        let size = bench.log_size();
        let done = bench.store.wal().run(&claimed, &token("a")).unwrap();
        assert_eq!((done.status, done.checkpoint_busy), (WalStatus::Completed, Some(0)), "{mode:?}");
        assert_eq!(done.checkpoint_log_frames, done.checkpointed_frames, "{mode:?}");
        assert_eq!((done.finished_at, done.lease_expires_at), (Some(bench.now()), None));
        assert!(bench.store.wal().run(&claimed, &token("a")).is_err());
        assert_eq!(bench.store.wal().latest().unwrap(), Some(done));
        if mode == WalMode::Truncate {
            // Emptied; what is in it now is the note that it was.
            assert!(bench.log_size() < size, "{size}");
        }
        let metrics = bench.store.wal().metrics().unwrap();
        assert_eq!((metrics.completed, metrics.pending, metrics.running), (1, 0, 0));
        assert_eq!(metrics.latest_completed_at, Some(bench.now()));
    }
}

#[test]
fn only_the_owner_writes() {
    let bench = Bench::new();
    bench.ask(WalMode::Passive);
    let claimed = bench.take_wal().unwrap();
    assert!(bench.store.wal().run(&claimed, &token("b")).is_err());
    assert_eq!(bench.store.wal().latest().unwrap(), Some(claimed));
}

#[test]
fn a_reader_in_the_way_makes_it_busy() {
    let bench = Bench::new();
    bench.ask(WalMode::Truncate);
    let reader = bench.stranger();
    reader.execute_batch("BEGIN; SELECT count(*) FROM jobs").unwrap();
    for count in 1..=2 {
        let claimed = bench.take_wal().unwrap();
        let row = bench.store.wal().run(&claimed, &token("a")).unwrap();
        assert_eq!((row.status, row.checkpoint_busy), (WalStatus::Retryable, Some(1)));
        assert_eq!(row.error_code.as_deref(), Some("WAL_CHECKPOINT_BUSY"));
        assert!(row.error_message.unwrap().starts_with("WAL checkpoint busy=1 log_frames="));
        assert_eq!((row.retry_count, row.retry_after), (count, Some(bench.now().plus(seconds(120)))));
        assert_eq!((row.finished_at, row.lease_expires_at), (None, None));
        // It counts as active, and is not due before its time.
        let again = bench.store.wal().enqueue(request(WalMode::Passive)).unwrap();
        assert!(matches!(again, WalRequestResult::Active(active) if active.id == claimed.id));
        bench.pass(seconds(119));
        assert_eq!(bench.take_wal(), None);
        bench.pass(seconds(1));
    }
    drop(reader);
    let claimed = bench.take_wal().unwrap();
    let done = bench.store.wal().run(&claimed, &token("a")).unwrap();
    assert_eq!((done.status, done.error_code), (WalStatus::Completed, None));
    assert_eq!((done.retry_count, done.retry_after), (2, claimed.retry_after));
}

#[test]
fn there_is_one_at_a_time_and_not_too_often() {
    let bench = Bench::new();
    let first = bench.ask(WalMode::Passive);
    let active = |answer| matches!(answer, WalRequestResult::Active(row) if row.id == first.id);
    assert!(active(bench.store.wal().enqueue(request(WalMode::Restart)).unwrap()));
    let claimed = bench.take_wal().unwrap();
    assert!(active(bench.second().wal().enqueue(request(WalMode::Restart)).unwrap()));
    bench.store.wal().run(&claimed, &token("a")).unwrap();
    let next = bench.now().plus(MIN_INTERVAL);
    bench.pass(MIN_INTERVAL - Duration::from_micros(1));
    assert_eq!(
        bench.store.wal().enqueue(request(WalMode::Passive)).unwrap(),
        WalRequestResult::TooSoon(next)
    );
    let forced = WalRequest { min_interval: None, ..request(WalMode::Passive) };
    let WalRequestResult::Queued(forced) = bench.store.wal().enqueue(forced).unwrap() else {
        panic!("not queued")
    };
    assert_ne!(forced.id, first.id);
    assert_eq!(bench.store.wal().latest().unwrap().map(|row| row.id), Some(forced.id));
}

#[test]
fn the_interval_ends_and_a_clock_set_back_does_not_prolong_it() {
    let bench = Bench::new();
    bench.ask(WalMode::Passive);
    let claimed = bench.take_wal().unwrap();
    bench.store.wal().run(&claimed, &token("a")).unwrap();
    bench.turn_back(seconds(1_000_000));
    let queued = bench.ask(WalMode::Passive);
    bench.sql(&format!("DELETE FROM wal_maintenance_jobs WHERE id = {}", queued.id));
    bench.pass(seconds(1_000_000) + MIN_INTERVAL);
    bench.ask(WalMode::Passive);
}

#[test]
fn what_was_left_behind_is_tried_again_later() {
    let bench = Bench::new();
    let id = bench.ask(WalMode::Passive).id;
    let claimed = bench.take_wal().unwrap();
    // A fraction that rounds up must not become another second.
    bench.pass(LEASE + Duration::from_micros(749_999));
    assert_eq!(bench.now().to_string(), "2026-01-19 07:13:09.999999");
    assert_eq!(bench.take_wal(), None);
    let row = bench.store.wal().latest().unwrap().unwrap();
    assert_eq!((row.id, row.status), (id, WalStatus::Retryable));
    assert_eq!(row.error_code.as_deref(), Some("LEASE_EXPIRED"));
    assert_eq!((row.retry_count, row.retry_after), (1, Some(bench.now().plus(seconds(120)))));
    assert_eq!((row.worker_id, row.lease_expires_at, row.finished_at), (None, None, None));
    // Its late owner's word does not count.
    assert!(bench.store.wal().run(&claimed, &token("a")).is_err());
    bench.pass(seconds(120));
    bench.take_wal().unwrap();
    bench.pass(LEASE);
    assert_eq!(bench.second().wal().recover().unwrap(), 1);
    assert_eq!(bench.store.wal().metrics().unwrap().retryable, 1);
}

#[test]
fn the_first_due_is_taken_first() {
    let bench = Bench::new();
    for (id, status, execute, retry) in [
        (1, "pending", "2026-01-19 07:00:03", "NULL"),
        (2, "retryable", "2026-01-19 06:00:00", "'2026-01-19 07:00:02.5+00:00'"),
        (3, "pending", "2026-01-19 07:00:01", "'2026-01-19 07:00:01.000000'"),
        (4, "retryable", "2026-01-19 06:00:00", "'2026-01-19 08:00:00'"),
        (5, "failed", "2026-01-19 06:00:00", "NULL"),
        (6, "retryable", "2026-01-19 07:00:04", "NULL"),
    ] {
        bench.sql(&format!(
            "INSERT INTO wal_maintenance_jobs (id, status, execute_after, retry_after)
             VALUES ({id}, '{status}', '{execute}', {retry})"
        ));
    }
    let order: Vec<_> = (0..5).map(|_| bench.take_wal().map(|row| row.id)).collect();
    assert_eq!(order, [Some(3), Some(2), Some(1), Some(6), None]);
}

#[test]
fn a_pending_checkpoint_is_due_by_execute_after_alone() {
    let bench = Bench::new();
    for (id, execute, retry) in [
        (1, "2026-01-19 07:00:00", "'2030-01-01 00:00:00'"),
        (2, "2030-01-01 00:00:00", "'2026-01-19 06:00:00'"),
    ] {
        bench.sql(&format!(
            "INSERT INTO wal_maintenance_jobs (id, status, execute_after, retry_after)
             VALUES ({id}, 'pending', '{execute}', {retry})"
        ));
    }
    let order: Vec<_> = (0..2).map(|_| bench.take_wal().map(|row| row.id)).collect();
    assert_eq!(order, [Some(1), None]);
}

#[test]
fn a_checkpoint_that_succeeds_leaves_retry_after_as_it_is() {
    let bench = Bench::new();
    let made = bench.ask(WalMode::Passive);
    let claimed = bench.take_wal().unwrap();
    let done = bench.store.wal().run(&claimed, &token("a")).unwrap();
    assert_eq!((done.status, done.retry_after), (WalStatus::Completed, made.retry_after));
    assert_ne!(done.retry_after, None);
}
