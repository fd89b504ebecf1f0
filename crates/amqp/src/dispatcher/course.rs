//! The loop: what happens next, whatever it is.

use super::{
    Dispatcher,
    give_back::SETTLE,
    session::{self, Session},
};
use crate::link::later;
use crate::{
    error::Error,
    net::Event,
    publisher::sleep_until,
    wire::method::{Incoming, Outgoing},
};
use gristmill_pool::{Outcome, Results};
use gristmill_store::message_runs::MessageRun;
use std::{
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Poll,
    time::Duration,
};
use tokio::{sync::oneshot, time::MissedTickBehavior};

/// How many deliveries and results are taken at a time before the others have their turn.
const AT_A_TIME: usize = 256;
/// How often the loop runs where nothing happens: what is done now and then is done then.
const TICK: Duration = Duration::from_secs(1);
/// How long the broker may take to hear the last of it.
pub(super) const GOOD_BYE: Duration = Duration::from_secs(2);

pub(super) type Opening = Pin<Box<dyn Future<Output = Result<(Session, Vec<MessageRun>), Error>> + Send>>;

impl Dispatcher {
    /// Consumes until it is told to stop, and how long that may take.
    pub(crate) async fn run(
        mut self,
        mut first: Option<oneshot::Sender<Result<(), Error>>>,
        mut stop: oneshot::Receiver<Duration>,
    ) {
        let mut failed = 0;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut opening = self.opening(failed);
        let deadline = loop {
            let tell_by = self.session.as_ref().and_then(|session| session.tell_by);
            tokio::select! {
                biased;
                deadline = &mut stop => break deadline.unwrap_or_default(),
                outcome = self.results.next_async() => self.settle_all(outcome).await,
                end = self.steps.next() => self.stepped(end),
                event = next_event(&mut self.session) => {
                    if let Err(error) = event.and_then(|event| self.hear_all(event)) {
                        self.lose(&error);
                        self.explain(&error);
                        if matches!(error, Error::Cancelled { .. }) {
                            self.offsets.forget_finished();
                        }
                        failed = if matches!(error, Error::Cancelled { .. } | Error::Channel { .. }) { 1 } else { 0 };
                        opening = self.opening(failed);
                    }
                }
                opened = &mut opening, if self.session.is_none() => match opened {
                    Ok((session, runs)) => {
                        failed = 0;
                        if session.is_made_anew {
                            self.begin_anew();
                        }
                        self.offsets.begin();
                        self.starts.refresh(runs);
                        self.overdue.restart();
                        self.counters.prefetch.store(session.prefetch.into(), Relaxed);
                        // Fewer than at first: one of them was about to end then.
                        self.others = Some(self.others.map_or(session.others, |others| others.min(session.others)));
                        self.session = Some(session);
                        self.counters.consuming.store(true, Relaxed);
                        tracing::info!(
                            consumer = self.set.name,
                            queue = &*self.set.queue,
                            workers = self.set.sizing.workers,
                            prefetch = self.counters.prefetch.load(Relaxed),
                            "consuming"
                        );
                        first.take().map(|first| first.send(Ok(())));
                    }
                    Err(error) => {
                        // Before the first success somebody waits who can put it right.
                        if !error.is_transient() && let Some(first) = first.take() {
                            let _ = first.send(Err(error));
                            return;
                        }
                        failed += 1;
                        tracing::warn!(consumer = self.set.name, %error, failed, "cannot consume yet");
                        opening = self.opening(failed);
                    }
                },
                () = sleep_until(tell_by) => {}
                () = sleep_until(self.pause.due()) => {}
                _ = ticks.tick() => {}
            }
            self.feed();
            self.adapt();
            self.tell(false);
            self.report_overdue();
            if let Some(session) = self.give_back() {
                opening = self.reopening(session);
            }
            drop(self.starts.flush(false));
            self.show();
        };
        drop(opening);
        self.stop(deadline).await;
    }

    pub(super) fn opening(&self, failed: u32) -> Opening {
        let opening = session::Opening {
            set: Arc::clone(&self.set),
            link: self.link.clone(),
            topology: Arc::clone(&self.topology),
            resume: self.offsets.resume(),
            is_again: self.offsets.has_begun(),
            prefetch: self.first_prefetch(),
            others: self.others,
            failed,
        };
        let starts = self.starts.store().cloned();
        Box::pin(async move {
            let runs = match starts {
                Some(starts) => tokio::task::spawn_blocking(move || starts.load()).await.unwrap_or_default(),
                None => Vec::new(),
            };
            Ok((Session::open(opening).await?, runs))
        })
    }

    /// Closes a channel, which returns what it holds to the queue, and opens another.
    fn reopening(&self, session: Session) -> Opening {
        let opening = self.opening(0);
        Box::pin(async move {
            session.channel.close(GOOD_BYE).await;
            opening.await
        })
    }

