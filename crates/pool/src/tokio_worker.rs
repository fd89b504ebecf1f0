//! Workers that are tokio tasks, for work that waits for the network. They behave as threads do, but calls that
//! block there are awaited here, and a task that exceeds its timeout is dropped.

use crate::{
    builder::{BuildError, PoolBuilder},
    cancel::CancelToken,
    context::Context,
    error::{TaskError, TaskResult},
    executor::Executor,
    outcome::{Outcome, Outcomes},
    panics,
    pool::Pool,
    report::Report,
    results::{ResultOrder, Results},
    retry::Retry,
    sync::Arc,
    task::{SubmitError, SubmitErrorKind, Task, TaskId, TaskMeta},
    waiting::{Limit, SubmitFuture},
    worker::{Sealed, Worker},
    worker_state::WorkerState,
};
use pin_project_lite::pin_project;
use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{self, Poll},
    time::Duration,
};

#[cfg(shuttle)]
mod runtime {
    pub(super) use shuttle::future::{AbortHandle, yield_now};

    #[derive(Debug)]
    pub struct Handle;

    impl Handle {
        pub(super) fn try_current() -> Result<Self, ()> {
            Ok(Self)
        }

        pub(super) fn spawn(
            &self,
            future: impl Future<Output = ()> + Send + 'static,
        ) -> shuttle::future::JoinHandle<()> {
            shuttle::future::spawn(future)
        }
    }
}

#[cfg(not(shuttle))]
mod runtime {
    pub(super) use tokio::{runtime::Handle, task::AbortHandle, task::yield_now};
}

/// Workers that are tokio tasks, for work that waits for the network.
#[derive(Debug, Clone, Copy)]
pub struct TokioTasks;

/// A pool whose workers are tokio tasks.
pub type AsyncPool<T = ()> = Pool<T, TokioTasks>;

/// The context of an async task. The task owns it and may keep it.
pub type AsyncContext<T = ()> = Context<T, TokioTasks>;

impl Sealed for TokioTasks {}

impl Worker for TokioTasks {
    type Body<T: Send + 'static> = Pin<Box<WithMeta<dyn AsyncBody<T>>>>;
    type Runtime = runtime::Handle;
    type Handle = runtime::AbortHandle;

    fn meta<T: Send + 'static>(body: &Self::Body<T>) -> &TaskMeta {
        &body.meta
    }

    fn meta_mut<T: Send + 'static>(body: &mut Self::Body<T>) -> &mut TaskMeta {
        body.as_mut().project().meta
    }

    #[allow(private_interfaces)]
    fn start<T: Send + 'static>(worker: Arc<WorkerState<T, Self>>) -> io::Result<Self::Handle> {
        let core = Arc::clone(&worker.core);
        // The executor exists before the tokio task: a runtime that ends without polling the task still drops it.
        Ok(core.runtime.spawn(work(Executor::new(worker))).abort_handle())
    }

    fn abort(handle: &Self::Handle) {
        handle.abort();
    }

    fn join(_handle: Self::Handle) {}

    /// Yields in every case, because the runtime need not have a timer.
    fn pause(_attempt: u32) -> impl Future<Output = ()> + Send {
        runtime::yield_now()
    }
}

/// Runs tasks on a tokio task until the pool ends.
async fn work<T: Send + 'static>(mut executor: Executor<T, TokioTasks>) {
    /// Number of tasks after which a worker yields to other tokio tasks, in case its own never wait.
    const TASKS_PER_YIELD: u32 = 128;
    let worker = Arc::clone(&executor.worker);
    let mut tasks_run = 0;
    while poll_fn(|cx| executor.poll_task(false, cx.waker())).await {
        let mut context = Context::new(Arc::clone(&worker));
        if executor.begin(&mut context).is_none() {
            continue;
        }
        let mut context = Some(context);
        if !poll_fn(|cx| poll_run(&worker, &mut executor, &mut context, cx)).await {
            break;
        }
        tasks_run += 1;
        if tasks_run % TASKS_PER_YIELD == 0 {
            runtime::yield_now().await;
        }
    }
}

