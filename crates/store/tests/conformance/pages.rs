//! Lists: pages, filters, counts and pruning.

use std::fmt::Debug;

use gristmill_store::Page;
use gristmill_store::dead_letters::DeadLetterFilter;
use gristmill_store::tasks::{ClaimRequest, Disposition, TaskFilter, TaskStatus};

use super::*;

/// Reads all pages; calls `between` after each.
fn walk<T: Clone + Debug>(
    page: impl Fn(Option<i64>) -> Result<Page<T>, Error>,
    id: impl Fn(&T) -> i64,
    limit: usize,
    between: impl Fn(),
) -> Vec<i64> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let Page { items, next_cursor } = page(after).unwrap();
        assert!(items.len() <= limit);
        ids.extend(items.iter().map(&id));
        assert!(ids.is_sorted_by(|a, b| a > b), "newest first without duplicates: {ids:?}");
        between();
        match next_cursor {
            Some(cursor) => {
                assert_eq!(items.len(), limit, "only the last page may be short");
                assert_eq!(Some(cursor.parse().unwrap()), ids.last().copied());
                after = ids.last().copied();
            }
            None => return ids,
        }
    }
}

pub(crate) fn task_pages_neither_repeat_nor_skip_a_row(fixture: &Fixture) {
    let enqueued = fixture.store.tasks().enqueue_many(vec![plain_task(); 12]).unwrap();
    let newest_first: Vec<i64> = enqueued.iter().rev().map(|one| one.id).collect();
    for limit in [1, 5, 6, 11, 12, 13, usize::MAX] {
        let page = |after| fixture.store.tasks().list(&TaskFilter::default(), after, limit);
        // New tasks come before the first page and do not shift the others.
        let ids = walk(
            page,
            |task| task.id,
            limit,
            || {
                fixture.enqueue_plain();
            },
        );
        assert_eq!(ids[ids.len() - 12..], newest_first);
        assert!(ids.is_sorted_by(|a, b| a > b), "{ids:?}");
        fixture.claim_ids().iter().filter(|id| !newest_first.contains(id)).for_each(|id| {
            fixture.cancel(*id);
        });
        fixture.store.tasks().prune(UtcTime::of(&fixture.clock), 100).unwrap();
    }
    let none = fixture.store.tasks().list(&TaskFilter::default(), Some(1), 5).unwrap();
    assert_eq!((none.items.len(), none.next_cursor), (0, None));
    assert_eq!(fixture.store.tasks().list(&TaskFilter::default(), None, 0).unwrap().items, []);
}

pub(crate) fn tasks_are_filtered_by_status_kind_and_queue(fixture: &Fixture) {
    let enqueue =
        |queue: &str, kind: &str| fixture.enqueue(NewTask { queue: queue.to_owned(), ..NewTask::new(kind, "{}") });
    let ids = [enqueue("q", "a"), enqueue("q", "b"), enqueue("r", "a"), enqueue("q", "a"), enqueue("r", "a")];
    fixture.cancel(ids[3]);
    let check = |filter: TaskFilter, expected: &[usize]| {
        let page = |after| fixture.store.tasks().list(&filter, after, 2);
        let found = walk(page, |task| task.id, 2, || ());
        let expected: Vec<i64> = expected.iter().map(|nth| ids[*nth]).collect();
        assert_eq!(found, expected, "{filter:?}");
    };
    let all = TaskFilter::default;
    let (a, q) = (Some("a".to_owned()), Some("q".to_owned()));
    check(all(), &[4, 3, 2, 1, 0]);
    check(all().kind(a.clone()), &[4, 3, 2, 0]);
    check(all().queue(q.clone()), &[3, 1, 0]);
    check(all().status(Some(TaskStatus::Pending)), &[4, 2, 1, 0]);
    check(all().status(Some(TaskStatus::Cancelled)), &[3]);
    check(all().status(Some(TaskStatus::Running)), &[]);
    check(TaskFilter::default().kind(a).queue(q).status(Some(TaskStatus::Pending)), &[0]);
    check(all().kind(Some("A".to_owned())), &[]);
}

