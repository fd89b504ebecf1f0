//! The line of durable tasks: claimed in batches, run on a pool for each kind, settled in batches.
//!
//! Owns the tasks in the air. One visit to the store writes the verdicts of all that has come in and claims
//! what there is room for, so a task costs a fraction of a commit. Starts are recorded by such a visit too, when a
//! handler has run for a moment: most tasks have ended by then, and their verdict says that they were started.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gristmill_pool::breaker::{Breaker, BreakerState};
use gristmill_pool::{Pool, Task};
use gristmill_store::lease::{HeldLeases, Token, WorkerId};
use gristmill_store::start_log::StartLog;
use gristmill_store::tasks::{
    ClaimBatch, ClaimRequest, ClaimedTask, Disposition, ReplacementClaim, TaskFailure, UpdateResult,
    WorkerBatch,
};
use gristmill_store::{Error, UtcTime};

use crate::bench::Bench;
use crate::claims::Suspicious;
use crate::clean_ups::CleanUps;
use crate::flight::Flight;
use crate::hub::Hub;
use crate::kind::TaskKind;
use crate::line::{Beats, Line, Look, Turned};
use crate::pace::Pace;
use crate::process_groups::ProcessGroups;
use crate::renewal::{TaskBeats, renew_leases};
use crate::runway::{Inbox, Landed, Runway};

/// What has come in waits so long for more to come, while there is more in the air.
const LINGER: Duration = Duration::from_millis(5);

/// A start is recorded when its handler has run for this long, unless it has to be recorded before.
const RECORD_AFTER: Duration = Duration::from_millis(100);

/// While tasks wait for a worker, whether to give some of them back is considered at least this often.
const CONSIDER_WAITING: Duration = Duration::from_millis(100);

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
    /// Where handlers' timeouts take their time from.
    pub(crate) clock: gristmill_pool::clock::Clock,
}

pub(crate) struct Tasks {
    hub: Arc<Hub>,
    worker: WorkerId,
    rules: Rules,
    benches: Vec<Arc<Bench>>,
    paces: Vec<Pace>,
    inbox: Arc<Inbox>,
    clean_ups: CleanUps,
    next_due: Option<UtcTime>,
}

impl Tasks {
    pub(crate) fn new(
        hub: Arc<Hub>,
        worker: WorkerId,
        rules: Rules,
        kinds: Vec<TaskKind>,
    ) -> Result<Self, crate::Error> {
        let start_log = Arc::new(StartLog::new(&hub.store, &worker));
        let mut benches = Vec::with_capacity(kinds.len());
        let mut paces = Vec::with_capacity(kinds.len());
        for kind in kinds {
            let kind_workers = kind.workers;
            // What waits here would count for the limit, and keep other processes from running as much as it allows.
            let pace = Pace::new(kind_workers, kind.at_most.is_none());
            let builder = Pool::builder().name(&*kind.name).workers(kind.workers).keep_failures(0);
            let pool = builder.queue_capacity(pace.most_claimed()).clock(rules.clock.clone()).build()?;
            let lease = kind.lease.unwrap_or(rules.lease);
            benches.push(Arc::new(Bench::new(kind, pool, lease, start_log.clone())));
            paces.push(pace);
        }
        let inbox = Arc::new(Inbox::default());
        let clean_ups = CleanUps::new(hub.clone())?;
        Ok(Tasks { hub, worker, rules, benches, paces, inbox, clean_ups, next_due: None })
    }

    pub(crate) fn benches(&self) -> &[Arc<Bench>] {
        &self.benches
    }

    pub(crate) fn beats(&self) -> Vec<Box<dyn Beats>> {
        let beats = |bench: &Arc<Bench>| -> Box<dyn Beats> {
            Box::new(TaskBeats::new(self.hub.store.clone(), bench.clone()))
        };
        self.benches.iter().map(beats).collect()
    }

    /// Takes back what waits and should not: all of it when the runner stops, else what is more than the workers will
    /// start within a moment. Puts it to what has landed.
    fn give_back(&self, landed: &mut Vec<Landed>) {
        for (index, (bench, pace)) in self.benches.iter().zip(&self.paces).enumerate() {
            let mut claims = bench.claims();
            if claims.waiting() == 0 {
                continue;
            }
            let count = if self.hub.is_stopping() {
                claims.waiting()
            } else {
                let settled = landed.iter().filter(|landed| landed.bench == index).count();
                let in_air = claims.all().len().saturating_sub(settled);
                let capacity = pace.capacity(claims.busy_for(bench.kind.workers));
                // Only if some have waited: the estimate moves with each slow run, and most are started in a moment.
                let is_over = in_air > pace.give_back_above(capacity);
                if is_over && claims.has_waited(CONSIDER_WAITING) { in_air - capacity } else { 0 }
            };
            let given_back = claims.give_back(count);
            landed.extend(given_back.into_iter().map(|flight| Landed::released(index, flight)));
        }
    }

