//! Durable tasks: claimed in batches, run on one pool for each kind, settled in batches.
//!
//! Owns the tasks in flight. One transaction stores the outcomes of all tasks that have ended and claims as many as
//! fit, so a task costs a fraction of a commit. The start of a handler is recorded by such a transaction too, once it
//! has run for 100 ms: most tasks have ended by then, and their outcome implies that they were started.

mod claiming;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gristmill_pool::{CancelToken, Pool};
use gristmill_store::lease::{HeldLeases, WorkerId};
use gristmill_store::start_log::StartLog;
use gristmill_store::tasks::{
    ClaimBatch, ClaimRequest, ClaimedTask, Disposition, ReplacementClaim, TaskFailure, UpdateResult, WorkerBatch,
};
use gristmill_store::{Error, UtcTime};

use crate::claim_ahead::ClaimAhead;
use crate::claims::Claims;
use crate::cleanup::CleanupPool;
use crate::in_flight::InFlight;
use crate::kind::TaskKind;
use crate::kind_runner::{KindRunner, PendingUpdate};
use crate::lease_renewal::{LeaseRenewer, renew_leases, task_lease_renewer};
use crate::process_groups::ProcessGroups;
use crate::signals::DispatcherSignals;
use crate::source::{EndedQueue, PollMode, PollResult, WorkSource};

/// Outcomes wait up to 5 ms while other tasks are in flight, so that one transaction settles several.
const FLUSH_INTERVAL: Duration = Duration::from_millis(5);

/// The start of a handler is recorded after this time, unless it must be recorded before the handler runs.
const RECORD_START_AFTER: Duration = Duration::from_millis(100);

/// While claimed tasks wait for a worker, the dispatcher checks for excess ones at least this often.
const WAITING_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Checkpoints of no task, or of a finished one, are kept for this time.
const ORPHAN_CHECKPOINT_RETENTION: Duration = Duration::from_secs(86_400);

/// Maximum number of old tasks deleted in one transaction.
const PRUNE_BATCH_SIZE: usize = 1_000;

#[derive(Clone, Debug)]
pub(crate) struct RunnerSettings {
    pub(crate) queues: Vec<String>,
    pub(crate) lease: Duration,
    pub(crate) max_crashes: u32,
    pub(crate) retain_finished: Option<Duration>,
    /// Clock that handlers' timeouts are measured with.
    pub(crate) clock: gristmill_pool::clock::Clock,
}

pub(crate) struct TaskSource {
    signals: Arc<DispatcherSignals>,
    worker: WorkerId,
    settings: RunnerSettings,
    runners: Vec<Arc<KindRunner>>,
    /// The pool of each runner.
    pools: Vec<Pool<Option<String>>>,
    ended: Arc<EndedQueue<PendingUpdate>>,
    cleanup: CleanupPool,
    next_due: Option<UtcTime>,
}

impl TaskSource {
    pub(crate) fn new(
        signals: Arc<DispatcherSignals>,
        worker: WorkerId,
        settings: RunnerSettings,
        kinds: Vec<TaskKind>,
    ) -> Result<Self, crate::Error> {
        let start_log = Arc::new(StartLog::new(&signals.store, &worker));
        let ended: Arc<EndedQueue<PendingUpdate>> = Arc::default();
        let (mut runners, mut pools) = (Vec::new(), Vec::new());
        for (index, kind) in kinds.into_iter().enumerate() {
            // A task claimed ahead counts towards a limit across processes and would keep others from reaching it.
            let estimate = ClaimAhead::new(kind.workers, kind.max_running.is_none());
            let mut builder = Pool::builder().name(&*kind.name).workers(kind.workers).keep_failures(0);
            builder = builder.queue_capacity(estimate.max_claimed()).clock(settings.clock.clone());
            builder = kind.timeout.into_iter().fold(builder, gristmill_pool::PoolBuilder::timeout);
            builder = kind.breaker.clone().into_iter().fold(builder, gristmill_pool::PoolBuilder::breaker);
            let runner = Arc::new(KindRunner {
                index,
                lease: kind.lease.unwrap_or(settings.lease),
                kind: Arc::new(kind),
                signals: signals.clone(),
                ended: ended.clone(),
                start_log: start_log.clone(),
                claims: Mutex::new(Claims::new(estimate)),
                summary: Mutex::default(),
            });
            let shared = runner.clone();
            pools.push(builder.build_with_callback(move |outcome| shared.on_outcome(outcome))?);
            runners.push(runner);
        }
        let cleanup = CleanupPool::new(signals.clone())?;
        Ok(TaskSource { signals, worker, settings, runners, pools, ended, cleanup, next_due: None })
    }

