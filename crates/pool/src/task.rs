//! What is submitted: a closure with the few things a pool must know about it.

use crate::{
    Context,
    error::TaskResult,
    queue::Rank,
    retry::Retry,
    sync::Arc,
    worker::{Threads, Worker},
};
use std::{error::Error, fmt, time::Duration};

/// Names a task within its pool; counts up from 0 in the order of submission.
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
    /// After everything else.
    pub const LOW: Self = Self(64);
    /// What a task has unless it says otherwise.
    pub const NORMAL: Self = Self(128);
    /// Before everything else.
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
pub struct Task<T: Send + 'static, W: Worker = Threads> {
    pub(crate) kind: &'static str,
    pub(crate) rank: Rank,
    /// What few tasks have is boxed: every task is moved through the queue, and most are bare closures.
    pub(crate) extras: Option<Box<Extras>>,
    pub(crate) body: W::Body<T>,
}

#[derive(Default)]
pub(crate) struct Extras {
    pub(crate) label: Option<Arc<str>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    /// Attempts that have failed so far.
    pub(crate) failed: u32,
    /// Where the last attempt failed, if it said so.
    pub(crate) failed_step: Option<Arc<str>>,
}

/// The kind of a task that names none.
pub(crate) const PLAIN: &str = "task";

impl<T: Send + 'static> Task<T> {
    /// A task that runs once on a thread.
    pub fn new(body: impl FnOnce(&Context<T>) -> TaskResult<T> + Send + 'static) -> Self {
        Self::from_body(Blocking::Once(Box::new(body)))
    }

    /// A task that is tried again when it fails, as the policy says. Between attempts it holds no worker.
    pub fn retrying(
        policy: Retry,
        body: impl FnMut(&Context<T>) -> TaskResult<T> + Send + 'static,
    ) -> Self {
        let mut task = Self::from_body(Blocking::Many(Box::new(body)));
        task.extras().retry = Some(policy);
        task
    }
}

impl<T: Send + 'static, W: Worker> Task<T, W> {
    pub(crate) fn from_body(body: W::Body<T>) -> Self {
        let rank = Rank { priority: Priority::NORMAL.0, cost: 0 };
        Self { kind: PLAIN, rank, extras: None, body }
    }

    pub(crate) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// What sort of task this is: statistics are kept by kind. The first 31 kinds of a pool are told apart.
    #[must_use]
    pub fn kind(mut self, kind: &'static str) -> Self {
        self.kind = kind;
        self
    }

    /// Which one of its sort this is: a path, a message id. Shown in reports and logs.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.extras().label = Some(label.into());
        self
    }

    /// How soon it is to start, in a pool with [`Order::Priority`](crate::Order::Priority).
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.rank.priority = priority.0;
        self
    }

    /// How much work it is, in any unit, in a pool with [`Order::Cost`](crate::Order::Cost): small ones first.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.rank.cost = cost;
        self
    }

    /// How long one attempt may take; overrides the pool's own limit.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.extras().timeout = Some(limit);
        self
    }
}

impl<T: Send + 'static, W: Worker> fmt::Debug for Task<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.extras.as_ref().and_then(|extras| extras.label.as_deref());
        f.debug_struct("Task").field("kind", &self.kind).field("label", &label).finish_non_exhaustive()
    }
}

type Once<T> = Box<dyn FnOnce(&Context<T>) -> TaskResult<T> + Send>;
type Many<T> = Box<dyn FnMut(&Context<T>) -> TaskResult<T> + Send>;

/// What a thread runs.
pub enum Blocking<T: Send + 'static> {
    #[doc(hidden)]
    Once(Once<T>),
    #[doc(hidden)]
    Many(Many<T>),
    #[doc(hidden)]
    Spent,
}

impl<T: Send + 'static> Blocking<T> {
    pub(crate) fn call(&mut self, context: &Context<T>) -> TaskResult<T> {
        if let Self::Many(body) = self {
            return body(context);
        }
        match std::mem::replace(self, Self::Spent) {
            Self::Once(body) => body(context),
            Self::Many(_) | Self::Spent => unreachable!("a task that runs once was started twice"),
        }
    }
}

/// A task that the pool has taken in.
pub(crate) struct Job<T: Send + 'static, W: Worker> {
    pub(crate) id: u64,
    pub(crate) task: Task<T, W>,
}

impl<T: Send + 'static, W: Worker> Job<T, W> {
    pub(crate) fn name(&self) -> TaskRef {
        let label = self.task.extras.as_ref().and_then(|extras| extras.label.clone());
        TaskRef { id: TaskId(self.id), kind: self.task.kind, label }
    }

    pub(crate) fn failed(&self) -> u32 {
        self.task.extras.as_ref().map_or(0, |extras| extras.failed)
    }
}

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
pub enum Refusal {
    /// The queue is full. Only from `try_submit`.
    Full,
    /// The queue stayed full for the time allowed. Only from `submit_timeout`.
    TimedOut,
    /// The pool was closed: it drains and takes nothing new.
    Closed,
    /// The pool was cancelled, or the task that spawns has been replaced as stalled.
    Cancelled,
}

/// The pool did not take a task; here it is back.
pub struct SubmitError<T: Send + 'static, W: Worker = Threads> {
    /// Why.
    pub refusal: Refusal,
    /// The task, untouched.
    pub task: Task<T, W>,
}

impl<T: Send + 'static, W: Worker> fmt::Display for SubmitError<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.refusal {
            Refusal::Full => "the pool's queue is full; try again later, or wait with submit",
            Refusal::TimedOut => "the pool's queue stayed full for the time allowed",
            Refusal::Closed => "the pool is closed and takes no new tasks",
            Refusal::Cancelled => "the pool is cancelled and takes no new tasks",
        })
    }
}

impl<T: Send + 'static, W: Worker> fmt::Debug for SubmitError<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitError").field("refusal", &self.refusal).field("task", &self.task).finish()
    }
}

impl<T: Send + 'static, W: Worker> Error for SubmitError<T, W> {}
