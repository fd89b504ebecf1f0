//! Leases of tasks: claim, heartbeat, expiry, recovery and poison pills.

use gristmill_store::UtcTime;
use gristmill_store::tasks::{
    ClaimRequest, Disposition, NewTask, Recovered, ReplacementClaim, TaskStatus, WorkerBatch,
};

use super::*;

/// Claims as another worker than the fixture's.
fn claim_as(fixture: &Fixture, worker: &WorkerId) -> Vec<ClaimedTask> {
    let request = ClaimRequest { token: worker.token(), ..fixture.claim_request(100) };
    fixture.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed
}

fn freed(freed: usize) -> Recovered {
    Recovered { freed, ..Recovered::default() }
}

pub(crate) fn claim_stores_its_token_and_lease(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    let row = fixture.row(task.id);
    assert_eq!(row.worker_id.as_deref(), Some(task.token.as_str()));
    assert!(task.token.as_str().starts_with(fixture.worker.name()));
    assert_eq!((row.status, row.started_at, row.starts), (TaskStatus::Running, None, 0));
    assert_eq!((row.worker_heartbeat_at, row.lease_expires_at), (Some(noon()), Some(after(LEASE))));
}

pub(crate) fn claim_tokens_are_unique(fixture: &Fixture) {
    let (a, b) = (WorkerId::new("same name"), WorkerId::new("same name"));
    let mut tokens: Vec<String> = Vec::new();
    for worker in [&a, &b, &a.clone(), &a, &b] {
        tokens.push(worker.token().as_str().to_owned());
    }
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 5);
    // The control plane limits names to 128 characters on one line.
    let long = WorkerId::new(&"石\n".repeat(200)).token();
    assert!(long.as_str().chars().count() <= 128 && !long.as_str().contains('\n'), "{long:?}");
    fixture.enqueue_plain();
    let first = fixture.claim_one();
    fixture.settle(&first, Disposition::Released);
    assert_ne!(fixture.claim_one().token, first.token);
}

pub(crate) fn claimed_task_is_not_claimed_again_before_recovery(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    let row = fixture.row(task.id);
    assert_eq!(claim_as(fixture, &WorkerId::new("other")), []);
    assert_eq!(fixture.claim(), []);
    // Not even after expiry: only recovery frees it.
    fixture.advance(HOUR);
    assert_eq!(claim_as(fixture, &WorkerId::new("other")), []);
    assert_eq!(fixture.row(task.id), row);
}

pub(crate) fn heartbeat_renews_the_lease(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    assert!(fixture.start(&task));
    for nth in 1..=5 {
        fixture.advance(LEASE - SEC);
        assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Kept);
        let row = fixture.row(task.id);
        let now = UtcTime::of(&fixture.clock);
        assert_eq!(now, after((LEASE - SEC) * nth));
        assert_eq!((row.worker_heartbeat_at, row.lease_expires_at), (Some(now), Some(now.plus(LEASE))));
        assert_eq!((row.status, row.started_at), (TaskStatus::Running, Some(noon())));
        assert_eq!(fixture.store.tasks().recover(1).unwrap(), freed(0));
    }
    assert_eq!(fixture.settle(&task, Disposition::Completed(None)), UpdateResult::Done);
}

pub(crate) fn heartbeat_renews_an_expired_lease_before_recovery(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    fixture.advance(3 * HOUR);
    assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Kept);
    let row = fixture.row(task.id);
    assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Running, 0, 0));
    assert_eq!(row.lease_expires_at, Some(UtcTime::of(&fixture.clock).plus(LEASE)));
    assert_eq!(fixture.store.tasks().recover(1).unwrap(), freed(0));
    fixture.advance(LEASE);
    assert_eq!(fixture.store.tasks().recover(NEVER).unwrap(), freed(1));
    assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Lost);
    assert_eq!(fixture.settle(&task, Disposition::Completed(None)), UpdateResult::Lost);
    assert_eq!(fixture.claim_one().id, task.id);
}

