//! A runner under faults: lost claims, a busy store, rows that cannot be read, results that cannot be stored, open
//! breakers, and tasks that crash their worker.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gristmill_jobs::{Runner, RunnerHandle, TaskKind};
use gristmill_pool::clock::{Clock, ManualClock};
use gristmill_pool::{Breaker, Retry, TaskError};
use gristmill_store::lease::WorkerId;
use gristmill_store::tasks::{ClaimRequest, NewTask, TaskStatus};
use gristmill_store::{Durability, Store, UtcTime};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

fn open(folder: &TempDir, clock: impl Into<Clock>, busy: Duration) -> Store {
    let options = Store::options().durability(Durability::Normal).clock(clock).busy_timeout(busy);
    options.open(folder.path().join("work.db")).unwrap()
}

fn fixture() -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, Clock::system(), LONG);
    (folder, store)
}

fn noon() -> UtcTime {
    UtcTime::parse("2026-01-19 12:00:00").unwrap()
}

fn put(store: &Store, payload: &str) -> i64 {
    store.tasks().enqueue(NewTask::new("k", payload)).unwrap().id
}

fn wait_for<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(LONG).expect("nothing was received within 60 s")
}

fn run(store: &Store, kind: TaskKind) -> RunnerHandle {
    Runner::builder(store.clone()).kind(kind).start().unwrap()
}

/// Claims and starts all tasks as a worker that then dies.
fn die_with_all(store: &Store, clock: &ManualClock) {
    let request = ClaimRequest {
        queue: "default".into(),
        kind: "k".into(),
        limit: 9_999,
        max_running: None,
        max_crashed_once: 9_999,
        max_crashed_often: 9_999,
        lease: LONG,
        token: WorkerId::new("dead").token(),
    };
    for task in store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed {
        assert!(store.tasks().start(task.id, &task.token).unwrap());
    }
    clock.advance(LONG);
    store.tasks().recover(3).unwrap();
}

#[test]
fn settling_a_lost_claim_keeps_the_new_claim_of_the_same_task() {
    let clock = ManualClock::at(noon().micros());
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, clock, LONG);
    let id = put(&store, "1");
    let (started, starts) = channel();
    let (end, ends) = channel::<()>();
    let (started, ends) = (Mutex::new(started), Mutex::new(ends));
    let runs = AtomicU32::new(0);
    let kind = TaskKind::new("k", move |task| {
        let first = runs.fetch_add(1, Ordering::SeqCst) == 0;
        started.lock().unwrap().send(())?;
        // The first run ignores its cancellation until the test lets it end.
        let _ = ends.lock().unwrap().recv();
        assert!(first || !task.is_cancelled());
        Ok(())
    });
    let running = Runner::builder(store.clone()).lease(Duration::from_secs(1)).kind(kind.workers(2)).start().unwrap();
    wait_for(&starts);
    // Another program releases the row, and the same runner claims it again.
    let other = rusqlite::Connection::open(store.path()).unwrap();
    other.execute_batch("UPDATE tasks SET status = 'pending', worker_id = NULL, lease_expires_at = NULL").unwrap();
    wait_for(&starts);
    end.send(()).unwrap();
    end.send(()).unwrap();
    running.wait_idle().unwrap();
    let summary = running.stop(LONG).unwrap();
    assert_eq!((summary.completed, summary.lost), (1, 1));
    let task = store.tasks().get(id).unwrap();
    assert_eq!((task.status, task.crashes), (TaskStatus::Completed, 0), "a living worker has not crashed");
}

#[test]
fn poll_is_repeated_when_the_store_was_busy() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, Clock::system(), Duration::from_millis(20));
    let running = run(&store, TaskKind::new("k", |_| Ok(())));
    running.wait_idle().unwrap();
    // Another program enqueues a task, and then holds the write lock.
    let other = rusqlite::Connection::open(store.path()).unwrap();
    other
        .execute_batch(
            "INSERT INTO tasks (kind, payload) VALUES ('k', '1');
             BEGIN IMMEDIATE; UPDATE tasks SET priority = 1;",
        )
        .unwrap();
    std::thread::scope(|scope| {
        let idle = scope.spawn(|| running.wait_idle().unwrap());
        // The store has one writer: once these writes have failed, so has the runner's poll.
        for _ in 0..3 {
            assert!(matches!(store.tasks().cancel(99), Err(gristmill_store::Error::Busy(_))));
        }
        other.execute_batch("COMMIT").unwrap();
        idle.join().unwrap();
    });
    assert_eq!(store.tasks().get(1).unwrap().status, TaskStatus::Completed);
}

