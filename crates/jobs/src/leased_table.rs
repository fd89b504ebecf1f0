//! Sources for the tables of the protocol: scan and hash jobs, thumbnails, thumbnail clean-up, WAL checkpoints.
//!
//! Owns the common part: a row is claimed, run by a handler under a lease, and finished. Rows are few and slow, so each
//! is claimed and finished by its own transaction. The parts that differ by table are in `shared_tables`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::task::TaskId;
use gristmill_pool::{CancelToken, Failure, Outcome, Pool, TaskError, TaskResult};
use gristmill_store::lease::{HeartbeatResult, HeldLeases, LEASE, Token, WorkerId};
use gristmill_store::{Error, Store};

use crate::lease_renewal::LeaseRenewer;
use crate::signals::DispatcherSignals;
use crate::source::{EndedQueue, PollMode, PollResult, WorkSource};

/// A table without claimable rows is polled no more often than this while other sources are busy.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A table with a row that cannot be read is polled at this interval.
const UNREADABLE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// A running row of a table of the protocol, passed to its handler.
///
/// A long handler must call [`is_cancelled`](Self::is_cancelled) regularly, and return
/// [`TaskError::cancelled`](gristmill_pool::TaskError::cancelled) if it is.
pub struct RowContext<'a, R> {
    claim: &'a RowClaim<R>,
    store: &'a Store,
}

impl<R> RowContext<'_, R> {
    /// The row as it was claimed.
    pub fn row(&self) -> &R {
        &self.claim.row
    }

    /// Token that is cancelled when the handler should return: the lease is lost, the row was cancelled, or the worker
    /// stops.
    pub fn cancel_token(&self) -> &CancelToken {
        &self.claim.cancel_token
    }

    /// Whether the handler should return.
    pub fn is_cancelled(&self) -> bool {
        self.claim.cancel_token.is_cancelled()
    }

    /// Waits up to `limit` until the row is cancelled. Returns whether it is.
    pub fn wait_cancelled(&self, limit: Duration) -> bool {
        self.claim.cancel_token.wait_timeout(limit)
    }

    /// Sets the progress: items done, and the fraction of the whole from 0 to 1. It is stored by the next heartbeat.
    pub fn progress(&self, items: u64, fraction: f64) {
        let fraction = if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) };
        *lock(&self.claim.progress) = (items, fraction);
    }

    /// Token of the claim. Writes to the row are refused without it.
    pub fn token(&self) -> &Token {
        &self.claim.token
    }

    /// The store that the row was claimed from.
    pub fn store(&self) -> &Store {
        self.store
    }
}

impl<R: fmt::Debug> fmt::Debug for RowContext<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowContext").field("row", self.row()).finish_non_exhaustive()
    }
}

/// A row in flight: claimed, and not yet finished.
pub(crate) struct RowClaim<R> {
    pub(crate) row: R,
    pub(crate) token: Token,
    cancel_token: CancelToken,
    progress: Mutex<(u64, f64)>,
    /// The pool's task that runs the row, once it is started.
    task: OnceLock<TaskId>,
}

impl<R> RowClaim<R> {
    pub(crate) fn progress(&self) -> (u64, f64) {
        *lock(&self.progress)
    }
}

type Claim<R> = dyn Fn(&Store, &Token, Duration) -> Result<Option<R>, Error> + Send + Sync;
type Heartbeat<R> = fn(&Store, &RowClaim<R>, Duration) -> Result<HeartbeatResult, Error>;
type Finish<R, M> = fn(&Store, &RowClaim<R>, Result<&M, &TaskError>) -> Result<(), Error>;
pub(crate) type Handler<R, M> = Box<dyn Fn(&RowContext<'_, R>) -> TaskResult<M> + Send + Sync>;

/// What differs by table: how its rows are claimed, renewed, run and finished.
pub(crate) struct Table<R, M> {
    pub(crate) name: &'static str,
    /// Maximum number of rows that run at a time in this process.
    pub(crate) workers: usize,
    pub(crate) id: fn(&R) -> String,
    pub(crate) recover: fn(&Store, HeldLeases) -> Result<usize, Error>,
    pub(crate) claim: Box<Claim<R>>,
    /// `None` if the protocol has no heartbeat for the rows. Leases are at least 300 seconds long then.
    pub(crate) heartbeat: Option<Heartbeat<R>>,
    /// Whether the claim still holds the row. It does not if the row was cancelled.
    pub(crate) is_held: fn(&Store, &RowClaim<R>) -> Result<bool, Error>,
    pub(crate) handler: Handler<R, M>,
    pub(crate) finish: Finish<R, M>,
    pub(crate) release: fn(&Store, &RowClaim<R>) -> Result<(), Error>,
}

type InFlightRows<R> = Mutex<Vec<Arc<RowClaim<R>>>>;

/// A row and the result of its handler.
type EndedRow<R, M> = (Arc<RowClaim<R>>, Result<M, Failure>);

pub(crate) struct LeasedTable<R, M: Send + 'static> {
    signals: Arc<DispatcherSignals>,
    worker: WorkerId,
    table: Arc<Table<R, M>>,
    lease: Duration,
    pool: Pool<M>,
    in_flight: Arc<InFlightRows<R>>,
    ended: Arc<EndedQueue<EndedRow<R, M>>>,
    next_poll: Instant,
    /// A claim was requested and has been deferred.
    deferred: bool,
}

