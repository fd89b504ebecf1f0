//! What a worker says of a task it had, and what becomes of it.

use gristmill_store::lease::Token;
use gristmill_store::tasks::{Disposition, TaskStatus};

use super::*;

pub(crate) fn completed_keeps_the_result(mill: &Mill) {
    for result in [None, Some("null".to_owned()), Some(r#"{"flour": "石 🌾",  "kg": 1.50}"#.to_owned())] {
        let task = mill.put_and_claim();
        mill.advance(SEC);
        assert_eq!(mill.settle(&task, Disposition::Completed(result.clone())), UpdateResult::Done);
        let row = mill.row(task.id);
        assert_eq!((row.status, row.result), (TaskStatus::Completed, result));
        assert_eq!(row.finished_at, Some(mill.clock.now()));
        assert_eq!((row.lease_expires_at, row.attempts, row.crashes), (None, 0, 0));
        assert_eq!((row.first_failed_at, row.last_failed_at, row.error_message), (None, None, None));
    }
    assert_eq!(mill.letters(), []);
}

pub(crate) fn tasks_completed_together_are_settled_each_by_itself(mill: &Mill) {
    let claim = |count: usize| -> Vec<ClaimedTask> {
        for _ in 0..count {
            mill.put();
        }
        mill.claim()
    };
    let completed = |task: &ClaimedTask| TaskUpdate {
        checkpointed: false,
        ..settlement(task, Disposition::Completed(None))
    };
    let turn = |settlements: Vec<TaskUpdate>| {
        mill.store.tasks().settle_and_claim(settlements, Vec::new()).unwrap().results
    };
    // All of two claims.
    let tasks = [claim(3), claim(2)].concat();
    mill.advance(SEC);
    assert_eq!(turn(tasks.iter().map(completed).collect()), [UpdateResult::Done; 5]);
    for task in &tasks {
        let row = mill.row(task.id);
        assert_eq!((row.status, row.starts, row.result), (TaskStatus::Completed, 1, None));
        assert_eq!(row.finished_at, Some(mill.clock.now()));
    }
    // One was settled before, one is settled twice, one has a result, one failed.
    let tasks = claim(5);
    assert_eq!(mill.settle(&tasks[1], Disposition::Completed(None)), UpdateResult::Done);
    let result = settlement(&tasks[3], Disposition::Completed(Some("7".to_owned())));
    let retry = settlement(&tasks[4], Disposition::Retry(after(HOUR), failure("stone broke")));
    let settlements = vec![
        completed(&tasks[0]),
        completed(&tasks[1]),
        result,
        completed(&tasks[2]),
        retry,
        completed(&tasks[0]),
    ];
    let expected = [
        UpdateResult::Done,
        UpdateResult::Lost,
        UpdateResult::Done,
        UpdateResult::Done,
        UpdateResult::Done,
        UpdateResult::Lost,
    ];
    assert_eq!(turn(settlements), expected);
    let found: Vec<_> =
        tasks.iter().map(|task| mill.row(task.id)).map(|row| (row.status, row.starts)).collect();
    let mut expected = [(TaskStatus::Completed, 1); 5];
    expected[4].0 = TaskStatus::Scheduled;
    assert_eq!(found, expected);
    assert_eq!(mill.row(tasks[3].id).result.as_deref(), Some("7"));
}

pub(crate) fn retry_counts_the_attempt_and_waits(mill: &Mill) {
    let task = mill.put_and_claim();
    mill.advance(SEC);
    assert_eq!(
        mill.settle(&task, Disposition::Retry(after(HOUR), failure("stone broke"))),
        UpdateResult::Done
    );
    let row = mill.row(task.id);
    assert_eq!((row.status, row.run_after), (TaskStatus::Scheduled, Some(after(HOUR))));
    assert_eq!((row.attempts, row.crashes, row.finished_at), (1, 0, None));
    assert_eq!((row.first_failed_at, row.last_failed_at), (Some(after(SEC)), Some(after(SEC))));
    assert_eq!(
        (row.error_message.as_deref(), row.failed_step.as_deref()),
        (Some("stone broke"), Some("sieve"))
    );
    assert_eq!(row.lease_expires_at, None);
    assert_eq!(mill.claim(), []);
    mill.clock.set(after(HOUR));
    let again = mill.claim_one();
    assert_eq!((again.id, again.attempts, again.failed_step.as_deref()), (task.id, 1, Some("sieve")));
    assert_ne!(again.token, task.token);
    // A time that is over already is no obstacle.
    mill.settle(
        &again,
        Disposition::Retry(noon(), TaskFailure { reason: "y".to_owned(), ..TaskFailure::default() }),
    );
    let again = mill.claim_one();
    assert_eq!((again.attempts, again.failed_step), (2, None));
    assert_eq!(mill.letters(), []);
}

pub(crate) fn buried_leaves_a_letter(mill: &Mill) {
    let task = mill.put_and_claim();
    mill.advance(SEC);
    let letter = mill.bury(&task, "stone broke");
    let row = mill.row(task.id);
    assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Failed, 1, 0));
    assert_eq!((row.finished_at, row.lease_expires_at), (Some(after(SEC)), None));
    assert_eq!((row.first_failed_at, row.last_failed_at), (Some(after(SEC)), Some(after(SEC))));
    assert_eq!(
        (row.error_message.as_deref(), row.failed_step.as_deref()),
        (Some("stone broke"), Some("sieve"))
    );
    assert_eq!(mill.letters().iter().map(|letter| letter.id).collect::<Vec<_>>(), [letter]);
    assert_eq!(mill.store.dead_letters().get(letter).unwrap().task_id, task.id.to_string());
}

