//! What can go wrong: with one task ([`TaskError`]), with handing one over ([`SubmitError`]), with making a pool
//! ([`BuildError`]).

pub use crate::{
    builder::BuildError,
    task::{SubmitError, SubmitErrorKind},
};

use crate::{
    panics::{self, Panic},
    sync::Arc,
};
use std::{backtrace::Backtrace, error::Error, fmt, time::Duration};

/// What a task returns.
pub type TaskResult<T> = Result<T, TaskError>;

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The same attempt may succeed later: a timeout, a busy server, a rate limit.
    Transient,
    /// It will fail the same way for ever: bad input, no permission, not found.
    Permanent,
    /// Some steps are done and must not be done again: the next attempt goes on at
    /// [`Context::failed_step`](crate::Context::failed_step).
    Partial,
}

/// What a failure says about a service that the task needs: a server, a database, a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dependency {
    /// The service could not be used at all, as with a refused connection or a full disk. The task itself was not
    /// tried.
    Unavailable,
    /// The service failed while it had the task, as with a timeout. Either of them may be the cause.
    Failed,
}

/// Why a task failed, with what a retry or a person needs to know.
///
/// Any error becomes one through `?`, as [`Class::Permanent`]: only what is known to pass is tried again.
///
/// ```
/// use gristmill_pool::{Class, TaskError};
/// use std::time::Duration;
///
/// fn fetch() -> Result<(), TaskError> {
///     Err(TaskError::transient("429 Too Many Requests")
///         .retry_after(Duration::from_secs(20))
///         .hint("lower the number of workers"))
/// }
/// assert_eq!(fetch().unwrap_err().class(), Class::Transient);
///
/// fn parse() -> Result<u32, TaskError> {
///     Ok("twelve".parse::<u32>()?)
/// }
/// assert_eq!(parse().unwrap_err().class(), Class::Permanent);
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

/// What made the task fail.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The task returned this error.
    Error(Box<dyn Error + Send + Sync>),
    /// The task panicked; the worker lives on.
    Panic {
        /// What the panic said, and where.
        message: String,
        /// Where it came from. Captured always, resolved to names when it is printed.
        backtrace: Backtrace,
    },
    /// The task ran longer than its timeout.
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

    /// A failure that may pass.
    pub fn transient(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorClass::Transient, Cause::Error(error.into()))
    }

    /// A transient failure of a service that the task needs, not of the task: see [`Dependency::Unavailable`].
    pub fn unavailable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::transient(error).caused_by(Dependency::Unavailable)
    }

    /// A transient failure of the task or of a service that it needs: see [`Dependency::Failed`].
    pub fn dependency_failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::transient(error).caused_by(Dependency::Failed)
    }

    fn caused_by(mut self, dependency: Dependency) -> Self {
        self.0.dependency = Some(dependency);
        self
    }

    /// A failure that will not pass.
    pub fn permanent(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorClass::Permanent, Cause::Error(error.into()))
    }

    /// A failure at `step` of a task whose earlier steps are done.
    pub fn partial(step: impl Into<Arc<str>>, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let mut made = Self::new(ErrorClass::Partial, Cause::Error(error.into()));
        made.0.step = Some(step.into());
        made
    }

    /// The task stopped because its [`Context`](crate::Context) said so.
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

    /// Keeps what a retry, or a person, needs of the error that a task which ran out of time came back with.
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

    /// Names the step that failed.
    #[must_use]
    pub fn with_step(mut self, step: impl Into<Arc<str>>) -> Self {
        self.0.step = Some(step.into());
        self
    }

    /// Says what a person could do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Says when trying again makes sense at the earliest. A retry never comes sooner, whatever its policy
    /// and cap say.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.0.retry_after = Some(delay);
        self
    }

    /// Whether trying again can help.
    pub fn class(&self) -> ErrorClass {
        self.0.class
    }

    /// What the failure says about a service that the task needs, if anything.
    pub fn dependency(&self) -> Option<Dependency> {
        self.0.dependency
    }

    /// What made the task fail.
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

    /// What a person could do about it, if the task knew.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// When trying again makes sense at the earliest, if the task knew.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

/// Runs a part of a task. A panic in it becomes an error with its message, place and backtrace, for a task that has to
/// note how it ended. The pool counts and logs a task that returns such an error as one that panicked.
///
/// ```
/// use gristmill_pool::{TaskError, error::{Cause, catch_panic}};
///
/// let error = catch_panic::<()>(|| panic!("boom")).unwrap_err();
/// assert!(matches!(error.cause(), Cause::Panic { .. }));
/// assert!(error.to_string().starts_with("panicked: boom"));
/// ```
///
/// Place and backtrace are known inside the tasks of a pool; elsewhere the panic goes to the process's own hook.
pub fn catch_panic<R>(body: impl FnOnce() -> TaskResult<R>) -> TaskResult<R> {
    panics::catch(body).unwrap_or_else(|panic| Err(panic.into()))
}

impl From<Panic> for TaskError {
    fn from(Panic { message, backtrace }: Panic) -> Self {
        Self::new(ErrorClass::Permanent, Cause::Panic { message, backtrace })
    }
}

/// `?` on any error makes it permanent. (This is why `TaskError` is not itself an [`Error`]: the two
/// conversions would overlap. [`Failure`](crate::Failure), which carries it, is one.)
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
    fn says_step_chain_and_hint() {
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
        check(
            TaskError::stalled(Duration::from_secs(9)),
            ErrorClass::Permanent,
            "stalled: no heartbeat for 9s",
        );
        check(
            TaskError::breaker_open(Duration::from_secs(1)),
            ErrorClass::Transient,
            "not run: the circuit breaker is open",
        );
    }

    #[test]
    fn keeps_what_a_retry_needs() {
        let error =
            TaskError::partial("upload", "503").with_retry_after(Duration::from_secs(7)).with_hint("later");
        assert_eq!(error.step(), Some("upload"));
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
        assert_eq!(error.hint(), Some("later"));
    }

    #[test]
    fn failures_of_a_dependency_are_transient_and_named() {
        for (error, dependency) in [
            (TaskError::unavailable("connection refused"), Some(Dependency::Unavailable)),
            (TaskError::dependency_failed("500"), Some(Dependency::Failed)),
            (TaskError::transient("busy"), None),
        ] {
            assert_eq!((error.class(), error.dependency()), (ErrorClass::Transient, dependency));
        }
    }
}
