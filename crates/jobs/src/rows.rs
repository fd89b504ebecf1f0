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

use crate::flight::Stop;
use crate::hub::Hub;
use crate::line::{Beats, Line, Look, Turned};

/// A line with nothing to do is asked no more often than this, however busy others are.
const GLANCE: Duration = Duration::from_millis(50);

/// And this often when it holds a row that cannot be read.
const UNREADABLE: Duration = Duration::from_secs(30);

/// A row of the protocol, while it runs.
///
/// A long handler asks [`is_cancelled`](Self::is_cancelled) from time to time: its lease may be lost, its row called
/// off, or the worker about to stop. It then returns [`TaskError::cancelled`](gristmill_pool::TaskError::cancelled).
pub struct RowContext<'a, R> {
    row: &'a R,
    flight: &'a Flight<R>,
    store: &'a Store,
}

impl<R> RowContext<'_, R> {
    /// The row, as it was when it was claimed.
    pub fn row(&self) -> &R {
        self.row
    }

    /// Whether to stop.
    pub fn is_cancelled(&self) -> bool {
        self.flight.stop.is_set()
    }

    /// Waits until the handler should stop, at most so long. Says whether it should.
    pub fn wait_cancelled(&self, limit: Duration) -> bool {
        self.flight.stop.wait(limit)
    }

    /// Notes how far it is: items done, and the part of the whole from 0 to 1. Written with the next heartbeat.
    pub fn progress(&self, items: u64, part: f64) {
        let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        *lock(&self.flight.progress) = (items, part);
    }

    /// The token of the claim, which writes of the row's owner carry.
    pub fn token(&self) -> &Token {
        &self.flight.token
    }

    /// The store the row came from.
    pub fn store(&self) -> &Store {
        self.store
    }
}

impl<R: fmt::Debug> fmt::Debug for RowContext<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("row", self.row).finish_non_exhaustive()
    }
}

/// A claimed row.
pub(crate) struct Flight<R> {
    pub(crate) row: R,
    pub(crate) token: Token,
    stop: Stop,
    progress: Mutex<(u64, f64)>,
}

impl<R> Flight<R> {
    pub(crate) fn progress(&self) -> (u64, f64) {
        *lock(&self.progress)
    }
}

/// What one table does differently.
pub(crate) trait Table: Send + Sync + 'static {
    type Row: Send + Sync + 'static;
    type Made: Send + 'static;

    /// How many run at a time in this process.
    fn workers(&self) -> usize;
    fn name(&self) -> &'static str;
    /// Whether the protocol has heartbeats for its rows. If not, its leases are long.
    fn beats(&self) -> bool {
        true
    }
    /// The id of a row, as text.
    fn id(row: &Self::Row) -> String;
    fn recover(&self, store: &Store, held: HeldLeases) -> Result<usize, Error>;
    fn claim(&self, store: &Store, token: &Token, lease: Duration) -> Result<Option<Self::Row>, Error>;
    fn beat(
        &self,
        store: &Store,
        flight: &Flight<Self::Row>,
        lease: Duration,
    ) -> Result<HeartbeatResult, Error>;
    /// Whether the row is still the flight's own. A row that was cancelled is not.
    fn is_held(&self, _: &Store, _: &Flight<Self::Row>) -> Result<bool, Error> {
        Ok(true)
    }
    fn run(&self, call: &RowContext<'_, Self::Row>, token: &Token) -> TaskResult<Self::Made>;
    fn finish(
        &self,
        store: &Store,
        flight: &Flight<Self::Row>,
        result: &TaskResult<Self::Made>,
    ) -> Result<(), Error>;
    fn release(&self, store: &Store, flight: &Flight<Self::Row>) -> Result<(), Error>;
}

type Air<R> = Mutex<Vec<Arc<Flight<R>>>>;

/// How a handler ended; nothing when it never started.
type Landed<T> = (Arc<Flight<<T as Table>::Row>>, Option<TaskResult<<T as Table>::Made>>);

