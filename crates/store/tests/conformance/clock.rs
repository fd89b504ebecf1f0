//! A clock that is set back: nothing is lost, and nothing panics.

use gristmill_store::UtcTime;
use gristmill_store::tasks::{Disposition, TaskStatus};

use super::*;

pub(crate) fn clock_set_back_keeps_a_lease(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    fixture.set_back(HOUR);
    assert_eq!(fixture.store.tasks().recover(1).unwrap().freed, 0);
    assert_eq!(fixture.status(task.id), TaskStatus::Running);
    // A heartbeat moves the lease to the new time.
    assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Kept);
    let row = fixture.row(task.id);
    let now = UtcTime::of(&fixture.clock);
    assert_eq!((row.worker_heartbeat_at, row.lease_expires_at), (Some(now), Some(now.plus(LEASE))));
    fixture.advance(LEASE);
    assert_eq!(fixture.store.tasks().recover(NEVER).unwrap().freed, 1);
    assert_eq!(fixture.claim_one().id, task.id);
}

pub(crate) fn clock_set_back_does_not_run_a_task_early(fixture: &Fixture) {
    let id = fixture.enqueue(NewTask { run_after: Some(after(HOUR)), ..plain_task() });
    fixture.set_back(HOUR);
    assert_eq!(fixture.claim_batch(1).next_due, Some(after(HOUR)));
    fixture.advance(HOUR);
    assert_eq!(fixture.claim_batch(1).next_due, Some(after(HOUR)));
    fixture.advance(HOUR);
    assert_eq!(fixture.claim_one().id, id);
}

pub(crate) fn clock_set_back_loses_no_waiting_task(fixture: &Fixture) {
    // For every way in which a task becomes scheduled: the clock is set back, then time passes.
    let dispositions = [
        None,
        Some(Disposition::Released),
        Some(Disposition::Postponed(after(SEC))),
        Some(Disposition::Retry(after(SEC), failure("x"))),
    ];
    for disposition in dispositions {
        for promoted in [false, true] {
            fixture.clock.set_unix_micros(noon().micros());
            let id = fixture.enqueue(NewTask { run_after: Some(after(SEC)), ..plain_task() });
            fixture.advance(SEC);
            if let Some(disposition) = disposition.clone() {
                let task = fixture.claim_one();
                assert_eq!(fixture.settle(&task, disposition), UpdateResult::Done);
            }
            if promoted {
                // Another claim promotes the task meanwhile.
                assert_eq!(fixture.claim_batch(0).claimed, []);
            }
            fixture.clock.set_unix_micros(noon().minus(HOUR).micros());
            drop(fixture.claim_batch(0));
            fixture.clock.set_unix_micros(after(SEC).micros());
            assert_eq!(fixture.claim_ids(), [id], "{disposition:?} {promoted}");
            fixture.cancel(id);
        }
    }
}

pub(crate) fn next_due_includes_a_task_that_is_not_due_again_after_clock_set_back(fixture: &Fixture) {
    let id = fixture.enqueue(NewTask { run_after: Some(after(HOUR)), ..plain_task() });
    fixture.advance(HOUR);
    drop(fixture.claim_batch(0));
    fixture.set_back(HOUR);
    // A worker must learn whether the task is pending or when it is due.
    let batch = fixture.claim_batch(1);
    let claimed: Vec<i64> = batch.claimed.iter().map(|task| task.id).collect();
    assert!(claimed == [id] || batch.next_due == Some(after(HOUR)), "{batch:?}");
}

pub(crate) fn settle_succeeds_after_clock_set_back(fixture: &Fixture) {
    use TaskStatus::{Completed, Failed, Pending, Scheduled};
    for at in [noon().minus(HOUR), UtcTime::from_micros(0), UtcTime::from_micros(i64::MIN)] {
        for (disposition, status) in
            all_dispositions().into_iter().zip([Completed, Scheduled, Failed, Pending, Scheduled])
        {
            fixture.clock.set_unix_micros(noon().micros());
            let task = fixture.enqueue_and_claim();
            fixture.clock.set_unix_micros(at.micros());
            fixture.save_checkpoint(&task, "a", "1").unwrap();
            assert_ne!(fixture.settle(&task, disposition), UpdateResult::Lost);
            assert_eq!(fixture.status(task.id), status);
            drop(fixture.rows());
            drop(fixture.dead_letters());
            if !status.is_terminal() {
                fixture.cancel(task.id);
            }
            fixture.store.tasks().prune(noon(), 10).unwrap();
            // All except the last, whose id must not be reused.
            assert_eq!(fixture.rows().len(), 1);
        }
    }
}
