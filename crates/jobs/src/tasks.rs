//! The line of durable tasks: claimed in batches, run on a pool for each kind, settled in batches.
//!
//! Owns the tasks in the air. One visit to the store writes the verdicts of all that has come in and claims
//! what there is room for, so a task costs a fraction of a commit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::breaker::BreakerState;
use gristmill_pool::{Pool, Task};
use gristmill_store::lease::{Beat, Token, WorkerId};
use gristmill_store::tasks::{ClaimedTask, Failure, Settled, Settlement, Turn, Verdict, Wanted};
use gristmill_store::{Error, Store, Time};

use crate::clean_ups::CleanUps;
use crate::flight::{Flight, Stop};
use crate::hub::Hub;
use crate::kind::Kind;
use crate::line::{Beats, Line, Look, Turned};
use crate::pace::Pace;
use crate::runway::{Inbox, Landed, Runway};

/// What has come in waits so long for more to come, while there is more in the air.
const LINGER: Duration = Duration::from_millis(5);

/// Checkpoints that nobody will come back for are kept so long.
const KEEP_ORPHANS: Duration = Duration::from_secs(86_400);

/// So many old tasks are forgotten at a time.
const PRUNE: usize = 1_000;

/// While a breaker is open, it is asked this often whether it still is.
const BREAKER_GLANCE: Duration = Duration::from_millis(200);

/// What the whole runner says about tasks.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) queues: Vec<String>,
    pub(crate) lease: Duration,
    pub(crate) max_crashes: u32,
    pub(crate) keep_finished: Option<Duration>,
}

/// What became of tasks, by count.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) completed: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) buried: AtomicU64,
    pub(crate) released: AtomicU64,
    pub(crate) lost: AtomicU64,
}

/// A kind at work.
pub(crate) struct Bench {
    pub(crate) kind: Arc<Kind>,
    pub(crate) pool: Pool<()>,
    pub(crate) counts: Counts,
    lease: Duration,
    air: Mutex<HashMap<i64, Arc<Flight>>>,
}

impl Bench {
    fn air(&self) -> MutexGuard<'_, HashMap<i64, Arc<Flight>>> {
        self.air.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn in_air(&self) -> usize {
        self.air().len()
    }
}

pub(crate) struct Tasks {
    hub: Arc<Hub>,
    worker: WorkerId,
    rules: Rules,
    benches: Vec<Arc<Bench>>,
    paces: Vec<Pace>,
    inbox: Arc<Inbox>,
    clean_ups: CleanUps,
    next_due: Option<Time>,
}

impl Tasks {
    pub(crate) fn new(
        hub: Arc<Hub>,
        worker: WorkerId,
        rules: Rules,
        kinds: Vec<Kind>,
    ) -> Result<Self, crate::Error> {
        let mut benches = Vec::with_capacity(kinds.len());
        let mut paces = Vec::with_capacity(kinds.len());
        for kind in kinds {
            let kind_workers = kind.workers;
            let pace = Pace::new(kind_workers);
            let builder = Pool::builder().name(&*kind.name).workers(kind.workers).keep_failures(0);
            let pool = builder.queue(pace.limit() + kind_workers).build()?;
            let lease = kind.lease.unwrap_or(rules.lease);
            let bench =
                Bench { kind: Arc::new(kind), pool, counts: Counts::default(), lease, air: Mutex::default() };
            benches.push(Arc::new(bench));
            paces.push(pace);
        }
        let inbox = Arc::new(Inbox::default());
        let clean_ups = CleanUps::new()?;
        Ok(Tasks { hub, worker, rules, benches, paces, inbox, clean_ups, next_due: None })
    }

    pub(crate) fn benches(&self) -> &[Arc<Bench>] {
        &self.benches
    }

    pub(crate) fn beats(&self) -> Vec<Box<dyn Beats>> {
        let beat = |bench: &Arc<Bench>| -> Box<dyn Beats> {
            let every = bench.lease / 10;
            Box::new(TaskBeats {
                store: self.hub.store.clone(),
                bench: bench.clone(),
                every,
                due: Instant::now() + every,
            })
        };
        self.benches.iter().map(beat).collect()
    }

