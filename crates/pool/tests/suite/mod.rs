//! Helpers to run one test over each kind of worker: threads, tokio tasks on a runtime of two threads, and tokio tasks
//! on a single-threaded runtime. A test is a function over [`WorkerKind`], from which [`for_each_worker_kind!`] makes
//! three.
//!
//! Tasks are written as async closures for all kinds; a thread runs them with [`block_on`]. Tests wait for signals
//! only: a [`Gate`], a [`Signal`], a channel, or the timers of a clock.

#![allow(dead_code, reason = "each test file uses a part")]

use gristmill_pool::{
    CancelToken, Context, Outcome, Pool, PoolBuilder, QueueOrder, Report, ResultOrder, Results, Retry, Task, TaskError,
    TaskResult, clock::ManualClock, error::SubmitError, task::TaskId, worker::Threads, worker::Worker,
};
use std::{
    fmt,
    ops::Deref,
    pin::{Pin, pin},
    sync::{Arc, Condvar, Mutex},
    task::{self, Poll, Wake, Waker},
    thread,
    time::Duration,
};

pub(crate) const NANO: Duration = Duration::from_nanos(1);
pub(crate) const SEC: Duration = Duration::from_secs(1);
pub(crate) const ORDERS: [QueueOrder; 3] = [QueueOrder::Fifo, QueueOrder::Priority, QueueOrder::Cost];
pub(crate) const RESULT_ORDERS: [ResultOrder; 2] = [ResultOrder::AsCompleted, ResultOrder::AsSubmitted];

/// Makes a test of each function for each kind of worker. The compiler reports functions that are not listed as dead
/// code.
#[allow(unused_macros, reason = "panic_hook.rs uses one kind only")]
macro_rules! for_each_worker_kind {
    ($($name:ident),+ $(,)?) => {
        mod threads {
            $(#[test] fn $name() { super::$name::<crate::suite::OnThreads>(); })+
        }
        #[cfg(feature = "tokio")]
        mod tokio_tasks {
            $(#[test] fn $name() { super::$name::<crate::suite::OnTokio>(); })+
        }
        #[cfg(feature = "tokio")]
        mod tokio_single_thread {
            $(#[test] fn $name() { super::$name::<crate::suite::OnTokioSingleThread>(); })+
        }
    };
}

type BoxFuture<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;
pub(crate) type SubmitResult<T, K> = Result<TaskId, SubmitError<T, <K as WorkerKind>::W>>;
pub(crate) type ContextOf<T, K> = Context<T, <K as WorkerKind>::W>;
pub(crate) type TaskOf<T, K> = Task<T, <K as WorkerKind>::W>;

/// A kind of worker, with the operations that tests need of each kind.
pub(crate) trait WorkerKind: Sized + Send + Sync + 'static {
    type W: Worker;
    type Runtime: Send + Sync;

    fn runtime() -> Self::Runtime;
    fn build(runtime: &Self::Runtime, builder: PoolBuilder) -> Pool<(), Self::W>;
    fn build_with_results<T: Send + 'static>(
        runtime: &Self::Runtime,
        builder: PoolBuilder,
        result_order: ResultOrder,
    ) -> (Pool<T, Self::W>, Results<T>);
    fn build_with_callback<T: Send + 'static>(
        runtime: &Self::Runtime,
        builder: PoolBuilder,
        on_outcome: impl Fn(Outcome<T>) + Send + Sync + 'static,
    ) -> Pool<T, Self::W>;

    fn once<T: Send + 'static, Fut: Future<Output = TaskResult<T>> + Send + 'static>(
        body: impl FnOnce(ContextOf<T, Self>) -> Fut + Send + 'static,
    ) -> TaskOf<T, Self>;
    fn retrying<T: Send + 'static, Fut: Future<Output = TaskResult<T>> + Send + 'static>(
        policy: Retry,
        body: impl FnMut(ContextOf<T, Self>) -> Fut + Send + 'static,
    ) -> TaskOf<T, Self>;

    fn submit<T: Send + 'static>(
        pool: &Pool<T, Self::W>,
        task: TaskOf<T, Self>,
        limit: Option<Duration>,
    ) -> BoxFuture<'_, SubmitResult<T, Self>>;
    fn submit_until<'a, T: Send + 'static>(
        pool: &'a Pool<T, Self::W>,
        task: TaskOf<T, Self>,
        token: &'a CancelToken,
    ) -> BoxFuture<'a, SubmitResult<T, Self>>;
    fn wait_idle<T: Send + 'static>(pool: &Pool<T, Self::W>) -> BoxFuture<'_, ()>;
    fn wait_idle_until<'a, T: Send + 'static>(
        pool: &'a Pool<T, Self::W>,
        token: &'a CancelToken,
        limit: Duration,
    ) -> BoxFuture<'a, bool>;
    fn join<T: Send + 'static>(pool: &Pool<T, Self::W>) -> BoxFuture<'_, Report>;
    fn shutdown<T: Send + 'static>(pool: &Pool<T, Self::W>, deadline: Duration) -> BoxFuture<'_, Report>;
}