pub(crate) fn heartbeat_with_a_wrong_token_is_lost(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    let wrong_token = ClaimedTask { token: fixture.worker.token(), ..task.clone() };
    for _ in 0..2 {
        let row = fixture.row(task.id);
        assert_eq!(fixture.heartbeat(&wrong_token), HeartbeatResult::Lost);
        assert_eq!(fixture.heartbeat(&ClaimedTask { id: 77, ..task.clone() }), HeartbeatResult::Lost);
        // An expired lease is not freed by a wrong token either.
        assert_eq!(fixture.row(task.id), row);
        fixture.advance(2 * LEASE);
    }
}

pub(crate) fn heartbeat_results_are_in_the_order_of_the_tasks(fixture: &Fixture) {
    let short = fixture.enqueue_and_claim();
    fixture.advance(LEASE / 2);
    let (kept, cancelled) = (fixture.enqueue_and_claim(), fixture.enqueue_and_claim());
    fixture.cancel(cancelled.id);
    fixture.advance(LEASE / 2);
    let held = [&cancelled, &kept, &short, &kept].map(|task| (task.id, task.token.clone()));
    let results = fixture.store.tasks().heartbeat(held.to_vec(), LEASE).unwrap();
    assert_eq!(results, [HeartbeatResult::Lost, HeartbeatResult::Kept, HeartbeatResult::Kept, HeartbeatResult::Kept]);
    assert_eq!(fixture.store.tasks().heartbeat(vec![], LEASE).unwrap(), []);
}

pub(crate) fn lease_expires_exactly_at_its_end(fixture: &Fixture) {
    let last = UtcTime::from_micros(after(LEASE).micros() - 1);
    let check = |at: UtcTime, recovered: usize| {
        fixture.clock.set_unix_micros(noon().micros());
        let (renewed, left) = (fixture.enqueue_and_claim(), fixture.enqueue_and_claim());
        fixture.clock.set_unix_micros(at.micros());
        assert_eq!(fixture.heartbeat(&renewed), HeartbeatResult::Kept, "{at}");
        assert_eq!(fixture.store.tasks().recover(NEVER).unwrap(), freed(recovered), "{at}");
        for task in [renewed, left] {
            fixture.cancel(task.id);
        }
    };
    check(last, 0);
    check(after(LEASE), 1);
}

pub(crate) fn lease_of_maximal_duration_does_not_expire(fixture: &Fixture) {
    fixture.enqueue_plain();
    let request = ClaimRequest { lease: Duration::MAX, ..fixture.claim_request(1) };
    let task = fixture.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed.remove(0);
    fixture.advance(HOUR * 24 * 365);
    assert_eq!(fixture.store.tasks().recover(1).unwrap(), freed(0));
    let held = vec![(task.id, task.token.clone())];
    assert_eq!(fixture.store.tasks().heartbeat(held, Duration::MAX).unwrap(), [HeartbeatResult::Kept]);
    assert!(fixture.row(task.id).lease_expires_at.unwrap() > UtcTime::of(&fixture.clock));
}

pub(crate) fn recover_frees_only_expired_leases(fixture: &Fixture) {
    assert_eq!(fixture.store.tasks().recover(1).unwrap(), freed(0));
    let stale = fixture.enqueue_and_claim();
    assert!(fixture.start(&stale));
    let renewed = fixture.enqueue_and_claim();
    let done = fixture.enqueue_and_claim();
    fixture.settle(&done, Disposition::Completed(None));
    let scheduled = fixture.enqueue(NewTask { run_after: Some(after(9 * HOUR)), ..plain_task() });
    fixture.advance(LEASE - SEC);
    assert_eq!(fixture.heartbeat(&renewed), HeartbeatResult::Kept);
    let young = fixture.enqueue_and_claim();
    let pending = fixture.enqueue_plain();
    fixture.advance(SEC);
    let others = [renewed.id, done.id, scheduled, young.id, pending];
    let before = others.map(|id| fixture.row(id));
    assert_eq!(fixture.store.tasks().recover(NEVER).unwrap(), freed(1));
    let row = fixture.row(stale.id);
    assert_eq!((row.status, row.crashes, row.attempts), (TaskStatus::Pending, 1, 0));
    assert_eq!((&row.worker_id, row.worker_heartbeat_at, row.lease_expires_at), (&None, None, None));
    assert_eq!(others.map(|id| fixture.row(id)), before);
    assert_eq!(fixture.store.tasks().recover(NEVER).unwrap(), freed(0), "a crash is counted once");
    assert_eq!(fixture.row(stale.id), row);
    let claimed = fixture.claim();
    assert_eq!(claimed.iter().map(|task| (task.id, task.crashes)).collect::<Vec<_>>(), [(stale.id, 1), (pending, 0)]);
}