    /// The kinds, each with its pool.
    pub(crate) fn kinds(&self) -> Vec<(Arc<KindRunner>, Pool<Option<String>>)> {
        self.runners.iter().cloned().zip(self.pools.iter().cloned()).collect()
    }

    /// Starts to record: of handlers that have run for `time`, and of those that were started and are released.
    fn unrecorded_starts(&self, pending: &[PendingUpdate], time: Duration) -> Vec<Arc<InFlight>> {
        let mut starts: Vec<Arc<InFlight>> = Vec::new();
        for runner in &self.runners {
            starts.extend(runner.claims().unrecorded(time).cloned());
        }
        let is_unrecorded = |pending: &&PendingUpdate| {
            matches!(pending.update.disposition, Disposition::Released | Disposition::Postponed(_))
                && pending.claim.started().is_some()
                && !pending.claim.recorded.load(SeqCst)
        };
        starts.extend(pending.iter().filter(is_unrecorded).map(|pending| pending.claim.clone()));
        starts
    }

    /// Records starts, stores outcomes and claims tasks, in one transaction.
    fn apply_batch(
        &self,
        pending: &[PendingUpdate],
        starts: &[Arc<InFlight>],
        (requests, replacements): (Vec<ClaimRequest>, Vec<ReplacementClaim>),
    ) -> Result<ClaimBatch, Error> {
        let updates = pending.iter().map(|pending| pending.update.clone()).collect();
        let started = starts.iter().map(|claim| (claim.task.id, claim.task.token.clone())).collect();
        let batch =
            self.signals.store.tasks().apply(WorkerBatch { started, updates, claims: requests, replacements })?;
        for (claim, is_held) in starts.iter().zip(&batch.started) {
            claim.recorded.store(true, SeqCst);
            if !is_held && !claim.has_ended() {
                tracing::warn!(task = claim.task.id, "the claim is lost; the handler is cancelled");
                claim.cancel();
            }
        }
        Ok(batch)
    }

    /// Removes settled tasks from the claims, counts their outcomes, and submits clean-ups of dead letters.
    fn on_settled(&mut self, pending: &[PendingUpdate], batch: &ClaimBatch) {
        for runner in &self.runners {
            let of_kind = pending.iter().zip(&batch.results).filter(|(pending, _)| pending.runner == runner.index);
            let mut claims = runner.claims();
            for (PendingUpdate { update, claim, run_time, .. }, settled) in of_kind {
                claims.remove(claim);
                if let Some(time) = run_time {
                    claims.estimate.record_duration(*time);
                }
                // A task that is released for another one is not counted as released by this runner.
                let was_not_started = update.disposition == Disposition::Released && claim.started().is_none();
                if !was_not_started || self.signals.is_stopping() || *settled != UpdateResult::Done {
                    runner.summary().count(&update.disposition, *settled);
                }
                if let UpdateResult::DeadLettered(id) = *settled
                    && runner.kind.cleanup.is_some()
                {
                    self.cleanup.submit(&self.signals.store, &runner.kind, vec![id]);
                }
            }
        }
    }

    /// Stores outcomes one by one, because the store refused them together. A task whose outcome cannot be stored
    /// becomes a dead letter with the reason.
    fn settle_individually(&mut self, pending: Vec<PendingUpdate>) -> Result<usize, Error> {
        let mut rest = pending.into_iter();
        let mut settled = 0;
        while let Some(mut one) = rest.next() {
            let store = self.signals.store.clone();
            let write = |one: &PendingUpdate| store.tasks().settle_and_claim(vec![one.update.clone()], Vec::new());
            let batch = match write(&one) {
                Err(error) if !is_fatal(&error) && !error.is_transient() => {
                    let id = one.update.id;
                    tracing::error!(task = id, %error, "cannot store the outcome; the task becomes a dead letter");
                    let reason = format!("cannot store the outcome: {error}");
                    one.update.disposition =
                        Disposition::DeadLettered(TaskFailure { reason, ..TaskFailure::default() });
                    write(&one)
                }
                batch => batch,
            };
            match batch {
                Ok(batch) => self.on_settled(&[one], &batch),
                Err(error) if is_fatal(&error) || error.is_transient() => {
                    self.ended.put_back(std::iter::once(one).chain(rest).collect());
                    return Err(error);
                }
                // The dead letter cannot be stored either: recovery releases the task when its lease has expired.
                Err(_) => self.runners[one.runner].claims().remove(&one.claim),
            }
            settled += 1;
        }
        Ok(settled)
    }

