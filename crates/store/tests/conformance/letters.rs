//! Tasks that were given up: what is kept of them, and the way back.

use gristmill_store::dead_letters::NewDeadLetter;
use gristmill_store::tasks::{ClaimRequest, Disposition, Enqueued, TaskStatus};

use super::*;

/// A task with everything that a task can have.
fn rich() -> NewTask {
    NewTask {
        queue: "night".to_owned(),
        payload: r#"{"grain":  "石"}"#.to_owned(),
        priority: 3,
        max_attempts: Some(5),
        document_id: Some("doc/7".to_owned()),
        ..keyed("key 🌾")
    }
}

fn claim_rich(mill: &Mill) -> ClaimedTask {
    let wanted = ClaimRequest { queue: "night".to_owned(), ..mill.wanted(1) };
    mill.store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed.remove(0)
}

/// The two texts are the same JSON, to the digit.
#[track_caller]
fn same(found: &str, wanted: &str) {
    let bare = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    assert_eq!(bare(found), bare(wanted));
}

pub(crate) fn a_letter_says_all_there_is_to_know(mill: &Mill) {
    let id = mill.add(rich());
    mill.advance(SEC);
    let task = claim_rich(mill);
    mill.settle(&task, Disposition::Retry(after(2 * SEC), failure("first")));
    mill.advance(SEC);
    let task = claim_rich(mill);
    mill.note(&task, "b \"quoted\"", r#"{"n": [1, true, null, "x"]}"#).unwrap();
    mill.note(&task, "a", "12345678901234567890").unwrap();
    mill.advance(SEC);
    let letter = mill.bury(&task, "last");
    let found = mill.store.dead_letters().get(letter).unwrap();
    same(
        found.checkpoint.as_deref().unwrap(),
        r#"{"a": 12345678901234567890, "b \"quoted\"": {"n": [1, true, null, "x"]}}"#,
    );
    let want = DeadLetter {
        id: letter,
        task_id: id.to_string(),
        task_type: KIND.to_owned(),
        document_id: "doc/7".to_owned(),
        failure_reason: "last".to_owned(),
        attempt_count: 2,
        first_failure: after(SEC),
        last_failure: after(3 * SEC),
        error_details: Some("all about last".to_owned()),
        checkpoint: found.checkpoint.clone(),
        created_at: after(3 * SEC),
        queue: Some("night".to_owned()),
        payload: Some(r#"{"grain":  "石"}"#.to_owned()),
        priority: Some(3),
        max_attempts: Some(5),
        unique_key: Some("key 🌾".to_owned()),
    };
    assert_eq!(found, want);
    assert_eq!(mill.notes(id), [], "they are in the letter now");
}

pub(crate) fn a_letter_of_a_plain_task_says_so(mill: &Mill) {
    let task = mill.put_and_claim();
    let failure = TaskFailure { reason: "x".to_owned(), step: None, ..TaskFailure::default() };
    let UpdateResult::DeadLettered(letter) = mill.settle(&task, Disposition::DeadLettered(failure)) else {
        panic!("not buried")
    };
    let letter = mill.store.dead_letters().get(letter).unwrap();
    assert_eq!((letter.document_id.as_str(), letter.error_details, letter.checkpoint), ("", None, None));
    assert_eq!((letter.priority, letter.max_attempts, letter.unique_key), (Some(0), None, None));
    assert_eq!((letter.first_failure, letter.last_failure, letter.attempt_count), (noon(), noon(), 1));
}

pub(crate) fn starts_that_were_given_back_are_no_attempts(mill: &Mill) {
    mill.put();
    for _ in 0..3 {
        let task = mill.start_one();
        assert_eq!(mill.settle(&task, Disposition::Released), UpdateResult::Done);
    }
    let task = mill.start_one();
    let UpdateResult::DeadLettered(letter) = mill.settle(&task, Disposition::DeadLettered(failure("x")))
    else {
        panic!("not buried")
    };
    assert_eq!(mill.store.dead_letters().get(letter).unwrap().attempt_count, 1);
}

pub(crate) fn a_poison_pill_has_its_times_and_checkpoints_too(mill: &Mill) {
    let id = mill.put();
    let task = mill.claim_one();
    mill.settle(&task, Disposition::Retry(noon(), failure("once")));
    let task = mill.start_one();
    mill.note(&task, "a", "[1]").unwrap();
    mill.advance(HOUR);
    let poisoned = mill.store.tasks().recover(1).unwrap().poisoned;
    let letter = mill.store.dead_letters().get(poisoned[0]).unwrap();
    assert_eq!((letter.first_failure, letter.last_failure), (noon(), after(HOUR)));
    assert_eq!((letter.attempt_count, letter.created_at), (2, after(HOUR)));
    same(letter.checkpoint.as_deref().unwrap(), r#"{"a": [1]}"#);
    assert!(letter.error_details.is_some());
    assert_eq!(mill.notes(id), []);
}

pub(crate) fn a_letter_gives_its_task_back(mill: &Mill) {
    for (task, queue) in [(rich(), "night"), (plain(), "default")] {
        mill.add(task.clone());
        let wanted = ClaimRequest { queue: queue.to_owned(), ..mill.wanted(1) };
        let claimed = mill.store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed.remove(0);
        let letter = mill.bury(&claimed, "x");
        assert_eq!(mill.store.dead_letters().get(letter).unwrap().task(), Some(task));
    }
}

pub(crate) fn retrying_puts_the_task_back_and_takes_the_letter_away(mill: &Mill) {
    let old = mill.add(rich());
    let task = claim_rich(mill);
    mill.note(&task, "a", r#"{"n": 1}"#).unwrap();
    mill.note(&task, "b", "[2]").unwrap();
    let letter = mill.bury(&task, "x");
    let other = mill.put_and_claim();
    let other = mill.bury(&other, "y");
    mill.advance(SEC);
    let failed = mill.row(old);
    let task = mill.store.dead_letters().get(letter).unwrap().task().unwrap();
    let enqueued = mill.store.dead_letters().retry(letter, task).unwrap();
    assert!(enqueued.created && enqueued.id > old);
    refused(mill.store.dead_letters().get(letter), not_found, &[]);
    assert_eq!(mill.letters().iter().map(|letter| letter.id).collect::<Vec<_>>(), [other]);
    assert_eq!(mill.row(old), failed, "what was given up stays given up");
    let row = mill.row(enqueued.id);
    assert_eq!((row.status, row.attempts, row.crashes), (TaskStatus::Pending, 0, 0));
    assert_eq!((row.created_at, row.first_failed_at), (after(SEC), None));
    assert_eq!((row.payload, row.priority, row.max_attempts), (rich().payload, 3, Some(5)));
    assert_eq!((row.unique_key, row.document_id), (rich().unique_key, rich().document_id));
    let notes = mill.notes(enqueued.id);
    assert_eq!(notes.iter().map(|(step, _)| step.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    same(&notes[0].1, r#"{"n":1}"#);
    same(&notes[1].1, "[2]");
    assert_eq!(claim_rich(mill).id, enqueued.id);
    // A second time there is nothing to retry.
    refused(mill.store.dead_letters().retry(letter, plain()), not_found, &[]);
    assert_eq!(mill.rows().len(), 3);
}

pub(crate) fn restored_checkpoints_mean_what_they_meant(mill: &Mill) {
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
            let task = mill.put_and_claim();
            mill.note(&task, step, data).unwrap();
            let letter = mill.bury(&task, "x");
            let enqueued = mill.store.dead_letters().retry(letter, plain()).unwrap();
            assert_eq!(mill.notes(enqueued.id), [(step.to_owned(), data.to_owned())]);
            mill.cancel(enqueued.id);
        }
    }
}

pub(crate) fn a_retry_against_a_living_key_leaves_the_letter(mill: &Mill) {
    mill.add(keyed("k"));
    let task = mill.claim_one();
    mill.note(&task, "a", "1").unwrap();
    let letter = mill.bury(&task, "x");
    let living = mill.add(keyed("k"));
    let (rows, letters) = (mill.rows(), mill.letters());
    let task = letters[0].task().unwrap();
    refused(
        mill.store.dead_letters().retry(letter, task.clone()),
        conflict,
        &["\"k\"", &living.to_string(), &letter.to_string()],
    );
    assert_eq!((mill.rows(), mill.letters(), mill.notes(living)), (rows, letters, vec![]));
    mill.cancel(living);
    assert!(mill.store.dead_letters().retry(letter, task).unwrap().created);
    assert_eq!(mill.letters(), []);
}

pub(crate) fn a_retry_that_is_not_legal_leaves_the_letter(mill: &Mill) {
    let task = mill.put_and_claim();
    let letter = mill.bury(&task, "x");
    for bad in [NewTask::new(KIND, "{"), NewTask::new("", "{}"), NewTask { max_attempts: Some(0), ..plain() }]
    {
        refused(mill.store.dead_letters().retry(letter, bad), invalid, &[]);
    }
    assert_eq!((mill.letters().len(), mill.rows().len()), (1, 1));
    // Another task than it was is the caller's choice.
    let Enqueued { id, .. } = mill.store.dead_letters().retry(letter, NewTask::new("sieve", "[9]")).unwrap();
    assert_eq!((mill.row(id).kind, mill.row(id).payload), ("sieve".to_owned(), "[9]".to_owned()));
}

pub(crate) fn a_discarded_letter_is_gone(mill: &Mill) {
    let (one, two) = (mill.put_and_claim(), mill.put_and_claim());
    let (one, two) = (mill.bury(&one, "x"), mill.bury(&two, "y"));
    assert_eq!(mill.store.dead_letters().count().unwrap(), 2);
    mill.store.dead_letters().discard(one).unwrap();
    refused(mill.store.dead_letters().discard(one), not_found, &[&one.to_string()]);
    assert_eq!(mill.letters().iter().map(|letter| letter.id).collect::<Vec<_>>(), [two]);
    assert_eq!(mill.store.dead_letters().count().unwrap(), 1);
    assert_eq!(mill.rows().len(), 2, "the tasks stay as they are");
}

pub(crate) fn what_was_not_cleaned_up_is_told_until_it_is(mill: &Mill) {
    let bury = |kind: &str| {
        mill.add(NewTask::new(kind, "{}"));
        let wanted = ClaimRequest { kind: kind.to_owned(), ..mill.wanted(1) };
        let task = mill.store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed.remove(0);
        mill.bury(&task, "x")
    };
    let uncleaned = |kinds: &[&str], limit: usize| -> Vec<i64> {
        let kinds: Vec<String> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let letters = mill.store.dead_letters().list_cleanup_pending(&kinds, limit).unwrap();
        letters.iter().map(|letter| letter.id).collect()
    };
    let ids = [bury("a"), bury("b"), bury("a"), bury("it's \"c\"")];
    assert_eq!(uncleaned(&["a"], 10), [ids[0], ids[2]]);
    assert_eq!(uncleaned(&["a", "b", "it's \"c\""], 10), ids);
    assert_eq!(uncleaned(&["b", "a"], 2), ids[..2]);
    assert_eq!(uncleaned(&["A", "d"], 10), [0; 0]);
    assert_eq!(uncleaned(&[], 10), [0; 0]);
    mill.store.dead_letters().mark_cleaned_up(ids[0]).unwrap();
    assert_eq!(uncleaned(&["a", "b"], 10), ids[1..3]);
    mill.store.dead_letters().discard(ids[1]).unwrap();
    assert_eq!(uncleaned(&["a", "b"], 10), [ids[2]]);
    assert_eq!(mill.letters().len(), 3, "a letter that was cleaned up after stays");
}

/// A message that was given up.
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

fn give_up(mill: &Mill, letter: NewDeadLetter) -> i64 {
    mill.store.dead_letters().insert(letter).unwrap()
}

pub(crate) fn a_message_can_be_given_up_too(mill: &Mill) {
    mill.advance(HOUR);
    let id = give_up(mill, message("m-1"));
    let want = DeadLetter {
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
    let found = mill.store.dead_letters().get(id).unwrap();
    assert_eq!(found, want);
    assert!(found.is_message() && found.task().is_none());
    let task = mill.put_and_claim();
    let of_task = mill.store.dead_letters().get(mill.bury(&task, "x")).unwrap();
    assert!(!of_task.is_message() && of_task.require_task().is_ok());
    let kind = DeadLetterFilter { kind: Some("amqp:orders".to_owned()), ..DeadLetterFilter::default() };
    assert_eq!(mill.store.dead_letters().list(&kind, None, 10).unwrap().items, [want]);
    assert_eq!(mill.store.dead_letters().count().unwrap(), 2);
    // No workload of ours cleans up after it.
    assert_eq!(mill.store.dead_letters().list_cleanup_pending(&["amqp:orders".to_owned()], 10).unwrap(), []);
    mill.store.dead_letters().discard(id).unwrap();
    assert_eq!(mill.letters(), [of_task]);
}

pub(crate) fn a_message_that_is_given_up_again_is_one_letter(mill: &Mill) {
    let id = give_up(mill, message("m-1"));
    let first = mill.store.dead_letters().get(id).unwrap();
    mill.advance(HOUR);
    let again = NewDeadLetter {
        reason: "gone".to_owned(),
        attempts: 5,
        first_failure: after(HOUR),
        last_failure: after(HOUR),
        details: None,
        checkpoint: Some("{}".to_owned()),
        ..message("m-1")
    };
    assert_eq!(give_up(mill, again.clone()), id);
    let want = DeadLetter {
        failure_reason: "gone".to_owned(),
        attempt_count: 5,
        last_failure: after(HOUR),
        error_details: None,
        checkpoint: Some("{}".to_owned()),
        ..first
    };
    assert_eq!(mill.letters(), std::slice::from_ref(&want));
    // What comes late makes nothing younger, nor less.
    let late = NewDeadLetter {
        attempts: 1,
        first_failure: noon().minus(SEC),
        last_failure: noon(),
        ..again.clone()
    };
    assert_eq!(give_up(mill, late), id);
    assert_eq!(mill.letters(), [DeadLetter { first_failure: noon().minus(SEC), ..want }]);
    // Another store's is the same letter; another queue, kind or id is another.
    assert_eq!(mill.again().dead_letters().insert(again.clone()).unwrap(), id);
    let others = [
        NewDeadLetter { queue: "returns".to_owned(), ..again.clone() },
        NewDeadLetter { kind: "amqp:returns".to_owned(), ..again.clone() },
        NewDeadLetter { message_id: "M-1".to_owned(), ..again.clone() },
    ];
    for other in others {
        assert_ne!(give_up(mill, other), id);
    }
    assert_eq!(mill.letters().len(), 4);
    mill.store.dead_letters().discard(id).unwrap();
    assert_ne!(give_up(mill, again), id, "what was discarded is gone");
}

pub(crate) fn messages_without_an_id_are_letters_of_their_own(mill: &Mill) {
    let (one, two) = (give_up(mill, message("")), give_up(mill, message("")));
    assert_eq!(mill.letters().iter().map(|letter| letter.id).collect::<Vec<_>>(), [two, one]);
}

pub(crate) fn a_message_is_not_made_a_task(mill: &Mill) {
    let id = give_up(mill, message("m-1"));
    let letters = mill.letters();
    let parts = ["\"m-1\"", "the queue \"orders\"", "publishes it there again", &format!("dead letter {id}")];
    refused(mill.store.dead_letters().retry(id, plain()), conflict, &parts);
    refused(letters[0].require_task(), conflict, &parts);
    assert_eq!((mill.letters(), mill.rows()), (letters, vec![]));
}

pub(crate) fn a_message_is_not_taken_for_a_task_of_its_number(mill: &Mill) {
    let task = mill.put_and_claim();
    let letter = mill.bury(&task, "x");
    // Even one that says that it is of the task's kind.
    let of_message = give_up(mill, NewDeadLetter { kind: KIND.to_owned(), ..message(&task.id.to_string()) });
    assert_ne!(of_message, letter);
    let filter = DeadLetterFilter { task_id: Some(task.id.to_string()), ..DeadLetterFilter::default() };
    let found = mill.store.dead_letters().list(&filter, None, 10).unwrap().items;
    assert_eq!(found.iter().map(|letter| letter.id).collect::<Vec<_>>(), [letter]);
}

pub(crate) fn a_letter_of_a_message_that_is_not_legal_is_refused(mill: &Mill) {
    let checkpoint = |text: &str| NewDeadLetter { checkpoint: Some(text.to_owned()), ..message("m") };
    for (letter, part) in [
        (NewDeadLetter { kind: String::new(), ..message("m") }, "the kind of its message"),
        (NewDeadLetter { queue: String::new(), ..message("m") }, "the queue it came from"),
        (checkpoint("{"), "the letter's checkpoint is not JSON"),
        (checkpoint(&format!("\"{}\"", "x".repeat(256 << 20))), "at most 268435456"),
    ] {
        refused(mill.store.dead_letters().insert(letter), invalid, &[part]);
    }
    assert_eq!(mill.letters(), []);
    // What a task may not say a message may: it is there already.
    give_up(mill, checkpoint(&format!("\"{}\"", "x".repeat(17 << 20))));
}
