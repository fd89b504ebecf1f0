//! The lines of the protocol: scan and hash jobs, thumbnails, their clean-up, care of the log.
//!
//! Owns what they have in common: a row is claimed, run by a handler under a lease, and finished. Their rows are
//! few and long, so each is claimed and finished by itself. What a table does differently stands in `tables`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::error::{Cause, catch_panic};
use gristmill_pool::{Pool, Task, TaskResult};
use gristmill_store::lease::{HeartbeatResult, HeldLeases, LEASE, Token, WorkerId};
use gristmill_store::{Error, Store};

use crate::in_flight::CancelToken;
use crate::signals::DispatcherSignals;
use crate::source::{LeaseRenewer, PollMode, PollResult, WorkSource};

/// A line with nothing to do is asked no more often than this, however busy others are.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// And this often when it holds a row that cannot be read.
const UNREADABLE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// A row of the protocol, while it runs.
///
/// A long handler asks [`is_cancelled`](Self::is_cancelled) from time to time: its lease may be lost, its row called
/// off, or the worker about to stop. It then returns [`TaskError::cancelled`](gristmill_pool::TaskError::cancelled).
pub struct RowContext<'a, R> {
    row: &'a R,
    claimed: &'a ClaimedRow<R>,
    store: &'a Store,
}

impl<R> RowContext<'_, R> {
    /// The row, as it was when it was claimed.
    pub fn row(&self) -> &R {
        self.row
    }

    /// Whether to stop.
    pub fn is_cancelled(&self) -> bool {
        self.claimed.cancel_token.is_cancelled()
    }

    /// Waits until the handler should stop, at most so long. Says whether it should.
    pub fn wait_cancelled(&self, limit: Duration) -> bool {
        self.claimed.cancel_token.wait(limit)
    }

    /// Notes how far it is: items done, and the part of the whole from 0 to 1. Written with the next heartbeat.
    pub fn progress(&self, items: u64, part: f64) {
        let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        *lock(&self.claimed.progress) = (items, part);
    }

    /// The token of the claim, which writes of the row's owner carry.
    pub fn token(&self) -> &Token {
        &self.claimed.token
    }

    /// The store the row came from.
    pub fn store(&self) -> &Store {
        self.store
    }
}

impl<R: fmt::Debug> fmt::Debug for RowContext<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowContext").field("row", self.row).finish_non_exhaustive()
    }
}

/// A claimed row.
pub(crate) struct ClaimedRow<R> {
    pub(crate) row: R,
    pub(crate) token: Token,
    cancel_token: CancelToken,
    progress: Mutex<(u64, f64)>,
}

impl<R> ClaimedRow<R> {
    pub(crate) fn progress(&self) -> (u64, f64) {
        *lock(&self.progress)
    }
}

/// What one table does differently.
pub(crate) trait LeasedRows: Send + Sync + 'static {
    type Row: Send + Sync + 'static;
    type Output: Send + 'static;

    /// How many run at a time in this process.
    fn workers(&self) -> usize;
    fn name(&self) -> &'static str;
    /// Whether the protocol has heartbeats for its rows. If not, its leases are long.
    fn has_heartbeat(&self) -> bool {
        true
    }
    /// The id of a row, as text.
    fn id(row: &Self::Row) -> String;
    fn recover(&self, store: &Store, held: HeldLeases) -> Result<usize, Error>;
    fn claim(&self, store: &Store, token: &Token, lease: Duration) -> Result<Option<Self::Row>, Error>;
    fn heartbeat(
        &self,
        store: &Store,
        claimed: &ClaimedRow<Self::Row>,
        lease: Duration,
    ) -> Result<HeartbeatResult, Error>;
    /// Whether the row is still the claimed's own. A row that was cancelled is not.
    fn is_held(&self, _: &Store, _: &ClaimedRow<Self::Row>) -> Result<bool, Error> {
        Ok(true)
    }
    fn run(&self, context: &RowContext<'_, Self::Row>, token: &Token) -> TaskResult<Self::Output>;
    fn finish(
        &self,
        store: &Store,
        claimed: &ClaimedRow<Self::Row>,
        result: &TaskResult<Self::Output>,
    ) -> Result<(), Error>;
    fn release(&self, store: &Store, claimed: &ClaimedRow<Self::Row>) -> Result<(), Error>;
}

type InFlightRows<R> = Mutex<Vec<Arc<ClaimedRow<R>>>>;

/// How a handler ended; nothing when it never started.
type EndedRow<T> = (Arc<ClaimedRow<<T as LeasedRows>::Row>>, Option<TaskResult<<T as LeasedRows>::Output>>);

/// One table's line.
pub(crate) struct LeasedTable<T: LeasedRows> {
    signals: Arc<DispatcherSignals>,
    worker: WorkerId,
    table: Arc<T>,
    lease: Duration,
    pool: Pool<()>,
    in_flight: Arc<InFlightRows<T::Row>>,
    ended: Arc<Mutex<Vec<EndedRow<T>>>>,
    next_poll: Instant,
    /// A mode was asked for, and not taken yet.
    poll_pending: bool,
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
            poll_pending: false,
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