    /// What there is room for. Notes when to ask again for kinds that have to wait.
    fn wanted(&mut self, landed: &[Landed]) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        self.next_due = None;
        for (index, (bench, pace)) in self.benches.iter().zip(&self.paces).enumerate() {
            let air = bench.air();
            let mut in_air = air.len();
            let (mut shaken, mut suspect) = (0usize, 0usize);
            for flight in air.values().filter(|flight| flight.task.crashes > 0) {
                *if flight.task.crashes == 1 { &mut shaken } else { &mut suspect } += 1;
            }
            // What has landed is in the air until it is written down, which is about to happen.
            for Landed { settlement, .. } in landed.iter().filter(|landed| landed.bench == index) {
                let Some(flight) = air.get(&settlement.id) else { continue };
                if flight.task.token == settlement.token {
                    in_air -= 1;
                    match flight.task.crashes {
                        0 => {}
                        1 => shaken -= 1,
                        _ => suspect -= 1,
                    }
                }
            }
            drop(air);
            let mut limit = pace.capacity().saturating_sub(in_air);
            match bench.kind.breaker.as_ref().map(|breaker| breaker.stats().state) {
                // Nothing would be tried; what is claimed now would only be written back.
                Some(BreakerState::Open) => {
                    limit = 0;
                    self.next_due = Some(self.hub.store.now().plus(BREAKER_GLANCE));
                }
                Some(BreakerState::HalfOpen) => limit = limit.min(1),
                Some(BreakerState::Closed) | None => {}
            }
            if limit == 0 {
                continue;
            }
            // One token for all queues: they share the limit.
            let token = self.worker.token();
            wanted.extend(self.rules.queues.iter().map(|queue| Wanted {
                queue: queue.clone(),
                kind: bench.kind.name.as_ref().to_owned(),
                limit,
                at_most: bench.kind.at_most,
                shaken: bench.kind.workers.saturating_sub(shaken),
                suspect: 1usize.saturating_sub(suspect),
                lease: bench.lease,
                token: token.clone(),
            }));
        }
        wanted
    }

    /// Takes note of what became of the verdicts, which are written now.
    fn settled(&mut self, landed: &[Landed], turn: &Turn) {
        for (index, (bench, pace)) in self.benches.iter().zip(&mut self.paces).enumerate() {
            let ours = landed.iter().zip(&turn.settled).filter(|(landed, _)| landed.bench == index);
            let mut air = bench.air();
            let mut done = 0;
            for (Landed { settlement, .. }, settled) in ours {
                done += 1;
                // The same task may be in the air again, under another claim, if this one was lost.
                if air.get(&settlement.id).is_some_and(|flight| flight.task.token == settlement.token) {
                    air.remove(&settlement.id);
                }
                bench.counts.count(&settlement.verdict, *settled);
                if let Settled::Buried(letter) = *settled
                    && bench.kind.clean_up.is_some()
                {
                    self.clean_ups.later(&self.hub.store, &bench.kind, vec![letter]);
                }
            }
            let claimed = turn.claimed.iter().filter(|task| task.kind == bench.kind.name).count();
            pace.turned(done, air.len() + claimed);
        }
    }

    /// Writes verdicts one by one, because together they were refused. One that cannot be written costs its own task:
    /// it is given up with the reason.
    fn settle_apart(&mut self, landed: Vec<Landed>) -> Result<usize, Error> {
        let mut rest = landed.into_iter();
        let mut settled = 0;
        while let Some(mut one) = rest.next() {
            let store = self.hub.store.clone();
            let write = |one: &Landed| store.tasks().turn(vec![one.settlement.clone()], Vec::new());
            let turn = match write(&one) {
                Err(error) if !is_fatal(&error) && !error.may_pass() => {
                    tracing::error!(task = one.settlement.id, %error, "a verdict cannot be written");
                    let reason = format!("its verdict could not be written: {error}");
                    one.settlement.verdict = Verdict::Buried(Failure { reason, ..Failure::default() });
                    write(&one)
                }
                turn => turn,
            };
            match turn {
                Ok(turn) => self.settled(&[one], &turn),
                Err(error) if is_fatal(&error) || error.may_pass() => {
                    self.inbox.put_back(std::iter::once(one).chain(rest).collect());
                    return Err(error);
                }
                // Not even that: its lease runs out, and somebody else finds it.
                Err(_) => drop(self.benches[one.bench].air().remove(&one.settlement.id)),
            }
            settled += 1;
        }
        Ok(settled)
    }

    /// Sends what was claimed to its pools.
    fn take_off(&self, claimed: Vec<ClaimedTask>) {
        let mut rest = claimed.into_iter().peekable();
        while let Some(first) = rest.peek() {
            let kind = first.kind.clone();
            let Some(index) = self.benches.iter().position(|bench| bench.kind.name == kind) else { return };
            let bench = &self.benches[index];
            let since = Instant::now();
            let mut flights = Vec::new();
            while let Some(task) = rest.next_if(|task| task.kind == kind) {
                flights.push(Arc::new(Flight { task, since, stop: Stop::default() }));
            }
            bench.air().extend(flights.iter().map(|flight| (flight.task.id, flight.clone())));
            for flight in flights {
                let runway = Runway {
                    hub: self.hub.clone(),
                    inbox: self.inbox.clone(),
                    bench: bench.clone(),
                    index,
                    flight,
                };
                let mut task = Task::new(move |context| runway.run(context));
                if let Some(limit) = bench.kind.timeout {
                    task = task.timeout(limit);
                }
                // Refused only by a pool that is closed, when nobody waits for the task any more either. Never full:
                // no more is claimed than fits.
                drop(bench.pool.submit_task(task));
            }
        }
    }

    /// How many have to come in before it pays to write them down at once.
    fn set_threshold(&self) {
        let flying: usize = self.benches.iter().map(|bench| bench.in_air()).sum();
        self.inbox.threshold.store((flying / 2).max(1), Ordering::SeqCst);
    }
}

