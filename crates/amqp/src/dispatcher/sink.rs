//! Applies run results to the pause, and chooses the message that probes a failing sink.

use super::{
    Dispatcher, InFlight,
    errors::error_text,
    follow_up::FollowUp,
    pause::{Change, FailedMessage, Fault, SinkFailures},
    redelivery::RunPlace,
};
use crate::delivery::now;
use gristmill_pool::{Dependency, TaskError, error::Cause};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

impl InFlight {
    /// When the sink began to fail for the message, in milliseconds since 1970.
    pub(super) fn sink_failed_since(&self) -> Option<u64> {
        let since_first_failure = || {
            let lasted = u64::try_from(self.sink_failures.lasted()?.as_millis()).ok()?;
            Some(now().saturating_sub(lasted))
        };
        self.delivery.sink_failed_since().or_else(since_first_failure)
    }
}

impl Dispatcher {
    /// Requeues messages that waited for the sink, if it works or there was no evidence in time.
    pub(super) fn requeue_recovered(&mut self) {
        for message in self.pause.take_recovered().into_iter().rev() {
            self.keyed_queue.push_front(message);
        }
        if let Some(message) = self.pause.take_due() {
            self.keyed_queue.push_front(message);
        }
    }

    /// Dispatches one message as a probe of the sink, when it is due. While all workers are busy it waits in the pool's
    /// queue, behind runs from before the pause.
    pub(super) fn dispatch_probe(&mut self) {
        self.ungather();
        let (keyed_queue, suspects) = (&mut self.keyed_queue, &mut self.suspects);
        let Some((message, permit)) = self.pause.take_probe(|| suspects.next(keyed_queue)) else { return };
        match self.submit(message, self.pause.gate.for_probe()) {
            Some(number) => self.pause.probe = Some((number, permit)),
            // The pool's queue is full with runs from before the pause, or the pool is closed.
            None => permit.withdraw(),
        }
    }

    /// Records that the sink worked for a run that started at this time. Without a time the run is no evidence.
    pub(super) fn sink_worked(&mut self, number: u64, started: Option<u64>) {
        if self.pause.worked(number, started) == Change::Resumed {
            self.counters.set_paused(None);
            tracing::warn!(consumer = self.config.name, "the sink works again; consuming resumes");
        }
    }

    /// Records a failure. Returns whose fault it is if the sink may have failed, and none if it is the message's fault.
    pub(super) fn sink_failed(&mut self, number: u64, message: &mut InFlight, error: &TaskError) -> Option<Fault> {
        let ended = self.pause.gate.take(number);
        let dependency = match error.cause() {
            Cause::Cancelled => {
                self.pause.run_skipped(number);
                return None;
            }
            Cause::TimedOut(_) if self.pause.is_paused() => Some(Dependency::Failed),
            _ => error.dependency(),
        };
        let Some(dependency) = dependency else {
            message.sink_failures = SinkFailures::default();
            self.sink_worked(number, None);
            return None;
        };
        let since = message.delivery.sink_failed_since();
        let failed_for = since.map(|since| Duration::from_millis(now().saturating_sub(since))).unwrap_or_default();
        let can_move = !self.retries_in_place(message);
        let failed_message = FailedMessage { failures: &mut message.sink_failures, failed_for, can_move };
        let ended = ended.unwrap_or_else(|| self.pause.gate.advance());
        let (fault, change) = self.pause.failed((number, ended), error, dependency, failed_message);
        self.counters.sink_failures.fetch_add(1, Relaxed);
        match change {
            Change::None => {}
            Change::Paused => self.report_pause(error),
            Change::Resumed => {
                self.counters.set_paused(None);
                tracing::warn!(
                    consumer = self.config.name,
                    "no message waits for the sink any more; consuming resumes"
                );
            }
        }
        (fault != Fault::Message).then_some(fault)
    }

    /// Pauses consuming because messages wait and no worker becomes free. The messages stay where they are.
    pub(super) fn sink_hangs(&mut self, error: &TaskError) {
        self.pause.unavailable(error);
        self.report_pause(error);
    }

    fn report_pause(&self, error: &TaskError) {
        let why = error_text(error);
        tracing::warn!(
            consumer = self.config.name,
            error = why,
            "the sink fails; consuming is paused, and one message at a time probes it"
        );
        self.counters.set_paused(Some(why));
    }

    /// Makes a message wait for the sink. It keeps its attempts, and its start is undone because its run has ended.
    pub(super) fn wait_for_sink(&mut self, message: InFlight, number: u64, fault: Fault, error: &TaskError) {
        tracing::debug!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            error = error_text(error),
            "the sink failed for a message, which waits"
        );
        // The worker has already undone the start of a run that returned the error itself.
        self.undo_start(&message);
        match fault {
            _ if self.will_be_redelivered(&message) => self.leave_to_broker(&message, RunPlace::Worker(number)),
            Fault::SinkOrMessage => {
                let delay = self.config.declared.probe_delay.1;
                self.start_follow_up(message, FollowUp::Postpone { why: error_text(error), delay });
            }
            Fault::Sink | Fault::Message => self.pause.waiting.push_back(message),
        }
    }
}
