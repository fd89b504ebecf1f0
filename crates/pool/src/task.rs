//! Tasks: a closure with its settings, its id, and the error of a rejected submission.

use crate::{
    Context,
    error::{TaskError, TaskResult},
    queue::Rank,
    retry::Retry,
    sync::Arc,
    worker::{Threads, Worker},
};
use std::{error::Error, fmt, sync::PoisonError, time::Duration};

/// Id of a task within its pool. Submitted tasks are numbered from 0; spawned tasks take ids in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub(crate) u64);

impl TaskId {
    /// Returns the id as a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Priority of a task in a pool with [`QueueOrder::Priority`](crate::QueueOrder::Priority): larger starts sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u8);

impl Priority {
    /// Starts after tasks of normal priority.
    pub const LOW: Self = Self(64);
    /// The default priority of a task.
    pub const NORMAL: Self = Self(128);
    /// Starts before tasks of normal priority.
    pub const HIGH: Self = Self(192);
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

/// A unit of work: a closure and its settings.
///
/// ```
/// use gristmill_pool::{Priority, Task};
/// use std::time::Duration;
///
/// let task: Task<u64> = Task::new(|_context| Ok(42))
///     .kind("count")
///     .label("photos/2024")
///     .priority(Priority::HIGH)
///     .timeout(Duration::from_secs(5));
/// ```
pub struct Task<T: Send + 'static = (), W: Worker = Threads> {
    pub(crate) body: W::Body<T>,
}

/// A task's id and settings, in one allocation with its closure: a task moves through queues as one pointer, and the
/// core that runs it fetches both with one cache miss. Stored beside the pointer, the same 40 bytes cost tiny tasks
/// 7 to 15 % of their throughput.
#[doc(hidden)]
pub struct TaskMeta {
    pub(crate) id: u64,
    pub(crate) kind: &'static str,
    pub(crate) rank: Rank,
    pub(crate) extras: Option<Box<TaskExtras>>,
}

impl Default for TaskMeta {
    fn default() -> Self {
        Self { id: 0, kind: DEFAULT_KIND, rank: Rank::new(Priority::NORMAL.0, 0), extras: None }
    }
}

impl TaskMeta {
    pub(crate) fn extras(&mut self) -> &mut TaskExtras {
        self.extras.get_or_insert_default()
    }
}

/// Settings and state that few tasks have.
#[derive(Default)]
pub(crate) struct TaskExtras {
    pub(crate) label: Option<Arc<str>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    /// Number of attempts that have failed so far.
    pub(crate) failed: u32,
    /// The last step that a failed attempt named.
    pub(crate) failed_step: Option<Arc<str>>,
    /// Error and duration of the last attempt, while the task waits for the next.
    pub(crate) last_attempt: Option<(TaskError, Duration)>,
}

pub(crate) const DEFAULT_KIND: &str = "task";

impl<T: Send + 'static> Task<T> {
    /// Creates a task that runs once on a thread.
    pub fn new(body: impl FnOnce(&Context<T>) -> TaskResult<T> + Send + 'static) -> Self {
        let mut body = Some(body);
        Self::repeatable(move |context| {
            // Moved out, so that the values it owns are dropped when it returns.
            let body = body.take().expect("a task without retries was started twice");
            body(context)
        })
    }

    /// Creates a task that is retried under `policy` when it fails. Between attempts it occupies no worker.
    pub fn retrying(policy: Retry, body: impl FnMut(&Context<T>) -> TaskResult<T> + Send + 'static) -> Self {
        Self::repeatable(body).with_retry(policy)
    }

    fn repeatable(body: impl FnMut(&Context<T>) -> TaskResult<T> + Send + 'static) -> Self {
        Self { body: Box::new(WithMeta { meta: TaskMeta::default(), body }) }
    }
}

