//! What runs say about the sink, and which message is tried while it fails.

use super::{
    Dispatcher, Flight,
    pause::{Change, Fault, SinkFailures, Tried},
    shown,
    steps::Step,
    takeover::Place,
};
use crate::delivery::now;
use gristmill_pool::{Dependency, TaskError, error::Cause};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

impl Flight {
    /// Since when the sink has failed with the message, in milliseconds since 1970.
    pub(super) fn sink_failed_since(&self) -> Option<u64> {
        let here = || {
            let lasted = u64::try_from(self.sink_failures.lasted()?.as_millis()).ok()?;
            Some(now().saturating_sub(lasted))
        };
        self.delivery.sink_failed_since().or_else(here)
    }
}

impl Dispatcher {
    /// Has messages run again that waited for the sink, if it works or there was no evidence in time.
    pub(super) fn feed_recovered(&mut self) {
        for flight in self.pause.take_recovered().into_iter().rev() {
            self.lanes.put_back(flight);
        }
        if let Some(flight) = self.pause.take_due() {
            self.lanes.put_back(flight);
        }
    }

    /// Hands one message to a worker to find out whether the sink works again, when it is time.
    pub(super) fn feed_probe(&mut self) {
        let (held, lanes, suspects) = (&mut self.held, &mut self.lanes, &mut self.suspects);
        let fresh = || held.take().map(|(_, flight)| flight).or_else(|| suspects.next(lanes));
        let Some((mut flight, permit)) = self.pause.take_probe(fresh) else { return };
        match self.crew.submit(self.job(&mut flight, self.pause.gate().for_probe())) {
            Ok(number) => {
                self.pause.probes(number, permit);
                self.submitted(number, flight);
            }
            // All workers are busy with what was started before the pause.
            Err(job) => {
                permit.withdraw();
                match job {
                    Some(_) => self.lanes.put_back(flight),
                    None => self.release(&flight),
                }
            }
        }
    }

    /// The sink worked for a run that was started at this time. Without one, the run shows nothing about failures.
    pub(super) fn sink_worked(&mut self, number: u64, started: Option<u64>) {
        if self.pause.worked(number, started) == Change::Resumed {
            self.counters.set_paused(None);
            tracing::warn!(consumer = self.set.name, "the sink works again; consuming is resumed");
        }
    }

    /// What a failure says about the sink: nothing, or whose fault it is if not the message's.
    pub(super) fn sink_failed(
        &mut self,
        number: u64,
        flight: &mut Flight,
        error: &TaskError,
    ) -> Option<Fault> {
        let ended = self.pause.gate().take(number);
        let dependency = match error.cause() {
            Cause::Cancelled => {
                self.pause.not_run(number);
                return None;
            }
            Cause::TimedOut(_) if self.pause.is_paused() => Some(Dependency::Failed),
            _ => error.dependency(),
        };
        let Some(dependency) = dependency else {
            flight.sink_failures = SinkFailures::default();
            self.sink_worked(number, None);
            return None;
        };
        let since = flight.delivery.sink_failed_since();
        let failed_for =
            since.map(|since| Duration::from_millis(now().saturating_sub(since))).unwrap_or_default();
        let can_move = !self.stays_in_place(flight);
        let message = Tried { failures: &mut flight.sink_failures, failed_for, can_move };
        let ended = ended.unwrap_or_else(|| self.pause.gate().advance());
        let (fault, change) = self.pause.failed((number, ended), error, dependency, message);
        self.counters.sink_failures.fetch_add(1, Relaxed);
        match change {
            Change::None => {}
            Change::Paused => {
                let why = shown(error);
                tracing::warn!(
                    consumer = self.set.name,
                    error = why,
                    "the sink fails; consuming is paused, and one message is tried from time to time"
                );
                self.counters.set_paused(Some(why));
            }
            Change::Resumed => {
                self.counters.set_paused(None);
                tracing::warn!(
                    consumer = self.set.name,
                    "no message waits for the sink any more; consuming is resumed"
                );
            }
        }
        (fault != Fault::Message).then_some(fault)
    }

    /// The message keeps its attempts and waits until the sink works. Its run has ended, so its start is taken back.
    pub(super) fn wait_for_sink(&mut self, flight: Flight, number: u64, fault: Fault, error: &TaskError) {
        tracing::debug!(
            consumer = self.set.name,
            id = flight.delivery.message_id(),
            error = shown(error),
            "the sink failed with a message, which waits"
        );
        // The worker has taken back the start of a run that said so itself.
        self.take_back(&flight);
        match fault {
            _ if self.is_given_back(&flight) => {
                self.forget(&flight, Place::Worker(number));
                self.starts.put_back(flight.run);
                self.release(&flight);
            }
            Fault::SinkOrMessage => {
                let delay = self.set.probe_delay.1;
                self.begin(flight, Step::Postpone { why: shown(error), delay });
            }
            Fault::Sink | Fault::Message => self.pause.park(flight),
        }
    }
}
