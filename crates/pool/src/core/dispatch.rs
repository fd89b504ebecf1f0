//! Hands tasks to workers: from the shared queue or by stealing. Puts workers without a task to sleep.

use super::{Core, Found, SearchState, State, WakeList};
use crate::{
    panics,
    sync::{
        MutexGuard,
        atomic::{
            Ordering::{Relaxed, SeqCst},
            fence,
        },
        thread,
    },
    task::Task,
    worker::Worker,
    worker_state::WorkerState,
};
use std::{
    collections::VecDeque,
    task::{Poll, Waker},
};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    /// Takes a sleeping worker, unless another is searching. The caller wakes it after it releases the lock.
    pub(super) fn wake_one(&self, state: &mut State<T, W>) -> Option<Waker> {
        if state.searching > 0 {
            return None;
        }
        let (_, waker) = state.idle.pop()?;
        self.sleeping_workers.0.store(state.idle.len(), Relaxed);
        state.searching += 1;
        state.awake += 1;
        Some(waker)
    }

    /// Releases the lock after a task was queued, and wakes a worker for it.
    pub(super) fn unlock_and_wake(&self, mut state: MutexGuard<'_, State<T, W>>) {
        let to_wake = self.wake_one(&mut state);
        drop(state);
        to_wake.into_iter().for_each(panics::wake);
    }

    /// Whether the queue seems to hold a task, read without the lock.
    pub(crate) fn may_have_queued(&self) -> bool {
        self.queued_hint.0.load(Relaxed) > 0
    }

    /// Spins before a worker sleeps: two system calls, to sleep and wake, cost more than most gaps between tasks.
    pub(crate) fn spin_for_task(&self) -> bool {
        spin(|| self.may_have_queued())
    }

    /// Whether the queue's best task precedes one with this sort key.
    pub(crate) fn has_better_than(&self, sort_key: u64) -> bool {
        self.best_sort_key_hint.0.load(Relaxed) > sort_key.saturating_add(1)
    }

    /// Finds a task in the shared queue, or steals one. Takes up to `batch` tasks at once: returns one and puts
    /// the others into the worker's local queue, where other workers can steal them.
    pub(crate) fn next_task(
        &self,
        worker: &WorkerState<T, W>,
        search: &mut SearchState,
        batch: usize,
        spin_first: bool,
        waker: impl FnOnce() -> Waker,
    ) -> Found<Task<T, W>> {
        let mut state = self.lock();
        match *search {
            SearchState::NotStarted => {}
            SearchState::Spinning => state.searching -= 1,
            SearchState::Asleep => {
                // Polled without being woken: stays asleep, with its new waker.
                if let Some((_, waiting)) = state.idle.iter_mut().find(|(id, _)| *id == worker.id) {
                    let replaced = std::mem::replace(waiting, waker());
                    drop(state);
                    drop(replaced);
                    return Found::Nothing;
                }
                state.searching -= 1;
            }
        }
        let has_spun = std::mem::replace(search, SearchState::NotStarted) != SearchState::NotStarted;
        if state.finished || state.cancelled {
            return Found::Exit;
        }
        if let Some(task) = self.pop_batch(&mut state, worker, batch) {
            // A spawner may have woken no worker because this one was searching: see `wake_one`.
            let spawned_left = has_spun && !state.idle.is_empty() && any_local_tasks(&state);
            let to_wake = if spawned_left || state.queue.len() > 0 { self.wake_one(&mut state) } else { None };
            let wakes = self.grant_room(&mut state);
            self.update_hints(&state);
            drop(state);
            to_wake.into_iter().for_each(panics::wake);
            wakes.wake();
            return Found::Task(task);
        }
        // The worker preferred a better task in the shared queue, which another worker took first.
        if worker.local_len() > 0 {
            return Found::LocalQueue;
        }
        if spin_first && !has_spun {
            *search = SearchState::Spinning;
            state.searching += 1;
            return Found::Nothing;
        }
        self.park(state, worker, search, waker)
    }

    /// Pops up to `batch` tasks, but never more than this worker's share of the queue.
    pub(super) fn pop_batch(
        &self,
        state: &mut State<T, W>,
        worker: &WorkerState<T, W>,
        batch: usize,
    ) -> Option<Task<T, W>> {
        let task = state.queue.pop()?;
        let share = state.queue.len() / self.config.workers;
        let more = share.min(batch - 1);
        if more > 0 {
            let queue = &mut state.queue;
            worker.push_batch(std::iter::from_fn(|| queue.pop()).take(more));
        }
        Some(task)
    }

    /// Steals a task, puts the worker to sleep, or finds that the pool has ended.
    ///
    /// A spawned task enters its worker's local queue without this lock, so that spawner and sleeper could miss each
    /// other: the spawner sees no sleeper while this worker sees nothing to steal. Each side therefore writes, passes a
    /// SeqCst fence, and then reads: the sleeper writes `sleeping_workers` and reads the local queues, the spawner
    /// writes its local queue and reads `sleeping_workers`. Fences have one total order, so the side that passes second
    /// sees what the other wrote. `loom.rs` checks this under every memory order.
    pub(super) fn park(
        &self,
        mut state: MutexGuard<'_, State<T, W>>,
        worker: &WorkerState<T, W>,
        search: &mut SearchState,
        waker: impl FnOnce() -> Waker,
    ) -> Found<Task<T, W>> {
        state.idle.push((worker.id, waker()));
        self.sleeping_workers.0.store(state.idle.len(), Relaxed);
        fence(SeqCst);
        if let Some(mut stolen) = steal_from_any(&state, worker) {
            state.idle.pop();
            self.sleeping_workers.0.store(state.idle.len(), Relaxed);
            let task = stolen.pop_front().expect("stolen tasks are never empty");
            worker.push_batch(stolen.into_iter());
            // A spawner wakes at most one worker, so this one wakes the next if more tasks can be stolen.
            let to_wake = if any_local_tasks(&state) { self.wake_one(&mut state) } else { None };
            drop(state);
            to_wake.into_iter().for_each(panics::wake);
            return Found::Task(task);
        }
        state.awake -= 1;
        if self.finish_if_done(&mut state) {
            state.idle.pop();
            state.awake += 1;
            let wakes = self.wake_all(&mut state);
            drop(state);
            wakes.wake();
            return Found::Exit;
        }
        *search = SearchState::Asleep;
        let wakes = take_idle_waiters(&mut state);
        drop(state);
        wakes.wake();
        Found::Nothing
    }

    /// Finishes a closed pool with nothing queued, nothing delayed and no worker awake that could spawn.
    pub(super) fn finish_if_done(&self, state: &mut State<T, W>) -> bool {
        state.finished |= state.closed && state.awake == 0 && state.queue.len() == 0 && state.delayed.is_empty();
        state.finished
    }

    /// Returns `Ready` if the pool is idle or has ended. If pending, registers `waker` to be woken when it is, and sets
    /// the ticket, with which the caller ends its wait.
    pub(crate) fn poll_idle(&self, ticket: &mut Option<u64>, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        if state.ended || is_idle(&state) {
            return Poll::Ready(());
        }
        let known = state.idle_waiters.iter_mut().find(|(known, _)| Some(*known) == *ticket);
        let replaced = known.map(|(_, known)| std::mem::replace(known, waker.clone()));
        if replaced.is_none() {
            state.last_ticket += 1;
            let entry = (state.last_ticket, waker.clone());
            *ticket = Some(entry.0);
            state.idle_waiters.push(entry);
        }
        // Dropped after the lock: a waker may own a future that uses this pool.
        drop(state);
        Poll::Pending
    }

    /// Ends a wait for an idle pool.
    pub(crate) fn cancel_idle_wait(&self, ticket: u64) {
        let mut state = self.lock();
        let place = state.idle_waiters.iter().position(|(known, _)| *known == ticket);
        let removed = place.map(|place| state.idle_waiters.swap_remove(place));
        drop(state);
        drop(removed);
    }

    /// Takes every sleeping worker, for the caller to wake so that it sees the end of the pool.
    pub(super) fn wake_all(&self, state: &mut State<T, W>) -> WakeList {
        let sleepers = std::mem::take(&mut state.idle);
        self.sleeping_workers.0.store(0, Relaxed);
        state.searching += sleepers.len();
        state.awake += sleepers.len();
        WakeList(sleepers.into_iter().map(|(_, waker)| waker).collect())
    }
}

