//! The task that reads: cuts frames, puts messages together, and hands each channel what is its own.

use super::{
    Shared, Slot,
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

/// Bodies up to here are copied out of what was read; a larger one keeps its part of it. A small message that is
/// held for long would otherwise hold a whole buffer.
const COPIED: usize = 4096;

/// What a frame may take. Not what was agreed on: RabbitMQ adds headers of its own to messages (`x-death`) and does not look
/// whether they still fit.
const LARGEST: usize = 16 << 20;

pub(super) async fn run<R: AsyncRead + Unpin>(shared: Arc<Shared>, mut stream: R, mut buffer: BytesMut) {
    let patience = shared.agreed.heartbeat * 2;
    let mut ended = shared.ended.subscribe();
    let mut reader = Reader::new(Arc::clone(&shared));
    loop {
        if let Err(why) = reader.take_all(&mut buffer) {
            shared.end(why);
            return;
        }
        buffer.reserve(64 << 10);
        tokio::select! {
            biased;
            _ = ended.wait_for(Option::is_some) => return,
            read = tokio::time::timeout(patience, stream.read_buf(&mut buffer)) => match read {
                Err(_) => shared.end(Error::HeartbeatTimeout { to: shared.name.clone(), after: patience }),
                Ok(Err(source)) => shared.end(Error::Io { to: shared.name.clone(), source }),
                Ok(Ok(0)) => {
                    let source = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the broker hung up");
                    shared.end(Error::Io { to: shared.name.clone(), source });
                }
                Ok(Ok(_)) => {}
            }
        }
    }
}

pub(super) struct Reader {
    shared: Arc<Shared>,
    /// Incomplete messages with their channels: seldom more than one.
    half: Vec<(u16, Half)>,
}

/// A message of which parts are missing.
struct Half {
    received: Box<Received>,
    /// Why, if the broker returns it to its publisher.
    returned: Option<String>,
    has_header: bool,
    missing: u64,
    /// The body so far, if it comes in several frames.
    parts: Option<BytesMut>,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, half: Vec::new() }
    }

    pub(super) fn take_all(&mut self, buffer: &mut BytesMut) -> Result<(), Error> {
        while let Some(frame) = frame::cut(buffer, LARGEST).map_err(|malformed| self.wrong(&malformed))? {
            self.take(frame)?;
        }
        Ok(())
    }

    fn wrong(&self, malformed: &Malformed) -> Error {
        Error::Protocol { to: self.shared.name.clone(), what: malformed.to_string() }
    }

    fn take(&mut self, frame: Frame) -> Result<(), Error> {
        match frame.content {
            Content::Heartbeat => Ok(()),
            Content::Method(payload) => {
                let method = Incoming::read(&payload).map_err(|malformed| self.wrong(&malformed))?;
                match frame.channel {
                    0 => self.connection(method),
                    channel => {
                        match Half::begin(method) {
                            Ok(half) => {
                                self.forget(channel);
                                self.half.push((channel, half));
                            }
                            Err(method) => self.channel(channel, method),
                        }
                        Ok(())
                    }
                }
            }
            Content::Header(payload) => {
                let Some((at, half)) = self.half(frame.channel) else { return Ok(()) };
                match frame::header(&payload, &mut half.received.properties) {
                    Ok((size, malformed)) => {
                        half.missing = size;
                        half.has_header = true;
                        half.received.malformed = malformed;
                    }
                    Err(malformed) => return Err(self.wrong(&malformed)),
                }
                self.complete(at);
                Ok(())
            }
            Content::Body(payload) => {
                if let Some((at, half)) = self.half(frame.channel) {
                    let Some(missing) = half.missing.checked_sub(payload.len() as u64) else {
                        return Err(self.wrong(&Malformed("body: it is longer than was announced")));
                    };
                    half.missing = missing;
                    half.add(payload);
                    self.complete(at);
                }
                Ok(())
            }
        }
    }

    /// The incomplete message of a channel, and its place.
    fn half(&mut self, channel: u16) -> Option<(usize, &mut Half)> {
        let at = self.half.iter().position(|(of, _)| *of == channel)?;
        self.half.get_mut(at).map(|(_, half)| (at, half))
    }

    fn forget(&mut self, channel: u16) {
        self.half.retain(|(of, _)| *of != channel);
    }

    /// Hands on a message whose last part has come.
    fn complete(&mut self, at: usize) {
        if self.half.get(at).is_none_or(|(_, half)| half.missing > 0 || !half.has_header) {
            return;
        }
        let (channel, Half { mut received, returned, parts, .. }) = self.half.swap_remove(at);
        if let Some(parts) = parts {
            received.body = parts.freeze();
        }
        let event = match returned {
            None => Event::Message(received),
            Some(text) => Event::Returned(Box::new(Returned { text, message: *received })),
        };
        self.tell(channel, event);
    }

    fn connection(&mut self, method: Incoming) -> Result<(), Error> {
        match method {
            Incoming::Close(closing) => {
                self.shared.send(0, &Outgoing::CloseOk);
                let to = self.shared.name.clone();
                return Err(Error::ConnectionRefused { to, code: closing.code, text: closing.text });
            }
            Incoming::CloseOk if self.shared.leaving.load(Relaxed) => return Err(Error::Closed),
            Incoming::CloseOk => return Err(self.wrong(&Malformed("answer: nobody asked for it"))),
            Incoming::Blocked(why) => {
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
            Incoming::ChannelClose(closing) => {
                self.forget(channel);
                let mut channels = lock(&self.shared.channels);
                match channels.insert(channel, Slot::Gone) {
                    Some(Slot::Open(events, gate)) => {
                        self.shared.send_last(channel, &Outgoing::ChannelCloseOk, &gate);
                        let _ = events.send(Event::Closed { code: closing.code, text: closing.text });
                    }
                    // Both sides closed it at once. Ours is answered too, and frees the number.
                    Some(closing @ Slot::Closing { .. }) => {
                        channels.insert(channel, closing);
                        self.shared.send(channel, &Outgoing::ChannelCloseOk);
                    }
                    Some(Slot::Gone) | None => {
                        channels.remove(&channel);
                    }
                }
            }
            Incoming::ChannelCloseOk => {
                self.forget(channel);
                let mut channels = lock(&self.shared.channels);
                if matches!(channels.get(&channel), Some(Slot::Closing { .. })) {
                    channels.remove(&channel);
                }
            }
            // RabbitMQ has not sent it for many years, but it must be answered.
            Incoming::ChannelFlow(active) => self.shared.send(channel, &Outgoing::ChannelFlowOk(active)),
            Incoming::Ack { tag, multiple } => {
                self.tell(channel, Event::Confirmed { tag, multiple, taken: true });
            }
            Incoming::Nack { tag, multiple } => {
                self.tell(channel, Event::Confirmed { tag, multiple, taken: false });
            }
            Incoming::Cancel => self.tell(channel, Event::Cancelled),
            answer => self.tell(channel, Event::Answer(answer)),
        }
    }

    /// A channel that is gone, or never was, is told nothing.
    fn tell(&self, channel: u16, event: Event) {
        if let Some(Slot::Open(events, _)) = lock(&self.shared.channels).get(&channel) {
            let _ = events.send(event);
        }
    }
}

impl Half {
    /// The method that a message begins with; other methods are given back.
    fn begin(method: Incoming) -> Result<Self, Incoming> {
        let (received, returned) = match method {
            Incoming::Deliver { tag, redelivered, exchange, key }
            | Incoming::GetOk { tag, redelivered, exchange, key } => {
                (Received { tag, redelivered, exchange, key, ..Received::default() }, None)
            }
            Incoming::Return { text, exchange, key } => {
                (Received { exchange, key, ..Received::default() }, Some(text))
            }
            other => return Err(other),
        };
        Ok(Half { received: Box::new(received), returned, has_header: false, missing: 0, parts: None })
    }

    fn add(&mut self, part: Bytes) {
        if let Some(parts) = &mut self.parts {
            return parts.extend_from_slice(&part);
        }
        let body = &mut self.received.body;
        if body.is_empty() {
            *body = if part.len() <= COPIED { Bytes::copy_from_slice(&part) } else { part };
            return;
        }
        let mut parts = BytesMut::with_capacity(body.len() + part.len());
        parts.extend_from_slice(body);
        parts.extend_from_slice(&part);
        self.parts = Some(parts);
    }
}
