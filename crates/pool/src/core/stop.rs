//! The ways to stop: close, cancel, give up; and the end.

use super::{Core, Delayed, State, Wakes};
use crate::{breaker::Permit, slot::Slot, sync::Arc, task::Task, worker::Worker};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    /// No new work; what is there is finished.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        let mut wakes = self.close_door(&mut state);
        if !state.finished && self.finish_if_done(&mut state) {
            wakes.0.extend(self.dismiss(&mut state).0);
        }
        drop(state);
        wakes.wake();
    }

    pub(super) fn close_door(&self, state: &mut State<T, W>) -> Wakes {
        state.closed = true;
        state.reserved = 0;
        Wakes(std::mem::take(&mut state.submitters).into_iter().map(|(_, waker)| waker).collect())
    }

    /// Stop now: nothing more is started, and what runs is told to stop.
    pub(crate) fn cancel(&self) {
        let mut state = self.lock();
        if state.cancelled {
            return;
        }
        state.cancelled = true;
        state.busy += 1;
        let mut wakes = self.close_door(&mut state);
        wakes.0.extend(self.dismiss(&mut state).0);
        let mut dropped: Vec<Task<T, W>> = std::iter::from_fn(|| state.queue.pop()).collect();
        let slots: Vec<Arc<Slot<T, W>>> = state.seats.iter().map(|seat| Arc::clone(&seat.slot)).collect();
        dropped.extend(slots.iter().flat_map(|slot| slot.shut()));
        let delayed = std::mem::take(&mut state.delayed);
        self.hint(&state);
        drop(state);
        slots.iter().for_each(|slot| slot.cancel());
        if let Some(outlet) = &self.outlet {
            // After the slots know: a worker looks there once it has asked to be woken.
            outlet.release_workers();
        }
        wakes.wake();
        tracing::debug!(pool = %self.config.name, not_started = dropped.len(), "pool cancelled");
        for Delayed { job, timer } in delayed.into_values() {
            self.clock().forget(timer);
            self.skip(job);
        }
        dropped.into_iter().for_each(|job| self.skip(job));
        self.done();
    }

    /// The time to stop is over: whoever runs still is left behind and named. Answers whether the pool has
    /// ended with that.
    pub(crate) fn give_up(&self) -> bool {
        let mut state = self.lock();
        let slots: Vec<Arc<Slot<T, W>>> = state.seats.iter().map(|seat| Arc::clone(&seat.slot)).collect();
        let mut left = Vec::new();
        for slot in slots {
            // The run first: if it is still the same when it is given up, the name is its own.
            let Some((run, _)) = slot.running() else { continue };
            let name = slot.current();
            if slot.give_up(run) {
                state.unstopped.extend(name);
                self.vacate(&mut state, &slot);
                left.push(slot);
            }
        }
        state.busy += 1;
        drop(state);
        for slot in left {
            slot.release();
            slot.take_permit().into_iter().for_each(Permit::withdraw);
        }
        self.done();
        self.has_ended()
    }

    /// Whoever has something to tell after the lock is `busy`, and done here. The pool ends when nobody is,
    /// and every worker is gone: nothing is told after the end.
    pub(super) fn done(&self) {
        let mut state = self.lock();
        state.busy -= 1;
        if state.busy > 0 || !state.seats.is_empty() || state.ended {
            return;
        }
        state.ended = true;
        let wakes = Wakes(std::mem::take(&mut state.joiners));
        drop(state);
        if let Some(outlet) = &self.outlet {
            outlet.end();
        }
        wakes.wake();
    }
}
