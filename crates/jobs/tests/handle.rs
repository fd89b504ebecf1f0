//! The handle of a runner: stopped, waited for and dropped, from outside and from inside its own handlers.

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
    receiver.recv_timeout(LONG).expect("it should have happened long ago")
}

/// The pools' clock stands still: a stop that waited for a time of its own for each kind would never return.
#[test]
fn stop_waits_for_no_stuck_kind_beyond_its_deadline() {
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

/// What a handler does with the handle of its own runner.
type Act = fn(RunnerHandle) -> Option<Error>;

/// None of them waits for the handler itself; the runner ends when the handler has.
#[test]
fn a_handler_that_drops_or_stops_its_own_runner_does_not_wait_for_itself() {
    let acts: [(&str, Act); 3] = [
        ("drop", |running| {
            drop(running);
            None
        }),
        ("stop", |running| running.stop(LONG).err()),
        ("wait_idle", |running| running.wait_idle().err()),
    ];
    for (name, act) in acts {
        let (_folder, store) = open();
        let slot: Arc<Mutex<Option<RunnerHandle>>> = Arc::default();
        let (handed, has_handed) = channel();
        let (done, is_done) = channel();
        let has_handed = Mutex::new(has_handed);
        let kind = TaskKind::new("k", {
            let slot = slot.clone();
            move |_| {
                wait_for(&has_handed.lock().unwrap());
                let running = slot.lock().unwrap().take().unwrap();
                done.send(act(running)).unwrap();
                Ok(())
            }
        });
        let id = enqueue(&store, "k");
        *slot.lock().unwrap() = Some(Runner::builder(store.clone()).kind(kind.workers(1)).start().unwrap());
        handed.send(()).unwrap();
        let error = wait_for(&is_done);
        if name != "drop" {
            assert!(matches!(error, Some(Error::Inside(_))), "{name}: {error:?}");
        }
        // The runner stops behind its handler's back, and writes down how it ended.
        while task(&store, id).status != TaskStatus::Completed {
            std::thread::yield_now();
        }
    }
}

#[test]
fn wait_idle_waits_for_scheduled_retries_and_not_for_tasks_of_a_later_time() {
    let (_folder, store) = open();
    let breaker = Breaker::new(1, Duration::from_millis(50));
    let policy = Retry::linear(3, Duration::from_millis(300)).without_jitter();
    let flaky = TaskKind::new("flaky", |work| match work.attempt() {
        1 | 2 => Err(TaskError::transient("busy")),
        _ => Ok(()),
    });
    let guarded = TaskKind::new("guarded", |work| match (work.payload(), work.attempt()) {
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

/// `wait_caught_up` is the weaker one: it leaves retries to later.
#[test]
fn wait_caught_up_leaves_retries_to_their_time() {
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
fn a_kind_with_a_timeout_of_zero_is_refused() {
    let (_folder, store) = open();
    let exec = gristmill_jobs::exec::ExecSettings { timeout: Some(Duration::ZERO), ..Default::default() };
    for kind in [TaskKind::new("k", |_| Ok(())).timeout(Duration::ZERO), gristmill_jobs::exec::kind(exec)] {
        let name = kind.name().to_owned();
        let error = Runner::builder(store.clone()).kind(kind).start().unwrap_err();
        assert!(matches!(error, Error::Setting(_)), "{error:?}");
        assert!(error.to_string().contains(&format!("the kind {name:?} has a timeout of 0s")), "{error}");
    }
}