pub(crate) struct OnThreads;

impl WorkerKind for OnThreads {
    type W = Threads;
    type Runtime = ();

    fn runtime() {}

    fn build((): &(), builder: PoolBuilder) -> Pool {
        builder.build().unwrap()
    }

    fn build_with_results<T: Send + 'static>(
        (): &(),
        builder: PoolBuilder,
        result_order: ResultOrder,
    ) -> (Pool<T>, Results<T>) {
        builder.build_with_results(result_order).unwrap()
    }

    fn build_with_callback<T: Send + 'static>(
        (): &(),
        builder: PoolBuilder,
        on_outcome: impl Fn(Outcome<T>) + Send + Sync + 'static,
    ) -> Pool<T> {
        builder.build_with_callback(on_outcome).unwrap()
    }

    fn once<T: Send + 'static, Fut: Future<Output = TaskResult<T>> + Send + 'static>(
        body: impl FnOnce(Context<T>) -> Fut + Send + 'static,
    ) -> Task<T> {
        Task::new(|context| block_on(body(context.clone())))
    }

    fn retrying<T: Send + 'static, Fut: Future<Output = TaskResult<T>> + Send + 'static>(
        policy: Retry,
        mut body: impl FnMut(Context<T>) -> Fut + Send + 'static,
    ) -> Task<T> {
        Task::retrying(policy, move |context| block_on(body(context.clone())))
    }

    fn submit<T: Send + 'static>(
        pool: &Pool<T>,
        task: Task<T>,
        limit: Option<Duration>,
    ) -> BoxFuture<'_, SubmitResult<T, Self>> {
        Box::pin(async move {
            match limit {
                Some(limit) => pool.submit_timeout(task, limit),
                None => pool.submit_task(task),
            }
        })
    }

    fn submit_until<'a, T: Send + 'static>(
        pool: &'a Pool<T>,
        task: Task<T>,
        token: &'a CancelToken,
    ) -> BoxFuture<'a, SubmitResult<T, Self>> {
        Box::pin(async move { pool.submit_until(task, token) })
    }

    fn wait_idle<T: Send + 'static>(pool: &Pool<T>) -> BoxFuture<'_, ()> {
        Box::pin(async { pool.wait_idle() })
    }

    fn wait_idle_until<'a, T: Send + 'static>(
        pool: &'a Pool<T>,
        token: &'a CancelToken,
        limit: Duration,
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move { pool.wait_idle_until(token, limit) })
    }

    fn join<T: Send + 'static>(pool: &Pool<T>) -> BoxFuture<'_, Report> {
        Box::pin(async { pool.join() })
    }

    fn shutdown<T: Send + 'static>(pool: &Pool<T>, deadline: Duration) -> BoxFuture<'_, Report> {
        Box::pin(async move { pool.shutdown(deadline) })
    }
}

#[cfg(feature = "tokio")]
#[allow(unused_imports, reason = "panic_hook.rs uses one kind only")]
pub(crate) use on_tokio::{OnTokio, OnTokioSingleThread};