pub(crate) fn previous_owner_is_refused_after_recovery_and_another_claim(fixture: &Fixture) {
    // By another worker, and by the same one: the token decides, not the name.
    for next in [WorkerId::new("other"), fixture.worker.clone()] {
        let old = fixture.enqueue_and_claim();
        fixture.save_checkpoint(&old, "old", "1").unwrap();
        fixture.advance(LEASE);
        assert_eq!(fixture.store.tasks().recover(NEVER).unwrap(), freed(1));
        assert_refused(fixture.save_checkpoint(&old, "free", "1"), conflict, &[&old.id.to_string()]);
        let new = claim_as(fixture, &next).remove(0);
        assert_eq!(new.id, old.id);
        let row = fixture.row(old.id);
        for disposition in all_dispositions() {
            assert_eq!(fixture.settle(&old, disposition.clone()), UpdateResult::Lost, "{disposition:?}");
            assert_eq!(fixture.row(old.id), row, "{disposition:?}");
        }
        assert_eq!(fixture.heartbeat(&old), HeartbeatResult::Lost);
        assert_refused(fixture.save_checkpoint(&old, "old", "2"), conflict, &[&old.id.to_string()]);
        assert_eq!((fixture.row(old.id), fixture.dead_letters()), (row, vec![]));
        assert_eq!(fixture.checkpoints(old.id), [("old".to_owned(), "1".to_owned())]);
        assert_eq!(fixture.heartbeat(&new), HeartbeatResult::Kept);
        fixture.save_checkpoint(&new, "new", "3").unwrap();
        // Also after the new lease has expired.
        fixture.advance(LEASE);
        assert_eq!(fixture.heartbeat(&old), HeartbeatResult::Lost);
        assert_eq!(fixture.status(old.id), TaskStatus::Running);
        assert_eq!(fixture.settle(&new, Disposition::Completed(None)), UpdateResult::Done);
    }
}

pub(crate) fn update_after_expiry_is_accepted_before_recovery(fixture: &Fixture) {
    use TaskStatus::{Completed, Failed, Pending, Scheduled};
    for (disposition, status) in all_dispositions().into_iter().zip([Completed, Scheduled, Failed, Pending, Scheduled])
    {
        let task = fixture.enqueue_and_claim();
        fixture.advance(2 * LEASE);
        fixture.save_checkpoint(&task, "late", "1").unwrap();
        assert_ne!(fixture.settle(&task, disposition), UpdateResult::Lost);
        assert_eq!((fixture.status(task.id), fixture.row(task.id).crashes), (status, 0));
        if !status.is_terminal() {
            fixture.cancel(task.id);
        }
    }
}

