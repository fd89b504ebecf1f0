//! The reading task: splits frames, assembles messages, and passes events to their channels.

use super::{
    ChannelEntry, Shared,
    channel::{Event, Received, Returned},
    lock,
};
use crate::{
    error::Error,
    wire::{
        frame::{self, Content, Frame},
        method::{Incoming, Outgoing},
        table::Malformed,
    },
};
use bytes::{Bytes, BytesMut};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum size of bodies that are copied; larger ones keep their part of the read buffer. A small message held for
/// long would otherwise hold a whole buffer.
const MAX_COPIED_BODY: usize = 4096;

/// Maximum frame size accepted. Larger than negotiated, because RabbitMQ adds headers (`x-death`) without checking.
const MAX_FRAME: usize = 16 << 20;

pub(super) async fn run<R: AsyncRead + Unpin>(shared: Arc<Shared>, mut stream: R, mut buffer: BytesMut) {
    let silence_timeout = shared.tune.heartbeat * 2;
    let mut ended = shared.ended.subscribe();
    let mut reader = Reader::new(Arc::clone(&shared));
    loop {
        if let Err(why) = reader.read_frames(&mut buffer) {
            shared.end(why);
            return;
        }
        buffer.reserve(64 << 10);
        tokio::select! {
            biased;
            _ = ended.wait_for(Option::is_some) => return,
            read = tokio::time::timeout(silence_timeout, stream.read_buf(&mut buffer)) => match read {
                Err(_) => shared.end(Error::HeartbeatTimeout { to: shared.name.clone(), after: silence_timeout }),
                Ok(Err(source)) => shared.end(Error::Io { to: shared.name.clone(), source }),
                Ok(Ok(0)) => {
                    let source = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the broker closed the connection");
                    shared.end(Error::Io { to: shared.name.clone(), source });
                }
                Ok(Ok(_)) => {}
            }
        }
    }
}

pub(super) struct Reader {
    shared: Arc<Shared>,
    /// Incomplete messages by channel; rarely more than one.
    partial: Vec<(u16, PartialMessage)>,
}

