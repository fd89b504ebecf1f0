//! Taking tasks in: from outside, with room to wait for; from inside, without.

use super::{Core, State, Wakes, take::look_around};
use crate::{
    panics,
    results::log_stuck_reader,
    slot::Slot,
    sync::{
        Arc, MutexGuard,
        atomic::{
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    task::{SubmitError, SubmitErrorKind, Task, TaskId},
    worker::Worker,
};
use std::{
    ops::Range,
    task::{Poll, Waker},
};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    pub(super) fn has_room(&self, state: &State<T, W>) -> bool {
        let used = state.queue.len() + state.delayed.len() + state.reserved;
        used < self.config.queue && self.in_window(state)
    }

    /// In submit order, tasks may not run further ahead of the reader than this.
    pub(super) fn in_window(&self, state: &State<T, W>) -> bool {
        let Some(outlet) = self.outlet.as_ref().filter(|_| self.config.in_submit_order) else { return true };
        let next = state.next_task.saturating_add(state.reserved as u64);
        next.saturating_sub(outlet.delivered()) < self.config.window() as u64
    }

    pub(super) fn refusal(state: &State<T, W>) -> Option<SubmitErrorKind> {
        if state.cancelled {
            return Some(SubmitErrorKind::Cancelled);
        }
        state.closed.then_some(SubmitErrorKind::Closed)
    }

    /// Why the pool does not take `task`, whether there is room or not.
    fn refusal_of(state: &State<T, W>, task: &Task<T, W>) -> Option<SubmitErrorKind> {
        Self::refusal(state).or_else(|| task.fault())
    }

    /// Takes a task in, unless there is no room for it.
    pub(crate) fn try_submit(&self, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        let state = self.lock();
        if let Some(refusal) = Self::refusal_of(&state, &task) {
            drop(state);
            return Err(SubmitError::new(refusal, task));
        }
        if state.submitters.is_empty() && self.has_room(&state) {
            return Ok(self.accept(state, task));
        }
        drop(state);
        Err(SubmitError::new(SubmitErrorKind::Full, task))
    }

    pub(super) fn accept(&self, mut state: MutexGuard<'_, State<T, W>>, mut task: Task<T, W>) -> TaskId {
        let id = state.next_task;
        state.next_task += 1;
        let meta = task.meta_mut();
        meta.id = id;
        let rank = meta.rank;
        state.queue.push(rank, task);
        state.submitted += 1;
        state.high_water = state.high_water.max(state.queue.len());
        let worker = self.call_worker(&mut state);
        self.hint_pushed(&state);
        drop(state);
        worker.into_iter().for_each(panics::wake);
        TaskId(id)
    }

    /// A push changes what others look for only if it is the first, or the best: most need not touch the
    /// line that they look at.
    pub(super) fn hint_pushed(&self, state: &State<T, W>) {
        if state.queue.len() == 1 {
            self.ready.0.store(1, Relaxed);
        }
        self.hint_best(state);
    }

    pub(super) fn hint_best(&self, state: &State<T, W>) {
        if self.config.is_ranked() {
            let best = state.queue.best().map_or(0, |rank| rank.saturating_add(1));
            if self.best.0.load(Relaxed) != best {
                self.best.0.store(best, Relaxed);
            }
        }
    }

    pub(super) fn hint(&self, state: &State<T, W>) {
        self.ready.0.store(state.queue.len(), Relaxed);
        self.hint_best(state);
    }

    /// Before a submitter sleeps it looks around for some microseconds: with tiny tasks the queue is half
    /// empty again before the system has put a thread to sleep and woken it. Not for the first free place,
    /// though: it would be back here with the next task.
    pub(crate) fn look_for_slack(&self) -> bool {
        look_around(|| self.ready.0.load(Relaxed) <= self.config.queue / 2)
    }

    /// Waits in line for room: the first poll that finds none takes a ticket, later ones show it.
    pub(crate) fn poll_submit(
        &self,
        task: &mut Option<Task<T, W>>,
        ticket: &mut Option<u64>,
        waker: impl FnOnce() -> Waker,
    ) -> Poll<Result<TaskId, SubmitError<T, W>>> {
        let mut state = self.lock();
        let submitted = task.as_ref().expect("polled after it was ready");
        if let Some(refusal) = Self::refusal_of(&state, submitted) {
            // A closed pool has woken everybody in line, and the line is gone; a faulty task was never in it.
            *ticket = None;
            drop(state);
            let task = task.take().expect("polled after it was ready");
            return Poll::Ready(Err(SubmitError::new(refusal, task)));
        }
        let granted = match *ticket {
            None => state.submitters.is_empty() && self.has_room(&state),
            Some(mine) => match state.submitters.iter_mut().find(|(ticket, _)| *ticket == mine) {
                // Still in line: woken for nothing, or polled by another task.
                Some((_, waiting)) => {
                    waiting.clone_from(&waker());
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
        state.tickets += 1;
        *ticket = Some(state.tickets);
        let entry = (state.tickets, waker());
        state.submitters.push_back(entry);
        Poll::Pending
    }

    /// Logs that the thread that reads the results waits for itself: it waits here for room, and no worker runs a task before
    /// it reads. To be called by each of them when it waits: the last one sees that all do. It is logged and not refused,
    /// because another thread may be given the results to read.
    pub(crate) fn check_reader(&self) {
        let Some(outlet) = self.outlet.as_ref().filter(|outlet| outlet.is_reader_submitting()) else {
            return;
        };
        let state = self.lock();
        let is_stuck = !state.submitters.is_empty() && outlet.holds_all_workers(state.idle.len());
        drop(state);
        if is_stuck {
            log_stuck_reader();
        }
    }

    /// A submitter gives up waiting. If room was promised to it, that goes to the next in line.
    pub(crate) fn leave_line(&self, ticket: u64) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        match state.submitters.iter().position(|(waiting, _)| *waiting == ticket) {
            Some(place) => drop(state.submitters.remove(place)),
            None => state.reserved -= 1,
        }
        let wakes = self.admit(&mut state);
        drop(state);
        wakes.wake();
    }

    /// Promises free room to those who have waited longest.
    pub(super) fn admit(&self, state: &mut State<T, W>) -> Wakes {
        let mut wakes = Wakes::default();
        while !state.submitters.is_empty() && self.has_room(state) {
            state.reserved += 1;
            wakes.0.extend(state.submitters.pop_front().map(|(_, waker)| waker));
        }
        wakes
    }

    /// The reader has taken results: in submit order, that may make room.
    pub(crate) fn window_moved(&self) {
        if self.config.in_submit_order {
            let mut state = self.lock();
            let wakes = self.admit(&mut state);
            drop(state);
            wakes.wake();
        }
    }

    /// Takes a task in from the thread of worker `id`, inside one of its tasks: waiting for room there could
    /// be waiting for oneself.
    pub(crate) fn submit_inside(&self, id: usize, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        let state = self.lock();
        let slot = state.seats.iter().find(|seat| seat.slot.id == id).map(|seat| Arc::clone(&seat.slot));
        let refusal = Self::refusal(&state).or(slot.is_none().then_some(SubmitErrorKind::Cancelled));
        drop(state);
        match (refusal, slot) {
            (None, Some(slot)) => self.spawn(&slot, task),
            (refusal, _) => Err(SubmitError::new(refusal.unwrap_or(SubmitErrorKind::Cancelled), task)),
        }
    }

    /// Takes a task in from a task that runs on `slot`.
    pub(crate) fn spawn(&self, slot: &Slot<T, W>, mut task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        if let Some(refusal) = task.fault() {
            return Err(SubmitError::new(refusal, task));
        }
        if panics::worker_of(self.address()) != Some(slot.id) {
            return self.spawn_elsewhere(slot, task);
        }
        let id = slot.next_id(|| self.number_tasks());
        task.meta_mut().id = id;
        if let Err(task) = slot.spawn(task) {
            self.pass_over(id);
            return Err(SubmitError::new(SubmitErrorKind::Cancelled, task));
        }
        // See `park`: either we see the sleeper here, or it sees the task there.
        fence(SeqCst);
        if self.sleeping.0.load(Relaxed) > 0 {
            let mut state = self.lock();
            let worker = self.call_worker(&mut state);
            drop(state);
            worker.into_iter().for_each(panics::wake);
        }
        Ok(TaskId(id))
    }

    /// A context was taken to another thread, or has outlived its task. Its worker may be asleep or gone, so
    /// the task goes into the queue, if the pool has not ended.
    pub(super) fn spawn_elsewhere(
        &self,
        slot: &Slot<T, W>,
        task: Task<T, W>,
    ) -> Result<TaskId, SubmitError<T, W>> {
        let state = self.lock();
        if state.cancelled || state.finished || slot.is_given_up() {
            drop(state);
            return Err(SubmitError::new(SubmitErrorKind::Cancelled, task));
        }
        Ok(self.accept(state, task))
    }

    /// A number that no outcome will come for.
    pub(super) fn pass_over(&self, id: u64) {
        if let Some(outlet) = &self.outlet {
            outlet.push(id, None);
            self.window_moved();
        }
    }

    /// Numbers for tasks to be spawned: several, so that not each spawn comes for the lock; one by one where
    /// the order of results goes by them.
    pub(super) fn number_tasks(&self) -> Range<u64> {
        let mut state = self.lock();
        let first = state.next_task;
        state.next_task += if self.config.in_submit_order { 1 } else { 64 };
        first..state.next_task
    }
}
