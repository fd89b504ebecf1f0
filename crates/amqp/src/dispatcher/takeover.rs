//! Deliveries of messages that this consumer had before: of runs that it still has, and of starts that it counts.
//!
//! When a channel is lost, what runs continues. The broker delivers its message again, and that delivery takes the place of
//! the lost one: the message is not run beside itself, and the outcome of its run is used.

use super::{Dispatcher, Flight};
use crate::{
    fingerprint::{Fingerprint, fingerprint},
    orphans::Orphan,
};
use gristmill_pool::TaskError;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Where a delivery is whose channel was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the pool, by its number there.
    Worker(u64),
    /// In a step after its handler, by its number.
    Step(u64),
}

/// What became of a run before its message was delivered again.
pub(super) enum Ended {
    /// Done, or moved elsewhere: only to be acknowledged.
    Done,
    Failed(Box<Flight>, Arc<TaskError>),
}

impl Flight {
    pub(super) fn fingerprint(&mut self) -> &Fingerprint {
        self.fingerprint.get_or_insert_with(|| fingerprint(&self.delivery, self.offset))
    }
}

impl Dispatcher {
    /// Looks whether a delivery is of a message that was here before. Nothing is left of it to start when a run takes it.
    pub(super) fn recognise(&mut self, mut flight: Flight) -> Option<Flight> {
        // A stream does not say what it delivers again: all that a process may have had in hand when it ended.
        let is_known = match flight.offset {
            Some(_) => !self.orphans.is_empty() || flight.tag <= u64::from(self.set.sizing.prefetch),
            None => flight.delivery.is_redelivered(),
        };
        let may_matter = !self.orphans.is_empty() || self.starts.store().is_some();
        if !is_known || !may_matter {
            return Some(flight);
        }
        let fingerprint = *flight.fingerprint();
        flight = self.adopt(flight)?;
        // It is never started.
        if flight.delivery.unreadable().is_some() {
            return Some(flight);
        }
        flight.run = self.starts.take(fingerprint);
        flight.suspect = self.starts.is_suspect(flight.run);
        let failed = self.starts.failed(flight.run);
        if failed > flight.delivery.failed() {
            flight.delivery = flight.delivery.with_failures(failed);
        }
        Some(flight)
    }

    /// The delivery belongs to a run that was here before. Given back where there is no such run.
    pub(super) fn adopt(&mut self, mut flight: Flight) -> Option<Flight> {
        for ended in self.orphans.forget_old(Instant::now()) {
            if let Ended::Failed(run, _) = ended {
                self.starts.put_back(run.run);
            }
        }
        match self.orphans.adopt(flight.fingerprint()) {
            Some(Orphan::Running(place)) => return self.take_over(place, flight),
            Some(Orphan::Ended(Ended::Done, _)) => self.finish(&Flight { key: None, ..flight }),
            Some(Orphan::Ended(Ended::Failed(run, error), _)) => self.fail_late(*run, flight, &error),
            None => return Some(flight),
        }
        None
    }

    /// How long a message that failed in its place, before a restart, waits for its next attempt. Its lane is taken then; one
    /// whose lane is taken already runs in its turn.
    pub(super) fn due_in(&mut self, flight: &Flight) -> Option<Duration> {
        let failed_ago = self.starts.failed_ago(flight.run)?;
        let delay = self.set.retry.delay(flight.delivery.failed()).checked_sub(failed_ago)?;
        let is_waiting = !delay.is_zero() && !flight.delivery.expires_within(delay);
        (is_waiting && flight.key.as_ref().is_none_or(|key| self.lanes.occupy(key))).then_some(delay)
    }

    /// The delivery takes the place of the lost one of a run. Given back where there is no such run.
    fn take_over(&mut self, place: Place, flight: Flight) -> Option<Flight> {
        let run = match place {
            Place::Worker(number) => self.flights.get_mut(&number),
            Place::Step(number) => self.steps.flight(number),
        };
        let Some(run) = run else { return Some(flight) };
        tracing::debug!(
            consumer = self.set.name,
            id = run.delivery.message_id(),
            "a message was delivered again while it runs here; its run continues"
        );
        (run.tag, run.leave) = (flight.tag, flight.leave);
        run.delivery = match run.delivery.failed() {
            failed if failed > flight.delivery.failed() => flight.delivery.with_failures(failed),
            _ => flight.delivery,
        };
        None
    }

    /// The run failed while there was no channel; now there is a delivery to settle.
    fn fail_late(&mut self, run: Flight, flight: Flight, error: &TaskError) {
        let mut flight = Flight { tag: flight.tag, leave: flight.leave, suspect: false, ..run };
        if flight.key.as_ref().is_some_and(|key| !self.lanes.occupy(key)) {
            // Another of its key runs already. Where it goes from here needs no lane but for another attempt in place,
            // which then comes when the lane is free.
            let failed = flight.delivery.failed().saturating_add(1);
            if self.set.in_place && failed < self.set.retry.max_attempts() {
                flight.delivery = flight.delivery.with_failures(failed);
                return self.lanes.add(flight.key.clone(), flight);
            }
            flight.key = None;
        }
        self.failed(flight, error);
    }

    /// Keeps the outcome of a run whose channel was lost for the next delivery of its message. False: its channel is not
    /// lost.
    pub(super) fn keep_outcome(
        &mut self,
        flight: &Flight,
        place: Place,
        outcome: impl FnOnce() -> Ended,
    ) -> bool {
        let is_lost = flight.leave.is_revoked();
        if is_lost && let Some(fingerprint) = &flight.fingerprint {
            self.orphans.end(fingerprint, &place, Some(outcome()), Instant::now());
        }
        is_lost
    }

    /// A run whose channel was lost came to nothing: the next delivery of its message starts it anew.
    pub(super) fn forget(&mut self, flight: &Flight, place: Place) {
        if let Some(fingerprint) = &flight.fingerprint {
            self.orphans.end(fingerprint, &place, None, Instant::now());
        }
    }

    /// The channel of all runs is lost.
    pub(super) fn orphan_all(&mut self) {
        let workers = self.flights.iter_mut().map(|(number, flight)| (Place::Worker(*number), flight));
        let steps = self.steps.flights().map(|(number, flight)| (Place::Step(number), flight));
        let running: Vec<_> =
            workers.chain(steps).map(|(place, flight)| (*flight.fingerprint(), place)).collect();
        self.orphans.lose(running.into_iter());
    }
}