/// One table's line.
pub(crate) struct Rows<T: Table> {
    hub: Arc<Hub>,
    worker: WorkerId,
    table: Arc<T>,
    lease: Duration,
    pool: Pool<()>,
    air: Arc<Air<T::Row>>,
    landed: Arc<Mutex<Vec<Landed<T>>>>,
    next_look: Instant,
    /// A look was asked for, and not taken yet.
    owed: bool,
}

impl<T: Table> Rows<T> {
    pub(crate) fn new(
        hub: Arc<Hub>,
        worker: WorkerId,
        table: T,
        lease: Duration,
    ) -> Result<Self, crate::Error> {
        let lease = if table.beats() { lease } else { lease.max(LEASE) };
        let pool = Pool::builder().name(table.name()).workers(table.workers()).keep_failures(0).build()?;
        Ok(Rows {
            hub,
            worker,
            table: Arc::new(table),
            lease,
            pool,
            air: Arc::default(),
            landed: Arc::default(),
            next_look: Instant::now(),
            owed: false,
        })
    }

    pub(crate) fn beats(&self) -> Box<dyn Beats> {
        let every = self.lease / 10;
        Box::new(RowBeats {
            store: self.hub.store.clone(),
            table: self.table.clone(),
            air: self.air.clone(),
            lease: self.lease,
            due: Instant::now() + every,
        })
    }

    /// Writes down how handlers ended.
    fn settle(&mut self) -> Result<usize, Error> {
        let mut settled = 0;
        loop {
            let Some((flight, result)) = lock(&self.landed).pop() else { return Ok(settled) };
            let store = &self.hub.store;
            let written = match &result {
                // We told it to stop: whatever it says, this was no fair attempt.
                Some(Err(_)) | None if flight.stop.is_set() || result.is_none() => {
                    self.table.release(store, &flight)
                }
                Some(result) => self.table.finish(store, &flight, result),
                None => Ok(()),
            };
            match written {
                Ok(()) => {}
                // Somebody else's now, or called off.
                Err(Error::Conflict(reason) | Error::NotFound(reason)) => {
                    tracing::warn!(table = self.table.name(), reason, "a result was refused");
                }
                Err(error) => {
                    lock(&self.landed).push((flight, result));
                    return Err(error);
                }
            }
            lock(&self.air).retain(|other| !Arc::ptr_eq(other, &flight));
            settled += 1;
        }
    }

    /// Claims one row after another while there is room.
    fn claim(&mut self) -> Result<usize, Error> {
        let mut claimed = 0;
        while lock(&self.air).len() < self.table.workers() {
            let token = self.worker.token();
            let Some(row) = self.table.claim(&self.hub.store, &token, self.lease)? else { break };
            self.take_off(row, token);
            claimed += 1;
        }
        Ok(claimed)
    }

    fn take_off(&self, row: T::Row, token: Token) {
        let flight = Arc::new(Flight { row, token, stop: Stop::default(), progress: Mutex::default() });
        lock(&self.air).push(flight.clone());
        let (hub, table, landed) = (self.hub.clone(), self.table.clone(), self.landed.clone());
        let task = Task::new(move |_| {
            let _inside = hub.enter();
            let result = (!hub.is_stopping()).then(|| {
                let call = RowContext { row: &flight.row, flight: &flight, store: &hub.store };
                // A panic costs the row, with its reason, and nothing else.
                catch_panic(|| table.run(&call, &flight.token)).inspect_err(|error| {
                    if let Cause::Panic { message, backtrace } = error.cause() {
                        tracing::error!(table = table.name(), message, %backtrace, "a handler panicked");
                    }
                })
            });
            lock(&landed).push((flight, result));
            hub.wake();
            Ok(())
        });
        // Refused only by a pool that is closed, when nobody waits for the row any more either.
        drop(self.pool.submit_task(task));
    }
}

