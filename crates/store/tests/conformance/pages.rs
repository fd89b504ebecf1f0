//! Looking at many rows: pages, filters, counts, and forgetting what is old.

use std::fmt::Debug;

use gristmill_store::Page;
use gristmill_store::dead_letters::DeadLetterFilter;
use gristmill_store::tasks::{ClaimRequest, Disposition, TaskFilter, TaskStatus};

use super::*;

/// Goes through all pages; `between` is done after each.
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
        assert!(ids.is_sorted_by(|a, b| a > b), "newest first, and none twice: {ids:?}");
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

pub(crate) fn pages_neither_repeat_nor_skip_a_task(mill: &Mill) {
    let enqueued = mill.store.tasks().enqueue_many(vec![plain(); 12]).unwrap();
    let newest_first: Vec<i64> = enqueued.iter().rev().map(|one| one.id).collect();
    for limit in [1, 5, 6, 11, 12, 13, usize::MAX] {
        let page = |after| mill.store.tasks().list(&TaskFilter::default(), after, limit);
        // New tasks come before the first page; they shift nothing.
        let ids = walk(
            page,
            |task| task.id,
            limit,
            || {
                mill.put();
            },
        );
        assert_eq!(ids[ids.len() - 12..], newest_first);
        assert!(ids.is_sorted_by(|a, b| a > b), "{ids:?}");
        mill.claim_ids().iter().filter(|id| !newest_first.contains(id)).for_each(|id| {
            mill.cancel(*id);
        });
        mill.store.tasks().prune(mill.clock.now(), 100).unwrap();
    }
    let none = mill.store.tasks().list(&TaskFilter::default(), Some(1), 5).unwrap();
    assert_eq!((none.items.len(), none.next_cursor), (0, None));
    assert_eq!(mill.store.tasks().list(&TaskFilter::default(), None, 0).unwrap().items, []);
}

pub(crate) fn tasks_are_filtered(mill: &Mill) {
    let add =
        |queue: &str, kind: &str| mill.add(NewTask { queue: queue.to_owned(), ..NewTask::new(kind, "{}") });
    let ids = [add("q", "a"), add("q", "b"), add("r", "a"), add("q", "a"), add("r", "a")];
    mill.cancel(ids[3]);
    let check = |filter: TaskFilter, want: &[usize]| {
        let page = |after| mill.store.tasks().list(&filter, after, 2);
        let found = walk(page, |task| task.id, 2, || ());
        let want: Vec<i64> = want.iter().map(|nth| ids[*nth]).collect();
        assert_eq!(found, want, "{filter:?}");
    };
    let all = TaskFilter::default;
    let (a, q) = (Some("a".to_owned()), Some("q".to_owned()));
    check(all(), &[4, 3, 2, 1, 0]);
    check(TaskFilter { kind: a.clone(), ..all() }, &[4, 3, 2, 0]);
    check(TaskFilter { queue: q.clone(), ..all() }, &[3, 1, 0]);
    check(TaskFilter { status: Some(TaskStatus::Pending), ..all() }, &[4, 2, 1, 0]);
    check(TaskFilter { status: Some(TaskStatus::Cancelled), ..all() }, &[3]);
    check(TaskFilter { status: Some(TaskStatus::Running), ..all() }, &[]);
    check(TaskFilter { kind: a, queue: q, status: Some(TaskStatus::Pending) }, &[0]);
    check(TaskFilter { kind: Some("A".to_owned()), ..all() }, &[]);
}

/// Buries a task of each.
fn bury(mill: &Mill, each: &[(&str, &str, &str)]) -> Vec<DeadLetter> {
    for (kind, document, reason) in each {
        let task = NewTask { document_id: Some((*document).to_owned()), ..NewTask::new(*kind, "{}") };
        mill.add(task);
        let wanted = ClaimRequest { kind: (*kind).to_owned(), ..mill.wanted(1) };
        let claimed = mill.store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed.remove(0);
        mill.bury(&claimed, reason);
    }
    let mut letters = mill.letters();
    letters.reverse();
    assert_eq!(letters.len(), each.len());
    letters
}

pub(crate) fn pages_neither_repeat_nor_skip_a_letter(mill: &Mill) {
    let letters = bury(mill, &[("a", "d", "x"); 7]);
    let newest_first: Vec<i64> = letters.iter().rev().map(|letter| letter.id).collect();
    assert!(newest_first.is_sorted_by(|a, b| a > b));
    for limit in [1, 2, 6, 7, 8] {
        let page = |after| mill.store.dead_letters().list(&DeadLetterFilter::default(), after, limit);
        assert_eq!(walk(page, |letter| letter.id, limit, || ()), newest_first);
    }
}

