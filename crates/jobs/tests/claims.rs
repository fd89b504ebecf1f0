//! Claims of a runner: how many ahead of its workers, in which order, and after a kill or a change of the clock.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gristmill_jobs::{Runner, TaskContext, TaskKind};
use gristmill_pool::TaskResult;
use gristmill_pool::clock::{Clock, ManualClock};
use gristmill_store::tasks::{NewTask, TaskFilter, TaskRow, TaskStatus};
use gristmill_store::{Durability, Store, UtcTime};

const LONG: Duration = Duration::from_secs(60);

fn open(folder: &Path, clock: impl Into<Clock>) -> Store {
    Store::options().durability(Durability::Normal).clock(clock).open(folder.join("work.db")).unwrap()
}

fn fixture() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Clock::system());
    (folder, store)
}

fn put(store: &Store, count: usize, priority: i32) -> Vec<i64> {
    let task = |_| NewTask { priority, ..NewTask::new("k", "1") };
    let added = store.tasks().enqueue_many((0..count).map(task).collect()).unwrap();
    added.into_iter().map(|added| added.id).collect()
}

fn claimed(store: &Store) -> Vec<TaskRow> {
    let filter = TaskFilter::default().status(Some(TaskStatus::Running));
    store.tasks().list(&filter, None, 9_999).unwrap().items
}

fn running(store: &Store) -> usize {
    claimed(store).len()
}

