//! Groups of dead letters, and retrying or discarding many of them.

use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::dead_letters::{
    BulkOutcome, DeadLetterFilter, DeadLetterGroup, DeadLetterSelection, NewDeadLetter, reason_group,
};
use gristmill_store::tasks::{NewTask, TaskFilter, TaskRow, TaskStatus};
use gristmill_store::{Durability, Error, Store, UtcTime};
use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;

struct Fixture {
    store: Store,
    clock: ManualClock,
    other: Connection,
    _folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.db");
        let clock = ManualClock::at(UtcTime::parse("2026-01-19 07:08:09").unwrap().micros());
        let store = Store::options().clock(clock.clone()).durability(Durability::Normal).open(&path).unwrap();
        Fixture { store, clock, other: Connection::open(path).unwrap(), _folder: folder }
    }

    fn sql(&self, sql: &str) {
        self.other.execute_batch(sql).unwrap();
    }

    /// Inserts the dead letter of a task as the store would; all columns are in `values`.
    fn dead_letter(&self, kind: &str, reason: &str, payload: Option<&str>) -> i64 {
        let sql = "INSERT INTO dead_letter_queue (task_id, task_type, document_id, failure_reason, attempt_count,
                first_failure, last_failure, queue, payload, priority)
            VALUES ('1', ?1, 'd', ?2, 1, ?3, ?3, CASE WHEN ?4 IS NOT NULL THEN 'q' END, ?4, 7)";
        self.other.execute(sql, (kind, reason, self.store.now().to_string(), payload)).unwrap();
        self.clock.advance(Duration::from_secs(1));
        self.other.last_insert_rowid()
    }

    fn message(&self) -> i64 {
        let at = self.store.now();
        let message = NewDeadLetter {
            message_id: "m".to_owned(),
            kind: "amqp:q".to_owned(),
            queue: "q".to_owned(),
            reason: "refused 1".to_owned(),
            attempts: 1,
            first_failure: at,
            last_failure: at,
            details: None,
            checkpoint: None,
        };
        self.store.dead_letters().insert(message).unwrap()
    }

    fn tasks(&self) -> Vec<TaskRow> {
        self.store.tasks().list(&TaskFilter::default(), None, 10_000).unwrap().items
    }

    fn count(&self) -> u64 {
        self.store.dead_letters().count().unwrap()
    }
}

fn matching(filter: DeadLetterFilter) -> DeadLetterSelection {
    DeadLetterSelection::Matching(filter)
}

fn ids(outcome: &[gristmill_store::dead_letters::NotDone]) -> Vec<i64> {
    outcome.iter().map(|not_done| not_done.id).collect()
}

#[test]
fn groups_have_one_row_for_each_kind_and_reason() {
    let fixture = Fixture::new();
    let begin = fixture.store.now();
    for (kind, reason) in [("a", "exit 1"), ("b", "exit 1"), ("a", "exit 22"), ("a", "no file 'x'"), ("a", "exit 3")] {
        fixture.dead_letter(kind, reason, Some("{}"));
    }
    // Another program writes times without a fraction.
    fixture.sql("UPDATE dead_letter_queue SET first_failure = '2026-01-19 07:08:09' WHERE id = 1");
    let letters = fixture.store.dead_letters();
    let groups = letters.groups(&DeadLetterFilter::default(), 10).unwrap();
    let first = DeadLetterGroup {
        kind: "a".to_owned(),
        reason_group: "exit <number>".to_owned(),
        count: 3,
        first_failure: begin,
        last_failure: begin.plus(Duration::from_secs(4)),
        example_id: 5,
        example_reason: "exit 3".to_owned(),
    };
    assert_eq!(groups[0], first);
    let rest: Vec<_> = groups[1..].iter().map(|group| (group.kind.as_str(), group.reason_group.as_str())).collect();
    assert_eq!(rest, [("a", "no file <text>"), ("b", "exit <number>")]);
    assert_eq!(letters.groups(&DeadLetterFilter::default(), 1).unwrap(), [first]);
    let filter = DeadLetterFilter::default().kind(Some("a".to_owned())).reason_group(Some("exit <number>".to_owned()));
    assert_eq!(letters.count_matching(&filter).unwrap(), 3);
    assert_eq!(letters.list(&filter, None, 2).unwrap().items.iter().map(|row| row.id).collect::<Vec<_>>(), [5, 3]);
    assert_eq!(letters.groups(&filter, 10).unwrap().len(), 1);
    assert_eq!(letters.count_matching(&DeadLetterFilter::default()).unwrap(), 5);
}

