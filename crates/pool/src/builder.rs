//! The settings of a pool, and the one place that validates them and fills in the defaults.

use crate::{
    breaker::Breaker,
    clock::Clock,
    core::Core,
    outcome::{Outcome, Outcomes},
    panics,
    pool::Pool,
    queue::QueueOrder,
    results::{ResultOrder, ResultQueue, Results},
    stall,
    sync::Arc,
    worker::{Threads, Worker},
};
use std::{error::Error, fmt, io, time::Duration};

/// Settings of a [`Pool`]. All have defaults: one worker per core, and a queue of ten tasks per worker.
#[derive(Debug, Clone)]
#[must_use]
pub struct PoolBuilder {
    name: String,
    workers: usize,
    queue_capacity: Option<usize>,
    order: QueueOrder,
    timeout: Option<Duration>,
    stall_timeout: Option<Duration>,
    breaker: Option<Breaker>,
    result_capacity: Option<usize>,
    keep_failures: usize,
    clock: Clock,
}

/// Validated settings with defaults filled in.
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) workers: usize,
    pub(crate) queue_capacity: usize,
    pub(crate) order: QueueOrder,
    pub(crate) timeout: Option<Duration>,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) breaker: Option<Breaker>,
    pub(crate) result_capacity: usize,
    pub(crate) keep_failures: usize,
    pub(crate) clock: Clock,
}

impl Config {
    pub(crate) fn is_ranked(&self) -> bool {
        self.order != QueueOrder::Fifo
    }

    /// In submit order, the number of tasks that may be accepted but not yet delivered to the reader.
    pub(crate) fn max_ahead_of_reader(&self) -> usize {
        self.queue_capacity.saturating_add(self.workers).saturating_add(self.result_capacity)
    }
}