/// Waits for a condition. Returns whether it became true within 10 s.
fn becomes(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if condition() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// A gate that is closed at first, and the number of handlers that wait for it.
#[derive(Clone, Default)]
struct Gate {
    open: Arc<AtomicBool>,
    waiting: Arc<AtomicUsize>,
}

impl Gate {
    fn pass(&self, task: &TaskContext<'_>) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) && !task.wait_cancelled(Duration::from_millis(1)) {}
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

#[test]
fn slow_tasks_are_not_claimed_ahead() {
    let (_folder, store) = fixture();
    put(&store, 80, 0);
    let max_held = Arc::new(AtomicUsize::new(0));
    let seen = max_held.clone();
    // The handlers of eight workers end together, in waves.
    let wave = Arc::new(std::sync::Barrier::new(8));
    let kind = TaskKind::new("k", move |task| {
        seen.fetch_max(running(task.store()), Ordering::SeqCst);
        task.wait_cancelled(Duration::from_millis(100));
        wave.wait();
        Ok(())
    });
    let runner = Runner::builder(store).kind(kind.workers(8)).start().unwrap();
    runner.wait_idle().unwrap();
    let max_held = max_held.load(Ordering::SeqCst);
    assert!((8..=16).contains(&max_held), "8 workers held {max_held} tasks that take 100 ms");
}

/// Starts a runner with one worker, which has claimed tasks ahead and runs a task that waits for the gate. Returns the
/// order of runs too.
fn start_with_tasks_claimed_ahead(store: &Store, gate: &Gate) -> (gristmill_jobs::RunnerHandle, Arc<Mutex<Vec<i64>>>) {
    let ids = put(store, 400, 0);
    let (order, stop_at) = (Arc::new(Mutex::new(Vec::new())), ids[200]);
    let (log, before) = (order.clone(), gate.clone());
    let kind = TaskKind::new("k", move |task| {
        log.lock().unwrap().push(task.id());
        if task.id() == stop_at {
            before.pass(task);
        }
        Ok(())
    });
    let runner = Runner::builder(store.clone()).kind(kind.workers(1)).start().unwrap();
    assert!(becomes(|| gate.is_waited_for()));
    (runner, order)
}

#[test]
fn urgent_task_runs_before_tasks_claimed_ahead() {
    let (_folder, store) = fixture();
    let gate = Gate::default();
    let (runner, order) = start_with_tasks_claimed_ahead(&store, &gate);
    let urgent = put(&store, 1, 9)[0];
    // Either all waiting tasks have been released, or the urgent one is claimed. The worker knows a claim before its
    // process writes anything else.
    let seen = std::cell::OnceCell::new();
    assert!(becomes(|| {
        let claims: Vec<_> = claimed(&store).into_iter().map(|task| (task.id, task.started_at)).collect();
        let is_claimed = claims.iter().any(|(id, _)| *id == urgent);
        claims.len() == 1 || is_claimed && *seen.get_or_init(|| claims.clone()) != claims
    }));
    gate.open();
    runner.wait_idle().unwrap();
    let order = order.lock().unwrap();
    assert_eq!(order.iter().position(|id| *id == urgent), Some(201), "it ran next");
    assert_eq!(order.len(), 401);
}

#[test]
fn tasks_that_wait_for_a_busy_worker_are_released() {
    let (_folder, store) = fixture();
    let gate = Gate::default();
    let (runner, _order) = start_with_tasks_claimed_ahead(&store, &gate);
    let released = becomes(|| running(&store) == 1);
    // 200 have run, and one runs; released tasks do not count.
    let counts = || {
        let pool = runner.stats().kinds.remove(0).pool;
        (pool.submitted, pool.completed, pool.queued)
    };
    assert_eq!(counts(), (201, 200, 0));
    gate.open();
    assert!(released, "{} tasks are held", running(&store));
    runner.wait_idle().unwrap();
    assert_eq!(store.tasks().counts().unwrap(), [(TaskStatus::Completed, 400)]);
    // Tasks that were released for a short time do not count as released.
    assert!(becomes(|| counts() == (400, 400, 0)), "{:?}", counts());
    let summary = runner.stop(LONG).unwrap();
    assert_eq!((summary.completed, summary.released), (400, 0));
}

/// Every write makes the runner poll for more urgent tasks, and each poll may claim as many as are waiting.
#[test]
fn more_urgent_tasks_replace_waiting_ones() {
    let (_folder, store) = fixture();
    put(&store, 40, 0);
    let (max_held, runs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, count) = (max_held.clone(), runs.clone());
    let kind = TaskKind::new("k", move |task| {
        // After five runs the duration of handlers is known.
        if count.fetch_add(1, Ordering::SeqCst) > 4 {
            for _ in 0..10 {
                put(task.store(), 2, 1);
                seen.fetch_max(running(task.store()), Ordering::SeqCst);
                task.wait_cancelled(Duration::from_millis(5));
            }
        } else {
            task.wait_cancelled(Duration::from_millis(60));
        }
        Ok(())
    });
    let runner = Runner::builder(store).kind(kind.workers(2)).start().unwrap();
    assert!(becomes(|| runs.load(Ordering::SeqCst) >= 40));
    runner.stop(LONG).unwrap();
    let max_held = max_held.load(Ordering::SeqCst);
    assert!(max_held <= 6, "2 workers held {max_held} tasks that take 60 ms");
}

#[test]
fn running_task_is_not_started_again_when_the_clock_is_set_forward() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::at(UtcTime::parse("2026-01-19 12:00:00").unwrap().micros());
    let (store, other) = (open(folder.path(), clock.clone()), open(folder.path(), clock.clone()));
    let id = put(&store, 1, 0)[0];
    let (gate, starts) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let kind = || {
        let (gate, starts) = (gate.clone(), starts.clone());
        TaskKind::new("k", move |task| {
            starts.fetch_add(1, Ordering::SeqCst);
            gate.pass(task);
            Ok(())
        })
    };
    let first = Runner::builder(store.clone()).kind(kind().workers(2)).start().unwrap();
    assert!(becomes(|| gate.is_waited_for()));
    clock.advance(Duration::from_secs(3 * 3_600));
    // A runner recovers tasks when it starts and every few seconds.
    let second = Runner::builder(other).kind(kind().workers(2)).start().unwrap();
    let recovered = store.tasks().recover(3).unwrap();
    std::thread::scope(|scope| {
        let idle = scope.spawn(|| second.wait_idle().unwrap());
        assert!(becomes(|| idle.is_finished() || starts.load(Ordering::SeqCst) > 1));
        gate.open();
    });
    first.wait_idle().unwrap();
    assert_eq!((recovered.freed, starts.load(Ordering::SeqCst)), (0, 1));
    let task = store.tasks().get(id).unwrap();
    assert_eq!((task.status, task.crashes), (TaskStatus::Completed, 0));
}

const CHILD: &str = "GRISTMILL_TEST_CHILD";

/// Not a test: the body of the processes that [`Process`] starts. It runs tasks of the kind `k`: those with the payload
/// 1 end at once, those with the payload 2 never do. It prints the number of each task that it starts.
#[test]
fn child_process() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let store = open(Path::new(&folder), Clock::system());
    let handler = |task: &TaskContext<'_>| -> TaskResult<()> {
        println!("started {}", task.id());
        while task.payload() == "2" {
            std::thread::park();
        }
        Ok(())
    };
    let _runner = Runner::builder(store).kind(TaskKind::new("k", handler).workers(2)).start().unwrap();
    loop {
        std::thread::park();
    }
}

/// A process with a runner, and the tasks that it has started.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    started: Vec<i64>,
}

impl Process {
    /// Starts a process and waits until it runs a task that never ends.
    fn start(folder: &Path, store: &Store) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_process", "--nocapture"]).env(CHILD, folder).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Process { child, lines, started: Vec::new() };
        while let Some(id) = process.next_start() {
            if store.tasks().get(id).unwrap().payload == "2" {
                break;
            }
        }
        process
    }

    fn next_start(&mut self) -> Option<i64> {
        let id = self.lines.find_map(|line| line.unwrap().split_once("started ")?.1.parse().ok())?;
        self.started.push(id);
        Some(id)
    }

    /// Kills the process. Returns the tasks that it has started.
    fn kill(mut self) -> Vec<i64> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        while self.next_start().is_some() {}
        self.started
    }
}

