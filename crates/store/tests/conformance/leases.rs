//! Who has a task, until when, and what happens to those whose worker fell silent.

use gristmill_store::UtcTime;
use gristmill_store::tasks::{
    ClaimRequest, Disposition, NewTask, Recovered, ReplacementClaim, TaskStatus, WorkerBatch,
};

use super::*;

/// A claim by another worker than the mill's.
fn claim_as(mill: &Mill, worker: &WorkerId) -> Vec<ClaimedTask> {
    let wanted = ClaimRequest { token: worker.token(), ..mill.wanted(100) };
    mill.store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed
}

fn freed(freed: usize) -> Recovered {
    Recovered { freed, ..Recovered::default() }
}

pub(crate) fn a_claim_is_written_with_its_token(mill: &Mill) {
    let task = mill.put_and_claim();
    let row = mill.row(task.id);
    assert_eq!(row.worker_id.as_deref(), Some(task.token.as_str()));
    assert!(task.token.as_str().starts_with(mill.worker.name()));
    assert_eq!((row.status, row.started_at, row.starts), (TaskStatus::Running, None, 0));
    assert_eq!((row.worker_heartbeat_at, row.lease_expires_at), (Some(noon()), Some(after(LEASE))));
}

pub(crate) fn every_claim_has_a_token_of_its_own(mill: &Mill) {
    let (a, b) = (WorkerId::new("same name"), WorkerId::new("same name"));
    let mut tokens: Vec<String> = Vec::new();
    for worker in [&a, &b, &a.clone(), &a, &b] {
        tokens.push(worker.token().as_str().to_owned());
    }
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 5);
    // The other side takes names of up to 128 characters, on one line.
    let long = WorkerId::new(&"石\n".repeat(200)).token();
    assert!(long.as_str().chars().count() <= 128 && !long.as_str().contains('\n'), "{long:?}");
    mill.put();
    let first = mill.claim_one();
    mill.settle(&first, Disposition::Released);
    assert_ne!(mill.claim_one().token, first.token);
}

pub(crate) fn a_claimed_task_is_nobody_elses(mill: &Mill) {
    let task = mill.put_and_claim();
    let row = mill.row(task.id);
    assert_eq!(claim_as(mill, &WorkerId::new("other")), []);
    assert_eq!(mill.claim(), []);
    // Not even after its time: only recovery takes it away.
    mill.advance(HOUR);
    assert_eq!(claim_as(mill, &WorkerId::new("other")), []);
    assert_eq!(mill.row(task.id), row);
}

pub(crate) fn a_heartbeat_prolongs_the_lease(mill: &Mill) {
    let task = mill.put_and_claim();
    assert!(mill.start(&task));
    for nth in 1..=5 {
        mill.advance(LEASE - SEC);
        assert_eq!(mill.beat(&task), HeartbeatResult::Kept);
        let row = mill.row(task.id);
        let now = mill.clock.now();
        assert_eq!(now, after((LEASE - SEC) * nth));
        assert_eq!((row.worker_heartbeat_at, row.lease_expires_at), (Some(now), Some(now.plus(LEASE))));
        assert_eq!((row.status, row.started_at), (TaskStatus::Running, Some(noon())));
        assert_eq!(mill.store.tasks().recover(1).unwrap(), freed(0));
    }
    assert_eq!(mill.settle(&task, Disposition::Completed(None)), UpdateResult::Done);
}

pub(crate) fn a_heartbeat_on_an_expired_lease_keeps_a_task_that_nobody_took(mill: &Mill) {
    let task = mill.put_and_claim();
    mill.advance(3 * HOUR);
    assert_eq!(mill.beat(&task), HeartbeatResult::Kept);
    let row = mill.row(task.id);
    assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Running, 0, 0));
    assert_eq!(row.lease_expires_at, Some(mill.clock.now().plus(LEASE)));
    assert_eq!(mill.store.tasks().recover(1).unwrap(), freed(0));
    mill.advance(LEASE);
    assert_eq!(mill.store.tasks().recover(NEVER).unwrap(), freed(1));
    assert_eq!(mill.beat(&task), HeartbeatResult::Lost);
    assert_eq!(mill.settle(&task, Disposition::Completed(None)), UpdateResult::Lost);
    assert_eq!(mill.claim_one().id, task.id);
}

