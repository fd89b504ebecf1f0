//! The runner: how it is set up, started and stopped.
//!
//! Owns its two threads, one that claims and settles (the dispatcher) and one that keeps leases, and the order of
//! the sources between them.

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

use crate::dispatcher::Dispatcher;
use crate::error::Error;
use crate::in_flight::CancelToken;
use crate::kind::TaskKind;
use crate::kind_runner::KindRunner;
use crate::lease_renewal::{Presence, PresenceRenewer};
use crate::leased_table::{LeasedRows, LeasedTable, RowContext};
use crate::shared_tables::{self, Handler, ThumbnailInfo};
use crate::signals::{DispatcherSignals, WaitFor};
use crate::source::{LeaseRenewer, WorkSource};
use crate::stats::{RunSummary, RunnerStats};
use crate::task_source::{RunnerSettings, TaskSource};

/// Without a lease to keep, the thread for it looks up this often.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);

/// How long a stop may take for workers that are about to end.
const THREAD_EXIT_TIMEOUT: Duration = Duration::from_millis(50);

/// How a runner is set up.
pub struct RunnerBuilder {
    store: Store,
    name: String,
    settings: RunnerSettings,
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
        self.settings.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// How long a worker may be silent before its tasks go to others, unless their kind says otherwise; 300
    /// seconds without this. Heartbeats come ten times as often.
    #[must_use]
    pub fn lease(mut self, length: Duration) -> Self {
        self.settings.lease = length;
        self
    }

    /// How many workers may die with a task before it is a poison pill; 3 without this.
    #[must_use]
    pub fn max_crashes(mut self, count: u32) -> Self {
        self.settings.max_crashes = count;
        self
    }

    /// Forgets finished tasks after this time; `None`, the default, keeps them.
    #[must_use]
    pub fn retain_finished(mut self, time: Option<Duration>) -> Self {
        self.settings.retain_finished = time;
        self
    }

