//! The runner: how it is set up, started and stopped.
//!
//! Owns its two threads, one that claims and settles (the dispatcher) and one that keeps leases, and the order of
//! the lines between them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gristmill_pool::TaskResult;
use gristmill_pool::clock::Clock;
use gristmill_store::Store;
use gristmill_store::cleanup::CleanupRow;
use gristmill_store::jobs::JobRow;
use gristmill_store::lease::{LEASE, WorkerId};
use gristmill_store::tasks::DEFAULT_QUEUE;
use gristmill_store::thumbnails::{ThumbLimits, ThumbnailRow};

use crate::bench::Bench;
use crate::dispatcher::Dispatcher;
use crate::error::Error;
use crate::flight::Stop;
use crate::hub::{Hub, Wait};
use crate::kind::TaskKind;
use crate::line::{Beats, Line};
use crate::renewal::{Presence, PresenceBeats};
use crate::rows::{RowContext, Rows, Table};
use crate::stats::{RunSummary, RunnerStats};
use crate::tables::{self, Handler, ThumbnailInfo};
use crate::tasks::{Rules, Tasks};

/// Without a lease to keep, the thread for it looks up this often.
const IDLE: Duration = Duration::from_secs(30);

/// How long a stop may take for workers that are about to end.
const THREADS_END: Duration = Duration::from_millis(50);

/// How a runner is set up.
pub struct RunnerBuilder {
    store: Store,
    name: String,
    rules: Rules,
    kinds: Vec<TaskKind>,
    jobs: Option<Handler<JobRow, ()>>,
    thumbnails: Option<(ThumbLimits, Handler<ThumbnailRow, ThumbnailInfo>)>,
    cleanups: Option<Handler<CleanupRow, ()>>,
}

/// Durable work on bounded pools. See the [crate](crate).
#[derive(Debug)]
pub struct Runner(());

impl Runner {
    /// A runner for what lies in `store`.
    pub fn builder(store: Store) -> RunnerBuilder {
        let rules = Rules {
            queues: vec![DEFAULT_QUEUE.to_owned()],
            lease: LEASE,
            max_crashes: 3,
            keep_finished: None,
            clock: Clock::system(),
        };
        RunnerBuilder {
            store,
            name: format!("pid{}", std::process::id()),
            rules,
            kinds: Vec::new(),
            jobs: None,
            thumbnails: None,
            cleanups: None,
        }
    }
}

impl RunnerBuilder {
    /// What the worker's name begins with, for people: a host and a process, say. The rest of it is new with
    /// every start.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Which queues to serve, the most important first; `default` without this.
    #[must_use]
    pub fn queues<S: Into<String>>(mut self, queues: impl IntoIterator<Item = S>) -> Self {
        self.rules.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// How long a worker may be silent before its tasks go to others, unless their kind says otherwise; 300
    /// seconds without this. Heartbeats come ten times as often.
    #[must_use]
    pub fn lease(mut self, length: Duration) -> Self {
        self.rules.lease = length;
        self
    }

    /// How many workers may die with a task before it is a poison pill; 3 without this.
    #[must_use]
    pub fn max_crashes(mut self, count: u32) -> Self {
        self.rules.max_crashes = count;
        self
    }

    /// Forgets finished tasks after this time; `None`, the default, keeps them.
    #[must_use]
    pub fn retain_finished(mut self, time: Option<Duration>) -> Self {
        self.rules.keep_finished = time;
        self
    }

    /// Takes the time of handlers' timeouts from another clock: a
    /// [`ManualClock`](gristmill_pool::clock::ManualClock) in tests. Leases and schedules go by the store's clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.rules.clock = clock.into();
        self
    }