impl Line for Tasks {
    fn recover(&mut self) -> Result<(), Error> {
        // Our own first: after a suspended machine, or a clock that jumped, our leases have run out too, and a
        // worker that lives has not crashed.
        for bench in &self.benches {
            keep_leases(&self.hub.store, bench, |_| true)?;
        }
        let recovered = self.hub.store.tasks().recover(self.rules.max_crashes)?;
        if recovered.freed > 0 || !recovered.poisoned.is_empty() {
            let (freed, poisoned) = (recovered.freed, recovered.poisoned.len());
            tracing::warn!(freed, poisoned, "workers have gone silent; their tasks are free again");
        }
        Ok(())
    }

    fn turn(&mut self, look: Look) -> Result<Turned, Error> {
        let look = look != Look::No;
        let landed = self.inbox.take();
        let wanted = if look { self.wanted(&landed) } else { Vec::new() };
        if landed.is_empty() && wanted.is_empty() {
            return Ok(Turned { settled: 0, claimed: 0, looked: true });
        }
        let settlements: Arc<[Settlement]> = landed.iter().map(|landed| landed.settlement.clone()).collect();
        let mut turn = match self.hub.store.tasks().turn(settlements, wanted) {
            Ok(turn) => turn,
            // Nothing was written: the verdicts wait for a better moment, their leases kept.
            Err(error) if is_fatal(&error) || error.may_pass() || landed.is_empty() => {
                self.inbox.put_back(landed);
                return Err(error);
            }
            Err(error) => {
                tracing::error!(%error, "verdicts were refused; writing them one by one");
                let settled = self.settle_apart(landed)?;
                self.set_threshold();
                return Ok(Turned { settled, claimed: 0, looked: false });
            }
        };
        self.settled(&landed, &turn);
        if let Some(due) = turn.next_due {
            self.next_due = Some(self.next_due.map_or(due, |earlier| earlier.min(due)));
        }
        let claimed = std::mem::take(&mut turn.claimed);
        let turned = Turned { settled: landed.len(), claimed: claimed.len(), looked: true };
        self.take_off(claimed);
        self.set_threshold();
        Ok(turned)
    }

    fn care(&mut self) -> Result<bool, Error> {
        let store = &self.hub.store;
        for bench in self.benches.iter().filter(|bench| bench.kind.clean_up.is_some()) {
            let left = store.letters().uncleaned(&[bench.kind.name.as_ref().to_owned()], 100)?;
            self.clean_ups.later(store, &bench.kind, left.iter().map(|letter| letter.id).collect());
        }
        store.checkpoints().clean(store.now().minus(KEEP_ORPHANS))?;
        let Some(keep) = self.rules.keep_finished else { return Ok(false) };
        Ok(store.tasks().prune(store.now().minus(keep), PRUNE)? == PRUNE)
    }

