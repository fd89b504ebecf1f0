//! One channel of a connection, owned by one task.
//!
//! Methods sent through it reach this channel of this connection only, so an acknowledgement cannot reach another.

use super::{ChannelEntry, CloseOnDrop, Connection, SendGate, Shared, lock, writer::OUT_BUFFER_CAPACITY};
use crate::{
    error::Error,
    wire::{
        frame,
        method::{Incoming, Outgoing},
        properties::Properties,
        table::Malformed,
    },
};
use bytes::Bytes;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// Maximum wait for a reply. The heartbeat detects dead brokers; this detects one that is alive and does not reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Channel {
    number: u16,
    shared: Arc<Shared>,
    _guard: Arc<CloseOnDrop>,
    events: mpsc::UnboundedReceiver<Event>,
    /// Events that came while a reply was waited for.
    queued: VecDeque<Event>,
    gate: SendGate,
    /// Closed here: another channel may have its number.
    closed: bool,
}

#[derive(Debug)]
pub(crate) enum Event {
    Message(Box<Received>),
    Returned(Box<Returned>),
    Confirmed { tag: u64, multiple: bool, acked: bool },
    Cancelled,
    Closed { code: u16, text: String },
    Reply(Incoming),
}

/// A message that could not be routed.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) text: String,
    pub(crate) message: Received,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) tag: u64,
    pub(crate) redelivered: bool,
    pub(crate) exchange: String,
    pub(crate) key: String,
    pub(crate) properties: Properties,
    /// Why its properties cannot be read, if they cannot.
    pub(crate) malformed: Option<Malformed>,
    pub(crate) body: Bytes,
}

impl Channel {
    pub(crate) async fn open(connection: &Connection) -> Result<Self, Error> {
        let shared = Arc::clone(&connection.shared);
        let (sender, events) = mpsc::unbounded_channel();
        let gate = SendGate::default();
        let number = {
            let mut channels = lock(&shared.channels);
            let is_free = |number: &u16| !channels.contains_key(number);
            let free = (1..=shared.tune.channel_max).find(is_free);
            let number = free.ok_or_else(|| Error::Channel {
                code: 506,
                text: format!("all {} channels of the connection are in use", shared.tune.channel_max),
            })?;
            // Under the lock with which `end` clears them: an entry added later would never be notified.
            if shared.ended.borrow().is_some() {
                return Err(shared.reason());
            }
            channels.insert(number, ChannelEntry::Open(sender, gate.clone()));
            number
        };
        let guard = Arc::clone(&connection._guard);
        let mut channel = Self { number, shared, _guard: guard, events, queued: VecDeque::new(), gate, closed: false };
        channel.call(&Outgoing::ChannelOpen).await?;
        Ok(channel)
    }

    /// Sends a method and waits for its reply.
    pub(crate) async fn call(&mut self, method: &Outgoing<'_>) -> Result<Incoming, Error> {
        self.send(method);
        let replied = async {
            loop {
                let event = self.events.recv().await;
                match self.check_event(event)? {
                    Event::Reply(reply) => return Ok(reply),
                    other => self.queued.push_back(other),
                }
            }
        };
        match tokio::time::timeout(REPLY_TIMEOUT, replied).await {
            Ok(reply) => reply,
            Err(_) => {
                // A late reply would be read as the reply to the next method.
                let text = format!("the broker did not answer within {} s", REPLY_TIMEOUT.as_secs());
                Err(Error::Channel { code: 541, text })
            }
        }
    }

    /// Waits for the next event. The loss of the channel is an error, and the last event.
    pub(crate) async fn next(&mut self) -> Result<Event, Error> {
        let event = match self.queued.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        };
        self.check_event(event)
    }

    pub(crate) fn try_next(&mut self) -> Option<Result<Event, Error>> {
        if let Some(event) = self.queued.pop_front() {
            return Some(self.check_event(Some(event)));
        }
        match self.events.try_recv() {
            Ok(event) => Some(self.check_event(Some(event))),
            Err(mpsc::error::TryRecvError::Empty) => None,
            Err(mpsc::error::TryRecvError::Disconnected) => Some(self.check_event(None)),
        }
    }

    fn check_event(&self, event: Option<Event>) -> Result<Event, Error> {
        match event {
            Some(Event::Closed { code, text }) => Err(Error::Channel { code, text }),
            Some(event) => Ok(event),
            None => Err(self.shared.reason()),
        }
    }

    /// Sends a method without waiting for a reply.
    pub(crate) fn send(&self, method: &Outgoing<'_>) {
        self.shared.write(Some(&self.gate), |out| frame::put_method(out, self.number, method));
    }

    /// Publishes a message if the output buffer has [room](Self::writable). A message that the protocol cannot carry is
    /// an error, because the broker would close the channel. Returns false if there is no room, or if the channel is
    /// closed: then [`next`](Self::next) returns why.
    pub(crate) fn publish(
        &self,
        exchange: &str,
        key: &str,
        mandatory: bool,
        properties: &Properties,
        body: &[u8],
    ) -> Result<bool, Error> {
        let frame_max = self.shared.tune.frame_max;
        let mut out = bytes::BytesMut::with_capacity(body.len() + 512);
        frame::put_method(&mut out, self.number, &Outgoing::Publish { exchange, key, mandatory });
        let before = out.len();
        frame::put_content(&mut out, self.number, properties, &[], frame_max);
        if out.len() - before > frame_max {
            return Err(Error::Message(format!(
                "the message's headers take {} bytes; the broker accepts at most {frame_max}",
                out.len() - before
            )));
        }
        if !body.is_empty() {
            out.truncate(before);
            frame::put_content(&mut out, self.number, properties, body, frame_max);
        }
        if self.gate.is_closed() || !has_room(&self.shared) {
            return Ok(false);
        }
        // If the gate was closed since, `next` returns why and the message is sent on the next channel.
        self.shared.write(Some(&self.gate), |all| all.extend_from_slice(&out));
        Ok(true)
    }

    /// Waits until the output buffer has room. Does not report a closed channel.
    pub(crate) fn writable(&self) -> impl Future<Output = ()> + use<> {
        let (shared, gate) = (Arc::clone(&self.shared), self.gate.clone());
        async move {
            loop {
                let drained = shared.drained.notified();
                tokio::pin!(drained);
                drained.as_mut().enable();
                if has_room(&shared) && !gate.is_closed() {
                    return;
                }
                drained.await;
            }
        }
    }

    /// Closes the channel and waits until the broker has processed everything sent before.
    pub(crate) async fn close(mut self, within: Duration) {
        self.start_close();
        let closed = async { while self.next().await.is_ok() {} };
        let _ = tokio::time::timeout(within, closed).await;
    }

    /// Sends `channel.close`. The number is free when the broker has replied.
    fn start_close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let mut channels = lock(&self.shared.channels);
        match channels.remove(&self.number) {
            Some(ChannelEntry::Open(events, gate)) => {
                channels.insert(self.number, ChannelEntry::Closing { _events: events });
                // Under the lock, because nothing may be sent after the reply to the broker's own close.
                self.shared.send_final(self.number, &Outgoing::ChannelClose, &gate);
            }
            // The broker closed it, and the number was kept until now.
            Some(ChannelEntry::ClosedByBroker) | None => {}
            Some(closing @ ChannelEntry::Closing { .. }) => {
                channels.insert(self.number, closing);
            }
        }
    }
}

fn has_room(shared: &Shared) -> bool {
    lock(&shared.out).buffer.len() < OUT_BUFFER_CAPACITY
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.start_close();
    }
}