    /// Starts to be recorded: of handlers that have run for `time`, and of those that were started and are given back.
    fn starts(&self, landed: &[Landed], time: Duration) -> Vec<Arc<Flight>> {
        let mut starts: Vec<Arc<Flight>> = Vec::new();
        for bench in &self.benches {
            starts.extend(bench.claims().unrecorded(time).cloned());
        }
        let untold = |landed: &&Landed| {
            matches!(landed.settlement.disposition, Disposition::Released | Disposition::Postponed(_))
                && landed.flight.started().is_some()
                && !landed.flight.is_recorded()
        };
        starts.extend(landed.iter().filter(untold).map(|landed| landed.flight.clone()));
        starts
    }

    /// One visit to the store.
    fn visit(
        &self,
        landed: &[Landed],
        starts: &[Arc<Flight>],
        (wanted, exchange): (Vec<ClaimRequest>, Vec<ReplacementClaim>),
    ) -> Result<ClaimBatch, Error> {
        let settlements = landed.iter().map(|landed| landed.settlement.clone()).collect();
        let started = starts.iter().map(|flight| (flight.task.id, flight.task.token.clone())).collect();
        let turn = self.hub.store.tasks().apply(WorkerBatch {
            started,
            updates: settlements,
            claims: wanted,
            replacements: exchange,
        })?;
        for (flight, is_ours) in starts.iter().zip(&turn.started) {
            flight.set_recorded();
            if !is_ours && !flight.has_ended() {
                tracing::warn!(task = flight.task.id, "the claim is lost; its handler is stopped");
                flight.stop.set();
            }
        }
        Ok(turn)
    }

    /// How many tasks of a kind are claimed, and which of them may have ended a worker. Those that have landed do not count: they
    /// are claimed until that is written down, which is about to happen.
    fn unsettled(&self, index: usize, landed: &[Landed]) -> (usize, Suspicious) {
        let claims = self.benches[index].claims();
        let (mut in_air, mut suspicious) = (claims.all().len(), claims.suspicious());
        for Landed { flight, .. } in landed.iter().filter(|landed| landed.bench == index) {
            let held = claims.all().get(&flight.task.id);
            if held.is_some_and(|held| Arc::ptr_eq(held, flight)) {
                in_air -= 1;
                suspicious.remove(flight);
            }
        }
        (in_air, suspicious)
    }

    /// What there is room for, and what would be claimed in exchange for less urgent tasks that wait. Notes when to ask
    /// again for kinds that have to wait.
    fn wanted(&mut self, landed: &[Landed]) -> (Vec<ClaimRequest>, Vec<ReplacementClaim>) {
        let (mut wanted, mut exchange) = (Vec::new(), Vec::new());
        self.next_due = None;
        let unsettled: Vec<(usize, Suspicious)> =
            (0..self.benches.len()).map(|index| self.unsettled(index, landed)).collect();
        // One at a time in the whole process: two that run together would not tell which of them ended it.
        let suspects: usize = unsettled.iter().map(|(_, suspicious)| suspicious.suspect).sum();
        for ((bench, pace), (in_air, suspicious)) in self.benches.iter().zip(&self.paces).zip(unsettled) {
            let claims = bench.claims();
            let capacity = pace.capacity(claims.busy_for(bench.kind.workers));
            // What workers that are free are about to start is not exchanged.
            let exchangeable = claims.waiting().min(in_air.saturating_sub(bench.kind.workers));
            let (waiting, last) = (claims.waiting(), claims.last());
            drop(claims);
            let mut limit = capacity.saturating_sub(in_air);
            let mut may_exchange = true;
            match bench.kind.breaker.as_ref().map(|breaker| breaker.stats().state) {
                // Nothing would be tried; what is claimed now would only be written back.
                Some(BreakerState::Open) => {
                    (limit, may_exchange) = (0, false);
                    self.next_due = Some(self.hub.store.now().plus(BREAKER_GLANCE));
                }
                // One, which becomes the probe.
                Some(BreakerState::HalfOpen) => {
                    let is_probe_wanted =
                        waiting == 0 && bench.kind.breaker.as_ref().is_some_and(Breaker::would_permit);
                    (limit, may_exchange) = (limit.min(usize::from(is_probe_wanted)), false);
                    if !is_probe_wanted {
                        self.next_due = Some(self.hub.store.now().plus(BREAKER_GLANCE));
                    }
                }
                Some(BreakerState::Closed) | None => {}
            }
            let want = |queue: &String, limit: usize, token: &Token| ClaimRequest {
                queue: queue.clone(),
                kind: bench.kind.name.as_ref().to_owned(),
                limit,
                max_running: bench.kind.at_most,
                max_crashed_once: bench.kind.workers.saturating_sub(suspicious.shaken),
                max_crashed_often: 1usize.saturating_sub(suspects),
                lease: bench.lease,
                token: token.clone(),
            };
            if limit > 0 {
                // One token for all queues: they share the limit.
                let token = self.worker.token();
                wanted.extend(self.rules.queues.iter().map(|queue| want(queue, limit, &token)));
            }
            let most = exchangeable.min(pace.most_claimed().saturating_sub(in_air + limit));
            if let Some((rank, Reverse(priority), _)) = last.filter(|_| may_exchange && most > 0) {
                let token = self.worker.token();
                exchange.extend(self.rules.queues.iter().take(rank + 1).enumerate().map(|(nth, queue)| {
                    ReplacementClaim {
                        claim: want(queue, most, &token),
                        above_priority: (nth == rank).then_some(priority),
                    }
                }));
            }
        }
        (wanted, exchange)
    }

