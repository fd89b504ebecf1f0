//! Several stores on one database, waiting for each other's work, and closing.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;

use gristmill_store::ChangeWatcher;
use gristmill_store::tasks::{ClaimRequest, Disposition, Enqueued, TaskStatus};

use super::*;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn two_stores_see_each_others_work(mill: &Mill) {
    let other = mill.again();
    let id = mill.put();
    assert_eq!(other.tasks().get(id).unwrap(), mill.row(id));
    let task = other.tasks().settle_and_claim(vec![], vec![mill.wanted(1)]).unwrap().claimed.remove(0);
    assert_eq!((task.id, mill.status(id)), (id, TaskStatus::Running));
    // A token is good in whichever store it is shown.
    mill.note(&task, "a", "1").unwrap();
    assert_eq!(mill.beat(&task), HeartbeatResult::Kept);
    assert_eq!(other.checkpoints().list(id).unwrap().len(), 1);
    let letter = mill.bury(&task, "x");
    assert_eq!(other.dead_letters().get(letter).unwrap().task_id, id.to_string());
    let Enqueued { id, .. } = other.dead_letters().retry(letter, plain()).unwrap();
    assert_eq!(mill.claim_one().id, id);
    other.tasks().cancel(id).unwrap();
    mill.cancel(id);
    assert_eq!(mill.status(id), TaskStatus::Cancelled);
}

pub(crate) fn two_stores_never_claim_the_same_task(mill: &Mill) {
    const TASKS: usize = 400;
    let stores = [mill.store.clone(), mill.again(), mill.again()];
    mill.store.tasks().enqueue_many(vec![plain(); TASKS]).unwrap();
    let (send, taken) = mpsc::channel();
    thread::scope(|scope| {
        for (nth, store) in stores.iter().cycle().take(6).enumerate() {
            let send = send.clone();
            let worker = WorkerId::new(&nth.to_string());
            scope.spawn(move || {
                loop {
                    let wanted = ClaimRequest {
                        queue: "default".to_owned(),
                        kind: KIND.to_owned(),
                        limit: 7,
                        max_running: None,
                        max_crashed_once: usize::MAX,
                        max_crashed_often: usize::MAX,
                        lease: LEASE,
                        token: worker.token(),
                    };
                    let claimed = store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed;
                    if claimed.is_empty() {
                        break;
                    }
                    let ids: Vec<i64> = claimed.iter().map(|task| task.id).collect();
                    let done: Vec<TaskUpdate> =
                        claimed.iter().map(|task| settlement(task, Disposition::Completed(None))).collect();
                    let settled = store.tasks().settle_and_claim(done, vec![]).unwrap().results;
                    assert!(settled.iter().all(|one| *one == UpdateResult::Done));
                    send.send(ids).unwrap();
                }
            });
        }
    });
    drop(send);
    let taken: Vec<i64> = taken.into_iter().flatten().collect();
    assert_eq!(taken.len(), TASKS);
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>().len(), TASKS);
    assert_eq!(mill.store.tasks().counts().unwrap(), [(TaskStatus::Completed, TASKS as u64)]);
}