#[test]
fn unreadable_row_becomes_a_dead_letter_and_others_run() {
    let (_folder, store) = fixture();
    let other = rusqlite::Connection::open(store.path()).unwrap();
    other
        .execute_batch(
            "INSERT INTO tasks (kind, payload, priority) VALUES ('k', '1', 3000000000);
             INSERT INTO tasks (kind, payload) VALUES ('k', x'5b5d');
             INSERT INTO wal_maintenance_jobs (execute_after) VALUES ('2026-01-01T00:00:00');",
        )
        .unwrap();
    let good = put(&store, "1");
    let running = run(&store, TaskKind::new("k", |_| Ok(())));
    running.wait_idle().unwrap();
    running.stop(LONG).unwrap();
    assert_eq!(store.tasks().get(good).unwrap().status, TaskStatus::Completed);
    let dead_letters = store.dead_letters().list(&Default::default(), None, 9).unwrap().items;
    assert!(!dead_letters.is_empty());
    assert!(
        dead_letters.iter().all(|dead_letter| dead_letter.failure_reason.contains("cannot read the row")),
        "{dead_letters:?}"
    );
}

#[test]
fn task_fails_when_its_result_is_nested_too_deeply() {
    let (_folder, store) = fixture();
    let (bad, good) = (put(&store, "1"), put(&store, "2"));
    let kind = TaskKind::new("k", |task| {
        if task.parse::<u32>()? == 2 {
            return Ok(());
        }
        let mut value = serde_json::json!(1);
        for _ in 0..600 {
            value = serde_json::json!([value]);
        }
        task.set_result(&value)
    });
    let running = run(&store, kind);
    running.wait_idle().unwrap();
    running.stop(LONG).unwrap();
    let status = |id| store.tasks().get(id).unwrap().status;
    assert_eq!((status(bad), status(good)), (TaskStatus::Failed, TaskStatus::Completed));
}

#[test]
fn tasks_do_not_wait_for_slow_clean_ups() {
    let (_folder, store) = fixture();
    let tasks = (0..3_000).map(|_| NewTask::new("k", "1")).collect();
    store.tasks().enqueue_many(tasks).unwrap();
    let (end, ends) = channel::<()>();
    let ends = Mutex::new(ends);
    let kind = TaskKind::new("k", |_| Err(TaskError::permanent("no"))).on_exhausted(move |_| {
        let _ = ends.lock().unwrap().recv();
        Ok(())
    });
    let running = run(&store, kind);
    running.wait_idle().unwrap();
    assert_eq!(store.dead_letters().count().unwrap(), 3_000);
    drop(end);
    running.stop(LONG).unwrap();
}

#[test]
fn tasks_are_not_claimed_while_the_breaker_is_open() {
    let (_folder, store) = fixture();
    let tasks = (0..2_000).map(|_| NewTask::new("k", "1")).collect();
    store.tasks().enqueue_many(tasks).unwrap();
    let kind = TaskKind::new("k", |_| Err(TaskError::transient("no route")));
    let kind = kind.workers(1).breaker(Breaker::new(1, LONG)).retry(Retry::linear(9, LONG));
    let running = run(&store, kind);
    running.wait_no_due_tasks().unwrap();
    let summary = running.stop(LONG).unwrap();
    let pool = &running.stats().kinds[0].pool;
    assert_eq!((pool.completed, pool.failed), (0, 1), "only the task that ran");
    assert_eq!(summary.retried, 1);
    assert!(summary.released < 100, "{summary:?}");
}

