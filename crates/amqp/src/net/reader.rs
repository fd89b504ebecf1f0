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
        properties::Properties,
        table::Malformed,
    },
};
use bytes::{Bytes, BytesMut};
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};
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
    let mut reader = Reader { shared: Arc::clone(&shared), half: HashMap::new() };
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
                Err(_) => shared.end(Error::Silent { to: shared.name.clone(), after: patience }),
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

struct Reader {
    shared: Arc<Shared>,
    /// Messages that are not complete, by channel.
    half: HashMap<u16, Half>,
}

struct Half {
    method: Incoming,
    properties: Option<Result<Properties, Malformed>>,
    missing: u64,
    body: Body,
}

enum Body {
    Nothing,
    One(Bytes),
    Many(BytesMut),
}

impl Reader {
    fn take_all(&mut self, buffer: &mut BytesMut) -> Result<(), Error> {
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
                    channel if method.has_content() => {
                        let half = Half { method, properties: None, missing: 0, body: Body::Nothing };
                        self.half.insert(channel, half);
                        Ok(())
                    }
                    channel => {
                        self.channel(channel, method);
                        Ok(())
                    }
                }
            }
            Content::Header(payload) => {
                let Some(half) = self.half.get_mut(&frame.channel) else { return Ok(()) };
                match frame::header(&payload) {
                    Ok((size, properties)) => {
                        half.missing = size;
                        half.properties = Some(properties);
                    }
                    Err(malformed) => return Err(self.wrong(&malformed)),
                }
                self.complete(frame.channel);
                Ok(())
            }
            Content::Body(payload) => {
                if let Some(half) = self.half.get_mut(&frame.channel) {
                    let Some(missing) = half.missing.checked_sub(payload.len() as u64) else {
                        return Err(self.wrong(&Malformed("body: it is longer than was announced")));
                    };
                    half.missing = missing;
                    half.add(payload);
                    self.complete(frame.channel);
                }
                Ok(())
            }
        }
    }

    /// Hands on a message whose last part has come.
    fn complete(&mut self, channel: u16) {
        if self.half.get(&channel).is_none_or(|half| half.missing > 0 || half.properties.is_none()) {
            return;
        }
        let Some(Half { method, properties: Some(properties), body, .. }) = self.half.remove(&channel) else {
            return;
        };
        let body = match body {
            Body::Nothing => Bytes::new(),
            Body::One(body) => body,
            Body::Many(body) => body.freeze(),
        };
        match method {
            Incoming::Deliver { tag, redelivered, exchange, key } => {
                let received = Received { tag, redelivered, exchange, key, properties, body };
                self.tell(channel, Event::Message(Box::new(received)));
            }
            Incoming::Return { text, exchange, key } => {
                let returned = Returned { text, exchange, key, properties, body };
                self.tell(channel, Event::Returned(Box::new(returned)));
            }
            _ => {}
        }
    }

    fn connection(&mut self, method: Incoming) -> Result<(), Error> {
        match method {
            Incoming::Close(closing) => {
                self.shared.send(0, &Outgoing::CloseOk);
                let to = self.shared.name.clone();
                return Err(Error::Refused { to, code: closing.code, text: closing.text });
            }
            Incoming::CloseOk if self.shared.leaving.load(Relaxed) => return Err(Error::Ended),
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
                self.half.remove(&channel);
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
                self.half.remove(&channel);
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
    fn add(&mut self, part: Bytes) {
        let part = if part.len() <= COPIED { Bytes::copy_from_slice(&part) } else { part };
        self.body = match std::mem::replace(&mut self.body, Body::Nothing) {
            Body::Nothing => Body::One(part),
            Body::One(first) => {
                let mut all = BytesMut::with_capacity(first.len() + part.len());
                all.extend_from_slice(&first);
                all.extend_from_slice(&part);
                Body::Many(all)
            }
            Body::Many(mut all) => {
                all.extend_from_slice(&part);
                Body::Many(all)
            }
        };
    }
}
