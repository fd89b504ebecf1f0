//! Several stores on one database: shared tasks, watchers, and closing.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;

use gristmill_store::ChangeWatcher;
use gristmill_store::tasks::{ClaimRequest, Disposition, Enqueued, TaskStatus};

use super::*;

/// Longer than any wait in these tests.
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn two_stores_see_the_same_tasks(fixture: &Fixture) {
    let other = fixture.open_again();
    let id = fixture.enqueue_plain();
    assert_eq!(other.tasks().get(id).unwrap(), fixture.row(id));
    let task = other.tasks().settle_and_claim(vec![], vec![fixture.claim_request(1)]).unwrap().claimed.remove(0);
    assert_eq!((task.id, fixture.status(id)), (id, TaskStatus::Running));
    // A token is valid in every store.
    fixture.save_checkpoint(&task, "a", "1").unwrap();
    assert_eq!(fixture.heartbeat(&task), HeartbeatResult::Kept);
    assert_eq!(other.checkpoints().list(id).unwrap().len(), 1);
    let dead_letter = fixture.dead_letter(&task, "x");
    assert_eq!(other.dead_letters().get(dead_letter).unwrap().task_id, id.to_string());
    let Enqueued { id, .. } = other.dead_letters().retry(dead_letter, plain_task()).unwrap();
    assert_eq!(fixture.claim_one().id, id);
    other.tasks().cancel(id).unwrap();
    fixture.cancel(id);
    assert_eq!(fixture.status(id), TaskStatus::Cancelled);
}

pub(crate) fn two_stores_never_claim_the_same_task(fixture: &Fixture) {
    const TASKS: usize = 400;
    let stores = [fixture.store.clone(), fixture.open_again(), fixture.open_again()];
    fixture.store.tasks().enqueue_many(vec![plain_task(); TASKS]).unwrap();
    let (send, taken) = mpsc::channel();
    thread::scope(|scope| {
        for (nth, store) in stores.iter().cycle().take(6).enumerate() {
            let send = send.clone();
            let worker = WorkerId::new(&nth.to_string());
            scope.spawn(move || {
                loop {
                    let request = ClaimRequest {
                        queue: "default".to_owned(),
                        kind: KIND.to_owned(),
                        limit: 7,
                        max_running: None,
                        max_crashed_once: usize::MAX,
                        max_crashed_often: usize::MAX,
                        lease: LEASE,
                        token: worker.token(),
                    };
                    let claimed = store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed;
                    if claimed.is_empty() {
                        break;
                    }
                    let ids: Vec<i64> = claimed.iter().map(|task| task.id).collect();
                    let done: Vec<TaskUpdate> =
                        claimed.iter().map(|task| task_update(task, Disposition::Completed(None))).collect();
                    let results = store.tasks().settle_and_claim(done, vec![]).unwrap().results;
                    assert!(results.iter().all(|one| *one == UpdateResult::Done));
                    send.send(ids).unwrap();
                }
            });
        }
    });
    drop(send);
    let taken: Vec<i64> = taken.into_iter().flatten().collect();
    assert_eq!(taken.len(), TASKS);
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>().len(), TASKS);
    assert_eq!(fixture.store.tasks().counts().unwrap(), [(TaskStatus::Completed, TASKS as u64)]);
}