    /// Gives back the least urgent of the tasks that wait, one for each that was claimed in exchange, where more are claimed
    /// now than the workers will start within a moment. `exchanged`: the kind of each.
    fn give_back_for(&self, exchanged: &[Arc<str>]) {
        let mut given_back = Vec::new();
        for (index, (bench, pace)) in self.benches.iter().zip(&self.paces).enumerate() {
            let exchanged = exchanged.iter().filter(|kind| **kind == bench.kind.name).count();
            let mut claims = bench.claims();
            let (in_air, capacity) = (claims.all().len(), pace.capacity(claims.busy_for(bench.kind.workers)));
            if in_air > pace.give_back_above(capacity) {
                let flights = claims.give_back(exchanged.min(in_air - capacity));
                given_back.extend(flights.into_iter().map(|flight| Landed::released(index, flight)));
            }
        }
        self.inbox.put_back(given_back);
    }

    /// Takes note of what became of the verdicts, which are written now.
    fn settled(&mut self, landed: &[Landed], turn: &ClaimBatch) {
        for (index, (bench, pace)) in self.benches.iter().zip(&mut self.paces).enumerate() {
            let ours = landed.iter().zip(&turn.results).filter(|(landed, _)| landed.bench == index);
            let mut claims = bench.claims();
            for (Landed { settlement, flight, ran, .. }, settled) in ours {
                claims.remove(flight);
                if let Some(time) = ran {
                    pace.ran(*time);
                }
                // What is given back so that others can have it was not refused by this runner.
                let is_exchanged =
                    settlement.disposition == Disposition::Released && flight.started().is_none();
                if !is_exchanged || self.hub.is_stopping() || *settled != UpdateResult::Done {
                    bench.counts.count(&settlement.disposition, *settled);
                }
                if let UpdateResult::DeadLettered(letter) = *settled
                    && bench.kind.clean_up.is_some()
                {
                    self.clean_ups.later(&self.hub.store, &bench.kind, vec![letter]);
                }
            }
        }
    }

    /// Writes verdicts one by one, because together they were refused. One that cannot be written costs its own task:
    /// it is given up with the reason.
    fn settle_apart(&mut self, landed: Vec<Landed>) -> Result<usize, Error> {
        let mut rest = landed.into_iter();
        let mut settled = 0;
        while let Some(mut one) = rest.next() {
            let store = self.hub.store.clone();
            let write =
                |one: &Landed| store.tasks().settle_and_claim(vec![one.settlement.clone()], Vec::new());
            let turn = match write(&one) {
                Err(error) if !is_fatal(&error) && !error.is_transient() => {
                    tracing::error!(task = one.settlement.id, %error, "a verdict cannot be written");
                    let reason = format!("its verdict could not be written: {error}");
                    one.settlement.disposition =
                        Disposition::DeadLettered(TaskFailure { reason, ..TaskFailure::default() });
                    write(&one)
                }
                turn => turn,
            };
            match turn {
                Ok(turn) => self.settled(&[one], &turn),
                Err(error) if is_fatal(&error) || error.is_transient() => {
                    self.inbox.put_back(std::iter::once(one).chain(rest).collect());
                    return Err(error);
                }
                // Not even that: a recovery of this worker frees the row when its lease has run out.
                Err(_) => self.benches[one.bench].claims().remove(&one.flight),
            }
            settled += 1;
        }
        Ok(settled)
    }

