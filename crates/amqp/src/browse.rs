//! Takes messages from a queue one by one with `basic.get`: to show, move or return them.
//!
//! Owns the open requests. A message that is not acknowledged returns to its queue when the channel closes.

use crate::{
    delivery::Delivery,
    error::Error,
    net::{Channel, Connection, Event},
    wire::method::{Incoming, Outgoing},
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Maximum bytes of bodies in flight.
const MAX_BYTES: usize = 16 << 20;
const MAX_REQUESTS: usize = 200;
/// Time for a quorum queue to process the last acknowledgements: closing the channel drops those still waiting.
const ACK_SETTLE_TIME: Duration = Duration::from_millis(250);
/// Maximum wait for the broker to confirm the end of the channel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Browser {
    channel: Channel,
    queue: Arc<str>,
    /// Number of open requests.
    pub(crate) requested: usize,
    /// Size of the largest body so far, in bytes.
    largest: usize,
    /// Delivery tags of messages that are neither acknowledged nor returned.
    held: BTreeSet<u64>,
}

impl Browser {
    pub(crate) async fn open(connection: &Connection, queue: &str) -> Result<Self, Error> {
        let channel = Channel::open(connection).await?;
        Ok(Self { channel, queue: queue.into(), requested: 0, largest: 0, held: BTreeSet::new() })
    }

    /// Maximum number of messages in memory, by the largest so far; few before the first.
    pub(crate) fn window(&self) -> usize {
        match self.largest {
            0 => 8,
            largest => (MAX_BYTES / largest).clamp(1, MAX_REQUESTS),
        }
    }

    pub(crate) fn request(&mut self) {
        self.requested += 1;
        self.channel.send(&Outgoing::Get { queue: &self.queue });
    }

    /// Waits for the reply to the oldest request: a message with its tag, or none if the queue is empty.
    pub(crate) async fn next(&mut self) -> Result<Option<(u64, Delivery)>, Error> {
        loop {
            let received = match self.channel.next().await? {
                Event::Message(received) => Some(received),
                Event::Reply(Incoming::GetEmpty) => None,
                _ => continue,
            };
            self.requested = self.requested.saturating_sub(1);
            return Ok(received.map(|received| {
                self.largest = self.largest.max(received.body.len()).max(1);
                self.held.insert(received.tag);
                (received.tag, Delivery::new(&self.queue, received))
            }));
        }
    }

    /// Removes a message from the queue.
    pub(crate) fn acknowledge(&mut self, tag: u64) {
        self.held.remove(&tag);
        self.channel.send(&Outgoing::Ack { tag, multiple: false });
    }

    /// Returns all unacknowledged messages to the queue. One by one: a quorum queue reverses the order of several.
    pub(crate) async fn close(self) {
        for tag in &self.held {
            self.channel.send(&Outgoing::Nack { tag: *tag, multiple: false, requeue: true });
        }
        tokio::time::sleep(ACK_SETTLE_TIME).await;
        self.channel.close(CLOSE_TIMEOUT).await;
    }
}

/// Returns the first messages of a queue without removing them.
pub(crate) async fn peek(connection: &Connection, queue: &str, limit: usize) -> Result<Vec<Delivery>, Error> {
    let mut browser = Browser::open(connection, queue).await?;
    let mut found = Vec::new();
    let mut requested = 0;
    loop {
        while requested < limit && browser.requested < browser.window() {
            browser.request();
            requested += 1;
        }
        if browser.requested == 0 {
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
