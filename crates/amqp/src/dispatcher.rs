//! One consumer at work: takes deliveries in, hands them to workers, and tells the broker what became of them.
//!
//! One task owns all of a consumer's state and puts everything that happens in order: deliveries, results, moves, the
//! loss of a channel, the end. Workers share nothing with it but their results.

mod course;
mod errors;
mod expiry;
mod give_back;
mod lost_runs;
mod offsets;
mod overdue;
mod pace;
mod pause;
mod session;
mod sink;
mod steps;
mod suspects;
mod takeover;

use crate::{
    consumer::{OrderBy, Set},
    crew::{Crew, Job, Leave, Once, Ran, RunStart, job},
    delivery::Delivery,
    error::Error,
    fingerprint::Fingerprint,
    lanes::{Key, Lanes},
    link::Link,
    moves::{Mover, Reason},
    net::Received,
    orphans::Orphans,
    pacing::Pacing,
    positions::Keeper,
    sink_gate::SinkGate,
    starts::{DeferredStart, StartRecorded, Starts},
    stats::Counters,
    topology::Topology,
};
use errors::{is_timeout, shown};
use gristmill_pool::{ErrorClass, Outcome, Results, TaskError, error::Cause};
use gristmill_store::message_runs::RunKey;
use offsets::{Offsets, offset_of};
use overdue::Overdue;
use pause::{Pause, SinkFailures};
use session::Session;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use steps::{Step, Steps};
use suspects::Suspects;
use takeover::{Ended, Place};

/// How often is looked whether another consumer is done with a message of the same id.
const IN_PROGRESS_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct Dispatcher {
    set: Arc<Set>,
    link: Link,
    topology: Arc<Topology>,
    mover: Mover,
    once: Option<Arc<Once>>,
    crew: Crew,
    results: Results<Ran>,
    counters: Arc<Counters>,
    session: Option<Session>,
    lanes: Lanes<Flight>,
    suspects: Suspects,
    /// Made ready for a worker when there was no room for it.
    held: Option<(Job, Flight)>,
    /// In the pool, by their numbers there.
    flights: HashMap<u64, Flight>,
    /// Being moved, or waiting for another attempt in their place.
    steps: Steps,
    /// Whether the sink works, and what waits for it.
    pause: Pause<Flight>,
    /// Those of a lost channel.
    orphans: Orphans<Place, Ended>,
    starts: Starts,
    /// In a stream: what is not done, and what comes next.
    offsets: Offsets,
    pacing: Pacing,
    overdue: Overdue,
    /// When it was last looked at how fast handlers are.
    measured: Instant,
    /// Consumers of the queue beside this one: the fewest of all times that it began.
    others: Option<u32>,
    keeper: Option<Keeper>,
    /// Nothing more is to be started.
    closing: Leave,
}

/// A delivery between the broker and its end.
#[derive(Clone)]
struct Flight {
    delivery: Delivery,
    tag: u64,
    key: Option<Key>,
    offset: Option<u64>,
    /// Revoked when its channel is lost: it can then not be acknowledged through it.
    leave: Leave,
    /// Its row among the starts that are counted, where it may have been started before.
    run: Option<RunKey>,
    recorded: Option<StartRecorded>,
    /// What it is known by; computed when it is delivered again, or its channel is lost.
    fingerprint: Option<Fingerprint>,
    /// It may be what ended a process.
    suspect: bool,
    sink_failures: SinkFailures,
}

/// What a consumer is made of.
pub(crate) struct Parts {
    pub(crate) set: Arc<Set>,
    pub(crate) link: Link,
    pub(crate) topology: Arc<Topology>,
    pub(crate) mover: Mover,
    pub(crate) once: Option<Arc<Once>>,
    pub(crate) starts: Starts,
    pub(crate) counters: Arc<Counters>,
    pub(crate) crew: Crew,
    pub(crate) results: Results<Ran>,
    /// What keeps the position in a stream, and where that begins.
    pub(crate) position: Option<(Keeper, Option<u64>)>,
}

