//! Messages taken from a queue one by one, without consuming: to be shown, moved or given back.
//!
//! Owns the requests that are on their way, and their bound. A message that is not acknowledged goes back to its queue
//! when the channel closes.

use crate::{
    delivery::Delivery,
    error::Error,
    net::{Channel, Connection, Event, Received},
    wire::method::{Incoming, Outgoing},
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Bytes of bodies that may be on their way at a time.
const MAX_BYTES: usize = 16 << 20;
/// Requests that may be on their way at a time.
const MAX_REQUESTS: usize = 200;
/// How long the broker has to take in the last acknowledgements. It forgets those of a quorum queue that still wait their
/// turn when the channel closes.
const ACK_SETTLE_TIME: Duration = Duration::from_millis(250);
/// How long the broker may take to answer the end of the channel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes messages from one queue.
pub(crate) struct Browser {
    channel: Channel,
    queue: Arc<str>,
    /// Requests that are not answered yet.
    requested: usize,
    /// The size of the largest body so far.
    largest: usize,
    /// Messages that are neither acknowledged nor given back, by their numbers.
    held: BTreeSet<u64>,
}

impl Browser {
    pub(crate) async fn open(connection: &Connection, queue: &str) -> Result<Self, Error> {
        let channel = Channel::open(connection).await?;
        Ok(Self { channel, queue: queue.into(), requested: 0, largest: 0, held: BTreeSet::new() })
    }

    /// How many messages may be in memory at a time, by the largest seen so far; few before the first.
    pub(crate) fn window(&self) -> usize {
        match self.largest {
            0 => 8,
            largest => (MAX_BYTES / largest).clamp(1, MAX_REQUESTS),
        }
    }

    /// Requests that are not answered yet.
    pub(crate) fn requested(&self) -> usize {
        self.requested
    }

    /// Asks for one message.
    pub(crate) fn request(&mut self) {
        self.requested += 1;
        self.channel.send(&Outgoing::Get { queue: &self.queue });
    }

    /// The answer to the oldest request: a message with its number, or none if the queue is empty.
    pub(crate) async fn next(&mut self) -> Result<Option<(u64, Delivery)>, Error> {
        loop {
            match self.channel.next().await? {
                Event::Message(received) => {
                    self.requested = self.requested.saturating_sub(1);
                    return Ok(Some(self.delivery(received)));
                }
                Event::Reply(Incoming::GetEmpty) => {
                    self.requested = self.requested.saturating_sub(1);
                    return Ok(None);
                }
                _ => {}
            }
        }
    }

    fn delivery(&mut self, received: Box<Received>) -> (u64, Delivery) {
        self.largest = self.largest.max(received.body.len()).max(1);
        self.held.insert(received.tag);
        (received.tag, Delivery::new(&self.queue, received))
    }

    /// Removes a message from the queue.
    pub(crate) fn acknowledge(&mut self, tag: u64) {
        self.held.remove(&tag);
        self.channel.send(&Outgoing::Ack { tag, multiple: false });
    }

    /// Gives all back that is not acknowledged. One by one: a quorum queue reverses the order of several.
    pub(crate) async fn close(self) {
        for tag in &self.held {
            self.channel.send(&Outgoing::Nack { tag: *tag, multiple: false, requeue: true });
        }
        tokio::time::sleep(ACK_SETTLE_TIME).await;
        self.channel.close(CLOSE_TIMEOUT).await;
    }
}

/// The first messages of a queue, which stay in it.
pub(crate) async fn peek(connection: &Connection, queue: &str, limit: usize) -> Result<Vec<Delivery>, Error> {
    let mut browser = Browser::open(connection, queue).await?;
    let mut found = Vec::new();
    let mut requested = 0;
    loop {
        while requested < limit && browser.requested() < browser.window() {
            browser.request();
            requested += 1;
        }
        if browser.requested() == 0 {
            break;
        }
        match browser.next().await? {
            Some((_, delivery)) => found.push(delivery),
            None => requested = limit,
        }
    }
    browser.close().await;
    Ok(found)
}
