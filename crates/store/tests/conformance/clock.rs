//! Clocks are set back now and then. Nothing may be lost by it, and nothing panic.

use gristmill_store::UtcTime;
use gristmill_store::tasks::{Disposition, TaskStatus};

use super::*;

pub(crate) fn a_clock_set_back_keeps_a_lease(mill: &Mill) {
    let task = mill.put_and_claim();
    mill.set_back(HOUR);
    assert_eq!(mill.store.tasks().recover(1).unwrap().freed, 0);
    assert_eq!(mill.status(task.id), TaskStatus::Running);
    // A heartbeat brings the lease to the new time.
    assert_eq!(mill.beat(&task), HeartbeatResult::Kept);
    let row = mill.row(task.id);
    let now = mill.clock.now();
    assert_eq!((row.worker_heartbeat_at, row.lease_expires_at), (Some(now), Some(now.plus(LEASE))));
    mill.advance(LEASE);
    assert_eq!(mill.store.tasks().recover(NEVER).unwrap().freed, 1);
    assert_eq!(mill.claim_one().id, task.id);
}

pub(crate) fn a_clock_set_back_makes_nobody_early(mill: &Mill) {
    let id = mill.add(NewTask { run_after: Some(after(HOUR)), ..plain() });
    mill.set_back(HOUR);
    assert_eq!(mill.turn(1).next_due, Some(after(HOUR)));
    mill.advance(HOUR);
    assert_eq!(mill.turn(1).next_due, Some(after(HOUR)));
    mill.advance(HOUR);
    assert_eq!(mill.claim_one().id, id);
}

pub(crate) fn a_clock_set_back_loses_no_waiting_task(mill: &Mill) {
    // Through every way in which a task comes to wait, then the clock is set back, then time goes by.
    let give_back = [
        None,
        Some(Disposition::Released),
        Some(Disposition::Postponed(after(SEC))),
        Some(Disposition::Retry(after(SEC), failure("x"))),
    ];
    for verdict in give_back {
        for promoted in [false, true] {
            mill.clock.set(noon());
            let id = mill.add(NewTask { run_after: Some(after(SEC)), ..plain() });
            mill.advance(SEC);
            if let Some(verdict) = verdict.clone() {
                let task = mill.claim_one();
                assert_eq!(mill.settle(&task, verdict), UpdateResult::Done);
            }
            if promoted {
                // Somebody looked for other work meanwhile.
                assert_eq!(mill.turn(0).claimed, []);
            }
            mill.clock.set(noon().minus(HOUR));
            drop(mill.turn(0));
            mill.clock.set(after(SEC));
            assert_eq!(mill.claim_ids(), [id], "{verdict:?} {promoted}");
            mill.cancel(id);
        }
    }
}

pub(crate) fn the_next_due_time_counts_a_task_that_is_early_again(mill: &Mill) {
    let id = mill.add(NewTask { run_after: Some(after(HOUR)), ..plain() });
    mill.advance(HOUR);
    drop(mill.turn(0));
    mill.set_back(HOUR);
    // Whether it can be had at once or must wait: a worker that would sleep must know.
    let turn = mill.turn(1);
    let had: Vec<i64> = turn.claimed.iter().map(|task| task.id).collect();
    assert!(had == [id] || turn.next_due == Some(after(HOUR)), "{turn:?}");
}

pub(crate) fn a_clock_set_back_while_settling_is_harmless(mill: &Mill) {
    use TaskStatus::{Completed, Failed, Pending, Scheduled};
    for at in [noon().minus(HOUR), UtcTime::from_micros(0), UtcTime::from_micros(i64::MIN)] {
        for (verdict, status) in
            verdicts().into_iter().zip([Completed, Scheduled, Failed, Pending, Scheduled])
        {
            mill.clock.set(noon());
            let task = mill.put_and_claim();
            mill.clock.set(at);
            mill.note(&task, "a", "1").unwrap();
            assert_ne!(mill.settle(&task, verdict), UpdateResult::Lost);
            assert_eq!(mill.status(task.id), status);
            drop(mill.rows());
            drop(mill.letters());
            if !status.is_terminal() {
                mill.cancel(task.id);
            }
            mill.store.tasks().prune(noon(), 10).unwrap();
            // All but the last, whose number must not be used again.
            assert_eq!(mill.rows().len(), 1);
        }
    }
}