pub(crate) fn tasks_are_filtered_by_text_of_payload_or_error(fixture: &Fixture) {
    let enqueue = |payload: &str| fixture.enqueue(NewTask::new(KIND, payload));
    let first = enqueue(r#"{"path":"a%/Straße"}"#);
    let claimed = fixture.claim().remove(0);
    fixture.settle(&claimed, Disposition::Retry(after(SEC), failure("cannot open Straße")));
    let second = enqueue(r#"{"path":"b"}"#);
    let third = enqueue(r#"{"path":"Straße"}"#);
    for (text, expected) in [
        ("Straße", vec![third, first]),
        ("cannot open", vec![first]),
        ("a%/", vec![first]),
        ("%", vec![first]),
        ("path", vec![third, second, first]),
        ("straße", vec![]),
        ("Path", vec![]),
        ("", vec![third, second, first]),
    ] {
        let filter = TaskFilter::default().text(Some(text.to_owned()));
        let page = |after| fixture.store.tasks().list(&filter, after, 2);
        assert_eq!(walk(page, |task| task.id, 2, || ()), expected, "{text}");
    }
    let pending = TaskFilter::default().text(Some("Straße".to_owned())).status(Some(TaskStatus::Pending));
    let found = fixture.store.tasks().list(&pending, None, 9).unwrap().items;
    assert_eq!(found.iter().map(|task| task.id).collect::<Vec<_>>(), [third]);
}

/// Makes a dead letter for each kind, document and reason.
fn dead_letter_each(fixture: &Fixture, cases: &[(&str, &str, &str)]) -> Vec<DeadLetter> {
    for (kind, document, reason) in cases {
        let task = NewTask { document_id: Some((*document).to_owned()), ..NewTask::new(*kind, "{}") };
        fixture.enqueue(task);
        let request = ClaimRequest { kind: (*kind).to_owned(), ..fixture.claim_request(1) };
        let claimed = fixture.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed.remove(0);
        fixture.dead_letter(&claimed, reason);
    }
    let mut dead_letters = fixture.dead_letters();
    dead_letters.reverse();
    assert_eq!(dead_letters.len(), cases.len());
    dead_letters
}

pub(crate) fn dead_letter_pages_neither_repeat_nor_skip_a_row(fixture: &Fixture) {
    let dead_letters = dead_letter_each(fixture, &[("a", "d", "x"); 7]);
    let newest_first: Vec<i64> = dead_letters.iter().rev().map(|dead_letter| dead_letter.id).collect();
    assert!(newest_first.is_sorted_by(|a, b| a > b));
    for limit in [1, 2, 6, 7, 8] {
        let page = |after| fixture.store.dead_letters().list(&DeadLetterFilter::default(), after, limit);
        assert_eq!(walk(page, |dead_letter| dead_letter.id, limit, || ()), newest_first);
    }
}

pub(crate) fn dead_letters_are_filtered_by_kind_document_reason_and_task(fixture: &Fixture) {
    let dead_letters = dead_letter_each(
        fixture,
        &[("a", "d1", "disk full"), ("a", "d2", "timeout"), ("b", "d1", "timeout 100%"), ("b", "", "Full")],
    );
    let check = |filter: DeadLetterFilter, expected: &[usize]| {
        let found: Vec<i64> =
            fixture.store.dead_letters().list(&filter, None, 10).unwrap().items.iter().map(|one| one.id).collect();
        let expected: Vec<i64> = expected.iter().map(|nth| dead_letters[*nth].id).collect();
        assert_eq!(found, expected, "{filter:?}");
    };
    let all = DeadLetterFilter::default;
    let text = |text: &str| Some(text.to_owned());
    check(all(), &[3, 2, 1, 0]);
    check(all().kind(text("a")), &[1, 0]);
    check(all().document_id(text("d1")), &[2, 0]);
    check(all().reason(text("time")), &[2, 1]);
    check(all().reason(text("%")), &[2]);
    check(all().task_id(Some(dead_letters[3].task_id.clone())), &[3]);
    check(all().kind(text("b")).document_id(text("d1")).reason(text("out")), &[2]);
    check(all().kind(text("c")), &[]);
}

pub(crate) fn counts_group_tasks_by_status(fixture: &Fixture) {
    let check = |expected: &[(TaskStatus, u64)]| {
        let mut counts = fixture.store.tasks().counts().unwrap();
        counts.retain(|(_, count)| *count > 0);
        counts.sort_unstable();
        assert_eq!(counts, expected);
    };
    check(&[]);
    fixture.store.tasks().enqueue_many(vec![plain_task(); 7]).unwrap();
    check(&[(TaskStatus::Pending, 7)]);
    let tasks = fixture.claim_batch(6).claimed;
    fixture.settle(&tasks[0], Disposition::Completed(None));
    fixture.settle(&tasks[1], Disposition::Completed(None));
    fixture.settle(&tasks[2], Disposition::Retry(after(HOUR), failure("x")));
    fixture.dead_letter(&tasks[3], "x");
    fixture.cancel(tasks[4].id);
    use TaskStatus::{Cancelled, Completed, Failed, Pending, Running, Scheduled};
    check(&[(Pending, 1), (Scheduled, 1), (Running, 1), (Completed, 2), (Failed, 1), (Cancelled, 1)]);
}

pub(crate) fn prune_deletes_only_old_finished_tasks(fixture: &Fixture) {
    let finish = || {
        fixture.store.tasks().enqueue_many(vec![plain_task(); 3]).unwrap();
        let tasks = fixture.claim();
        fixture.settle(&tasks[0], Disposition::Completed(None));
        fixture.dead_letter(&tasks[1], "x");
        fixture.cancel(tasks[2].id);
        [tasks[0].id, tasks[1].id, tasks[2].id]
    };
    let old = finish();
    let running = fixture.enqueue_and_claim();
    let scheduled = fixture.enqueue(NewTask { run_after: Some(after(9 * HOUR)), ..plain_task() });
    fixture.advance(HOUR);
    let young = finish();
    let pending = fixture.enqueue_plain();
    let prune = |limit: usize| fixture.store.tasks().prune(after(HOUR / 2), limit).unwrap();
    let left = || -> Vec<i64> { fixture.rows().iter().rev().map(|row| row.id).collect() };
    let rest = [running.id, scheduled, young[0], young[1], young[2], pending];
    assert_eq!(prune(0), 0);
    assert_eq!(prune(2), 2);
    assert_eq!(left(), [&old[2..], &rest].concat());
    assert_eq!(prune(usize::MAX), 1);
    assert_eq!(prune(10), 0);
    assert_eq!(left(), rest);
    assert_eq!(fixture.store.dead_letters().count().unwrap(), 2, "dead letters are kept");
    // An id is not reused.
    fixture.cancel(pending);
    fixture.advance(HOUR);
    fixture.store.tasks().prune(UtcTime::of(&fixture.clock), 10).unwrap();
    assert!(fixture.enqueue_plain() > pending);
}
