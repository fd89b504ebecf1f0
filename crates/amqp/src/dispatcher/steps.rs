//! What happens to a message after its handler: it is moved elsewhere, or waits for another attempt in its place.
//!
//! Each step is a task that knows its number only. The flight stays here, where a new delivery can take it over.

use super::{
    Dispatcher, Flight,
    takeover::{Ended, Place},
};
use crate::{
    link::later,
    moves::{Reason, Wait},
};
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinSet};

/// What is done with a message.
#[derive(Clone)]
pub(super) enum Step {
    PutOff {
        why: String,
        delay: Duration,
    },
    /// The same, without using up an attempt.
    Postpone {
        why: String,
        delay: Duration,
    },
    Bury {
        reason: Reason,
        why: String,
    },
    /// Waits in its place: it keeps its lane, and no worker.
    Wait,
}

/// A step that is over, by its number, and whether a message that was moved has arrived.
#[derive(Clone, Copy)]
pub(super) struct StepEnd {
    number: u64,
    arrived: bool,
}

#[derive(Default)]
pub(super) struct Steps {
    last: u64,
    flights: HashMap<u64, (Flight, Step)>,
    moves: JoinSet<StepEnd>,
    waits: JoinSet<StepEnd>,
    /// Failed attempts that are being recorded.
    records: JoinSet<()>,
}

impl Steps {
    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }

    /// Whether nothing is being moved.
    pub(super) fn has_no_moves(&self) -> bool {
        self.moves.is_empty()
    }

    pub(super) async fn next(&mut self) -> StepEnd {
        tokio::select! {
            end = next_of(&mut self.moves) => end,
            end = next_of(&mut self.waits) => end,
        }
    }

    /// The flights of all steps, by their numbers.
    pub(super) fn flights(&mut self) -> impl Iterator<Item = (u64, &mut Flight)> {
        self.flights.iter_mut().map(|(number, (flight, _))| (*number, flight))
    }

    pub(super) fn flight(&mut self, number: u64) -> Option<&mut Flight> {
        self.flights.get_mut(&number).map(|(flight, _)| flight)
    }

    /// Ends all waits. Their flights are given back.
    pub(super) fn stop_waiting(&mut self) -> Vec<Flight> {
        self.waits.abort_all();
        let waiting = |(_, step): &(Flight, Step)| matches!(step, Step::Wait);
        let numbers: Vec<u64> =
            self.flights.iter().filter(|(_, entry)| waiting(entry)).map(|(number, _)| *number).collect();
        numbers.iter().filter_map(|number| self.flights.remove(number)).map(|(flight, _)| flight).collect()
    }

    /// Waits until every failed attempt is recorded.
    pub(super) async fn recorded(&mut self) {
        while self.records.join_next().await.is_some() {}
    }

    pub(super) fn abort_moves(&mut self) {
        self.moves.abort_all();
    }
}

impl Dispatcher {
    /// Begins a step.
    pub(super) fn begin(&mut self, flight: Flight, step: Step) {
        self.steps.last += 1;
        let number = self.steps.last;
        self.steps.flights.insert(number, (flight.clone(), step.clone()));
        let (mover, counters) = (self.mover.clone(), Arc::clone(&self.counters));
        let sink_failed_since = flight.sink_failed_since();
        let is_overdue = flight.sink_failures.is_overdue();
        let failed_alone = flight.sink_failures.failed_alone();
        let Flight { delivery, leave, .. } = flight;
        match step {
            Step::PutOff { why, delay } => {
                let failed = delivery.failed().saturating_add(1);
                // A message that is at fault for its time alone stays at fault.
                let sink_failed_since = sink_failed_since.filter(|_| is_overdue);
                let wait = Wait { why, delay, failed, sink_failed_since, failed_alone };
                self.steps.moves.spawn(async move {
                    let arrived = mover.wait_elsewhere(&delivery, wait, &leave).await;
                    StepEnd { number, arrived }
                })
            }
            Step::Postpone { why, delay } => {
                let failed = delivery.failed();
                let wait = Wait { why, delay, failed, sink_failed_since, failed_alone };
                self.steps.moves.spawn(async move {
                    let arrived = mover.wait_elsewhere(&delivery, wait, &leave).await;
                    StepEnd { number, arrived }
                })
            }
            Step::Bury { reason, why } => self.steps.moves.spawn(async move {
                let arrived = mover.bury(&delivery, reason, &why, &leave).await;
                if arrived {
                    counters.rejected.fetch_add(1, Relaxed);
                }
                StepEnd { number, arrived }
            }),
            // Only `try_again` waits.
            Step::Wait => return,
        };
    }

    /// Has a message wait in its place for its next attempt. That it failed is recorded before.
    pub(super) fn try_again(&mut self, mut flight: Flight, why: String, delay: Duration) {
        flight.delivery = flight.delivery.with_failures(flight.delivery.failed().saturating_add(1));
        let failed = flight.delivery.failed();
        let fingerprint = *flight.fingerprint();
        flight.run = flight.run.or_else(|| self.starts.take(fingerprint));
        let record = flight.run.and_then(|run| Some((self.starts.fail(run, failed)?, run)));
        let record = record.map(|(store, run)| move || store.fail(run, failed, why));
        self.wait(flight, delay, record);
    }

    /// Has a message wait in its place, after `record` has run where writing blocks nothing.
    pub(super) fn wait<F>(&mut self, flight: Flight, delay: Duration, record: Option<F>)
    where
        F: FnOnce() + Send + 'static,
    {
        self.steps.last += 1;
        let number = self.steps.last;
        self.steps.flights.insert(number, (flight, Step::Wait));
        while self.steps.records.try_join_next().is_some() {}
        let is_recorded = record.map(|record| {
            let (recorded, is_recorded) = oneshot::channel();
            self.steps.records.spawn_blocking(move || {
                record();
                let _ = recorded.send(());
            });
            is_recorded
        });
        let due = later(delay);
        self.steps.waits.spawn(async move {
            // Before the next start is counted.
            if let Some(is_recorded) = is_recorded {
                let _ = is_recorded.await;
            }
            tokio::time::sleep_until(due).await;
            StepEnd { number, arrived: false }
        });
    }

    /// A step is over.
    pub(super) fn stepped(&mut self, end: StepEnd) {
        let StepEnd { number, arrived } = end;
        let Some((flight, step)) = self.steps.flights.remove(&number) else { return };
        let is_lost = flight.leave.is_revoked();
        let place = Place::Step(number);
        match (step, arrived) {
            (Step::Wait, _) if is_lost || self.closing.is_revoked() => {
                self.forget(&flight, place);
                self.starts.put_back(flight.run);
                self.release(&flight);
            }
            (Step::Wait, _) => self.lanes.put_back(flight),
            (_, true) => {
                self.keep_outcome(&flight, place, || Ended::Done);
                self.finish(&flight);
            }
            (_, false) if is_lost => {
                self.forget(&flight, place);
                self.starts.put_back(flight.run);
                self.release(&flight);
            }
            // A new delivery has taken the place of the one whose channel was lost.
            (step, false) => self.begin(flight, step),
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