pub(crate) fn letters_are_filtered(mill: &Mill) {
    let letters = bury(
        mill,
        &[("a", "d1", "disk full"), ("a", "d2", "timeout"), ("b", "d1", "timeout 100%"), ("b", "", "Full")],
    );
    let check = |filter: DeadLetterFilter, want: &[usize]| {
        let found: Vec<i64> = mill
            .store
            .dead_letters()
            .list(&filter, None, 10)
            .unwrap()
            .items
            .iter()
            .map(|one| one.id)
            .collect();
        let want: Vec<i64> = want.iter().map(|nth| letters[*nth].id).collect();
        assert_eq!(found, want, "{filter:?}");
    };
    let all = DeadLetterFilter::default;
    let text = |text: &str| Some(text.to_owned());
    check(all(), &[3, 2, 1, 0]);
    check(DeadLetterFilter { kind: text("a"), ..all() }, &[1, 0]);
    check(DeadLetterFilter { document_id: text("d1"), ..all() }, &[2, 0]);
    check(DeadLetterFilter { reason: text("time"), ..all() }, &[2, 1]);
    check(DeadLetterFilter { reason: text("%"), ..all() }, &[2]);
    check(DeadLetterFilter { task_id: Some(letters[3].task_id.clone()), ..all() }, &[3]);
    check(DeadLetterFilter { kind: text("b"), document_id: text("d1"), reason: text("out"), ..all() }, &[2]);
    check(DeadLetterFilter { kind: text("c"), ..all() }, &[]);
}

pub(crate) fn counts_are_by_status(mill: &Mill) {
    let check = |want: &[(TaskStatus, u64)]| {
        let mut counts = mill.store.tasks().counts().unwrap();
        counts.retain(|(_, count)| *count > 0);
        counts.sort_unstable();
        assert_eq!(counts, want);
    };
    check(&[]);
    mill.store.tasks().enqueue_many(vec![plain(); 7]).unwrap();
    check(&[(TaskStatus::Pending, 7)]);
    let tasks = mill.turn(6).claimed;
    mill.settle(&tasks[0], Disposition::Completed(None));
    mill.settle(&tasks[1], Disposition::Completed(None));
    mill.settle(&tasks[2], Disposition::Retry(after(HOUR), failure("x")));
    mill.bury(&tasks[3], "x");
    mill.cancel(tasks[4].id);
    use TaskStatus::{Cancelled, Completed, Failed, Pending, Running, Scheduled};
    check(&[(Pending, 1), (Scheduled, 1), (Running, 1), (Completed, 2), (Failed, 1), (Cancelled, 1)]);
}

pub(crate) fn pruning_forgets_old_finished_tasks_only(mill: &Mill) {
    let finish = || {
        mill.store.tasks().enqueue_many(vec![plain(); 3]).unwrap();
        let tasks = mill.claim();
        mill.settle(&tasks[0], Disposition::Completed(None));
        mill.bury(&tasks[1], "x");
        mill.cancel(tasks[2].id);
        [tasks[0].id, tasks[1].id, tasks[2].id]
    };
    let old = finish();
    let running = mill.put_and_claim();
    let scheduled = mill.add(NewTask { run_after: Some(after(9 * HOUR)), ..plain() });
    mill.advance(HOUR);
    let young = finish();
    let pending = mill.put();
    let prune = |limit: usize| mill.store.tasks().prune(after(HOUR / 2), limit).unwrap();
    let left = || -> Vec<i64> { mill.rows().iter().rev().map(|row| row.id).collect() };
    let rest = [running.id, scheduled, young[0], young[1], young[2], pending];
    assert_eq!(prune(0), 0);
    assert_eq!(prune(2), 2);
    assert_eq!(left(), [&old[2..], &rest].concat());
    assert_eq!(prune(usize::MAX), 1);
    assert_eq!(prune(10), 0);
    assert_eq!(left(), rest);
    assert_eq!(mill.store.dead_letters().count().unwrap(), 2, "letters have a life of their own");
    // An id is not used twice.
    mill.cancel(pending);
    mill.advance(HOUR);
    mill.store.tasks().prune(mill.clock.now(), 10).unwrap();
    assert!(mill.put() > pending);
}
