//! Workers that are tokio tasks, for work that waits for the network. They behave as threads do, but calls that
//! block there are awaited here, and a task that exceeds its timeout is dropped.

use crate::{
    builder::{BuildError, PoolBuilder},
    clock::Deadline,
    context::Context,
    core::Core,
    error::{TaskError, TaskResult},
    executor::Executor,
    outcome::{Outcome, Outcomes},
    panics::{self, Panic},
    pool::{Pool, split_deadline},
    report::Report,
    results::{ResultOrder, Results},
    retry::Retry,
    sync::Arc,
    task::{SubmitError, SubmitErrorKind, Task, TaskId, TaskMeta},
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
        let result = run(&worker, &mut executor, context).await;
        if !executor.settle(result) {
            break;
        }
        tasks_run += 1;
        if tasks_run % TASKS_PER_YIELD == 0 {
            runtime::yield_now().await;
        }
    }
}

/// Polls a task to its end, or drops its future once it has exceeded its timeout.
async fn run<T: Send + 'static>(
    worker: &WorkerState<T, TokioTasks>,
    executor: &mut Executor<T, TokioTasks>,
    context: Context<T, TokioTasks>,
) -> Result<TaskResult<T>, Panic> {
    let (pool, worker_id, run) = (worker.core.address(), worker.id, executor.run);
    let mut context = Some(context);
    let timed = executor.timeout().is_some();
    poll_fn(|cx| {
        let body = executor.body().expect("a running task");
        let _inside = panics::enter_worker(pool, worker_id);
        if timed {
            worker.listen(0, cx.waker());
            if worker.has_expired(run) {
                return Poll::Ready(panics::catch(|| {
                    body.as_mut().project().body.drop_future();
                    Err(TaskError::cancelled())
                }));
            }
        }
        match panics::catch(|| body.as_mut().project().body.poll(&mut context, cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
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
        SubmitFuture::new(self.core(), Task::future(body), None).await
    }

    /// Submits a task. Waits while the queue is full: submitters are served in order, and released when the pool is
    /// closed or cancelled. Inside one of the pool's own tasks it does not wait but [spawns](Context::spawn_task). If
    /// this future is dropped before it completes, the task was not submitted.
    pub async fn submit_task(&self, task: Task<T, TokioTasks>) -> Result<TaskId, SubmitError<T, TokioTasks>> {
        SubmitFuture::new(self.core(), task, None).await
    }

    /// Submits a task like [`submit_task`](Self::submit_task), but waits at most `limit`.
    pub async fn submit_timeout(
        &self,
        task: Task<T, TokioTasks>,
        limit: Duration,
    ) -> Result<TaskId, SubmitError<T, TokioTasks>> {
        SubmitFuture::new(self.core(), task, Some(limit)).await
    }

    /// Closes the pool, waits for its end and reports the outcome of every task.
    pub async fn join(&self) -> Report {
        self.close();
        if !self.is_called_from_own_task() {
            self.wait_for_end(None).await;
        }
        self.core().report()
    }

    /// Closes the pool, waits for it to finish, cancels unfinished tasks and reports. Returns within `deadline`,
    /// of which the last tenth (at most one second) is for cancelled tasks to stop. A task that still runs then is
    /// dropped at the point where it waits and listed in [`Report::abandoned`].
    pub async fn shutdown(&self, deadline: Duration) -> Report {
        self.close();
        if self.is_called_from_own_task() {
            self.cancel();
            return self.core().report();
        }
        let (finish, stop) = split_deadline(deadline);
        if !self.wait_for_end(Some(finish)).await {
            self.cancel();
            if !self.wait_for_end(Some(stop)).await {
                // Repeats while a worker was about to start a task: see `Pool::<T>::shutdown` for threads.
                while !self.core().abandon_running() {
                    runtime::yield_now().await;
                }
            }
        }
        self.core().report()
    }

    async fn wait_for_end(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Deadline::new(self.core().clock(), limit));
        poll_fn(|cx| {
            if self.core().poll_ended(cx.waker()).is_ready() {
                return Poll::Ready(true);
            }
            let has_passed = deadline.as_ref().is_some_and(|deadline| deadline.has_passed(cx.waker()));
            if has_passed { Poll::Ready(false) } else { Poll::Pending }
        })
        .await
    }
}

struct SubmitFuture<'a, T: Send + 'static> {
    core: &'a Core<T, TokioTasks>,
    task: Option<Task<T, TokioTasks>>,
    ticket: Option<u64>,
    limit: Option<Duration>,
    deadline: Option<Deadline>,
}

impl<'a, T: Send + 'static> SubmitFuture<'a, T> {
    fn new(core: &'a Core<T, TokioTasks>, task: Task<T, TokioTasks>, limit: Option<Duration>) -> Self {
        Self { core, task: Some(task), ticket: None, limit, deadline: None }
    }
}

impl<T: Send + 'static> Future for SubmitFuture<'_, T> {
    type Output = Result<TaskId, SubmitError<T, TokioTasks>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(worker_id) = panics::current_worker(this.core.address()) {
            let task = this.task.take().expect("polled after it was ready");
            return Poll::Ready(this.core.submit_from_worker(worker_id, task));
        }
        let polled = this.core.poll_submit(&mut this.task, &mut this.ticket, || cx.waker().clone());
        if polled.is_ready() {
            return polled;
        }
        let Some(limit) = this.limit else { return Poll::Pending };
        let deadline = this.deadline.get_or_insert_with(|| Deadline::new(this.core.clock(), limit));
        if !deadline.has_passed(cx.waker()) {
            return Poll::Pending;
        }
        this.ticket.take().into_iter().for_each(|ticket| this.core.cancel_ticket(ticket));
        let task = this.task.take().expect("a waiting submitter still has its task");
        Poll::Ready(Err(SubmitError::new(SubmitErrorKind::TimedOut, task)))
    }
}

impl<T: Send + 'static> Drop for SubmitFuture<'_, T> {
    fn drop(&mut self) {
        self.ticket.take().into_iter().for_each(|ticket| self.core.cancel_ticket(ticket));
    }
}