#[cfg(feature = "tokio")]
mod on_tokio {
    use super::*;
    use gristmill_pool::worker::TokioTasks;
    use tokio::runtime::{Builder as Tokio, Handle, Runtime};

    /// A runtime in the background that can be dropped on any thread.
    pub(crate) struct Background {
        handle: Handle,
        runtime: Option<Runtime>,
        stop: Gate,
    }

    impl Drop for Background {
        fn drop(&mut self) {
            self.stop.open();
            if let Some(runtime) = self.runtime.take() {
                runtime.shutdown_background();
            }
        }
    }

    macro_rules! on_runtime {
        ($name:ident, $make:expr) => {
            pub(crate) struct $name;

            impl WorkerKind for $name {
                type W = TokioTasks;
                type Runtime = Background;

                fn runtime() -> Background {
                    $make()
                }

                fn build(runtime: &Background, builder: PoolBuilder) -> Pool<(), TokioTasks> {
                    let _inside = runtime.handle.enter();
                    builder.build_async().unwrap()
                }

                fn build_with_results<T: Send + 'static>(
                    runtime: &Background,
                    builder: PoolBuilder,
                    result_order: ResultOrder,
                ) -> (Pool<T, TokioTasks>, Results<T>) {
                    let _inside = runtime.handle.enter();
                    builder.build_async_with_results(result_order).unwrap()
                }

                fn build_with_callback<T: Send + 'static>(
                    runtime: &Background,
                    builder: PoolBuilder,
                    on_outcome: impl Fn(Outcome<T>) + Send + Sync + 'static,
                ) -> Pool<T, TokioTasks> {
                    let _inside = runtime.handle.enter();
                    builder.build_async_with_callback(on_outcome).unwrap()
                }

                fn once<T: Send + 'static, Fut: Future<Output = TaskResult<T>> + Send + 'static>(
                    body: impl FnOnce(ContextOf<T, Self>) -> Fut + Send + 'static,
                ) -> TaskOf<T, Self> {
                    Task::future(body)
                }

                fn retrying<T: Send + 'static, Fut: Future<Output = TaskResult<T>> + Send + 'static>(
                    policy: Retry,
                    body: impl FnMut(ContextOf<T, Self>) -> Fut + Send + 'static,
                ) -> TaskOf<T, Self> {
                    Task::retrying_future(policy, body)
                }

                fn submit<T: Send + 'static>(
                    pool: &Pool<T, TokioTasks>,
                    task: TaskOf<T, Self>,
                    limit: Option<Duration>,
                ) -> BoxFuture<'_, SubmitResult<T, Self>> {
                    Box::pin(async move {
                        match limit {
                            Some(limit) => pool.submit_timeout(task, limit).await,
                            None => pool.submit_task(task).await,
                        }
                    })
                }

                fn submit_until<'a, T: Send + 'static>(
                    pool: &'a Pool<T, TokioTasks>,
                    task: TaskOf<T, Self>,
                    token: &'a CancelToken,
                ) -> BoxFuture<'a, SubmitResult<T, Self>> {
                    Box::pin(pool.submit_until(task, token))
                }

                fn wait_idle<T: Send + 'static>(pool: &Pool<T, TokioTasks>) -> BoxFuture<'_, ()> {
                    Box::pin(pool.wait_idle())
                }

                fn wait_idle_until<'a, T: Send + 'static>(
                    pool: &'a Pool<T, TokioTasks>,
                    token: &'a CancelToken,
                    limit: Duration,
                ) -> BoxFuture<'a, bool> {
                    Box::pin(pool.wait_idle_until(token, limit))
                }

                fn join<T: Send + 'static>(pool: &Pool<T, TokioTasks>) -> BoxFuture<'_, Report> {
                    Box::pin(pool.join())
                }

                fn shutdown<T: Send + 'static>(
                    pool: &Pool<T, TokioTasks>,
                    deadline: Duration,
                ) -> BoxFuture<'_, Report> {
                    Box::pin(pool.shutdown(deadline))
                }
            }
        };
    }

    on_runtime!(OnTokio, on_two_threads);
    on_runtime!(OnTokioSingleThread, on_one_thread);

    fn on_two_threads() -> Background {
        let runtime = Tokio::new_multi_thread().worker_threads(2).build().unwrap();
        Background { handle: runtime.handle().clone(), runtime: Some(runtime), stop: Gate::default() }
    }

    fn on_one_thread() -> Background {
        let runtime = Tokio::new_current_thread().build().unwrap();
        let (handle, stop) = (runtime.handle().clone(), Gate::default());
        let stopped = stop.passed();
        thread::spawn(move || runtime.block_on(stopped));
        Background { handle, runtime: None, stop }
    }
}