pub(crate) fn a_heartbeat_of_a_stranger_is_lost(mill: &Mill) {
    let task = mill.put_and_claim();
    let stranger = ClaimedTask { token: mill.worker.token(), ..task.clone() };
    for _ in 0..2 {
        let row = mill.row(task.id);
        assert_eq!(mill.beat(&stranger), HeartbeatResult::Lost);
        assert_eq!(mill.beat(&ClaimedTask { id: 77, ..task.clone() }), HeartbeatResult::Lost);
        // On an expired lease too: it is not the stranger's to give up.
        assert_eq!(mill.row(task.id), row);
        mill.advance(2 * LEASE);
    }
}

pub(crate) fn heartbeats_are_answered_in_order(mill: &Mill) {
    let short = mill.put_and_claim();
    mill.advance(LEASE / 2);
    let (kept, cancelled) = (mill.put_and_claim(), mill.put_and_claim());
    mill.cancel(cancelled.id);
    mill.advance(LEASE / 2);
    let held = [&cancelled, &kept, &short, &kept].map(|task| (task.id, task.token.clone()));
    let beats = mill.store.tasks().heartbeat(held.to_vec(), LEASE).unwrap();
    assert_eq!(
        beats,
        [HeartbeatResult::Lost, HeartbeatResult::Kept, HeartbeatResult::Kept, HeartbeatResult::Kept]
    );
    assert_eq!(mill.store.tasks().heartbeat(vec![], LEASE).unwrap(), []);
}

pub(crate) fn a_lease_ends_at_its_very_moment(mill: &Mill) {
    let last = UtcTime::from_micros(after(LEASE).micros() - 1);
    let check = |at: UtcTime, recovered: usize| {
        mill.clock.set(noon());
        let (beaten, left) = (mill.put_and_claim(), mill.put_and_claim());
        mill.clock.set(at);
        assert_eq!(mill.beat(&beaten), HeartbeatResult::Kept, "{at}");
        assert_eq!(mill.store.tasks().recover(NEVER).unwrap(), freed(recovered), "{at}");
        for task in [beaten, left] {
            mill.cancel(task.id);
        }
    };
    check(last, 0);
    check(after(LEASE), 1);
}

pub(crate) fn a_lease_for_ever_does_not_expire(mill: &Mill) {
    mill.put();
    let wanted = ClaimRequest { lease: Duration::MAX, ..mill.wanted(1) };
    let task = mill.store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed.remove(0);
    mill.advance(HOUR * 24 * 365);
    assert_eq!(mill.store.tasks().recover(1).unwrap(), freed(0));
    let held = vec![(task.id, task.token.clone())];
    assert_eq!(mill.store.tasks().heartbeat(held, Duration::MAX).unwrap(), [HeartbeatResult::Kept]);
    assert!(mill.row(task.id).lease_expires_at.unwrap() > mill.clock.now());
}

pub(crate) fn recovery_frees_what_has_expired_and_nothing_else(mill: &Mill) {
    assert_eq!(mill.store.tasks().recover(1).unwrap(), freed(0));
    let stale = mill.put_and_claim();
    assert!(mill.start(&stale));
    let beaten = mill.put_and_claim();
    let done = mill.put_and_claim();
    mill.settle(&done, Disposition::Completed(None));
    let scheduled = mill.add(NewTask { run_after: Some(after(9 * HOUR)), ..plain() });
    mill.advance(LEASE - SEC);
    assert_eq!(mill.beat(&beaten), HeartbeatResult::Kept);
    let young = mill.put_and_claim();
    let pending = mill.put();
    mill.advance(SEC);
    let others = [beaten.id, done.id, scheduled, young.id, pending];
    let before = others.map(|id| mill.row(id));
    assert_eq!(mill.store.tasks().recover(NEVER).unwrap(), freed(1));
    let row = mill.row(stale.id);
    assert_eq!((row.status, row.crashes, row.attempts), (TaskStatus::Pending, 1, 0));
    assert_eq!((&row.worker_id, row.worker_heartbeat_at, row.lease_expires_at), (&None, None, None));
    assert_eq!(others.map(|id| mill.row(id)), before);
    assert_eq!(mill.store.tasks().recover(NEVER).unwrap(), freed(0), "a crash is counted once");
    assert_eq!(mill.row(stale.id), row);
    let claimed = mill.claim();
    assert_eq!(
        claimed.iter().map(|task| (task.id, task.crashes)).collect::<Vec<_>>(),
        [(stale.id, 1), (pending, 0)]
    );
}

