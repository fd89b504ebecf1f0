//! Errors: of one task ([`TaskError`]), of a submission ([`SubmitError`]) and of building a pool ([`BuildError`]).

pub use crate::{
    builder::BuildError,
    task::{SubmitError, SubmitErrorKind},
};

use crate::{
    panics::{self, Panic},
    sync::Arc,
};
use std::{backtrace::Backtrace, error::Error, fmt, time::Duration};

/// Result of one attempt of a task.
pub type TaskResult<T> = Result<T, TaskError>;

/// Whether and how a failed task can be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The same attempt may succeed later: a timeout, a busy server or a rate limit.
    Transient,
    /// Every attempt would fail the same way: bad input, no permission or not found.
    Permanent,
    /// Some steps are done and must not be repeated: the next attempt resumes at
    /// [`Context::failed_step`](crate::Context::failed_step).
    Partial,
}

/// How a failure involves a service that the task needs, such as a server, a database or a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dependency {
    /// The service could not be used, as with a refused connection or a full disk. The task itself was not tried.
    Unavailable,
    /// The service failed while the task used it, as with a timeout. The service or the task may be the cause.
    Failed,
}

/// Why a task failed, with the details that a retry or a person needs.
///
/// `?` converts any error, as [`ErrorClass::Permanent`]: only errors known to be transient are retried.
///
/// ```
/// use gristmill_pool::{ErrorClass, TaskError};
/// use std::time::Duration;
///
/// fn fetch() -> Result<(), TaskError> {
///     Err(TaskError::transient("429 Too Many Requests")
///         .with_retry_after(Duration::from_secs(20))
///         .with_hint("lower the number of workers"))
/// }
/// assert_eq!(fetch().unwrap_err().class(), ErrorClass::Transient);
///
/// fn parse() -> Result<u32, TaskError> {
///     Ok("twelve".parse::<u32>()?)
/// }
/// assert_eq!(parse().unwrap_err().class(), ErrorClass::Permanent);
/// ```
pub struct TaskError(Box<Inner>);

struct Inner {
    class: ErrorClass,
    cause: Cause,
    dependency: Option<Dependency>,
    step: Option<Arc<str>>,
    hint: Option<String>,
    retry_after: Option<Duration>,
}

/// The event that made a task fail.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The task returned this error.
    Error(Box<dyn Error + Send + Sync>),
    /// The task panicked. Its worker continues.
    Panic {
        /// Message and source location of the panic.
        message: String,
        /// Stack of the panic. Always captured; symbols are resolved when it is printed.
        backtrace: Backtrace,
    },
    /// The task ran longer than this timeout.
    TimedOut(Duration),
    /// The task's worker gave no heartbeat for this long and was replaced.
    Stalled(Duration),
    /// The pool was cancelled, or its runtime ended, while the task waited or ran.
    Cancelled,
    /// The circuit breaker was open; the task did not run.
    BreakerOpen,
}

impl TaskError {
    fn new(class: ErrorClass, cause: Cause) -> Self {
        Self(Box::new(Inner { class, cause, dependency: None, step: None, hint: None, retry_after: None }))
    }

    /// Creates an error that may not occur again: see [`ErrorClass::Transient`].
    pub fn transient(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorClass::Transient, Cause::Error(error.into()))
    }

    /// Creates a transient error of a service that the task needs: see [`Dependency::Unavailable`].
    pub fn unavailable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::transient(error).caused_by(Dependency::Unavailable)
    }

    /// Creates a transient error of the task or of a service that it needs: see [`Dependency::Failed`].
    pub fn dependency_failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::transient(error).caused_by(Dependency::Failed)
    }

    fn caused_by(mut self, dependency: Dependency) -> Self {
        self.0.dependency = Some(dependency);
        self
    }

    /// Creates an error that would recur on every attempt: see [`ErrorClass::Permanent`].
    pub fn permanent(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorClass::Permanent, Cause::Error(error.into()))
    }

    /// Creates an error at `step` of a task whose earlier steps are done: see [`ErrorClass::Partial`].
    pub fn partial(step: impl Into<Arc<str>>, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorClass::Partial, Cause::Error(error.into())).with_step(step)
    }

    /// Creates the error of a task that stopped because its [`Context`](crate::Context) was cancelled.
    pub fn cancelled() -> Self {
        Self::new(ErrorClass::Transient, Cause::Cancelled)
    }

    pub(crate) fn timed_out(after: Duration) -> Self {
        Self::new(ErrorClass::Transient, Cause::TimedOut(after))
    }

    pub(crate) fn stalled(silent_for: Duration) -> Self {
        Self::new(ErrorClass::Permanent, Cause::Stalled(silent_for))
    }

    pub(crate) fn breaker_open(retry_in: Duration) -> Self {
        Self::new(ErrorClass::Transient, Cause::BreakerOpen).with_retry_after(retry_in)
    }

    /// Copies step, hint, retry delay, dependency and partial class from the error of a task past its timeout.
    pub(crate) fn with_details_of(mut self, error: &Self) -> Self {
        self.0.step.clone_from(&error.0.step);
        self.0.hint.clone_from(&error.0.hint);
        self.0.retry_after = error.0.retry_after;
        self.0.dependency = error.0.dependency;
        if error.class() == ErrorClass::Partial {
            self.0.class = ErrorClass::Partial;
        }
        self
    }

    /// Sets the step that failed.
    #[must_use]
    pub fn with_step(mut self, step: impl Into<Arc<str>>) -> Self {
        self.0.step = Some(step.into());
        self
    }

    /// Sets a hint for people: what to do about the error.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Sets the shortest delay before a retry. It applies even if the policy's delay and maximum are shorter.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.0.retry_after = Some(delay);
        self
    }

    /// Whether and how the task can be retried.
    pub fn class(&self) -> ErrorClass {
        self.0.class
    }

    /// How the failure involves a service that the task needs, if it does.
    pub fn dependency(&self) -> Option<Dependency> {
        self.0.dependency
    }

    /// The event that made the task fail.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// The step that failed, if the task named one.
    pub fn step(&self) -> Option<&str> {
        self.0.step.as_deref()
    }

    pub(crate) fn shared_step(&self) -> Option<Arc<str>> {
        self.0.step.clone()
    }

    /// The hint for people about the error, if the task set one.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Shortest delay before a retry, if the task set one.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

