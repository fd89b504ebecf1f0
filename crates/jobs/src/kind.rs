//! Kinds of tasks: the handler of a kind and its settings.
//!
//! Owns the settings and their defaults, and the outcome of a failed attempt by the class of its error.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gristmill_pool::error::Cause;
use gristmill_pool::{Breaker, ErrorClass, Retry, TaskError, TaskResult};
use gristmill_store::UtcTime;
use gristmill_store::dead_letters::DeadLetter;
use gristmill_store::tasks::{ClaimedTask, Disposition, NewTask, TaskFailure};

use crate::exec;
use crate::task_context::TaskContext;

type Handler = dyn Fn(&TaskContext<'_>) -> TaskResult<()> + Send + Sync;
type Cleanup = dyn Fn(&DeadLetter) -> TaskResult<()> + Send + Sync;
type Rebuild = dyn Fn(&DeadLetter) -> Result<NewTask, String> + Send + Sync;

/// Defines how tasks of one kind are run: the handler, the number of workers, timeouts and retries.
///
/// ```
/// use gristmill_jobs::TaskKind;
/// use gristmill_pool::Retry;
/// use std::time::Duration;
///
/// let kind = TaskKind::new("resize", |task| {
///     let path: String = task.parse()?;
///     println!("attempt {} at {path}", task.attempt());
///     Ok(())
/// })
/// .workers(2)
/// .timeout(Duration::from_secs(60))
/// .retry(Retry::exponential(5, Duration::from_secs(1)).max_delay(Duration::from_secs(600)));
/// assert_eq!(kind.name(), "resize");
/// ```
#[derive(Clone)]
pub struct TaskKind {
    pub(crate) name: Arc<str>,
    pub(crate) handler: Arc<Handler>,
    pub(crate) workers: usize,
    pub(crate) max_running: Option<usize>,
    pub(crate) lease: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) logs_starts: bool,
    pub(crate) retry: Retry,
    pub(crate) breaker: Option<Breaker>,
    pub(crate) cleanup: Option<Arc<Cleanup>>,
    pub(crate) rebuild: Option<Arc<Rebuild>>,
    /// Timeout that the handler itself applies, unless the payload sets another.
    pub(crate) own_timeout: Option<Duration>,
}

impl TaskKind {
    /// Creates the kind `name`, whose tasks are run by `handler`. Defaults: one worker for each core, five attempts
    /// with delays from one second to ten minutes, no timeout.
    ///
    /// The handler's return value decides the outcome: `Ok` completes the task; a transient or partial error is retried
    /// later; a permanent error, a panic, or the last failed attempt makes it a dead letter.
    pub fn new(name: &str, handler: impl Fn(&TaskContext<'_>) -> TaskResult<()> + Send + Sync + 'static) -> Self {
        TaskKind {
            name: name.into(),
            handler: Arc::new(handler),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            max_running: None,
            lease: None,
            timeout: None,
            logs_starts: false,
            retry: Retry::exponential(5, Duration::from_secs(1)).max_delay(Duration::from_secs(600)),
            breaker: None,
            cleanup: None,
            rebuild: None,
            own_timeout: None,
        }
    }

    /// Name of the kind, as tasks in the store have it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets how many tasks run at a time in this process; default: the number of cores.
    #[must_use]
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// Limits how many tasks are claimed at a time by all processes that use the store; default: no limit.
    #[must_use]
    pub fn max_running(mut self, count: usize) -> Self {
        self.max_running = Some(count);
        self
    }

    /// Sets how long a claim is valid without a heartbeat; default: the [runner's](crate::RunnerBuilder::lease).
    #[must_use]
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }

    /// Limits the duration of one attempt; default: no limit. A runner does not start if it is zero.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Writes each start to a file before the handler runs, so that it is known even if the process is killed at once.
    /// By default a start is recorded after the handler has run for 100 ms, unless a worker died with the task before.
    #[must_use]
    pub fn log_starts(mut self) -> Self {
        self.logs_starts = true;
        self
    }

    /// Sets the number of attempts and the delays between them.
    #[must_use]
    pub fn retry(mut self, policy: Retry) -> Self {
        self.retry = policy;
        self
    }

    /// Adds a circuit breaker. While it is open, tasks wait in the store, and no attempt is counted.
    #[must_use]
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// Sets a function that cleans up after a task that has become a dead letter. It is called again for the same dead
    /// letter if it fails or the process crashes.
    #[must_use]
    pub fn on_exhausted(mut self, cleanup: impl Fn(&DeadLetter) -> TaskResult<()> + Send + Sync + 'static) -> Self {
        self.cleanup = Some(Arc::new(cleanup));
        self
    }

    /// Sets how a task is rebuilt from its dead letter; by default it gets the payload that the dead letter has.
    #[must_use]
    pub fn rebuild_with(
        mut self,
        rebuild: impl Fn(&DeadLetter) -> Result<NewTask, String> + Send + Sync + 'static,
    ) -> Self {
        self.rebuild = Some(Arc::new(rebuild));
        self
    }

    /// Outcome of a task whose attempt failed with `error`.
    pub(crate) fn classify(&self, task: &ClaimedTask, error: &TaskError, now: UtcTime) -> Disposition {
        let failed = task.attempts.saturating_add(1);
        let max_attempts = task.max_attempts.unwrap_or_else(|| self.retry.max_attempts());
        let text = describe(error);
        let failure = TaskFailure {
            reason: one_line(&text),
            step: error.step().map(str::to_owned),
            output: exec::output_of(error).unwrap_or_else(|| beyond_first_line(&text)),
            details: Some(details(error, text, failed, max_attempts)),
        };
        if error.class() == ErrorClass::Permanent || failed >= max_attempts {
            return Disposition::DeadLettered(failure);
        }
        let delay = self.retry.delay(failed).max(error.retry_after().unwrap_or_default());
        Disposition::Retry(now.plus(delay), failure)
    }
}

/// The text of an error. Names the timeout as the kind's setting.
fn describe(error: &TaskError) -> String {
    let Cause::TimedOut(limit) = error.cause() else { return error.to_string() };
    let step = error.step().map_or_else(String::new, |step| format!("{step}: "));
    format!("{step}exceeded the timeout of {limit:?}")
}

/// The first line of an error, up to 500 characters, for tables; the details contain the whole error.
fn one_line(text: &str) -> String {
    let line: String = text.lines().next().unwrap_or_default().chars().take(500).collect();
    if line.is_empty() { "no reason given".to_owned() } else { line }
}

fn beyond_first_line(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('\n')?;
    Some(rest.trim_end().to_owned()).filter(|rest| !rest.is_empty())
}

fn details(error: &TaskError, mut text: String, failed: u32, max_attempts: u32) -> String {
    let class = match error.class() {
        ErrorClass::Transient => "transient",
        ErrorClass::Partial => "partial",
        ErrorClass::Permanent => "permanent",
    };
    text.push_str(&format!("\nclass: {class}, attempt {failed} of {max_attempts}"));
    if let Cause::Panic { backtrace, .. } = error.cause() {
        text.push_str(&format!("\n\nbacktrace:\n{backtrace}"));
    }
    // At most 64 KiB, because there may be many dead letters.
    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= 64 << 10).unwrap_or(text.len());
    text.truncate(end);
    text
}

impl fmt::Debug for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskKind")
            .field("name", &self.name)
            .field("workers", &self.workers)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
