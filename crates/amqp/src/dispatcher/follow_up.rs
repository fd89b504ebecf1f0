//! Follow-ups after a handler: a message is republished, or waits in place for another attempt.
//!
//! Each follow-up is a task that knows its number. The message stays here, where a redelivery can replace its delivery.

use super::{
    Dispatcher, InFlight,
    redelivery::{RunOutcome, RunPlace},
};
use crate::{
    reconnect::deadline_after,
    republish::{Reason, RetryRequest},
};
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinSet};

/// Action on a message after its handler.
#[derive(Clone)]
pub(super) enum FollowUp {
    RetryLater {
        why: String,
        delay: Duration,
    },
    /// Like `RetryLater`, without using an attempt.
    Postpone {
        why: String,
        delay: Duration,
    },
    DeadLetter {
        reason: Reason,
        why: String,
    },
    /// Waits in place: it keeps its key and occupies no worker.
    WaitInPlace,
}

/// A finished follow-up, and whether the republished message was confirmed.
#[derive(Clone, Copy)]
pub(super) struct FollowUpEnd {
    number: u64,
    confirmed: bool,
}

#[derive(Default)]
pub(super) struct FollowUps {
    last: u64,
    pub(super) messages: HashMap<u64, (InFlight, FollowUp)>,
    /// Republications in progress.
    pub(super) moves: JoinSet<FollowUpEnd>,
    delayed_retries: JoinSet<FollowUpEnd>,
    /// Writes of failed attempts that are in progress.
    pub(super) records: JoinSet<()>,
}

impl FollowUps {
    pub(super) async fn next(&mut self) -> FollowUpEnd {
        tokio::select! {
            end = next_of(&mut self.moves) => end,
            end = next_of(&mut self.delayed_retries) => end,
        }
    }

    pub(super) fn messages(&mut self) -> impl Iterator<Item = (u64, &mut InFlight)> {
        self.messages.iter_mut().map(|(number, (message, _))| (*number, message))
    }

    /// Ends all waits in place and returns their messages.
    pub(super) fn cancel_waits_in_place(&mut self) -> Vec<InFlight> {
        self.delayed_retries.abort_all();
        let waiting = self.messages.extract_if(|_, (_, follow_up)| matches!(follow_up, FollowUp::WaitInPlace));
        waiting.map(|(_, (message, _))| message).collect()
    }
}

impl Dispatcher {
    pub(super) fn start_follow_up(&mut self, message: InFlight, follow_up: FollowUp) {
        self.follow_ups.last += 1;
        let number = self.follow_ups.last;
        self.follow_ups.messages.insert(number, (message.clone(), follow_up.clone()));
        let (republisher, counters) = (self.republisher.clone(), Arc::clone(&self.counters));
        let sink_failed_since = message.sink_failed_since();
        let failed_too_long = message.sink_failures.failed_too_long;
        let failed_alone = message.sink_failures.failed_alone;
        let InFlight { delivery, cancel, .. } = message;
        let failed_before = delivery.failed_attempts();
        let (why, delay, failed, sink_failed_since) = match follow_up {
            // A message at fault because it failed for too long stays at fault.
            FollowUp::RetryLater { why, delay } => {
                (why, delay, failed_before.saturating_add(1), sink_failed_since.filter(|_| failed_too_long))
            }
            FollowUp::Postpone { why, delay } => (why, delay, failed_before, sink_failed_since),
            FollowUp::DeadLetter { reason, why } => {
                self.follow_ups.moves.spawn(async move {
                    let confirmed = republisher.dead_letter(&delivery, reason, &why, &cancel).await;
                    if confirmed {
                        counters.dead_lettered.fetch_add(1, Relaxed);
                    }
                    FollowUpEnd { number, confirmed }
                });
                return;
            }
            // Only `wait_in_place` starts a wait.
            FollowUp::WaitInPlace => return,
        };
        let request = RetryRequest { why, delay, failed, sink_failed_since, failed_alone };
        self.follow_ups.moves.spawn(async move {
            let confirmed = republisher.retry_later(&delivery, request, &cancel).await;
            FollowUpEnd { number, confirmed }
        });
    }

    /// Makes a message wait in place for its next attempt, after its failure is recorded.
    pub(super) fn retry_in_place(&mut self, mut message: InFlight, why: String, delay: Duration) {
        message.delivery = message.delivery.with_failures(message.delivery.failed_attempts().saturating_add(1));
        let failed = message.delivery.failed_attempts();
        let fingerprint = *message.fingerprint();
        message.run = message.run.or_else(|| self.starts.assign_row(fingerprint));
        let record = message.run.and_then(|run| Some((self.starts.attempt_failed(run, failed)?, run)));
        let record = record.map(|(store, run)| move || store.record_failure(run, failed, why));
        self.wait_in_place(message, delay, record);
    }

    /// Makes a message wait in place, after `record` has run on a thread where it may block.
    pub(super) fn wait_in_place<F>(&mut self, message: InFlight, delay: Duration, record: Option<F>)
    where
        F: FnOnce() + Send + 'static,
    {
        self.follow_ups.last += 1;
        let number = self.follow_ups.last;
        self.follow_ups.messages.insert(number, (message, FollowUp::WaitInPlace));
        while self.follow_ups.records.try_join_next().is_some() {}
        let is_recorded = record.map(|record| {
            let (recorded, is_recorded) = oneshot::channel();
            self.follow_ups.records.spawn_blocking(move || {
                record();
                let _ = recorded.send(());
            });
            is_recorded
        });
        let due = deadline_after(delay);
        self.follow_ups.delayed_retries.spawn(async move {
            // Recorded before the next start is counted.
            if let Some(is_recorded) = is_recorded {
                let _ = is_recorded.await;
            }
            tokio::time::sleep_until(due).await;
            FollowUpEnd { number, confirmed: false }
        });
    }

    pub(super) fn on_follow_up_end(&mut self, end: FollowUpEnd) {
        let FollowUpEnd { number, confirmed } = end;
        let Some((message, follow_up)) = self.follow_ups.messages.remove(&number) else { return };
        let is_lost = message.cancel.is_cancelled();
        let place = RunPlace::FollowUp(number);
        match (follow_up, confirmed) {
            (FollowUp::WaitInPlace, _) if !is_lost && !self.stopping.is_cancelled() => {
                self.keyed_queue.push_front(message);
            }
            (_, true) => {
                self.keep_outcome(&message, place, || RunOutcome::Done);
                self.finish(&message);
            }
            (FollowUp::WaitInPlace, _) => self.leave_to_broker(&message, place),
            (_, false) if is_lost => self.leave_to_broker(&message, place),
            // A redelivery has replaced the lost delivery.
            (follow_up, false) => self.start_follow_up(message, follow_up),
        }
    }
}

async fn next_of<T: 'static>(tasks: &mut JoinSet<T>) -> T {
    loop {
        match tasks.join_next().await {
            Some(Ok(done)) => return done,
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }
}
