//! Takes the snapshots that users see: statistics and the report.

use super::{Core, State};
use crate::{
    breaker::Breaker,
    report::Report,
    stats::{PoolStats, WorkerCounters},
    sync::{Arc, atomic::Ordering::Relaxed},
    worker::Worker,
    worker_state::WorkerState,
};

impl<T: Send + 'static, W: Worker> Core<T, W> {
    pub(crate) fn stats(&self) -> PoolStats {
        self.snapshot(|_| ()).0
    }

    /// Reads the counters, and calls `extract` under the lock to read other parts of the state.
    ///
    /// Workers count without the lock while this reads. A task is counted as submitted or spawned, then as running, then
    /// as ended. This reads in the reverse order, so no snapshot shows more tasks ended or running than submitted.
    fn snapshot<R>(&self, extract: impl FnOnce(&State<T, W>) -> R) -> (PoolStats, R) {
        let counters = WorkerCounters::default();
        let state = self.lock();
        counters.merge(&state.exited_workers);
        // The counters of workers are added after the lock is released. A worker that exits meanwhile is in this list
        // and not yet in the `exited_workers` copied above, so it is counted exactly once.
        let workers: Vec<Arc<WorkerState<T, W>>> = state.workers.iter().map(|entry| Arc::clone(&entry.state)).collect();
        drop(state);
        workers.iter().for_each(|worker| counters.merge(&worker.counters.0));

        let state = self.lock();
        let extracted = extract(&state);
        let workers = || state.workers.iter().map(|entry| &entry.state);
        let spawned =
            state.exited_workers.spawned.get() + workers().map(|worker| worker.counters.0.spawned.get()).sum::<u64>();
        let mut stats = PoolStats {
            workers: state.workers.len(),
            active: workers().filter(|worker| worker.current_run().is_some()).count(),
            overdue: workers().filter(|worker| worker.is_overdue()).count(),
            queued: state.queue.len() + workers().map(|worker| worker.local_len()).sum::<usize>(),
            waiting_retry: state.delayed.len(),
            queue_capacity: self.config.queue_capacity,
            queue_high_water: state.high_water,
            submitted: state.submitted + spawned,
            spawned,
            failed: state.failed_outside_workers,
            stalled: state.stalled,
            never_started: state.never_started.len() as u64,
            ..PoolStats::default()
        };
        drop(state);
        counters.write_to(&self.kinds, &mut stats);
        stats.timed_out = self.timed_out.load(Relaxed);
        stats.late_discarded = self.late_discarded.load(Relaxed);
        stats.breaker = self.config.breaker.as_ref().map(Breaker::stats);
        (stats, extracted)
    }

    pub(crate) fn report(&self) -> Report {
        let (stats, (failures, never_started, abandoned)) = self.snapshot(|state| {
            let running = state.workers.iter().filter_map(|entry| entry.state.current_task());
            let abandoned: Vec<_> = state.abandoned.iter().cloned().chain(running).collect();
            (state.failures.clone(), state.never_started.clone(), abandoned)
        });
        let listed = (never_started.len() + abandoned.len()) as u64;
        Report {
            finished: stats.completed,
            failed: stats.failed,
            failures,
            never_started,
            abandoned,
            waiting: stats.submitted.saturating_sub(stats.completed + stats.failed + listed),
            stats,
        }
    }
}