/// A handle of a pool with blocking methods for every kind of worker.
pub(crate) struct Handle<T: Send + 'static, K: WorkerKind>(pub(crate) Pool<T, K::W>);

impl<T: Send + 'static, K: WorkerKind> Clone for Handle<T, K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + 'static, K: WorkerKind> Deref for Handle<T, K> {
    type Target = Pool<T, K::W>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T: Send + 'static, K: WorkerKind> Handle<T, K> {
    pub(crate) fn submit(&self, task: TaskOf<T, K>) -> SubmitResult<T, K> {
        block_on(K::submit(&self.0, task, None))
    }

    pub(crate) fn submit_timeout(&self, task: TaskOf<T, K>, limit: Duration) -> SubmitResult<T, K> {
        block_on(K::submit(&self.0, task, Some(limit)))
    }

    pub(crate) fn submit_until(&self, task: TaskOf<T, K>, token: &CancelToken) -> SubmitResult<T, K> {
        block_on(K::submit_until(&self.0, task, token))
    }

    pub(crate) fn wait_idle(&self) {
        block_on(K::wait_idle(&self.0));
    }

    pub(crate) fn wait_idle_until(&self, token: &CancelToken, limit: Duration) -> bool {
        block_on(K::wait_idle_until(&self.0, token, limit))
    }

    pub(crate) fn stop(&self, cancel: bool) {
        if cancel {
            self.cancel();
        } else {
            self.close();
        }
    }

    pub(crate) fn join(&self) -> Report {
        block_on(K::join(&self.0))
    }

    pub(crate) fn shutdown(&self, deadline: Duration) -> Report {
        block_on(K::shutdown(&self.0, deadline))
    }
}

/// A pool and its runtime. The pool is dropped first.
pub(crate) struct Fixture<T: Send + 'static, K: WorkerKind> {
    pub(crate) pool: Handle<T, K>,
    pub(crate) runtime: K::Runtime,
}

impl<T: Send + 'static, K: WorkerKind> Deref for Fixture<T, K> {
    type Target = Handle<T, K>;

    fn deref(&self) -> &Self::Target {
        &self.pool
    }
}

pub(crate) fn build<K: WorkerKind>(builder: PoolBuilder) -> Fixture<(), K> {
    let runtime = K::runtime();
    Fixture { pool: Handle(K::build(&runtime, builder)), runtime }
}

pub(crate) fn build_with_results<T: Send + 'static, K: WorkerKind>(
    builder: PoolBuilder,
    result_order: ResultOrder,
) -> (Fixture<T, K>, Results<T>) {
    let runtime = K::runtime();
    let (pool, results) = K::build_with_results(&runtime, builder, result_order);
    (Fixture { pool: Handle(pool), runtime }, results)
}

pub(crate) fn build_with_callback<T: Send + 'static, K: WorkerKind>(
    builder: PoolBuilder,
    on_outcome: impl Fn(Outcome<T>) + Send + Sync + 'static,
) -> Fixture<T, K> {
    let runtime = K::runtime();
    Fixture { pool: Handle(K::build_with_callback(&runtime, builder, on_outcome)), runtime }
}

pub(crate) fn pool_builder(workers: usize, queue_capacity: usize) -> PoolBuilder {
    Pool::builder().workers(workers).queue_capacity(queue_capacity)
}

// ---- tasks that many tests need ----

/// A task that returns `value`.
pub(crate) fn returning<T: Send + 'static, K: WorkerKind>(value: T) -> TaskOf<T, K> {
    K::once(async move |_| Ok(value))
}

