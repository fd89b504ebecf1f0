//! A kind of task: what runs it, and under which settings.
//!
//! Owns the settings and their defaults, and the judgement of a failed attempt by its error's class.

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

/// How tasks of one kind are run: by which handler, on how many workers, with what patience.
///
/// ```
/// use gristmill_jobs::Kind;
/// use gristmill_pool::Retry;
/// use std::time::Duration;
///
/// let kind = Kind::new("resize", |work| {
///     let path: String = work.parse()?;
///     println!("attempt {} at {path}", work.attempt());
///     Ok(())
/// })
/// .workers(2)
/// .timeout(Duration::from_secs(60))
/// .retry(Retry::exponential(5, Duration::from_secs(1)).cap(Duration::from_secs(600)));
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
    /// The limit that a handler applies by itself, unless a payload says otherwise.
    pub(crate) own_timeout: Option<Duration>,
}

impl TaskKind {
    /// Tasks of the kind `name`, run by `handler`: as many at a time as there are cores, five attempts with
    /// waits from a second to ten minutes, no time limit.
    ///
    /// The handler's return value decides: `Ok` completes the task; a transient or partial error has it tried
    /// again later; a permanent one, a panic, or the last attempt makes it a dead letter.
    pub fn new(
        name: &str,
        handler: impl Fn(&TaskContext<'_>) -> TaskResult<()> + Send + Sync + 'static,
    ) -> Self {
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

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many run at a time in this process.
    #[must_use]
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// How many may be claimed at a time in all processes on the store together.
    #[must_use]
    pub fn max_running(mut self, count: usize) -> Self {
        self.max_running = Some(count);
        self
    }

    /// How long a worker may be silent before its tasks go to others; without this, as the runner says.
    #[must_use]
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }

    /// How long one attempt may take: longer than nothing, or the runner does not start.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Notes each start in a file before the handler runs, so that it is known even if the process is killed at once.
    /// Without this a start is recorded when its handler has run for a tenth of a second, unless a worker died with the
    /// task before.
    #[must_use]
    pub fn log_starts(mut self) -> Self {
        self.logs_starts = true;
        self
    }

    /// How often, and after how long, a failed task is tried again.
    #[must_use]
    pub fn retry(mut self, policy: Retry) -> Self {
        self.retry = policy;
        self
    }

    /// Stops trying for a while what keeps failing. Tasks wait meanwhile; it costs them no attempt.
    #[must_use]
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// Called when a task was given up, to put right what it left half-done. It may be called again for the
    /// same letter, after a crash or when it fails.
    #[must_use]
    pub fn on_exhausted(
        mut self,
        cleanup: impl Fn(&DeadLetter) -> TaskResult<()> + Send + Sync + 'static,
    ) -> Self {
        self.cleanup = Some(Arc::new(cleanup));
        self
    }

    /// Makes the task again from its dead letter; without this, with the payload that the letter kept.
    #[must_use]
    pub fn rebuild_with(
        mut self,
        rebuild: impl Fn(&DeadLetter) -> Result<NewTask, String> + Send + Sync + 'static,
    ) -> Self {
        self.rebuild = Some(Arc::new(rebuild));
        self
    }

    /// What a failed attempt means for its task.
    pub(crate) fn classify(&self, task: &ClaimedTask, error: &TaskError, now: UtcTime) -> Disposition {
        let failed = task.attempts.saturating_add(1);
        let max_attempts = task.max_attempts.unwrap_or_else(|| self.retry.max_attempts());
        let failure = TaskFailure {
            reason: one_line(error),
            step: error.step().map(str::to_owned),
            details: Some(details(error, failed, max_attempts)),
            output: exec::output_of(error).unwrap_or_else(|| beyond_first_line(error)),
        };
        if error.class() == ErrorClass::Permanent || failed >= max_attempts {
            return Disposition::DeadLettered(failure);
        }
        let delay = self.retry.delay(failed).max(error.retry_after().unwrap_or_default());
        Disposition::Retry(now.plus(delay), failure)
    }
}

/// Reasons are shown in tables; all of it stands in the details.
fn one_line(error: &TaskError) -> String {
    let text = error.to_string();
    let line: String = text.lines().next().unwrap_or_default().chars().take(500).collect();
    if line.is_empty() { "no reason given".to_owned() } else { line }
}

fn beyond_first_line(error: &TaskError) -> Option<String> {
    let text = error.to_string();
    let (_, rest) = text.split_once('\n')?;
    Some(rest.trim_end().to_owned()).filter(|rest| !rest.is_empty())
}

fn details(error: &TaskError, failed: u32, max_attempts: u32) -> String {
    let class = match error.class() {
        ErrorClass::Transient => "transient",
        ErrorClass::Partial => "partial",
        ErrorClass::Permanent => "permanent",
    };
    let mut text = format!("{error}\nclass: {class}, attempt {failed} of {max_attempts}");
    if let Cause::Panic { backtrace, .. } = error.cause() {
        text.push_str(&format!("\n\nbacktrace:\n{backtrace}"));
    }
    // Bounded: a dead letter is read by people, and there may be many.
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