/// Whether nothing is queued, delayed, running or being delivered. A sleeping worker has no local tasks: it slept only
/// after it found none, and no other thread adds any. So when all sleep, no local queue has a task.
fn is_idle<T: Send + 'static, W: Worker>(state: &State<T, W>) -> bool {
    state.awake == 0 && state.queue.len() == 0 && state.delayed.is_empty() && state.delivering == 0
}

/// Takes the callers that wait for an idle pool, if it is idle or has ended, for the caller to wake.
pub(super) fn take_idle_waiters<T: Send + 'static, W: Worker>(state: &mut State<T, W>) -> WakeList {
    if state.idle_waiters.is_empty() || !(state.ended || is_idle(state)) {
        return WakeList::default();
    }
    WakeList(std::mem::take(&mut state.idle_waiters).into_iter().map(|(_, waker)| waker).collect())
}

/// Registers a waker once.
pub(super) fn register_waker(waiters: &mut Vec<Waker>, waker: &Waker) {
    if !waiters.iter().any(|known| known.will_wake(waker)) {
        waiters.push(waker.clone());
    }
}

fn any_local_tasks<T: Send + 'static, W: Worker>(state: &State<T, W>) -> bool {
    state.workers.iter().any(|entry| entry.state.local_len() > 0)
}

fn steal_from_any<T: Send + 'static, W: Worker>(
    state: &State<T, W>,
    thief: &WorkerState<T, W>,
) -> Option<VecDeque<Task<T, W>>> {
    let others = state.workers.iter().map(|entry| &entry.state).filter(|worker| worker.id != thief.id);
    let mut victims = others.filter(|worker| worker.local_len() > 0);
    victims.find_map(|worker| Some(worker.steal()).filter(|stolen| !stolen.is_empty()))
}

/// Spins for some microseconds until `found`. Yields in between, to let the awaited thread run.
pub(super) fn spin(found: impl Fn() -> bool) -> bool {
    const ROUNDS: u32 = if cfg!(any(shuttle, loom)) { 1 } else { 6 };
    const SPINS: u32 = if cfg!(any(shuttle, loom)) { 1 } else { 64 };
    for _ in 0..ROUNDS {
        for _ in 0..SPINS {
            if found() {
                return true;
            }
            std::hint::spin_loop();
        }
        thread::yield_now();
    }
    false
}