/// A task that fails with a permanent error.
pub(crate) fn fail<T: Send + 'static, K: WorkerKind>(why: &'static str) -> TaskOf<T, K> {
    K::once(async move |_| Err(TaskError::permanent(why)))
}

/// A task that signals `started`, waits for the gate even if cancelled, and returns `value`.
pub(crate) fn hold<T: Send + 'static, K: WorkerKind>(started: &Signal, gate: &Gate, value: T) -> TaskOf<T, K> {
    let (started, gate) = (started.clone(), gate.clone());
    K::once(async move |_| {
        started.notify();
        gate.passed().await;
        Ok(value)
    })
}

/// A task that signals `started` and then runs until it is cancelled.
pub(crate) fn run_until_cancelled<T: Send + 'static, K: WorkerKind>(started: &Signal) -> TaskOf<T, K> {
    let started = started.clone();
    K::once(async move |context: ContextOf<T, K>| {
        started.notify();
        context.cancelled().await;
        Err(TaskError::cancelled())
    })
}

/// Occupies a worker until the gate opens. Returns once its task has started.
pub(crate) fn occupy<T: Default + Send + 'static, K: WorkerKind>(pool: &Handle<T, K>, gate: &Gate) {
    let started = Signal::default();
    pool.submit(hold::<T, K>(&started, gate, T::default())).unwrap();
    started.wait_for(1);
}

/// Occupies a worker until the gate opens. Returns the context of its task.
pub(crate) fn context_of<T: Default + Send + 'static, K: WorkerKind>(
    pool: &Handle<T, K>,
    gate: &Gate,
) -> ContextOf<T, K> {
    let (contexts, started) = (Log::<ContextOf<T, K>>::default(), Signal::default());
    let (kept, begun, passed) = (contexts.clone(), started.clone(), gate.passed());
    let task = K::once(async move |context: ContextOf<T, K>| {
        kept.add(context);
        begun.notify();
        passed.await;
        Ok(T::default())
    });
    pool.submit(task).unwrap();
    started.wait_for(1);
    contexts.all().remove(0)
}

// ---- reports and states of a pool ----

/// Checks that the report counts and lists each task exactly once.
#[track_caller]
pub(crate) fn assert_reports_each_task_once(report: &Report) {
    let Report { failures, never_started, abandoned, stats, .. } = report;
    let listed = (never_started.len() + abandoned.len()) as u64;
    let submitted = stats.submitted;
    assert_eq!(report.finished + report.failed + listed, submitted, "of {submitted} submitted: {report}");
    assert_eq!(failures.len() as u64, report.failed, "a failure is not listed: {report}");
    let failed = failures.iter().map(|failure| &failure.task);
    let mut ids = ids_of(failed.chain(never_started).chain(abandoned));
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "a task is listed twice: {report}");
}

/// Checks that two reports agree on every task.
#[track_caller]
pub(crate) fn assert_same_report(one: &Report, two: &Report) {
    let summary = |report: &Report| {
        let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
        let (never_started, abandoned) = (ids_of(&report.never_started), ids_of(&report.abandoned));
        (report.finished, report.failed, failures, never_started, abandoned)
    };
    assert_eq!(summary(one), summary(two));
}

fn ids_of<'a>(tasks: impl IntoIterator<Item = &'a gristmill_pool::task::TaskRef>) -> Vec<u64> {
    tasks.into_iter().map(|task| task.id.get()).collect()
}

pub(crate) fn labels<'a>(tasks: impl IntoIterator<Item = &'a gristmill_pool::task::TaskRef>) -> Vec<String> {
    tasks.into_iter().map(|task| task.label.as_deref().unwrap_or("-").to_owned()).collect()
}

/// Number of timers that wait for the clock.
pub(crate) fn pending_timers(clock: &ManualClock) -> usize {
    let text = format!("{clock:?}");
    let count = text.split("timers: ").nth(1).and_then(|rest| rest.trim_end_matches(" }").parse().ok());
    count.unwrap_or_else(|| panic!("no timers in {text}"))
}

/// Waits for a state that has no signal by polling it.
pub(crate) fn wait_until(reached: impl Fn() -> bool) {
    while !reached() {
        thread::yield_now();
    }
}