/// Polls the current task. If it has ended, settles it and returns whether the worker continues. Here and not in the
/// caller, because its result is large: each move of it would take a hundredth of the time of a trivial task.
fn poll_run<T: Send + 'static>(
    worker: &WorkerState<T, TokioTasks>,
    executor: &mut Executor<T, TokioTasks>,
    context: &mut Option<Context<T, TokioTasks>>,
    cx: &mut task::Context<'_>,
) -> Poll<bool> {
    let is_timed = executor.timeout().is_some();
    if is_timed {
        worker.set_timeout_waker(cx.waker());
    }
    let has_expired = is_timed && worker.has_expired(executor.run);
    let body = executor.body().expect("a running task");
    let inside = panics::enter_worker(worker.core.address(), worker.id);
    let polled = panics::catch(|| {
        let body = body.as_mut().project().body;
        if has_expired {
            body.drop_future();
            return Poll::Ready(Err(TaskError::cancelled()));
        }
        body.poll(context, cx)
    });
    drop(inside);
    let result = match polled {
        Ok(Poll::Pending) => return Poll::Pending,
        Ok(Poll::Ready(result)) => Ok(result),
        Err(panic) => Err(panic),
    };
    Poll::Ready(executor.settle(result))
}

/// The body of an async task: a closure and the future it creates, in one allocation.
#[doc(hidden)]
pub trait AsyncBody<T: Send + 'static>: Send {
    /// Polls the future. The first poll takes the context and creates it.
    fn poll(
        self: Pin<&mut Self>,
        context: &mut Option<Context<T, TokioTasks>>,
        cx: &mut task::Context<'_>,
    ) -> Poll<TaskResult<T>>;

    /// Drops the future, at the point where it waits.
    fn drop_future(self: Pin<&mut Self>);
}

pin_project! {
    /// A task's body and its [`TaskMeta`] in one allocation.
    #[doc(hidden)]
    pub struct WithMeta<F: ?Sized> {
        meta: TaskMeta,
        #[pin]
        body: F,
    }
}

pin_project! {
    struct FutureBody<F, Fut> {
        make_future: F,
        #[pin]
        future: Option<Fut>,
    }
}

impl<T, F, Fut> AsyncBody<T> for FutureBody<F, Fut>
where
    T: Send + 'static,
    F: FnMut(Context<T, TokioTasks>) -> Option<Fut> + Send,
    Fut: Future<Output = TaskResult<T>> + Send,
{
    fn poll(
        self: Pin<&mut Self>,
        context: &mut Option<Context<T, TokioTasks>>,
        cx: &mut task::Context<'_>,
    ) -> Poll<TaskResult<T>> {
        let mut this = self.project();
        if let Some(context) = context.take() {
            this.future.set((this.make_future)(context));
        }
        let future = this.future.as_mut().as_pin_mut().expect("a task without retries was started twice");
        let result = future.poll(cx);
        if result.is_ready() {
            this.future.set(None);
        }
        result
    }

    fn drop_future(self: Pin<&mut Self>) {
        self.project().future.set(None);
    }
}

impl<T: Send + 'static> Task<T, TokioTasks> {
    /// Creates an async task that runs once.
    pub fn future<Fut>(body: impl FnOnce(AsyncContext<T>) -> Fut + Send + 'static) -> Self
    where
        Fut: Future<Output = TaskResult<T>> + Send + 'static,
    {
        let mut body = Some(body);
        Self::from_fn(move |context| body.take().map(|body| body(context)))
    }

    /// Creates an async task that is retried under `policy` when it fails. Between attempts it occupies no worker.
    pub fn retrying_future<Fut>(policy: Retry, mut body: impl FnMut(AsyncContext<T>) -> Fut + Send + 'static) -> Self
    where
        Fut: Future<Output = TaskResult<T>> + Send + 'static,
    {
        Self::from_fn(move |context| Some(body(context))).with_retry(policy)
    }

    fn from_fn<Fut>(make_future: impl FnMut(AsyncContext<T>) -> Option<Fut> + Send + 'static) -> Self
    where
        Fut: Future<Output = TaskResult<T>> + Send + 'static,
    {
        let body = FutureBody { make_future, future: None };
        Self { body: Box::pin(WithMeta { meta: TaskMeta::default(), body }) }
    }
}

impl<T: Send + 'static> Context<T, TokioTasks> {
    /// Spawns a closure: [`spawn_task`](Self::spawn_task) without settings.
    pub fn spawn<Fut>(
        &self,
        body: impl FnOnce(AsyncContext<T>) -> Fut + Send + 'static,
    ) -> Result<TaskId, SubmitError<T, TokioTasks>>
    where
        Fut: Future<Output = TaskResult<T>> + Send + 'static,
    {
        self.spawn_task(Task::future(body))
    }
}

fn current_runtime() -> Result<runtime::Handle, BuildError> {
    runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)
}

