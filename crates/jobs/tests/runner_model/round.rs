//! Runs the operations of a round with real processes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gristmill_pool::clock::Clock;
use gristmill_store::tasks::{CancelOutcome, NewTask, TaskFilter, TaskRow, TaskStatus};
use gristmill_store::{ChangeWatcher, Store, UtcTime};

use crate::log::{Event, Log, Reader};
use crate::{KINDS, Op, QUEUES, rules, worker};

/// How long a round waits for a condition before it fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Delay of tasks that are enqueued for later.
const DELAY: Duration = Duration::from_millis(150);

pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) workers: usize,
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether a task is claimed by this process.
    pub(crate) fn holds(&self, task: &TaskRow) -> bool {
        let name = format!("process{}:", self.id());
        task.status == TaskStatus::Running && task.worker_id.as_deref().is_some_and(|id| id.starts_with(&name))
    }
}

pub(crate) struct Round<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) store: Store,
    pub(crate) log: Log,
    pub(crate) reader: Reader,
    pub(crate) processes: Vec<Process>,
    /// Number of gates created so far.
    pub(crate) gates: i64,
    watcher: ChangeWatcher,
}

/// Runs a round and checks it. The error names the rule that was broken.
pub(crate) fn run(ops: &[Op]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let (store, log) = (worker::open(folder.path(), Clock::system()), Log::open(folder.path()));
    let (reader, watcher) = (Reader::open(folder.path()), store.watch().unwrap());
    let folder = folder.path();
    let mut round = Round { folder, store, log, reader, processes: Vec::new(), gates: 0, watcher };
    let result = ops.iter().try_for_each(|op| round.op(op)).and_then(|()| round.finish());
    // No process may be left running, even after an error.
    for process in &mut round.processes {
        let _ = process.child.kill();
        let _ = process.child.wait();
    }
    result?;
    let dead_letters = round.store.dead_letters().list(&Default::default(), None, 99_999).unwrap().items;
    let tasks = round.tasks(&TaskFilter::default());
    rules::check(round.reader.events(), &tasks, &dead_letters)
}

