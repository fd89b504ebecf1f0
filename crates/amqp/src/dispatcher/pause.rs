//! Pauses a consumer while its sink fails: the server, database or disk that its handler needs.
//!
//! Decides which failures are the sink's, holds the messages that wait for the sink with their attempts unused, and
//! decides when one of them runs as a probe. It does not start or move messages.
//!
//! | state   | event                                                    | next                                     |
//! |---------|----------------------------------------------------------|------------------------------------------|
//! | running | the sink is unavailable                                  | paused; the message waits                |
//! | running | no worker becomes free within the start timeout          | paused; messages stay in the queue       |
//! | running | the sink fails, [`PAUSE_AFTER_FAILURES`] times in a row  | paused; the message waits                |
//! | running | the sink fails for a message, fewer times in a row       | running; the message waits for evidence  |
//! | running | a message is handled that was started after the failures | running; waiting messages run again      |
//! | running | no evidence within the first delay                       | running; one waiting message runs again  |
//! | running | the sink fails again for a message, after a message was  | running; it is the message's fault       |
//! |         | handled that was started after the first failure         |                                          |
//! | running | the sink fails only for messages that failed alone,      | running; it is the message's fault       |
//! |         | [`MAX_PROBES`] times for this one                        |                                          |
//! | paused  | the delay is over, and there is a message                | probing: only that message runs          |
//! | paused  | a message is handled that was started after the failures | running; waiting messages run again      |
//! |         | of a sink that was never unavailable                     |                                          |
//! | probing | the probe is handled, or fails for another reason        | running; waiting messages run again      |
//! | probing | the sink fails                                           | paused, twice as long; the message waits |
//! | probing | the sink fails only for messages that failed alone,      | it is the message's fault; paused while  |
//! |         | [`MAX_PROBES`] times for this one                        | others wait, else running                |
//! | probing | the probe was not started                                | paused; another may be the probe         |
//!
//! "In a row" and "after" use the clock of the [`SinkGate`]: a message counts as handled after a failure if its run
//! started when the failed run had ended, in whatever order they were submitted and their results are read.
//!
//! A failure of the sink is a message's fault only with evidence, and each attempt that a message uses needs new
//! evidence. A message has failed alone if a message was handled that started after its failure, or was submitted after
//! its run. That keeps counting while the sink fails for no other message, because there may be none left to show that
//! the sink works. A run that fails for another reason may not have used the sink: it ends a pause but is no evidence.
//! Nor are attempts that a message has used for another reason.

use crate::sink_gate::SinkGate;
use gristmill_pool::{Breaker, Dependency, TaskError, breaker::BreakerState, breaker::Permit};
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// Consecutive failures after which consuming pauses. The first ones may be the fault of their messages.
const PAUSE_AFTER_FAILURES: usize = 5;
/// Failures of one message after which, in a pause, others are tried first, and one that failed alone is at fault.
const MAX_PROBES: u32 = 3;
/// Time after which a message for which the sink keeps failing is at fault, though no other message could be tried.
const MAX_BLOCKED: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct Pause<T> {
    breaker: Breaker,
    first_delay: Duration,
    longest_delay: Duration,
    /// Messages that wait for the sink, in the order in which they failed.
    pub(super) waiting: VecDeque<T>,
    /// Number and permit of the probe that runs.
    pub(super) probe: Option<(u64, Permit)>,
    /// End times of consecutive failures, at most [`PAUSE_AFTER_FAILURES`]: no later run has succeeded.
    consecutive_failures: VecDeque<u64>,
    /// Whether the sink was unavailable in this pause: then only a probe ends it.
    was_unavailable: bool,
    /// Number of the latest submitted run that the sink worked for.
    last_worked: u64,
    /// Latest start time of a run that the sink worked for.
    worked_since: u64,
    /// Latest end time of a run for which the sink was unavailable, or failed for a message that has not failed alone.
    others_failed: u64,
    /// When a waiting message runs again.
    due: Option<Instant>,
    /// Gate that each run passes before it starts, with the clock that orders runs and failures. Closed while consuming
    /// is paused, so that runs queued in the pool do not start.
    pub(super) gate: SinkGate,
    /// When consuming was paused, if it is.
    pub(super) since: Option<Instant>,
}

