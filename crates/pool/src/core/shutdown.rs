//! Ends a pool: closes it, cancels its tasks and abandons those that do not stop.

use super::{Core, Delayed, State, WakeList, dispatch::take_idle_waiters};
use crate::{breaker::Permit, sync::Arc, task::Task, worker::Worker, worker_state::WorkerState};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    /// Rejects new tasks and finishes those already accepted.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        let mut wakes = self.close_submissions(&mut state);
        if !state.finished && self.finish_if_done(&mut state) {
            wakes.0.extend(self.wake_all(&mut state).0);
        }
        drop(state);
        wakes.wake();
    }

    pub(super) fn close_submissions(&self, state: &mut State<T, W>) -> WakeList {
        state.closed = true;
        state.reserved = 0;
        WakeList(std::mem::take(&mut state.submitters).into_iter().map(|(_, waker)| waker).collect())
    }

    /// Starts nothing more and cancels the running tasks.
    pub(crate) fn cancel(&self) {
        let mut state = self.lock();
        if state.cancelled {
            return;
        }
        state.cancelled = true;
        state.delivering += 1;
        let mut wakes = self.close_submissions(&mut state);
        wakes.0.extend(self.wake_all(&mut state).0);
        let mut dropped: Vec<Task<T, W>> = std::iter::from_fn(|| state.queue.pop()).collect();
        let workers: Vec<Arc<WorkerState<T, W>>> = state.workers.iter().map(|entry| Arc::clone(&entry.state)).collect();
        dropped.extend(workers.iter().flat_map(|worker| worker.close_and_drain()));
        let delayed = std::mem::take(&mut state.delayed);
        self.update_hints(&state);
        drop(state);
        workers.iter().for_each(|worker| worker.cancel());
        if let Some(results) = self.outcomes.queue() {
            // After `worker.cancel()`, which a worker checks once it waits for room.
            results.release_workers();
        }
        wakes.wake();
        tracing::debug!(pool = %self.config.name, not_started = dropped.len(), "pool cancelled");
        for Delayed { task, timer } in delayed.into_values() {
            self.clock().cancel_timer(timer);
            self.mark_never_started(task);
        }
        dropped.into_iter().for_each(|task| self.mark_never_started(task));
        self.finish_delivering();
    }

    /// Abandons and records every task that still runs. Returns whether the pool has ended.
    pub(crate) fn abandon_running(&self) -> bool {
        let mut state = self.lock();
        let workers: Vec<Arc<WorkerState<T, W>>> = state.workers.iter().map(|entry| Arc::clone(&entry.state)).collect();
        let mut abandoned = Vec::new();
        for worker in workers {
            // The run is read first: if `abandon_run` then succeeds, the task belongs to that run.
            let Some((run, _)) = worker.current_run() else { continue };
            let task = worker.current_task();
            if worker.abandon_run(run) {
                state.abandoned.extend(task);
                self.remove(&mut state, &worker);
                abandoned.push(worker);
            }
        }
        state.delivering += 1;
        drop(state);
        for worker in abandoned {
            worker.cancel_token(|_| true);
            worker.take_permit().into_iter().for_each(Permit::withdraw);
        }
        self.finish_delivering();
        self.has_ended()
    }

    /// Ends an operation that delivered outcomes after it released the lock. The pool ends when no such operation is
    /// left and every worker is gone, so that nothing is delivered after the end.
    pub(super) fn finish_delivering(&self) {
        let mut state = self.lock();
        state.delivering -= 1;
        let ends = state.delivering == 0 && state.workers.is_empty() && !state.ended;
        state.ended |= ends;
        let mut wakes = take_idle_waiters(&mut state);
        if ends {
            wakes.0.append(&mut state.joiners);
        }
        drop(state);
        if let Some(results) = self.outcomes.queue().filter(|_| ends) {
            results.end();
        }
        wakes.wake();
    }
}