fn all(store: &Store) -> Vec<TaskRow> {
    store.tasks().list(&TaskFilter::default(), None, 9_999).unwrap().items
}

#[test]
fn starting_runner_runs_the_task_of_a_killed_process_at_once() {
    let (folder, store) = fixture();
    let id = store.tasks().enqueue(NewTask::new("k", "2")).unwrap().id;
    Process::start(folder.path(), &store).kill();
    let runner = Runner::builder(store.clone()).kind(TaskKind::new("k", |_| Ok(()))).start().unwrap();
    runner.wait_idle().unwrap();
    runner.stop(LONG).unwrap();
    assert_eq!(store.tasks().get(id).unwrap().status, TaskStatus::Completed);
}

#[test]
fn idle_runner_runs_the_task_of_a_killed_process() {
    let (folder, store) = fixture();
    let id = store.tasks().enqueue(NewTask::new("k", "2")).unwrap().id;
    let process = Process::start(folder.path(), &store);
    let (done, done_ids) = channel();
    let done = Mutex::new(done);
    let kind = TaskKind::new("k", move |task| Ok(done.lock().unwrap().send(task.id())?));
    let runner = Runner::builder(store).kind(kind).start().unwrap();
    runner.wait_idle().unwrap();
    process.kill();
    assert_eq!(done_ids.recv_timeout(Duration::from_secs(20)), Ok(id));
}

#[test]
fn claimed_tasks_that_a_killed_process_had_not_started_do_not_count_as_crashed() {
    let (folder, store) = fixture();
    let mut starts: Vec<i64> = Vec::new();
    for round in 0..4 {
        put(&store, 300, 0);
        store.tasks().enqueue(NewTask { priority: -round, ..NewTask::new("k", "2") }).unwrap();
        put(&store, 300, -round);
        starts.extend(Process::start(folder.path(), &store).kill());
        // Let its leases expire.
        let other = rusqlite::Connection::open(store.path()).unwrap();
        other
            .execute_batch("UPDATE tasks SET lease_expires_at = '2026-01-01 00:00:00' WHERE status = 'running'")
            .unwrap();
        store.tasks().recover(3).unwrap();
    }
    // In each round the second worker may be killed once between the record of a start and the output of the handler.
    let mut unseen = 0;
    for task in all(&store) {
        let starts = starts.iter().filter(|id| **id == task.id).count();
        unseen += (task.crashes as usize).saturating_sub(starts);
        assert!(task.status != TaskStatus::Failed || starts + 1 >= 3, "{starts} starts: {task:?}");
    }
    assert!(unseen <= 4, "{unseen} crashes of tasks that were not started");
}

/// The store refuses the outcome of a task and its dead letter, so the runner does not hold the claim any more.
#[test]
fn claim_that_a_living_worker_does_not_hold_is_released_when_its_lease_expires() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::at(UtcTime::parse("2026-01-19 12:00:00").unwrap().micros());
    let store = open(folder.path(), clock.clone());
    let refused = store.tasks().enqueue(NewTask::new("k", "\"refused\"")).unwrap().id;
    let long = store.tasks().enqueue(NewTask::new("k", "\"long\"")).unwrap().id;
    let other = rusqlite::Connection::open(store.path()).unwrap();
    other
        .execute_batch(&format!(
            "CREATE TRIGGER refuse BEFORE UPDATE OF status ON tasks
             WHEN NEW.id = {refused} AND NEW.status IN ('completed', 'failed') BEGIN SELECT RAISE(ABORT, 'no'); END"
        ))
        .unwrap();
    let (gate, runs) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (before, count) = (gate.clone(), runs.clone());
    let kind = TaskKind::new("k", move |task| {
        match task.payload() {
            "\"long\"" => before.pass(task),
            _ => drop(count.fetch_add(1, Ordering::SeqCst)),
        }
        Ok(())
    });
    let builder = Runner::builder(store.clone()).lease(Duration::from_secs(1));
    let runner = builder.kind(kind.workers(2)).start().unwrap();
    let unfinished = || runner.stats().kinds[0].tasks.unfinished;
    let is_dropped = becomes(|| gate.is_waited_for() && runs.load(Ordering::SeqCst) == 1 && unfinished() == 1);
    other.execute_batch("DROP TRIGGER refuse").unwrap();
    clock.advance(Duration::from_secs(3_600));
    let is_run_again = becomes(|| store.tasks().get(refused).unwrap().status == TaskStatus::Completed);
    let (again, held) = (store.tasks().get(refused).unwrap(), store.tasks().get(long).unwrap());
    // Before the assertions, because a drop of the runner waits for this handler.
    gate.open();
    assert!(is_dropped && is_run_again, "the task is {:?}", again.status);
    assert_eq!((runs.load(Ordering::SeqCst), again.crashes, held.status), (2, 0, TaskStatus::Running));
    runner.wait_idle().unwrap();
    assert_eq!(store.tasks().counts().unwrap(), [(TaskStatus::Completed, 2)]);
}
