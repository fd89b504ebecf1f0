//! Snapshots for users: statistics and the report.

use super::{Core, State};
use crate::{
    breaker::Breaker,
    report::Report,
    slot::Slot,
    stats::{Counts, PoolStats},
    sync::{Arc, atomic::Ordering::Relaxed},
    worker::Worker,
};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    pub(crate) fn stats(&self) -> PoolStats {
        self.snapshot(|_| ()).0
    }

    /// Reads the counters, and under the lock what `and` asks for.
    ///
    /// Workers count without the lock while this reads, so the order matters: first the tasks that have ended, then
    /// those that run, last those that were submitted or spawned. A task counts in each of these before it counts in
    /// the one read earlier, so no snapshot shows more tasks ended or running than submitted.
    fn snapshot<R>(&self, and: impl FnOnce(&State<T, W>) -> R) -> (PoolStats, R) {
        let counts = Counts::default();
        let state = self.lock();
        counts.absorb(&state.past);
        // The workers are added up after the lock. One that leaves meanwhile is in this list and not in
        // the past we copied, so it is counted once all the same.
        let slots: Vec<Arc<Slot<T, W>>> = state.seats.iter().map(|seat| Arc::clone(&seat.slot)).collect();
        drop(state);
        slots.iter().for_each(|slot| counts.absorb(&slot.counts.0));

        let state = self.lock();
        let asked = and(&state);
        let slots = || state.seats.iter().map(|seat| &seat.slot);
        let spawned = state.past.spawned.get() + slots().map(|slot| slot.counts.0.spawned.get()).sum::<u64>();
        let mut stats = PoolStats {
            workers: state.seats.len(),
            active: slots().filter(|slot| slot.running().is_some()).count(),
            overdue: slots().filter(|slot| slot.is_overdue()).count(),
            queued: state.queue.len() + slots().map(|slot| slot.shelved()).sum::<usize>(),
            waiting_retry: state.delayed.len(),
            queue_capacity: self.config.queue,
            queue_high_water: state.high_water,
            submitted: state.submitted + spawned,
            spawned,
            failed: state.failed_unseen,
            stalled: state.stalled,
            never_started: state.never_started.len() as u64,
            ..PoolStats::default()
        };
        drop(state);
        counts.fill(&self.kinds, &mut stats);
        stats.timed_out = self.timed_out.load(Relaxed);
        stats.late_discarded = self.late.load(Relaxed);
        stats.breaker = self.config.breaker.as_ref().map(Breaker::stats);
        (stats, asked)
    }

    pub(crate) fn report(&self) -> Report {
        let (stats, (failures, never_started, unstopped)) = self.snapshot(|state| {
            let running = state.seats.iter().filter_map(|seat| seat.slot.current());
            let unstopped: Vec<_> = state.unstopped.iter().cloned().chain(running).collect();
            (state.failures.clone(), state.never_started.clone(), unstopped)
        });
        let named = (never_started.len() + unstopped.len()) as u64;
        Report {
            finished: stats.completed,
            failed: stats.failed,
            failures,
            never_started,
            abandoned: unstopped,
            waiting: stats.submitted.saturating_sub(stats.completed + stats.failed + named),
            stats,
        }
    }
}