impl<R: Send + Sync + 'static, M: Send + Sync + 'static> LeasedTable<R, M> {
    pub(crate) fn boxed(
        signals: &Arc<DispatcherSignals>,
        worker: &WorkerId,
        table: Table<R, M>,
        lease: Duration,
    ) -> Result<Box<dyn WorkSource>, crate::Error> {
        let lease = if table.heartbeat.is_some() { lease } else { lease.max(LEASE) };
        let in_flight: Arc<InFlightRows<R>> = Arc::default();
        let ended: Arc<EndedQueue<EndedRow<R, M>>> = Arc::default();
        let on_outcome = {
            let (signals, in_flight, ended) = (signals.clone(), in_flight.clone(), ended.clone());
            move |outcome: Outcome<M>| {
                let claim = lock(&in_flight).iter().find(|claim| claim.task.get() == Some(&outcome.task.id)).cloned();
                // A row whose claim was released when the runner stopped is not in flight.
                if claim.is_some_and(|claim| ended.put((claim, outcome.result))) {
                    signals.wake();
                }
            }
        };
        let builder = Pool::builder().name(table.name).workers(table.workers).keep_failures(0);
        let pool = builder.build_with_callback(on_outcome)?;
        let (signals, worker, table) = (signals.clone(), worker.clone(), Arc::new(table));
        let next_poll = Instant::now();
        Ok(Box::new(LeasedTable { signals, worker, table, lease, pool, in_flight, ended, next_poll, deferred: false }))
    }

    /// Stores the results of handlers that have ended.
    fn settle(&mut self) -> Result<usize, Error> {
        let mut ended = self.ended.take();
        let count = ended.len();
        while let Some((claim, result)) = ended.pop() {
            let store = &self.signals.store;
            let written = match &result {
                // An error after cancellation does not count as an attempt.
                Err(_) if claim.cancel_token.is_cancelled() => (self.table.release)(store, &claim),
                result => (self.table.finish)(store, &claim, result.as_ref().map_err(|failure| &*failure.error)),
            };
            match written {
                Ok(()) => {}
                // Another worker has claimed the row, or it was cancelled.
                Err(Error::Conflict(reason) | Error::NotFound(reason)) => {
                    tracing::warn!(table = self.table.name, reason, "the result was refused");
                }
                Err(error) => {
                    ended.push((claim, result));
                    self.ended.put_back(ended);
                    return Err(error);
                }
            }
            lock(&self.in_flight).retain(|other| !Arc::ptr_eq(other, &claim));
        }
        Ok(count)
    }

    /// Claims rows until every worker has one.
    fn claim(&mut self) -> Result<usize, Error> {
        let mut claimed = 0;
        while self.in_flight() < self.table.workers {
            let token = self.worker.token();
            let Some(row) = (self.table.claim)(&self.signals.store, &token, self.lease)? else { break };
            self.dispatch(row, token);
            claimed += 1;
        }
        Ok(claimed)
    }

    fn dispatch(&self, row: R, token: Token) {
        let (cancel_token, progress, task) = (CancelToken::new(), Mutex::default(), OnceLock::new());
        let claim = Arc::new(RowClaim { row, token, cancel_token, progress, task });
        lock(&self.in_flight).push(claim.clone());
        let (signals, table) = (self.signals.clone(), self.table.clone());
        // Fails only if the pool is closed, after the runner has ended.
        drop(self.pool.submit(move |context| {
            let _inside = signals.enter();
            claim.task.get_or_init(|| context.task_id());
            if signals.is_stopping() {
                claim.cancel_token.cancel();
                return Err(TaskError::cancelled());
            }
            (table.handler)(&RowContext { claim: &claim, store: &signals.store })
        }));
    }
}

