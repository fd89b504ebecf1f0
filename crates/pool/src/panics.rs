//! Catches a task's panic with its message and backtrace, and knows whether this thread is inside a task.
//!
//! By the time `catch_unwind` returns, the stack that panicked is gone: only a panic hook can see it. The
//! first pool therefore puts one in front of the hook that is there. It keeps the panics of tasks for their
//! reports and logs (libraries do not print) and hands all others on.

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
    /// The pool, as an address, and its worker that this thread works for.
    static CURRENT_WORKER: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    static LAST_PANIC: RefCell<Option<(String, Backtrace)>> = const { RefCell::new(None) };
}

/// A task's panic.
pub(crate) struct Panic {
    pub(crate) message: String,
    pub(crate) backtrace: Backtrace,
}

pub(crate) fn install_hook() {
    // The model checkers have hooks of their own, and locals that are not there wherever a panic can be.
    if cfg!(any(shuttle, loom)) {
        return;
    }
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            // A thread that is ending has no locals left, and is in no task. Where a panic ends the process
            // there will be no report.
            if CURRENT_WORKER.try_with(Cell::get).unwrap_or(None).is_none() || cfg!(panic = "abort") {
                return previous(info);
            }
            let seen = (describe(info), Backtrace::force_capture());
            LAST_PANIC.with(|cell| *cell.borrow_mut() = Some(seen));
        }));
    });
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = payload_text(info.payload());
    info.location().map_or_else(|| message.to_owned(), |place| format!("{message}, at {place}"))
}

fn payload_text(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&'static str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("(not a payload_text)")
}

/// Says that this thread works for `worker` of `pool`, until the guard is dropped.
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

/// Runs a part of a task.
pub(crate) fn catch<R>(run: impl FnOnce() -> R) -> Result<R, Panic> {
    let result = catch_unwind(AssertUnwindSafe(run));
    result.map_err(|payload| {
        let message = payload_text(payload.as_ref());
        // Nothing seen, or an earlier panic that the task itself caught: somebody replaced our hook later, or
        // this one was a `resume_unwind`.
        let seen = LAST_PANIC
            .with(|cell| cell.borrow_mut().take())
            .filter(|(message, _)| message.starts_with(message));
        let (message, backtrace) = seen.unwrap_or_else(|| (message.to_owned(), Backtrace::disabled()));
        discard(payload);
        Panic { message, backtrace }
    })
}

/// The worker of `pool` that the calling thread works for.
pub(crate) fn current_worker(pool: usize) -> Option<usize> {
    CURRENT_WORKER.with(Cell::get).filter(|(inside, _)| *inside == pool).map(|(_, worker)| worker)
}

/// WakeList somebody. A waker is foreign code, and may panic; that is not the pool's end.
pub(crate) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("a waker panicked");
    }
}

/// Drops what is the user's. Its drop may panic, and must not take the worker with it.
pub(crate) fn discard<V>(value: V) {
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        tracing::error!("a task panicked as it was dropped");
    }
}
