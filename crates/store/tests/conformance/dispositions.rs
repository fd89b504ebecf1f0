//! Outcomes that workers report, and the resulting rows.

use gristmill_store::lease::Token;
use gristmill_store::tasks::{Disposition, TaskStatus};

use super::*;

pub(crate) fn completed_stores_the_result(fixture: &Fixture) {
    for result in [None, Some("null".to_owned()), Some(r#"{"name": "石 🌾",  "kg": 1.50}"#.to_owned())] {
        let task = fixture.enqueue_and_claim();
        fixture.advance(SEC);
        assert_eq!(fixture.settle(&task, Disposition::Completed(result.clone())), UpdateResult::Done);
        let row = fixture.row(task.id);
        assert_eq!((row.status, row.result), (TaskStatus::Completed, result));
        assert_eq!(row.finished_at, Some(UtcTime::of(&fixture.clock)));
        assert_eq!((row.lease_expires_at, row.attempts, row.crashes), (None, 0, 0));
        assert_eq!((row.first_failed_at, row.last_failed_at, row.error_message), (None, None, None));
    }
    assert_eq!(fixture.dead_letters(), []);
}

pub(crate) fn tasks_completed_in_one_batch_have_their_own_results(fixture: &Fixture) {
    let claim = |count: usize| -> Vec<ClaimedTask> {
        for _ in 0..count {
            fixture.enqueue_plain();
        }
        fixture.claim()
    };
    let completed =
        |task: &ClaimedTask| TaskUpdate { checkpointed: false, ..task_update(task, Disposition::Completed(None)) };
    let settle =
        |updates: Vec<TaskUpdate>| fixture.store.tasks().settle_and_claim(updates, Vec::new()).unwrap().results;
    // All tasks of two claims.
    let tasks = [claim(3), claim(2)].concat();
    fixture.advance(SEC);
    assert_eq!(settle(tasks.iter().map(completed).collect()), [UpdateResult::Done; 5]);
    for task in &tasks {
        let row = fixture.row(task.id);
        assert_eq!((row.status, row.starts, row.result), (TaskStatus::Completed, 1, None));
        assert_eq!(row.finished_at, Some(UtcTime::of(&fixture.clock)));
    }
    // One was settled before, one is settled twice, one has a result, one failed.
    let tasks = claim(5);
    assert_eq!(fixture.settle(&tasks[1], Disposition::Completed(None)), UpdateResult::Done);
    let result = task_update(&tasks[3], Disposition::Completed(Some("7".to_owned())));
    let retry = task_update(&tasks[4], Disposition::Retry(after(HOUR), failure("connection lost")));
    let updates =
        vec![completed(&tasks[0]), completed(&tasks[1]), result, completed(&tasks[2]), retry, completed(&tasks[0])];
    let expected = [
        UpdateResult::Done,
        UpdateResult::Lost,
        UpdateResult::Done,
        UpdateResult::Done,
        UpdateResult::Done,
        UpdateResult::Lost,
    ];
    assert_eq!(settle(updates), expected);
    let found: Vec<_> = tasks.iter().map(|task| fixture.row(task.id)).map(|row| (row.status, row.starts)).collect();
    let mut expected = [(TaskStatus::Completed, 1); 5];
    expected[4].0 = TaskStatus::Scheduled;
    assert_eq!(found, expected);
    assert_eq!(fixture.row(tasks[3].id).result.as_deref(), Some("7"));
}

pub(crate) fn retry_counts_the_attempt_and_schedules_the_task(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    fixture.advance(SEC);
    assert_eq!(fixture.settle(&task, Disposition::Retry(after(HOUR), failure("connection lost"))), UpdateResult::Done);
    let row = fixture.row(task.id);
    assert_eq!((row.status, row.run_after), (TaskStatus::Scheduled, Some(after(HOUR))));
    assert_eq!((row.attempts, row.crashes, row.finished_at), (1, 0, None));
    assert_eq!((row.first_failed_at, row.last_failed_at), (Some(after(SEC)), Some(after(SEC))));
    assert_eq!((row.error_message.as_deref(), row.failed_step.as_deref()), (Some("connection lost"), Some("upload")));
    assert_eq!(row.lease_expires_at, None);
    assert_eq!(fixture.claim(), []);
    fixture.clock.set_unix_micros(after(HOUR).micros());
    let again = fixture.claim_one();
    assert_eq!((again.id, again.attempts, again.failed_step.as_deref()), (task.id, 1, Some("upload")));
    assert_ne!(again.token, task.token);
    // A time in the past is due at once.
    fixture
        .settle(&again, Disposition::Retry(noon(), TaskFailure { reason: "y".to_owned(), ..TaskFailure::default() }));
    let again = fixture.claim_one();
    assert_eq!((again.attempts, again.failed_step), (2, None));
    assert_eq!(fixture.dead_letters(), []);
}

pub(crate) fn dead_lettered_task_has_a_dead_letter(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    fixture.advance(SEC);
    let dead_letter = fixture.dead_letter(&task, "connection lost");
    let row = fixture.row(task.id);
    assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Failed, 1, 0));
    assert_eq!((row.finished_at, row.lease_expires_at), (Some(after(SEC)), None));
    assert_eq!((row.first_failed_at, row.last_failed_at), (Some(after(SEC)), Some(after(SEC))));
    assert_eq!((row.error_message.as_deref(), row.failed_step.as_deref()), (Some("connection lost"), Some("upload")));
    assert_eq!(fixture.dead_letters().iter().map(|dead_letter| dead_letter.id).collect::<Vec<_>>(), [dead_letter]);
    assert_eq!(fixture.store.dead_letters().get(dead_letter).unwrap().task_id, task.id.to_string());
}