pub(crate) fn a_rescued_and_reclaimed_task_is_not_its_old_owners(mill: &Mill) {
    // By another worker, and by the very same one: a claim counts, not a name.
    for next in [WorkerId::new("other"), mill.worker.clone()] {
        let old = mill.put_and_claim();
        mill.note(&old, "old", "1").unwrap();
        mill.advance(LEASE);
        assert_eq!(mill.store.tasks().recover(NEVER).unwrap(), freed(1));
        refused(mill.note(&old, "free", "1"), conflict, &[&old.id.to_string()]);
        let new = claim_as(mill, &next).remove(0);
        assert_eq!(new.id, old.id);
        let row = mill.row(old.id);
        for verdict in verdicts() {
            assert_eq!(mill.settle(&old, verdict.clone()), UpdateResult::Lost, "{verdict:?}");
            assert_eq!(mill.row(old.id), row, "{verdict:?}");
        }
        assert_eq!(mill.beat(&old), HeartbeatResult::Lost);
        refused(mill.note(&old, "old", "2"), conflict, &[&old.id.to_string()]);
        assert_eq!((mill.row(old.id), mill.letters()), (row, vec![]));
        assert_eq!(mill.notes(old.id), [("old".to_owned(), "1".to_owned())]);
        assert_eq!(mill.beat(&new), HeartbeatResult::Kept);
        mill.note(&new, "new", "3").unwrap();
        // Even when the new lease has run out in its turn.
        mill.advance(LEASE);
        assert_eq!(mill.beat(&old), HeartbeatResult::Lost);
        assert_eq!(mill.status(old.id), TaskStatus::Running);
        assert_eq!(mill.settle(&new, Disposition::Completed(None)), UpdateResult::Done);
    }
}

pub(crate) fn a_late_verdict_counts_while_nobody_took_the_task(mill: &Mill) {
    use TaskStatus::{Completed, Failed, Pending, Scheduled};
    for (verdict, status) in verdicts().into_iter().zip([Completed, Scheduled, Failed, Pending, Scheduled]) {
        let task = mill.put_and_claim();
        mill.advance(2 * LEASE);
        mill.note(&task, "late", "1").unwrap();
        assert_ne!(mill.settle(&task, verdict), UpdateResult::Lost);
        assert_eq!((mill.status(task.id), mill.row(task.id).crashes), (status, 0));
        if !status.is_terminal() {
            mill.cancel(task.id);
        }
    }
}

