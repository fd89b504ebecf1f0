//! What is submitted: a closure, with the few things a pool must know about it.

use crate::{
    Context,
    error::{TaskError, TaskResult},
    queue::Rank,
    retry::Retry,
    sync::Arc,
    worker::{Threads, Worker},
};
use std::{error::Error, fmt, sync::PoisonError, time::Duration};

/// Names a task within its pool. Submitted tasks count up from 0; spawned ones take numbers between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub(crate) u64);

impl TaskId {
    /// The number itself.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// How soon a task is to start in a pool with [`Order::Priority`](crate::Order::Priority): larger is sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u8);

impl Priority {
    /// After what is normal.
    pub const LOW: Self = Self(64);
    /// What a task has unless it says otherwise.
    pub const NORMAL: Self = Self(128);
    /// Before what is normal.
    pub const HIGH: Self = Self(192);
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

/// A piece of work: a closure, and what the pool must know about it.
///
/// ```
/// use gristmill_pool::{Priority, Task};
/// use std::time::Duration;
///
/// let task: Task<u64> = Task::new(|_ctx| Ok(42))
///     .kind("answer")
///     .label("life, the universe")
///     .priority(Priority::HIGH)
///     .timeout(Duration::from_secs(5));
/// ```
pub struct Task<T: Send + 'static = (), W: Worker = Threads> {
    pub(crate) body: W::Body<T>,
}

/// What a pool knows of a task. It lies in one allocation with the closure: a task goes through queues and
/// shelves as one pointer, and the core that runs it fetches both with one cache miss. (Carried beside the
/// pointer, the same 40 bytes cost tiny tasks 7 to 15 % of their throughput.)
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

/// What few tasks have.
#[derive(Default)]
pub(crate) struct TaskExtras {
    pub(crate) label: Option<Arc<str>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    /// Attempts that have failed so far.
    pub(crate) failed: u32,
    /// Where the last attempt failed, if it said so.
    pub(crate) failed_step: Option<Arc<str>>,
    /// Why the last attempt failed, while the task waits in the queue for another.
    pub(crate) last_error: Option<TaskError>,
}

/// The kind of a task that names none.
pub(crate) const DEFAULT_KIND: &str = "task";

impl<T: Send + 'static> Task<T> {
    /// A task that runs once on a thread.
    pub fn new(body: impl FnOnce(&Context<T>) -> TaskResult<T> + Send + 'static) -> Self {
        let mut body = Some(body);
        Self::repeatable(move |context| {
            // Taken out: what it holds is dropped as it returns.
            let body = body.take().expect("a task that runs once was started twice");
            body(context)
        })
    }

    /// A task that is tried again when it fails, as the policy says. Between attempts it holds no worker.
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

    /// Why no pool may take this task.
    pub(crate) fn validation_error(&self) -> Option<SubmitErrorKind> {
        let timeout = self.meta().extras.as_ref()?.timeout?;
        timeout.is_zero().then_some(SubmitErrorKind::ZeroTimeout)
    }

    pub(crate) fn failed(&self) -> u32 {
        self.meta().extras.as_ref().map_or(0, |extras| extras.failed)
    }

    /// What sort of task this is: statistics are kept by kind. The first 31 kinds of a pool are told apart.
    #[must_use]
    pub fn kind(mut self, kind: &'static str) -> Self {
        self.meta_mut().kind = kind;
        self
    }

    /// Which one of its sort this is: a path, a message id. Shown in reports and logs.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.meta_mut().extras().label = Some(label.into());
        self
    }

    /// How soon it is to start, in a pool with [`Order::Priority`](crate::Order::Priority).
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        let meta = self.meta_mut();
        meta.rank = Rank::new(priority.0, meta.rank.cost());
        self
    }

    /// How much work it is, in any unit (up to 2⁵⁶), in a pool with [`Order::Cost`](crate::Order::Cost): small ones first.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        let meta = self.meta_mut();
        meta.rank = Rank::new(meta.rank.priority(), cost);
        self
    }

    /// How long one attempt may take; overrides the pool's own limit. A pool refuses a task whose limit is zero.
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

/// What a thread runs.
#[doc(hidden)]
pub struct WithMeta<F: ?Sized> {
    pub(crate) meta: TaskMeta,
    pub(crate) body: F,
}

#[doc(hidden)]
pub(crate) type Blocking<T> = Box<WithMeta<dyn FnMut(&Context<T>) -> TaskResult<T> + Send>>;

/// A task by name: what reports and results speak of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRef {
    /// Its number in the pool.
    pub id: TaskId,
    /// Its [`Task::kind`].
    pub kind: &'static str,
    /// Its [`Task::label`], if it has one.
    pub label: Option<Arc<str>>,
}

impl fmt::Display for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.id)?;
        self.label.as_ref().map_or(Ok(()), |label| write!(f, " ({label})"))
    }
}

/// Why the pool did not take a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitErrorKind {
    /// The queue is full. Only from `try_submit`.
    Full,
    /// The queue stayed full for the time allowed. Only from `submit_timeout`.
    TimedOut,
    /// The pool was closed: it drains and takes nothing new.
    Closed,
    /// The pool was cancelled, or the task that spawns has been replaced as stalled.
    Cancelled,
    /// The task's own timeout is zero: no attempt could succeed.
    ZeroTimeout,
}

/// The pool did not take a task; it can be [had back](Self::into_task).
pub struct SubmitError<T: Send + 'static = (), W: Worker = Threads> {
    /// Why.
    pub kind: SubmitErrorKind,
    /// Never locked. It makes the error `Sync`, as errors have to be to go through `?`, though a closure need
    /// not be.
    task: std::sync::Mutex<Task<T, W>>,
}

impl<T: Send + 'static, W: Worker> SubmitError<T, W> {
    pub(crate) fn new(kind: SubmitErrorKind, task: Task<T, W>) -> Self {
        Self { kind, task: std::sync::Mutex::new(task) }
    }

    /// The task, untouched.
    pub fn into_task(self) -> Task<T, W> {
        self.task.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static, W: Worker> fmt::Display for SubmitError<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            SubmitErrorKind::Full => "the pool's queue is full; try again later, or wait with submit",
            SubmitErrorKind::TimedOut => "the pool's queue stayed full for the time allowed",
            SubmitErrorKind::Closed => "the pool is closed and takes no new tasks",
            SubmitErrorKind::Cancelled => "the pool is cancelled and takes no new tasks",
            SubmitErrorKind::ZeroTimeout => "the task's timeout is zero; it must be longer than that",
        })
    }
}

impl<T: Send + 'static, W: Worker> fmt::Debug for SubmitError<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<T: Send + 'static, W: Worker> Error for SubmitError<T, W> {}