impl Dispatcher {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { set, link, topology, mover, once, starts, counters, crew, results, position } = parts;
        let pacing = Pacing::new(&set.sizing);
        let (keeper, next) = position.unzip();
        let offsets = Offsets::from(next.flatten());
        let pause = Pause::new(set.probe_delay.0, set.probe_delay.1);
        let overdue = Overdue::new(set.broker_timeout);
        Self {
            set,
            link,
            topology,
            mover,
            once,
            crew,
            results,
            counters,
            session: None,
            lanes: Lanes::default(),
            suspects: Suspects::default(),
            held: None,
            flights: HashMap::new(),
            steps: Steps::default(),
            pause,
            orphans: Orphans::default(),
            starts,
            offsets,
            keeper,
            pacing,
            overdue,
            measured: Instant::now(),
            others: None,
            closing: Leave::default(),
        }
    }

    /// A delivery has come.
    fn take_in(&mut self, received: Box<Received>) -> Result<(), Error> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let tag = received.tag;
        if !session.ledger.open(tag) {
            let text = format!("the broker gave delivery {tag} a number that is not the next");
            return Err(Error::Channel { code: 541, text });
        }
        let leave = session.leave.clone();
        let delivery = Delivery::new(&self.set.queue, received);
        self.counters.received.fetch_add(1, Relaxed);
        self.counters.postponed.received(delivery.headers());
        if delivery.is_redelivered() {
            self.counters.redelivered.fetch_add(1, Relaxed);
        }
        // Only a stream's: anybody can put a header of that name on a message.
        let offset = self.set.is_stream.then(|| offset_of(&delivery)).flatten();
        let is_finished = offset.is_some_and(|offset| !self.offsets.deliver(offset));
        let key = self.key_of(&delivery);
        let sink_failures = SinkFailures::new(delivery.failed_alone());
        let flight = Flight {
            delivery,
            tag,
            key,
            offset,
            leave,
            run: None,
            recorded: None,
            fingerprint: None,
            suspect: false,
            sink_failures,
        };
        if is_finished {
            self.finish(&Flight { key: None, ..flight });
            return Ok(());
        }
        if self.closing.is_revoked() {
            self.settle_known(flight);
            return Ok(());
        }
        if let Some(flight) = self.recognise(flight) {
            match self.due_in(&flight) {
                Some(delay) => self.wait(flight, delay, None::<fn()>),
                None => self.admit(flight),
            }
        }
        Ok(())
    }

    /// It is to run, unless something speaks against it.
    fn admit(&mut self, flight: Flight) {
        // By a way of its own, and so without its lane: it never runs.
        if let Some(why) = flight.delivery.unreadable().map(str::to_owned) {
            return self.bury(Flight { key: None, ..flight }, Reason::Unreadable, why);
        }
        if flight.delivery.came_too_late() {
            return self.expire(&Flight { key: None, ..flight });
        }
        self.lanes.add(flight.key.clone(), flight);
    }

    fn key_of(&self, delivery: &Delivery) -> Option<Key> {
        match &self.set.order {
            Some(OrderBy::RoutingKey) => Some(delivery.routing_key().into()),
            Some(OrderBy::Header(name)) => delivery.headers().get(name).map(|value| value.to_string().into()),
            // One worker: all in one line, also behind one that waits for its next attempt.
            None if self.set.sizing.workers == 1 => Some("".into()),
            // Two of the same id at once would both not have been seen before.
            None if self.set.once_within.is_some() => delivery.identity().map(Key::from),
            None => None,
        }
    }

    /// Hands workers what they have room for.
    fn feed(&mut self) {
        if self.pause.is_paused() {
            return self.feed_probe();
        }
        self.feed_recovered();
        loop {
            let (job, flight) = match self.held.take() {
                Some(held) => held,
                None => {
                    let Some(mut flight) = self.suspects.next(&mut self.lanes) else { return };
                    (self.job(&mut flight, self.pause.gate().clone()), flight)
                }
            };
            match self.crew.submit(job) {
                Ok(number) => self.submitted(number, flight),
                Err(Some(job)) => {
                    self.held = Some((job, flight));
                    return;
                }
                // The pool is closed: it stays with the broker.
                Err(None) => self.release(&flight),
            }
        }
    }

    fn submitted(&mut self, number: u64, flight: Flight) {
        self.suspects.started(&flight);
        self.flights.insert(number, flight);
    }

    fn job(&self, flight: &mut Flight, gate: SinkGate) -> Job {
        let leave = [flight.leave.clone(), self.closing.clone()];
        let by_handler = self.set.handler_records_starts;
        let start = flight.run.zip(self.starts.store().cloned()).map(|(key, store)| {
            let recorded = flight.recorded.get_or_insert_default().clone();
            Box::new(RunStart { store, key, recorded, by_handler })
        });
        if let Some(start) = start.as_ref().filter(|_| by_handler) {
            let RunStart { store, key, recorded, .. } = RunStart::clone(start);
            flight.delivery.defer_start(DeferredStart::new(store, key, recorded, flight.suspect));
        }
        job(&self.set, flight.delivery.clone(), leave, gate, start, self.once.as_ref())
    }

    /// A worker is done with one.
    fn settle(&mut self, outcome: Outcome<Ran>) {
        let number = outcome.task.id.get();
        let Some(mut flight) = self.flights.remove(&number) else { return };
        self.suspects.ended(&flight);
        match &outcome.result {
            Ok(Ran::Done { started } | Ran::Duplicate { started }) => {
                self.sink_worked(number, Some(*started));
            }
            Ok(Ran::Seen | Ran::InProgress | Ran::Skipped | Ran::OverLimit(_)) => self.pause.not_run(number),
            Err(failure) => {
                if is_timeout(&failure.error) {
                    self.counters.timed_out.fetch_add(1, Relaxed);
                }
                if let Some(fault) = self.sink_failed(number, &mut flight, &failure.error) {
                    return self.wait_for_sink(flight, number, fault, &failure.error);
                }
            }
        }
        match outcome.result {
            Ok(Ran::Skipped) => self.skipped(flight, number),
            Ok(Ran::InProgress) if self.is_given_back(&flight) => self.skipped(flight, number),
            Ok(Ran::InProgress) => self.wait(flight, IN_PROGRESS_DELAY, None::<fn()>),
            Ok(Ran::OverLimit(starts)) => self.over_limit(flight, number, starts),
            Ok(ran @ (Ran::Done { .. } | Ran::Duplicate { .. } | Ran::Seen)) => {
                let is_done = matches!(ran, Ran::Done { .. });
                let counter = if is_done { &self.counters.done } else { &self.counters.skipped };
                counter.fetch_add(1, Relaxed);
                self.keep_outcome(&flight, Place::Worker(number), || Ended::Done);
                self.finish(&flight);
            }
            Err(failure) if matches!(failure.error.cause(), Cause::Cancelled) => {
                self.interrupt(&flight);
                self.release(&flight);
            }
            Err(failure) => {
                let error = failure.error;
                let ended = || Ended::Failed(Box::new(flight.clone()), Arc::clone(&error));
                match self.keep_outcome(&flight, Place::Worker(number), ended) {
                    true => self.release(&flight),
                    false => self.failed(flight, &error),
                }
            }
        }
    }

    /// The consumer itself ended the run, as it stops, and gives the message back.
    fn interrupt(&mut self, flight: &Flight) {
        self.take_back(flight);
        self.starts.put_back(flight.run);
    }

    /// The run has ended, by no fault of the message: its start does not count, if it has recorded one.
    fn take_back(&mut self, flight: &Flight) {
        if flight.recorded.as_ref().is_some_and(StartRecorded::take) {
            self.starts.take_back(flight.run);
        }
    }

    /// Whether the broker has the message back, or gets it back when this consumer has stopped.
    fn is_given_back(&self, flight: &Flight) -> bool {
        flight.leave.is_revoked() || self.closing.is_revoked()
    }

    /// It was not started: its channel was lost before a worker took it, or the consumer pauses or stops.
    fn skipped(&mut self, flight: Flight, number: u64) {
        if self.is_given_back(&flight) {
            self.forget(&flight, Place::Worker(number));
            self.starts.put_back(flight.run);
            return self.release(&flight);
        }
        // A new delivery has taken its place, or consuming was paused.
        self.lanes.put_back(flight);
    }

    fn over_limit(&mut self, flight: Flight, number: u64, starts: u32) {
        if flight.leave.is_revoked() {
            self.forget(&flight, Place::Worker(number));
            self.starts.put_back(flight.run);
            return self.release(&flight);
        }
        let why = format!(
            "started again {starts} times without getting to its end: it may end the process that runs it"
        );
        self.bury(flight, Reason::Starts, why);
    }

    /// It is done here: to be acknowledged, and the next of its lane may start.
    fn finish(&mut self, flight: &Flight) {
        self.release(flight);
        self.starts.end(flight.run);
        if let Some(offset) = flight.offset {
            self.offsets.finish(offset);
        }
        match &mut self.session {
            Some(session) if !flight.leave.is_revoked() => session.ledger.done(flight.tag),
            // The broker has it back, and will send it again.
            _ => {}
        }
    }

    fn release(&mut self, flight: &Flight) {
        self.lanes.release(flight.key.as_ref());
    }

    fn failed(&mut self, flight: Flight, error: &TaskError) {
        let why = shown(error);
        let passing = matches!(error.class(), ErrorClass::Transient | ErrorClass::Partial);
        let failed = flight.delivery.failed().saturating_add(1);
        if !passing {
            return self.bury(flight, Reason::Permanent, why);
        }
        if failed >= self.set.retry.max_attempts() {
            return self.bury(flight, Reason::Attempts, why);
        }
        let delay = error.retry_after().unwrap_or_default().max(self.set.retry.delay(failed));
        if flight.delivery.expires_within(delay) {
            return self.expire(&flight);
        }
        self.counters.retried.fetch_add(1, Relaxed);
        tracing::warn!(
            consumer = self.set.name,
            id = flight.delivery.message_id(),
            attempt = flight.delivery.attempt(),
            of = self.set.retry.max_attempts(),
            again_after = ?delay,
            error = why,
            "a message failed; it is tried again"
        );
        match self.stays_in_place(&flight) {
            true => self.try_again(flight, why, delay),
            false => self.begin(flight, Step::PutOff { why, delay }),
        }
    }

    /// Whether a message waits here for another attempt, and not in a queue. What falls back into a stream would come to all who
    /// read it; a queue that was there already may be one.
    fn stays_in_place(&self, flight: &Flight) -> bool {
        let maybe_stream = || self.set.kind.is_none() && offset_of(&flight.delivery).is_some();
        self.set.in_place || maybe_stream()
    }

    fn bury(&mut self, flight: Flight, reason: Reason, why: String) {
        tracing::error!(
            consumer = self.set.name,
            id = flight.delivery.message_id(),
            attempt = flight.delivery.attempt(),
            ?reason,
            error = why,
            "a message is given up; it goes to the dead letters"
        );
        self.begin(flight, Step::Bury { reason, why });
    }

    /// The channel is lost: what waits is the broker's again, what runs continues and is known when it comes again.
    fn lose(&mut self, error: &Error) {
        let Some(session) = self.session.take() else { return };
        session.leave.revoke();
        self.forget_waiting();
        self.orphan_all();
        self.counters.lost.fetch_add(1, Relaxed);
        self.counters.consuming.store(false, Relaxed);
        tracing::warn!(consumer = self.set.name, %error, running = self.flights.len(), "consuming was interrupted");
    }

    fn forget_waiting(&mut self) {
        if let Some((_, flight)) = self.held.take() {
            self.starts.put_back(flight.run);
            self.release(&flight);
        }
        for flight in self.suspects.clear().into_iter().chain(self.pause.take_waiting()) {
            self.starts.put_back(flight.run);
            self.release(&flight);
        }
        let starts = &mut self.starts;
        self.lanes.clear(|flight| flight.key.clone(), |flight| starts.put_back(flight.run));
    }

    fn show(&self) {
        self.counters.waiting.store(self.waiting() as u64, Relaxed);
        let under_way = self.flights.len() + self.steps.len();
        self.counters.in_flight.store(under_way as u64, Relaxed);
        if self.set.is_stream {
            let position = self.offsets.position();
            self.counters.position.store(position.map_or(0, |at| at.saturating_add(1)), Relaxed);
            if let Some(keeper) = &self.keeper {
                keeper.note(position);
            }
        }
    }
}

impl Drop for Dispatcher {
    /// Ended without a word: nothing more is begun. What was not acknowledged the broker delivers again.
    fn drop(&mut self) {
        self.closing.revoke();
        self.crew.cancel();
    }
}
