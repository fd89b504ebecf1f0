//! Renews the leases of running tasks, and the heartbeat of this worker.
//!
//! Owns when that is done. A worker that holds nothing writes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_store::lease::{HeartbeatResult, Token, WorkerId};
use gristmill_store::{Error, Store};

use crate::bench::Bench;
use crate::flight::Flight;
use crate::line::Beats;

/// Keeps the leases of one kind's tasks.
pub(crate) struct TaskBeats {
    store: Store,
    bench: Arc<Bench>,
    every: Duration,
    due: Instant,
}

impl TaskBeats {
    pub(crate) fn new(store: Store, bench: Arc<Bench>) -> Self {
        let every = bench.lease / 10;
        TaskBeats { store, bench, every, due: Instant::now() + every }
    }
}

impl Beats for TaskBeats {
    fn due(&self) -> Instant {
        self.due
    }

    fn beat(&mut self) -> Result<(), Error> {
        let now = (Instant::now(), self.store.now());
        self.due = now.0 + self.every;
        // What was claimed a moment ago has its whole lease before it.
        let old = |flight: &Flight| flight.lease_age(now) >= self.every / 2;
        renew_leases(&self.store, &self.bench, old).inspect_err(|_| {
            // Sooner than usual: the lease has not been renewed.
            self.due = now.0 + self.every / 4;
        })
    }
}

/// Prolongs the leases of some of a kind's tasks, and tells those to stop whose lease is lost.
pub(crate) fn renew_leases(
    store: &Store,
    bench: &Bench,
    which: impl Fn(&Flight) -> bool,
) -> Result<(), Error> {
    let flights: Vec<Arc<Flight>> =
        bench.claims().all().values().filter(|flight| which(flight)).cloned().collect();
    if flights.is_empty() {
        return Ok(());
    }
    let held: Vec<(i64, Token)> =
        flights.iter().map(|flight| (flight.task.id, flight.task.token.clone())).collect();
    // Before the write: a lease is taken for older than it is, never for younger.
    let now = (Instant::now(), store.now());
    let beats = store.tasks().heartbeat(held, bench.lease)?;
    for (flight, beat) in flights.iter().zip(beats) {
        if beat == HeartbeatResult::Kept {
            flight.renew(now);
            continue;
        }
        // One that was settled a moment ago is not lost.
        let held = bench.claims().all().get(&flight.task.id).is_some_and(|other| Arc::ptr_eq(other, flight));
        if held {
            tracing::warn!(task = flight.task.id, ?beat, "a lease is lost; its handler is told to stop");
            flight.stop.set();
        }
    }
    Ok(())
}

/// The record that this worker is alive.
pub(crate) struct Presence {
    store: Store,
    worker: WorkerId,
    /// A worker that is silent for longer than its shortest lease is not taken for alive.
    lease: Duration,
    every: Duration,
    renewed: Mutex<Option<Instant>>,
    /// Whether the worker holds anything.
    busy: AtomicBool,
}

impl Presence {
    pub(crate) fn new(store: Store, worker: WorkerId, leases: &[Duration]) -> Self {
        let lease = leases.iter().min().copied().unwrap_or_default();
        let (renewed, busy) = (Mutex::default(), AtomicBool::new(false));
        Presence { store, worker, lease, every: lease / 10, renewed, busy }
    }

    /// Records this worker before it claims anything.
    pub(crate) fn register(&self) -> Result<(), Error> {
        let registered = self.renewed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if registered { Ok(()) } else { self.renew() }
    }

    /// Records that this worker is alive, unless that was done a moment ago.
    pub(crate) fn renew(&self) -> Result<(), Error> {
        let now = Instant::now();
        let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if renewed.is_some_and(|last| now.duration_since(last) < self.every / 2) {
            return Ok(());
        }
        self.store.workers().heartbeat(&self.worker, self.lease)?;
        *renewed = Some(now);
        Ok(())
    }

    /// Notes whether the worker holds anything; if it does, it is recorded as alive.
    pub(crate) fn set_busy(&self, busy: bool) -> Result<(), Error> {
        self.busy.store(busy, Ordering::SeqCst);
        if busy { self.renew() } else { Ok(()) }
    }

    /// Removes the record: this worker has ended and holds nothing.
    pub(crate) fn remove(&self) {
        if let Err(error) = self.store.workers().remove(&self.worker) {
            // Nothing depends on it: a worker without leases is only a row, and goes with its process.
            tracing::debug!(%error, "the record of this worker could not be removed");
        }
    }
}

/// Renews the record of a worker that holds something.
pub(crate) struct PresenceBeats {
    presence: Arc<Presence>,
    due: Instant,
}

impl PresenceBeats {
    pub(crate) fn new(presence: Arc<Presence>) -> Self {
        PresenceBeats { due: Instant::now() + presence.every, presence }
    }
}

impl Beats for PresenceBeats {
    fn due(&self) -> Instant {
        self.due
    }

    fn beat(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        self.due = now + self.presence.every;
        if !self.presence.busy.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.presence.renew().inspect_err(|_| self.due = now + self.presence.every / 4)
    }
}