/// Failures of the sink for one message.
#[derive(Clone, Default)]
pub(super) struct SinkFailures {
    /// First failure that may be the message's fault, and the number of such failures.
    first: Option<Box<FirstFailure>>,
    count: u32,
    /// The sink worked for a run that started after a failure of this message, or was submitted after it.
    pub(super) failed_alone: bool,
    /// It is at fault because it has failed for [`MAX_BLOCKED`].
    pub(super) failed_too_long: bool,
}

impl SinkFailures {
    /// For a message for which the sink has not failed in this attempt.
    pub(super) fn new(failed_alone: bool) -> Self {
        Self { failed_alone, ..Self::default() }
    }

    pub(super) fn lasted(&self) -> Option<Duration> {
        self.first.as_ref().map(|first| first.at.elapsed())
    }
}

#[derive(Clone, Copy)]
struct FirstFailure {
    at: Instant,
    /// The run, and its end by the clock of the gate.
    run: u64,
    ended: u64,
}

/// A message for which the sink failed.
pub(super) struct FailedMessage<'a> {
    pub(super) failures: &'a mut SinkFailures,
    /// How long the sink had failed for it before it was postponed.
    pub(super) failed_for: Duration,
    /// Whether it may wait in a retry queue, because no order is kept.
    pub(super) can_move: bool,
}

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The sink's: the message waits for it.
    Sink,
    /// The sink's, as far as is known. The message waits in a retry queue, so that others can be tried.
    SinkOrMessage,
    Message,
}

/// Change of the pause by an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Paused,
    Resumed,
}