// ---- signals ----

/// Runs a future on this thread. Does not use `park`, whose token the caller may use for other wake-ups.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let flag = Arc::new(WakeFlag::default());
    let waker = Waker::from(Arc::clone(&flag));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut task::Context::from_waker(&waker)) {
            return output;
        }
        flag.wait();
    }
}

/// A waker on which a thread can wait.
#[derive(Default)]
pub(crate) struct WakeFlag {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl WakeFlag {
    pub(crate) fn wait(&self) {
        let mut woken = self.changed.wait_while(self.woken.lock().unwrap(), |woken| !*woken).unwrap();
        *woken = false;
    }

    pub(crate) fn is_woken(&self) -> bool {
        *self.woken.lock().unwrap()
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// A gate that is closed until it is opened. Threads and async tasks can wait for it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<Waiters>>);

#[derive(Default)]
struct Waiters {
    open: bool,
    wakers: Vec<Waker>,
}

impl Gate {
    pub(crate) fn open(&self) {
        let mut waiters = self.0.lock().unwrap();
        waiters.open = true;
        let wakers = std::mem::take(&mut waiters.wakers);
        drop(waiters);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn passed(&self) -> impl Future<Output = ()> + Send + use<> {
        let gate = self.clone();
        std::future::poll_fn(move |cx| {
            let mut waiters = gate.0.lock().unwrap();
            if waiters.open {
                return Poll::Ready(());
            }
            waiters.wakers.push(cx.waker().clone());
            Poll::Pending
        })
    }
}

/// A counter on which threads can wait.
#[derive(Clone, Default)]
pub(crate) struct Signal(Arc<(Mutex<usize>, Condvar)>);

impl Signal {
    pub(crate) fn notify(&self) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_all();
    }

    pub(crate) fn count(&self) -> usize {
        *self.0.0.lock().unwrap()
    }

    pub(crate) fn wait_for(&self, count: usize) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |notified| *notified < count).unwrap());
    }
}

/// Notifies its signal when it is dropped.
pub(crate) struct OnDrop(pub(crate) Signal);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.notify();
    }
}

/// A barrier: no task continues before `expected` tasks have arrived.
#[derive(Clone)]
pub(crate) struct Barrier {
    expected: usize,
    arrived: Signal,
    gate: Gate,
}

impl Barrier {
    pub(crate) fn new(expected: usize) -> Self {
        Self { expected, arrived: Signal::default(), gate: Gate::default() }
    }

    pub(crate) async fn wait(self) {
        self.arrived.notify();
        if self.arrived.count() >= self.expected {
            self.gate.open();
        }
        self.gate.passed().await;
    }
}

/// A list of events in order.
#[derive(Clone)]
pub(crate) struct Log<E>(Arc<Mutex<Vec<E>>>);

impl<E> Default for Log<E> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<E: Clone> Log<E> {
    pub(crate) fn add(&self, event: E) {
        self.0.lock().unwrap().push(event);
    }

    pub(crate) fn all(&self) -> Vec<E> {
        self.0.lock().unwrap().clone()
    }
}

/// Advances the clock until a worker of a pool with a stall timeout of one second has stalled.
pub(crate) fn advance_past_stall(clock: &ManualClock) {
    (0..6).for_each(|_| clock.advance(SEC / 4));
}

// ---- user code that runs in drops and wakers ----

/// An error or a value that calls a function when it is dropped.
pub(crate) struct DropHook<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for DropHook<F> {
    fn drop(&mut self) {
        // A second panic would end the process.
        if !thread::panicking() {
            (self.0)();
        }
    }
}

impl<F: Fn()> fmt::Debug for DropHook<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dropping")
    }
}

impl<F: Fn()> fmt::Display for DropHook<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dropping")
    }
}

impl<F: Fn()> std::error::Error for DropHook<F> {}

pub(crate) fn panic_now() {
    std::panic::panic_any("bang");
}

/// A waker that calls a function.
struct WakeHook<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for WakeHook<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

pub(crate) fn waker(wake: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(WakeHook(wake)))
}