pub(crate) fn poison_pill_is_dead_lettered_after_max_crashes(fixture: &Fixture) {
    for max_crashes in [0, 1, 3] {
        let id = fixture.enqueue_plain();
        for crash in 1..max_crashes {
            assert_eq!(fixture.start_one().crashes, crash - 1);
            fixture.advance(LEASE);
            assert_eq!(fixture.store.tasks().recover(max_crashes).unwrap(), freed(1));
        }
        fixture.start_one();
        fixture.advance(LEASE);
        let recovered = fixture.store.tasks().recover(max_crashes).unwrap();
        assert_eq!((recovered.freed, recovered.poisoned.len()), (0, 1));
        let row = fixture.row(id);
        assert_eq!((row.status, row.crashes, row.attempts), (TaskStatus::Failed, max_crashes.max(1), 0));
        assert_eq!((row.finished_at, row.lease_expires_at), (Some(UtcTime::of(&fixture.clock)), None));
        let dead_letter = fixture.store.dead_letters().get(recovered.poisoned[0]).unwrap();
        assert_eq!((dead_letter.task_id, dead_letter.attempt_count), (id.to_string(), max_crashes.max(1)));
        assert!(dead_letter.failure_reason.contains("poison pill"), "{}", dead_letter.failure_reason);
        assert!(dead_letter.failure_reason.contains(&max_crashes.max(1).to_string()), "{}", dead_letter.failure_reason);
        assert_eq!(row.error_message, Some(dead_letter.failure_reason));
    }
    // Several at the same time, among others that are only freed.
    let old = fixture.enqueue_and_claim();
    assert!(fixture.start(&old));
    fixture.advance(LEASE);
    assert_eq!(fixture.store.tasks().recover(2).unwrap(), freed(1));
    let young = fixture.enqueue_plain();
    let claimed = fixture.claim();
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [old.id, young]);
    assert!(claimed.iter().all(|task| fixture.start(task)));
    fixture.advance(LEASE);
    let recovered = fixture.store.tasks().recover(2).unwrap();
    assert_eq!((recovered.freed, recovered.poisoned.len()), (1, 1));
    assert_eq!((fixture.status(old.id), fixture.status(young)), (TaskStatus::Failed, TaskStatus::Pending));
}

pub(crate) fn crashes_and_attempts_are_counted_separately(fixture: &Fixture) {
    let id = fixture.enqueue_plain();
    for nth in 1..=3 {
        let task = fixture.claim_one();
        fixture.settle(&task, Disposition::Retry(UtcTime::of(&fixture.clock), failure("x")));
        fixture.start_one();
        fixture.advance(LEASE);
        assert_eq!(fixture.store.tasks().recover(NEVER).unwrap(), freed(1));
        assert_eq!((fixture.row(id).attempts, fixture.row(id).crashes, fixture.row(id).starts), (nth, nth, 2 * nth));
    }
}

pub(crate) fn abandoned_claims_do_not_make_a_poison_pill(fixture: &Fixture) {
    let id = fixture.enqueue_plain();
    for nth in 0..8 {
        let task = fixture.claim_one();
        assert_eq!((task.starts, task.crashes, task.abandoned, task.was_started()), (0, 0, nth, nth > 0));
        fixture.advance(LEASE);
        assert_eq!(fixture.store.tasks().recover(3).unwrap(), freed(1));
        assert_eq!((fixture.row(id).status, fixture.row(id).crashes), (TaskStatus::Pending, 0));
    }
    // They are claimed under the same limits as tasks with one crash: one of them may have crashed its worker.
    let fresh = fixture.enqueue_plain();
    let request = ClaimRequest { max_crashed_once: 0, max_crashed_often: 0, ..fixture.claim_request(9) };
    let claimed = fixture.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed;
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [fresh]);
}

pub(crate) fn crashed_tasks_are_claimed_before_others_of_equal_priority(fixture: &Fixture) {
    let enqueue = |priority: i32| fixture.enqueue(NewTask { priority, ..plain_task() });
    let (abandoned, low) = (enqueue(0), enqueue(-1));
    let crashed = enqueue(0);
    for round in 0..2 {
        for task in fixture.claim().iter().filter(|task| task.id == crashed || round == 0) {
            assert!(task.id != crashed || fixture.start(task));
        }
        fixture.advance(LEASE);
        assert_eq!(fixture.store.tasks().recover(NEVER).unwrap(), freed(3));
    }
    let others: Vec<i64> = (0..40).map(|_| enqueue(0)).collect();
    let urgent = enqueue(7);
    let claim = |limit: usize, max_crashed_once: usize, max_crashed_often: usize| -> Vec<i64> {
        let request = ClaimRequest { max_crashed_once, max_crashed_often, ..fixture.claim_request(limit) };
        let claimed = fixture.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed;
        claimed.iter().map(|task| task.id).collect()
    };
    // The most urgent first; then those that wait longest, within the limits.
    assert_eq!(claim(1, 1, 1), [urgent]);
    assert_eq!(claim(2, 0, 0), others[..2]);
    assert_eq!(claim(3, 1, 1), [abandoned, crashed, others[2]]);
    // The less urgent one when the limit allows.
    assert_eq!(claim(5, 2, 2), others[3..8]);
    assert_eq!(claim(40, 2, 2), [&others[8..], &[low]].concat());
}