pub(crate) fn a_key_holds_across_stores(mill: &Mill) {
    let stores = [mill.store.clone(), mill.again()];
    let enqueued: Vec<Enqueued> = thread::scope(|scope| {
        let threads: Vec<_> = stores
            .iter()
            .cycle()
            .take(8)
            .map(|store| scope.spawn(|| store.tasks().enqueue(keyed("k")).unwrap()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(enqueued.iter().filter(|one| one.created).count(), 1);
    assert!(enqueued.iter().all(|one| one.id == enqueued[0].id));
    assert_eq!(mill.rows().len(), 1);
}

/// A wait that has begun, or is about to, ends when `act` is done; and another one only after another act.
fn check_wakes(mill: &Mill, act: impl Fn()) {
    let mut watch = mill.store.watch().unwrap();
    for _ in 0..3 {
        let (waiting, is_waiting) = mpsc::channel();
        let waiter = thread::spawn(move || {
            waiting.send(()).unwrap();
            let woken = watch.wait(LONG);
            (watch, woken)
        });
        is_waiting.recv().unwrap();
        act();
        let (same, woken) = waiter.join().unwrap();
        assert_eq!(woken, Ok(true));
        watch = same;
        // An act may be told in two parts; both are over now.
        let _told = watch.wait(Duration::ZERO).unwrap();
        assert_eq!(watch.wait(Duration::ZERO), Ok(false));
    }
}

pub(crate) fn a_watch_wakes_for_our_own_write(mill: &Mill) {
    check_wakes(mill, || {
        mill.put();
    });
    let scheduled = mill.add(NewTask { run_after: Some(after(HOUR)), ..plain() });
    let mut watch = mill.store.watch().unwrap();
    mill.store.tasks().run_now(scheduled).unwrap();
    assert_eq!(watch.wait(LONG), Ok(true));
}

pub(crate) fn a_watch_wakes_for_another_stores_write(mill: &Mill) {
    let other = mill.again();
    check_wakes(mill, || {
        other.tasks().enqueue(plain()).unwrap();
    });
}

pub(crate) fn a_watch_wakes_when_called(mill: &Mill) {
    check_wakes(mill, || ChangeWatcher::wake(&mill.store));
}

pub(crate) fn a_watch_rests_when_nothing_happens(mill: &Mill) {
    mill.put();
    let mut watch = mill.store.watch().unwrap();
    assert_eq!(watch.wait(Duration::ZERO), Ok(false), "what was there before the watch is no news");
    assert_eq!(watch.wait(Duration::from_millis(1)), Ok(false));
    // Reading is nothing.
    mill.rows();
    assert_eq!(watch.wait(Duration::ZERO), Ok(false));
    // And what happened between two waits is not missed.
    mill.put();
    assert_eq!(watch.wait(Duration::ZERO), Ok(true));
}

pub(crate) fn a_closed_store_refuses_every_write(mill: &Mill) {
    let scheduled = mill.add(NewTask { run_after: Some(after(HOUR)), ..plain() });
    let task = mill.put_and_claim();
    let letter = mill.bury(&task, "x");
    let task = mill.put_and_claim();
    let (rows, letters) = (mill.rows(), mill.letters());
    let (store, clone) = (&mill.store, mill.store.clone());
    store.close();
    clone.close();
    let token = task.token.clone();
    let closed = |result: Result<(), Error>| assert_eq!(result, Err(Error::Closed));
    closed(store.tasks().enqueue(plain()).map(drop));
    closed(clone.tasks().enqueue(keyed("k")).map(drop));
    closed(store.tasks().enqueue_many(vec![plain()]).map(drop));
    closed(store.tasks().settle_and_claim(vec![settlement(&task, Disposition::Released)], vec![]).map(drop));
    closed(store.tasks().settle_and_claim(vec![], vec![mill.wanted(1)]).map(drop));
    closed(store.tasks().heartbeat(vec![(task.id, token)], LEASE).map(drop));
    closed(store.tasks().recover(1).map(drop));
    closed(store.tasks().cancel(task.id).map(drop));
    closed(store.tasks().run_now(scheduled));
    closed(store.tasks().prune(after(HOUR), 1).map(drop));
    closed(mill.note(&task, "a", "1"));
    closed(store.checkpoints().delete_orphans(after(HOUR)).map(drop));
    closed(store.dead_letters().retry(letter, plain()).map(drop));
    closed(store.dead_letters().discard(letter));
    closed(store.dead_letters().mark_cleaned_up(letter));
    let other = mill.again();
    assert_eq!(other.tasks().list(&TaskFilter::default(), None, 10).unwrap().items, rows);
    assert_eq!(other.dead_letters().list(&DeadLetterFilter::default(), None, 10).unwrap().items, letters);
    other.tasks().cancel(task.id).unwrap();
}

pub(crate) fn what_was_written_outlives_the_store(mill: &Mill) {
    let first = mill.again();
    let id = first.tasks().enqueue(plain()).unwrap().id;
    first.close();
    drop(first);
    let second = mill.again();
    assert_eq!(second.tasks().get(id).unwrap().status, TaskStatus::Pending);
}
