//! One consumer at work: takes deliveries in, hands them to workers, and tells the broker what became of them.
//!
//! One task owns all of a consumer's state and puts everything that happens in order: deliveries, results, moves, the
//! loss of a channel, the end. Workers share nothing with it but their results.

mod course;
mod session;

use crate::{
    consumer::{OrderBy, Set},
    crew::{Crew, Job, Leave, Once, Ran, job},
    delivery::Delivery,
    error::Error,
    lanes::{Key, Lanes},
    link::Link,
    moves::{Mover, Reason},
    net::Received,
    stats::Counters,
    topology::Topology,
};
use gristmill_pool::{Class, Outcome, Results, TaskError, error::Cause};
use session::Session;
use std::{
    collections::{BTreeSet, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::task::JoinSet;

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
    /// Made ready for a worker when there was no room for it.
    held: Option<(Job, Flight)>,
    /// In the pool, by their numbers there.
    flights: HashMap<u64, Flight>,
    /// Being moved.
    turns: JoinSet<Turn>,
    /// Waiting for another attempt in their place.
    naps: JoinSet<Flight>,
    /// In a stream: what is not done, and what comes next.
    offsets: Offsets,
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
    /// Revoked when its channel is lost: it is then nobody's business here any more.
    leave: Leave,
}

/// What something waited for has come to.
enum Turn {
    /// It is elsewhere now, confirmed, or its channel was lost meanwhile.
    Moved { flight: Flight, arrived: bool },
    /// It could not be counted: it runs without.
    Uncounted(Flight),
}

#[derive(Default)]
struct Offsets {
    open: BTreeSet<u64>,
    next: Option<u64>,
    /// When it began to read, in seconds since 1970.
    since: Option<u64>,
}

/// Where in a stream to go on.
#[derive(Debug, Clone, Copy)]
enum Resume {
    At(u64),
    /// Nothing has come yet; what came meanwhile must.
    Since(u64),
}

impl Offsets {
    fn resume(&self) -> Option<Resume> {
        let at = self.open.first().copied().or(self.next);
        at.map(Resume::At).or(self.since.map(Resume::Since))
    }

    fn begin(&mut self) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // A few seconds before: the broker's clock may be behind ours.
        self.since.get_or_insert(now.map_or(0, |now| now.as_secs().saturating_sub(5)));
    }
}

/// What a consumer is made of.
pub(crate) struct Parts {
    pub(crate) set: Arc<Set>,
    pub(crate) link: Link,
    pub(crate) topology: Arc<Topology>,
    pub(crate) mover: Mover,
    pub(crate) once: Option<Arc<Once>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) crew: Crew,
    pub(crate) results: Results<Ran>,
}