pub(crate) fn released_is_as_if_never_claimed(mill: &Mill) {
    let id = mill.put();
    let before = mill.row(id);
    for _ in 0..5 {
        let task = mill.claim_one();
        mill.advance(SEC);
        assert_eq!(mill.settle(&task, Disposition::Released), UpdateResult::Done);
        let row = mill.row(id);
        assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Pending, 0, 0));
        assert_eq!((row.worker_id, row.worker_heartbeat_at, row.lease_expires_at), (None, None, None));
        assert_eq!((row.finished_at, row.run_after, row.error_message), (None, None, None));
    }
    assert_eq!(mill.row(id).created_at, before.created_at);
    assert_eq!(mill.claim_one().id, id);
}

pub(crate) fn postponed_waits_and_counts_nothing(mill: &Mill) {
    let task = mill.put_and_claim();
    assert_eq!(mill.settle(&task, Disposition::Postponed(after(HOUR))), UpdateResult::Done);
    let row = mill.row(task.id);
    assert_eq!((row.status, row.run_after), (TaskStatus::Scheduled, Some(after(HOUR))));
    assert_eq!((row.attempts, row.crashes, row.finished_at, row.lease_expires_at), (0, 0, None, None));
    assert_eq!((row.first_failed_at, row.last_failed_at, row.error_message), (None, None, None));
    assert_eq!(mill.claim(), []);
    mill.clock.set(after(HOUR));
    assert_eq!(mill.claim_one().attempts, 0);
}

pub(crate) fn the_first_failure_is_remembered(mill: &Mill) {
    let id = mill.put();
    for nth in 1..=3 {
        mill.advance(SEC);
        let task = mill.claim_one();
        mill.settle(&task, Disposition::Retry(mill.clock.now(), failure(&format!("failure {nth}"))));
        let row = mill.row(id);
        assert_eq!((row.first_failed_at, row.last_failed_at), (Some(after(SEC)), Some(after(SEC * nth))));
        assert_eq!((row.attempts, row.error_message), (nth, Some(format!("failure {nth}"))));
    }
    mill.advance(SEC);
    let task = mill.claim_one();
    mill.bury(&task, "enough");
    let row = mill.row(id);
    assert_eq!(
        (row.first_failed_at, row.last_failed_at, row.attempts),
        (Some(after(SEC)), Some(after(SEC * 4)), 4)
    );
}

pub(crate) fn one_turn_settles_and_claims(mill: &Mill) {
    let (urgent, next) = (mill.add(NewTask { priority: 1, ..plain() }), mill.put());
    let first = mill.turn(1).claimed.remove(0);
    assert_eq!(first.id, urgent);
    // What the turn gives back it can claim, before what is less urgent, and under the new token.
    let wanted = mill.wanted(1);
    let token = wanted.token.clone();
    let turn = mill
        .store
        .tasks()
        .settle_and_claim(vec![settlement(&first, Disposition::Released)], vec![wanted])
        .unwrap();
    assert_eq!(turn.results, [UpdateResult::Done]);
    assert_eq!((turn.claimed[0].id, &turn.claimed[0].token), (urgent, &token));
    let done = settlement(&turn.claimed[0], Disposition::Completed(None));
    let turn = mill.store.tasks().settle_and_claim(vec![done], vec![mill.wanted(9)]).unwrap();
    assert_eq!(turn.results, [UpdateResult::Done]);
    assert_eq!(turn.claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [next]);
    assert_eq!(mill.status(urgent), TaskStatus::Completed);
}