#[test]
fn bulk_is_refused_if_another_number_is_selected() {
    let fixture = Fixture::new();
    for _ in 0..3 {
        fixture.dead_letter("a", "x", Some("{}"));
    }
    let letters = fixture.store.dead_letters();
    for (selection, found) in [
        (matching(DeadLetterFilter::default()), 3),
        (DeadLetterSelection::Ids(vec![1, 2, 2, 1]), 2),
        (matching(DeadLetterFilter::default().kind(Some("b".to_owned()))), 0),
    ] {
        for result in [letters.retry_many(selection.clone(), 4), letters.discard_many(selection, 4)] {
            let Err(Error::Conflict(text)) = result else { panic!("{result:?}") };
            assert!(text.starts_with(&format!("{found} dead letters")) && text.contains("expected 4"), "{text}");
        }
    }
    assert_eq!((fixture.count(), fixture.tasks().len()), (3, 0));
}

#[test]
fn retry_many_does_what_retry_does() {
    let (single, many) = (Fixture::new(), Fixture::new());
    let checkpoint = r#"UPDATE dead_letter_queue SET checkpoint = '{"step": {"n": 12345678901234567890}}',
        unique_key = 'k', max_attempts = 3, priority = -4"#;
    for fixture in [&single, &many] {
        fixture.dead_letter("a", "x", Some(r#"{ "b": 1.0, "a": 2}"#));
        fixture.sql(checkpoint);
    }
    let letter = single.store.dead_letters().get(1).unwrap();
    let task = single.store.dead_letters().retry(1, letter.task().unwrap()).unwrap().id;
    let outcome = many.store.dead_letters().retry_many(DeadLetterSelection::Ids(vec![1]), 1).unwrap();
    assert_eq!(outcome, BulkOutcome { done: 1, ..BulkOutcome::default() });
    assert_eq!(single.tasks(), many.tasks());
    let steps = |fixture: &Fixture| fixture.store.checkpoints().list(task).unwrap();
    assert_eq!(steps(&single), steps(&many));
    assert_eq!(steps(&many)[0].data, r#"{"n": 12345678901234567890}"#);
    assert_eq!((single.count(), many.count()), (0, 0));
}

#[test]
fn bulk_skips_what_its_state_forbids_and_does_the_rest() {
    let fixture = Fixture::new();
    let mut unfinished = NewTask::new("a", "{}");
    unfinished.unique_key = Some("k".to_owned());
    fixture.store.tasks().enqueue(unfinished).unwrap();
    let good = fixture.dead_letter("a", "x", Some("{}"));
    let taken = fixture.dead_letter("a", "x", Some("{}"));
    fixture.sql(&format!("UPDATE dead_letter_queue SET unique_key = 'k' WHERE id = {taken}"));
    let message = fixture.message();
    let foreign = fixture.dead_letter("a", "x", None);
    let unreadable = fixture.dead_letter("a", "x", Some("no JSON"));
    let broken = fixture.dead_letter("a", "x", Some("{}"));
    fixture.sql(&format!("UPDATE dead_letter_queue SET checkpoint = '[]' WHERE id = {broken}"));
    let last = fixture.dead_letter("a", "x", Some("{}"));
    let all = vec![good, taken, message, foreign, unreadable, broken, last, 99];
    let outcome = fixture.store.dead_letters().retry_many(DeadLetterSelection::Ids(all), 8).unwrap();
    assert_eq!((outcome.done, ids(&outcome.skipped)), (2, vec![taken, message, 99]), "{outcome:?}");
    assert_eq!(ids(&outcome.failed), [foreign, unreadable, broken]);
    assert!(outcome.skipped[0].reason.contains("is not finished"), "{outcome:?}");
    assert!(outcome.skipped[1].reason.contains("is the message"), "{outcome:?}");
    assert_eq!(outcome.skipped[2].reason, "there is no dead letter 99");
    assert!(outcome.failed[0].reason.contains("no payload"), "{outcome:?}");
    assert_eq!((fixture.count(), fixture.tasks().len()), (5, 3), "a row that failed left no task");
    // What was rolled back is not counted either.
    assert_eq!(fixture.store.tasks().counts().unwrap(), [(TaskStatus::Pending, 3)]);
    let json = serde_json::to_value(&outcome).unwrap();
    assert_eq!(json["skipped"][2]["id"], 99);

    let outcome = fixture.store.dead_letters().discard_many(matching(DeadLetterFilter::default()), 5).unwrap();
    assert_eq!((outcome, fixture.count()), (BulkOutcome { done: 5, ..BulkOutcome::default() }, 0));
}

#[test]
fn large_selection_is_divided_into_transactions() {
    let fixture = Fixture::new();
    fixture.sql(
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 2001)
        INSERT INTO dead_letter_queue (task_id, task_type, document_id, failure_reason, attempt_count, first_failure,
            last_failure, queue, payload) SELECT i, 'a', '', 'row ' || i, 1, '2026-01-19 07:08:09',
            '2026-01-19 07:08:09', 'q', json_object('n', i) FROM n;
        CREATE TRIGGER fail AFTER INSERT ON tasks WHEN NEW.payload LIKE '%1200%'
            BEGIN SELECT raise(ABORT, 'refused'); END",
    );
    let filter = DeadLetterFilter::default().reason_group(Some(reason_group("row 5")));
    let groups = fixture.store.dead_letters().groups(&DeadLetterFilter::default(), 10).unwrap();
    assert_eq!((groups.len(), groups[0].count), (1, 2_001));
    let outcome = fixture.store.dead_letters().retry_many(matching(filter.clone()), 2_001).unwrap();
    assert_eq!((outcome.done, ids(&outcome.skipped)), (2_000, vec![1_200]));
    let tasks = fixture.tasks();
    assert_eq!((tasks.len(), fixture.count()), (2_000, 1));
    assert!(tasks.iter().rev().zip(1..).all(|(task, id)| task.id == id), "in the order of their ids");
    let outcome = fixture.store.dead_letters().discard_many(matching(filter), 1).unwrap();
    assert_eq!((outcome.done, fixture.count()), (1, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn groups_count_every_dead_letter_once(rows in proptest::collection::vec((0..2u8, 0..4u8, 0..9u8), 0..20)) {
        let fixture = Fixture::new();
        for (kind, reason, number) in rows {
            let nth = usize::from(reason);
            let reason = [format!("a {number}"), format!("b '{number}'"), "a".to_owned(), format!("{number}")];
            fixture.dead_letter(["k", "l"][usize::from(kind)], &reason[nth], Some("{}"));
        }
        let letters = fixture.store.dead_letters();
        let groups = letters.groups(&DeadLetterFilter::default(), 100).unwrap();
        prop_assert_eq!(groups.iter().map(|group| group.count).sum::<u64>(), fixture.count());
        for group in groups {
            let filter = DeadLetterFilter::default()
                .kind(Some(group.kind.clone()))
                .reason_group(Some(group.reason_group.clone()));
            let found = letters.list(&filter, None, 100).unwrap().items;
            prop_assert_eq!(found.len() as u64, group.count);
            prop_assert_eq!(found.iter().map(|row| row.first_failure).min(), Some(group.first_failure));
            prop_assert_eq!(found.iter().map(|row| row.last_failure).max(), Some(group.last_failure));
            prop_assert_eq!((found[0].id, &found[0].failure_reason), (group.example_id, &group.example_reason));
        }
    }
}