/// Why a pool could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting that must be more than 0 is 0.
    Zero {
        /// Name of the builder's method.
        setting: &'static str,
    },
    /// The calling thread is in no tokio runtime, which an async pool needs.
    NoRuntime,
    /// The timer thread, which retries, timeouts and deadlines need, could not be started.
    Clock {
        /// Error of the operating system.
        source: io::Error,
    },
    /// A worker could not be started.
    Start {
        /// Number of the worker, from 0.
        worker: usize,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { setting } => write!(f, "cannot build a pool: `{setting}` is 0; it must be greater than 0"),
            Self::NoRuntime => {
                f.write_str("cannot build an async pool: no tokio runtime on this thread; build it inside one")
            }
            Self::Clock { source } => write!(f, "cannot start the timer thread: {source}"),
            Self::Start { worker, source } => write!(f, "cannot start worker {worker}: {source}"),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Clock { source } | Self::Start { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Default for PoolBuilder {
    fn default() -> Self {
        Self {
            name: "gristmill".into(),
            workers: cores(),
            queue_capacity: None,
            order: QueueOrder::default(),
            timeout: None,
            stall_timeout: None,
            breaker: None,
            result_capacity: None,
            keep_failures: usize::MAX,
            clock: Clock::system(),
        }
    }
}

impl PoolBuilder {
    /// Creates a builder with the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name of the pool in logs and of its threads in the operating system. Default: `gristmill`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the number of tasks that run at once. Panics and stalls do not reduce it. Default: one per core.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// Sets `factor` workers per core but at most `max` in total, for work that waits.
    pub fn workers_per_core(self, factor: usize, max: usize) -> Self {
        self.workers(cores().saturating_mul(factor).min(max))
    }

    /// Sets how many tasks may wait in the queue before `submit` waits. Tasks between two attempts count, spawned tasks
    /// do not. Workers whose tasks take microseconds pop several at once; popped tasks no longer count, and are at most
    /// half of the capacity in total. Default: ten per worker.
    pub fn queue_capacity(mut self, capacity: usize) -> Self {
        self.queue_capacity = Some(capacity);
        self
    }

    /// Sets the order in which waiting tasks start. Default: first in, first out.
    pub fn order(mut self, order: QueueOrder) -> Self {
        self.order = order;
        self
    }

    /// Sets the time that one attempt of a task may take, unless the [task](crate::Task::timeout) sets its own. After
    /// it an async task is dropped. A thread cannot be: its [`Context`](crate::Context) reports that the task is
    /// cancelled, and the worker counts as overdue until the task returns. Default: no limit.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Replaces a worker whose task has given no [`heartbeat`](crate::Context::heartbeat) for this time. The task
    /// fails, and its result is discarded if it returns after all. Default: never.
    pub fn stall_timeout(mut self, limit: Duration) -> Self {
        self.stall_timeout = Some(limit);
        self
    }

    /// Guards every task with a circuit breaker. While it is open, tasks with a retry policy are delayed and others
    /// fail at once. Transient and partial failures and panics count as failures of the service; permanent ones do not,
    /// because they concern the task alone.
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// Sets how many results may wait to be read before workers start no new tasks. Default: the queue's capacity.
    pub fn result_capacity(mut self, capacity: usize) -> Self {
        self.result_capacity = Some(capacity);
        self
    }

    /// Sets how many failures the [`Report`](crate::Report) keeps in full; it counts all of them in any case. For pools
    /// that live long or whose failures are read from their results. Default: all.
    pub fn keep_failures(mut self, count: usize) -> Self {
        self.keep_failures = count;
        self
    }

    /// Sets the clock, for example a [`ManualClock`](crate::clock::ManualClock) in tests. Default: the system's.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    pub(crate) fn into_config(self) -> Result<Config, BuildError> {
        let queue_capacity = self.queue_capacity.unwrap_or(self.workers.saturating_mul(10));
        let result_capacity = self.result_capacity.unwrap_or(queue_capacity);
        let zeros = [
            ("workers", self.workers == 0),
            ("queue_capacity", queue_capacity == 0),
            ("result_capacity", result_capacity == 0),
            ("timeout", self.timeout.is_some_and(|limit| limit.is_zero())),
            ("stall_timeout", self.stall_timeout.is_some_and(|limit| limit.is_zero())),
        ];
        if let Some((setting, _)) = zeros.into_iter().find(|(_, zero)| *zero) {
            return Err(BuildError::Zero { setting });
        }
        Ok(Config {
            name: self.name,
            workers: self.workers,
            queue_capacity,
            order: self.order,
            timeout: self.timeout,
            stall_timeout: self.stall_timeout,
            breaker: self.breaker,
            result_capacity,
            keep_failures: self.keep_failures,
            clock: self.clock,
        })
    }

    pub(crate) fn start<T: Send + 'static, W: Worker>(
        self,
        runtime: W::Runtime,
        outcomes: impl FnOnce(&Config) -> Outcomes<T>,
    ) -> Result<Pool<T, W>, BuildError> {
        let config = self.into_config()?;
        config.clock.start().map_err(|source| BuildError::Clock { source })?;
        panics::install_hook();
        let (worker_count, stall_timeout) = (config.workers, config.stall_timeout);
        let outcomes = outcomes(&config);
        let core = Arc::new(Core::new(config, runtime, outcomes));
        let pool = Pool::new(Arc::clone(&core));
        // All are registered before the first one starts: otherwise it could find no other worker and end the pool.
        let workers: Vec<_> = (0..worker_count).map(|_| core.register()).collect();
        for (worker_id, worker) in workers.iter().enumerate() {
            match W::start(Arc::clone(worker)) {
                Ok(handle) => core.store_handle(worker_id, handle),
                Err(source) => {
                    pool.cancel();
                    workers[worker_id..].iter().for_each(|worker| core.on_exit(worker, Default::default()));
                    return Err(BuildError::Start { worker: worker_id, source });
                }
            }
        }
        if let Some(limit) = stall_timeout {
            stall::start(&core, limit);
        }
        Ok(pool)
    }

    pub(crate) fn start_with_results<T: Send + 'static, W: Worker>(
        self,
        runtime: W::Runtime,
        result_order: ResultOrder,
    ) -> Result<(Pool<T, W>, Results<T>), BuildError> {
        let pool = self.start(runtime, |config| {
            Outcomes::Queue(Arc::new(ResultQueue::new(result_order, config.result_capacity, config.workers)))
        })?;
        let core = Arc::clone(pool.core());
        let queue = core.outcomes.queue().map(Arc::clone).expect("the outcomes go to a queue");
        Ok((pool, Results::new(queue, Box::new(move || core.on_results_read()))))
    }

    /// Builds a pool of threads whose tasks return no values.
    pub fn build(self) -> Result<Pool, BuildError> {
        self.start((), |_| Outcomes::Discard)
    }

    /// Builds a pool of threads and an iterator over the results of its tasks.
    pub fn build_with_results<T: Send + 'static>(
        self,
        result_order: ResultOrder,
    ) -> Result<(Pool<T>, Results<T>), BuildError> {
        self.start_with_results::<T, Threads>((), result_order)
    }

    /// Builds a pool of threads that calls `on_outcome` with the outcome of every task that was started, except tasks
    /// that [`shutdown`](Pool::shutdown) had to abandon.
    ///
    /// The callback runs on the worker that settled the task, which starts no other task meanwhile. For a stalled task
    /// it runs on the thread of the clock, and for a task that waited for a retry when the pool was cancelled on the
    /// thread that cancelled it. It therefore should not block. It runs after the statistics were updated and the
    /// breaker was informed, and outside every lock, so it may use the pool; `submit` does not wait in it, and
    /// waiting for the pool's end returns at once. A panic in it is caught and logged. The pool ends after the last
    /// callback has returned, so one that blocks delays even [`shutdown`](Pool::shutdown).
    ///
    /// ```
    /// use gristmill_pool::{Outcome, Pool};
    /// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
    ///
    /// let total = Arc::new(AtomicUsize::new(0));
    /// let sum = Arc::clone(&total);
    /// let pool = Pool::builder().workers(2).build_with_callback(move |outcome: Outcome<usize>| match outcome.result {
    ///     Ok(length) => {
    ///         sum.fetch_add(length, Ordering::Relaxed);
    ///     }
    ///     Err(failure) => eprintln!("{failure}, after {:?}", outcome.duration),
    /// })?;
    /// for word in ["grist", "for", "the", "mill"] {
    ///     pool.submit(move |_| Ok(word.len()))?;
    /// }
    /// pool.join();
    /// assert_eq!(total.load(Ordering::Relaxed), 15);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_with_callback<T: Send + 'static>(
        self,
        on_outcome: impl Fn(Outcome<T>) + Send + Sync + 'static,
    ) -> Result<Pool<T>, BuildError> {
        self.start((), |_| Outcomes::Callback(Box::new(on_outcome)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_depend_on_cores_and_workers() {
        let config = |builder: PoolBuilder| builder.into_config().unwrap();
        assert_eq!(config(PoolBuilder::new()).workers, cores());
        assert_eq!(config(PoolBuilder::new().workers(3)).queue_capacity, 30);
        assert_eq!(config(PoolBuilder::new().workers(3)).result_capacity, 30);
        assert_eq!(config(PoolBuilder::new().workers_per_core(4, 200)).workers, (cores() * 4).min(200));
        assert_eq!(config(PoolBuilder::new().workers_per_core(usize::MAX, 200)).workers, 200);
    }
}
