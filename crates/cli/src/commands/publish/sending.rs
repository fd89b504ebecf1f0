//! Messages on their way to the broker.
//!
//! Owns the messages in flight, whose number is bounded, and the errors about those that were not confirmed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gristmill_amqp::{Error as Fault, Publisher};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver};

use super::Args;
use super::source::{Input, Origin};
use crate::output::{note, sanitize};

/// The number of failed messages that are named; further ones are only counted.
pub(super) const NAMED: u64 = 20;

/// How far it has come.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) published: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Why nothing more is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// There is nothing more.
    All,
    Interrupted,
    /// The broker confirms nothing. Sending more would only name more that may have arrived or not.
    Stuck,
}

type Confirmation = Pin<Box<dyn Future<Output = Result<(), Fault>> + Send>>;

/// Messages on their way.
pub(super) struct Sending<'a> {
    args: &'a Args,
    publisher: Publisher,
    counts: &'a Counts,
    /// In the order they were sent in.
    on_their_way: VecDeque<(Origin, u64, Confirmation)>,
    stuck: bool,
}

impl<'a> Sending<'a> {
    pub(super) fn new(args: &'a Args, publisher: Publisher, counts: &'a Counts) -> Self {
        Sending { args, publisher, counts, on_their_way: VecDeque::new(), stuck: false }
    }

    /// Sends all messages until it is cancelled, and waits for those that are in flight then.
    pub(super) async fn all(
        &mut self,
        mut inputs: Receiver<Input>,
        mut cancelled: UnboundedReceiver<()>,
    ) -> End {
        let most = usize::try_from(self.args.in_flight).unwrap_or(1) * 2;
        let end = loop {
            if self.stuck {
                break End::Stuck;
            }
            // One that is slow must not have the others that are confirmed heaped up behind it.
            let is_full = self.on_their_way.len() >= most;
            tokio::select! {
                biased;
                Some(()) = cancelled.recv() => break End::Interrupted,
                settled = self.next(), if !self.on_their_way.is_empty() => self.settle(settled),
                input = inputs.recv(), if !is_full => match input {
                    None => break End::All,
                    Some(Input::Bad(origin, why)) => self.not(&origin, &why),
                    Some(Input::Message(origin, body)) => {
                        if !self.send(origin, body, &mut cancelled).await {
                            break End::Interrupted;
                        }
                    }
                },
            }
        };
        while !self.on_their_way.is_empty() {
            let settled = self.next().await;
            self.settle(settled);
        }
        if self.stuck { End::Stuck } else { end }
    }

    /// Sends a message as soon as there is room. Returns false if it was cancelled before that.
    async fn send(&mut self, origin: Origin, body: Vec<u8>, cancelled: &mut UnboundedReceiver<()>) -> bool {
        let size = body.len() as u64;
        let begun = tokio::select! {
            begun = self.publisher.send(self.args.message(body)) => begun,
            Some(()) = cancelled.recv() => return false,
        };
        match begun {
            Ok(confirmed) => self.on_their_way.push_back((origin, size, Box::pin(confirmed))),
            Err(error) => self.fail(&origin, &error),
        }
        true
    }

    /// What became of the oldest.
    async fn next(&mut self) -> Result<(), Fault> {
        match self.on_their_way.front_mut() {
            Some((_, _, confirmed)) => confirmed.await,
            None => Ok(()),
        }
    }

    fn settle(&mut self, result: Result<(), Fault>) {
        let Some((origin, size, _)) = self.on_their_way.pop_front() else { return };
        match result {
            Ok(()) => {
                self.counts.published.fetch_add(1, Relaxed);
                self.counts.bytes.fetch_add(size, Relaxed);
            }
            Err(error) => self.fail(&origin, &error),
        }
    }

    fn fail(&mut self, origin: &Origin, error: &Fault) {
        self.stuck |= matches!(error, Fault::Unconfirmed(_) | Fault::Closed);
        self.not(origin, &error.to_string());
    }

    fn not(&self, origin: &Origin, why: &str) {
        if self.counts.failed.fetch_add(1, Relaxed) < NAMED {
            note(&format!("error: {origin}: {}", sanitize(why)));
        }
    }
}