    /// Writes down how handlers ended.
    fn settle(&mut self) -> Result<usize, Error> {
        let mut settled = 0;
        loop {
            let Some((claimed, result)) = lock(&self.ended).pop() else { return Ok(settled) };
            let store = &self.signals.store;
            let written = match &result {
                // We told it to stop: whatever it says, this was no fair attempt.
                Some(Err(_)) | None if claimed.cancel_token.is_cancelled() || result.is_none() => {
                    self.table.release(store, &claimed)
                }
                Some(result) => self.table.finish(store, &claimed, result),
                None => Ok(()),
            };
            match written {
                Ok(()) => {}
                // Somebody else's now, or called off.
                Err(Error::Conflict(reason) | Error::NotFound(reason)) => {
                    tracing::warn!(table = self.table.name(), reason, "a result was refused");
                }
                Err(error) => {
                    lock(&self.ended).push((claimed, result));
                    return Err(error);
                }
            }
            lock(&self.in_flight).retain(|other| !Arc::ptr_eq(other, &claimed));
            settled += 1;
        }
    }

    /// Claims one row after another while there is room.
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
        let claimed = Arc::new(ClaimedRow {
            row,
            token,
            cancel_token: CancelToken::default(),
            progress: Mutex::default(),
        });
        lock(&self.in_flight).push(claimed.clone());
        let (signals, table, ended) = (self.signals.clone(), self.table.clone(), self.ended.clone());
        let task = Task::new(move |_| {
            let _inside = signals.enter();
            let result = (!signals.is_stopping()).then(|| {
                let context = RowContext { row: &claimed.row, claimed: &claimed, store: &signals.store };
                // A panic costs the row, with its reason, and nothing else.
                catch_panic(|| table.run(&context, &claimed.token)).inspect_err(|error| {
                    if let Cause::Panic { message, backtrace } = error.cause() {
                        tracing::error!(table = table.name(), message, %backtrace, "a handler panicked");
                    }
                })
            });
            lock(&ended).push((claimed, result));
            signals.wake();
            Ok(())
        });
        // Refused only by a pool that is closed, when nobody waits for the row any more either.
        drop(self.pool.submit_task(task));
    }
}

impl<T: LeasedRows> WorkSource for LeasedTable<T> {
    fn recover(&mut self) -> Result<(), Error> {
        // Only the dispatcher claims and settles, so what is held does not change meanwhile.
        let claimed: Vec<_> = lock(&self.in_flight).clone();
        let held = HeldLeases::new(
            &self.worker,
            claimed.iter().map(|claimed| (T::id(&claimed.row), &claimed.token)),
        );
        let recovered = self.table.recover(&self.signals.store, held)?;
        if recovered > 0 {
            tracing::warn!(
                table = self.table.name(),
                recovered,
                "workers have gone silent; their rows are free again"
            );
        }
        Ok(())
    }

    fn poll(&mut self, mode: PollMode) -> Result<PollResult, Error> {
        let settled = self.settle()?;
        self.poll_pending =
            (self.poll_pending || mode != PollMode::SettleOnly) && !self.signals.is_stopping();
        let now = Instant::now();
        let early =
            now < self.next_poll && (mode != PollMode::ClaimNow || self.next_poll - now > MIN_POLL_INTERVAL);
        if !self.poll_pending || early {
            let unreadable = self.next_poll.saturating_duration_since(now) > MIN_POLL_INTERVAL;
            return Ok(PollResult { settled, claimed: 0, polled: !self.poll_pending || unreadable });
        }
        let claimed = match self.claim() {
            // A row that somebody else wrote and we cannot read stops this line, for a while, and no other.
            Err(error @ Error::Malformed(_)) => {
                tracing::error!(table = self.table.name(), %error, "no row can be claimed; looking again later");
                self.poll_pending = false;
                self.next_poll = now + UNREADABLE_RETRY_INTERVAL;
                return Ok(PollResult { settled, claimed: 0, polled: true });
            }
            claimed => claimed?,
        };
        self.poll_pending = false;
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
        let claimed: Vec<_> = lock(&self.in_flight)
            .iter()
            .filter(|claimed| !claimed.cancel_token.is_cancelled())
            .cloned()
            .collect();
        for claimed in claimed {
            if !self.table.is_held(&self.signals.store, &claimed)? {
                tracing::info!(table = self.table.name(), "a row was cancelled; its handler is stopped");
                claimed.cancel_token.cancel();
            }
        }
        Ok(())
    }

    fn flush_after(&self) -> Option<Duration> {
        if !lock(&self.ended).is_empty() {
            return Some(Duration::ZERO);
        }
        self.poll_pending.then(|| self.next_poll.saturating_duration_since(Instant::now()))
    }

    fn cancel_all(&mut self) {
        lock(&self.in_flight).iter().for_each(|claimed| claimed.cancel_token.cancel());
    }

    fn release_all(&mut self) -> Result<(), Error> {
        self.cancel_all();
        let settled = self.settle();
        let left = std::mem::take(&mut *lock(&self.in_flight));
        let mut result = settled.map(drop);
        for claimed in left {
            match self.table.release(&self.signals.store, &claimed) {
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

/// Keeps the leases of one table's rows.
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
        // Sooner than usual if this fails: the leases go on running.
        self.due = Instant::now() + interval / 4;
        let claimed: Vec<_> = lock(&self.in_flight).clone();
        for claimed in claimed {
            let result = match self.table.heartbeat(&self.store, &claimed, self.lease) {
                Err(Error::NotFound(_)) => HeartbeatResult::Lost,
                result => result?,
            };
            if result != HeartbeatResult::Kept {
                tracing::warn!(
                    table = self.table.name(),
                    ?result,
                    "a lease is lost; its handler is told to stop"
                );
                claimed.cancel_token.cancel();
            }
        }
        self.due = Instant::now() + interval;
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