pub(crate) fn the_worker_of_a_poison_pill_dies_so_often_and_no_more(mill: &Mill) {
    for most in [0, 1, 3] {
        let id = mill.put();
        for crash in 1..most {
            assert_eq!(mill.start_one().crashes, crash - 1);
            mill.advance(LEASE);
            assert_eq!(mill.store.tasks().recover(most).unwrap(), freed(1));
        }
        mill.start_one();
        mill.advance(LEASE);
        let recovered = mill.store.tasks().recover(most).unwrap();
        assert_eq!((recovered.freed, recovered.poisoned.len()), (0, 1));
        let row = mill.row(id);
        assert_eq!((row.status, row.crashes, row.attempts), (TaskStatus::Failed, most.max(1), 0));
        assert_eq!((row.finished_at, row.lease_expires_at), (Some(mill.clock.now()), None));
        let letter = mill.store.dead_letters().get(recovered.poisoned[0]).unwrap();
        assert_eq!((letter.task_id, letter.attempt_count), (id.to_string(), most.max(1)));
        assert!(letter.failure_reason.contains("poison pill"), "{}", letter.failure_reason);
        assert!(letter.failure_reason.contains(&most.max(1).to_string()), "{}", letter.failure_reason);
        assert_eq!(row.error_message, Some(letter.failure_reason));
    }
    // Several at once, among others that are only freed.
    let old = mill.put_and_claim();
    assert!(mill.start(&old));
    mill.advance(LEASE);
    assert_eq!(mill.store.tasks().recover(2).unwrap(), freed(1));
    let young = mill.put();
    let claimed = mill.claim();
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [old.id, young]);
    assert!(claimed.iter().all(|task| mill.start(task)));
    mill.advance(LEASE);
    let recovered = mill.store.tasks().recover(2).unwrap();
    assert_eq!((recovered.freed, recovered.poisoned.len()), (1, 1));
    assert_eq!((mill.status(old.id), mill.status(young)), (TaskStatus::Failed, TaskStatus::Pending));
}

pub(crate) fn crashes_and_attempts_are_counted_apart(mill: &Mill) {
    let id = mill.put();
    for nth in 1..=3 {
        let task = mill.claim_one();
        mill.settle(&task, Disposition::Retry(mill.clock.now(), failure("x")));
        mill.start_one();
        mill.advance(LEASE);
        assert_eq!(mill.store.tasks().recover(NEVER).unwrap(), freed(1));
        assert_eq!((mill.row(id).attempts, mill.row(id).crashes, mill.row(id).starts), (nth, nth, 2 * nth));
    }
}

pub(crate) fn claims_that_were_never_started_make_no_poison_pill(mill: &Mill) {
    let id = mill.put();
    for nth in 0..8 {
        let task = mill.claim_one();
        assert_eq!((task.starts, task.crashes, task.abandoned, task.was_started()), (0, 0, nth, nth > 0));
        mill.advance(LEASE);
        assert_eq!(mill.store.tasks().recover(3).unwrap(), freed(1));
        assert_eq!((mill.row(id).status, mill.row(id).crashes), (TaskStatus::Pending, 0));
    }
    // They are claimed as carefully as tasks that were started once: one of them may have killed its worker.
    let fresh = mill.put();
    let wanted = ClaimRequest { max_crashed_once: 0, max_crashed_often: 0, ..mill.wanted(9) };
    let claimed = mill.store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed;
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [fresh]);
}

pub(crate) fn tasks_whose_worker_died_are_not_passed_over_for_others_of_their_urgency(mill: &Mill) {
    let put = |priority: i32| mill.add(NewTask { priority, ..plain() });
    let (abandoned, low) = (put(0), put(-1));
    let crashed = put(0);
    for round in 0..2 {
        for task in mill.claim().iter().filter(|task| task.id == crashed || round == 0) {
            assert!(task.id != crashed || mill.start(task));
        }
        mill.advance(LEASE);
        assert_eq!(mill.store.tasks().recover(NEVER).unwrap(), freed(3));
    }
    let others: Vec<i64> = (0..40).map(|_| put(0)).collect();
    let urgent = put(7);
    let claim = |limit: usize, shaken: usize, suspect: usize| -> Vec<i64> {
        let wanted =
            ClaimRequest { max_crashed_once: shaken, max_crashed_often: suspect, ..mill.wanted(limit) };
        let claimed = mill.store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed;
        claimed.iter().map(|task| task.id).collect()
    };
    // The most urgent one first, whatever its worker did; then those that wait longest, if they are wanted.
    assert_eq!(claim(1, 1, 1), [urgent]);
    assert_eq!(claim(2, 0, 0), others[..2]);
    assert_eq!(claim(3, 1, 1), [abandoned, crashed, others[2]]);
    // The less urgent one when there is room.
    assert_eq!(claim(5, 2, 2), others[3..8]);
    assert_eq!(claim(40, 2, 2), [&others[8..], &[low]].concat());
}

