//! The dispatcher's event loop, from opening the first session to the stop.

use super::{
    Dispatcher,
    requeue_on_pause::ACK_SETTLE_TIME,
    session::{self, Session},
};
use crate::{
    error::Error,
    handler_pool::JobOutput,
    net::Event,
    publisher::sleep_until,
    reconnect::deadline_after,
    store::MessageRun,
    wire::method::{Incoming, Outgoing},
};
use gristmill_pool::{Outcome, Results};
use std::{
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Poll,
    time::Duration,
};
use tokio::{sync::oneshot, time::MissedTickBehavior};

/// Maximum number of deliveries or results handled before other events.
const MAX_BATCH: usize = 256;
/// Interval of loop iterations without events, for periodic work.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for the broker to confirm the end of a channel.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) type OpeningSession = Pin<Box<dyn Future<Output = Result<(Session, Vec<MessageRun>), Error>> + Send>>;

impl Dispatcher {
    /// Consumes until `stop` receives the deadline for stopping.
    pub(crate) async fn run(
        mut self,
        mut started: Option<oneshot::Sender<Result<(), Error>>>,
        mut stop: oneshot::Receiver<Duration>,
    ) {
        let mut failed_openings = 0;
        let mut ticks = tokio::time::interval(TICK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut opening = self.open_session(failed_openings);
        let deadline = loop {
            let flush_by = self.session.as_ref().and_then(|session| session.flush_by);
            let batch_due = self.batch_due();
            tokio::select! {
                biased;
                deadline = &mut stop => break deadline.unwrap_or_default(),
                outcome = self.results.next_async() => self.settle_all(outcome).await,
                end = self.follow_ups.next() => self.on_follow_up_end(end),
                event = next_event(&mut self.session) => {
                    if let Err(error) = event.and_then(|event| self.on_events(event)) {
                        self.on_channel_lost(&error);
                        self.explain_timeout(&error);
                        if matches!(error, Error::Cancelled { .. }) {
                            // The queue was deleted; a stream may be created again with other offsets.
                            self.offsets.forget_finished();
                        }
                        // A refused consumer waits before it reopens; a lost connection has its own back-off.
                        failed_openings = if matches!(error, Error::Cancelled { .. } | Error::Channel { .. }) { 1 } else { 0 };
                        opening = self.open_session(failed_openings);
                    }
                }
                opened = &mut opening, if self.session.is_none() => match opened {
                    Ok((session, runs)) => {
                        failed_openings = 0;
                        if session.was_recreated {
                            self.restart_stream();
                        }
                        self.offsets.begin();
                        self.starts.refresh(runs);
                        // A new channel numbers its deliveries from 1.
                        self.ack_timeout.samples.clear();
                        self.counters.prefetch.store(session.prefetch.into(), Relaxed);
                        // Keep the smallest count: another consumer may have been about to end.
                        self.other_consumers = Some(self.other_consumers.map_or(session.others, |others| others.min(session.others)));
                        self.session = Some(session);
                        self.counters.consuming.store(true, Relaxed);
                        tracing::info!(
                            consumer = self.config.name,
                            queue = &*self.config.queue,
                            workers = self.config.sizing.workers,
                            prefetch = self.counters.prefetch.load(Relaxed),
                            "consuming"
                        );
                        started.take().map(|started| started.send(Ok(())));
                    }
                    Err(error) => {
                        // Before the first success the caller waits for this error and can fix its cause.
                        if !error.is_transient() && let Some(started) = started.take() {
                            let _ = started.send(Err(error));
                            return;
                        }
                        failed_openings += 1;
                        tracing::warn!(consumer = self.config.name, %error, failed = failed_openings, "cannot consume yet");
                        opening = self.open_session(failed_openings);
                    }
                },
                () = sleep_until(flush_by) => {}
                () = sleep_until(self.pause.due()) => {}
                () = sleep_until(batch_due) => {}
                _ = ticks.tick() => {}
            }
            self.dispatch();
            self.adapt_prefetch();
            self.flush_acks(false);
            self.warn_before_ack_timeout();
            if let Some(session) = self.requeue_on_long_pause() {
                opening = self.reopen_session(session);
            }
            // Not awaited: it is written in the background.
            drop(self.starts.flush(false));
            self.update_gauges();
        };
        drop(opening);
        self.stop(deadline).await;
    }

    pub(super) fn open_session(&self, failed: u32) -> OpeningSession {
        let options = session::SessionOptions {
            config: Arc::clone(&self.config),
            broker: self.broker.clone(),
            topology: Arc::clone(&self.topology),
            resume: self.offsets.resume(),
            is_reopen: self.offsets.since.is_some(),
            prefetch: self.initial_prefetch(),
            others: self.other_consumers,
            failed,
        };
        let starts = self.starts.store.clone();
        Box::pin(async move {
            let runs = match starts {
                Some(starts) => tokio::task::spawn_blocking(move || starts.load()).await.unwrap_or_default(),
                None => Vec::new(),
            };
            Ok((Session::open(options).await?, runs))
        })
    }

    /// Closes a channel, which requeues its messages, and opens another.
    fn reopen_session(&self, session: Session) -> OpeningSession {
        let opening = self.open_session(0);
        Box::pin(async move {
            session.channel.close(CLOSE_TIMEOUT).await;
            opening.await
        })
    }

    /// Handles this result and all that are ready, to save loop iterations.
    async fn settle_all(&mut self, outcome: Option<Outcome<JobOutput>>) {
        let mut next = outcome;
        for _ in 0..MAX_BATCH {
            match next {
                Some(outcome) => self.settle(outcome),
                None => return,
            }
            next = try_next_result(&mut self.results).await;
        }
        if let Some(outcome) = next {
            self.settle(outcome);
        }
    }

    pub(super) fn on_events(&mut self, event: Event) -> Result<(), Error> {
        self.on_event(event)?;
        for _ in 0..MAX_BATCH {
            let Some(event) = self.session.as_mut().and_then(|session| session.channel.try_next()) else {
                break;
            };
            self.on_event(event?)?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Message(received) => {
                self.adaptive_prefetch.received(received.body.len());
                self.on_delivery(received)
            }
            // basic.cancel-ok: the old consumer is cancelled; another begins with the new prefetch.
            Event::Reply(Incoming::Other(60, 31)) => {
                if let Some(session) = self.session.as_mut().filter(|_| !self.stopping.is_cancelled()) {
                    session.consume_with_new_prefetch(&self.config);
                    self.counters.prefetch.store(session.prefetch.into(), Relaxed);
                }
                Ok(())
            }
            Event::Cancelled => Err(Error::Cancelled { queue: self.config.queue.to_string() }),
            _ => Ok(()),
        }
    }

    pub(super) fn flush_acks(&mut self, at_end: bool) {
        let idle = self.in_pool.is_empty();
        if let Some(session) = &mut self.session {
            let acked = session.flush_acks(idle, at_end);
            self.counters.acknowledged.fetch_add(acked as u64, Relaxed);
        }
    }

    /// Whether acknowledgements may still be in progress. A quorum queue processes them one after the other, and
    /// RabbitMQ forgets those that wait when the channel is closed: the messages are redelivered. It answers other
    /// requests meanwhile, so nothing shows when it has finished; it takes milliseconds.
    pub(super) fn may_have_unprocessed_acks(&self) -> bool {
        let is_classic = self.config.kind.as_deref() == Some("classic");
        !is_classic && self.session.is_some() && self.counters.acknowledged.load(Relaxed) > 0
    }

    /// Stops consuming, finishes running handlers within `timeout`, acknowledges them, and requeues the rest.
    async fn stop(mut self, timeout: Duration) {
        self.stopping.cancel();
        if let Some(session) = &self.session {
            session.channel.send(&Outgoing::Cancel { tag: &session.tag });
        }
        self.discard_waiting();
        // A message that waits for a retry in place is retried by another consumer.
        for message in self.follow_ups.cancel_waits_in_place() {
            self.starts.release_row(message.run);
        }
        let deadline = deadline_after(timeout);
        let timeout = deadline.saturating_duration_since(tokio::time::Instant::now());
        let shutdown = tokio::spawn(self.pool.clone().shutdown(timeout));
        let mut running = true;
        while running || !self.follow_ups.moves.is_empty() {
            let flush_by = self.session.as_ref().and_then(|session| session.flush_by);
            tokio::select! {
                biased;
                outcome = self.results.next_async(), if running => match outcome {
                    Some(outcome) => self.settle_all(Some(outcome)).await,
                    None => running = false,
                },
                end = self.follow_ups.next() => self.on_follow_up_end(end),
                event = next_event(&mut self.session) => {
                    if let Err(error) = event.and_then(|event| self.on_events(event))
                        && !matches!(error, Error::Cancelled { .. })
                    {
                        self.on_channel_lost(&error);
                    }
                }
                () = sleep_until(flush_by) => {}
                // The pool enforces the deadline for runs; republications must not outlast it.
                () = tokio::time::sleep_until(deadline), if !running => break,
            }
            self.flush_acks(false);
            self.update_gauges();
        }
        let _ = shutdown.await;
        self.settle_orphans(deadline).await;
        self.flush_acks(true);
        // Runs that were ended here did not crash.
        for (_, message) in std::mem::take(&mut self.in_pool) {
            self.interrupt(&message);
        }
        while self.follow_ups.records.join_next().await.is_some() {}
        if let Some(flushed) = self.starts.flush(true) {
            let _ = flushed.await;
        }
        if self.may_have_unprocessed_acks() {
            tokio::time::sleep(ACK_SETTLE_TIME).await;
        }
        self.follow_ups.moves.abort_all();
        if let Some(session) = self.session.take() {
            // Closing requeues unacknowledged messages in their place in the queue.
            session.channel.close(CLOSE_TIMEOUT).await;
        }
        self.counters.consuming.store(false, Relaxed);
        self.update_gauges();
        if let Some(position_writer) = self.position_writer.take() {
            position_writer.close().await;
        }
    }
}

pub(super) async fn next_event(session: &mut Option<Session>) -> Result<Event, Error> {
    match session {
        Some(session) => session.channel.next().await,
        None => std::future::pending().await,
    }
}

/// Polls once. Returns `None` if no result is ready or the pool has ended.
async fn try_next_result<T>(results: &mut Results<T>) -> Option<Outcome<T>> {
    std::future::poll_fn(|context| {
        let next = pin!(results.next_async());
        Poll::Ready(match next.poll(context) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => None,
        })
    })
    .await
}
