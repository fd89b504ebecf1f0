//! The runner: how it is configured, started and stopped.
//!
//! Owns the order in which sources are polled, and the runner's two threads: the dispatcher claims and settles, the
//! heartbeat thread renews leases.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gristmill_pool::clock::Clock;
use gristmill_pool::{Pool, TaskResult};
use gristmill_store::Store;
use gristmill_store::cleanup::CleanupRow;
use gristmill_store::jobs::JobRow;
use gristmill_store::lease::{LEASE, WorkerId};
use gristmill_store::tasks::DEFAULT_QUEUE;
use gristmill_store::thumbnails::{ThumbLimits, ThumbnailRow};

use crate::dispatcher::Dispatcher;
use crate::error::Error;
use crate::kind::TaskKind;
use crate::kind_runner::KindRunner;
use crate::lease_renewal::{LeaseRenewer, Presence, renew_until_ended};
use crate::leased_table::{Handler, LeasedTable, RowContext};
use crate::shared_tables::{self, ThumbnailInfo};
use crate::signals::{DispatcherSignals, WaitFor};
use crate::source::WorkSource;
use crate::stats::{RunSummary, RunnerStats, TaskKindStats};
use crate::task_source::{RunnerSettings, TaskSource};

/// How long a stop waits for the threads of pools whose tasks have been released.
const THREAD_EXIT_TIMEOUT: Duration = Duration::from_millis(50);

/// Configures and starts a runner.
pub struct RunnerBuilder {
    store: Store,
    name: String,
    settings: RunnerSettings,
    kinds: Vec<TaskKind>,
    jobs: Option<Handler<JobRow, ()>>,
    thumbnails: Option<(ThumbLimits, Handler<ThumbnailRow, ThumbnailInfo>)>,
    cleanups: Option<Handler<CleanupRow, ()>>,
}

/// Entry point for running durable tasks on bounded pools; see the [crate] documentation.
#[derive(Debug)]
pub struct Runner(());

impl Runner {
    /// Configures a runner of the tasks in `store`.
    pub fn builder(store: Store) -> RunnerBuilder {
        let settings = RunnerSettings {
            queues: vec![DEFAULT_QUEUE.to_owned()],
            lease: LEASE,
            max_crashes: 3,
            retain_finished: None,
            clock: Clock::system(),
        };
        RunnerBuilder {
            store,
            name: format!("pid{}", std::process::id()),
            settings,
            kinds: Vec::new(),
            jobs: None,
            thumbnails: None,
            cleanups: None,
        }
    }
}

impl RunnerBuilder {
    /// Sets the beginning of the worker's name, for example a host and a process; default: `pid` and the process id.
    /// The rest of the name is new with every start.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the queues to serve, the most important first; default: `default`.
    #[must_use]
    pub fn queues<S: Into<String>>(mut self, queues: impl IntoIterator<Item = S>) -> Self {
        self.settings.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how long a claim is valid without a heartbeat, unless the kind sets it; default: 300 seconds, minimum: 100
    /// ms. Heartbeats are sent every tenth of it.
    #[must_use]
    pub fn lease(mut self, length: Duration) -> Self {
        self.settings.lease = length;
        self
    }

    /// Sets after how many crashes of its worker a task becomes a dead letter (a poison pill); default: 3.
    #[must_use]
    pub fn max_crashes(mut self, count: u32) -> Self {
        self.settings.max_crashes = count;
        self
    }

    /// Deletes finished tasks after this time; `None`, the default, keeps them.
    #[must_use]
    pub fn retain_finished(mut self, time: Option<Duration>) -> Self {
        self.settings.retain_finished = time;
        self
    }

    /// Sets the clock for handlers' timeouts, for example a [`ManualClock`](gristmill_pool::clock::ManualClock) in
    /// tests. Leases and schedules use the store's clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.settings.clock = clock.into();
        self
    }