#[test]
fn tasks_are_not_claimed_while_the_probe_of_a_half_open_breaker_runs() {
    let (_folder, store) = fixture();
    store.tasks().enqueue_many((0..500).map(|_| NewTask::new("k", "1")).collect()).unwrap();
    let (started, starts) = channel();
    let (end, ends) = channel::<()>();
    let (started, ends, runs) = (Mutex::new(started), Mutex::new(ends), AtomicU32::new(0));
    let kind = TaskKind::new("k", move |_| match runs.fetch_add(1, Ordering::SeqCst) {
        0 => Err(TaskError::transient("no route")),
        1 => {
            started.lock().unwrap().send(())?;
            Ok(ends.lock().unwrap().recv()?)
        }
        _ => Ok(()),
    });
    let breaker = Breaker::new(1, Duration::from_millis(50));
    let running = run(&store, kind.workers(2).breaker(breaker).retry(Retry::linear(9, LONG)));
    wait_for(&starts);
    // Tasks that were claimed together with the probe have been released after this.
    let other = run(&store, TaskKind::new("other", |_| Ok(())));
    for _ in 0..20 {
        store.tasks().enqueue(NewTask::new("other", "1")).unwrap();
        other.wait_idle().unwrap();
    }
    let released = running.stats().kinds[0].tasks.released;
    end.send(()).unwrap();
    running.stop(LONG).unwrap();
    assert!(released < 10, "{released} tasks were claimed and released");
}

#[test]
fn tasks_that_crashed_twice_run_one_at_a_time_across_queues_and_kinds() {
    let clock = ManualClock::at(noon().micros());
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, clock.clone(), LONG);
    for (queue, kind) in [("default", "k"), ("other", "k"), ("default", "l"), ("other", "l")] {
        store.tasks().enqueue(NewTask { queue: queue.into(), ..NewTask::new(kind, "1") }).unwrap();
    }
    for _ in 0..2 {
        let worker = WorkerId::new("dead");
        let request = |queue: &str, kind: &str| ClaimRequest {
            queue: queue.into(),
            kind: kind.into(),
            limit: 9,
            max_running: None,
            max_crashed_once: 9,
            max_crashed_often: 9,
            lease: LONG,
            token: worker.token(),
        };
        let requests =
            vec![request("default", "k"), request("other", "k"), request("default", "l"), request("other", "l")];
        let claimed = store.tasks().settle_and_claim(vec![], requests).unwrap().claimed;
        assert_eq!(claimed.len(), 4);
        claimed.iter().for_each(|task| assert!(store.tasks().start(task.id, &task.token).unwrap()));
        clock.advance(LONG);
        store.tasks().recover(3).unwrap();
    }
    let (now, peak) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let kind = |name: &str| {
        let (now, peak) = (now.clone(), peak.clone());
        TaskKind::new(name, move |task| {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            task.wait_cancelled(Duration::from_millis(20));
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
        .workers(4)
    };
    let runner = Runner::builder(store.clone()).queues(["default", "other"]).kind(kind("k")).kind(kind("l"));
    let running = runner.start().unwrap();
    running.wait_idle().unwrap();
    assert_eq!(peak.load(Ordering::SeqCst), 1, "tasks that crashed twice run one at a time");
    assert_eq!(store.tasks().counts().unwrap(), [(TaskStatus::Completed, 4)]);
}

#[test]
fn tasks_that_crashed_twice_with_others_run_one_at_a_time() {
    let clock = ManualClock::at(noon().micros());
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, clock.clone(), LONG);
    for n in 0..100 {
        put(&store, &n.to_string());
    }
    // Two workers start all tasks and die.
    die_with_all(&store, &clock);
    die_with_all(&store, &clock);
    let (now, peak) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (running_now, together) = (now, peak.clone());
    let kind = TaskKind::new("k", move |_| {
        together.fetch_max(running_now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::yield_now();
        running_now.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    });
    let running = run(&store, kind.workers(4));
    running.wait_idle().unwrap();
    assert_eq!(peak.load(Ordering::SeqCst), 1, "tasks that crashed twice run one at a time");
    assert_eq!(store.tasks().counts().unwrap(), [(TaskStatus::Completed, 100)]);
}

#[test]
fn stop_keeps_its_deadline_when_the_store_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, Clock::system(), Duration::from_millis(10));
    put(&store, "1");
    let (started, starts) = channel();
    let (end, ends) = channel::<()>();
    let (started, ends) = (Mutex::new(started), Mutex::new(ends));
    let kind = TaskKind::new("k", move |_| {
        started.lock().unwrap().send(())?;
        let _ = ends.lock().unwrap().recv();
        Ok(())
    });
    let running = run(&store, kind);
    wait_for(&starts);
    let other = rusqlite::Connection::open(store.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE; UPDATE tasks SET priority = 1").unwrap();
    drop(end);
    let error = running.stop(Duration::from_millis(300)).unwrap_err();
    assert!(error.to_string().contains("busy"), "{error}");
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(
        store.tasks().get(1).unwrap().status,
        TaskStatus::Running,
        "recovery releases it when its lease expires"
    );
}
