//! Giving tasks out: what a worker that looks for one finds, and how it falls asleep.

use super::{Core, Found, Search, State, Wakes};
use crate::{
    panics,
    slot::Slot,
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
};
use std::{collections::VecDeque, task::Waker};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    /// The worker to wake for new work, if any sleeps and none is on its way already.
    pub(super) fn call_worker(&self, state: &mut State<T, W>) -> Option<Waker> {
        if state.searching > 0 {
            return None;
        }
        let (_, waker) = state.idle.pop()?;
        self.sleeping.0.store(state.idle.len(), Relaxed);
        state.searching += 1;
        state.awake += 1;
        Some(waker)
    }

    /// Whether the queue may hold something: a look without the lock.
    pub(crate) fn looks_ready(&self) -> bool {
        self.ready.0.load(Relaxed) > 0
    }

    /// Before a worker sleeps it looks around for some microseconds: a system call to sleep and one to
    /// wake it cost more than most gaps between tasks.
    pub(crate) fn look_for_work(&self) -> bool {
        look_around(|| self.looks_ready())
    }

    /// Whether the queue's best task should go before one of this rank.
    pub(crate) fn has_better_than(&self, rank: u64) -> bool {
        self.best.0.load(Relaxed) > rank.saturating_add(1)
    }

    /// A worker whose shelf is empty looks for a task. It takes up to `batch` at once: one is returned, the
    /// rest goes on its shelf, where others can steal it.
    pub(crate) fn find(
        &self,
        slot: &Slot<T, W>,
        search: &mut Search,
        batch: usize,
        look_first: bool,
        waker: impl FnOnce() -> Waker,
    ) -> Found<Task<T, W>> {
        let mut state = self.lock();
        match *search {
            Search::Fresh => {}
            Search::Looking => state.searching -= 1,
            Search::Asleep => {
                if let Some((_, waiting)) = state.idle.iter_mut().find(|(id, _)| *id == slot.id) {
                    waiting.clone_from(&waker());
                    return Found::Nothing;
                }
                state.searching -= 1;
            }
        }
        let looked = std::mem::replace(search, Search::Fresh) != Search::Fresh;
        if state.finished || state.cancelled {
            return Found::End;
        }
        if let Some(job) = self.pull(&mut state, slot, batch) {
            // A spawner may have counted on us, and we took another: see `call_worker`.
            let strays = looked && !state.idle.is_empty() && has_strays(&state);
            let worker = if strays || state.queue.len() > 0 { self.call_worker(&mut state) } else { None };
            let wakes = self.admit(&mut state);
            self.hint(&state);
            drop(state);
            worker.into_iter().for_each(panics::wake);
            wakes.wake();
            return Found::Job(job);
        }
        // It came for the queue's sake, and somebody was quicker.
        if slot.shelved() > 0 {
            return Found::OwnShelf;
        }
        if look_first && !looked {
            *search = Search::Looking;
            state.searching += 1;
            return Found::Nothing;
        }
        self.park(state, slot, search, waker)
    }

    /// Up to `batch` tasks off the queue, but never more than this worker's share.
    pub(super) fn pull(
        &self,
        state: &mut State<T, W>,
        slot: &Slot<T, W>,
        batch: usize,
    ) -> Option<Task<T, W>> {
        let job = state.queue.pop()?;
        let share = state.queue.len() / self.config.workers;
        let more = share.min(batch - 1);
        if more > 0 {
            let queue = &mut state.queue;
            slot.stock(std::iter::from_fn(|| queue.pop()).take(more));
        }
        Some(job)
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
        slot: &Slot<T, W>,
        search: &mut Search,
        waker: impl FnOnce() -> Waker,
    ) -> Found<Task<T, W>> {
        state.idle.push((slot.id, waker()));
        self.sleeping.0.store(state.idle.len(), Relaxed);
        fence(SeqCst);
        if let Some(mut stolen) = steal_from_any(&state, slot) {
            state.idle.pop();
            self.sleeping.0.store(state.idle.len(), Relaxed);
            let job = stolen.pop_front().expect("a theft is never empty");
            slot.stock(stolen.into_iter());
            // Who spawned it all woke only us.
            let worker = if has_strays(&state) { self.call_worker(&mut state) } else { None };
            drop(state);
            worker.into_iter().for_each(panics::wake);
            return Found::Job(job);
        }
        state.awake -= 1;
        if self.finish_if_done(&mut state) {
            state.idle.pop();
            state.awake += 1;
            let wakes = self.dismiss(&mut state);
            drop(state);
            wakes.wake();
            return Found::End;
        }
        *search = Search::Asleep;
        Found::Nothing
    }

    /// Closed, nothing queued, nothing delayed, and nobody awake who could spawn: that was all.
    pub(super) fn finish_if_done(&self, state: &mut State<T, W>) -> bool {
        state.finished |=
            state.closed && state.awake == 0 && state.queue.len() == 0 && state.delayed.is_empty();
        state.finished
    }

    /// Wakes every sleeper, to see that the pool has ended.
    pub(super) fn dismiss(&self, state: &mut State<T, W>) -> Wakes {
        let sleepers = std::mem::take(&mut state.idle);
        self.sleeping.0.store(0, Relaxed);
        state.searching += sleepers.len();
        state.awake += sleepers.len();
        Wakes(sleepers.into_iter().map(|(_, waker)| waker).collect())
    }
}

/// Whether anything lies on a shelf, for somebody to steal.
fn has_strays<T: Send + 'static, W: Worker>(state: &State<T, W>) -> bool {
    state.seats.iter().any(|seat| seat.slot.shelved() > 0)
}

fn steal_from_any<T: Send + 'static, W: Worker>(
    state: &State<T, W>,
    thief: &Slot<T, W>,
) -> Option<VecDeque<Task<T, W>>> {
    let others = state.seats.iter().map(|seat| &seat.slot).filter(|slot| slot.id != thief.id);
    others.filter(|slot| slot.shelved() > 0).map(|slot| slot.steal()).find(|stolen| !stolen.is_empty())
}

/// Spins for some microseconds. Lets others run as it does: they may be who is waited for.
pub(super) fn look_around(found: impl Fn() -> bool) -> bool {
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
