//! Workers come and go here: seated, left, replaced. Starting them is theirs.

use super::{Core, SearchState, State, WakeList, WorkerEntry};
use crate::{
    breaker::Permit,
    error::TaskError,
    panics,
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
    /// Makes a place for a new worker. It counts from now on, so the pool cannot end before it has come.
    pub(crate) fn register(self: &Arc<Self>) -> Arc<WorkerState<T, W>> {
        self.register_locked(&mut self.lock())
    }

    pub(super) fn register_locked(self: &Arc<Self>, state: &mut State<T, W>) -> Arc<WorkerState<T, W>> {
        let worker = Arc::new(WorkerState::new(state.next_worker_id, Arc::clone(self)));
        state.next_worker_id += 1;
        state.awake += 1;
        state
            .workers
            .push(WorkerEntry { state: Arc::clone(&worker), stall_detector: StallDetector::default() });
        worker
    }

    pub(crate) fn store_handle(&self, worker_id: usize, handle: W::Handle) {
        let mut state = self.lock();
        if state.workers.iter().any(|entry| entry.state.id == worker_id) {
            state.handles.push((worker_id, handle));
        } else {
            // Gone already, or given up: nobody will wait for it.
            drop(state);
            W::abort(&handle);
        }
    }

    pub(crate) fn take_handles(&self) -> Vec<(usize, W::Handle)> {
        std::mem::take(&mut self.lock().handles)
    }

    /// Takes an awake worker off the list, with its counts; it is not waited for any more.
    pub(super) fn remove(&self, state: &mut State<T, W>, worker: &WorkerState<T, W>) {
        state.workers.retain(|entry| entry.state.id != worker.id);
        state.exited_workers.merge(&worker.counters.0);
        state.awake -= 1;
        if let Some(place) = state.handles.iter().position(|(worker_id, _)| *worker_id == worker.id) {
            W::abort(&state.handles.swap_remove(place).1);
        }
    }

    /// A worker goes, for whatever reason. The last one ends the pool: if there was work left (a runtime was
    /// shut down around it), that is cancelled and named.
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
        // Under one lock with the snapshot, so that no count is seen twice or not at all.
        state.workers.swap_remove(place);
        state.exited_workers.merge(&worker.counters.0);
        let abandoned = state.workers.is_empty() && !state.finished;
        state.delivering += 1;
        drop(state);
        self.requeue(worker.close_and_drain());
        self.wake_after_exit();
        if abandoned {
            self.cancel();
        }
        self.finish_delivering();
    }

    /// One worker is gone: if it was the last one awake, the others have to see to what is left, or that
    /// nothing is.
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

    /// A worker goes in the middle of a task: its runtime was shut down.
    pub(crate) fn on_abort(&self, worker: &WorkerState<T, W>) {
        let (task, attempts) = (worker.current_task(), worker.attempt());
        let Some((task, (run, _))) = task.zip(worker.current_run()) else { return };
        if worker.abandon_run(run) {
            worker.wake_listeners();
            worker.take_permit().into_iter().for_each(Permit::withdraw);
            worker.counters.0.failed.add(1);
            let failure = Failure { task, attempts, error: Arc::new(TaskError::cancelled()) };
            self.keep_failure(&mut self.lock(), &failure);
            self.deliver(failure.task.clone(), Err(failure));
        }
    }

    /// Puts the tasks of a worker that is gone back into the queue, or gives them up with the pool.
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
        let to_wake = self.wake_one(&mut state);
        self.update_hints(&state);
        drop(state);
        to_wake.into_iter().for_each(panics::wake);
    }

    /// Looks at every worker once. One that gave no heartbeat for too long is given up: its task has failed,
    /// its shelf goes back into the queue, and its place is taken by a new one, to be started by the caller.
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
            // Shut before it is counted: the task may be alive after all, and spawn.
            for task in worker.close_and_drain() {
                state.queue.push(task.meta().rank, task);
            }
            self.remove(&mut state, &worker);
            replacements.push(self.register_locked(&mut state));
        }
        self.update_hints(&state);
        drop(state);
        for (worker, failure) in failures {
            tracing::warn!(pool = %self.config.name, worker = worker.id, task = %failure.task, "worker stalled; replaced");
            worker.wake_listeners();
            // Untold, it counts as a failed call.
            drop(worker.take_permit());
            self.deliver(failure.task.clone(), Err(failure));
        }
        replacements
    }

    /// Whether the pool has ended.
    pub(crate) fn poll_ended(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        if state.ended {
            return Poll::Ready(());
        }
        if !state.joiners.iter().any(|known| known.will_wake(waker)) {
            state.joiners.push(waker.clone());
        }
        Poll::Pending
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }
}
