//! What a user sets about a pool, and the one place where that becomes what the pool uses.

use crate::{
    breaker::Breaker,
    clock::Clock,
    core::Core,
    panics,
    pool::Pool,
    queue::QueueOrder,
    results::{ResultOrder, ResultQueue, Results},
    stall,
    sync::Arc,
    worker::{Threads, Worker},
};
use std::{error::Error, fmt, io, time::Duration};

/// Settings of a [`Pool`]. Everything has a default: one worker a core, a queue ten times as long.
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

/// Checked and complete.
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) workers: usize,
    pub(crate) queue_capacity: usize,
    pub(crate) order: QueueOrder,
    pub(crate) timeout: Option<Duration>,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) breaker: Option<Breaker>,
    pub(crate) result_capacity: usize,
    pub(crate) in_submit_order: bool,
    pub(crate) keep_failures: usize,
    pub(crate) clock: Clock,
}

impl Config {
    pub(crate) fn is_ranked(&self) -> bool {
        self.order != QueueOrder::Fifo
    }

    /// In submit order: how far the tasks taken in may be ahead of the results next_sequence.
    pub(crate) fn max_ahead_of_reader(&self) -> usize {
        self.queue_capacity.saturating_add(self.workers).saturating_add(self.result_capacity)
    }
}

