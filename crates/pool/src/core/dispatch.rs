//! Giving tasks out: what a worker that looks for one finds, and how it falls asleep.

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
use std::{collections::VecDeque, task::Waker};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    /// The worker to wake for new work, if any sleeps and none is on its way already.
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

    /// Whether the queue may hold something: a look without the lock.
    pub(crate) fn may_have_queued(&self) -> bool {
        self.queued_hint.0.load(Relaxed) > 0
    }

    /// Before a worker sleeps it looks around for some microseconds: a system call to sleep and one to
    /// wake it cost more than most gaps between tasks.
    pub(crate) fn spin_for_task(&self) -> bool {
        spin(|| self.may_have_queued())
    }

    /// Whether the queue's best task should go before one of this rank.
    pub(crate) fn has_better_than(&self, rank: u64) -> bool {
        self.best_rank_hint.0.load(Relaxed) > rank.saturating_add(1)
    }

    /// A worker whose shelf is empty looks for a task. It takes up to `batch` at once: one is returned, the
    /// rest goes on its shelf, where others can steal it.
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
                if let Some((_, waiting)) = state.idle.iter_mut().find(|(id, _)| *id == worker.id) {
                    waiting.clone_from(&waker());
                    return Found::Nothing;
                }
                state.searching -= 1;
            }
        }
        let has_spun = std::mem::replace(search, SearchState::NotStarted) != SearchState::NotStarted;
        if state.finished || state.cancelled {
            return Found::PoolEnded;
        }
        if let Some(task) = self.pop_batch(&mut state, worker, batch) {
            // A spawner may have counted on us, and we took another: see `wake_one`.
            let strays = has_spun && !state.idle.is_empty() && any_local_tasks(&state);
            let to_wake = if strays || state.queue.len() > 0 { self.wake_one(&mut state) } else { None };
            let wakes = self.grant_room(&mut state);
            self.update_hints(&state);
            drop(state);
            to_wake.into_iter().for_each(panics::wake);
            wakes.wake();
            return Found::Task(task);
        }
        // It came for the queue's sake, and somebody was quicker.
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

    /// Up to `batch` tasks off the queue, but never more than this worker's share.
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

    /// Steals, or falls asleep, or finds that all is done.
    ///
    /// A task that is spawned is put on its worker's shelf without this lock, so the two could miss each
    /// other: the spawner sees nobody asleep while we see nothing to steal. Each therefore writes, passes a
    /// SeqCst fence, and looks: we write `sleeping` and look at the shelves; it writes its shelf and looks at
    /// `sleeping`. The fences have one order, and whoever passes second sees what the other wrote. (`loom.rs` tries them all.)
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
            let task = stolen.pop_front().expect("a theft is never empty");
            worker.push_batch(stolen.into_iter());
            // Who spawned it all woke only us.
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
            return Found::PoolEnded;
        }
        *search = SearchState::Asleep;
        Found::Nothing
    }

    /// Closed, nothing queued, nothing delayed, and nobody awake who could spawn: that was all.
    pub(super) fn finish_if_done(&self, state: &mut State<T, W>) -> bool {
        state.finished |=
            state.closed && state.awake == 0 && state.queue.len() == 0 && state.delayed.is_empty();
        state.finished
    }

    /// WakeList every sleeper, to see that the pool has ended.
    pub(super) fn wake_all(&self, state: &mut State<T, W>) -> WakeList {
        let sleepers = std::mem::take(&mut state.idle);
        self.sleeping_workers.0.store(0, Relaxed);
        state.searching += sleepers.len();
        state.awake += sleepers.len();
        WakeList(sleepers.into_iter().map(|(_, waker)| waker).collect())
    }
}

/// Whether anything lies on a shelf, for somebody to steal.
fn any_local_tasks<T: Send + 'static, W: Worker>(state: &State<T, W>) -> bool {
    state.workers.iter().any(|entry| entry.state.local_len() > 0)
}

fn steal_from_any<T: Send + 'static, W: Worker>(
    state: &State<T, W>,
    thief: &WorkerState<T, W>,
) -> Option<VecDeque<Task<T, W>>> {
    let others = state.workers.iter().map(|entry| &entry.state).filter(|worker| worker.id != thief.id);
    others
        .filter(|worker| worker.local_len() > 0)
        .map(|worker| worker.steal())
        .find(|stolen| !stolen.is_empty())
}

/// Spins for some microseconds. Lets others run as it does: they may be who is waited for.
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