pub(crate) fn released_task_is_as_if_never_claimed(fixture: &Fixture) {
    let id = fixture.enqueue_plain();
    let before = fixture.row(id);
    for _ in 0..5 {
        let task = fixture.claim_one();
        fixture.advance(SEC);
        assert_eq!(fixture.settle(&task, Disposition::Released), UpdateResult::Done);
        let row = fixture.row(id);
        assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Pending, 0, 0));
        assert_eq!((row.worker_id, row.worker_heartbeat_at, row.lease_expires_at), (None, None, None));
        assert_eq!((row.finished_at, row.run_after, row.error_message), (None, None, None));
    }
    assert_eq!(fixture.row(id).created_at, before.created_at);
    assert_eq!(fixture.claim_one().id, id);
}

pub(crate) fn postponed_task_is_scheduled_without_counting_an_attempt(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    assert_eq!(fixture.settle(&task, Disposition::Postponed(after(HOUR))), UpdateResult::Done);
    let row = fixture.row(task.id);
    assert_eq!((row.status, row.run_after), (TaskStatus::Scheduled, Some(after(HOUR))));
    assert_eq!((row.attempts, row.crashes, row.finished_at, row.lease_expires_at), (0, 0, None, None));
    assert_eq!((row.first_failed_at, row.last_failed_at, row.error_message), (None, None, None));
    assert_eq!(fixture.claim(), []);
    fixture.clock.set_unix_micros(after(HOUR).micros());
    assert_eq!(fixture.claim_one().attempts, 0);
}

pub(crate) fn first_failure_time_is_kept_across_retries(fixture: &Fixture) {
    let id = fixture.enqueue_plain();
    for nth in 1..=3 {
        fixture.advance(SEC);
        let task = fixture.claim_one();
        fixture.settle(&task, Disposition::Retry(UtcTime::of(&fixture.clock), failure(&format!("failure {nth}"))));
        let row = fixture.row(id);
        assert_eq!((row.first_failed_at, row.last_failed_at), (Some(after(SEC)), Some(after(SEC * nth))));
        assert_eq!((row.attempts, row.error_message), (nth, Some(format!("failure {nth}"))));
    }
    fixture.advance(SEC);
    let task = fixture.claim_one();
    fixture.dead_letter(&task, "failure 4");
    let row = fixture.row(id);
    assert_eq!((row.first_failed_at, row.last_failed_at, row.attempts), (Some(after(SEC)), Some(after(SEC * 4)), 4));
}

pub(crate) fn settle_and_claim_can_claim_what_it_releases(fixture: &Fixture) {
    let (urgent, next) = (fixture.enqueue(NewTask { priority: 1, ..plain_task() }), fixture.enqueue_plain());
    let first = fixture.claim_batch(1).claimed.remove(0);
    assert_eq!(first.id, urgent);
    // The same transaction can claim what it releases, before less urgent tasks and under the new token.
    let request = fixture.claim_request(1);
    let token = request.token.clone();
    let batch = fixture
        .store
        .tasks()
        .settle_and_claim(vec![task_update(&first, Disposition::Released)], vec![request])
        .unwrap();
    assert_eq!(batch.results, [UpdateResult::Done]);
    assert_eq!((batch.claimed[0].id, &batch.claimed[0].token), (urgent, &token));
    let done = task_update(&batch.claimed[0], Disposition::Completed(None));
    let batch = fixture.store.tasks().settle_and_claim(vec![done], vec![fixture.claim_request(9)]).unwrap();
    assert_eq!(batch.results, [UpdateResult::Done]);
    assert_eq!(batch.claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [next]);
    assert_eq!(fixture.status(urgent), TaskStatus::Completed);
}