impl<T> Pause<T> {
    /// Probes after `first`, then with growing delays of at most `longest`.
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            breaker: Breaker::with_backoff(first, longest),
            first_delay: first,
            longest_delay: longest,
            waiting: VecDeque::new(),
            probe: None,
            consecutive_failures: VecDeque::new(),
            was_unavailable: false,
            last_worked: 0,
            worked_since: 0,
            others_failed: 0,
            due: None,
            gate: SinkGate::default(),
            since: None,
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.gate.is_closed()
    }

    /// When a probe or a waiting message is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| self.probe.is_none())
    }

    /// Takes out one waiting message, if consuming is not paused and there was no evidence in time.
    pub(super) fn take_due(&mut self) -> Option<T> {
        let is_due = !self.is_paused() && self.due.is_some_and(|due| due <= Instant::now());
        if !is_due {
            return None;
        }
        let item = self.waiting.pop_front();
        self.due = (!self.waiting.is_empty()).then(|| Instant::now() + self.first_delay);
        item
    }

    /// Returns a permit for a probe if one is due, with the message from `untried`, else a waiting one.
    pub(super) fn take_probe(&mut self, untried: impl FnOnce() -> Option<T>) -> Option<(T, Permit)> {
        if self.probe.is_some() {
            return None;
        }
        match self.breaker.acquire() {
            Ok(permit) => {
                self.due = None;
                match untried().or_else(|| self.waiting.pop_front()) {
                    Some(item) => Some((item, permit)),
                    None => {
                        permit.withdraw();
                        None
                    }
                }
            }
            Err(open) => {
                self.due = Some(Instant::now() + open.retry_in.max(Duration::from_millis(1)));
                None
            }
        }
    }

    /// Records a run that was not started or was cancelled: it is no evidence about the sink.
    pub(super) fn run_skipped(&mut self, number: u64) {
        if let Some((_, permit)) = self.probe.take_if(|(probe, _)| *probe == number) {
            permit.withdraw();
        }
    }

    /// Records that the sink worked for a run that started at this time. Without a time, the run failed for another
    /// reason or the pool ended it, and it is no evidence.
    pub(super) fn worked(&mut self, number: u64, started: Option<u64>) -> Change {
        if let Some(started) = started {
            self.last_worked = self.last_worked.max(number);
            self.worked_since = self.worked_since.max(started);
            self.consecutive_failures.retain(|ended| *ended > started);
        }
        if let Some((_, permit)) = self.probe.take_if(|(probe, _)| *probe == number) {
            permit.success();
            if self.breaker.stats().state == BreakerState::Closed {
                return self.resume();
            }
        }
        if !self.consecutive_failures.is_empty() || self.was_unavailable {
            return Change::None;
        }
        match self.is_paused() {
            true => {
                if let Some((_, permit)) = self.probe.take() {
                    permit.withdraw();
                }
                self.breaker = Breaker::with_backoff(self.first_delay, self.longest_delay);
                self.resume()
            }
            false => {
                self.due = None;
                Change::None
            }
        }
    }

    fn resume(&mut self) -> Change {
        self.consecutive_failures.clear();
        self.was_unavailable = false;
        self.due = None;
        self.gate.open();
        self.since = None;
        Change::Resumed
    }

    /// Takes out the waiting messages if the sink works.
    pub(super) fn take_recovered(&mut self) -> VecDeque<T> {
        match self.consecutive_failures.is_empty() && !self.is_paused() {
            true => std::mem::take(&mut self.waiting),
            false => VecDeque::new(),
        }
    }

    /// Records a run that failed because of the sink and ended at this time of the clock. Returns whose fault it is.
    pub(super) fn failed(
        &mut self,
        (number, ended): (u64, u64),
        error: &TaskError,
        dependency: Dependency,
        message: FailedMessage<'_>,
    ) -> (Fault, Change) {
        let FailedMessage { failures, failed_for, can_move } = message;
        let now = Instant::now();
        let is_certain = dependency == Dependency::Unavailable;
        let probe = self.probe.take_if(|(probe, _)| *probe == number);
        let (was_probe, is_paused) = (probe.is_some(), self.is_paused());
        let is_message = !is_certain && self.is_at_fault(failures, (number, ended), failed_for, was_probe);
        if is_certain || !failures.failed_alone {
            self.others_failed = self.others_failed.max(ended);
        }
        match probe {
            // No other message waits for the sink.
            Some((_, permit)) if is_message && self.waiting.is_empty() => {
                permit.success();
                return (Fault::Message, self.resume());
            }
            Some((_, permit)) => {
                permit.failure_with_delay(error.retry_after().unwrap_or_default());
                self.due = Some(now);
            }
            None => {}
        }
        if is_message {
            return (Fault::Message, Change::None);
        }
        self.count(ended, is_certain);
        if is_paused {
            let others_first = was_probe && can_move && !is_certain && failures.count >= MAX_PROBES;
            return (if others_first { Fault::SinkOrMessage } else { Fault::Sink }, Change::None);
        }
        self.due = Some(now + self.first_delay);
        if !is_certain && self.consecutive_failures.len() < PAUSE_AFTER_FAILURES {
            return (Fault::Sink, Change::None);
        }
        self.pause(error);
        (Fault::Sink, Change::Paused)
    }

    /// Pauses because the sink is unavailable, though no run has failed. Runs that have started are no evidence that it
    /// works again.
    pub(super) fn unavailable(&mut self, error: &TaskError) {
        let now = self.gate.advance();
        self.others_failed = now;
        self.count(now, true);
        self.pause(error);
    }

    fn pause(&mut self, error: &TaskError) {
        let now = Instant::now();
        self.gate.close();
        self.since = Some(now);
        if let Ok(permit) = self.breaker.acquire() {
            permit.failure_with_delay(error.retry_after().unwrap_or_default());
        }
        self.due = Some(now);
    }

    /// Counts a failure of one message and returns whether it is the message's fault. The next then needs new evidence.
    fn is_at_fault(
        &self,
        failures: &mut SinkFailures,
        (run, ended): (u64, u64),
        failed_for: Duration,
        was_probe: bool,
    ) -> bool {
        let first = **failures.first.get_or_insert_with(|| Box::new(FirstFailure { at: Instant::now(), run, ended }));
        failures.count += 1;
        failures.failed_too_long = first.at.elapsed().max(failed_for) >= MAX_BLOCKED;
        let worked_since = self.worked_since >= first.ended;
        failures.failed_alone |= worked_since || self.last_worked > first.run;
        if failures.failed_too_long {
            return true;
        }
        let is_repeated = failures.count > 1 && worked_since && !self.is_paused();
        let only_alone = failures.failed_alone && self.others_failed <= self.worked_since;
        let is_proven = only_alone && failures.count >= MAX_PROBES && self.is_paused() == was_probe;
        if is_repeated || is_proven {
            *failures = SinkFailures::new(true);
        }
        is_repeated || is_proven
    }

    /// Counts a consecutive failure, unless the sink has worked since.
    fn count(&mut self, ended: u64, is_certain: bool) {
        self.was_unavailable |= is_certain;
        if ended <= self.worked_since {
            return;
        }
        if self.consecutive_failures.len() == PAUSE_AFTER_FAILURES {
            self.consecutive_failures.pop_front();
        }
        self.consecutive_failures.push_back(ended);
    }
}

#[cfg(test)]
mod tests;
