//! Renews the leases of running tasks and the heartbeat of this worker, every tenth of the lease.
//!
//! A worker that holds no task writes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_store::lease::{HeartbeatResult, Token, WorkerId};
use gristmill_store::{Error, Store};

use crate::in_flight::InFlight;
use crate::kind_runner::KindRunner;
use crate::source::LeaseRenewer;

pub(crate) struct TaskLeaseRenewer {
    store: Store,
    runner: Arc<KindRunner>,
    interval: Duration,
    due: Instant,
}

impl TaskLeaseRenewer {
    pub(crate) fn new(store: Store, runner: Arc<KindRunner>) -> Self {
        let interval = runner.lease / 10;
        TaskLeaseRenewer { store, runner, interval, due: Instant::now() + interval }
    }
}

impl LeaseRenewer for TaskLeaseRenewer {
    fn due(&self) -> Instant {
        self.due
    }

    fn renew(&mut self) -> Result<(), Error> {
        let now = (Instant::now(), self.store.now());
        self.due = now.0 + self.interval;
        // A lease that began less than half an interval ago need not be renewed.
        let old = |claim: &InFlight| claim.lease_age(now) >= self.interval / 2;
        renew_leases(&self.store, &self.runner, old).inspect_err(|_| {
            // Retry early: the leases have not been renewed.
            self.due = now.0 + self.interval / 4;
        })
    }
}

/// Renews the leases of a kind's tasks that `select` chooses, and cancels the handlers whose lease is lost.
pub(crate) fn renew_leases(
    store: &Store,
    runner: &KindRunner,
    select: impl Fn(&InFlight) -> bool,
) -> Result<(), Error> {
    let held: Vec<Arc<InFlight>> = runner.claims().all().values().filter(|claim| select(claim)).cloned().collect();
    if held.is_empty() {
        return Ok(());
    }
    let tokens: Vec<(i64, Token)> = held.iter().map(|claim| (claim.task.id, claim.task.token.clone())).collect();
    // Read before the write, so that a lease is never considered younger than it is.
    let now = (Instant::now(), store.now());
    let results = store.tasks().heartbeat(tokens, runner.lease)?;
    for (claim, result) in held.iter().zip(results) {
        if result == HeartbeatResult::Kept {
            claim.set_renewed(now);
            continue;
        }
        // A task that was settled meanwhile is not lost.
        let is_held = runner.claims().all().get(&claim.task.id).is_some_and(|other| Arc::ptr_eq(other, claim));
        if is_held {
            tracing::warn!(task = claim.task.id, ?result, "the lease is lost; the handler is cancelled");
            claim.cancel_token.cancel();
        }
    }
    Ok(())
}

/// The worker's row in the store, which shows other processes that it is alive.
pub(crate) struct Presence {
    store: Store,
    worker: WorkerId,
    /// The shortest lease: a worker without a heartbeat for longer than this counts as dead.
    lease: Duration,
    interval: Duration,
    renewed: Mutex<Option<Instant>>,
    busy: AtomicBool,
}

impl Presence {
    pub(crate) fn new(store: Store, worker: WorkerId, leases: &[Duration]) -> Self {
        let lease = leases.iter().min().copied().unwrap_or_default();
        let (renewed, busy) = (Mutex::default(), AtomicBool::new(false));
        Presence { store, worker, lease, interval: lease / 10, renewed, busy }
    }

    /// Writes the first heartbeat, before the worker claims anything.
    pub(crate) fn register(&self) -> Result<(), Error> {
        let registered = self.renewed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if registered { Ok(()) } else { self.renew() }
    }

    /// Writes a heartbeat, unless the last one is less than half an interval old.
    pub(crate) fn renew(&self) -> Result<(), Error> {
        let now = Instant::now();
        let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if renewed.is_some_and(|last| now.duration_since(last) < self.interval / 2) {
            return Ok(());
        }
        self.store.workers().heartbeat(&self.worker, self.lease)?;
        *renewed = Some(now);
        Ok(())
    }

    /// Sets whether the worker holds a claim; if so, writes a heartbeat.
    pub(crate) fn set_busy(&self, busy: bool) -> Result<(), Error> {
        self.busy.store(busy, Ordering::SeqCst);
        if busy { self.renew() } else { Ok(()) }
    }

    /// Removes the worker's row, when the worker has ended and holds nothing.
    pub(crate) fn remove(&self) {
        if let Err(error) = self.store.workers().remove(&self.worker) {
            // Harmless: the row of a worker without leases is removed once its process has ended.
            tracing::debug!(%error, "cannot remove the row of this worker");
        }
    }
}

/// Writes the heartbeat of a worker that holds a claim.
pub(crate) struct PresenceRenewer {
    presence: Arc<Presence>,
    due: Instant,
}

impl PresenceRenewer {
    pub(crate) fn new(presence: Arc<Presence>) -> Self {
        PresenceRenewer { due: Instant::now() + presence.interval, presence }
    }
}

impl LeaseRenewer for PresenceRenewer {
    fn due(&self) -> Instant {
        self.due
    }

    fn renew(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        self.due = now + self.presence.interval;
        if !self.presence.busy.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.presence.renew().inspect_err(|_| self.due = now + self.presence.interval / 4)
    }
}