pub(crate) fn update_results_are_in_the_order_of_the_updates(fixture: &Fixture) {
    fixture.store.tasks().enqueue_many(vec![plain_task(); 5]).unwrap();
    let tasks = fixture.claim();
    fixture.cancel(tasks[2].id);
    let mut updates: Vec<_> =
        tasks.iter().zip(all_dispositions()).map(|(task, disposition)| task_update(task, disposition)).collect();
    // A second update of the same task is lost.
    updates.push(task_update(&tasks[0], Disposition::Completed(None)));
    let results = fixture.store.tasks().settle_and_claim(updates, vec![]).unwrap().results;
    use UpdateResult::{Done, Lost};
    assert_eq!(results, [Done, Done, Lost, Done, Done, Lost]);
    let statuses: Vec<_> = tasks.iter().map(|task| fixture.status(task.id)).collect();
    use TaskStatus::{Cancelled, Completed, Pending, Scheduled};
    assert_eq!(statuses, [Completed, Scheduled, Cancelled, Pending, Scheduled]);
    assert_eq!(fixture.dead_letters(), []);
}

pub(crate) fn empty_batch_claims_nothing(fixture: &Fixture) {
    let id = fixture.enqueue_plain();
    assert_eq!(fixture.store.tasks().settle_and_claim(vec![], vec![]).unwrap(), ClaimBatch::default());
    assert_eq!(fixture.status(id), TaskStatus::Pending);
}

pub(crate) fn result_that_is_not_json_is_refused(fixture: &Fixture) {
    for result in ["", "{", "name"] {
        let task = fixture.enqueue_and_claim();
        let disposition = Disposition::Completed(Some(result.to_owned()));
        let batch = fixture.store.tasks().settle_and_claim(vec![task_update(&task, disposition)], vec![]);
        assert_refused(batch, invalid, &["result", "JSON"]);
        assert_eq!(fixture.status(task.id), TaskStatus::Running);
        assert_eq!(fixture.settle(&task, Disposition::Completed(None)), UpdateResult::Done);
    }
}

pub(crate) fn update_with_a_wrong_token_is_lost(fixture: &Fixture) {
    let pending = fixture.enqueue_plain();
    let claim = fixture.claim_one();
    let waiting = fixture.enqueue_plain();
    let rows = fixture.rows();
    let wrong_tokens = [
        fixture.worker.token(),
        WorkerId::new("worker").token(),
        Token::named(""),
        Token::named(fixture.worker.name()),
        Token::named(&claim.token.as_str().to_uppercase()),
        Token::named(&format!("{} ", claim.token.as_str())),
    ];
    for token in wrong_tokens {
        for id in [pending, waiting, 77] {
            let task = ClaimedTask { id, token: token.clone(), ..claim.clone() };
            for disposition in all_dispositions() {
                assert_eq!(fixture.settle(&task, disposition.clone()), UpdateResult::Lost, "{token:?} {disposition:?}");
            }
        }
    }
    // The token of another task is refused, too.
    let other = ClaimedTask { id: waiting, ..claim };
    for disposition in all_dispositions() {
        assert_eq!(fixture.settle(&other, disposition), UpdateResult::Lost);
    }
    assert_eq!(fixture.rows(), rows);
    assert_eq!(fixture.dead_letters(), []);
}

pub(crate) fn update_after_release_is_lost(fixture: &Fixture) {
    let dispositions =
        [Disposition::Released, Disposition::Postponed(after(HOUR)), Disposition::Retry(after(HOUR), failure("x"))];
    for disposition in dispositions {
        let task = fixture.enqueue_and_claim();
        assert_eq!(fixture.settle(&task, disposition), UpdateResult::Done);
        let row = fixture.row(task.id);
        for disposition in all_dispositions() {
            assert_eq!(fixture.settle(&task, disposition), UpdateResult::Lost);
        }
        assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Lost);
        assert_refused(fixture.save_checkpoint(&task, "late", "1"), conflict, &[]);
        assert_eq!(fixture.row(task.id), row);
        fixture.cancel(task.id);
    }
}

pub(crate) fn end_of_the_output_of_a_failed_attempt_is_kept(fixture: &Fixture) {
    // The limit of 8 KiB falls into the first character.
    let long = format!("é{}", "x".repeat((8 << 10) - 1));
    for (output, kept) in [("short", "short"), (long.as_str(), &long[2..])] {
        let id = fixture.enqueue_plain();
        let task = fixture.claim_one();
        let failure = TaskFailure { output: Some(output.to_owned()), ..failure("no") };
        fixture.settle(&task, Disposition::DeadLettered(failure));
        assert_eq!(fixture.store.failures().list(id).unwrap()[0].output.as_deref(), Some(kept));
    }
}