    /// Sends what was claimed to its pools.
    fn take_off(&self, claimed: Vec<ClaimedTask>, claimed_at: (Instant, UtcTime)) {
        let mut rest = claimed.into_iter().peekable();
        while let Some(first) = rest.peek() {
            let kind = first.kind.clone();
            let Some(index) = self.benches.iter().position(|bench| bench.kind.name == kind) else { return };
            let bench = &self.benches[index];
            let mut flights = Vec::new();
            while let Some(task) = rest.next_if(|task| task.kind == kind) {
                let rank = self.rules.queues.iter().position(|queue| **queue == *task.queue);
                flights.push((rank.unwrap_or(usize::MAX), Arc::new(Flight::new(task, claimed_at))));
            }
            let mut claims = bench.claims();
            flights.iter().for_each(|(rank, flight)| claims.add(*rank, flight));
            let turns = claims.lacking_turns();
            drop(claims);
            for _ in 0..turns {
                let (hub, inbox, bench) = (self.hub.clone(), self.inbox.clone(), bench.clone());
                let timeout = bench.kind.timeout;
                let pool = bench.clone();
                let mut task = Task::new(move |context| {
                    let Some(flight) = bench.claims().next() else { return Ok(()) };
                    Runway { hub, inbox, bench, index, flight }.run(context)
                });
                if let Some(limit) = timeout {
                    task = task.timeout(limit);
                }
                // Refused only by a pool that is closed, when nobody waits for the task any more either. Never full:
                // no more is claimed than fits.
                drop(pool.pool.submit_task(task));
            }
        }
    }

    /// What this worker holds, for its recovery. Only the dispatcher claims and settles, so this does not change meanwhile.
    fn held(&self) -> HeldLeases {
        let flights = self.benches.iter().flat_map(|bench| {
            let claims = bench.claims();
            claims.all().values().cloned().collect::<Vec<_>>()
        });
        let flights: Vec<Arc<Flight>> = flights.collect();
        HeldLeases::new(&self.worker, flights.iter().map(|flight| (flight.task.id, &flight.task.token)))
    }

    /// How many have to come in before it pays to write them down at once.
    fn set_threshold(&self) {
        let flying: usize = self.benches.iter().map(|bench| bench.in_air()).sum();
        self.inbox.threshold.store((flying / 2).max(1), Ordering::SeqCst);
    }
}

impl Line for Tasks {
    fn recover(&mut self) -> Result<(), Error> {
        // Our own first, for those who only know the wall clock: after a suspended machine, or a clock that was set
        // forward, our leases have run out too.
        for bench in &self.benches {
            renew_leases(&self.hub.store, bench, |_| true)?;
        }
        // Before others may run their tasks, or free the unique keys of those that are to be cancelled.
        ProcessGroups::for_database(self.hub.store.path()).kill_orphans(None);
        let recovered = self.hub.store.tasks().recover_by(self.rules.max_crashes, self.held())?;
        if recovered.freed > 0 || !recovered.poisoned.is_empty() {
            let (freed, poisoned) = (recovered.freed, recovered.poisoned.len());
            tracing::warn!(freed, poisoned, "workers have gone silent; their tasks are free again");
        }
        Ok(())
    }

