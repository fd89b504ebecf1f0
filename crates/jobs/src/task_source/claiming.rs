//! How many tasks are claimed and which are released: the capacity of each kind, its breaker, more urgent tasks.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use gristmill_pool::breaker::{Breaker, BreakerState};
use gristmill_store::lease::Token;
use gristmill_store::tasks::{ClaimRequest, ReplacementClaim};

use super::{TaskSource, WAITING_CHECK_INTERVAL};
use crate::claims::CrashCounts;
use crate::kind_runner::{KindRunner, PendingUpdate};

/// Interval between two checks whether an open breaker has closed.
const BREAKER_POLL_INTERVAL: Duration = Duration::from_millis(200);

impl TaskSource {
    /// Releases tasks that wait for a worker: all of them when the runner stops, otherwise those above the capacity.
    /// Appends them to `pending`.
    pub(super) fn release_excess(&self, pending: &mut Vec<PendingUpdate>) {
        for runner in &self.runners {
            let mut claims = runner.claims();
            if claims.waiting() == 0 {
                continue;
            }
            let count = if self.signals.is_stopping() {
                claims.waiting()
            } else {
                let settled = pending.iter().filter(|pending| pending.runner == runner.index).count();
                let in_flight = claims.all().len().saturating_sub(settled);
                let capacity = claims.capacity();
                // Only if a task has waited: the estimate changes with each slow run, and most tasks start soon.
                let is_over = in_flight > claims.estimate.release_above(capacity);
                if is_over && claims.has_waited(WAITING_CHECK_INTERVAL) { in_flight - capacity } else { 0 }
            };
            let released = claims.take_least_urgent(count);
            pending.extend(released.into_iter().map(|claim| runner.released(claim)));
        }
    }

    /// Number of claimed tasks of a kind, and of those whose worker crashed before. Tasks in `pending` do not count:
    /// they are settled by the next transaction.
    fn unsettled(runner: &KindRunner, pending: &[PendingUpdate]) -> (usize, CrashCounts) {
        let claims = runner.claims();
        let (mut in_flight, mut crashes) = (claims.all().len(), claims.crash_counts());
        for PendingUpdate { claim, .. } in pending.iter().filter(|pending| pending.runner == runner.index) {
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
    pub(super) fn claim_requests(&mut self, pending: &[PendingUpdate]) -> (Vec<ClaimRequest>, Vec<ReplacementClaim>) {
        let (mut requests, mut replacements) = (Vec::new(), Vec::new());
        self.next_due = None;
        let unsettled: Vec<(usize, CrashCounts)> =
            self.runners.iter().map(|runner| Self::unsettled(runner, pending)).collect();
        // One at a time in the whole process: if two ran together, it would be unknown which of them crashed it.
        let crashed_often: usize = unsettled.iter().map(|(_, crashes)| crashes.crashed_often).sum();
        for (runner, (in_flight, crashes)) in self.runners.iter().zip(unsettled) {
            let claims = runner.claims();
            let capacity = claims.capacity();
            // Tasks that free workers are about to start are not replaced.
            let replaceable = claims.waiting().min(in_flight.saturating_sub(runner.kind.workers));
            let (waiting, least_urgent) = (claims.waiting(), claims.least_urgent());
            let max_claimed = claims.estimate.max_claimed();
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
            let extra = replaceable.min(max_claimed.saturating_sub(in_flight + limit));
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
    pub(super) fn release_replaced(&self, replaced: &[Arc<str>]) {
        let mut released = Vec::new();
        for runner in &self.runners {
            let replaced = replaced.iter().filter(|kind| **kind == runner.kind.name).count();
            let mut claims = runner.claims();
            let (in_flight, capacity) = (claims.all().len(), claims.capacity());
            if in_flight > claims.estimate.release_above(capacity) {
                let held = claims.take_least_urgent(replaced.min(in_flight - capacity));
                released.extend(held.into_iter().map(|claim| runner.released(claim)));
            }
        }
        self.ended.put_back(released);
    }
}
