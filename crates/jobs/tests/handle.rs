//! The handle of a runner: stopping, waiting and dropping, outside and inside of its own handlers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gristmill_jobs::{Error, Runner, RunnerHandle, TaskKind};
use gristmill_pool::clock::ManualClock;
use gristmill_pool::{Breaker, Retry, TaskError};
use gristmill_store::tasks::{NewTask, TaskRow, TaskStatus};
use gristmill_store::{Durability, Store, UtcTime};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

fn open() -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::options().durability(Durability::Normal).open(folder.path().join("work.db")).unwrap();
    (folder, store)
}

fn enqueue(store: &Store, kind: &str) -> i64 {
    store.tasks().enqueue(NewTask::new(kind, "1")).unwrap().id
}

fn task(store: &Store, id: i64) -> TaskRow {
    store.tasks().get(id).unwrap()
}

fn wait_for<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(LONG).expect("nothing was received within 60 s")
}

/// The pools' clock does not advance: a stop that waited for a timeout of each pool would never return.
#[test]
fn stop_returns_at_its_deadline_when_handlers_are_stuck() {
    let (_folder, store) = open();
    let (started, has_started) = channel();
    let release = Arc::new(AtomicBool::new(false));
    let mut builder = Runner::builder(store.clone()).clock(ManualClock::new());
    let kinds = ["a", "b", "c"];
    for kind in kinds {
        let (started, release) = (started.clone(), release.clone());
        builder = builder.kind(TaskKind::new(kind, move |_| {
            started.send(()).unwrap();
            while !release.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Ok(())
        }));
    }
    let ids = kinds.map(|kind| enqueue(&store, kind));
    let running = builder.start().unwrap();
    kinds.iter().for_each(|_| wait_for(&has_started));
    let (stopped, has_stopped) = channel();
    std::thread::spawn(move || stopped.send(running.stop(Duration::from_millis(10))).unwrap());
    let summary = wait_for(&has_stopped).unwrap();
    assert_eq!(summary.released, 3, "{summary:?}");
    assert!(ids.iter().all(|id| task(&store, *id).status == TaskStatus::Pending));
    release.store(true, Ordering::SeqCst);
}

/// A call that a handler makes with the handle of its own runner.
type Call = fn(RunnerHandle) -> Option<Error>;

/// The runner ends after the handler.
#[test]
fn drop_stop_and_wait_idle_do_not_deadlock_in_a_handler_of_the_same_runner() {
    let calls: [(&str, Call); 3] = [
        ("drop", |running| {
            drop(running);
            None
        }),
        ("stop", |running| running.stop(LONG).err()),
        ("wait_idle", |running| running.wait_idle().err()),
    ];
    for (name, call) in calls {
        let (_folder, store) = open();
        let slot: Arc<Mutex<Option<RunnerHandle>>> = Arc::default();
        let (handle_sent, has_handle) = channel();
        let (done, is_done) = channel();
        let has_handle = Mutex::new(has_handle);
        let kind = TaskKind::new("k", {
            let slot = slot.clone();
            move |_| {
                wait_for(&has_handle.lock().unwrap());
                let running = slot.lock().unwrap().take().unwrap();
                done.send(call(running)).unwrap();
                Ok(())
            }
        });
        let id = enqueue(&store, "k");
        *slot.lock().unwrap() = Some(Runner::builder(store.clone()).kind(kind.workers(1)).start().unwrap());
        handle_sent.send(()).unwrap();
        let error = wait_for(&is_done);
        if name != "drop" {
            assert!(matches!(error, Some(Error::CalledInHandler(_))), "{name}: {error:?}");
        }
        // The runner stops in the background, and stores the outcome of the handler.
        while task(&store, id).status != TaskStatus::Completed {
            std::thread::yield_now();
        }
    }
}

#[test]
fn wait_idle_waits_for_retries_and_not_for_later_first_runs() {
    let (_folder, store) = open();
    let breaker = Breaker::new(1, Duration::from_millis(50));
    let policy = Retry::linear(3, Duration::from_millis(300)).without_jitter();
    let flaky = TaskKind::new("flaky", |task| match task.attempt() {
        1 | 2 => Err(TaskError::transient("busy")),
        _ => Ok(()),
    });
    let guarded = TaskKind::new("guarded", |task| match (task.payload(), task.attempt()) {
        ("1", 1) => Err(TaskError::transient("down")),
        _ => Ok(()),
    });
    let flaked = enqueue(&store, "flaky");
    let refused = [enqueue(&store, "guarded"), enqueue(&store, "guarded")];
    let tomorrow = store.now().plus(Duration::from_secs(86_400));
    let later = NewTask { run_after: Some(tomorrow), ..NewTask::new("flaky", "1") };
    let later = store.tasks().enqueue(later).unwrap().id;
    let other = NewTask { run_after: Some(tomorrow), ..NewTask::new("other", "1") };
    let other = store.tasks().enqueue(other).unwrap().id;
    let running = Runner::builder(store.clone())
        .kind(flaky.retry(policy))
        .kind(guarded.retry(policy).breaker(breaker).workers(1))
        .start()
        .unwrap();
    running.wait_idle().unwrap();
    assert_eq!(task(&store, flaked).status, TaskStatus::Completed);
    assert!(refused.iter().all(|id| task(&store, *id).status == TaskStatus::Completed));
    assert_eq!(task(&store, later).status, TaskStatus::Scheduled);
    assert_eq!(task(&store, other).status, TaskStatus::Scheduled);
    running.stop(LONG).unwrap();
}

#[test]
fn wait_no_due_tasks_does_not_wait_for_retries() {
    let (_folder, store) = open();
    let policy = Retry::linear(2, Duration::from_secs(3_600)).without_jitter();
    let kind = TaskKind::new("k", |_| Err(TaskError::transient("busy"))).retry(policy);
    let id = enqueue(&store, "k");
    let running = Runner::builder(store.clone()).kind(kind).start().unwrap();
    running.wait_no_due_tasks().unwrap();
    assert_eq!((task(&store, id).status, task(&store, id).attempts), (TaskStatus::Scheduled, 1));
    assert!(task(&store, id).run_after > Some(UtcTime::from_micros(0)));
    running.stop(LONG).unwrap();
}

#[test]
fn start_fails_when_a_kind_has_a_timeout_of_zero() {
    let (_folder, store) = open();
    let exec = gristmill_jobs::exec::ExecSettings { timeout: Some(Duration::ZERO), ..Default::default() };
    for kind in [TaskKind::new("k", |_| Ok(())).timeout(Duration::ZERO), gristmill_jobs::exec::kind(exec)] {
        let name = kind.name().to_owned();
        let error = Runner::builder(store.clone()).kind(kind).start().unwrap_err();
        assert!(matches!(error, Error::Setting(_)), "{error:?}");
        assert!(error.to_string().contains(&format!("the kind {name:?} has a timeout of 0s")), "{error}");
    }
}