pub(crate) fn start_is_counted_once_for_every_disposition(fixture: &Fixture) {
    for (disposition, unrecorded) in all_dispositions().into_iter().zip([1, 1, 1, 0, 0]) {
        for recorded in [false, true] {
            let task = fixture.enqueue_and_claim();
            fixture.advance(SEC);
            if recorded {
                assert!(fixture.start(&task) && fixture.start(&task));
                assert_eq!(fixture.row(task.id).started_at, Some(UtcTime::of(&fixture.clock)));
            }
            let claimed_at = fixture.row(task.id).worker_heartbeat_at;
            fixture.settle(&task, disposition.clone());
            let row = fixture.row(task.id);
            assert_eq!(row.starts, if recorded { 1 } else { unrecorded }, "{disposition:?}, {recorded}");
            if !recorded && unrecorded == 1 {
                assert_eq!(row.started_at, claimed_at, "{disposition:?}");
            }
            if !row.status.is_terminal() {
                fixture.cancel(task.id);
            }
        }
    }
}

pub(crate) fn start_is_refused_after_the_claim_is_lost(fixture: &Fixture) {
    let old = fixture.enqueue_and_claim();
    fixture.advance(LEASE);
    fixture.store.tasks().recover(NEVER).unwrap();
    assert!(!fixture.start(&old));
    let new = fixture.claim_one();
    assert!(!fixture.start(&old) && fixture.start(&new));
    fixture.settle(&new, Disposition::Completed(None));
    assert!(!fixture.start(&old) && !fixture.start(&new));
    assert_eq!(fixture.row(new.id).starts, 1);
}

pub(crate) fn replacement_claims_only_tasks_of_higher_priority(fixture: &Fixture) {
    let enqueue = |priority: i32| fixture.enqueue(NewTask { priority, ..plain_task() });
    let (_low, same, high, higher) = (enqueue(0), enqueue(1), enqueue(2), enqueue(3));
    let claim = |above_priority: Option<i32>, limit: usize| {
        let replacements = vec![ReplacementClaim { claim: fixture.claim_request(limit), above_priority }];
        let batch = fixture.store.tasks().apply(WorkerBatch { replacements, ..WorkerBatch::default() }).unwrap();
        let ids: Vec<i64> = batch.replacements.iter().map(|task| task.id).collect();
        let released =
            batch.replacements.iter().map(|task| task_update(task, Disposition::Released)).collect::<Vec<_>>();
        fixture.store.tasks().settle_and_claim(released, vec![]).unwrap();
        ids
    };
    assert!(claim(Some(3), 9).is_empty());
    assert_eq!(claim(Some(1), 9), [higher, high]);
    assert_eq!(claim(Some(1), 1), [higher]);
    assert_eq!(claim(None, 3), [higher, high, same]);
}

pub(crate) fn release_does_not_count_as_a_crash(fixture: &Fixture) {
    let id = fixture.enqueue_plain();
    for _ in 0..4 {
        let task = fixture.claim_one();
        fixture.advance(LEASE);
        assert_eq!(fixture.settle(&task, Disposition::Released), UpdateResult::Done);
        assert_eq!(fixture.store.tasks().recover(1).unwrap(), freed(0));
    }
    let row = fixture.row(id);
    assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Pending, 0, 0));
}

pub(crate) fn heartbeat_keeps_the_lease_until_a_cancelled_run_ends(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Kept);
    fixture.store.tasks().cancel(task.id).unwrap();
    assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Kept, "the worker owns the task until its run ends");
    fixture.cancel(task.id);
    assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Lost);
    assert_eq!(fixture.settle(&task, Disposition::Completed(None)), UpdateResult::Lost);
    assert_eq!(fixture.status(task.id), TaskStatus::Cancelled);
}