    fn in_air(&self) -> usize {
        self.benches.iter().map(|bench| bench.in_air()).sum()
    }

    fn linger(&self) -> Option<Duration> {
        match self.inbox.len() {
            0 => None,
            landed if landed >= self.inbox.threshold.load(Ordering::SeqCst) => Some(Duration::ZERO),
            _ => Some(LINGER),
        }
    }

    fn cancel(&mut self) {
        for bench in &self.benches {
            bench.air().values().for_each(|flight| flight.stop.set());
        }
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.cancel();
        let released = |flight: &Arc<Flight>| Settlement {
            id: flight.task.id,
            token: flight.task.token.clone(),
            verdict: Verdict::Released,
            checkpointed: false,
        };
        let mut landed = self.inbox.take();
        for (index, bench) in self.benches.iter().enumerate() {
            let air = bench.air();
            let left = air.values().filter(|flight| {
                !landed.iter().any(|Landed { settlement, .. }| {
                    settlement.id == flight.task.id && settlement.token == flight.task.token
                })
            });
            let left: Vec<Landed> =
                left.map(|flight| Landed { bench: index, settlement: released(flight) }).collect();
            drop(air);
            landed.extend(left);
        }
        let settlements: Arc<[Settlement]> = landed.iter().map(|landed| landed.settlement.clone()).collect();
        let turn = self.hub.store.tasks().turn(settlements, Vec::new())?;
        self.settled(&landed, &turn);
        Ok(())
    }

    fn next_due(&self) -> Option<Time> {
        self.next_due
    }

    fn lease(&self) -> Duration {
        self.benches.iter().map(|bench| bench.lease).min().unwrap_or(self.rules.lease)
    }
}

impl Counts {
    fn count(&self, verdict: &Verdict, settled: Settled) {
        let counter = match (settled, verdict) {
            (Settled::Lost, _) => &self.lost,
            (Settled::Buried(_), _) | (_, Verdict::Buried(_)) => &self.buried,
            (_, Verdict::Completed(_)) => &self.completed,
            (_, Verdict::Retry(..)) => &self.retried,
            (_, Verdict::Released | Verdict::Postponed(_)) => &self.released,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Keeps the leases of one kind's tasks.
struct TaskBeats {
    store: Store,
    bench: Arc<Bench>,
    every: Duration,
    due: Instant,
}

impl Beats for TaskBeats {
    fn due(&self) -> Instant {
        self.due
    }

    fn beat(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        self.due = now + self.every;
        // What was claimed a moment ago has its whole lease before it.
        let old = |flight: &Flight| now.duration_since(flight.since) >= self.every / 2;
        keep_leases(&self.store, &self.bench, old).inspect_err(|_| {
            // Sooner than usual: the lease goes on running.
            self.due = now + self.every / 4;
        })
    }
}

/// Prolongs the leases of some of a kind's tasks, and tells those to stop whose lease is lost.
fn keep_leases(store: &Store, bench: &Bench, which: impl Fn(&Flight) -> bool) -> Result<(), Error> {
    let flights: Vec<Arc<Flight>> = bench.air().values().filter(|flight| which(flight)).cloned().collect();
    if flights.is_empty() {
        return Ok(());
    }
    let held: Vec<(i64, Token)> =
        flights.iter().map(|flight| (flight.task.id, flight.task.token.clone())).collect();
    let beats = store.tasks().heartbeat(held, bench.lease)?;
    for (flight, beat) in flights.iter().zip(beats).filter(|(_, beat)| *beat != Beat::Kept) {
        // One that was settled a moment ago is not lost.
        let held = bench.air().get(&flight.task.id).is_some_and(|other| Arc::ptr_eq(other, flight));
        if held {
            tracing::warn!(task = flight.task.id, ?beat, "a lease is lost; its handler is told to stop");
            flight.stop.set();
        }
    }
    Ok(())
}

/// Errors after which nothing more can be done with the store.
fn is_fatal(error: &Error) -> bool {
    matches!(error, Error::Closed | Error::Corrupt(..) | Error::ReadOnly(_) | Error::NotADatabase(_))
}
