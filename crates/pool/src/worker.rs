//! The two kinds of workers: threads, and with the feature `tokio` also tokio tasks.

pub use crate::context::Cancelled;
pub use crate::nice::lower_priority;
#[cfg(feature = "tokio")]
pub use crate::tasks::TokioTasks;

use crate::{
    context::Context,
    core::Search,
    desk::Desk,
    panics,
    slot::Slot,
    sync::{Arc, Parker, thread},
    task::{Blocking, Meta},
};
use std::{io, task::Poll};

mod sealed {
    pub trait Sealed {}
}

pub(crate) use sealed::Sealed;

/// A kind of worker: [`Threads`], or with the feature `tokio` also `Tasks`. Cannot be
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
    fn meta<T: Send + 'static>(body: &Self::Body<T>) -> &Meta;

    #[doc(hidden)]
    fn meta_mut<T: Send + 'static>(body: &mut Self::Body<T>) -> &mut Meta;

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

    fn meta<T: Send + 'static>(body: &Blocking<T>) -> &Meta {
        &body.meta
    }

    fn meta_mut<T: Send + 'static>(body: &mut Blocking<T>) -> &mut Meta {
        &mut body.meta
    }

    #[allow(private_interfaces)]
    fn start<T: Send + 'static>(slot: Arc<Slot<T, Self>>) -> io::Result<Self::Handle> {
        // The system takes no NUL in a name.
        let name = format!("{}-{}", slot.core.config.name.replace('\0', ""), slot.id);
        let desk = Desk::new(slot);
        thread::Builder::new().name(name).spawn(move || work(desk))
    }

    fn abort(_handle: &Self::Handle) {}
}

/// A worker's life.
fn work<T: Send + 'static>(mut desk: Desk<T, Threads>) {
    let slot = Arc::clone(&desk.slot);
    let (pool, worker) = (slot.core.address(), slot.id);
    let mut context = Context::new(slot);
    let parker = Parker::new();
    let _inside = panics::enter(pool, worker);
    tracing::trace!(worker, "worker started");
    while wait_for_job(&mut desk, &parker) {
        let Some(body) = desk.begin(&mut context) else { continue };
        let result = panics::catch(|| (body.body)(&context));
        if !desk.settle(result) {
            break;
        }
    }
    tracing::trace!(worker, "worker ended");
}

fn wait_for_job<T: Send + 'static>(desk: &mut Desk<T, Threads>, parker: &Parker) -> bool {
    loop {
        match desk.poll_job(true, parker.waker()) {
            Poll::Ready(found) => return found,
            Poll::Pending if desk.search == Search::Looking => {
                desk.slot.core.look_for_work();
            }
            Poll::Pending => parker.park(),
        }
    }
}