pub(crate) fn one_turn_answers_each_settlement_in_order(mill: &Mill) {
    mill.store.tasks().enqueue_many(vec![plain(); 5]).unwrap();
    let tasks = mill.claim();
    mill.cancel(tasks[2].id);
    let mut settlements: Vec<_> =
        tasks.iter().zip(verdicts()).map(|(task, verdict)| settlement(task, verdict)).collect();
    // The same verdict a second time is too late.
    settlements.push(settlement(&tasks[0], Disposition::Completed(None)));
    let settled = mill.store.tasks().settle_and_claim(settlements, vec![]).unwrap().results;
    use UpdateResult::{Done, Lost};
    assert_eq!(settled, [Done, Done, Lost, Done, Done, Lost]);
    let statuses: Vec<_> = tasks.iter().map(|task| mill.status(task.id)).collect();
    use TaskStatus::{Cancelled, Completed, Pending, Scheduled};
    assert_eq!(statuses, [Completed, Scheduled, Cancelled, Pending, Scheduled]);
    assert_eq!(mill.letters(), []);
}

pub(crate) fn a_turn_that_wants_nothing_claims_nothing(mill: &Mill) {
    let id = mill.put();
    assert_eq!(mill.store.tasks().settle_and_claim(vec![], vec![]).unwrap(), ClaimBatch::default());
    assert_eq!(mill.status(id), TaskStatus::Pending);
}

pub(crate) fn a_result_that_is_not_json_is_refused_with_what_is_legal(mill: &Mill) {
    for result in ["", "{", "flour"] {
        let task = mill.put_and_claim();
        let verdict = Disposition::Completed(Some(result.to_owned()));
        let turn = mill.store.tasks().settle_and_claim(vec![settlement(&task, verdict)], vec![]);
        refused(turn, invalid, &["result", "JSON"]);
        assert_eq!(mill.status(task.id), TaskStatus::Running);
        assert_eq!(mill.settle(&task, Disposition::Completed(None)), UpdateResult::Done);
    }
}

pub(crate) fn a_stranger_can_settle_nothing(mill: &Mill) {
    let pending = mill.put();
    let claim = mill.claim_one();
    let waiting = mill.put();
    let rows = mill.rows();
    let strangers = [
        mill.worker.token(),
        WorkerId::new("miller").token(),
        Token::named(""),
        Token::named(mill.worker.name()),
        Token::named(&claim.token.as_str().to_uppercase()),
        Token::named(&format!("{} ", claim.token.as_str())),
    ];
    for token in strangers {
        for id in [pending, waiting, 77] {
            let task = ClaimedTask { id, token: token.clone(), ..claim.clone() };
            for verdict in verdicts() {
                assert_eq!(mill.settle(&task, verdict.clone()), UpdateResult::Lost, "{token:?} {verdict:?}");
            }
        }
    }
    // The right token of another task is as strange.
    let other = ClaimedTask { id: waiting, ..claim };
    for verdict in verdicts() {
        assert_eq!(mill.settle(&other, verdict), UpdateResult::Lost);
    }
    assert_eq!(mill.rows(), rows);
    assert_eq!(mill.letters(), []);
}

pub(crate) fn a_released_task_is_not_its_old_owners(mill: &Mill) {
    let give_back = [
        Disposition::Released,
        Disposition::Postponed(after(HOUR)),
        Disposition::Retry(after(HOUR), failure("x")),
    ];
    for verdict in give_back {
        let task = mill.put_and_claim();
        assert_eq!(mill.settle(&task, verdict), UpdateResult::Done);
        let row = mill.row(task.id);
        for verdict in verdicts() {
            assert_eq!(mill.settle(&task, verdict), UpdateResult::Lost);
        }
        assert_eq!(mill.beat(&task), HeartbeatResult::Lost);
        refused(mill.note(&task, "late", "1"), conflict, &[]);
        assert_eq!(mill.row(task.id), row);
        mill.cancel(task.id);
    }
}
