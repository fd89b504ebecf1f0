//! Renews the leases of running tasks and the heartbeat of this worker, every tenth of the lease.
//!
//! A worker that holds no task writes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::CancelToken;
use gristmill_store::lease::{HeartbeatResult, Token, WorkerId};
use gristmill_store::{Error, Store};

use crate::in_flight::InFlight;
use crate::kind_runner::KindRunner;

/// Renews the leases of one source, or the row of the worker in `workers`, on the thread `jobs-heartbeat`.
pub(crate) struct LeaseRenewer {
    interval: Duration,
    due: Instant,
    renew: Box<dyn FnMut() -> Result<(), Error> + Send>,
}

impl LeaseRenewer {
    /// `renew`: renews leases of this duration in the store, and cancels the handlers whose lease is lost.
    pub(crate) fn new(lease: Duration, renew: impl FnMut() -> Result<(), Error> + Send + 'static) -> Self {
        let interval = lease / 10;
        LeaseRenewer { interval, due: Instant::now() + interval, renew: Box::new(renew) }
    }

    fn renew(&mut self) {
        let now = Instant::now();
        self.due = now + self.interval;
        if let Err(error) = (self.renew)() {
            // Early, because the leases have not been renewed.
            self.due = now + self.interval / 4;
            tracing::warn!(%error, "cannot renew leases; retrying");
        }
    }
}

/// Body of the thread `jobs-heartbeat`: renews the leases of every source when they are due, until the dispatcher has
/// ended. Neither a handler that never yields nor a dispatcher that waits for the disk can delay it.
pub(crate) fn renew_until_ended(mut renewers: Vec<LeaseRenewer>, ended: &CancelToken) {
    while let Some(next) = renewers.iter().map(|renewer| renewer.due).min()
        && !ended.wait_deadline(next)
    {
        let now = Instant::now();
        renewers.iter_mut().filter(|renewer| renewer.due <= now).for_each(LeaseRenewer::renew);
    }
}

/// Renews the leases of a kind's tasks, except those that began less than half an interval ago.
pub(crate) fn task_lease_renewer(store: Store, runner: Arc<KindRunner>) -> LeaseRenewer {
    let min_age = runner.lease / 20;
    LeaseRenewer::new(runner.lease, move || {
        let now = (Instant::now(), store.now());
        renew_leases(&store, &runner, |claim| claim.lease_age(now) >= min_age)
    })
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
            claim.cancel();
        }
    }
    Ok(())
}

/// The worker's row in the store, which shows other processes that it is alive.
pub(crate) struct Presence {
    store: Store,
    worker: WorkerId,
    lease: Duration,
    renewed: Mutex<Option<Instant>>,
    busy: AtomicBool,
}

impl Presence {
    /// `lease`: the shortest lease. A worker without a heartbeat for longer than this counts as dead.
    pub(crate) fn new(store: Store, worker: WorkerId, lease: Duration) -> Self {
        Presence { store, worker, lease, renewed: Mutex::default(), busy: AtomicBool::new(false) }
    }

    /// Writes the first heartbeat, before the worker claims anything.
    pub(crate) fn register(&self) -> Result<(), Error> {
        let registered = self.renewed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if registered { Ok(()) } else { self.renew() }
    }

    /// Writes a heartbeat, unless the last one is younger than a twentieth of the lease.
    pub(crate) fn renew(&self) -> Result<(), Error> {
        let now = Instant::now();
        let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if renewed.is_some_and(|last| now.duration_since(last) < self.lease / 20) {
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

    /// Writes the heartbeats of a worker while it holds a claim.
    pub(crate) fn renewer(self: Arc<Self>) -> LeaseRenewer {
        LeaseRenewer::new(self.lease, move || if self.busy.load(Ordering::SeqCst) { self.renew() } else { Ok(()) })
    }

    /// Removes the worker's row, when the worker has ended and holds nothing.
    pub(crate) fn remove(&self) {
        if let Err(error) = self.store.workers().remove(&self.worker) {
            // Harmless: the row of a worker without leases is removed once its process has ended.
            tracing::debug!(%error, "cannot remove the row of this worker");
        }
    }
}
