//! Cancelling tasks that a runner holds: a task is cancelled when its run has ended, and not before. Leases are a day
//! long, so the runner does not learn of the cancellation from a heartbeat.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use gristmill_jobs::{Runner, RunnerHandle, TaskContext, TaskKind};
use gristmill_pool::{TaskError, TaskResult};
use gristmill_store::jobs::{JobKind, JobStatus};
use gristmill_store::tasks::{CancelOutcome, Enqueued, NewTask, TaskStatus};
use gristmill_store::{Durability, Store};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(86_400);

struct Fixture {
    folder: TempDir,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder);
        Fixture { folder, store }
    }

    /// Opens the same file again, as another process does.
    fn other(&self) -> Store {
        open(&self.folder)
    }

    fn put(&self) -> Enqueued {
        let task = NewTask { unique_key: Some("key".to_owned()), ..NewTask::new("k", "1") };
        self.store.tasks().enqueue(task).unwrap()
    }

    fn run(&self, handler: impl Fn(&TaskContext<'_>) -> TaskResult<()> + Send + Sync + 'static) -> RunnerHandle {
        let kind = TaskKind::new("k", handler).workers(1);
        Runner::builder(self.store.clone()).lease(LEASE).kind(kind).start().unwrap()
    }

    fn wait_until(&self, id: i64, status: TaskStatus) {
        let mut watch = self.store.watch().unwrap();
        while self.store.tasks().get(id).unwrap().status != status {
            watch.wait(LONG).unwrap();
        }
    }
}

fn open(folder: &TempDir) -> Store {
    Store::options().durability(Durability::Normal).open(folder.path().join("work.db")).unwrap()
}

fn wait_for<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(LONG).expect("nothing was received within 60 s")
}

/// A handler that reports its start, waits until it is cancelled, reports that, and ends when the test sends a message.
fn gated(
    end: fn() -> TaskResult<()>,
) -> (impl Fn(&TaskContext<'_>) -> TaskResult<()>, Receiver<&'static str>, Sender<()>) {
    let (report, reports) = channel();
    let (go, may_go) = channel();
    let (report, may_go) = (Mutex::new(report), Mutex::new(may_go));
    let handler = move |task: &TaskContext<'_>| {
        report.lock().unwrap().send("started").unwrap();
        assert!(task.wait_cancelled(LONG));
        report.lock().unwrap().send("cancelled").unwrap();
        wait_for(&may_go.lock().unwrap());
        end()
    };
    (handler, reports, go)
}

#[test]
fn cancelled_task_keeps_its_unique_key_until_its_run_has_ended() {
    for (end, status) in [
        ((|| Err(TaskError::cancelled())) as fn() -> TaskResult<()>, TaskStatus::Cancelled),
        (|| Err(TaskError::transient("busy")), TaskStatus::Cancelled),
        (|| Err(TaskError::permanent("broken")), TaskStatus::Cancelled),
        (|| Ok(()), TaskStatus::Completed),
    ] {
        let fixture = Fixture::new();
        let id = fixture.put().id;
        let (handler, reports, go) = gated(end);
        let running = fixture.run(handler);
        assert_eq!(wait_for(&reports), "started");
        assert_eq!(fixture.other().tasks().cancel(id), Ok(CancelOutcome::Requested));
        assert_eq!(wait_for(&reports), "cancelled");
        let task = fixture.store.tasks().get(id).unwrap();
        assert_eq!((task.status, task.cancel_requested_at.is_some()), (TaskStatus::Running, true));
        assert_eq!(fixture.put(), Enqueued { id, created: false });
        go.send(()).unwrap();
        fixture.wait_until(id, status);
        assert_eq!(fixture.store.dead_letters().count(), Ok(0));
        let summary = running.stop(LONG).unwrap();
        let cancelled = u64::from(status == TaskStatus::Cancelled);
        assert_eq!((summary.cancelled, summary.completed), (cancelled, 1 - cancelled), "{summary:?}");
        assert!(fixture.put().created);
    }
}