impl<T: Table> Line for Rows<T> {
    fn recover(&mut self) -> Result<(), Error> {
        // Only the dispatcher claims and settles, so what is held does not change meanwhile.
        let flights: Vec<_> = lock(&self.air).clone();
        let held =
            HeldLeases::new(&self.worker, flights.iter().map(|flight| (T::id(&flight.row), &flight.token)));
        let rescued = self.table.recover(&self.hub.store, held)?;
        if rescued > 0 {
            tracing::warn!(
                table = self.table.name(),
                rescued,
                "workers have gone silent; their rows are free again"
            );
        }
        Ok(())
    }

    fn turn(&mut self, look: Look) -> Result<Turned, Error> {
        let settled = self.settle()?;
        self.owed = (self.owed || look != Look::No) && !self.hub.is_stopping();
        let now = Instant::now();
        let early = now < self.next_look && (look != Look::Now || self.next_look - now > GLANCE);
        if !self.owed || early {
            let unreadable = self.next_look.saturating_duration_since(now) > GLANCE;
            return Ok(Turned { settled, claimed: 0, looked: !self.owed || unreadable });
        }
        let claimed = match self.claim() {
            // A row that somebody else wrote and we cannot read stops this line, for a while, and no other.
            Err(error @ Error::Malformed(_)) => {
                tracing::error!(table = self.table.name(), %error, "no row can be claimed; looking again later");
                self.owed = false;
                self.next_look = now + UNREADABLE;
                return Ok(Turned { settled, claimed: 0, looked: true });
            }
            claimed => claimed?,
        };
        self.owed = false;
        if claimed == 0 {
            self.next_look = now + GLANCE;
        }
        Ok(Turned { settled, claimed, looked: true })
    }

    fn in_air(&self) -> usize {
        lock(&self.air).len()
    }

    fn running(&self) -> usize {
        self.in_air().saturating_sub(lock(&self.landed).len())
    }

    fn stop_cancelled(&mut self) -> Result<(), Error> {
        let flights: Vec<_> =
            lock(&self.air).iter().filter(|flight| !flight.stop.is_set()).cloned().collect();
        for flight in flights {
            if !self.table.is_held(&self.hub.store, &flight)? {
                tracing::info!(table = self.table.name(), "a row was cancelled; its handler is stopped");
                flight.stop.set();
            }
        }
        Ok(())
    }

    fn linger(&self) -> Option<Duration> {
        if !lock(&self.landed).is_empty() {
            return Some(Duration::ZERO);
        }
        self.owed.then(|| self.next_look.saturating_duration_since(Instant::now()))
    }

    fn cancel(&mut self) {
        lock(&self.air).iter().for_each(|flight| flight.stop.set());
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.cancel();
        let settled = self.settle();
        let left = std::mem::take(&mut *lock(&self.air));
        let mut result = settled.map(drop);
        for flight in left {
            match self.table.release(&self.hub.store, &flight) {
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
struct RowBeats<T: Table> {
    store: Store,
    table: Arc<T>,
    air: Arc<Air<T::Row>>,
    lease: Duration,
    due: Instant,
}

impl<T: Table> Beats for RowBeats<T> {
    fn due(&self) -> Instant {
        self.due
    }

    fn beat(&mut self) -> Result<(), Error> {
        let every = self.lease / 10;
        // Sooner than usual if this fails: the leases go on running.
        self.due = Instant::now() + every / 4;
        let flights: Vec<_> = lock(&self.air).clone();
        for flight in flights {
            let beat = match self.table.beat(&self.store, &flight, self.lease) {
                Err(Error::NotFound(_)) => HeartbeatResult::Lost,
                beat => beat?,
            };
            if beat != HeartbeatResult::Kept {
                tracing::warn!(
                    table = self.table.name(),
                    ?beat,
                    "a lease is lost; its handler is told to stop"
                );
                flight.stop.set();
            }
        }
        self.due = Instant::now() + every;
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