    /// Registers a kind whose tasks the runner claims.
    #[must_use]
    pub fn kind(mut self, kind: TaskKind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Runs the scan and hash jobs of the protocol, one at a time. Without a handler they are not claimed.
    #[must_use]
    pub fn on_job(
        mut self,
        handler: impl Fn(&RowContext<'_, JobRow>) -> TaskResult<()> + Send + Sync + 'static,
    ) -> Self {
        self.jobs = Some(Box::new(handler));
        self
    }

    /// Creates thumbnails. `limits` apply to all workers together. A handler that fails may name the protocol's error
    /// code (`THUMB_…`) as the failed step.
    #[must_use]
    pub fn on_thumbnail(
        mut self,
        limits: ThumbLimits,
        handler: impl Fn(&RowContext<'_, ThumbnailRow>) -> TaskResult<ThumbnailInfo> + Send + Sync + 'static,
    ) -> Self {
        self.thumbnails = Some((limits, Box::new(handler)));
        self
    }

    /// Cleans up groups of thumbnails. Without a handler the clean-ups are not claimed.
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
        if self.settings.queues.is_empty() {
            return setting("no queue to serve; expected: at least one".to_owned());
        }
        let leases = self.kinds.iter().filter_map(|kind| kind.lease).chain([self.settings.lease]);
        if let Some(short) = leases.into_iter().find(|lease| *lease < Duration::from_millis(100)) {
            return setting(format!("a lease of {short:?} is too short; expected: 100 ms or more"));
        }
        if self.settings.max_crashes == 0 {
            return setting("max_crashes is 0; expected: 1 or more".to_owned());
        }
        for (index, kind) in self.kinds.iter().enumerate() {
            let name = kind.name();
            if self.kinds[..index].iter().any(|earlier| earlier.name() == name) {
                return setting(format!("the kind {name:?} is registered twice"));
            }
            if [kind.timeout, kind.own_timeout].contains(&Some(Duration::ZERO)) {
                return setting(format!("the kind {name:?} has a timeout of 0s; expected: a longer one, or none"));
            }
            if kind.max_running == Some(0) {
                return setting(format!("the kind {name:?} may run at most 0 tasks; expected: 1 or more"));
            }
        }
        Ok(())
    }

    /// Checks the settings and starts the runner's threads.
    pub fn start(self) -> Result<RunnerHandle, Error> {
        self.check()?;
        let RunnerBuilder { store, name, settings, kinds, jobs, thumbnails, cleanups } = self;
        let signals = Arc::new(DispatcherSignals::new(store.clone()));
        let worker = WorkerId::new(&name);
        let watcher = store.watch()?;
        let lease = settings.lease;
        // In the order of the protocol, which is the order in which sources are polled.
        let mut sources: Vec<Box<dyn WorkSource>> = Vec::new();
        if let Some(handler) = jobs {
            sources.push(LeasedTable::boxed(&signals, &worker, shared_tables::jobs(handler), lease)?);
        }
        if let Some((limits, handler)) = thumbnails {
            sources.push(LeasedTable::boxed(&signals, &worker, shared_tables::thumbnails(limits, handler), lease)?);
        }
        if let Some(handler) = cleanups {
            sources.push(LeasedTable::boxed(&signals, &worker, shared_tables::cleanups(handler), lease)?);
        }
        sources.push(LeasedTable::boxed(&signals, &worker, shared_tables::wal_checkpoints(), lease)?);
        let tasks = TaskSource::new(signals.clone(), worker.clone(), settings, kinds)?;
        let kinds = tasks.kinds();
        sources.push(Box::new(tasks));

        let shortest = sources.iter().map(|source| source.lease()).min().unwrap_or(LEASE);
        let presence = Arc::new(Presence::new(store, worker.clone(), shortest));
        let renewers = sources.iter().flat_map(|source| source.lease_renewers());
        let renewers: Vec<LeaseRenewer> = renewers.chain([presence.clone().renewer()]).collect();
        let heartbeat = spawn("jobs-heartbeat", {
            let signals = signals.clone();
            move || {
                let _inside = signals.enter();
                renew_until_ended(renewers, &signals.ended);
            }
        })?;
        let recovery_interval = (shortest / 4).clamp(Duration::from_millis(50), Duration::from_secs(30));
        let dispatcher = spawn("jobs-dispatcher", {
            let signals = signals.clone();
            move || {
                let _inside = signals.enter();
                let dispatcher = Dispatcher::new(signals.clone(), sources, watcher, presence, recovery_interval);
                // Callers that wait for the runner must be woken even if the dispatcher panics.
                let result = catch_unwind(AssertUnwindSafe(|| dispatcher.run()))
                    .unwrap_or_else(|_| Err(Error::Thread("the dispatcher panicked".to_owned())));
                signals.set_ended(result);
            }
        });
        let dispatcher = dispatcher.inspect_err(|error| signals.set_ended(Err(error.clone())))?;
        let threads = Mutex::new(vec![dispatcher, heartbeat]);
        Ok(RunnerHandle { signals, worker, kinds, threads })
    }
}

impl fmt::Debug for RunnerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerBuilder")
            .field("settings", &self.settings)
            .field("kinds", &self.kinds)
            .finish_non_exhaustive()
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map_err(|error| Error::Thread(format!("cannot start the thread {name}: {error}")))
}

/// Controls a running runner. Dropping the handle stops the runner and waits until its tasks have ended;
/// [`stop`](Self::stop) does so with a deadline.
///
/// A handler of the same runner cannot wait for it: there, a drop stops the runner and returns at once, and the methods
/// that wait fail with [`Error::CalledInHandler`].
pub struct RunnerHandle {
    signals: Arc<DispatcherSignals>,
    worker: WorkerId,
    /// The kinds of tasks, each with its pool.
    kinds: Vec<(Arc<KindRunner>, Pool<Option<String>>)>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl RunnerHandle {
    /// Name of the worker, which is new with every start.
    pub fn worker(&self) -> &str {
        self.worker.name()
    }

    /// Waits until no task of this runner's queues and kinds is due, running, or waiting for a retry. Tasks scheduled
    /// for a later first run are not waited for.
    pub fn wait_idle(&self) -> Result<(), Error> {
        self.signals.check_outside_handler("wait_idle")?;
        self.signals.wait_idle(WaitFor::Idle)
    }

    /// Waits until no task that this runner can claim is due or running. Tasks that wait for a later retry are not
    /// waited for.
    pub fn wait_no_due_tasks(&self) -> Result<(), Error> {
        self.signals.check_outside_handler("wait_no_due_tasks")?;
        self.signals.wait_idle(WaitFor::NoDueTasks)
    }

    /// Waits up to `limit` until the runner has ended; `None` if it has not. Without a stop it ends only when the store
    /// fails permanently.
    pub fn wait_ended(&self, limit: Duration) -> Option<Result<(), Error>> {
        self.signals.wait_ended(limit)
    }

    /// Stops the runner: nothing more is claimed, running handlers finish, and the call returns within the deadline. In
    /// the last tenth of it, at most one second, handlers are cancelled; tasks whose handler does not end in time are
    /// released.
    pub fn stop(&self, deadline: Duration) -> Result<RunSummary, Error> {
        let end = Instant::now().checked_add(deadline);
        self.signals.stop(deadline);
        self.signals.check_outside_handler("stop")?;
        let ended = self.signals.wait_ended(Duration::MAX).unwrap_or(Ok(()));
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic has been logged already.
            drop(thread.join());
        }
        // Tasks that still run have been released and are not waited for. The pools share one short timeout, within the
        // deadline, for threads that are about to end.
        let exit_deadline = Instant::now() + THREAD_EXIT_TIMEOUT;
        let end = end.map_or(exit_deadline, |end| end.min(exit_deadline));
        self.kinds.iter().for_each(|(_, pool)| pool.cancel());
        for (_, pool) in &self.kinds {
            pool.shutdown(end.saturating_duration_since(Instant::now()));
        }
        let summaries = self.kinds.iter().map(|(runner, _)| RunSummary::of(runner));
        ended.map(|()| summaries.fold(RunSummary::default(), RunSummary::plus))
    }

    /// Returns the counters of the tasks and pools, by kind.
    pub fn stats(&self) -> RunnerStats {
        let kinds = self.kinds.iter().map(|(runner, pool)| TaskKindStats::of(runner, pool));
        RunnerStats { worker: self.worker().to_owned(), kinds: kinds.collect() }
    }
}

impl Drop for RunnerHandle {
    fn drop(&mut self) {
        let running = !self.threads.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if running && self.signals.check_outside_handler("drop").is_err() {
            // The runner ends after this handler.
            return self.signals.stop(Duration::MAX);
        }
        if running && let Err(error) = self.stop(Duration::MAX) {
            tracing::error!(%error, "the runner ended with an error");
        }
    }
}

impl fmt::Debug for RunnerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerHandle").field("worker", &self.worker()).finish_non_exhaustive()
    }
}
