//! Publishes messages and waits for their confirmations.
//!
//! Owns the messages in flight, whose number is bounded, and reports those that were not confirmed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gristmill_amqp::{Error as AmqpError, Publisher};
use gristmill_pool::CancelToken;
use tokio::sync::mpsc::Receiver;

use super::Args;
use super::source::{Input, MessageOrigin};
use crate::output::{note, sanitize};

/// Number of failed messages that are reported one by one; further ones are only counted.
pub(super) const MAX_REPORTED: u64 = 20;

#[derive(Default)]
pub(super) struct PublishCounts {
    pub(super) published: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) bytes: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishEnd {
    All,
    Interrupted,
    /// The broker does not confirm. Sending more would only add messages with an unknown outcome.
    Unconfirmed,
}

type Confirmation = Pin<Box<dyn Future<Output = Result<(), AmqpError>> + Send>>;

pub(super) struct MessageSender<'a> {
    args: &'a Args,
    publisher: Publisher,
    counts: &'a PublishCounts,
    /// Messages in flight in the order of sending, with their sizes in bytes.
    in_flight: VecDeque<(MessageOrigin, u64, Confirmation)>,
    is_unconfirmed: bool,
}

impl<'a> MessageSender<'a> {
    pub(super) fn new(args: &'a Args, publisher: Publisher, counts: &'a PublishCounts) -> Self {
        MessageSender { args, publisher, counts, in_flight: VecDeque::new(), is_unconfirmed: false }
    }

    /// Sends all messages until stopped, then waits for those in flight.
    pub(super) async fn send_all(&mut self, mut inputs: Receiver<Input>, stop: &CancelToken) -> PublishEnd {
        let capacity = usize::try_from(self.args.max_in_flight).unwrap_or(1) * 2;
        let end = loop {
            if self.is_unconfirmed {
                break PublishEnd::Unconfirmed;
            }
            // Bounds the confirmed messages that queue up behind a slow one.
            let is_full = self.in_flight.len() >= capacity;
            tokio::select! {
                biased;
                () = stop.cancelled() => break PublishEnd::Interrupted,
                settled = self.next_confirmation(), if !self.in_flight.is_empty() => self.settle(settled),
                input = inputs.recv(), if !is_full => match input {
                    None => break PublishEnd::All,
                    Some(Input::Invalid(origin, why)) => self.report(&origin, &why),
                    Some(Input::Message(origin, body)) => {
                        if !self.send(origin, body, stop).await {
                            break PublishEnd::Interrupted;
                        }
                    }
                },
            }
        };
        while !self.in_flight.is_empty() {
            let settled = self.next_confirmation().await;
            self.settle(settled);
        }
        if self.is_unconfirmed { PublishEnd::Unconfirmed } else { end }
    }

    /// Sends a message as soon as there is capacity. Returns false if stopped before.
    async fn send(&mut self, origin: MessageOrigin, body: Vec<u8>, stop: &CancelToken) -> bool {
        let size = body.len() as u64;
        let begun = tokio::select! {
            begun = self.publisher.send(self.args.message(body)) => begun,
            () = stop.cancelled() => return false,
        };
        match begun {
            Ok(confirmed) => self.in_flight.push_back((origin, size, Box::pin(confirmed))),
            Err(error) => self.fail(&origin, &error),
        }
        true
    }

    /// Waits for the confirmation of the oldest message in flight.
    async fn next_confirmation(&mut self) -> Result<(), AmqpError> {
        match self.in_flight.front_mut() {
            Some((_, _, confirmed)) => confirmed.await,
            None => Ok(()),
        }
    }

    fn settle(&mut self, result: Result<(), AmqpError>) {
        let Some((origin, size, _)) = self.in_flight.pop_front() else { return };
        match result {
            Ok(()) => {
                self.counts.published.fetch_add(1, Relaxed);
                self.counts.bytes.fetch_add(size, Relaxed);
            }
            Err(error) => self.fail(&origin, &error),
        }
    }

    fn fail(&mut self, origin: &MessageOrigin, error: &AmqpError) {
        self.is_unconfirmed |= matches!(error, AmqpError::Unconfirmed(_) | AmqpError::Closed);
        self.report(origin, &error.to_string());
    }

    fn report(&self, origin: &MessageOrigin, why: &str) {
        if self.counts.failed.fetch_add(1, Relaxed) < MAX_REPORTED {
            note(&format!("error: {origin}: {}", sanitize(why)));
        }
    }
}
