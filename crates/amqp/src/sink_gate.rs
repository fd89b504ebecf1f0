//! Shared by the runs of a consumer: whether they may start, and a clock that advances when the sink fails.
//!
//! A run that starts at or after the end time of a failed run started after that failure. The order of submission or of
//! reading results does not show that, because both wait in queues.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

#[derive(Clone, Default)]
pub(crate) struct SinkGate {
    shared: Arc<Shared>,
    is_probe: bool,
}

#[derive(Default)]
struct Shared {
    is_closed: AtomicBool,
    now: AtomicU64,
    /// End times of runs that failed because of the sink, by number, until their results are read.
    failed: Mutex<HashMap<u64, u64>>,
}

impl SinkGate {
    /// Returns the gate for a probe, which may start while the gate is closed.
    pub(crate) fn for_probe(&self) -> Self {
        Self { is_probe: true, ..self.clone() }
    }

    /// Closes the gate: only probes start.
    pub(crate) fn close(&self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn open(&self) {
        self.shared.is_closed.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.is_closed.load(Ordering::Relaxed)
    }

    /// Start time of a run; none if it may not start.
    pub(crate) fn start(&self) -> Option<u64> {
        (self.is_probe || !self.is_closed()).then(|| self.shared.now.load(Ordering::Acquire))
    }

    /// Advances the clock because the sink failed. Returns the new time, the end of the run.
    pub(crate) fn advance(&self) -> u64 {
        self.shared.now.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Records a run that failed because of the sink, before its result can be read.
    pub(crate) fn record(&self, number: u64) {
        let ended = self.advance();
        self.failed().insert(number, ended);
    }

    /// Takes out the end time of a run that failed because of the sink. None if the pool ended it, as after a timeout.
    pub(crate) fn take(&self, number: u64) -> Option<u64> {
        self.failed().remove(&number)
    }

    fn failed(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_is_not_before_the_failures_that_it_follows() {
        let gate = SinkGate::default();
        let during = gate.start().expect("it is open");
        gate.record(7);
        let after = gate.start().expect("it is open");
        let ended = gate.take(7).expect("it was recorded");
        assert!(during < ended && ended <= after, "{ended}");
        assert_eq!(gate.take(7), None);
    }

    #[test]
    fn only_a_probe_starts_while_the_gate_is_closed() {
        let gate = SinkGate::default();
        let of_run = gate.clone();
        gate.close();
        assert_eq!((of_run.start(), of_run.for_probe().start()), (None, Some(0)));
        gate.open();
        assert_eq!((of_run.start(), of_run.for_probe().start()), (Some(0), Some(0)));
    }
}