pub(crate) fn starts_are_counted_once_whichever_way_they_end(mill: &Mill) {
    for (verdict, unrecorded) in verdicts().into_iter().zip([1, 1, 1, 0, 0]) {
        for recorded in [false, true] {
            let task = mill.put_and_claim();
            mill.advance(SEC);
            if recorded {
                assert!(mill.start(&task) && mill.start(&task));
                assert_eq!(mill.row(task.id).started_at, Some(mill.clock.now()));
            }
            let claimed_at = mill.row(task.id).worker_heartbeat_at;
            mill.settle(&task, verdict.clone());
            let row = mill.row(task.id);
            assert_eq!(row.starts, if recorded { 1 } else { unrecorded }, "{verdict:?}, {recorded}");
            if !recorded && unrecorded == 1 {
                assert_eq!(row.started_at, claimed_at, "{verdict:?}");
            }
            if !row.status.is_terminal() {
                mill.cancel(task.id);
            }
        }
    }
}

pub(crate) fn a_lost_claim_cannot_be_started(mill: &Mill) {
    let old = mill.put_and_claim();
    mill.advance(LEASE);
    mill.store.tasks().recover(NEVER).unwrap();
    assert!(!mill.start(&old));
    let new = mill.claim_one();
    assert!(!mill.start(&old) && mill.start(&new));
    mill.settle(&new, Disposition::Completed(None));
    assert!(!mill.start(&old) && !mill.start(&new));
    assert_eq!(mill.row(new.id).starts, 1);
}

pub(crate) fn an_exchange_claims_only_what_is_more_urgent(mill: &Mill) {
    let add = |priority: i32| mill.add(NewTask { priority, ..plain() });
    let (_low, same, high, higher) = (add(0), add(1), add(2), add(3));
    let exchange = |above: Option<i32>, limit: usize| {
        let exchange = vec![ReplacementClaim { claim: mill.wanted(limit), above_priority: above }];
        let turn = mill
            .store
            .tasks()
            .apply(WorkerBatch { replacements: exchange, ..WorkerBatch::default() })
            .unwrap();
        let ids: Vec<i64> = turn.replacements.iter().map(|task| task.id).collect();
        let back =
            turn.replacements.iter().map(|task| settlement(task, Disposition::Released)).collect::<Vec<_>>();
        mill.store.tasks().settle_and_claim(back, vec![]).unwrap();
        ids
    };
    assert!(exchange(Some(3), 9).is_empty());
    assert_eq!(exchange(Some(1), 9), [higher, high]);
    assert_eq!(exchange(Some(1), 1), [higher]);
    assert_eq!(exchange(None, 3), [higher, high, same]);
}

pub(crate) fn releasing_is_no_crash(mill: &Mill) {
    let id = mill.put();
    for _ in 0..4 {
        let task = mill.claim_one();
        mill.advance(LEASE);
        assert_eq!(mill.settle(&task, Disposition::Released), UpdateResult::Done);
        assert_eq!(mill.store.tasks().recover(1).unwrap(), freed(0));
    }
    let row = mill.row(id);
    assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Pending, 0, 0));
}

pub(crate) fn a_worker_keeps_its_lease_until_the_run_of_a_cancelled_task_has_ended(mill: &Mill) {
    let task = mill.put_and_claim();
    assert_eq!(mill.beat(&task), HeartbeatResult::Kept);
    mill.store.tasks().cancel(task.id).unwrap();
    assert_eq!(mill.beat(&task), HeartbeatResult::Kept, "until its run has ended, the task is its worker's");
    mill.cancel(task.id);
    assert_eq!(mill.beat(&task), HeartbeatResult::Lost);
    assert_eq!(mill.settle(&task, Disposition::Completed(None)), UpdateResult::Lost);
    assert_eq!(mill.status(task.id), TaskStatus::Cancelled);
}
