//! The loop: what happens next, whatever it is.

use super::{Dispatcher, session::Session};
use crate::link::later;
use crate::{error::Error, net::Event, publisher::sleep_until, wire::method::Outgoing};
use gristmill_pool::{Outcome, Results};
use std::{
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Poll,
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinSet};

/// How many deliveries and results are taken at a time before the others have their turn.
const AT_A_TIME: usize = 256;
/// How long a quorum queue has to take in the last acknowledgements.
const SETTLE: Duration = Duration::from_millis(250);
/// How long the broker may take to hear the last of it.
const GOOD_BYE: Duration = Duration::from_secs(2);

type Opening = Pin<Box<dyn Future<Output = Result<Session, Error>> + Send>>;

impl Dispatcher {
    /// Consumes until it is told to stop, and how long that may take.
    pub(crate) async fn run(
        mut self,
        mut first: Option<oneshot::Sender<Result<(), Error>>>,
        mut stop: oneshot::Receiver<Duration>,
    ) {
        let mut failed = 0;
        let mut opening = self.opening(failed);
        let deadline = loop {
            let tell_by = self.session.as_ref().and_then(|session| session.tell_by);
            tokio::select! {
                biased;
                deadline = &mut stop => break deadline.unwrap_or_default(),
                outcome = self.results.next_async() => self.settle_all(outcome).await,
                turn = next_of(&mut self.turns) => self.turned(turn),
                flight = next_of(&mut self.naps) => self.due(flight),
                event = next_event(&mut self.session) => {
                    if let Err(error) = event.and_then(|event| self.hear_all(event)) {
                        self.lose(&error);
                        failed = if matches!(error, Error::Cancelled { .. } | Error::Channel { .. }) { 1 } else { 0 };
                        opening = self.opening(failed);
                    }
                }
                opened = &mut opening, if self.session.is_none() => match opened {
                    Ok(session) => {
                        failed = 0;
                        self.offsets.begin();
                        self.session = Some(session);
                        self.counters.consuming.store(true, Relaxed);
                        tracing::info!(
                            consumer = self.set.name,
                            queue = &*self.set.queue,
                            workers = self.set.sizing.workers,
                            prefetch = self.set.sizing.prefetch,
                            "consuming"
                        );
                        first.take().map(|first| first.send(Ok(())));
                    }
                    Err(error) => {
                        // Before the first success somebody waits who can put it right.
                        if !error.is_passing() && let Some(first) = first.take() {
                            let _ = first.send(Err(error));
                            return;
                        }
                        failed += 1;
                        tracing::warn!(consumer = self.set.name, %error, failed, "cannot consume yet");
                        opening = self.opening(failed);
                    }
                },
                () = sleep_until(tell_by) => {}
            }
            self.feed();
            self.tell(false);
            self.show();
        };
        drop(opening);
        self.stop(deadline).await;
    }

    fn opening(&self, failed: u32) -> Opening {
        let (set, link, topology) = (Arc::clone(&self.set), self.link.clone(), Arc::clone(&self.topology));
        Box::pin(Session::open(set, link, topology, self.offsets.resume(), failed))
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

    fn hear_all(&mut self, event: Event) -> Result<(), Error> {
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
            Event::Message(received) => self.take_in(*received),
            Event::Cancelled => Err(Error::Cancelled { queue: self.set.queue.to_string() }),
            _ => Ok(()),
        }
    }

    fn tell(&mut self, now: bool) {
        let idle = self.flights.is_empty();
        if let Some(session) = &mut self.session {
            let told = session.tell(self.set.sizing.prefetch, now || idle);
            self.counters.acknowledged.fetch_add(told as u64, Relaxed);
        }
    }

    /// A quorum queue takes acknowledgements one after the other, and RabbitMQ forgets those that still wait their turn when
    /// the channel is closed: those messages come again. It answers everything else meanwhile, so that nothing tells
    /// when it is through; it takes milliseconds.
    fn is_settling(&self) -> bool {
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
        self.naps.abort_all();
        let until = later(deadline);
        let deadline = until.saturating_duration_since(tokio::time::Instant::now());
        let shutdown = tokio::spawn(self.crew.clone().shutdown(deadline));
        let mut running = true;
        while running || !self.turns.is_empty() {
            let tell_by = self.session.as_ref().and_then(|session| session.tell_by);
            tokio::select! {
                biased;
                outcome = self.results.next_async(), if running => match outcome {
                    Some(outcome) => self.settle_all(Some(outcome)).await,
                    None => running = false,
                },
                turn = next_of(&mut self.turns) => self.turned(turn),
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
        self.tell(true);
        if self.is_settling() {
            tokio::time::sleep(SETTLE).await;
        }
        self.turns.abort_all();
        if let Some(session) = self.session.take() {
            // Closing gives back what was not acknowledged, in its place in the queue.
            session.channel.close(GOOD_BYE).await;
        }
        self.counters.consuming.store(false, Relaxed);
        self.show();
    }
}

async fn next_event(session: &mut Option<Session>) -> Result<Event, Error> {
    match session {
        Some(session) => session.channel.next().await,
        None => std::future::pending().await,
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