impl Round<'_> {
    fn op(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Enqueue { queue, kind, count, priority, outcome, later } => {
                let new = NewTask::new(kind, format!("\"{outcome}\""));
                let task = NewTask { queue: queue.to_owned(), priority, ..new };
                match later {
                    true => self.enqueue_for_later(count, &task),
                    false => drop(self.enqueue(count, &task)),
                }
            }
            Op::Start { workers } if self.processes.len() < 3 => self.start(workers),
            Op::Start { .. } => {}
            Op::Kill { nth } => {
                if let Some(process) = self.pick(nth) {
                    self.kill(process);
                }
            }
            Op::Stop { nth } => {
                if let Some(process) = self.pick(nth) {
                    self.stop(process)?;
                }
            }
            Op::Cancel { nth } => self.cancel(nth),
            Op::Watch { starts } => {
                let before = self.starts();
                self.wait_for("no task is started", |round| {
                    Ok(round.starts() >= before.saturating_add(starts) || round.is_done())
                })?;
            }
            Op::Scenario(ref scenario) => self.scenario(scenario)?,
        }
        self.check_claims_bounded()
    }

    /// Enqueues `count` equal tasks. Returns their numbers.
    pub(crate) fn enqueue(&self, count: usize, task: &NewTask) -> Vec<i64> {
        let tasks = (0..count).map(|_| task.clone()).collect();
        let added = self.store.tasks().enqueue_many(tasks).unwrap();
        added.into_iter().map(|added| added.id).collect()
    }

    fn enqueue_for_later(&self, count: usize, task: &NewTask) {
        let due = UtcTime::of(Clock::system()).plus(DELAY);
        for id in self.enqueue(count, &NewTask { run_after: Some(due), ..task.clone() }) {
            self.log.line(&format!("due {id} {}", due.micros()));
        }
    }

    pub(crate) fn tasks(&self, filter: &TaskFilter) -> Vec<TaskRow> {
        self.store.tasks().list(filter, None, 99_999).unwrap().items
    }

    pub(crate) fn claimed(&self, kind: &str) -> Vec<TaskRow> {
        let (status, kind) = (Some(TaskStatus::Running), Some(kind.to_owned()));
        self.tasks(&TaskFilter::default().status(status).kind(kind))
    }

    pub(crate) fn pick(&mut self, nth: usize) -> Option<Process> {
        (!self.processes.is_empty()).then(|| self.processes.remove(nth % self.processes.len()))
    }

    pub(crate) fn start(&mut self, workers: usize) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "worker_process", "--nocapture"]);
        command.env(worker::FOLDER, self.folder).env(worker::WORKERS, workers.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        self.processes.push(Process { child: command.spawn().unwrap(), workers });
    }

    pub(crate) fn kill(&mut self, mut process: Process) {
        self.log.line(&format!("kill {}", process.id()));
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }

    /// Stops a process and checks that it holds no task afterwards.
    pub(crate) fn stop(&mut self, mut process: Process) -> Result<(), String> {
        drop(process.child.stdin.take());
        let status = process.child.wait().unwrap();
        if !status.success() {
            return Err(format!("a stopped process ended with {status}"));
        }
        let mut held = KINDS.iter().flat_map(|kind| self.claimed(kind)).filter(|task| process.holds(task));
        held.next().map_or(Ok(()), |task| Err(format!("a stopped process holds {task:?}")))
    }

    fn cancel(&mut self, nth: usize) {
        let mut tasks = self.tasks(&TaskFilter::default());
        tasks.retain(|task| !task.status.is_terminal());
        if tasks.is_empty() {
            return;
        }
        let id = tasks[nth % tasks.len()].id;
        // The task may have ended meanwhile.
        if let Ok(outcome) = self.store.tasks().cancel(id) {
            self.log_cancel(id, outcome);
        }
    }

    pub(crate) fn log_cancel(&self, id: i64, outcome: CancelOutcome) {
        self.log.line(&format!("cancel {id} {}", u8::from(outcome == CancelOutcome::Cancelled)));
    }

    fn starts(&mut self) -> usize {
        self.reader.events().iter().filter(|event| matches!(event, Event::Start { .. })).count()
    }

    /// Waits for a condition, and checks meanwhile that no process claims too many tasks. `problem` describes the
    /// failure.
    pub(crate) fn wait_for(
        &mut self,
        problem: &str,
        mut condition: impl FnMut(&mut Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let begin = Instant::now();
        while !condition(self)? {
            if begin.elapsed() > TIMEOUT {
                return Err(format!("{} tasks are unfinished, and {problem}", self.unfinished()));
            }
            self.check_claims_bounded()?;
            self.watcher.wait(Duration::from_millis(2)).unwrap();
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.processes.is_empty() || self.unfinished() == 0
    }

    pub(crate) fn unfinished(&self) -> usize {
        let counts = self.store.tasks().counts().unwrap();
        counts.iter().filter(|(status, _)| !status.is_terminal()).map(|(_, count)| *count as usize).sum()
    }

    /// Checks that no process holds more than three slow tasks for each worker.
    fn check_claims_bounded(&self) -> Result<(), String> {
        let claimed = self.claimed(KINDS[1]);
        for process in &self.processes {
            let (workers, count) = (process.workers, claimed.iter().filter(|task| process.holds(task)).count());
            if count > 3 * workers {
                return Err(format!("{workers} workers hold {count} slow tasks"));
            }
        }
        Ok(())
    }

    /// Stops every process, enqueues some more tasks, and runs all that are left in one process with one worker for
    /// each kind.
    fn finish(&mut self) -> Result<(), String> {
        while let Some(process) = self.pick(0) {
            self.stop(process)?;
        }
        for (kind, count) in KINDS.into_iter().zip([12, 5]) {
            for (nth, queue) in (0..count).zip(QUEUES.into_iter().cycle()) {
                let (queue, priority) = (queue.to_owned(), nth * 7 % 5);
                self.enqueue(1, &NewTask { queue, priority, ..NewTask::new(kind, "\"ok\"") });
            }
            self.enqueue(2, &NewTask::new(kind, "\"flaky\""));
            self.enqueue_for_later(2, &NewTask::new(kind, "\"ok\""));
        }
        self.log.line("finish");
        self.start(1);
        self.wait_for("no progress is made", |round| Ok(round.is_done()))?;
        self.pick(0).map_or(Ok(()), |process| self.stop(process))
    }
}