    /// This one, and all that are there already: the fewer turns of the loop, the better.
    async fn settle_all(&mut self, outcome: Option<Outcome<crate::crew::Ran>>) {
        let mut next = outcome;
        for _ in 0..AT_A_TIME {
            match next {
                Some(outcome) => self.settle(outcome),
                None => return,
            }
            next = already(&mut self.results).await;
        }
        if let Some(outcome) = next {
            self.settle(outcome);
        }
    }

    pub(super) fn hear_all(&mut self, event: Event) -> Result<(), Error> {
        self.hear(event)?;
        for _ in 0..AT_A_TIME {
            let Some(event) = self.session.as_mut().and_then(|session| session.channel.try_next()) else {
                break;
            };
            self.hear(event?)?;
        }
        Ok(())
    }

    fn hear(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Message(received) => {
                self.pacing.received(received.body.len());
                self.take_in(received)
            }
            Event::Answer(Incoming::Other(60, 31)) => {
                if let Some(session) = self.session.as_mut().filter(|_| !self.closing.is_revoked()) {
                    session.cancelled(&self.set);
                    self.counters.prefetch.store(session.prefetch.into(), Relaxed);
                }
                Ok(())
            }
            Event::Cancelled => Err(Error::Cancelled { queue: self.set.queue.to_string() }),
            _ => Ok(()),
        }
    }

    pub(super) fn tell(&mut self, at_end: bool) {
        let idle = self.flights.is_empty();
        if let Some(session) = &mut self.session {
            let told = session.tell(idle, at_end);
            self.counters.acknowledged.fetch_add(told as u64, Relaxed);
        }
    }

    /// A quorum queue takes acknowledgements one after the other, and RabbitMQ forgets those that still wait their turn when
    /// the channel is closed: those messages come again. It answers everything else meanwhile, so that nothing tells
    /// when it is through; it takes milliseconds.
    pub(super) fn is_settling(&self) -> bool {
        let is_classic = self.set.kind.as_deref() == Some("classic");
        !is_classic && self.session.is_some() && self.counters.acknowledged.load(Relaxed) > 0
    }

    /// Takes nothing more, finishes what runs, acknowledges it, and gives the rest back.
    async fn stop(mut self, deadline: Duration) {
        self.closing.revoke();
        if let Some(session) = &self.session {
            session.channel.send(&Outgoing::Cancel { tag: &session.tag });
        }
        self.forget_waiting();
        // What waits for another attempt here has it elsewhere.
        for flight in self.steps.stop_waiting() {
            self.starts.put_back(flight.run);
        }
        let until = later(deadline);
        let deadline = until.saturating_duration_since(tokio::time::Instant::now());
        let shutdown = tokio::spawn(self.crew.clone().shutdown(deadline));
        let mut running = true;
        while running || !self.steps.has_no_moves() {
            let tell_by = self.session.as_ref().and_then(|session| session.tell_by);
            tokio::select! {
                biased;
                outcome = self.results.next_async(), if running => match outcome {
                    Some(outcome) => self.settle_all(Some(outcome)).await,
                    None => running = false,
                },
                end = self.steps.next() => self.stepped(end),
                event = next_event(&mut self.session) => {
                    if let Err(error) = event.and_then(|event| self.hear_all(event))
                        && !matches!(error, Error::Cancelled { .. })
                    {
                        self.lose(&error);
                    }
                }
                () = sleep_until(tell_by) => {}
                // The pool keeps the deadline by itself; moves must not outlast it.
                () = tokio::time::sleep_until(until), if !running => break,
            }
            self.tell(false);
            self.show();
        }
        let _ = shutdown.await;
        self.settle_lost(until).await;
        self.tell(true);
        // What still runs has been ended here: that is no crash.
        for (_, flight) in std::mem::take(&mut self.flights) {
            self.interrupt(&flight);
        }
        self.steps.recorded().await;
        if let Some(flushed) = self.starts.flush(true) {
            let _ = flushed.await;
        }
        if self.is_settling() {
            tokio::time::sleep(SETTLE).await;
        }
        self.steps.abort_moves();
        if let Some(session) = self.session.take() {
            // Closing gives back what was not acknowledged, in its place in the queue.
            session.channel.close(GOOD_BYE).await;
        }
        self.counters.consuming.store(false, Relaxed);
        self.show();
        if let Some(keeper) = self.keeper.take() {
            keeper.close().await;
        }
    }
}

pub(super) async fn next_event(session: &mut Option<Session>) -> Result<Event, Error> {
    match session {
        Some(session) => session.channel.next().await,
        None => std::future::pending().await,
    }
}

/// The next result, if it is there.
async fn already<T>(results: &mut Results<T>) -> Option<Outcome<T>> {
    std::future::poll_fn(|context| {
        let next = pin!(results.next_async());
        Poll::Ready(match next.poll(context) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => None,
        })
    })
    .await
}
