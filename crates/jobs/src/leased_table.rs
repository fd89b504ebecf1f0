//! Sources for the tables of the protocol: scan and hash jobs, thumbnails, thumbnail clean-up, WAL checkpoints.
//!
//! Owns the common part: a row is claimed, run by a handler under a lease, and finished. Rows are few and slow, so each
//! is claimed and finished by its own transaction. The parts that differ by table are in `shared_tables`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::error::{Cause, catch_panic};
use gristmill_pool::{CancelToken, Pool, Task, TaskResult};
use gristmill_store::lease::{HeartbeatResult, HeldLeases, LEASE, Token, WorkerId};
use gristmill_store::{Error, Store};

use crate::signals::DispatcherSignals;
use crate::source::{LeaseRenewer, PollMode, PollResult, WorkSource};

/// A table without claimable rows is polled no more often than this while other sources are busy.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A table with a row that cannot be read is polled at this interval.
const UNREADABLE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// A running row of a table of the protocol, passed to its handler.
///
/// A long handler must call [`is_cancelled`](Self::is_cancelled) regularly, and return
/// [`TaskError::cancelled`](gristmill_pool::TaskError::cancelled) if it is.
pub struct RowContext<'a, R> {
    row: &'a R,
    claim: &'a RowClaim<R>,
    store: &'a Store,
}

impl<R> RowContext<'_, R> {
    /// The row as it was claimed.
    pub fn row(&self) -> &R {
        self.row
    }

    /// Whether the handler should return: the lease is lost, the row was cancelled, or the worker stops.
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
        f.debug_struct("RowContext").field("row", self.row).finish_non_exhaustive()
    }
}

/// A row in flight: claimed, and not yet finished.
pub(crate) struct RowClaim<R> {
    pub(crate) row: R,
    pub(crate) token: Token,
    cancel_token: CancelToken,
    progress: Mutex<(u64, f64)>,
}

impl<R> RowClaim<R> {
    pub(crate) fn progress(&self) -> (u64, f64) {
        *lock(&self.progress)
    }
}

pub(crate) trait LeasedRows: Send + Sync + 'static {
    type Row: Send + Sync + 'static;
    type Output: Send + 'static;

    /// Maximum number of rows that run at a time in this process.
    fn workers(&self) -> usize;
    fn name(&self) -> &'static str;
    /// Whether the protocol has heartbeats for its rows. If not, leases are at least 300 seconds long.
    fn has_heartbeat(&self) -> bool {
        true
    }
    fn id(row: &Self::Row) -> String;
    fn recover(&self, store: &Store, held: HeldLeases) -> Result<usize, Error>;
    fn claim(&self, store: &Store, token: &Token, lease: Duration) -> Result<Option<Self::Row>, Error>;
    fn heartbeat(&self, store: &Store, claim: &RowClaim<Self::Row>, lease: Duration) -> Result<HeartbeatResult, Error>;
    /// Whether the claim still holds the row. It does not if the row was cancelled.
    fn is_held(&self, _: &Store, _: &RowClaim<Self::Row>) -> Result<bool, Error> {
        Ok(true)
    }
    fn run(&self, context: &RowContext<'_, Self::Row>, token: &Token) -> TaskResult<Self::Output>;
    fn finish(
        &self,
        store: &Store,
        claim: &RowClaim<Self::Row>,
        result: &TaskResult<Self::Output>,
    ) -> Result<(), Error>;
    fn release(&self, store: &Store, claim: &RowClaim<Self::Row>) -> Result<(), Error>;
}

type InFlightRows<R> = Mutex<Vec<Arc<RowClaim<R>>>>;

/// A row and the result of its handler; `None` if the handler was not started.
type EndedRow<T> = (Arc<RowClaim<<T as LeasedRows>::Row>>, Option<TaskResult<<T as LeasedRows>::Output>>);

pub(crate) struct LeasedTable<T: LeasedRows> {
    signals: Arc<DispatcherSignals>,
    worker: WorkerId,
    table: Arc<T>,
    lease: Duration,
    pool: Pool<()>,
    in_flight: Arc<InFlightRows<T::Row>>,
    ended: Arc<Mutex<Vec<EndedRow<T>>>>,
    next_poll: Instant,
    /// A claim was requested and has been deferred.
    deferred: bool,
}

impl<T: LeasedRows> LeasedTable<T> {
    pub(crate) fn new(
        signals: Arc<DispatcherSignals>,
        worker: WorkerId,
        table: T,
        lease: Duration,
    ) -> Result<Self, crate::Error> {
        let lease = if table.has_heartbeat() { lease } else { lease.max(LEASE) };
        let pool = Pool::builder().name(table.name()).workers(table.workers()).keep_failures(0).build()?;
        Ok(LeasedTable {
            signals,
            worker,
            table: Arc::new(table),
            lease,
            pool,
            in_flight: Arc::default(),
            ended: Arc::default(),
            next_poll: Instant::now(),
            deferred: false,
        })
    }

    pub(crate) fn lease_renewer(&self) -> Box<dyn LeaseRenewer> {
        let interval = self.lease / 10;
        Box::new(RowLeaseRenewer {
            store: self.signals.store.clone(),
            table: self.table.clone(),
            in_flight: self.in_flight.clone(),
            lease: self.lease,
            due: Instant::now() + interval,
        })
    }

