//! Registers workers, removes those that exit and replaces those that stall. Module `worker` starts them.

use super::{Core, SearchState, State, WakeList, WorkerEntry, dispatch::register_waker};
use crate::{
    breaker::Permit,
    error::TaskError,
    outcome::Outcome,
    report::Failure,
    stall::StallDetector,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Task,
    worker::Worker,
    worker_state::WorkerState,
};
use std::{
    task::{Poll, Waker},
    time::Duration,
};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    /// Registers a new worker before it is started, so that the pool cannot end without it.
    pub(crate) fn register(self: &Arc<Self>) -> Arc<WorkerState<T, W>> {
        self.register_locked(&mut self.lock())
    }

    pub(super) fn register_locked(self: &Arc<Self>, state: &mut State<T, W>) -> Arc<WorkerState<T, W>> {
        let worker = Arc::new(WorkerState::new(state.next_worker_id, Arc::clone(self)));
        state.next_worker_id += 1;
        state.awake += 1;
        let entry = WorkerEntry { state: Arc::clone(&worker), stall_detector: StallDetector::default() };
        state.workers.push(entry);
        worker
    }

    pub(crate) fn store_handle(&self, worker_id: usize, handle: W::Handle) {
        let mut state = self.lock();
        if state.workers.iter().any(|entry| entry.state.id == worker_id) {
            state.handles.push((worker_id, handle));
        } else {
            // The worker has exited or was abandoned, so nothing joins it.
            drop(state);
            W::abort(&handle);
        }
    }

    pub(crate) fn take_handles(&self) -> Vec<(usize, W::Handle)> {
        std::mem::take(&mut self.lock().handles)
    }

    /// Removes an awake worker and keeps its counters. The pool no longer waits for it.
    pub(super) fn remove(&self, state: &mut State<T, W>, worker: &WorkerState<T, W>) {
        state.workers.retain(|entry| entry.state.id != worker.id);
        state.exited_workers.merge(&worker.counters.0);
        state.awake -= 1;
        if let Some(place) = state.handles.iter().position(|(worker_id, _)| *worker_id == worker.id) {
            W::abort(&state.handles.swap_remove(place).1);
        }
    }

    /// Removes a worker that exits for any reason. The last one ends the pool. If work is left then, because the
    /// runtime was shut down, the pool is cancelled and reports that work.
    pub(crate) fn on_exit(&self, worker: &WorkerState<T, W>, search: SearchState) {
        let mut state = self.lock();
        let Some(place) = state.workers.iter().position(|entry| entry.state.id == worker.id) else { return };
        let asleep = state.idle.iter().position(|(id, _)| *id == worker.id);
        if let Some(asleep) = asleep {
            state.idle.remove(asleep);
            self.sleeping_workers.0.store(state.idle.len(), Relaxed);
        } else {
            state.awake -= 1;
            state.searching -= usize::from(search != SearchState::NotStarted);
        }
        // Under the lock that `snapshot` takes, so that each count is seen exactly once.
        state.workers.swap_remove(place);
        state.exited_workers.merge(&worker.counters.0);
        let is_last = state.workers.is_empty() && !state.finished;
        state.delivering += 1;
        drop(state);
        self.requeue(worker.close_and_drain());
        self.wake_after_exit();
        if is_last {
            self.cancel();
        }
        self.finish_delivering();
    }

    /// Wakes other workers after one has exited: they run the remaining tasks, or exit too.
    fn wake_after_exit(&self) {
        let mut state = self.lock();
        let mut wakes = WakeList::default();
        if !state.finished && self.finish_if_done(&mut state) {
            wakes = self.wake_all(&mut state);
        } else if state.queue.len() > 0 {
            wakes.0.extend(self.wake_one(&mut state));
        }
        drop(state);
        wakes.wake();
    }

    /// Fails the running task of a worker whose runtime was shut down.
    pub(crate) fn on_abort(&self, worker: &WorkerState<T, W>) {
        let (task, attempts) = (worker.current_task(), worker.attempt());
        let Some((task, (run, _))) = task.zip(worker.current_run()) else { return };
        if worker.abandon_run(run) {
            worker.cancel_token(|_| true);
            worker.take_permit().into_iter().for_each(Permit::withdraw);
            worker.counters.0.failed.add(1);
            let failure = Failure { task, attempts, error: Arc::new(TaskError::cancelled()) };
            self.keep_failure(&mut self.lock(), &failure);
            self.deliver(Outcome::failed(failure, worker.run_time()));
        }
    }

    /// Moves the tasks of an exited worker back into the queue. In a cancelled pool they are never started.
    pub(super) fn requeue(&self, tasks: Vec<Task<T, W>>) {
        if tasks.is_empty() {
            return;
        }
        let mut state = self.lock();
        if state.cancelled {
            drop(state);
            return tasks.into_iter().for_each(|task| self.mark_never_started(task));
        }
        for task in tasks {
            state.queue.push(task.meta().rank, task);
        }
        self.update_hints(&state);
        self.unlock_and_wake(state);
    }

    /// Checks every worker once. One without a heartbeat for `limit` nanoseconds is abandoned: its task fails, its
    /// local queue moves back into the shared queue, and a new worker is registered, which the caller starts.
    pub(crate) fn replace_stalled(self: &Arc<Self>, now: u64, limit: u64) -> Vec<Arc<WorkerState<T, W>>> {
        let mut state = self.lock();
        let workers = state.workers.iter_mut();
        let stalled: Vec<_> = workers
            .filter_map(|entry| {
                let run = entry.stall_detector.observe(entry.state.current_run(), now, limit)?;
                Some((run, Arc::clone(&entry.state)))
            })
            .collect();
        let (mut failures, mut replacements) = (Vec::new(), Vec::new());
        for (run, worker) in stalled {
            let Some(task) = worker.current_task() else { continue };
            if !worker.abandon_run(run) {
                continue;
            }
            let error = Arc::new(TaskError::stalled(Duration::from_nanos(limit)));
            let failure = Failure { task, attempts: worker.attempt(), error };
            self.keep_failure(&mut state, &failure);
            failures.push((Arc::clone(&worker), failure));
            state.stalled += 1;
            state.failed_outside_workers += 1;
            // Closed before its counters are merged: the task may still be running, and spawn.
            for task in worker.close_and_drain() {
                state.queue.push(task.meta().rank, task);
            }
            self.remove(&mut state, &worker);
            replacements.push(self.register_locked(&mut state));
        }
        self.update_hints(&state);
        drop(state);
        for (worker, failure) in failures {
            let (pool, task) = (&self.config.name, &failure.task);
            tracing::warn!(%pool, worker = worker.id, %task, "worker stalled and was replaced");
            worker.cancel_token(|_| true);
            // A dropped permit counts as a failed call.
            drop(worker.take_permit());
            self.deliver(Outcome::failed(failure, worker.run_time()));
        }
        replacements
    }

    /// Returns `Ready` once the pool has ended. If pending, registers `waker` to be woken at the end.
    pub(crate) fn poll_ended(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        if state.ended {
            return Poll::Ready(());
        }
        register_waker(&mut state.joiners, waker);
        Poll::Pending
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }
}
