//! Moves messages from one queue to another: each is published, confirmed, and only then removed from its old queue.
//!
//! A kill at any time loses no message; one that was confirmed and not yet removed is then in both queues. Messages
//! that do not match are held until the end and return to their queue, where their order may change.

use crate::{
    browse::Browser, delivery::Delivery, error::Error, message::Message, publisher::Publisher,
    reconnect::ManagedConnection, topology,
};
use serde::Serialize;
use std::{
    pin::{Pin, pin},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};

type Filter = dyn Fn(&Delivery) -> bool + Send + Sync;

/// Selects the messages to move, and their target.
#[must_use]
pub struct Transfer {
    source: String,
    target: String,
    filter: Box<Filter>,
    limit: Option<u64>,
    dry_run: bool,
}

/// Progress of a [`Transfer`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Transferred {
    /// Number of ready messages in the source at the start.
    pub total_at_start: u64,
    /// Messages examined. Those that a lost connection returned are counted again.
    pub examined: u64,
    /// Examined messages that match the filter.
    pub matched: u64,
    /// Matching messages confirmed in the target and removed from the source.
    pub moved: u64,
    /// Messages that stay because their properties cannot be read.
    pub unreadable: u64,
    /// Number of lost connections. Messages confirmed at that time may be in both queues.
    pub connection_losses: u64,
    /// Whether it was cancelled before its end.
    pub interrupted: bool,
}

/// Maximum number of held messages that do not match. Each costs the broker some hundred bytes of memory.
const MAX_HELD: u64 = 1_000_000;
/// Maximum number of connections lost in a row without a message moved.
const MAX_INTERRUPTIONS: u32 = 5;
/// Interval between queries whether the broker has requeued the messages of a lost connection.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Transfer {
    /// Moves all messages of a queue to another.
    pub fn new(source: impl Into<String>, target: impl Into<String>) -> Self {
        Self { source: source.into(), target: target.into(), filter: Box::new(|_| true), limit: None, dry_run: false }
    }

    /// Moves only messages for which this returns true.
    pub fn only(mut self, filter: impl Fn(&Delivery) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Box::new(filter);
        self
    }

    /// Limits the number of messages moved.
    pub fn limit(mut self, count: u64) -> Self {
        self.limit = Some(count);
        self
    }

    /// Counts the matching messages without moving them.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }
}

pub(crate) struct TransferRun<'a> {
    pub(crate) broker: &'a ManagedConnection,
    pub(crate) publisher: &'a Publisher,
    pub(crate) transfer: &'a Transfer,
    pub(crate) progress: Transferred,
    /// Error that ends the transfer, for example a publication that failed.
    pub(crate) fault: Option<Error>,
}