    /// Stores the results of handlers that have ended.
    fn settle(&mut self) -> Result<usize, Error> {
        let mut settled = 0;
        loop {
            let Some((claim, result)) = lock(&self.ended).pop() else { return Ok(settled) };
            let store = &self.signals.store;
            let written = match &result {
                // An error after cancellation does not count as an attempt.
                Some(Err(_)) | None if claim.cancel_token.is_cancelled() || result.is_none() => {
                    self.table.release(store, &claim)
                }
                Some(result) => self.table.finish(store, &claim, result),
                None => Ok(()),
            };
            match written {
                Ok(()) => {}
                // Another worker has claimed the row, or it was cancelled.
                Err(Error::Conflict(reason) | Error::NotFound(reason)) => {
                    tracing::warn!(table = self.table.name(), reason, "the result was refused");
                }
                Err(error) => {
                    lock(&self.ended).push((claim, result));
                    return Err(error);
                }
            }
            lock(&self.in_flight).retain(|other| !Arc::ptr_eq(other, &claim));
            settled += 1;
        }
    }

    /// Claims rows until every worker has one.
    fn claim(&mut self) -> Result<usize, Error> {
        let mut claimed = 0;
        while lock(&self.in_flight).len() < self.table.workers() {
            let token = self.worker.token();
            let Some(row) = self.table.claim(&self.signals.store, &token, self.lease)? else { break };
            self.dispatch(row, token);
            claimed += 1;
        }
        Ok(claimed)
    }

    fn dispatch(&self, row: T::Row, token: Token) {
        let cancel_token = CancelToken::default();
        let claim = Arc::new(RowClaim { row, token, cancel_token, progress: Mutex::default() });
        lock(&self.in_flight).push(claim.clone());
        let (signals, table, ended) = (self.signals.clone(), self.table.clone(), self.ended.clone());
        let task = Task::new(move |_| {
            let _inside = signals.enter();
            let result = (!signals.is_stopping()).then(|| {
                let context = RowContext { row: &claim.row, claim: &claim, store: &signals.store };
                // A panic fails this row only.
                catch_panic(|| table.run(&context, &claim.token)).inspect_err(|error| {
                    if let Cause::Panic { message, backtrace } = error.cause() {
                        tracing::error!(table = table.name(), message, %backtrace, "a handler panicked");
                    }
                })
            });
            lock(&ended).push((claim, result));
            signals.wake();
            Ok(())
        });
        // Fails only if the pool is closed, after the runner has ended.
        drop(self.pool.submit_task(task));
    }
}

impl<T: LeasedRows> WorkSource for LeasedTable<T> {
    fn recover(&mut self) -> Result<(), Error> {
        // Only the dispatcher claims and settles, so the held rows do not change during recovery.
        let held: Vec<_> = lock(&self.in_flight).clone();
        let held = HeldLeases::new(&self.worker, held.iter().map(|claim| (T::id(&claim.row), &claim.token)));
        let recovered = self.table.recover(&self.signals.store, held)?;
        if recovered > 0 {
            let table = self.table.name();
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
                tracing::error!(table = self.table.name(), %error, "cannot read a claimable row; retrying in 30 s");
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

    fn running(&self) -> usize {
        self.in_flight().saturating_sub(lock(&self.ended).len())
    }

    fn apply_cancellations(&mut self) -> Result<(), Error> {
        let mut running = lock(&self.in_flight).clone();
        running.retain(|claim| !claim.cancel_token.is_cancelled());
        for claim in running {
            if !self.table.is_held(&self.signals.store, &claim)? {
                tracing::info!(
                    table = self.table.name(),
                    "the row was cancelled or its claim is lost; the handler is cancelled"
                );
                claim.cancel_token.cancel();
            }
        }
        Ok(())
    }

    fn flush_after(&self) -> Option<Duration> {
        if !lock(&self.ended).is_empty() {
            return Some(Duration::ZERO);
        }
        self.deferred.then(|| self.next_poll.saturating_duration_since(Instant::now()))
    }

    fn cancel_all(&mut self) {
        lock(&self.in_flight).iter().for_each(|claim| claim.cancel_token.cancel());
    }

    fn release_all(&mut self) -> Result<(), Error> {
        self.cancel_all();
        let settled = self.settle();
        let left = std::mem::take(&mut *lock(&self.in_flight));
        let mut result = settled.map(drop);
        for claim in left {
            match self.table.release(&self.signals.store, &claim) {
                Ok(()) | Err(Error::Conflict(_) | Error::NotFound(_)) => {}
                Err(error) => result = Err(error),
            }
        }
        result
    }

    fn lease(&self) -> Duration {
        self.lease
    }
}

struct RowLeaseRenewer<T: LeasedRows> {
    store: Store,
    table: Arc<T>,
    in_flight: Arc<InFlightRows<T::Row>>,
    lease: Duration,
    due: Instant,
}

impl<T: LeasedRows> LeaseRenewer for RowLeaseRenewer<T> {
    fn due(&self) -> Instant {
        self.due
    }

    fn renew(&mut self) -> Result<(), Error> {
        let interval = self.lease / 10;
        // Retry early if this fails, because the leases have not been renewed.
        self.due = Instant::now() + interval / 4;
        let held: Vec<_> = lock(&self.in_flight).clone();
        for claim in held {
            let result = match self.table.heartbeat(&self.store, &claim, self.lease) {
                Err(Error::NotFound(_)) => HeartbeatResult::Lost,
                result => result?,
            };
            if result != HeartbeatResult::Kept {
                tracing::warn!(table = self.table.name(), ?result, "the lease is lost; the handler is cancelled");
                claim.cancel_token.cancel();
            }
        }
        self.due = Instant::now() + interval;
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