struct PartialMessage {
    received: Box<Received>,
    /// Reason, if the broker returns it to its publisher.
    returned: Option<String>,
    has_header: bool,
    missing: u64,
    /// Body so far, if it has several frames.
    parts: Option<BytesMut>,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, partial: Vec::new() }
    }

    pub(super) fn read_frames(&mut self, buffer: &mut BytesMut) -> Result<(), Error> {
        while let Some(frame) = frame::cut(buffer, MAX_FRAME).map_err(|error| self.protocol_error(&error))? {
            self.on_frame(frame)?;
        }
        Ok(())
    }

    fn protocol_error(&self, malformed: &Malformed) -> Error {
        Error::Protocol { to: self.shared.name.clone(), what: malformed.to_string() }
    }

    fn on_frame(&mut self, frame: Frame) -> Result<(), Error> {
        match frame.content {
            Content::Heartbeat => Ok(()),
            Content::Method(payload) => {
                let method = Incoming::read(&payload).map_err(|error| self.protocol_error(&error))?;
                match frame.channel {
                    0 => self.connection(method),
                    channel => {
                        match PartialMessage::begin(method) {
                            Ok(partial) => {
                                self.forget(channel);
                                self.partial.push((channel, partial));
                            }
                            Err(method) => self.channel(channel, method),
                        }
                        Ok(())
                    }
                }
            }
            Content::Header(payload) => {
                let Some((at, partial)) = self.partial(frame.channel) else { return Ok(()) };
                match frame::header(&payload, &mut partial.received.properties) {
                    Ok((size, malformed)) => {
                        partial.missing = size;
                        partial.has_header = true;
                        partial.received.malformed = malformed;
                    }
                    Err(malformed) => return Err(self.protocol_error(&malformed)),
                }
                self.complete(at);
                Ok(())
            }
            Content::Body(payload) => {
                if let Some((at, partial)) = self.partial(frame.channel) {
                    let Some(missing) = partial.missing.checked_sub(payload.len() as u64) else {
                        return Err(self.protocol_error(&Malformed("body: longer than announced")));
                    };
                    partial.missing = missing;
                    partial.add(payload);
                    self.complete(at);
                }
                Ok(())
            }
        }
    }

    /// Returns the incomplete message of a channel, and its index.
    fn partial(&mut self, channel: u16) -> Option<(usize, &mut PartialMessage)> {
        let at = self.partial.iter().position(|(number, _)| *number == channel)?;
        self.partial.get_mut(at).map(|(_, partial)| (at, partial))
    }

    fn forget(&mut self, channel: u16) {
        self.partial.retain(|(number, _)| *number != channel);
    }

    /// Delivers a message whose last part has arrived.
    fn complete(&mut self, at: usize) {
        if self.partial.get(at).is_none_or(|(_, partial)| partial.missing > 0 || !partial.has_header) {
            return;
        }
        let (channel, PartialMessage { mut received, returned, parts, .. }) = self.partial.swap_remove(at);
        if let Some(parts) = parts {
            received.body = parts.freeze();
        }
        let event = match returned {
            None => Event::Message(received),
            Some(text) => Event::Returned(Box::new(Returned { text, message: *received })),
        };
        self.deliver(channel, event);
    }

    fn connection(&mut self, method: Incoming) -> Result<(), Error> {
        match method {
            Incoming::Close { code, text } => {
                self.shared.send(0, &Outgoing::CloseOk);
                return Err(Error::ConnectionRefused { to: self.shared.name.clone(), code, text });
            }
            Incoming::CloseOk if self.shared.is_closing.load(Relaxed) => return Err(Error::Closed),
            Incoming::CloseOk => {
                return Err(self.protocol_error(&Malformed("reply: close-ok without a close")));
            }
            Incoming::Blocked { why } => {
                self.shared.blocked.send_replace(Some(why));
            }
            Incoming::Unblocked => {
                self.shared.blocked.send_replace(None);
            }
            _ => {}
        }
        Ok(())
    }

    fn channel(&mut self, channel: u16, method: Incoming) {
        match method {
            Incoming::ChannelClose { code, text } => {
                self.forget(channel);
                let mut channels = lock(&self.shared.channels);
                match channels.insert(channel, ChannelEntry::ClosedByBroker) {
                    Some(ChannelEntry::Open(events, gate)) => {
                        self.shared.send_final(channel, &Outgoing::ChannelCloseOk, &gate);
                        let _ = events.send(Event::Closed { code, text });
                    }
                    // Both sides closed it at once. The reply to our close frees the number.
                    Some(closing @ ChannelEntry::Closing { .. }) => {
                        channels.insert(channel, closing);
                        self.shared.send(channel, &Outgoing::ChannelCloseOk);
                    }
                    Some(ChannelEntry::ClosedByBroker) | None => {
                        channels.remove(&channel);
                    }
                }
            }
            Incoming::ChannelCloseOk => {
                self.forget(channel);
                let mut channels = lock(&self.shared.channels);
                if matches!(channels.get(&channel), Some(ChannelEntry::Closing { .. })) {
                    channels.remove(&channel);
                }
            }
            // RabbitMQ has not sent it for many years, but it must be answered.
            Incoming::ChannelFlow { active } => self.shared.send(channel, &Outgoing::ChannelFlowOk { active }),
            Incoming::Ack { tag, multiple } => {
                self.deliver(channel, Event::Confirmed { tag, multiple, acked: true });
            }
            Incoming::Nack { tag, multiple } => {
                self.deliver(channel, Event::Confirmed { tag, multiple, acked: false });
            }
            Incoming::Cancel => self.deliver(channel, Event::Cancelled),
            reply => self.deliver(channel, Event::Reply(reply)),
        }
    }

    /// Sends an event to a channel, if it is open.
    fn deliver(&self, channel: u16, event: Event) {
        if let Some(ChannelEntry::Open(events, _)) = lock(&self.shared.channels).get(&channel) {
            let _ = events.send(event);
        }
    }
}

impl PartialMessage {
    /// Begins a message with this method; returns methods that do not begin one.
    fn begin(method: Incoming) -> Result<Self, Incoming> {
        let (received, returned) = match method {
            Incoming::Deliver { tag, redelivered, exchange, key }
            | Incoming::GetOk { tag, redelivered, exchange, key } => {
                (Received { tag, redelivered, exchange, key, ..Received::default() }, None)
            }
            Incoming::Return { text, exchange, key } => (Received { exchange, key, ..Received::default() }, Some(text)),
            other => return Err(other),
        };
        Ok(Self { received: Box::new(received), returned, has_header: false, missing: 0, parts: None })
    }

    fn add(&mut self, part: Bytes) {
        if let Some(parts) = &mut self.parts {
            return parts.extend_from_slice(&part);
        }
        let body = &mut self.received.body;
        if body.is_empty() {
            *body = if part.len() <= MAX_COPIED_BODY { Bytes::copy_from_slice(&part) } else { part };
            return;
        }
        let mut parts = BytesMut::with_capacity(body.len() + part.len());
        parts.extend_from_slice(body);
        parts.extend_from_slice(&part);
        self.parts = Some(parts);
    }
}