#[test]
fn task_that_waits_for_a_worker_is_cancelled_without_being_started() {
    let fixture = Fixture::new();
    let first = fixture.put().id;
    let (handler, reports, go) = gated(|| Ok(()));
    let running = fixture.run(handler);
    assert_eq!(wait_for(&reports), "started");
    // The second task does not wait for the first one to end, whether it is claimed or not.
    let second = fixture.store.tasks().enqueue(NewTask::new("k", "2")).unwrap().id;
    fixture.other().tasks().cancel(second).unwrap();
    fixture.wait_until(second, TaskStatus::Cancelled);
    assert_eq!(fixture.store.tasks().get(first).unwrap().status, TaskStatus::Running);
    fixture.other().tasks().cancel(first).unwrap();
    assert_eq!(wait_for(&reports), "cancelled");
    go.send(()).unwrap();
    running.wait_idle().unwrap();
    assert!(reports.try_recv().is_err(), "the second one was not started");
    assert_eq!(fixture.store.tasks().get(second).unwrap().starts, 0);
}

#[test]
fn callback_of_a_cancelled_handler_may_use_the_runner() {
    let fixture = Fixture::new();
    let id = fixture.put().id;
    let runner: Arc<OnceLock<RunnerHandle>> = Arc::default();
    let of_handler = runner.clone();
    let (sender, reports) = channel();
    let sender = Mutex::new(sender);
    let running = fixture.run(move |task| {
        let (runner, counted) = (of_handler.clone(), sender.lock().unwrap().clone());
        let token = task.cancel_token();
        let _callback = token.on_cancel(move || {
            let stats = runner.get().expect("set before the cancellation").stats();
            counted.send(stats.kinds[0].tasks.unfinished).unwrap();
        });
        sender.lock().unwrap().send(0).unwrap();
        token.wait();
        Err(TaskError::cancelled())
    });
    assert!(runner.set(running).is_ok());
    assert_eq!(wait_for(&reports), 0, "started");
    fixture.other().tasks().cancel(id).unwrap();
    assert_eq!(wait_for(&reports), 1);
    fixture.wait_until(id, TaskStatus::Cancelled);
    runner.get().unwrap().stop(LONG).unwrap();
}

#[test]
fn stopping_runner_still_applies_cancellation_requests() {
    let fixture = Fixture::new();
    let id = fixture.put().id;
    let (handler, reports, go) = gated(|| Err(TaskError::cancelled()));
    let running = fixture.run(handler);
    assert_eq!(wait_for(&reports), "started");
    let stopped = std::thread::spawn(move || running.stop(LEASE).unwrap());
    fixture.other().tasks().cancel(id).unwrap();
    assert_eq!(wait_for(&reports), "cancelled");
    go.send(()).unwrap();
    assert_eq!(stopped.join().unwrap().cancelled, 1);
    assert_eq!(fixture.store.tasks().get(id).unwrap().status, TaskStatus::Cancelled);
}

#[test]
fn handler_of_a_cancelled_job_is_cancelled_before_the_next_heartbeat() {
    let fixture = Fixture::new();
    let job = fixture.store.jobs().create(JobKind::Scan, "{}", true).unwrap();
    let (report, reports) = channel();
    let report = Mutex::new(report);
    let handler = move |context: &gristmill_jobs::RowContext<'_, _>| {
        report.lock().unwrap().send("started").unwrap();
        assert!(context.wait_cancelled(LONG));
        report.lock().unwrap().send("cancelled").unwrap();
        Err(TaskError::cancelled())
    };
    let running = Runner::builder(fixture.store.clone()).lease(LEASE).on_job(handler).start().unwrap();
    assert_eq!(wait_for(&reports), "started");
    fixture.other().jobs().cancel(&job.id).unwrap();
    assert_eq!(wait_for(&reports), "cancelled");
    running.stop(LONG).unwrap();
    assert_eq!(fixture.store.jobs().get(&job.id).unwrap().status, JobStatus::Cancelled);
}

#[test]
fn wait_cancelled_accepts_the_maximum_duration() {
    let fixture = Fixture::new();
    fixture.put();
    let (started, starts) = channel();
    let started = Mutex::new(started);
    let running = fixture.run(move |task| {
        started.lock().unwrap().send(())?;
        assert!(task.wait_cancelled(Duration::MAX));
        Err(TaskError::cancelled())
    });
    wait_for(&starts);
    let summary = running.stop(Duration::from_millis(100)).unwrap();
    assert_eq!(summary.released, 1);
}
