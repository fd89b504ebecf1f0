//! Workers come and go here: seated, left, replaced. Starting them is theirs.

use super::{Core, Search, Seat, State, Wakes};
use crate::{
    breaker::Permit,
    error::TaskError,
    panics,
    report::Failure,
    slot::Slot,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Task,
    watch::Watched,
    worker::Worker,
};
use std::{
    task::{Poll, Waker},
    time::Duration,
};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    /// Makes a place for a new worker. It counts from now on, so the pool cannot end before it has come.
    pub(crate) fn seat(self: &Arc<Self>) -> Arc<Slot<T, W>> {
        self.add_seat(&mut self.lock())
    }

    pub(super) fn add_seat(self: &Arc<Self>, state: &mut State<T, W>) -> Arc<Slot<T, W>> {
        let slot = Arc::new(Slot::new(state.workers_made, Arc::clone(self)));
        state.workers_made += 1;
        state.awake += 1;
        state.seats.push(Seat { slot: Arc::clone(&slot), watched: Watched::default() });
        slot
    }

    pub(crate) fn keep_handle(&self, worker: usize, handle: W::Handle) {
        let mut state = self.lock();
        if state.seats.iter().any(|seat| seat.slot.id == worker) {
            state.handles.push((worker, handle));
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
    pub(super) fn vacate(&self, state: &mut State<T, W>, slot: &Slot<T, W>) {
        state.seats.retain(|seat| seat.slot.id != slot.id);
        state.past.absorb(&slot.counts.0);
        state.awake -= 1;
        if let Some(place) = state.handles.iter().position(|(worker, _)| *worker == slot.id) {
            W::abort(&state.handles.swap_remove(place).1);
        }
    }

    /// A worker goes, for whatever reason. The last one ends the pool: if there was work left (a runtime was
    /// shut down around it), that is cancelled and named.
    pub(crate) fn leave(&self, slot: &Slot<T, W>, search: Search) {
        let mut state = self.lock();
        let Some(place) = state.seats.iter().position(|seat| seat.slot.id == slot.id) else { return };
        let asleep = state.idle.iter().position(|(id, _)| *id == slot.id);
        if let Some(asleep) = asleep {
            state.idle.remove(asleep);
            self.sleeping.0.store(state.idle.len(), Relaxed);
        } else {
            state.awake -= 1;
            state.searching -= usize::from(search != Search::Fresh);
        }
        // Under one lock with the snapshot, so that no count is seen twice or not at all.
        state.seats.swap_remove(place);
        state.past.absorb(&slot.counts.0);
        let abandoned = state.seats.is_empty() && !state.finished;
        state.busy += 1;
        drop(state);
        self.adopt(slot.shut());
        self.go_on_without();
        if abandoned {
            self.cancel();
        }
        self.done();
    }

    /// One worker is gone: if it was the last one awake, the others have to see to what is left, or that
    /// nothing is.
    fn go_on_without(&self) {
        let mut state = self.lock();
        let mut wakes = Wakes::default();
        if !state.finished && self.finish_if_done(&mut state) {
            wakes = self.dismiss(&mut state);
        } else if state.queue.len() > 0 {
            wakes.0.extend(self.call_worker(&mut state));
        }
        drop(state);
        wakes.wake();
    }

    /// A worker goes in the middle of a task: its runtime was shut down.
    pub(crate) fn lose(&self, slot: &Slot<T, W>) {
        let (task, attempts) = (slot.current(), slot.attempt());
        let Some((task, (run, _))) = task.zip(slot.running()) else { return };
        if slot.give_up(run) {
            slot.release();
            slot.take_permit().into_iter().for_each(Permit::withdraw);
            slot.counts.0.failed.add(1);
            let failure = Failure { task, attempts, error: Arc::new(TaskError::cancelled()) };
            self.keep_failure(&mut self.lock(), &failure);
            self.deliver(failure.task.clone(), Err(failure));
        }
    }

    /// Puts the tasks of a worker that is gone back into the queue, or gives them up with the pool.
    pub(super) fn adopt(&self, orphans: Vec<Task<T, W>>) {
        if orphans.is_empty() {
            return;
        }
        let mut state = self.lock();
        if state.cancelled {
            drop(state);
            return orphans.into_iter().for_each(|job| self.skip(job));
        }
        for job in orphans {
            state.queue.push(job.meta().rank, job);
        }
        let worker = self.call_worker(&mut state);
        self.hint(&state);
        drop(state);
        worker.into_iter().for_each(panics::wake);
    }

    /// Looks at every worker once. One that gave no heartbeat for too long is given up: its task has failed,
    /// its shelf goes back into the queue, and its place is taken by a new one, to be started by the caller.
    pub(crate) fn replace_stalled(self: &Arc<Self>, now: u64, limit: u64) -> Vec<Arc<Slot<T, W>>> {
        let mut state = self.lock();
        let seats = state.seats.iter_mut();
        let suspects: Vec<_> = seats
            .filter_map(|seat| {
                let run = seat.watched.look(seat.slot.running(), now, limit)?;
                Some((run, Arc::clone(&seat.slot)))
            })
            .collect();
        let (mut failures, mut replacements) = (Vec::new(), Vec::new());
        for (run, slot) in suspects {
            let Some(task) = slot.current() else { continue };
            if !slot.give_up(run) {
                continue;
            }
            let error = Arc::new(TaskError::stalled(Duration::from_nanos(limit)));
            let failure = Failure { task, attempts: slot.attempt(), error };
            self.keep_failure(&mut state, &failure);
            failures.push((Arc::clone(&slot), failure));
            state.stalled += 1;
            state.failed_unseen += 1;
            // Shut before it is counted: the task may be alive after all, and spawn.
            for job in slot.shut() {
                state.queue.push(job.meta().rank, job);
            }
            self.vacate(&mut state, &slot);
            replacements.push(self.add_seat(&mut state));
        }
        self.hint(&state);
        drop(state);
        for (slot, failure) in failures {
            tracing::warn!(pool = %self.config.name, worker = slot.id, task = %failure.task, "worker stalled; replaced");
            slot.release();
            // Untold, it counts as a failed call.
            drop(slot.take_permit());
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
