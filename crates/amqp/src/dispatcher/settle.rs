//! Settles messages whose run has ended: acknowledges, retries, dead-letters or rejects them, or leaves them to the
//! broker.

use super::{
    Dispatcher, InFlight,
    errors::{error_text, is_timeout},
    follow_up::FollowUp,
    redelivery::{RunOutcome, RunPlace},
    session::Session,
};
use crate::{
    handler_pool::{HandlerOutcome, JobOutput},
    positions::offset_of,
    republish::Reason,
};
use gristmill_pool::{ErrorClass, Outcome, TaskError, error::Cause};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// Delay before a message is retried whose id another consumer is handling.
const IN_PROGRESS_DELAY: Duration = Duration::from_secs(1);

impl Dispatcher {
    pub(super) fn settle(&mut self, outcome: Outcome<JobOutput>) {
        let id = outcome.task.id.get();
        if let Some(result) = self.settle_batch(id, outcome.result) {
            self.settle_run(id, result);
        }
    }

    pub(super) fn settle_run(&mut self, number: u64, result: Result<HandlerOutcome, Arc<TaskError>>) {
        use HandlerOutcome::{AlreadyDone, Done, Duplicate, InProgress, OverLimit, Skipped};
        let Some(mut message) = self.in_pool.remove(&number) else { return };
        self.suspects.running -= usize::from(message.suspect);
        match &result {
            Ok(Done { started } | Duplicate { started }) => {
                self.sink_worked(number, Some(*started));
            }
            Ok(AlreadyDone | InProgress | Skipped | OverLimit(_)) => self.pause.run_skipped(number),
            Err(error) => {
                if is_timeout(error) {
                    self.counters.timed_out.fetch_add(1, Relaxed);
                }
                if let Some(fault) = self.sink_failed(number, &mut message, error) {
                    return self.wait_for_sink(message, number, fault, error);
                }
            }
        }
        match result {
            Ok(Skipped) => self.skipped(message, number),
            Ok(InProgress) if self.will_be_redelivered(&message) => self.skipped(message, number),
            Ok(InProgress) => self.wait_in_place(message, IN_PROGRESS_DELAY, None::<fn()>),
            Ok(OverLimit(starts)) => self.over_limit(message, number, starts),
            Ok(outcome @ (Done { .. } | Duplicate { .. } | AlreadyDone)) => {
                let is_done = matches!(outcome, Done { .. });
                let counter = if is_done { &self.counters.handled } else { &self.counters.skipped };
                counter.fetch_add(1, Relaxed);
                self.keep_outcome(&message, RunPlace::Worker(number), || RunOutcome::Done);
                self.finish(&message);
            }
            Err(error) if matches!(error.cause(), Cause::Cancelled) => {
                self.interrupt(&message);
                self.release(&message);
            }
            Err(error) => {
                let ended = || RunOutcome::Failed(Box::new(message.clone()), Arc::clone(&error));
                match self.keep_outcome(&message, RunPlace::Worker(number), ended) {
                    true => self.release(&message),
                    false => self.failed(message, &error),
                }
            }
        }
    }

    /// Undoes the start of a run that this consumer ended as it stops.
    pub(super) fn interrupt(&mut self, message: &InFlight) {
        self.undo_start(message);
        self.starts.release_row(message.run);
    }

    /// Undoes the recorded start of a run that ended without a crash.
    pub(super) fn undo_start(&mut self, message: &InFlight) {
        if message.recorded.as_ref().is_some_and(|recorded| recorded.swap(false, Relaxed)) {
            self.starts.undo_start(message.run);
        }
    }

    /// Whether the broker redelivers the message: its channel is lost, or this consumer is stopping.
    pub(super) fn will_be_redelivered(&self, message: &InFlight) -> bool {
        message.cancel.is_cancelled() || self.stopping.is_cancelled()
    }

