//! Durable tasks: claimed in batches, run on one pool for each kind, settled in batches.
//!
//! Owns the tasks in flight. One transaction stores the outcomes of all tasks that have ended and claims as many as
//! fit, so a task costs a fraction of a commit. The start of a handler is recorded by such a transaction too, once it
//! has run for 100 ms: most tasks have ended by then, and their outcome implies that they were started.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gristmill_pool::breaker::{Breaker, BreakerState};
use gristmill_pool::{Pool, Task};
use gristmill_store::lease::{HeldLeases, Token, WorkerId};
use gristmill_store::start_log::StartLog;
use gristmill_store::tasks::{
    ClaimBatch, ClaimRequest, ClaimedTask, Disposition, ReplacementClaim, TaskFailure, UpdateResult, WorkerBatch,
};
use gristmill_store::{Error, UtcTime};

use crate::claim_ahead::ClaimAhead;
use crate::claims::CrashCounts;
use crate::cleanup::CleanupPool;
use crate::execution::{CompletionQueue, Execution, PendingUpdate};
use crate::in_flight::InFlight;
use crate::kind::TaskKind;
use crate::kind_runner::KindRunner;
use crate::lease_renewal::{TaskLeaseRenewer, renew_leases};
use crate::process_groups::ProcessGroups;
use crate::signals::DispatcherSignals;
use crate::source::{LeaseRenewer, PollMode, PollResult, WorkSource};

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