impl PoolBuilder {
    /// Builds a pool of tokio tasks on the current runtime whose tasks return no values.
    pub fn build_async(self) -> Result<AsyncPool, BuildError> {
        self.start(current_runtime()?, |_| Outcomes::Discard)
    }

    /// Builds a pool of tokio tasks on the current runtime and an iterator over the results of its tasks.
    pub fn build_async_with_results<T: Send + 'static>(
        self,
        result_order: ResultOrder,
    ) -> Result<(AsyncPool<T>, Results<T>), BuildError> {
        self.start_with_results(current_runtime()?, result_order)
    }

    /// Builds a pool of tokio tasks on the current runtime that calls `on_outcome` with the outcome of every task: see
    /// [`build_with_callback`](Self::build_with_callback).
    pub fn build_async_with_callback<T: Send + 'static>(
        self,
        on_outcome: impl Fn(Outcome<T>) + Send + Sync + 'static,
    ) -> Result<AsyncPool<T>, BuildError> {
        self.start(current_runtime()?, |_| Outcomes::Callback(Box::new(on_outcome)))
    }
}

impl<T: Send + 'static> Pool<T, TokioTasks> {
    /// Submits a closure that creates a future. Waits while the queue is full.
    pub async fn submit<Fut>(
        &self,
        body: impl FnOnce(AsyncContext<T>) -> Fut + Send + 'static,
    ) -> Result<TaskId, SubmitError<T, TokioTasks>>
    where
        Fut: Future<Output = TaskResult<T>> + Send + 'static,
    {
        self.submit_limited(Task::future(body), Limit::default).await
    }

    /// Submits a task. Waits while the queue is full: submitters are served in order, and released when the pool is
    /// closed or cancelled. Inside one of the pool's own tasks it does not wait but [spawns](Context::spawn_task). If
    /// this future is dropped before it completes, the task was not submitted.
    pub async fn submit_task(&self, task: Task<T, TokioTasks>) -> Result<TaskId, SubmitError<T, TokioTasks>> {
        self.submit_limited(task, Limit::default).await
    }

    /// Submits a task like [`submit_task`](Self::submit_task), but waits at most `limit`.
    pub async fn submit_timeout(
        &self,
        task: Task<T, TokioTasks>,
        limit: Duration,
    ) -> Result<TaskId, SubmitError<T, TokioTasks>> {
        self.submit_limited(task, || Limit::new(Some(limit), None)).await
    }

    /// Submits a task like [`submit_task`](Self::submit_task), but waits until `token` is cancelled. Then the task is
    /// rejected with [`SubmitErrorKind::Cancelled`], also if there is room.
    pub async fn submit_until(
        &self,
        task: Task<T, TokioTasks>,
        token: &CancelToken,
    ) -> Result<TaskId, SubmitError<T, TokioTasks>> {
        if token.is_cancelled() {
            return Err(SubmitError::new(SubmitErrorKind::Cancelled, task));
        }
        self.submit_limited(task, || Limit::new(None, Some(token))).await
    }

    async fn submit_limited(
        &self,
        task: Task<T, TokioTasks>,
        limit: impl FnOnce() -> Limit,
    ) -> Result<TaskId, SubmitError<T, TokioTasks>> {
        match self.submit_now(task) {
            Err(full) if full.kind == SubmitErrorKind::Full => {
                SubmitFuture::new(self.core(), full.into_task(), limit()).await
            }
            done => done,
        }
    }

    /// Waits until at one moment the pool has nothing to do: no task is queued, waits for a retry or runs, and the
    /// callbacks for all tasks before have returned. The pool stays open. See [`Pool::wait_idle`] for threads.
    pub async fn wait_idle(&self) {
        self.until_idle(Limit::default()).await;
    }

    /// Waits like [`wait_idle`](Self::wait_idle), but at most `limit`, and only until `token` is cancelled. Returns
    /// whether the pool was idle.
    pub async fn wait_idle_until(&self, token: &CancelToken, limit: Duration) -> bool {
        self.until_idle(Limit::new(Some(limit), Some(token))).await
    }

    /// Closes the pool, waits for its end and reports the outcome of every task.
    pub async fn join(&self) -> Report {
        self.end().await
    }

    /// Closes the pool, waits for it to finish, cancels unfinished tasks and reports. Returns within `deadline`,
    /// of which the last tenth (at most one second) is for cancelled tasks to stop. A task that still runs then is
    /// dropped at the point where it waits and listed in [`Report::abandoned`].
    pub async fn shutdown(&self, deadline: Duration) -> Report {
        self.end_within(deadline).await
    }
}