impl TransferRun<'_> {
    /// Moves the messages that are in the source at the start, until `cancelled` completes. Later messages stay.
    pub(crate) async fn run(&mut self, cancelled: impl Future<Output = ()>) -> Result<(), Error> {
        let Transfer { source, target, .. } = self.transfer;
        if source == target {
            return Err(Error::Declaration(format!("queue {source} cannot be moved to itself")));
        }
        let mut cancelled = pin!(cancelled);
        let at_start = async {
            self.depth(target).await?;
            self.depth(source).await
        };
        let Some(at_start) = or_cancelled(cancelled.as_mut(), at_start).await else {
            return self.cancel();
        };
        let mut left = at_start?;
        self.progress.total_at_start = left;
        let mut failures = 0;
        loop {
            let Transferred { moved, examined, .. } = self.progress;
            let lost = match self.pass(left, cancelled.as_mut()).await {
                Ok(()) => return self.end(moved + self.progress.examined - examined),
                Err(error) => error,
            };
            failures = if self.progress.moved > moved { 1 } else { failures + 1 };
            self.progress.connection_losses += 1;
            if self.progress.interrupted {
                return self.cancel();
            }
            if !lost.is_transient() || failures > MAX_INTERRUPTIONS || self.fault.is_some() {
                return Err(self.fault.take().unwrap_or(lost));
            }
            tracing::warn!(error = %lost, source, target, "the move was interrupted; it continues");
            let Some(depth) = or_cancelled(cancelled.as_mut(), self.depth_after_loss()).await else {
                return self.cancel();
            };
            left = depth?.min(self.progress.total_at_start);
        }
    }

    fn cancel(&mut self) -> Result<(), Error> {
        self.progress.interrupted = true;
        self.fault.take().map_or(Ok(()), Err)
    }

    /// Checks the last pass. `seen` messages were moved before it or examined in it. After a lost connection these may
    /// be fewer than at the start. Messages whose acknowledgement was lost are counted twice, so more may be missing.
    fn end(&mut self, seen: u64) -> Result<(), Error> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let Transferred { total_at_start, matched, connection_losses, interrupted, .. } = self.progress;
        let is_limited = self.transfer.limit.is_some_and(|limit| matched >= limit);
        let missing = total_at_start.saturating_sub(seen);
        if connection_losses == 0 || interrupted || is_limited || missing == 0 {
            return Ok(());
        }
        Err(Error::Message(format!(
            "at least {missing} messages of queue {} were not examined: after the connection was lost they were not in the queue. \
             Another consumer received them, or the broker has not noticed the loss. Repeat the move to examine those that are back",
            self.transfer.source
        )))
    }

    async fn depth(&self, queue: &str) -> Result<u64, Error> {
        topology::depth(&mut self.broker.channel().await?, queue).await.map(|(messages, _)| u64::from(messages))
    }

    /// Number of messages in the source after a lost connection. The broker requeues those of the lost channel when it
    /// notices the loss, by its heartbeats; another consumer may have received some.
    async fn depth_after_loss(&self) -> Result<u64, Error> {
        let Transferred { total_at_start, moved, .. } = self.progress;
        let heartbeat = self.broker.connected().await?.0.heartbeat();
        // A broker closes a connection after two heartbeats without data.
        let until = Instant::now() + (heartbeat * 4).max(Duration::from_secs(5));
        loop {
            match self.depth(&self.transfer.source).await {
                Ok(depth) if depth + moved >= total_at_start || Instant::now() >= until => return Ok(depth),
                Err(error) if !error.is_transient() || Instant::now() >= until => return Err(error),
                Ok(_) | Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Examines up to `left` messages through one channel.
    async fn pass(&mut self, left: u64, mut cancelled: Pin<&mut impl Future<Output = ()>>) -> Result<(), Error> {
        let opening = async { Browser::open(&self.broker.connected().await?.0, &self.transfer.source).await };
        let Some(browser) = or_cancelled(cancelled.as_mut(), opening).await else { return self.cancel() };
        let mut browser = browser?;
        let mut publications: JoinSet<(u64, Result<(), Error>)> = JoinSet::new();
        let (mut left, mut held) = (left, 0);
        let lost = loop {
            let is_over = self.progress.interrupted || self.fault.is_some();
            while left > 0 && !is_over && self.has_room(&browser, publications.len(), held) {
                browser.request();
                left -= 1;
            }
            if browser.requested == 0 && publications.is_empty() {
                break None;
            }
            tokio::select! {
                biased;
                () = &mut cancelled, if !self.progress.interrupted => self.progress.interrupted = true,
                Some(done) = publications.join_next() => {
                    let Ok((tag, result)) = done else { continue };
                    match result {
                        Ok(()) => {
                            browser.acknowledge(tag);
                            self.progress.moved += 1;
                        }
                        Err(error) => self.fault = self.fault.take().or(Some(error)),
                    }
                }
                // Also without open requests, to notice a lost connection.
                reply = browser.next() => match reply {
                    Ok(Some((tag, delivery))) => {
                        let publication = self.publication(&delivery).filter(|_| !self.transfer.dry_run);
                        match publication.filter(|_| self.fault.is_none() && !self.progress.interrupted) {
                            Some(message) => {
                                let publisher = self.publisher.clone();
                                publications.spawn(async move { (tag, publisher.publish(message).await) });
                            }
                            None => held += 1,
                        }
                    }
                    Ok(None) => left = 0,
                    Err(error) => break Some(error),
                },
            }
        };
        if let Some(error) = lost {
            // Messages being published still arrive, and stay in the source too.
            let arriving = async { while publications.join_next().await.is_some() {} };
            if !self.progress.interrupted && or_cancelled(cancelled, arriving).await.is_none() {
                self.progress.interrupted = true;
            }
            return Err(error);
        }
        if held >= MAX_HELD && left > 0 {
            let what = format!(
                "{MAX_HELD} messages that do not match are held, which is the maximum; {left} were not examined"
            );
            self.fault = self.fault.take().or(Some(Error::Message(what)));
        }
        browser.close().await;
        Ok(())
    }

    fn has_room(&self, browser: &Browser, publications: usize, held: u64) -> bool {
        let requested = browser.requested as u64;
        let below_limit = self.transfer.limit.is_none_or(|limit| self.progress.matched + requested < limit);
        below_limit && held + requested < MAX_HELD && browser.requested + publications < browser.window()
    }

    /// Returns the message to publish if the delivery matches.
    fn publication(&mut self, delivery: &Delivery) -> Option<Message> {
        self.progress.examined += 1;
        if delivery.unreadable_properties().is_some() {
            self.progress.unreadable += 1;
            return None;
        }
        if !(self.transfer.filter)(delivery) {
            return None;
        }
        self.progress.matched += 1;
        Some(Message::requeued(
            &self.transfer.target,
            delivery.exchange(),
            delivery.routing_key(),
            delivery.properties().clone(),
            delivery.body().clone(),
        ))
    }
}

/// Returns the output of `work`, or none if it is cancelled first.
async fn or_cancelled<T>(cancelled: Pin<&mut impl Future<Output = ()>>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = cancelled => None,
        done = work => Some(done),
    }
}
