//! The two kinds of workers: threads, here, and tokio tasks, in `tasks`.

use crate::{
    context::Context,
    core::Search,
    desk::Desk,
    panics,
    slot::Slot,
    sync::{Arc, thread, thread_waker},
    task::{Blocking, Job},
};
use std::{
    hint, io,
    task::{Poll, Waker},
};

mod sealed {
    pub trait Sealed {}
}

pub(crate) use sealed::Sealed;

/// A kind of worker: [`Threads`], or with the feature `tokio` also [`Tasks`](crate::Tasks). Cannot be
/// implemented elsewhere.
pub trait Worker: Sized + Send + Sync + 'static + Sealed {
    #[doc(hidden)]
    type Body<T: Send + 'static>: Send + 'static;
    /// What it takes to start a worker.
    #[doc(hidden)]
    type Runtime: Send + Sync;
    /// What is kept of a worker that was started.
    #[doc(hidden)]
    type Handle: Send;

    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn start<T: Send + 'static>(slot: Arc<Slot<T, Self>>) -> io::Result<Self::Handle>;

    /// Ends a worker that was given up, if its kind can be ended.
    #[doc(hidden)]
    fn abort(handle: &Self::Handle);

    /// Starts a worker in its place, or gives the place up.
    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn start_or_leave<T: Send + 'static>(slot: Arc<Slot<T, Self>>) {
        let core = Arc::clone(&slot.core);
        match Self::start(Arc::clone(&slot)) {
            Ok(handle) => core.keep_handle(slot.id, handle),
            Err(error) => {
                tracing::error!(pool = %core.config.name, %error, "cannot start a worker; the pool has one less");
                core.leave(&slot, Search::Fresh);
            }
        }
    }
}

/// Workers that are threads: for disk and CPU.
#[derive(Debug, Clone, Copy)]
pub struct Threads;

impl Sealed for Threads {}

impl Worker for Threads {
    type Body<T: Send + 'static> = Blocking<T>;
    type Runtime = ();
    type Handle = thread::JoinHandle<()>;

    #[allow(private_interfaces)]
    fn start<T: Send + 'static>(slot: Arc<Slot<T, Self>>) -> io::Result<Self::Handle> {
        let name = format!("{}-{}", slot.core.config.name, slot.id);
        thread::Builder::new().name(name).spawn(move || work(slot))
    }

    fn abort(_handle: &Self::Handle) {}
}

/// A worker's life.
fn work<T: Send + 'static>(slot: Arc<Slot<T, Threads>>) {
    let (pool, worker) = (slot.core.address(), slot.id);
    let mut context = Context::new(Arc::clone(&slot));
    let mut desk = Desk::new(slot);
    let waker = thread_waker();
    tracing::trace!(worker, "worker started");
    while let Some(job) = wait_for_job(&mut desk, &waker) {
        let Some(mut running) = desk.begin(job, &mut context) else { continue };
        let body = &mut running.job.task.body;
        let result = panics::catch(pool, worker, || body.call(&context));
        if !desk.settle(running, result) {
            break;
        }
    }
    tracing::trace!(worker, "worker ended");
}

fn wait_for_job<T: Send + 'static>(desk: &mut Desk<T, Threads>, waker: &Waker) -> Option<Job<T, Threads>> {
    loop {
        match desk.poll_job(true, waker) {
            Poll::Ready(job) => return job,
            Poll::Pending if desk.search == Search::Looking => look_around(desk),
            Poll::Pending => thread::park(),
        }
    }
}

/// Before a worker sleeps it looks around for some microseconds: a system call to sleep and one to wake it
/// cost more than most gaps between tasks. It lets others run as it does, for they may be who brings work.
fn look_around<T: Send + 'static>(desk: &Desk<T, Threads>) {
    const ROUNDS: u32 = 20;
    const SPINS: u32 = 64;
    for _ in 0..ROUNDS {
        for _ in 0..SPINS {
            if desk.slot.core.looks_ready() {
                return;
            }
            hint::spin_loop();
        }
        thread::yield_now();
    }
}
