//! The producer process: enqueues tasks of all kinds and logs those that were acknowledged.
//!
//! Owns the mix of kinds. A task is acknowledged when its call has returned; it is logged before anything else happens.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use gristmill_check::Rng;
use gristmill_store::Store;
use gristmill_store::tasks::NewTask;

use super::log::{Event, Log};
use super::paths::RunPaths;
use super::task_kinds::{Payload, TestKind};
use super::worker::{die_with_harness, end_of_input, log_to_stderr, write_ready_flag};
use crate::args::ProcessArgs;
use crate::harness::Named;
use crate::{Error, ErrorContext};

/// Concurrent callers, so that their writes are committed in groups.
const CALLERS: u64 = 4;

/// Percentage of each kind. Slow tasks are few because each takes about one lease.
const MIX: [(u64, TestKind); 7] = [
    (58, TestKind::Fast),
    (12, TestKind::Flaky),
    (4, TestKind::Failing),
    (12, TestKind::Steps),
    (10, TestKind::Parent),
    (2, TestKind::Slow),
    (2, TestKind::Uncancellable),
];

/// Enqueues tasks until standard input ends.
pub(crate) fn run(args: &ProcessArgs) -> Result<(), Error> {
    log_to_stderr();
    die_with_harness();
    let paths = RunPaths(args.folder.clone());
    let store = Store::open(paths.database()).context("cannot open the store")?;
    write_ready_flag(&paths, &args.name)?;
    let input = end_of_input();
    std::thread::scope(|scope| {
        let mut callers = Vec::new();
        let mut ends = Vec::new();
        for number in 0..CALLERS {
            let (end, stop) = channel();
            ends.push(end);
            let mut caller = Caller::new(args, number, &store, &paths)?;
            callers.push(scope.spawn(move || caller.run_until(&stop)));
        }
        // Returns when the sender is dropped at the end of the input.
        let _ = input.recv();
        drop(ends);
        callers
            .into_iter()
            .try_for_each(|caller| caller.join().unwrap_or_else(|_| Err(Error::System("a caller panicked".to_owned()))))
    })
}

struct Caller<'a> {
    rng: Rng,
    /// Prefix of its keys, unique in the run.
    prefix: String,
    lease_ms: u64,
    created: u64,
    store: &'a Store,
    log: Log,
}

impl<'a> Caller<'a> {
    fn new(args: &ProcessArgs, number: u64, store: &'a Store, paths: &RunPaths) -> Result<Self, Error> {
        Ok(Caller {
            rng: Rng::new(args.seed ^ (number << 32)),
            prefix: format!("{}-{number}", args.name),
            lease_ms: args.lease_ms,
            created: 0,
            store,
            log: Log::open(&paths.log())?,
        })
    }

    fn run_until(&mut self, stop: &Receiver<()>) -> Result<(), Error> {
        loop {
            self.enqueue_next()?;
            if stop.recv_timeout(self.rng.millis(0..100)) != Err(RecvTimeoutError::Timeout) {
                return Ok(());
            }
        }
    }

    /// Enqueues one task, several in one call, or the same one twice.
    fn enqueue_next(&mut self) -> Result<(), Error> {
        match self.rng.u64(0..10) {
            0..6 => {
                let task = self.task();
                self.enqueue(&[task])
            }
            6..9 => {
                let count = self.rng.u64(2..20);
                let tasks: Vec<_> = (0..count).map(|_| self.task()).collect();
                self.enqueue(&tasks)
            }
            _ => {
                let (kind, mut task, key) = self.task();
                task.unique_key = Some(key.clone());
                let twice = [(kind, task, key)];
                self.enqueue(&twice)?;
                self.enqueue(&twice)
            }
        }
    }

    /// Enqueues tasks in one call, and logs whether they were acknowledged.
    fn enqueue(&self, tasks: &[(TestKind, NewTask, String)]) -> Result<(), Error> {
        let enqueued = match tasks {
            [(_, task, _)] => self.store.tasks().enqueue(task.clone()).map(|enqueued| vec![enqueued]),
            _ => self.store.tasks().enqueue_many(tasks.iter().map(|(_, task, _)| task.clone()).collect()),
        };
        let events: Vec<Event> = match enqueued {
            Ok(enqueued) => (enqueued.iter().zip(tasks))
                .map(|(enqueued, (kind, _, key))| Event::Enqueued {
                    task: enqueued.id,
                    kind: kind.name(),
                    key: key.clone(),
                })
                .collect(),
            Err(error) => vec![Event::Refused { producer: self.prefix.clone(), error: error.to_string() }],
        };
        events.iter().try_for_each(|event| self.log.append(event)).context("cannot log an event")
    }

    fn task(&mut self) -> (TestKind, NewTask, String) {
        self.created += 1;
        let kind = self.draw_kind();
        let key = format!("{}-{}", self.prefix, self.created);
        let padding = "x".repeat(self.rng.usize(..1_500));
        let millis = self.rng.u64(self.lease_ms / 2..self.lease_ms * 3 / 2);
        let mut task = new_task(kind, &Payload { key: key.clone(), millis, padding });
        task.priority = i32::try_from(self.rng.u64(0..3)).unwrap_or(0);
        if self.rng.percent(10) {
            task.run_after = Some(self.store.now().plus(self.rng.millis(0..300)));
        }
        if self.rng.percent(30) {
            task.unique_key = Some(key.clone());
        }
        (kind, task, key)
    }

    fn draw_kind(&mut self) -> TestKind {
        let mut drawn = self.rng.u64(0..100);
        for (share, kind) in MIX {
            if drawn < share {
                return kind;
            }
            drawn -= share;
        }
        TestKind::Fast
    }
}

pub(crate) fn new_task(kind: TestKind, payload: &Payload) -> NewTask {
    let payload = serde_json::json!(payload).to_string();
    NewTask::new(kind.name(), payload)
}