/// Runs a part of a task and converts a panic into an error with message, location and backtrace, for a task that
/// records its own failure. The pool counts and logs a task that returns such an error as one that panicked.
///
/// ```
/// use gristmill_pool::{TaskError, error::{Cause, catch_panic}};
///
/// let error = catch_panic::<()>(|| panic!("boom")).unwrap_err();
/// assert!(matches!(error.cause(), Cause::Panic { .. }));
/// assert!(error.to_string().starts_with("panicked: boom"));
/// ```
///
/// Location and backtrace are known only in a pool's tasks. Elsewhere the panic also reaches the process's hook.
pub fn catch_panic<R>(body: impl FnOnce() -> TaskResult<R>) -> TaskResult<R> {
    panics::catch(body).unwrap_or_else(|panic| Err(panic.into()))
}

impl From<Panic> for TaskError {
    fn from(Panic { message, backtrace }: Panic) -> Self {
        Self::new(ErrorClass::Permanent, Cause::Panic { message, backtrace })
    }
}

/// `?` on any error makes it permanent. `TaskError` itself does not implement [`Error`], because this conversion would
/// then overlap with `From<T> for T`. [`Failure`](crate::Failure), which carries it, does.
impl<E: Error + Send + Sync + 'static> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self::permanent(error)
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(step) = &self.0.step {
            write!(f, "{step}: ")?;
        }
        match &self.0.cause {
            Cause::Error(error) => write_chain(f, error.as_ref())?,
            Cause::Panic { message, .. } => write!(f, "panicked: {message}")?,
            Cause::TimedOut(after) => write!(f, "timed out after {after:?}")?,
            Cause::Stalled(silent) => write!(f, "stalled: no heartbeat for {silent:?}")?,
            Cause::Cancelled => f.write_str("cancelled")?,
            Cause::BreakerOpen => f.write_str("not run: the circuit breaker is open")?,
        }
        match &self.0.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

fn write_chain(f: &mut fmt::Formatter<'_>, error: &dyn Error) -> fmt::Result {
    write!(f, "{error}")?;
    let mut source = error.source();
    while let Some(cause) = source {
        write!(f, ": {cause}")?;
        source = cause.source();
    }
    Ok(())
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.class)?;
        match &self.0.cause {
            Cause::Panic { backtrace, .. } => write!(f, "\n{backtrace}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_has_step_cause_and_hint() {
        let check = |error: TaskError, class, text: &str| {
            assert_eq!(error.class(), class);
            assert_eq!(error.to_string(), text);
        };
        let io = std::io::Error::other("disk on fire");
        check(io.into(), ErrorClass::Permanent, "disk on fire");
        check(TaskError::transient("busy").with_hint("wait"), ErrorClass::Transient, "busy (wait)");
        check(TaskError::partial("move", "403"), ErrorClass::Partial, "move: 403");
        check(TaskError::permanent("x").with_step("open"), ErrorClass::Permanent, "open: x");
        check(TaskError::cancelled(), ErrorClass::Transient, "cancelled");
        check(TaskError::timed_out(Duration::from_secs(2)), ErrorClass::Transient, "timed out after 2s");
        check(TaskError::stalled(Duration::from_secs(9)), ErrorClass::Permanent, "stalled: no heartbeat for 9s");
        check(
            TaskError::breaker_open(Duration::from_secs(1)),
            ErrorClass::Transient,
            "not run: the circuit breaker is open",
        );
    }
}
