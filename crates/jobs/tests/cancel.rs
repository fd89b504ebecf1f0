//! Tasks that are cancelled while a runner has them: they are cancelled when their run has ended, and not before.
//! Leases are long, so a heartbeat is not what tells the worker.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
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

    /// Another opening of the same file, as another process has it.
    fn other(&self) -> Store {
        open(&self.folder)
    }

    fn put(&self) -> Enqueued {
        let task = NewTask { unique_key: Some("key".to_owned()), ..NewTask::new("k", "1") };
        self.store.tasks().enqueue(task).unwrap()
    }

    fn run(
        &self,
        handler: impl Fn(&TaskContext<'_>) -> TaskResult<()> + Send + Sync + 'static,
    ) -> RunnerHandle {
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
    receiver.recv_timeout(LONG).expect("it should have happened long ago")
}

/// A handler that reports its start, waits to be cancelled, reports that, and ends when it may.
fn gated(
    end: fn() -> TaskResult<()>,
) -> (impl Fn(&TaskContext<'_>) -> TaskResult<()>, Receiver<&'static str>, Sender<()>) {
    let (report, reports) = channel();
    let (go, may_go) = channel();
    let (report, may_go) = (Mutex::new(report), Mutex::new(may_go));
    let handler = move |work: &TaskContext<'_>| {
        report.lock().unwrap().send("started").unwrap();
        assert!(work.wait_cancelled(LONG));
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
fn task_that_waits_for_a_worker_is_cancelled_without_a_start() {
    let fixture = Fixture::new();
    let first = fixture.put().id;
    let (handler, reports, go) = gated(|| Ok(()));
    let running = fixture.run(handler);
    assert_eq!(wait_for(&reports), "started");
    // Claimed or not: it does not wait for the first one to end.
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
fn worker_that_stops_still_notices_that_its_task_is_to_be_cancelled() {
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
fn handler_of_a_cancelled_job_is_stopped_without_waiting_for_a_heartbeat() {
    let fixture = Fixture::new();
    let job = fixture.store.jobs().create(JobKind::Scan, "{}", true).unwrap();
    let (report, reports) = channel();
    let report = Mutex::new(report);
    let handler = move |call: &gristmill_jobs::RowContext<'_, _>| {
        report.lock().unwrap().send("started").unwrap();
        assert!(call.wait_cancelled(LONG));
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