    /// Runs tasks of this kind.
    #[must_use]
    pub fn kind(mut self, kind: TaskKind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Runs the scan and hash jobs of the protocol, one at a time. Without this they are left to others.
    #[must_use]
    pub fn on_job(
        mut self,
        handler: impl Fn(&RowContext<'_, JobRow>) -> TaskResult<()> + Send + Sync + 'static,
    ) -> Self {
        self.jobs = Some(Box::new(handler));
        self
    }

    /// Makes thumbnails, at most so many at a time over all workers. A handler that fails may name the protocol's
    /// error code (`THUMB_…`) as the failed step.
    #[must_use]
    pub fn on_thumbnail(
        mut self,
        limits: ThumbLimits,
        handler: impl Fn(&RowContext<'_, ThumbnailRow>) -> TaskResult<ThumbnailInfo> + Send + Sync + 'static,
    ) -> Self {
        self.thumbnails = Some((limits, Box::new(handler)));
        self
    }

    /// Cleans up after groups of thumbnails.
    #[must_use]
    pub fn on_cleanup(
        mut self,
        handler: impl Fn(&RowContext<'_, CleanupRow>) -> TaskResult<()> + Send + Sync + 'static,
    ) -> Self {
        self.cleanups = Some(Box::new(handler));
        self
    }

    fn check(&self) -> Result<(), Error> {
        let setting = |text: String| Err(Error::Setting(text));
        if self.rules.queues.is_empty() {
            return setting("no queue to serve: name at least one".to_owned());
        }
        let leases = self.kinds.iter().filter_map(|kind| kind.lease).chain([self.rules.lease]);
        if let Some(short) = leases.into_iter().find(|lease| *lease < Duration::from_millis(100)) {
            return setting(format!("a lease of {short:?} is too short; 100 ms or more is legal"));
        }
        if self.rules.max_crashes == 0 {
            return setting("max_crashes is 0; 1 or more is legal".to_owned());
        }
        for (index, kind) in self.kinds.iter().enumerate() {
            let name = kind.name();
            if self.kinds[..index].iter().any(|earlier| earlier.name() == name) {
                return setting(format!("the kind {name:?} is registered twice"));
            }
            if [kind.timeout, kind.own_timeout].contains(&Some(Duration::ZERO)) {
                return setting(format!(
                    "the kind {name:?} has a timeout of 0s; a longer one, or none, is legal"
                ));
            }
            if kind.at_most == Some(0) {
                return setting(format!("the kind {name:?} may run at most 0 tasks; 1 or more is legal"));
            }
        }
        Ok(())
    }

    /// Starts to work, in threads of its own.
    pub fn start(self) -> Result<RunnerHandle, Error> {
        self.check()?;
        let RunnerBuilder { store, name, rules, kinds, jobs, thumbnails, cleanups } = self;
        let hub = Arc::new(Hub::new(store.clone()));
        let worker = WorkerId::new(&name);
        let watch = store.watch()?;
        // In the order of the protocol: this is the order in which work is looked for.
        let mut crew = Crew {
            hub: hub.clone(),
            worker: worker.clone(),
            lease: rules.lease,
            lines: vec![],
            beats: vec![],
        };
        if let Some(handler) = jobs {
            crew.add(tables::Jobs(handler))?;
        }
        if let Some((limits, handler)) = thumbnails {
            crew.add(tables::Thumbnails { handler, limits })?;
        }
        if let Some(handler) = cleanups {
            crew.add(tables::Cleanups(handler))?;
        }
        crew.add(tables::Wal)?;
        let Crew { mut lines, mut beats, .. } = crew;
        let tasks = Tasks::new(hub.clone(), worker.clone(), rules, kinds)?;
        let benches = tasks.benches().to_vec();
        beats.extend(tasks.beats());
        lines.push(Box::new(tasks));

        let leases: Vec<Duration> = lines.iter().map(|line| line.lease()).collect();
        let presence = Arc::new(Presence::new(store, worker.clone(), &leases));
        beats.push(Box::new(PresenceBeats::new(presence.clone())));
        let enough = Arc::new(Stop::default());
        let pulse = spawn("jobs-pulse", {
            let (hub, enough) = (hub.clone(), enough.clone());
            move || {
                let _inside = hub.enter();
                keep_leases(beats, &enough);
            }
        })?;
        let recovery = lines.iter().map(|line| line.lease()).min().unwrap_or(LEASE) / 4;
        let recovery = recovery.clamp(Duration::from_millis(50), Duration::from_secs(30));
        let dispatcher = spawn("jobs-dispatcher", {
            let hub = hub.clone();
            move || {
                let _inside = hub.enter();
                let dispatcher = Dispatcher::new(hub.clone(), lines, watch, presence, recovery);
                // Whoever waits for the runner has to learn that it is gone, whatever became of it.
                let result = catch_unwind(AssertUnwindSafe(|| dispatcher.run()))
                    .unwrap_or_else(|_| Err(Error::Thread("the dispatcher panicked".to_owned())));
                enough.set();
                hub.end(result);
            }
        });
        let dispatcher = dispatcher.inspect_err(|_| hub.stop(Duration::ZERO))?;
        let threads = Mutex::new(vec![dispatcher, pulse]);
        Ok(RunnerHandle { hub, worker, benches, threads })
    }
}

impl fmt::Debug for RunnerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("rules", &self.rules)
            .field("kinds", &self.kinds)
            .finish_non_exhaustive()
    }
}

/// The lines of the protocol, as they are set up.
struct Crew {
    hub: Arc<Hub>,
    worker: WorkerId,
    lease: Duration,
    lines: Vec<Box<dyn Line>>,
    beats: Vec<Box<dyn Beats>>,
}

impl Crew {
    fn add(&mut self, table: impl Table) -> Result<(), Error> {
        let line = Rows::new(self.hub.clone(), self.worker.clone(), table, self.lease)?;
        self.beats.push(line.beats());
        self.lines.push(Box::new(line));
        Ok(())
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map_err(|error| Error::Thread(format!("cannot start a thread: {error}")))
}

/// A runner at work. Dropping it stops it, and waits for what runs; [`stop`](Self::stop) does so with a deadline.
///
/// Inside a handler of the same runner nothing can wait for its end: a drop there stops the runner and returns at once,
/// and the methods that wait fail with [`Error::Inside`].
pub struct RunnerHandle {
    hub: Arc<Hub>,
    worker: WorkerId,
    benches: Vec<Arc<Bench>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl RunnerHandle {
    /// The worker's name, new with this start.
    pub fn worker(&self) -> &str {
        self.worker.name()
    }

    /// Waits until nothing is due, nothing runs, and nothing waits to be tried again: in the queues and of the kinds of
    /// this runner. Tasks that are scheduled for a first run later are not waited for.
    pub fn wait_idle(&self) -> Result<(), Error> {
        self.hub.must_be_outside("wait_idle")?;
        self.hub.ask(Wait::Idle)
    }

    /// Waits until nothing that this runner can claim is due, and nothing runs. Retries that wait for their time are
    /// not waited for.
    pub fn wait_no_due_tasks(&self) -> Result<(), Error> {
        self.hub.must_be_outside("wait_caught_up")?;
        self.hub.ask(Wait::CaughtUp)
    }

    /// Waits, at most so long, for the runner to end by itself, which it does when its store fails for good.
    /// Nothing when it has not.
    pub fn wait_ended(&self, limit: Duration) -> Option<Result<(), Error>> {
        self.hub.ended(Some(limit))
    }

    /// Claims nothing more, lets what runs finish, and returns within the deadline. Its last tenth, at most a
    /// second, is for handlers to stop in; what has not stopped by then goes back to the queue.
    pub fn stop(&self, deadline: Duration) -> Result<RunSummary, Error> {
        let end = Instant::now().checked_add(deadline);
        self.hub.stop(deadline);
        self.hub.must_be_outside("stop")?;
        let ended = self.hub.ended(None).unwrap_or(Ok(()));
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // Panics are logged where they happen; there is nothing to add here.
            drop(thread.join());
        }
        // What still runs has been released: it is not waited for. A moment, one for all of them and within the deadline,
        // for threads that are about to end.
        let moment = Instant::now() + THREADS_END;
        let end = end.map_or(moment, |end| end.min(moment));
        self.benches.iter().for_each(|bench| bench.pool.cancel());
        for bench in &self.benches {
            bench.pool.shutdown(end.saturating_duration_since(Instant::now()));
        }
        ended.map(|()| RunSummary::of(&self.benches))
    }

    /// Counters and durations, by kind.
    pub fn stats(&self) -> RunnerStats {
        RunnerStats::of(self.worker(), &self.benches)
    }
}

impl Drop for RunnerHandle {
    fn drop(&mut self) {
        let running = !self.threads.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if running && self.hub.must_be_outside("drop").is_err() {
            // The runner ends by itself when this handler has.
            return self.hub.stop(Duration::MAX);
        }
        if running && let Err(error) = self.stop(Duration::MAX) {
            tracing::error!(%error, "a runner ended with an error");
        }
    }
}

impl fmt::Debug for RunnerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("worker", &self.worker()).finish_non_exhaustive()
    }
}

/// Keeps leases until told that it is enough. A thread of its own: neither a handler that never yields nor a
/// dispatcher that waits for the disk keeps it from its work.
fn keep_leases(mut lines: Vec<Box<dyn Beats>>, enough: &Stop) {
    loop {
        let next = lines.iter().map(|line| line.due()).min().unwrap_or_else(|| Instant::now() + IDLE);
        if enough.wait(next.saturating_duration_since(Instant::now())) {
            return;
        }
        let now = Instant::now();
        for line in lines.iter_mut().filter(|line| line.due() <= now) {
            if let Err(error) = line.beat() {
                tracing::warn!(%error, "leases could not be prolonged; trying again");
            }
        }
    }
}
