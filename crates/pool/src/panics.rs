//! Catches a task's panic with its message and backtrace, and records which worker the current thread runs for.
//!
//! By the time `catch_unwind` returns, the stack that panicked is gone: only a panic hook can see it. The first pool
//! therefore installs a hook in front of the existing one. It keeps the panics of tasks for their reports and logs,
//! because libraries do not print, and passes all others on.

use crate::sync::thread_local;
use std::{
    any::Any,
    backtrace::Backtrace,
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook},
    sync::Once,
    task::Waker,
};

thread_local! {
    /// Address of the pool and number of the worker that this thread runs for.
    static CURRENT_WORKER: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    static LAST_PANIC: RefCell<Option<(String, Backtrace)>> = const { RefCell::new(None) };
}

/// Number that stands for the worker while a callback of the pool runs, on whichever thread.
pub(crate) const IN_CALLBACK: usize = usize::MAX;

/// Message and backtrace of a task's panic.
pub(crate) struct Panic {
    pub(crate) message: String,
    pub(crate) backtrace: Backtrace,
}

pub(crate) fn install_hook() {
    // The model checkers have their own hooks, and their thread locals are missing in places that can panic.
    if cfg!(any(shuttle, loom)) {
        return;
    }
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            // A thread that is ending has no locals and runs no task. With `panic = "abort"` there is no report.
            if CURRENT_WORKER.try_with(Cell::get).unwrap_or(None).is_none() || cfg!(panic = "abort") {
                return previous(info);
            }
            let panic = (describe(info), Backtrace::force_capture());
            LAST_PANIC.with(|cell| *cell.borrow_mut() = Some(panic));
        }));
    });
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = payload_text(info.payload());
    info.location().map_or_else(|| message.to_owned(), |place| format!("{message}, at {place}"))
}

fn payload_text(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&'static str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("(not a string)")
}

/// Records until the guard is dropped that this thread runs for `worker` of `pool`.
pub(crate) fn enter_worker(pool: usize, worker: usize) -> WorkerGuard {
    WorkerGuard { outer: CURRENT_WORKER.with(|inside| inside.replace(Some((pool, worker)))) }
}

#[must_use]
pub(crate) struct WorkerGuard {
    outer: Option<(usize, usize)>,
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        CURRENT_WORKER.with(|inside| inside.set(self.outer));
    }
}

/// Runs a part of a task and catches its panic.
pub(crate) fn catch<R>(run: impl FnOnce() -> R) -> Result<R, Panic> {
    let result = catch_unwind(AssertUnwindSafe(run));
    result.map_err(|payload| {
        let message = payload_text(payload.as_ref());
        // If the hook was replaced later, or if this panic is a `resume_unwind`, `LAST_PANIC` is empty or holds an
        // earlier panic that the task itself caught.
        let hooked = LAST_PANIC.with(|cell| cell.borrow_mut().take()).filter(|(text, _)| text.starts_with(message));
        let (message, backtrace) = hooked.unwrap_or_else(|| (message.to_owned(), Backtrace::disabled()));
        discard(payload);
        Panic { message, backtrace }
    })
}

/// The worker of `pool` that the calling thread runs for, if any.
pub(crate) fn current_worker(pool: usize) -> Option<usize> {
    CURRENT_WORKER.with(Cell::get).filter(|(inside, _)| *inside == pool).map(|(_, worker)| worker)
}

/// Calls a waker. It runs foreign code, whose panic must not end the pool.
pub(crate) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("a waker panicked");
    }
}

/// Calls a callback of the user. Its panic must not end the thread that calls it.
pub(crate) fn call(callback: impl FnOnce()) {
    if let Err(Panic { message, backtrace }) = catch(callback) {
        tracing::error!(message, %backtrace, "a callback panicked");
    }
}

/// Drops a value of the user. A panic in its drop must not end the worker.
pub(crate) fn discard<V>(value: V) {
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        tracing::error!("a task or its result panicked while it was dropped");
    }
}