    /// Takes the time of handlers' timeouts from another clock: a
    /// [`ManualClock`](gristmill_pool::clock::ManualClock) in tests. Leases and schedules go by the store's clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.settings.clock = clock.into();
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
        if self.settings.queues.is_empty() {
            return setting("no queue to serve: name at least one".to_owned());
        }
        let leases = self.kinds.iter().filter_map(|kind| kind.lease).chain([self.settings.lease]);
        if let Some(short) = leases.into_iter().find(|lease| *lease < Duration::from_millis(100)) {
            return setting(format!("a lease of {short:?} is too short; 100 ms or more is legal"));
        }
        if self.settings.max_crashes == 0 {
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
            if kind.max_running == Some(0) {
                return setting(format!("the kind {name:?} may run at most 0 tasks; 1 or more is legal"));
            }
        }
        Ok(())
    }

    /// Starts to work, in threads of its own.
    pub fn start(self) -> Result<RunnerHandle, Error> {
        self.check()?;
        let RunnerBuilder { store, name, settings, kinds, jobs, thumbnails, cleanups } = self;
        let signals = Arc::new(DispatcherSignals::new(store.clone()));
        let worker = WorkerId::new(&name);
        let watcher = store.watch()?;
        // In the order of the protocol: this is the order in which work is polled for.
        let mut sources = Sources {
            signals: signals.clone(),
            worker: worker.clone(),
            lease: settings.lease,
            sources: vec![],
            renewers: vec![],
        };
        if let Some(handler) = jobs {
            sources.add(shared_tables::Jobs(handler))?;
        }
        if let Some((limits, handler)) = thumbnails {
            sources.add(shared_tables::Thumbnails { handler, limits })?;
        }
        if let Some(handler) = cleanups {
            sources.add(shared_tables::Cleanups(handler))?;
        }
        sources.add(shared_tables::WalCheckpoints)?;
        let Sources { mut sources, mut renewers, .. } = sources;
        let tasks = TaskSource::new(signals.clone(), worker.clone(), settings, kinds)?;
        let runners = tasks.runners().to_vec();
        renewers.extend(tasks.lease_renewers());
        sources.push(Box::new(tasks));

        let leases: Vec<Duration> = sources.iter().map(|source| source.lease()).collect();
        let presence = Arc::new(Presence::new(store, worker.clone(), &leases));
        renewers.push(Box::new(PresenceRenewer::new(presence.clone())));
        let heartbeat_stop = Arc::new(CancelToken::default());
        let heartbeat = spawn("jobs-heartbeat", {
            let (signals, heartbeat_stop) = (signals.clone(), heartbeat_stop.clone());
            move || {
                let _inside = signals.enter();
                renew_leases_until_stopped(renewers, &heartbeat_stop);
            }
        })?;
        let recovery_interval = sources.iter().map(|source| source.lease()).min().unwrap_or(LEASE) / 4;
        let recovery_interval = recovery_interval.clamp(Duration::from_millis(50), Duration::from_secs(30));
        let dispatcher = spawn("jobs-dispatcher", {
            let signals = signals.clone();
            move || {
                let _inside = signals.enter();
                let dispatcher =
                    Dispatcher::new(signals.clone(), sources, watcher, presence, recovery_interval);
                // Whoever waits for the runner has to learn that it is gone, whatever became of it.
                let result = catch_unwind(AssertUnwindSafe(|| dispatcher.run()))
                    .unwrap_or_else(|_| Err(Error::Thread("the dispatcher panicked".to_owned())));
                heartbeat_stop.cancel();
                signals.set_ended(result);
            }
        });
        let dispatcher = dispatcher.inspect_err(|_| signals.stop(Duration::ZERO))?;
        let threads = Mutex::new(vec![dispatcher, heartbeat]);
        Ok(RunnerHandle { signals, worker, runners, threads })
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

/// The sources of the protocol, as they are set up.
struct Sources {
    signals: Arc<DispatcherSignals>,
    worker: WorkerId,
    lease: Duration,
    sources: Vec<Box<dyn WorkSource>>,
    renewers: Vec<Box<dyn LeaseRenewer>>,
}

impl Sources {
    fn add(&mut self, table: impl LeasedRows) -> Result<(), Error> {
        let source = LeasedTable::new(self.signals.clone(), self.worker.clone(), table, self.lease)?;
        self.renewers.push(source.lease_renewer());
        self.sources.push(Box::new(source));
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
    signals: Arc<DispatcherSignals>,
    worker: WorkerId,
    runners: Vec<Arc<KindRunner>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl RunnerHandle {
    /// The worker's name, new with this start.
    pub fn worker(&self) -> &str {
        self.worker.name()
    }

    /// Waits until nothing is due, nothing runs, and nothing waits to be tried again: in the queues and of the kinds of
    /// this runner. TaskSource that are scheduled for a first run later are not waited for.
    pub fn wait_idle(&self) -> Result<(), Error> {
        self.signals.check_outside_handler("wait_idle")?;
        self.signals.wait_idle(WaitFor::Idle)
    }

    /// Waits until nothing that this runner can claim is due, and nothing runs. Retries that wait for their time are
    /// not waited for.
    pub fn wait_no_due_tasks(&self) -> Result<(), Error> {
        self.signals.check_outside_handler("wait_no_due_tasks")?;
        self.signals.wait_idle(WaitFor::NoDueTasks)
    }

    /// Waits, at most so long, for the runner to end by itself, which it does when its store fails for good.
    /// Nothing when it has not.
    pub fn wait_ended(&self, limit: Duration) -> Option<Result<(), Error>> {
        self.signals.wait_ended(Some(limit))
    }

    /// Claims nothing more, lets what runs finish, and returns within the deadline. Its last tenth, at most a
    /// second, is for handlers to stop in; what has not stopped by then goes back to the queue.
    pub fn stop(&self, deadline: Duration) -> Result<RunSummary, Error> {
        let end = Instant::now().checked_add(deadline);
        self.signals.stop(deadline);
        self.signals.check_outside_handler("stop")?;
        let ended = self.signals.wait_ended(None).unwrap_or(Ok(()));
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // Panics are logged where they happen; there is nothing to add here.
            drop(thread.join());
        }
        // What still runs has been released: it is not waited for. A moment, one for all of them and within the deadline,
        // for threads that are about to end.
        let moment = Instant::now() + THREAD_EXIT_TIMEOUT;
        let end = end.map_or(moment, |end| end.min(moment));
        self.runners.iter().for_each(|runner| runner.pool.cancel());
        for runner in &self.runners {
            runner.pool.shutdown(end.saturating_duration_since(Instant::now()));
        }
        ended.map(|()| RunSummary::of(&self.runners))
    }

    /// Counters and durations, by kind.
    pub fn stats(&self) -> RunnerStats {
        RunnerStats::of(self.worker(), &self.runners)
    }
}

impl Drop for RunnerHandle {
    fn drop(&mut self) {
        let running = !self.threads.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if running && self.signals.check_outside_handler("drop").is_err() {
            // The runner ends by itself when this handler has.
            return self.signals.stop(Duration::MAX);
        }
        if running && let Err(error) = self.stop(Duration::MAX) {
            tracing::error!(%error, "a runner ended with an error");
        }
    }
}

impl fmt::Debug for RunnerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerHandle").field("worker", &self.worker()).finish_non_exhaustive()
    }
}

/// Keeps leases until told that it is heartbeat_stop. A thread of its own: neither a handler that never yields nor a
/// dispatcher that waits for the disk keeps it from its work.
fn renew_leases_until_stopped(mut sources: Vec<Box<dyn LeaseRenewer>>, heartbeat_stop: &CancelToken) {
    loop {
        let next =
            sources.iter().map(|source| source.due()).min().unwrap_or_else(|| Instant::now() + IDLE_INTERVAL);
        if heartbeat_stop.wait(next.saturating_duration_since(Instant::now())) {
            return;
        }
        let now = Instant::now();
        for source in sources.iter_mut().filter(|source| source.due() <= now) {
            if let Err(error) = source.renew() {
                tracing::warn!(%error, "leases could not be prolonged; trying again");
            }
        }
    }
}