    /// Handles a run that was not started: its channel was lost first, or the consumer is paused or stopping.
    fn skipped(&mut self, message: InFlight, number: u64) {
        if self.will_be_redelivered(&message) {
            return self.leave_to_broker(&message, RunPlace::Worker(number));
        }
        // A redelivery has replaced it, or consuming was paused.
        self.keyed_queue.push_front(message);
    }

    fn over_limit(&mut self, message: InFlight, number: u64, starts: u32) {
        if message.cancel.is_cancelled() {
            return self.leave_to_broker(&message, RunPlace::Worker(number));
        }
        let why = format!("started {starts} times without finishing: it may crash the process that runs it");
        self.dead_letter(message, Reason::Starts, why);
    }

    /// Marks a message as done, to be acknowledged, and frees its key.
    pub(super) fn finish(&mut self, message: &InFlight) {
        if let Some(session) = self.end(message) {
            session.acks.mark_done(message.tag);
        }
    }

    /// Ends the work on a message. Returns its session; none if that is lost, and the broker redelivers the message.
    pub(super) fn end(&mut self, message: &InFlight) -> Option<&mut Session> {
        self.release(message);
        self.starts.finish(message.run);
        if let Some(offset) = message.offset {
            self.offsets.finish(offset);
        }
        self.session.as_mut().filter(|_| !message.cancel.is_cancelled())
    }

    /// Forgets an unfinished message that the broker redelivers.
    pub(super) fn leave_to_broker(&mut self, message: &InFlight, place: RunPlace) {
        self.forget_run(message, place);
        self.starts.release_row(message.run);
        self.release(message);
    }

    pub(super) fn release(&mut self, message: &InFlight) {
        self.keyed_queue.release_key(message.key.as_ref());
    }

    pub(super) fn failed(&mut self, message: InFlight, error: &TaskError) {
        let why = error_text(error);
        let is_transient = matches!(error.class(), ErrorClass::Transient | ErrorClass::Partial);
        let failed = message.delivery.failed_attempts().saturating_add(1);
        if !is_transient {
            return self.dead_letter(message, Reason::Permanent, why);
        }
        if failed >= self.config.retry.max_attempts() {
            return self.dead_letter(message, Reason::Attempts, why);
        }
        let delay = error.retry_after().unwrap_or_default().max(self.config.retry.delay(failed));
        if message.delivery.expires_within(delay) {
            return self.expire(&message);
        }
        self.counters.retried.fetch_add(1, Relaxed);
        tracing::warn!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            attempt = message.delivery.attempt(),
            of = self.config.retry.max_attempts(),
            retry_in = ?delay,
            error = why,
            "a message failed; it will be retried"
        );
        match self.retries_in_place(&message) {
            true => self.retry_in_place(message, why, delay),
            false => self.start_follow_up(message, FollowUp::RetryLater { why, delay }),
        }
    }

    /// Whether a message waits for its retry here and not in a retry queue. A message returned to a stream would reach
    /// all its readers, and a queue of unknown kind may be a stream.
    pub(super) fn retries_in_place(&self, message: &InFlight) -> bool {
        let maybe_stream = || self.config.kind.is_none() && offset_of(message.delivery.headers()).is_some();
        self.config.in_place || maybe_stream()
    }

    pub(super) fn dead_letter(&mut self, message: InFlight, reason: Reason, why: String) {
        tracing::error!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            attempt = message.delivery.attempt(),
            ?reason,
            error = why,
            "message dead-lettered"
        );
        self.start_follow_up(message, FollowUp::DeadLetter { reason, why });
    }

    /// Rejects a message that expires before its next attempt. The broker treats it like a message that expires in the
    /// queue: it goes to the queue's dead-letter exchange, or is dropped.
    pub(super) fn expire(&mut self, message: &InFlight) {
        let Some(session) = self.end(message) else { return };
        session.reject(message.tag);
        self.counters.expired.fetch_add(1, Relaxed);
        tracing::info!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            attempt = message.delivery.attempt(),
            "a message expires before its next attempt"
        );
    }
}