pub(crate) fn unique_key_holds_across_stores(fixture: &Fixture) {
    let stores = [fixture.store.clone(), fixture.open_again()];
    let enqueued: Vec<Enqueued> = thread::scope(|scope| {
        let threads: Vec<_> = stores
            .iter()
            .cycle()
            .take(8)
            .map(|store| scope.spawn(|| store.tasks().enqueue(task_with_key("k")).unwrap()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(enqueued.iter().filter(|one| one.created).count(), 1);
    assert!(enqueued.iter().all(|one| one.id == enqueued[0].id));
    assert_eq!(fixture.rows().len(), 1);
}

/// Asserts that `action` ends a wait that has begun or is about to begin, and that the next wait needs another call.
fn check_wakes(fixture: &Fixture, action: impl Fn()) {
    let mut watcher = fixture.store.watch().unwrap();
    for _ in 0..3 {
        let (waiting, is_waiting) = mpsc::channel();
        let waiter = thread::spawn(move || {
            waiting.send(()).unwrap();
            let woken = watcher.wait(LONG);
            (watcher, woken)
        });
        is_waiting.recv().unwrap();
        action();
        let (returned, woken) = waiter.join().unwrap();
        assert_eq!(woken, Ok(true));
        watcher = returned;
        // A write may wake twice: by the notifier and by the poll.
        let _pending = watcher.wait(Duration::ZERO).unwrap();
        assert_eq!(watcher.wait(Duration::ZERO), Ok(false));
    }
}

pub(crate) fn watcher_wakes_on_a_write_of_its_own_store(fixture: &Fixture) {
    check_wakes(fixture, || {
        fixture.enqueue_plain();
    });
    let scheduled = fixture.enqueue(NewTask { run_after: Some(after(HOUR)), ..plain_task() });
    let mut watcher = fixture.store.watch().unwrap();
    fixture.store.tasks().run_now(scheduled).unwrap();
    assert_eq!(watcher.wait(LONG), Ok(true));
}

pub(crate) fn watcher_wakes_on_a_write_of_another_store(fixture: &Fixture) {
    let other = fixture.open_again();
    check_wakes(fixture, || {
        other.tasks().enqueue(plain_task()).unwrap();
    });
}

pub(crate) fn watcher_wakes_when_wake_is_called(fixture: &Fixture) {
    check_wakes(fixture, || ChangeWatcher::wake(&fixture.store));
}

pub(crate) fn watcher_does_not_wake_without_a_write(fixture: &Fixture) {
    fixture.enqueue_plain();
    let mut watcher = fixture.store.watch().unwrap();
    assert_eq!(watcher.wait(Duration::ZERO), Ok(false), "writes before the watcher was created do not count");
    assert_eq!(watcher.wait(Duration::from_millis(1)), Ok(false));
    // Reading does not wake the watcher.
    fixture.rows();
    assert_eq!(watcher.wait(Duration::ZERO), Ok(false));
    // A write between two waits is not missed.
    fixture.enqueue_plain();
    assert_eq!(watcher.wait(Duration::ZERO), Ok(true));
}

pub(crate) fn closed_store_refuses_every_write(fixture: &Fixture) {
    let scheduled = fixture.enqueue(NewTask { run_after: Some(after(HOUR)), ..plain_task() });
    let task = fixture.enqueue_and_claim();
    let dead_letter = fixture.dead_letter(&task, "x");
    let task = fixture.enqueue_and_claim();
    let (rows, dead_letters) = (fixture.rows(), fixture.dead_letters());
    let (store, clone) = (&fixture.store, fixture.store.clone());
    store.close();
    clone.close();
    let token = task.token.clone();
    let closed = |result: Result<(), Error>| assert_eq!(result, Err(Error::Closed));
    closed(store.tasks().enqueue(plain_task()).map(drop));
    closed(clone.tasks().enqueue(task_with_key("k")).map(drop));
    closed(store.tasks().enqueue_many(vec![plain_task()]).map(drop));
    closed(store.tasks().settle_and_claim(vec![task_update(&task, Disposition::Released)], vec![]).map(drop));
    closed(store.tasks().settle_and_claim(vec![], vec![fixture.claim_request(1)]).map(drop));
    closed(store.tasks().heartbeat(vec![(task.id, token)], LEASE).map(drop));
    closed(store.tasks().recover(1).map(drop));
    closed(store.tasks().cancel(task.id).map(drop));
    closed(store.tasks().run_now(scheduled));
    closed(store.tasks().prune(after(HOUR), 1).map(drop));
    closed(fixture.save_checkpoint(&task, "a", "1"));
    closed(store.checkpoints().delete_orphans(after(HOUR)).map(drop));
    closed(store.dead_letters().retry(dead_letter, plain_task()).map(drop));
    closed(store.dead_letters().discard(dead_letter));
    closed(store.dead_letters().mark_cleaned_up(dead_letter));
    let other = fixture.open_again();
    assert_eq!(other.tasks().list(&TaskFilter::default(), None, 10).unwrap().items, rows);
    assert_eq!(other.dead_letters().list(&DeadLetterFilter::default(), None, 10).unwrap().items, dead_letters);
    other.tasks().cancel(task.id).unwrap();
}

pub(crate) fn acknowledged_write_survives_closing_the_store(fixture: &Fixture) {
    let first = fixture.open_again();
    let id = first.tasks().enqueue(plain_task()).unwrap().id;
    first.close();
    drop(first);
    let second = fixture.open_again();
    assert_eq!(second.tasks().get(id).unwrap().status, TaskStatus::Pending);
}