impl<R: Send + Sync + 'static, M: Send + Sync + 'static> WorkSource for LeasedTable<R, M> {
    fn recover(&mut self) -> Result<(), Error> {
        // Only the dispatcher claims and settles, so the held rows do not change during recovery.
        let held: Vec<_> = lock(&self.in_flight).clone();
        let held = HeldLeases::new(&self.worker, held.iter().map(|claim| ((self.table.id)(&claim.row), &claim.token)));
        let recovered = (self.table.recover)(&self.signals.store, held)?;
        if recovered > 0 {
            let table = self.table.name;
            tracing::warn!(table, recovered, "released rows of workers that died or did not renew leases");
        }
        Ok(())
    }

    fn poll(&mut self, mode: PollMode) -> Result<PollResult, Error> {
        let settled = self.settle()?;
        self.deferred = (self.deferred || mode != PollMode::SettleOnly) && !self.signals.is_stopping();
        let now = Instant::now();
        let early = now < self.next_poll && (mode != PollMode::ClaimNow || self.next_poll - now > MIN_POLL_INTERVAL);
        if !self.deferred || early {
            let unreadable = self.next_poll.saturating_duration_since(now) > MIN_POLL_INTERVAL;
            return Ok(PollResult { settled, claimed: 0, polled: !self.deferred || unreadable });
        }
        let claimed = match self.claim() {
            // A row that another program wrote and that cannot be read pauses this table, and no other source.
            Err(error @ Error::Malformed(_)) => {
                tracing::error!(table = self.table.name, %error, "cannot read a claimable row; retrying in 30 s");
                self.deferred = false;
                self.next_poll = now + UNREADABLE_RETRY_INTERVAL;
                return Ok(PollResult { settled, claimed: 0, polled: true });
            }
            claimed => claimed?,
        };
        self.deferred = false;
        if claimed == 0 {
            self.next_poll = now + MIN_POLL_INTERVAL;
        }
        Ok(PollResult { settled, claimed, polled: true })
    }

    fn in_flight(&self) -> usize {
        lock(&self.in_flight).len()
    }

    fn wait_handlers(&self, deadline: Instant) {
        self.pool.wait_idle_until(&CancelToken::new(), deadline.saturating_duration_since(Instant::now()));
    }

    fn apply_cancellations(&mut self) -> Result<(), Error> {
        let mut running = lock(&self.in_flight).clone();
        running.retain(|claim| !claim.cancel_token.is_cancelled());
        for claim in running {
            if !(self.table.is_held)(&self.signals.store, &claim)? {
                tracing::info!(
                    table = self.table.name,
                    "the row was cancelled or its claim is lost; the handler is cancelled"
                );
                claim.cancel_token.cancel();
            }
        }
        Ok(())
    }

    fn flush_after(&self) -> Option<Duration> {
        if self.ended.len() > 0 {
            return Some(Duration::ZERO);
        }
        self.deferred.then(|| self.next_poll.saturating_duration_since(Instant::now()))
    }

    fn cancel_all(&mut self) {
        // Without the lock, because callbacks of the handlers run.
        let claims = lock(&self.in_flight).clone();
        claims.iter().for_each(|claim| claim.cancel_token.cancel());
    }

    fn release_all(&mut self) -> Result<(), Error> {
        self.cancel_all();
        let mut result = self.settle().map(drop);
        for claim in std::mem::take(&mut *lock(&self.in_flight)) {
            match (self.table.release)(&self.signals.store, &claim) {
                Ok(()) | Err(Error::Conflict(_) | Error::NotFound(_)) => {}
                Err(error) => result = Err(error),
            }
        }
        result
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    fn lease_renewers(&self) -> Vec<LeaseRenewer> {
        let Some(heartbeat) = self.table.heartbeat else { return Vec::new() };
        let (table, store, in_flight) = (self.table.name, self.signals.store.clone(), self.in_flight.clone());
        let lease = self.lease;
        vec![LeaseRenewer::new(lease, move || {
            let held: Vec<_> = lock(&in_flight).clone();
            for claim in held {
                let result = match heartbeat(&store, &claim, lease) {
                    Err(Error::NotFound(_)) => HeartbeatResult::Lost,
                    result => result?,
                };
                // A row that was settled meanwhile is not lost.
                let is_held = || lock(&in_flight).iter().any(|other| Arc::ptr_eq(other, &claim));
                if result != HeartbeatResult::Kept && is_held() {
                    tracing::warn!(table, ?result, "the lease is lost; the handler is cancelled");
                    claim.cancel_token.cancel();
                }
            }
            Ok(())
        })]
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
