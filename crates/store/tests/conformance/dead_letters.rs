//! Dead letters of tasks and messages: contents, retry, clean-up and filters.

use gristmill_store::dead_letters::NewDeadLetter;
use gristmill_store::tasks::{ClaimRequest, Disposition, Enqueued, TaskStatus};

use super::*;

/// A task with every optional field.
fn full_task() -> NewTask {
    NewTask {
        queue: "night".to_owned(),
        payload: r#"{"name":  "石"}"#.to_owned(),
        priority: 3,
        max_attempts: Some(5),
        document_id: Some("doc/7".to_owned()),
        ..task_with_key("key 🌾")
    }
}

fn claim_full_task(fixture: &Fixture) -> ClaimedTask {
    let request = ClaimRequest { queue: "night".to_owned(), ..fixture.claim_request(1) };
    fixture.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed.remove(0)
}

/// Asserts that two texts are the same JSON, ignoring white space.
#[track_caller]
fn assert_same_json(found: &str, expected: &str) {
    let bare = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    assert_eq!(bare(found), bare(expected));
}

pub(crate) fn dead_letter_has_every_field_of_its_task(fixture: &Fixture) {
    let id = fixture.enqueue(full_task());
    fixture.advance(SEC);
    let task = claim_full_task(fixture);
    fixture.settle(&task, Disposition::Retry(after(2 * SEC), failure("first")));
    fixture.advance(SEC);
    let task = claim_full_task(fixture);
    fixture.save_checkpoint(&task, "b \"quoted\"", r#"{"n": [1, true, null, "x"]}"#).unwrap();
    fixture.save_checkpoint(&task, "a", "12345678901234567890").unwrap();
    fixture.advance(SEC);
    let dead_letter = fixture.dead_letter(&task, "last");
    let found = fixture.store.dead_letters().get(dead_letter).unwrap();
    assert_same_json(
        found.checkpoint.as_deref().unwrap(),
        r#"{"a": 12345678901234567890, "b \"quoted\"": {"n": [1, true, null, "x"]}}"#,
    );
    let expected = DeadLetter {
        id: dead_letter,
        task_id: id.to_string(),
        task_type: KIND.to_owned(),
        document_id: "doc/7".to_owned(),
        failure_reason: "last".to_owned(),
        attempt_count: 2,
        first_failure: after(SEC),
        last_failure: after(3 * SEC),
        error_details: Some("details of last".to_owned()),
        checkpoint: found.checkpoint.clone(),
        created_at: after(3 * SEC),
        queue: Some("night".to_owned()),
        payload: Some(r#"{"name":  "石"}"#.to_owned()),
        priority: Some(3),
        max_attempts: Some(5),
        unique_key: Some("key 🌾".to_owned()),
    };
    assert_eq!(found, expected);
    assert_eq!(fixture.checkpoints(id), [], "moved into the dead letter");
}

pub(crate) fn dead_letter_of_a_plain_task_has_empty_optional_fields(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    let failure = TaskFailure { reason: "x".to_owned(), step: None, ..TaskFailure::default() };
    let UpdateResult::DeadLettered(dead_letter) = fixture.settle(&task, Disposition::DeadLettered(failure)) else {
        panic!("not dead-lettered")
    };
    let dead_letter = fixture.store.dead_letters().get(dead_letter).unwrap();
    assert_eq!((dead_letter.document_id.as_str(), dead_letter.error_details, dead_letter.checkpoint), ("", None, None));
    assert_eq!((dead_letter.priority, dead_letter.max_attempts, dead_letter.unique_key), (Some(0), None, None));
    assert_eq!((dead_letter.first_failure, dead_letter.last_failure, dead_letter.attempt_count), (noon(), noon(), 1));
}

pub(crate) fn released_starts_are_not_counted_as_attempts(fixture: &Fixture) {
    fixture.enqueue_plain();
    for _ in 0..3 {
        let task = fixture.start_one();
        assert_eq!(fixture.settle(&task, Disposition::Released), UpdateResult::Done);
    }
    let task = fixture.start_one();
    let UpdateResult::DeadLettered(dead_letter) = fixture.settle(&task, Disposition::DeadLettered(failure("x"))) else {
        panic!("not dead-lettered")
    };
    assert_eq!(fixture.store.dead_letters().get(dead_letter).unwrap().attempt_count, 1);
}

pub(crate) fn dead_letter_of_a_poison_pill_has_times_and_checkpoints(fixture: &Fixture) {
    let id = fixture.enqueue_plain();
    let task = fixture.claim_one();
    fixture.settle(&task, Disposition::Retry(noon(), failure("once")));
    let task = fixture.start_one();
    fixture.save_checkpoint(&task, "a", "[1]").unwrap();
    fixture.advance(HOUR);
    let poisoned = fixture.store.tasks().recover(1).unwrap().poisoned;
    let dead_letter = fixture.store.dead_letters().get(poisoned[0]).unwrap();
    assert_eq!((dead_letter.first_failure, dead_letter.last_failure), (noon(), after(HOUR)));
    assert_eq!((dead_letter.attempt_count, dead_letter.created_at), (2, after(HOUR)));
    assert_same_json(dead_letter.checkpoint.as_deref().unwrap(), r#"{"a": [1]}"#);
    assert!(dead_letter.error_details.is_some());
    assert_eq!(fixture.checkpoints(id), []);
}

pub(crate) fn dead_letter_returns_its_original_task(fixture: &Fixture) {
    for (task, queue) in [(full_task(), "night"), (plain_task(), "default")] {
        fixture.enqueue(task.clone());
        let request = ClaimRequest { queue: queue.to_owned(), ..fixture.claim_request(1) };
        let claimed = fixture.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed.remove(0);
        let dead_letter = fixture.dead_letter(&claimed, "x");
        assert_eq!(fixture.store.dead_letters().get(dead_letter).unwrap().task(), Some(task));
    }
}

pub(crate) fn retry_enqueues_the_task_and_deletes_the_dead_letter(fixture: &Fixture) {
    let old = fixture.enqueue(full_task());
    let task = claim_full_task(fixture);
    fixture.save_checkpoint(&task, "a", r#"{"n": 1}"#).unwrap();
    fixture.save_checkpoint(&task, "b", "[2]").unwrap();
    let dead_letter = fixture.dead_letter(&task, "x");
    let other = fixture.enqueue_and_claim();
    let other = fixture.dead_letter(&other, "y");
    fixture.advance(SEC);
    let failed = fixture.row(old);
    let task = fixture.store.dead_letters().get(dead_letter).unwrap().task().unwrap();
    let enqueued = fixture.store.dead_letters().retry(dead_letter, task).unwrap();
    assert!(enqueued.created && enqueued.id > old);
    assert_refused(fixture.store.dead_letters().get(dead_letter), not_found, &[]);
    assert_eq!(fixture.dead_letters().iter().map(|dead_letter| dead_letter.id).collect::<Vec<_>>(), [other]);
    assert_eq!(fixture.row(old), failed, "the failed task stays failed");
    let row = fixture.row(enqueued.id);
    assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Pending, 0, 0));
    assert_eq!((row.created_at, row.first_failed_at), (after(SEC), None));
    assert_eq!((row.payload, row.priority, row.max_attempts), (full_task().payload, 3, Some(5)));
    assert_eq!((row.unique_key, row.document_id), (full_task().unique_key, full_task().document_id));
    let checkpoints = fixture.checkpoints(enqueued.id);
    assert_eq!(checkpoints.iter().map(|(step, _)| step.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_same_json(&checkpoints[0].1, r#"{"n":1}"#);
    assert_same_json(&checkpoints[1].1, "[2]");
    assert_eq!(claim_full_task(fixture).id, enqueued.id);
    // A second retry finds nothing.
    assert_refused(fixture.store.dead_letters().retry(dead_letter, plain_task()), not_found, &[]);
    assert_eq!(fixture.rows().len(), 3);
}

pub(crate) fn retry_restores_checkpoints_byte_for_byte(fixture: &Fixture) {
    for data in [
        "null",
        "true",
        "false",
        "0",
        "-1.50",
        "12345678901234567890",
        "0.12345678901234567890",
        r#""""#,
        r#""text \"quoted\" 石""#,
        r#""[1]""#,
        r#""null""#,
        "[]",
        "{}",
        r#"[1,[true,null],{"a":false}]"#,
        r#"{"a":{"b":[1.0,1e3]}}"#,
    ] {
        for step in ["step", "", "a.b[0]", "\"$\" '石\\ 🌾"] {
            let task = fixture.enqueue_and_claim();
            fixture.save_checkpoint(&task, step, data).unwrap();
            let dead_letter = fixture.dead_letter(&task, "x");
            let enqueued = fixture.store.dead_letters().retry(dead_letter, plain_task()).unwrap();
            assert_eq!(fixture.checkpoints(enqueued.id), [(step.to_owned(), data.to_owned())]);
            fixture.cancel(enqueued.id);
        }
    }
}

pub(crate) fn retry_is_refused_while_the_unique_key_is_taken(fixture: &Fixture) {
    fixture.enqueue(task_with_key("k"));
    let task = fixture.claim_one();
    fixture.save_checkpoint(&task, "a", "1").unwrap();
    let dead_letter = fixture.dead_letter(&task, "x");
    let unfinished = fixture.enqueue(task_with_key("k"));
    let (rows, dead_letters) = (fixture.rows(), fixture.dead_letters());
    let task = dead_letters[0].task().unwrap();
    assert_refused(
        fixture.store.dead_letters().retry(dead_letter, task.clone()),
        conflict,
        &["\"k\"", &unfinished.to_string(), &dead_letter.to_string()],
    );
    assert_eq!((fixture.rows(), fixture.dead_letters(), fixture.checkpoints(unfinished)), (rows, dead_letters, vec![]));
    fixture.cancel(unfinished);
    assert!(fixture.store.dead_letters().retry(dead_letter, task).unwrap().created);
    assert_eq!(fixture.dead_letters(), []);
}

pub(crate) fn invalid_retry_keeps_the_dead_letter(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    let dead_letter = fixture.dead_letter(&task, "x");
    for bad in [NewTask::new(KIND, "{"), NewTask::new("", "{}"), NewTask { max_attempts: Some(0), ..plain_task() }] {
        assert_refused(fixture.store.dead_letters().retry(dead_letter, bad), invalid, &[]);
    }
    assert_eq!((fixture.dead_letters().len(), fixture.rows().len()), (1, 1));
    // The caller may retry with another task.
    let Enqueued { id, .. } = fixture.store.dead_letters().retry(dead_letter, NewTask::new("upload", "[9]")).unwrap();
    assert_eq!((fixture.row(id).kind, fixture.row(id).payload), ("upload".to_owned(), "[9]".to_owned()));
}

pub(crate) fn discard_deletes_the_dead_letter(fixture: &Fixture) {
    let (one, two) = (fixture.enqueue_and_claim(), fixture.enqueue_and_claim());
    let (one, two) = (fixture.dead_letter(&one, "x"), fixture.dead_letter(&two, "y"));
    assert_eq!(fixture.store.dead_letters().count().unwrap(), 2);
    fixture.store.dead_letters().discard(one).unwrap();
    assert_refused(fixture.store.dead_letters().discard(one), not_found, &[&one.to_string()]);
    assert_eq!(fixture.dead_letters().iter().map(|dead_letter| dead_letter.id).collect::<Vec<_>>(), [two]);
    assert_eq!(fixture.store.dead_letters().count().unwrap(), 1);
    assert_eq!(fixture.rows().len(), 2, "the tasks are unchanged");
}

pub(crate) fn cleanup_pending_is_listed_until_marked_cleaned_up(fixture: &Fixture) {
    let dead_letter = |kind: &str| {
        fixture.enqueue(NewTask::new(kind, "{}"));
        let request = ClaimRequest { kind: kind.to_owned(), ..fixture.claim_request(1) };
        let task = fixture.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed.remove(0);
        fixture.dead_letter(&task, "x")
    };
    let cleanup_pending = |kinds: &[&str], limit: usize| -> Vec<i64> {
        let kinds: Vec<String> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let dead_letters = fixture.store.dead_letters().list_cleanup_pending(&kinds, limit).unwrap();
        dead_letters.iter().map(|dead_letter| dead_letter.id).collect()
    };
    let ids = [dead_letter("a"), dead_letter("b"), dead_letter("a"), dead_letter("it's \"c\"")];
    assert_eq!(cleanup_pending(&["a"], 10), [ids[0], ids[2]]);
    assert_eq!(cleanup_pending(&["a", "b", "it's \"c\""], 10), ids);
    assert_eq!(cleanup_pending(&["b", "a"], 2), ids[..2]);
    assert_eq!(cleanup_pending(&["A", "d"], 10), [0; 0]);
    assert_eq!(cleanup_pending(&[], 10), [0; 0]);
    fixture.store.dead_letters().mark_cleaned_up(ids[0]).unwrap();
    assert_eq!(cleanup_pending(&["a", "b"], 10), ids[1..3]);
    fixture.store.dead_letters().discard(ids[1]).unwrap();
    assert_eq!(cleanup_pending(&["a", "b"], 10), [ids[2]]);
    assert_eq!(fixture.dead_letters().len(), 3, "a dead letter is kept after clean-up");
}

/// A dead letter of a message.
fn message(id: &str) -> NewDeadLetter {
    NewDeadLetter {
        message_id: id.to_owned(),
        kind: "amqp:orders".to_owned(),
        queue: "orders".to_owned(),
        reason: "no such order".to_owned(),
        attempts: 3,
        first_failure: noon(),
        last_failure: after(SEC),
        details: Some(r#"{"code": 404}"#.to_owned()),
        checkpoint: Some(r#"{"payload": "eA==", "headers": {}}"#.to_owned()),
    }
}

fn insert_message(fixture: &Fixture, dead_letter: NewDeadLetter) -> i64 {
    fixture.store.dead_letters().insert(dead_letter).unwrap()
}

pub(crate) fn dead_letter_of_a_message_has_every_field(fixture: &Fixture) {
    fixture.advance(HOUR);
    let id = insert_message(fixture, message("m-1"));
    let expected = DeadLetter {
        id,
        task_id: "m-1".to_owned(),
        task_type: "amqp:orders".to_owned(),
        document_id: String::new(),
        failure_reason: "no such order".to_owned(),
        attempt_count: 3,
        first_failure: noon(),
        last_failure: after(SEC),
        error_details: Some(r#"{"code": 404}"#.to_owned()),
        checkpoint: Some(r#"{"payload": "eA==", "headers": {}}"#.to_owned()),
        created_at: after(HOUR),
        queue: Some("orders".to_owned()),
        payload: None,
        priority: None,
        max_attempts: None,
        unique_key: None,
    };
    let found = fixture.store.dead_letters().get(id).unwrap();
    assert_eq!(found, expected);
    assert!(found.is_message() && found.task().is_none());
    let task = fixture.enqueue_and_claim();
    let task_dead_letter = fixture.store.dead_letters().get(fixture.dead_letter(&task, "x")).unwrap();
    assert!(!task_dead_letter.is_message() && task_dead_letter.require_task().is_ok());
    let kind = DeadLetterFilter::default().kind(Some("amqp:orders".to_owned()));
    assert_eq!(fixture.store.dead_letters().list(&kind, None, 10).unwrap().items, [expected]);
    assert_eq!(fixture.store.dead_letters().count().unwrap(), 2);
    // Messages have no handler that cleans up.
    assert_eq!(fixture.store.dead_letters().list_cleanup_pending(&["amqp:orders".to_owned()], 10).unwrap(), []);
    fixture.store.dead_letters().discard(id).unwrap();
    assert_eq!(fixture.dead_letters(), [task_dead_letter]);
}

pub(crate) fn second_dead_letter_of_a_message_updates_the_first(fixture: &Fixture) {
    let id = insert_message(fixture, message("m-1"));
    let first = fixture.store.dead_letters().get(id).unwrap();
    fixture.advance(HOUR);
    let again = NewDeadLetter {
        reason: "gone".to_owned(),
        attempts: 5,
        first_failure: after(HOUR),
        last_failure: after(HOUR),
        details: None,
        checkpoint: Some("{}".to_owned()),
        ..message("m-1")
    };
    assert_eq!(insert_message(fixture, again.clone()), id);
    let expected = DeadLetter {
        failure_reason: "gone".to_owned(),
        attempt_count: 5,
        last_failure: after(HOUR),
        error_details: None,
        checkpoint: Some("{}".to_owned()),
        ..first
    };
    assert_eq!(fixture.dead_letters(), std::slice::from_ref(&expected));
    // A late report does not move the last failure back or reduce the attempts.
    let late = NewDeadLetter { attempts: 1, first_failure: noon().minus(SEC), last_failure: noon(), ..again.clone() };
    assert_eq!(insert_message(fixture, late), id);
    assert_eq!(fixture.dead_letters(), [DeadLetter { first_failure: noon().minus(SEC), ..expected }]);
    // Another store updates the same dead letter; another queue, kind or id makes a new one.
    assert_eq!(fixture.open_again().dead_letters().insert(again.clone()).unwrap(), id);
    let others = [
        NewDeadLetter { queue: "returns".to_owned(), ..again.clone() },
        NewDeadLetter { kind: "amqp:returns".to_owned(), ..again.clone() },
        NewDeadLetter { message_id: "M-1".to_owned(), ..again.clone() },
    ];
    for other in others {
        assert_ne!(insert_message(fixture, other), id);
    }
    assert_eq!(fixture.dead_letters().len(), 4);
    fixture.store.dead_letters().discard(id).unwrap();
    assert_ne!(insert_message(fixture, again), id, "the discarded one is not reused");
}

pub(crate) fn messages_without_an_id_have_separate_dead_letters(fixture: &Fixture) {
    let (one, two) = (insert_message(fixture, message("")), insert_message(fixture, message("")));
    assert_eq!(fixture.dead_letters().iter().map(|dead_letter| dead_letter.id).collect::<Vec<_>>(), [two, one]);
}

pub(crate) fn retry_of_a_message_as_a_task_is_refused(fixture: &Fixture) {
    let id = insert_message(fixture, message("m-1"));
    let dead_letters = fixture.dead_letters();
    let parts = ["\"m-1\"", "the queue \"orders\"", "publishes it there again", &format!("dead letter {id}")];
    assert_refused(fixture.store.dead_letters().retry(id, plain_task()), conflict, &parts);
    assert_refused(dead_letters[0].require_task(), conflict, &parts);
    assert_eq!((fixture.dead_letters(), fixture.rows()), (dead_letters, vec![]));
}

pub(crate) fn filter_by_task_id_excludes_messages_with_that_id(fixture: &Fixture) {
    let task = fixture.enqueue_and_claim();
    let dead_letter = fixture.dead_letter(&task, "x");
    // Even if it has the kind of the task.
    let message_dead_letter =
        insert_message(fixture, NewDeadLetter { kind: KIND.to_owned(), ..message(&task.id.to_string()) });
    assert_ne!(message_dead_letter, dead_letter);
    let filter = DeadLetterFilter::default().task_id(Some(task.id.to_string()));
    let found = fixture.store.dead_letters().list(&filter, None, 10).unwrap().items;
    assert_eq!(found.iter().map(|dead_letter| dead_letter.id).collect::<Vec<_>>(), [dead_letter]);
}

pub(crate) fn invalid_dead_letter_of_a_message_is_refused(fixture: &Fixture) {
    let checkpoint = |text: &str| NewDeadLetter { checkpoint: Some(text.to_owned()), ..message("m") };
    for (dead_letter, part) in [
        (NewDeadLetter { kind: String::new(), ..message("m") }, "the kind of its message"),
        (NewDeadLetter { queue: String::new(), ..message("m") }, "the queue it came from"),
        (checkpoint("{"), "the dead letter's checkpoint is not JSON"),
        (checkpoint(&format!("\"{}\"", "x".repeat(256 << 20))), "at most 268435456"),
    ] {
        assert_refused(fixture.store.dead_letters().insert(dead_letter), invalid, &[part]);
    }
    assert_eq!(fixture.dead_letters(), []);
    // Messages have a higher size limit than tasks, because they already exist.
    insert_message(fixture, checkpoint(&format!("\"{}\"", "x".repeat(17 << 20))));
}