impl<T: Send + 'static, W: Worker> Task<T, W> {
    pub(crate) fn meta(&self) -> &TaskMeta {
        W::meta(&self.body)
    }

    pub(crate) fn meta_mut(&mut self) -> &mut TaskMeta {
        W::meta_mut(&mut self.body)
    }

    pub(crate) fn with_retry(mut self, policy: Retry) -> Self {
        self.meta_mut().extras().retry = Some(policy);
        self
    }

    pub(crate) fn task_ref(&self) -> TaskRef {
        let TaskMeta { id, kind, extras, .. } = self.meta();
        TaskRef { id: TaskId(*id), kind, label: extras.as_ref().and_then(|extras| extras.label.clone()) }
    }

    /// The reason why every pool rejects this task, if any.
    pub(crate) fn validation_error(&self) -> Option<SubmitErrorKind> {
        let timeout = self.meta().extras.as_ref()?.timeout?;
        timeout.is_zero().then_some(SubmitErrorKind::ZeroTimeout)
    }

    pub(crate) fn failed_attempts(&self) -> u32 {
        self.meta().extras.as_ref().map_or(0, |extras| extras.failed)
    }

    /// Sets the kind, by which durations are counted. A pool distinguishes its first 31 kinds. Default: `task`.
    #[must_use]
    pub fn kind(mut self, kind: &'static str) -> Self {
        self.meta_mut().kind = kind;
        self
    }

    /// Sets a label such as a path or a message id, shown in reports and logs.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.meta_mut().extras().label = Some(label.into());
        self
    }

    /// Sets the priority, for a pool with [`QueueOrder::Priority`](crate::QueueOrder::Priority).
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        let meta = self.meta_mut();
        meta.rank = Rank::new(priority.0, meta.rank.cost());
        self
    }

    /// Sets the cost in any unit, up to 2⁵⁶ − 1, for a pool with [`QueueOrder::Cost`](crate::QueueOrder::Cost).
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        let meta = self.meta_mut();
        meta.rank = Rank::new(meta.rank.priority(), cost);
        self
    }

    /// Sets the time that one attempt may take, instead of the pool's own timeout. A timeout of zero is rejected.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.meta_mut().extras().timeout = Some(limit);
        self
    }
}

impl<T: Send + 'static, W: Worker> fmt::Debug for Task<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TaskRef { kind, label, .. } = self.task_ref();
        f.debug_struct("Task").field("kind", &kind).field("label", &label).finish_non_exhaustive()
    }
}

/// A task's closure and its [`TaskMeta`] in one allocation.
#[doc(hidden)]
pub struct WithMeta<F: ?Sized> {
    pub(crate) meta: TaskMeta,
    pub(crate) body: F,
}

#[doc(hidden)]
pub(crate) type Blocking<T> = Box<WithMeta<dyn FnMut(&Context<T>) -> TaskResult<T> + Send>>;

/// Id, kind and label of a task, in reports and results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRef {
    /// Id of the task in its pool.
    pub id: TaskId,
    /// Kind of the task: see [`Task::kind`].
    pub kind: &'static str,
    /// Label of the task, if it has one: see [`Task::label`].
    pub label: Option<Arc<str>>,
}

impl fmt::Display for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.id)?;
        self.label.as_ref().map_or(Ok(()), |label| write!(f, " ({label})"))
    }
}

/// Why a pool rejected a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitErrorKind {
    /// The queue is full. Only from `try_submit`.
    Full,
    /// The queue stayed full for the whole time limit. Only from `submit_timeout`.
    TimedOut,
    /// The pool was closed: it finishes its tasks and accepts no new ones.
    Closed,
    /// The pool or the token of `submit_until` was cancelled, or the worker of the spawning task was replaced as
    /// stalled.
    Cancelled,
    /// The task's own timeout is zero, so no attempt could succeed.
    ZeroTimeout,
}

/// Id of an accepted task, or the rejected task.
pub(crate) type Submitted<T, W> = Result<TaskId, SubmitError<T, W>>;

/// A rejected task, which [`into_task`](Self::into_task) returns.
pub struct SubmitError<T: Send + 'static = (), W: Worker = Threads> {
    /// Why the pool rejected the task.
    pub kind: SubmitErrorKind,
    /// Never locked. The mutex makes the error `Sync`, which `?` needs, though the closure need not be.
    task: std::sync::Mutex<Task<T, W>>,
}

impl<T: Send + 'static, W: Worker> SubmitError<T, W> {
    pub(crate) fn new(kind: SubmitErrorKind, task: Task<T, W>) -> Self {
        Self { kind, task: std::sync::Mutex::new(task) }
    }

    /// Returns the task unchanged.
    pub fn into_task(self) -> Task<T, W> {
        self.task.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static, W: Worker> fmt::Display for SubmitError<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            SubmitErrorKind::Full => "the pool's queue is full; retry later, or wait with submit",
            SubmitErrorKind::TimedOut => "the pool's queue stayed full for the whole time limit",
            SubmitErrorKind::Closed => "the pool is closed and accepts no new tasks",
            SubmitErrorKind::Cancelled => {
                "the pool is cancelled and accepts no new tasks, or the submitter's token is cancelled"
            }
            SubmitErrorKind::ZeroTimeout => "the task's timeout is zero; it must be greater",
        })
    }
}

impl<T: Send + 'static, W: Worker> fmt::Debug for SubmitError<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<T: Send + 'static, W: Worker> Error for SubmitError<T, W> {}