impl Dispatcher {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { set, link, topology, mover, once, counters, crew, results } = parts;
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
            held: None,
            flights: HashMap::new(),
            turns: JoinSet::new(),
            naps: JoinSet::new(),
            offsets: Offsets::default(),
            closing: Leave::default(),
        }
    }

    /// A delivery has come.
    fn take_in(&mut self, received: Received) -> Result<(), Error> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let tag = received.tag;
        if !session.ledger.open(tag) {
            let text = format!("the broker gave delivery {tag} a number that is not the next");
            return Err(Error::Channel { code: 541, text });
        }
        let leave = session.leave.clone();
        let delivery = Delivery::new(&self.set.queue, self.set.kind.as_deref() != Some("classic"), received);
        self.counters.received.fetch_add(1, Relaxed);
        if delivery.is_redelivered() {
            self.counters.redelivered.fetch_add(1, Relaxed);
        }
        // Only a stream's: anybody can put a header of that name on a message.
        let offset = self.set.is_stream.then(|| offset_of(&delivery)).flatten();
        if let Some(offset) = offset {
            self.offsets.open.insert(offset);
            self.offsets.next = Some(offset + 1);
        }
        let key = self.key_of(&delivery);
        let flight = Flight { delivery, tag, key, offset, leave };
        if !self.closing.is_revoked() {
            self.admit(flight);
        }
        Ok(())
    }

    /// It is to run, unless something speaks against it.
    fn admit(&mut self, flight: Flight) {
        // By a way of its own, and so without its lane: it never runs.
        if let Some(why) = flight.delivery.unreadable().map(str::to_owned) {
            return self.bury(Flight { key: None, ..flight }, Reason::Unreadable, why);
        }
        let before = flight.delivery.deliveries_before();
        if before > self.set.max_deliveries {
            let why = format!(
                "delivered {before} times before, and never got to its end: what runs it may die of it"
            );
            return self.bury(Flight { key: None, ..flight }, Reason::Deliveries, why);
        }
        if self.is_uncounted(&flight.delivery) {
            return self.count(Flight { key: None, ..flight });
        }
        self.lanes.add(flight.key.clone(), flight);
    }

    /// Delivered again, by a broker that does not say how often. Then the message itself must: it may be one that
    /// kills its workers. Not where order matters: it would be behind the others.
    fn is_uncounted(&self, delivery: &Delivery) -> bool {
        delivery.is_redelivered()
            && !self.set.in_place
            && (self.set.kind.as_deref() == Some("classic")
                || delivery.headers().get("x-delivery-count").is_none())
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
        loop {
            let (job, flight) = match self.held.take() {
                Some(held) => held,
                None => {
                    let Some(flight) = self.lanes.next() else { return };
                    let leave = [flight.leave.clone(), self.closing.clone()];
                    (job(&self.set, flight.delivery.clone(), leave, self.once.clone()), flight)
                }
            };
            match self.crew.submit(job) {
                Ok(number) => {
                    self.flights.insert(number, flight);
                }
                Err(Some(job)) => {
                    self.held = Some((job, flight));
                    return;
                }
                // The pool is closed: it stays with the broker.
                Err(None) => self.release(&flight),
            }
        }
    }

    /// A worker is done with one.
    fn settle(&mut self, outcome: Outcome<Ran>) {
        let Some(flight) = self.flights.remove(&outcome.task.id.get()) else { return };
        match outcome.result {
            Ok(Ran::Skipped) => self.release(&flight),
            Ok(ran) => {
                let counter = if ran == Ran::Seen { &self.counters.skipped } else { &self.counters.done };
                counter.fetch_add(1, Relaxed);
                self.finish(&flight);
            }
            Err(failure) => self.failed(flight, &failure.error),
        }
    }

    /// It is done here: to be acknowledged, and the next of its lane may start.
    fn finish(&mut self, flight: &Flight) {
        self.release(flight);
        if let Some(offset) = flight.offset {
            self.offsets.open.remove(&offset);
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
        if matches!(error.cause(), Cause::Cancelled) || flight.leave.is_revoked() {
            return self.release(&flight);
        }
        // It is the handler's own, and so is how it shows itself.
        let shown = catch_unwind(AssertUnwindSafe(|| error.to_string()));
        let why = shown.unwrap_or_else(|_| "an error that panics when it is shown".to_owned());
        let passing = matches!(error.class(), Class::Transient | Class::Partial);
        let failed = flight.delivery.failed().saturating_add(1);
        if !passing {
            return self.bury(flight, Reason::Permanent, why);
        }
        if failed >= self.set.retry.attempts() {
            return self.bury(flight, Reason::Attempts, why);
        }
        self.counters.retried.fetch_add(1, Relaxed);
        let delay = error.earliest_retry().unwrap_or_default().max(self.set.retry.delay(failed));
        tracing::warn!(
            consumer = self.set.name,
            id = flight.delivery.message_id(),
            attempt = flight.delivery.attempt(),
            of = self.set.retry.attempts(),
            again_after = ?delay,
            error = why,
            "a message failed; it is tried again"
        );
        // What falls back into a stream would come to all who read it; a queue that was there already may be one.
        let maybe_stream = self.set.kind.is_none() && offset_of(&flight.delivery).is_some();
        match self.set.in_place || maybe_stream {
            true => self.try_again(flight, delay),
            false => self.put_off(flight, why, delay),
        }
    }

    /// In its place: it keeps its lane, and no worker.
    fn try_again(&mut self, flight: Flight, delay: Duration) {
        self.naps.spawn(async move {
            tokio::time::sleep(delay).await;
            let delivery = flight.delivery.after_failure();
            Flight { delivery, ..flight }
        });
    }

    fn put_off(&mut self, flight: Flight, why: String, delay: Duration) {
        let mover = self.mover.clone();
        self.turns.spawn(async move {
            let arrived = mover.put_off(&flight.delivery, &why, delay, &flight.leave).await;
            Turn::Moved { flight, arrived }
        });
    }

    fn count(&mut self, flight: Flight) {
        let mover = self.mover.clone();
        self.turns.spawn(async move {
            match mover.count(&flight.delivery).await {
                true => Turn::Moved { flight, arrived: true },
                false => Turn::Uncounted(flight),
            }
        });
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
        let (mover, counters) = (self.mover.clone(), Arc::clone(&self.counters));
        self.turns.spawn(async move {
            let arrived = mover.bury(&flight.delivery, reason, &why, &flight.leave).await;
            if arrived {
                counters.rejected.fetch_add(1, Relaxed);
            }
            Turn::Moved { flight, arrived }
        });
    }

    fn turned(&mut self, turn: Turn) {
        match turn {
            Turn::Moved { flight, arrived: true } => self.finish(&flight),
            Turn::Moved { flight, arrived: false } => self.release(&flight),
            Turn::Uncounted(flight) if flight.leave.is_revoked() || self.closing.is_revoked() => {}
            Turn::Uncounted(flight) => {
                let key = self.key_of(&flight.delivery);
                self.lanes.add(key.clone(), Flight { key, ..flight });
            }
        }
    }

    /// One that waited in its place is to be tried again.
    fn due(&mut self, flight: Flight) {
        match flight.leave.is_revoked() || self.closing.is_revoked() {
            true => self.release(&flight),
            false => self.lanes.put_back(flight),
        }
    }

    /// The channel is lost: what waits is the broker's again, what runs is nobody's.
    fn lose(&mut self, error: &Error) {
        let Some(session) = self.session.take() else { return };
        session.leave.revoke();
        self.forget_waiting();
        self.counters.lost.fetch_add(1, Relaxed);
        self.counters.consuming.store(false, Relaxed);
        tracing::warn!(consumer = self.set.name, %error, running = self.flights.len(), "consuming was interrupted");
    }

    fn forget_waiting(&mut self) {
        if let Some((_, flight)) = self.held.take() {
            self.release(&flight);
        }
        self.lanes.clear(|flight| flight.key.clone());
    }

    fn show(&self) {
        let waiting = self.lanes.len() + usize::from(self.held.is_some());
        self.counters.waiting.store(waiting as u64, Relaxed);
        let under_way = self.flights.len() + self.turns.len() + self.naps.len();
        self.counters.in_flight.store(under_way as u64, Relaxed);
    }
}

impl Drop for Dispatcher {
    /// Ended without a word: nothing more is begun. What was not acknowledged the broker delivers again.
    fn drop(&mut self) {
        self.closing.revoke();
        self.crew.cancel();
    }
}

fn offset_of(delivery: &Delivery) -> Option<u64> {
    delivery
        .headers()
        .get("x-stream-offset")
        .and_then(crate::Value::as_int)
        .and_then(|at| u64::try_from(at).ok())
}