    fn dispatch(&self, claimed: Vec<ClaimedTask>, claimed_at: (Instant, UtcTime)) {
        let mut rest = claimed.into_iter().peekable();
        while let Some(first) = rest.peek() {
            let kind = first.kind.clone();
            let Some(runner) = self.runners.iter().find(|runner| runner.kind.name == kind) else { return };
            let mut held = Vec::new();
            while let Some(task) = rest.next_if(|task| task.kind == kind) {
                let rank = self.settings.queues.iter().position(|queue| **queue == *task.queue);
                held.push((rank.unwrap_or(usize::MAX), Arc::new(InFlight::new(task, claimed_at))));
            }
            let mut claims = runner.claims();
            let lost: Vec<_> = held.iter().filter_map(|(rank, claim)| claims.add(*rank, claim)).collect();
            let missing = claims.missing_placeholders();
            drop(claims);
            lost.iter().for_each(|claim| claim.cancel());
            for _ in 0..missing {
                let (pool, runner) = (&self.pools[runner.index], runner.clone());
                // Fails only if the pool is closed, after the runner has ended. It is never full, because no more tasks
                // are claimed than fit.
                drop(pool.submit(move |context| runner.run_next(context)));
            }
        }
    }

    fn all_claims(&self) -> Vec<Arc<InFlight>> {
        let of_kind = |runner: &Arc<KindRunner>| runner.claims().all().values().cloned().collect::<Vec<_>>();
        self.runners.iter().flat_map(of_kind).collect()
    }

    /// The leases of this worker, which recovery does not release. Only the dispatcher claims and settles, so they do
    /// not change during recovery.
    fn held_leases(&self) -> HeldLeases {
        let held = self.all_claims();
        HeldLeases::new(&self.worker, held.iter().map(|claim| (claim.task.id, &claim.task.token)))
    }

    /// Sets the number of outcomes that are stored without waiting for more: half of the tasks in flight.
    fn set_threshold(&self) {
        let in_flight: usize = self.runners.iter().map(|runner| runner.in_flight()).sum();
        self.ended.set_threshold((in_flight / 2).max(1));
    }
}

impl WorkSource for TaskSource {
    fn recover(&mut self) -> Result<(), Error> {
        // Renew this worker's leases first: after a suspend, or when the clock was set forward, they have expired by
        // the wall clock, which is all that other processes see.
        for runner in &self.runners {
            renew_leases(&self.signals.store, runner, |_| true)?;
        }
        // Kill orphans before other workers can claim their tasks, and before cancelled ones free their unique keys.
        ProcessGroups::for_database(self.signals.store.path()).kill_orphans(None);
        let recovered = self.signals.store.tasks().recover_by(self.settings.max_crashes, self.held_leases())?;
        if recovered.freed > 0 || !recovered.poisoned.is_empty() {
            let (freed, poisoned) = (recovered.freed, recovered.poisoned.len());
            tracing::warn!(freed, poisoned, "released tasks of workers that died or did not renew leases");
        }
        Ok(())
    }

    fn poll(&mut self, mode: PollMode) -> Result<PollResult, Error> {
        let claims = mode != PollMode::SettleOnly;
        let mut pending = self.ended.take();
        self.release_excess(&mut pending);
        let requests = if claims { self.claim_requests(&pending) } else { Default::default() };
        let starts = self.unrecorded_starts(&pending, RECORD_START_AFTER);
        if pending.is_empty() && requests.0.is_empty() && requests.1.is_empty() && starts.is_empty() {
            return Ok(PollResult { settled: 0, claimed: 0, polled: true });
        }
        // Read before the transaction, so that a lease is never considered younger than it is.
        let now = (Instant::now(), self.signals.store.now());
        let mut batch = match self.apply_batch(&pending, &starts, requests) {
            Ok(batch) => batch,
            // Nothing was written: the outcomes are stored later, and the leases are renewed until then.
            Err(error) if is_fatal(&error) || error.is_transient() || pending.is_empty() => {
                self.ended.put_back(pending);
                return Err(error);
            }
            Err(error) => {
                tracing::error!(%error, "the store refused a batch of outcomes; storing them one by one");
                let settled = self.settle_individually(pending)?;
                self.set_threshold();
                return Ok(PollResult { settled, claimed: 0, polled: false });
            }
        };
        self.on_settled(&pending, &batch);
        if let Some(due) = batch.next_due {
            self.next_due = Some(self.next_due.map_or(due, |earlier| earlier.min(due)));
        }
        let (claimed, replaced) = (std::mem::take(&mut batch.claimed), std::mem::take(&mut batch.replacements));
        let count = claimed.len() + replaced.len();
        self.dispatch(claimed, now);
        if !replaced.is_empty() {
            let kinds: Vec<Arc<str>> = replaced.iter().map(|task| task.kind.clone()).collect();
            self.dispatch(replaced, now);
            self.release_replaced(&kinds);
        }
        let polled = PollResult { settled: pending.len(), claimed: count, polled: true };
        self.set_threshold();
        Ok(polled)
    }

