//! What the outside is told: statistics and the report.

use super::Core;
use crate::{
    breaker::Breaker,
    report::Report,
    slot::Slot,
    stats::{Counts, Stats},
    sync::{Arc, atomic::Ordering::Relaxed},
    worker::Worker,
};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    pub(crate) fn stats(&self) -> Stats {
        let state = self.lock();
        let counts = Counts::default();
        counts.absorb(&state.past);
        // The workers are added up after the lock. One that leaves meanwhile is in this list and not in
        // the past we copied, so it is counted once all the same.
        let slots: Vec<Arc<Slot<T, W>>> = state.seats.iter().map(|seat| Arc::clone(&seat.slot)).collect();
        let mut stats = Stats {
            workers: slots.len(),
            queued: state.queue.len(),
            waiting_retry: state.delayed.len(),
            queue_capacity: self.config.queue,
            queue_high_water: state.high_water,
            submitted: state.submitted,
            failed: state.failed_unseen,
            stalled: state.stalled,
            never_started: state.never_started.len() as u64,
            ..Stats::default()
        };
        drop(state);
        slots.iter().for_each(|slot| counts.absorb(&slot.counts.0));
        counts.fill(&self.kinds, &mut stats);
        stats.queued += slots.iter().map(|slot| slot.shelved()).sum::<usize>();
        stats.active = slots.iter().filter(|slot| slot.running().is_some()).count();
        stats.overdue = slots.iter().filter(|slot| slot.is_overdue()).count();
        stats.timed_out = self.timed_out.load(Relaxed);
        stats.late_discarded = self.late.load(Relaxed);
        stats.breaker = self.config.breaker.as_ref().map(Breaker::stats);
        stats
    }

    pub(crate) fn report(&self) -> Report {
        let stats = self.stats();
        let state = self.lock();
        let running = state.seats.iter().filter_map(|seat| seat.slot.current());
        Report {
            finished: stats.completed,
            failed: stats.failed,
            failures: state.failures.clone(),
            never_started: state.never_started.clone(),
            unstopped: state.unstopped.iter().cloned().chain(running).collect(),
            stats,
        }
    }
}
