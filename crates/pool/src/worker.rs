//! The two kinds of workers: threads and, with the feature `tokio`, tokio tasks.

pub use crate::thread_priority::lower_priority;
#[cfg(feature = "tokio")]
pub use crate::tokio_worker::TokioTasks;

use crate::{
    context::Context,
    core::SearchState,
    executor::Executor,
    panics,
    sync::{Arc, Parker, park_briefly, thread},
    task::{Blocking, TaskMeta},
    worker_state::WorkerState,
};
use std::{io, task::Poll};

mod sealed {
    pub trait Sealed {}
}

pub(crate) use sealed::Sealed;

/// A kind of worker: [`Threads`] or, with the feature `tokio`, `TokioTasks`. Sealed: other crates cannot implement it.
pub trait Worker: Sized + Send + Sync + 'static + Sealed {
    #[doc(hidden)]
    type Body<T: Send + 'static>: Send + 'static;
    #[doc(hidden)]
    type Runtime: Send + Sync;
    #[doc(hidden)]
    type Handle: Send;

    #[doc(hidden)]
    fn meta<T: Send + 'static>(body: &Self::Body<T>) -> &TaskMeta;

    #[doc(hidden)]
    fn meta_mut<T: Send + 'static>(body: &mut Self::Body<T>) -> &mut TaskMeta;

    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn start<T: Send + 'static>(worker: Arc<WorkerState<T, Self>>) -> io::Result<Self::Handle>;

    /// Aborts a worker whose run was abandoned. Threads cannot be aborted.
    #[doc(hidden)]
    fn abort(handle: &Self::Handle);

    /// Waits until the system has ended a worker that has left the pool.
    #[doc(hidden)]
    fn join(handle: Self::Handle);

    /// Waits briefly after an attempt, whose number grows.
    #[doc(hidden)]
    fn pause(attempt: u32) -> impl Future<Output = ()> + Send;

    /// Starts a registered worker, or removes it from the pool if it cannot be started.
    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn start_or_exit<T: Send + 'static>(worker: Arc<WorkerState<T, Self>>) {
        let core = Arc::clone(&worker.core);
        match Self::start(Arc::clone(&worker)) {
            Ok(handle) => core.store_handle(worker.id, handle),
            Err(error) => {
                let pool = &core.config.name;
                tracing::error!(%pool, %error, "cannot start a replacement worker; the pool has one worker less");
                core.on_exit(&worker, SearchState::NotStarted);
            }
        }
    }
}

/// Workers that are threads, for work on disk and CPU.
#[derive(Debug, Clone, Copy)]
pub struct Threads;

impl Sealed for Threads {}

impl Worker for Threads {
    type Body<T: Send + 'static> = Blocking<T>;
    type Runtime = ();
    type Handle = thread::JoinHandle<()>;

    fn meta<T: Send + 'static>(body: &Blocking<T>) -> &TaskMeta {
        &body.meta
    }

    fn meta_mut<T: Send + 'static>(body: &mut Blocking<T>) -> &mut TaskMeta {
        &mut body.meta
    }

    #[allow(private_interfaces)]
    fn start<T: Send + 'static>(worker: Arc<WorkerState<T, Self>>) -> io::Result<Self::Handle> {
        // A thread's name must not contain NUL.
        let name = format!("{}-{}", worker.core.config.name.replace('\0', ""), worker.id);
        let executor = Executor::new(worker);
        thread::Builder::new().name(name).spawn(move || work(executor))
    }

    fn abort(_handle: &Self::Handle) {}

    fn join(handle: Self::Handle) {
        let _ = handle.join();
    }

    async fn pause(attempt: u32) {
        match attempt {
            0..100 => thread::yield_now(),
            _ => park_briefly(),
        }
    }
}

/// Runs tasks on a worker thread until the pool ends.
fn work<T: Send + 'static>(mut executor: Executor<T, Threads>) {
    let worker = Arc::clone(&executor.worker);
    let (pool, worker_id) = (worker.core.address(), worker.id);
    let mut context = Context::new(worker);
    let parker = Parker::new();
    let _inside = panics::enter_worker(pool, worker_id);
    tracing::trace!(worker = worker_id, "worker started");
    while wait_for_task(&mut executor, &parker) {
        let Some(body) = executor.begin(&mut context) else { continue };
        let result = panics::catch(|| (body.body)(&context));
        if !executor.settle(result) {
            break;
        }
    }
    tracing::trace!(worker = worker_id, "worker exited");
}

fn wait_for_task<T: Send + 'static>(executor: &mut Executor<T, Threads>, parker: &Parker) -> bool {
    loop {
        match executor.poll_task(true, parker.waker()) {
            Poll::Ready(found) => return found,
            Poll::Pending if executor.search == SearchState::Spinning => {
                executor.worker.core.spin_for_task();
            }
            Poll::Pending => parker.park(),
        }
    }
}