    fn maintain(&mut self) -> Result<bool, Error> {
        let store = &self.signals.store;
        for runner in self.runners.iter().filter(|runner| runner.kind.cleanup.is_some()) {
            let left = store.dead_letters().list_cleanup_pending(&[runner.kind.name.as_ref().to_owned()], 100)?;
            self.cleanup.submit(store, &runner.kind, left.iter().map(|dead_letter| dead_letter.id).collect());
        }
        store.checkpoints().delete_orphans(store.now().minus(ORPHAN_CHECKPOINT_RETENTION))?;
        let Some(retention) = self.settings.retain_finished else { return Ok(false) };
        Ok(store.tasks().prune(store.now().minus(retention), PRUNE_BATCH_SIZE)? == PRUNE_BATCH_SIZE)
    }

    fn has_waiting(&self) -> Result<bool, Error> {
        let kinds: Vec<&str> = self.runners.iter().map(|runner| runner.kind.name()).collect();
        self.signals.store.tasks().has_waiting(&self.settings.queues, &kinds)
    }

    fn in_flight(&self) -> usize {
        self.runners.iter().map(|runner| runner.in_flight()).sum()
    }

    fn wait_handlers(&self, deadline: Instant) {
        for pool in &self.pools {
            pool.wait_idle_until(&CancelToken::new(), deadline.saturating_duration_since(Instant::now()));
        }
    }

    fn apply_cancellations(&mut self) -> Result<(), Error> {
        let mut released = Vec::new();
        for (id, token) in self.signals.store.tasks().cancel_requests()? {
            for runner in &self.runners {
                let mut claims = runner.claims();
                let Some(claim) = claims.all().get(&id).filter(|claim| claim.task.token == token) else {
                    continue;
                };
                let claim = claim.clone();
                // A task that was not started is settled without waiting for a worker.
                if claims.remove_waiting(&claim) {
                    released.push(runner.released(claim.clone()));
                }
                // Without the lock, because callbacks of the handler run.
                drop(claims);
                claim.request_cancel();
            }
        }
        self.ended.put_back(released);
        Ok(())
    }

    fn flush_after(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut flush_after = match self.ended.len() {
            0 => None,
            len if self.ended.is_due(len) => return Some(Duration::ZERO),
            _ => Some(FLUSH_INTERVAL),
        };
        let mut shorten = |time: Duration| flush_after = Some(flush_after.map_or(time, |sooner| sooner.min(time)));
        for runner in &self.runners {
            let claims = runner.claims();
            if let Some(due) = claims.next_record(RECORD_START_AFTER) {
                shorten(due.saturating_duration_since(now));
            }
            if claims.waiting() > 0 {
                shorten(WAITING_CHECK_INTERVAL);
            }
        }
        flush_after
    }

    fn cancel_all(&mut self) {
        // Without the lock, because callbacks of the handlers run.
        self.all_claims().iter().for_each(|claim| claim.cancel());
    }

    fn release_all(&mut self) -> Result<(), Error> {
        self.cancel_all();
        let mut pending = self.ended.take();
        for runner in &self.runners {
            let claims = runner.claims();
            let left =
                claims.all().values().filter(|claim| !pending.iter().any(|pending| Arc::ptr_eq(&pending.claim, claim)));
            let left: Vec<_> = left.map(|claim| runner.released(claim.clone())).collect();
            drop(claims);
            pending.extend(left);
        }
        let starts = self.unrecorded_starts(&pending, Duration::ZERO);
        let batch = self.apply_batch(&pending, &starts, Default::default())?;
        self.on_settled(&pending, &batch);
        Ok(())
    }

    fn next_due(&self) -> Option<UtcTime> {
        self.next_due
    }

    fn lease_renewers(&self) -> Vec<LeaseRenewer> {
        self.runners.iter().map(|runner| task_lease_renewer(self.signals.store.clone(), runner.clone())).collect()
    }

    fn lease(&self) -> Duration {
        self.runners.iter().map(|runner| runner.lease).min().unwrap_or(self.settings.lease)
    }
}

/// Whether the store cannot be used any more after this error.
fn is_fatal(error: &Error) -> bool {
    use Error::{Closed, Corrupt, Deleted, NotADatabase, ReadOnly, Replaced};
    matches!(error, Closed | Corrupt(..) | ReadOnly(_) | NotADatabase(_) | Deleted(_) | Replaced(_))
}
