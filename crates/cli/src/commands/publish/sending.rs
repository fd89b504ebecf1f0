//! Messages on their way to the broker.
//!
//! Owns which they are, and what is told of those that did not arrive. Their number is bounded.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gristmill_amqp::{Error as Fault, Publisher};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver};

use super::Args;
use super::source::{Input, Origin};
use crate::output::{aside, visible};

/// So many that did not arrive are named; the others are counted.
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
    Told,
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

    /// Sends all there is, until it is told to stop, and sees to those that are on their way then.
    pub(super) async fn all(&mut self, mut inputs: Receiver<Input>, mut told: UnboundedReceiver<()>) -> End {
        let most = usize::try_from(self.args.in_flight).unwrap_or(1) * 2;
        let end = loop {
            if self.stuck {
                break End::Stuck;
            }
            // One that is slow must not have the others that are confirmed heaped up behind it.
            let is_full = self.on_their_way.len() >= most;
            tokio::select! {
                biased;
                Some(()) = told.recv() => break End::Told,
                settled = self.next(), if !self.on_their_way.is_empty() => self.settle(settled),
                input = inputs.recv(), if !is_full => match input {
                    None => break End::All,
                    Some(Input::Bad(origin, why)) => self.not(&origin, &why),
                    Some(Input::Message(origin, body)) => {
                        if !self.send(origin, body, &mut told).await {
                            break End::Told;
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

    /// Hands one over as soon as there is room. False: it was told to stop before that.
    async fn send(&mut self, origin: Origin, body: Vec<u8>, told: &mut UnboundedReceiver<()>) -> bool {
        let size = body.len() as u64;
        let begun = tokio::select! {
            begun = self.publisher.begin(self.args.message(body)) => begun,
            Some(()) = told.recv() => return false,
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
        self.stuck |= matches!(error, Fault::Unconfirmed(_) | Fault::Ended);
        self.not(origin, &error.to_string());
    }

    fn not(&self, origin: &Origin, why: &str) {
        if self.counts.failed.fetch_add(1, Relaxed) < NAMED {
            aside(&format!("error: {origin}: {}", visible(why)));
        }
    }
}