/// Settings that make no pool.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// This setting must be at least 1 (a time: longer than nothing).
    Zero {
        /// Which.
        setting: &'static str,
    },
    /// There is no tokio runtime here; build the pool inside of one.
    NoRuntime,
    /// The system would not start the thread that retries, timeouts and deadlines need.
    Clock {
        /// What the system said.
        source: io::Error,
    },
    /// The system would not start a worker.
    Start {
        /// Which, from 0.
        worker: usize,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { setting } => write!(f, "a pool's `{setting}` must be more than 0"),
            Self::NoRuntime => f.write_str("no tokio runtime here: build an async pool inside of one"),
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

type StartedPool<T, W> = (Pool<T, W>, Option<Arc<ResultQueue<T>>>);

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
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the pool is called in logs, and its threads in the system.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many tasks run at a time. The number never shrinks: not by panics, not by stalls.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// One worker a core: for work that computes.
    pub fn cores(self) -> Self {
        self.workers(cores())
    }

    /// So many workers a core, but no more than `cap` in all: for work that waits.
    pub fn workers_per_core(self, factor: usize, cap: usize) -> Self {
        self.workers(cores().saturating_mul(factor).min(cap))
    }

    /// How many tasks may wait; then `submit` waits too. Tasks between two attempts count, spawned ones do
    /// not. (Workers whose tasks take microseconds take several at a time, together at most half as many
    /// again.)
    pub fn queue_capacity(mut self, capacity: usize) -> Self {
        self.queue_capacity = Some(capacity);
        self
    }

    /// In what order tasks are started.
    pub fn order(mut self, order: QueueOrder) -> Self {
        self.order = order;
        self
    }

    /// How long one attempt at a task may take, unless the task says otherwise. An async task is then
    /// dropped. A thread cannot be: its [`Context`](crate::Context) tells it to stop, and until it does
    /// the worker is counted as overdue.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Replaces a worker that has been inside one task for so long without a
    /// [`heartbeat`](crate::Context::heartbeat). The task has then failed; if it comes back after all, its
    /// result is discarded.
    pub fn stall_timeout(mut self, silence: Duration) -> Self {
        self.stall_timeout = Some(silence);
        self
    }

    /// Puts a circuit breaker in front of every task. While it is open, tasks with a retry policy are put
    /// off and others fail at once. Transient and partial failures and panics count against it, permanent
    /// ones do not: they say something about the task.
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// How many results may wait to be read before workers start nothing new; as many as the queue holds,
    /// unless set.
    pub fn result_capacity(mut self, capacity: usize) -> Self {
        self.result_capacity = Some(capacity);
        self
    }

    /// How many failures the [`Report`](crate::Report) keeps in full; all, unless set. It counts all of them
    /// in any case. For pools that live long, or whose failures are read from their results.
    pub fn keep_failures(mut self, count: usize) -> Self {
        self.keep_failures = count;
        self
    }

    /// Takes time from another clock: a [`ManualClock`](crate::clock::ManualClock) in tests.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    pub(crate) fn into_config(self, result_order: Option<ResultOrder>) -> Result<Config, BuildError> {
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
            in_submit_order: result_order == Some(ResultOrder::AsSubmitted),
            keep_failures: self.keep_failures,
            clock: self.clock,
        })
    }

    pub(crate) fn start<T: Send + 'static, W: Worker>(
        self,
        runtime: W::Runtime,
        result_order: Option<ResultOrder>,
    ) -> Result<StartedPool<T, W>, BuildError> {
        let config = self.into_config(result_order)?;
        config.clock.start().map_err(|source| BuildError::Clock { source })?;
        panics::install_hook();
        let result_queue = result_order.map(|result_order| {
            Arc::new(ResultQueue::new(result_order, config.result_capacity, config.workers))
        });
        let (worker_count, stall_timeout) = (config.workers, config.stall_timeout);
        let core = Arc::new(Core::new(config, runtime, result_queue.clone()));
        let pool = Pool::new(Arc::clone(&core));
        // All have their places before the first one starts: it could otherwise find itself the last.
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
        Ok((pool, result_queue))
    }

    pub(crate) fn start_with_results<T: Send + 'static, W: Worker>(
        self,
        runtime: W::Runtime,
        result_order: ResultOrder,
    ) -> Result<(Pool<T, W>, Results<T>), BuildError> {
        let (pool, result_queue) = self.start::<T, W>(runtime, Some(result_order))?;
        let core = Arc::clone(pool.core());
        let result_queue = result_queue.expect("made with a result_order");
        Ok((pool, Results::new(result_queue, Box::new(move || core.on_results_read()))))
    }

    /// A pool of threads whose tasks make nothing but effects.
    pub fn build(self) -> Result<Pool, BuildError> {
        Ok(self.start::<(), Threads>((), None)?.0)
    }

    /// A pool of threads, and what its tasks make.
    pub fn build_with_results<T: Send + 'static>(
        self,
        result_order: ResultOrder,
    ) -> Result<(Pool<T>, Results<T>), BuildError> {
        self.start_with_results::<T, Threads>((), result_order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_may_be_zero() {
        let check = |builder: PoolBuilder, want: &str| match builder.into_config(None) {
            Err(BuildError::Zero { setting }) => assert_eq!(setting, want),
            _ => panic!("{want} = 0 was let through"),
        };
        check(PoolBuilder::new().workers(0), "workers");
        check(PoolBuilder::new().queue_capacity(0), "queue_capacity");
        check(PoolBuilder::new().result_capacity(0), "result_capacity");
        check(PoolBuilder::new().timeout(Duration::ZERO), "timeout");
        check(PoolBuilder::new().stall_timeout(Duration::ZERO), "stall_timeout");
        check(PoolBuilder::new().workers_per_core(4, 0), "workers");
    }

    #[test]
    fn presets() {
        let config = |builder: PoolBuilder| builder.into_config(None).unwrap();
        assert_eq!(config(PoolBuilder::new()).workers, cores());
        assert_eq!(config(PoolBuilder::new().workers(3)).queue_capacity, 30);
        assert_eq!(config(PoolBuilder::new().workers(3)).result_capacity, 30);
        assert_eq!(config(PoolBuilder::new().workers(1).cores()).workers, cores());
        assert_eq!(config(PoolBuilder::new().workers_per_core(4, 200)).workers, (cores() * 4).min(200));
        assert_eq!(config(PoolBuilder::new().workers_per_core(usize::MAX, 200)).workers, 200);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let error = PoolBuilder::new().queue_capacity(0).build().unwrap_err();
        assert_eq!(error.to_string(), "a pool's `queue_capacity` must be more than 0");
    }
}
