//! Matches redeliveries to runs that this consumer still has, and to starts that it counts.
//!
//! When a channel is lost, its runs continue. The broker redelivers their messages, and each redelivery replaces the
//! lost delivery of its run: the message does not run twice at once, and the outcome of its run is used.

use super::{Dispatcher, InFlight};
use crate::{
    fingerprint::{Fingerprint, fingerprint},
    orphans::Orphan,
};
use gristmill_pool::TaskError;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Place of a delivery whose channel was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPlace {
    /// In the pool, by the number of its run.
    Worker(u64),
    /// In a follow-up after its handler, by its number.
    FollowUp(u64),
}

/// Outcome of a run that ended before its message was redelivered.
pub(super) enum RunOutcome {
    /// Handled or republished: only to be acknowledged.
    Done,
    Failed(Box<InFlight>, Arc<TaskError>),
}

impl InFlight {
    pub(super) fn fingerprint(&mut self) -> &Fingerprint {
        self.fingerprint.get_or_insert_with(|| fingerprint(&self.delivery, self.offset))
    }
}

impl Dispatcher {
    /// Matches a delivery to an earlier one of the same message. Returns none if a run takes it over.
    pub(super) fn match_redelivery(&mut self, mut message: InFlight) -> Option<InFlight> {
        // A stream does not mark redeliveries: the first deliveries may have been in flight when a process ended.
        let is_known = match message.offset {
            Some(_) => !self.orphans.is_empty() || message.tag <= u64::from(self.config.sizing.prefetch),
            None => message.delivery.is_redelivered(),
        };
        let may_matter = !self.orphans.is_empty() || self.starts.store.is_some();
        if !is_known || !may_matter {
            return Some(message);
        }
        let fingerprint = *message.fingerprint();
        message = self.adopt(message)?;
        // An unreadable message is never started.
        if message.delivery.unreadable_properties().is_some() {
            return Some(message);
        }
        message.run = self.starts.assign_row(fingerprint);
        message.suspect = self.starts.is_suspect(message.run);
        let failed = self.starts.failed_attempts(message.run);
        if failed > message.delivery.failed_attempts() {
            message.delivery = message.delivery.with_failures(failed);
        }
        Some(message)
    }

    /// Gives the delivery to the run that it belongs to, or returns it if there is none.
    pub(super) fn adopt(&mut self, mut message: InFlight) -> Option<InFlight> {
        for ended in self.orphans.take_expired(Instant::now()) {
            if let RunOutcome::Failed(run, _) = ended {
                self.starts.release_row(run.run);
            }
        }
        match self.orphans.adopt(message.fingerprint()) {
            Some(Orphan::Running(place)) => return self.attach_to_run(place, message),
            Some(Orphan::Ended(RunOutcome::Done, _)) => self.finish(&InFlight { key: None, ..message }),
            Some(Orphan::Ended(RunOutcome::Failed(run, error), _)) => {
                self.fail_redelivered(*run, message, &error);
            }
            None => return Some(message),
        }
        None
    }

    /// Time until the next attempt of a message that failed in place before a restart. Reserves its key; if the key is
    /// in use, the message waits its turn instead.
    pub(super) fn remaining_retry_delay(&mut self, message: &InFlight) -> Option<Duration> {
        let failed_ago = self.starts.failed_ago(message.run)?;
        let delay = self.config.retry.delay(message.delivery.failed_attempts()).checked_sub(failed_ago)?;
        let is_waiting = !delay.is_zero() && !message.delivery.expires_within(delay);
        (is_waiting && message.key.as_ref().is_none_or(|key| self.keyed_queue.reserve_key(key))).then_some(delay)
    }

    /// Replaces the lost delivery of a run, or returns the delivery if the run is gone.
    fn attach_to_run(&mut self, place: RunPlace, message: InFlight) -> Option<InFlight> {
        let run = match place {
            RunPlace::Worker(number) => self.in_pool.get_mut(&number),
            RunPlace::FollowUp(number) => self.follow_ups.messages.get_mut(&number).map(|(message, _)| message),
        };
        let Some(run) = run else { return Some(message) };
        tracing::debug!(
            consumer = self.config.name,
            id = run.delivery.message_id(),
            "a message was redelivered while it runs here; its run continues"
        );
        (run.tag, run.cancel) = (message.tag, message.cancel);
        run.delivery = match run.delivery.failed_attempts() {
            failed if failed > message.delivery.failed_attempts() => message.delivery.with_failures(failed),
            _ => message.delivery,
        };
        None
    }

    /// Settles a run that failed while there was no channel.
    fn fail_redelivered(&mut self, run: InFlight, message: InFlight, error: &TaskError) {
        let mut message = InFlight { tag: message.tag, cancel: message.cancel, suspect: false, ..run };
        if message.key.as_ref().is_some_and(|key| !self.keyed_queue.reserve_key(key)) {
            // Another message of its key runs already. Only a retry in place needs the key, and waits until it is free.
            let failed = message.delivery.failed_attempts().saturating_add(1);
            if self.config.in_place && failed < self.config.retry.max_attempts() {
                message.delivery = message.delivery.with_failures(failed);
                return self.keyed_queue.push(message.key.clone(), message);
            }
            message.key = None;
        }
        self.failed(message, error);
    }

    /// Keeps the outcome of a run whose channel was lost for its redelivery. Returns false if the channel is not lost.
    pub(super) fn keep_outcome(
        &mut self,
        message: &InFlight,
        place: RunPlace,
        outcome: impl FnOnce() -> RunOutcome,
    ) -> bool {
        let is_lost = message.cancel.is_cancelled();
        if is_lost && let Some(fingerprint) = &message.fingerprint {
            self.orphans.ended(fingerprint, &place, Some(outcome()), Instant::now());
        }
        is_lost
    }

    /// Forgets a run without an outcome: the redelivery of its message starts a new run.
    pub(super) fn forget_run(&mut self, message: &InFlight, place: RunPlace) {
        if let Some(fingerprint) = &message.fingerprint {
            self.orphans.ended(fingerprint, &place, None, Instant::now());
        }
    }

    /// Orphans all runs, because their channel is lost.
    pub(super) fn orphan_all(&mut self) {
        let workers = self.in_pool.iter_mut().map(|(number, message)| (RunPlace::Worker(*number), message));
        let follow_ups = self.follow_ups.messages().map(|(number, message)| (RunPlace::FollowUp(number), message));
        let running: Vec<_> =
            workers.chain(follow_ups).map(|(place, message)| (*message.fingerprint(), place)).collect();
        self.orphans.detach(running.into_iter());
    }
}