/// Interval between two checks whether an open breaker has closed.
const BREAKER_POLL_INTERVAL: Duration = Duration::from_millis(200);

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
    estimates: Vec<ClaimAhead>,
    completions: Arc<CompletionQueue>,
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
        let mut runners = Vec::with_capacity(kinds.len());
        let mut estimates = Vec::with_capacity(kinds.len());
        for kind in kinds {
            // A task claimed ahead counts towards a limit across processes and would keep others from reaching it.
            let estimate = ClaimAhead::new(kind.workers, kind.max_running.is_none());
            let builder = Pool::builder().name(&*kind.name).workers(kind.workers).keep_failures(0);
            let pool = builder.queue_capacity(estimate.max_claimed()).clock(settings.clock.clone()).build()?;
            let lease = kind.lease.unwrap_or(settings.lease);
            runners.push(Arc::new(KindRunner::new(kind, pool, lease, start_log.clone())));
            estimates.push(estimate);
        }
        let completions = Arc::new(CompletionQueue::default());
        let cleanup = CleanupPool::new(signals.clone())?;
        Ok(TaskSource { signals, worker, settings, runners, estimates, completions, cleanup, next_due: None })
    }

    pub(crate) fn runners(&self) -> &[Arc<KindRunner>] {
        &self.runners
    }

    pub(crate) fn lease_renewers(&self) -> Vec<Box<dyn LeaseRenewer>> {
        let renewer = |runner: &Arc<KindRunner>| -> Box<dyn LeaseRenewer> {
            Box::new(TaskLeaseRenewer::new(self.signals.store.clone(), runner.clone()))
        };
        self.runners.iter().map(renewer).collect()
    }

    /// Releases tasks that wait for a worker: all of them when the runner stops, otherwise those above the capacity.
    /// Appends them to `pending`.
    fn release_excess(&self, pending: &mut Vec<PendingUpdate>) {
        for (index, (runner, estimate)) in self.runners.iter().zip(&self.estimates).enumerate() {
            let mut claims = runner.claims();
            if claims.waiting() == 0 {
                continue;
            }
            let count = if self.signals.is_stopping() {
                claims.waiting()
            } else {
                let settled = pending.iter().filter(|pending| pending.runner == index).count();
                let in_flight = claims.all().len().saturating_sub(settled);
                let capacity = estimate.capacity(claims.busy_for(runner.kind.workers));
                // Only if a task has waited: the estimate changes with each slow run, and most tasks start soon.
                let is_over = in_flight > estimate.release_above(capacity);
                if is_over && claims.has_waited(WAITING_CHECK_INTERVAL) { in_flight - capacity } else { 0 }
            };
            let released = claims.take_least_urgent(count);
            pending.extend(released.into_iter().map(|claim| PendingUpdate::released(index, claim)));
        }
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
                && !pending.claim.is_recorded()
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
            claim.set_recorded();
            if !is_held && !claim.has_ended() {
                tracing::warn!(task = claim.task.id, "the claim is lost; the handler is cancelled");
                claim.cancel_token.cancel();
            }
        }
        Ok(batch)
    }

    /// Number of claimed tasks of a kind, and of those whose worker crashed before. Tasks in `pending` do not count:
    /// they are settled by the next transaction.
    fn unsettled(&self, index: usize, pending: &[PendingUpdate]) -> (usize, CrashCounts) {
        let claims = self.runners[index].claims();
        let (mut in_flight, mut crashes) = (claims.all().len(), claims.crash_counts());
        for PendingUpdate { claim, .. } in pending.iter().filter(|pending| pending.runner == index) {
            let held = claims.all().get(&claim.task.id);
            if held.is_some_and(|held| Arc::ptr_eq(held, claim)) {
                in_flight -= 1;
                crashes.remove(claim);
            }
        }
        (in_flight, crashes)
    }

    /// Requests for as many tasks as fit, and for more urgent tasks that replace waiting ones. Sets `next_due` for
    /// kinds that must wait for their breaker.
    fn claim_requests(&mut self, pending: &[PendingUpdate]) -> (Vec<ClaimRequest>, Vec<ReplacementClaim>) {
        let (mut requests, mut replacements) = (Vec::new(), Vec::new());
        self.next_due = None;
        let unsettled: Vec<(usize, CrashCounts)> =
            (0..self.runners.len()).map(|index| self.unsettled(index, pending)).collect();
        // One at a time in the whole process: if two ran together, it would be unknown which of them crashed it.
        let crashed_often: usize = unsettled.iter().map(|(_, crashes)| crashes.crashed_often).sum();
        for ((runner, estimate), (in_flight, crashes)) in self.runners.iter().zip(&self.estimates).zip(unsettled) {
            let claims = runner.claims();
            let capacity = estimate.capacity(claims.busy_for(runner.kind.workers));
            // Tasks that free workers are about to start are not replaced.
            let replaceable = claims.waiting().min(in_flight.saturating_sub(runner.kind.workers));
            let (waiting, least_urgent) = (claims.waiting(), claims.least_urgent());
            drop(claims);
            let mut limit = capacity.saturating_sub(in_flight);
            let mut may_replace = true;
            match runner.kind.breaker.as_ref().map(|breaker| breaker.stats().state) {
                // Claimed tasks would only be postponed.
                Some(BreakerState::Open) => {
                    (limit, may_replace) = (0, false);
                    self.next_due = Some(self.signals.store.now().plus(BREAKER_POLL_INTERVAL));
                }
                // Claims one task, which becomes the probe.
                Some(BreakerState::HalfOpen) => {
                    let is_probe_wanted =
                        waiting == 0 && runner.kind.breaker.as_ref().is_some_and(Breaker::would_permit);
                    (limit, may_replace) = (limit.min(usize::from(is_probe_wanted)), false);
                    if !is_probe_wanted {
                        self.next_due = Some(self.signals.store.now().plus(BREAKER_POLL_INTERVAL));
                    }
                }
                Some(BreakerState::Closed) | None => {}
            }
            let request = |queue: &String, limit: usize, token: &Token| ClaimRequest {
                queue: queue.clone(),
                kind: runner.kind.name.as_ref().to_owned(),
                limit,
                max_running: runner.kind.max_running,
                max_crashed_once: runner.kind.workers.saturating_sub(crashes.crashed_once),
                max_crashed_often: 1usize.saturating_sub(crashed_often),
                lease: runner.lease,
                token: token.clone(),
            };
            if limit > 0 {
                // One token for all queues: they share the limit.
                let token = self.worker.token();
                requests.extend(self.settings.queues.iter().map(|queue| request(queue, limit, &token)));
            }
            let extra = replaceable.min(estimate.max_claimed().saturating_sub(in_flight + limit));
            if let Some((rank, Reverse(priority), _)) = least_urgent.filter(|_| may_replace && extra > 0) {
                let token = self.worker.token();
                replacements.extend(self.settings.queues.iter().take(rank + 1).enumerate().map(|(nth, queue)| {
                    ReplacementClaim {
                        claim: request(queue, extra, &token),
                        above_priority: (nth == rank).then_some(priority),
                    }
                }));
            }
        }
        (requests, replacements)
    }

    /// Releases the least urgent waiting tasks, one for each replacement that was claimed, where more tasks are claimed
    /// than fit. `replaced`: the kind of each replacement.
    fn release_replaced(&self, replaced: &[Arc<str>]) {
        let mut released = Vec::new();
        for (index, (runner, estimate)) in self.runners.iter().zip(&self.estimates).enumerate() {
            let replaced = replaced.iter().filter(|kind| **kind == runner.kind.name).count();
            let mut claims = runner.claims();
            let (in_flight, capacity) = (claims.all().len(), estimate.capacity(claims.busy_for(runner.kind.workers)));
            if in_flight > estimate.release_above(capacity) {
                let held = claims.take_least_urgent(replaced.min(in_flight - capacity));
                released.extend(held.into_iter().map(|claim| PendingUpdate::released(index, claim)));
            }
        }
        self.completions.put_back(released);
    }

    /// Removes settled tasks from the claims, counts their outcomes, and submits clean-ups of dead letters.
    fn on_settled(&mut self, pending: &[PendingUpdate], batch: &ClaimBatch) {
        for (index, (runner, estimate)) in self.runners.iter().zip(&mut self.estimates).enumerate() {
            let of_kind = pending.iter().zip(&batch.results).filter(|(pending, _)| pending.runner == index);
            let mut claims = runner.claims();
            for (PendingUpdate { update, claim, run_time, .. }, settled) in of_kind {
                claims.remove(claim);
                if let Some(time) = run_time {
                    estimate.record_duration(*time);
                }
                // A task that is released for another one is not counted as released by this runner.
                let was_not_started = update.disposition == Disposition::Released && claim.started().is_none();
                if !was_not_started || self.signals.is_stopping() || *settled != UpdateResult::Done {
                    runner.counts.count(&update.disposition, *settled);
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
                    self.completions.put_back(std::iter::once(one).chain(rest).collect());
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
            let Some(index) = self.runners.iter().position(|runner| runner.kind.name == kind) else { return };
            let runner = &self.runners[index];
            let mut held = Vec::new();
            while let Some(task) = rest.next_if(|task| task.kind == kind) {
                let rank = self.settings.queues.iter().position(|queue| **queue == *task.queue);
                held.push((rank.unwrap_or(usize::MAX), Arc::new(InFlight::new(task, claimed_at))));
            }
            let mut claims = runner.claims();
            held.iter().for_each(|(rank, claim)| claims.add(*rank, claim));
            let missing = claims.missing_placeholders();
            drop(claims);
            for _ in 0..missing {
                let (signals, completions, runner) = (self.signals.clone(), self.completions.clone(), runner.clone());
                let timeout = runner.kind.timeout;
                let pool = runner.clone();
                let mut task = Task::new(move |context| {
                    let Some(claim) = runner.claims().next() else { return Ok(()) };
                    Execution { signals, completions, runner, index, claim }.run(context)
                });
                if let Some(limit) = timeout {
                    task = task.timeout(limit);
                }
                // Fails only if the pool is closed, after the runner has ended. It is never full, because no more tasks
                // are claimed than fit.
                drop(pool.pool.submit_task(task));
            }
        }
    }

    /// The leases of this worker, which recovery does not release. Only the dispatcher claims and settles, so they do
    /// not change during recovery.
    fn held_leases(&self) -> HeldLeases {
        let held = self.runners.iter().flat_map(|runner| {
            let claims = runner.claims();
            claims.all().values().cloned().collect::<Vec<_>>()
        });
        let held: Vec<Arc<InFlight>> = held.collect();
        HeldLeases::new(&self.worker, held.iter().map(|claim| (claim.task.id, &claim.task.token)))
    }

    /// Sets the number of outcomes that are stored without waiting for more: half of the tasks in flight.
    fn set_threshold(&self) {
        let in_flight: usize = self.runners.iter().map(|runner| runner.in_flight()).sum();
        self.completions.threshold.store((in_flight / 2).max(1), Ordering::SeqCst);
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
        let mut pending = self.completions.take();
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
                self.completions.put_back(pending);
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

    fn running(&self) -> usize {
        let waiting: usize = self.runners.iter().map(|runner| runner.claims().waiting()).sum();
        self.in_flight().saturating_sub(self.completions.len() + waiting)
    }

    fn apply_cancellations(&mut self) -> Result<(), Error> {
        let mut released = Vec::new();
        for (id, token) in self.signals.store.tasks().cancel_requests()? {
            for (index, runner) in self.runners.iter().enumerate() {
                let mut claims = runner.claims();
                let Some(claim) = claims.all().get(&id).filter(|claim| claim.task.token == token) else {
                    continue;
                };
                let claim = claim.clone();
                claim.request_cancel();
                // A task that was not started is settled without waiting for a worker.
                if claims.remove_waiting(&claim) {
                    released.push(PendingUpdate::released(index, claim));
                }
            }
        }
        self.completions.put_back(released);
        Ok(())
    }

    fn flush_after(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut flush_after = match self.completions.len() {
            0 => None,
            len if len >= self.completions.threshold.load(Ordering::SeqCst) => return Some(Duration::ZERO),
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
        for runner in &self.runners {
            runner.claims().all().values().for_each(|claim| claim.cancel_token.cancel());
        }
    }

    fn release_all(&mut self) -> Result<(), Error> {
        self.cancel_all();
        let mut pending = self.completions.take();
        for (index, runner) in self.runners.iter().enumerate() {
            let claims = runner.claims();
            let left =
                claims.all().values().filter(|claim| !pending.iter().any(|pending| Arc::ptr_eq(&pending.claim, claim)));
            let left: Vec<_> = left.map(|claim| PendingUpdate::released(index, claim.clone())).collect();
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

    fn lease(&self) -> Duration {
        self.runners.iter().map(|runner| runner.lease).min().unwrap_or(self.settings.lease)
    }
}

/// Whether the store cannot be used any more after this error.
fn is_fatal(error: &Error) -> bool {
    use Error::{Closed, Corrupt, Deleted, NotADatabase, ReadOnly, Replaced};
    matches!(error, Closed | Corrupt(..) | ReadOnly(_) | NotADatabase(_) | Deleted(_) | Replaced(_))
}
