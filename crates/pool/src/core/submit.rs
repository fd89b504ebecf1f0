//! Accepts tasks. Submitters outside the pool wait for room; running tasks that spawn never wait.

use super::{Core, State, WakeList, dispatch::spin};
use crate::{
    panics,
    results::{ResultOrder, ResultQueue, log_stuck_reader},
    sync::{
        Arc, MutexGuard,
        atomic::{
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    task::{SubmitError, SubmitErrorKind, Submitted, Task, TaskId},
    worker::Worker,
    worker_state::WorkerState,
};
use std::{
    ops::Range,
    task::{Poll, Waker},
};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    pub(super) fn has_room(&self, state: &State<T, W>) -> bool {
        let used = state.queue.len() + state.delayed.len() + state.reserved;
        used < self.config.queue_capacity && self.is_within_reader_limit(state)
    }

    fn results_in_submit_order(&self) -> Option<&Arc<ResultQueue<T>>> {
        self.outcomes.queue().filter(|results| results.order == ResultOrder::AsSubmitted)
    }

    /// Whether the next task stays within [`Config::max_ahead_of_reader`](crate::builder::Config::max_ahead_of_reader).
    pub(super) fn is_within_reader_limit(&self, state: &State<T, W>) -> bool {
        let Some(results) = self.results_in_submit_order() else { return true };
        let next = state.next_task_id.saturating_add(state.reserved as u64);
        next.saturating_sub(results.next_sequence()) < self.config.max_ahead_of_reader() as u64
    }

    pub(super) fn rejection(state: &State<T, W>) -> Option<SubmitErrorKind> {
        if state.cancelled {
            return Some(SubmitErrorKind::Cancelled);
        }
        state.closed.then_some(SubmitErrorKind::Closed)
    }

    /// The reason to reject `task` whether there is room or not.
    fn rejection_of(state: &State<T, W>, task: &Task<T, W>) -> Option<SubmitErrorKind> {
        Self::rejection(state).or_else(|| task.validation_error())
    }

    /// Queues a task if there is room for it and no submitter waits.
    pub(crate) fn try_submit(&self, task: Task<T, W>) -> Submitted<T, W> {
        let state = self.lock();
        match Self::rejection_of(&state, &task) {
            Some(rejection) => Err(SubmitError::new(rejection, task)),
            None if state.submitters.is_empty() && self.has_room(&state) => Ok(self.accept(state, task)),
            None => Err(SubmitError::new(SubmitErrorKind::Full, task)),
        }
    }

    pub(super) fn accept(&self, mut state: MutexGuard<'_, State<T, W>>, mut task: Task<T, W>) -> TaskId {
        let id = state.next_task_id;
        state.next_task_id += 1;
        let meta = task.meta_mut();
        meta.id = id;
        let rank = meta.rank;
        state.queue.push(rank, task);
        state.submitted += 1;
        state.high_water = state.high_water.max(state.queue.len());
        self.update_hints_after_push(&state);
        self.unlock_and_wake(state);
        TaskId(id)
    }

    /// Updates the hints after one push. Writes only what changed, so that most pushes leave the cache line alone.
    pub(super) fn update_hints_after_push(&self, state: &State<T, W>) {
        if state.queue.len() == 1 {
            self.queued_hint.0.store(1, Relaxed);
        }
        self.update_best_hint(state);
    }

    pub(super) fn update_best_hint(&self, state: &State<T, W>) {
        if self.config.is_ranked() {
            let best = state.queue.best().map_or(0, |rank| rank.saturating_add(1));
            if self.best_sort_key_hint.0.load(Relaxed) != best {
                self.best_sort_key_hint.0.store(best, Relaxed);
            }
        }
    }

    pub(super) fn update_hints(&self, state: &State<T, W>) {
        self.queued_hint.0.store(state.queue.len(), Relaxed);
        self.update_best_hint(state);
    }

    /// Spins for some microseconds before a submitter sleeps: with tiny tasks the queue is half empty again before the
    /// system has put a thread to sleep and woken it. Waits for half the queue rather than for one place, or the
    /// submitter would wait again with its next task.
    pub(crate) fn spin_for_room(&self) -> bool {
        spin(|| self.queued_hint.0.load(Relaxed) <= self.config.queue_capacity / 2)
    }

    /// Submits a task or waits for room. The first poll that finds no room issues a ticket; later polls present it.
    pub(crate) fn poll_submit(
        &self,
        task: &mut Option<Task<T, W>>,
        ticket: &mut Option<u64>,
        waker: impl FnOnce() -> Waker,
    ) -> Poll<Submitted<T, W>> {
        let mut state = self.lock();
        let submitted = task.as_ref().expect("polled after it was ready");
        if let Some(rejection) = Self::rejection_of(&state, submitted) {
            // A closed pool has woken and removed every waiting submitter. An invalid task never waited.
            *ticket = None;
            let task = task.take().expect("polled after it was ready");
            return Poll::Ready(Err(SubmitError::new(rejection, task)));
        }
        let granted = match *ticket {
            None => state.submitters.is_empty() && self.has_room(&state),
            Some(mine) => match state.submitters.iter_mut().find(|(ticket, _)| *ticket == mine) {
                // Still waiting: a spurious wake-up, or a poll from another task.
                Some((_, waiting)) => {
                    let replaced = std::mem::replace(waiting, waker());
                    drop(state);
                    drop(replaced);
                    return Poll::Pending;
                }
                None => {
                    state.reserved -= 1;
                    true
                }
            },
        };
        if granted {
            *ticket = None;
            let task = task.take().expect("polled after it was ready");
            return Poll::Ready(Ok(self.accept(state, task)));
        }
        state.last_ticket += 1;
        *ticket = Some(state.last_ticket);
        let entry = (state.last_ticket, waker());
        state.submitters.push_back(entry);
        Poll::Pending
    }

    /// Logs a deadlock: the thread that reads the results waits here for room, and no worker runs a task before it
    /// reads. The reader and the workers call this when they wait, so the last of them sees that all wait. The task is
    /// not rejected, because another thread may still take over the reading.
    pub(crate) fn check_reader(&self) {
        let Some(results) = self.outcomes.queue().filter(|results| results.is_reader_submitting()) else {
            return;
        };
        let state = self.lock();
        let is_stuck = !state.submitters.is_empty() && results.blocks_all_workers(state.idle.len());
        drop(state);
        if is_stuck {
            log_stuck_reader();
        }
    }

    /// Cancels a submitter's wait. Room that was reserved for it goes to the next waiting submitter.
    pub(crate) fn cancel_ticket(&self, ticket: u64) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let place = state.submitters.iter().position(|(waiting, _)| *waiting == ticket);
        let removed = place.and_then(|place| state.submitters.remove(place));
        state.reserved -= usize::from(removed.is_none());
        let wakes = self.grant_room(&mut state);
        drop(state);
        drop(removed);
        wakes.wake();
    }

    /// Reserves free room for the submitters that have waited longest.
    pub(super) fn grant_room(&self, state: &mut State<T, W>) -> WakeList {
        let mut wakes = WakeList::default();
        while !state.submitters.is_empty() && self.has_room(state) {
            state.reserved += 1;
            wakes.0.extend(state.submitters.pop_front().map(|(_, waker)| waker));
        }
        wakes
    }

    /// Admits waiting submitters after results were read, which makes room in submit order.
    pub(crate) fn on_results_read(&self) {
        if self.results_in_submit_order().is_some() {
            let mut state = self.lock();
            let wakes = self.grant_room(&mut state);
            drop(state);
            wakes.wake();
        }
    }

    /// Queues a task submitted by a task that runs on worker `id`, or by a callback. Never waits: the task would wait
    /// for itself.
    pub(crate) fn submit_from_worker(&self, id: usize, task: Task<T, W>) -> Submitted<T, W> {
        let state = self.lock();
        if id == panics::IN_CALLBACK {
            return match Self::rejection_of(&state, &task) {
                Some(rejection) => Err(SubmitError::new(rejection, task)),
                None => Ok(self.accept(state, task)),
            };
        }
        let worker = state.workers.iter().find(|entry| entry.state.id == id).map(|entry| Arc::clone(&entry.state));
        let rejection = Self::rejection(&state).or(worker.is_none().then_some(SubmitErrorKind::Cancelled));
        drop(state);
        match (rejection, worker) {
            (None, Some(worker)) => self.spawn(&worker, task),
            (rejection, _) => Err(SubmitError::new(rejection.unwrap_or(SubmitErrorKind::Cancelled), task)),
        }
    }

    /// Queues a task spawned by a task that runs on `worker`.
    pub(crate) fn spawn(&self, worker: &WorkerState<T, W>, mut task: Task<T, W>) -> Submitted<T, W> {
        if let Some(rejection) = task.validation_error() {
            return Err(SubmitError::new(rejection, task));
        }
        if panics::current_worker(self.address()) != Some(worker.id) {
            return self.spawn_from_other_thread(worker, task);
        }
        let id = worker.next_id(|| self.reserve_task_ids());
        task.meta_mut().id = id;
        if let Err(task) = worker.push_spawned(task) {
            self.skip_sequence(id);
            return Err(SubmitError::new(SubmitErrorKind::Cancelled, task));
        }
        // See `park`: either this thread sees the sleeper, or the sleeper sees the task.
        fence(SeqCst);
        if self.sleeping_workers.0.load(Relaxed) > 0 {
            self.unlock_and_wake(self.lock());
        }
        Ok(TaskId(id))
    }

    /// Queues a task spawned through a context that was moved to another thread or has outlived its task. Its worker
    /// may be asleep or gone, so the task goes into the shared queue, unless the pool has ended.
    pub(super) fn spawn_from_other_thread(&self, worker: &WorkerState<T, W>, task: Task<T, W>) -> Submitted<T, W> {
        let state = self.lock();
        if state.cancelled || state.finished || worker.is_abandoned() {
            return Err(SubmitError::new(SubmitErrorKind::Cancelled, task));
        }
        Ok(self.accept(state, task))
    }

    /// Marks a task id that will have no outcome, so that submit order does not wait for it.
    pub(super) fn skip_sequence(&self, id: u64) {
        if let Some(results) = self.outcomes.queue() {
            results.push(id, None);
            self.on_results_read();
        }
    }

    /// Reserves ids for spawned tasks: 64 per lock, but 1 in submit order, where they decide the order of results.
    pub(super) fn reserve_task_ids(&self) -> Range<u64> {
        let mut state = self.lock();
        let first = state.next_task_id;
        state.next_task_id += if self.results_in_submit_order().is_some() { 1 } else { 64 };
        first..state.next_task_id
    }
}