    fn turn(&mut self, look: Look) -> Result<Turned, Error> {
        let look = look != Look::No;
        let mut landed = self.inbox.take();
        self.give_back(&mut landed);
        let wanted = if look { self.wanted(&landed) } else { Default::default() };
        let starts = self.starts(&landed, RECORD_AFTER);
        if landed.is_empty() && wanted.0.is_empty() && wanted.1.is_empty() && starts.is_empty() {
            return Ok(Turned { settled: 0, claimed: 0, looked: true });
        }
        // Before the visit: a lease is taken for older than it is, never for younger.
        let now = (Instant::now(), self.hub.store.now());
        let mut turn = match self.visit(&landed, &starts, wanted) {
            Ok(turn) => turn,
            // Nothing was written: the verdicts wait for a better moment, their leases kept.
            Err(error) if is_fatal(&error) || error.is_transient() || landed.is_empty() => {
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
        let (claimed, exchanged) =
            (std::mem::take(&mut turn.claimed), std::mem::take(&mut turn.replacements));
        let count = claimed.len() + exchanged.len();
        self.take_off(claimed, now);
        if !exchanged.is_empty() {
            let kinds: Vec<Arc<str>> = exchanged.iter().map(|task| task.kind.clone()).collect();
            self.take_off(exchanged, now);
            self.give_back_for(&kinds);
        }
        let turned = Turned { settled: landed.len(), claimed: count, looked: true };
        self.set_threshold();
        Ok(turned)
    }

    fn care(&mut self) -> Result<bool, Error> {
        let store = &self.hub.store;
        for bench in self.benches.iter().filter(|bench| bench.kind.clean_up.is_some()) {
            let left =
                store.dead_letters().list_cleanup_pending(&[bench.kind.name.as_ref().to_owned()], 100)?;
            self.clean_ups.later(store, &bench.kind, left.iter().map(|letter| letter.id).collect());
        }
        store.checkpoints().clean(store.now().minus(KEEP_ORPHANS))?;
        let Some(keep) = self.rules.keep_finished else { return Ok(false) };
        Ok(store.tasks().prune(store.now().minus(keep), PRUNE)? == PRUNE)
    }

    fn has_waiting(&self) -> Result<bool, Error> {
        let kinds: Vec<&str> = self.benches.iter().map(|bench| bench.kind.name()).collect();
        self.hub.store.tasks().has_waiting(&self.rules.queues, &kinds)
    }

    fn in_air(&self) -> usize {
        self.benches.iter().map(|bench| bench.in_air()).sum()
    }

    fn running(&self) -> usize {
        let waiting: usize = self.benches.iter().map(|bench| bench.claims().waiting()).sum();
        self.in_air().saturating_sub(self.inbox.len() + waiting)
    }

    fn stop_cancelled(&mut self) -> Result<(), Error> {
        let mut withdrawn = Vec::new();
        for (id, token) in self.hub.store.tasks().cancel_requests()? {
            for (index, bench) in self.benches.iter().enumerate() {
                let mut claims = bench.claims();
                let Some(flight) = claims.all().get(&id).filter(|flight| flight.task.token == token) else {
                    continue;
                };
                let flight = flight.clone();
                flight.cancel();
                // What was not started need not wait for a worker.
                if claims.withdraw(&flight) {
                    withdrawn.push(Landed::released(index, flight));
                }
            }
        }
        self.inbox.put_back(withdrawn);
        Ok(())
    }

    fn linger(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut linger = match self.inbox.len() {
            0 => None,
            landed if landed >= self.inbox.threshold.load(Ordering::SeqCst) => return Some(Duration::ZERO),
            _ => Some(LINGER),
        };
        let mut at_most = |time: Duration| linger = Some(linger.map_or(time, |sooner| sooner.min(time)));
        for bench in &self.benches {
            let claims = bench.claims();
            if let Some(due) = claims.next_record(RECORD_AFTER) {
                at_most(due.saturating_duration_since(now));
            }
            if claims.waiting() > 0 {
                at_most(CONSIDER_WAITING);
            }
        }
        linger
    }

    fn cancel(&mut self) {
        for bench in &self.benches {
            bench.claims().all().values().for_each(|flight| flight.stop.set());
        }
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.cancel();
        let mut landed = self.inbox.take();
        for (index, bench) in self.benches.iter().enumerate() {
            let claims = bench.claims();
            let left = claims
                .all()
                .values()
                .filter(|flight| !landed.iter().any(|landed| Arc::ptr_eq(&landed.flight, flight)));
            let left: Vec<Landed> = left.map(|flight| Landed::released(index, flight.clone())).collect();
            drop(claims);
            landed.extend(left);
        }
        let starts = self.starts(&landed, Duration::ZERO);
        let turn = self.visit(&landed, &starts, Default::default())?;
        self.settled(&landed, &turn);
        Ok(())
    }

    fn next_due(&self) -> Option<UtcTime> {
        self.next_due
    }

    fn lease(&self) -> Duration {
        self.benches.iter().map(|bench| bench.lease).min().unwrap_or(self.rules.lease)
    }
}

/// Errors after which nothing more can be done with the store.
fn is_fatal(error: &Error) -> bool {
    use Error::{Closed, Corrupt, Deleted, NotADatabase, ReadOnly, Replaced};
    matches!(error, Closed | Corrupt(..) | ReadOnly(_) | NotADatabase(_) | Deleted(_) | Replaced(_))
}
