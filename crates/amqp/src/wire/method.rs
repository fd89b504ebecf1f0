//! Methods of AMQP 0-9-1 that Gristmill uses, and RabbitMQ's extensions.
//!
//! Defines numbers and layout. Unused methods, for example of newer brokers, are read as [`Incoming::Other`].

use super::table::{Cursor, Headers, Malformed, put_long, put_short, put_table};
use bytes::{BufMut, BytesMut};

/// Method received from the broker.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Incoming {
    Start {
        mechanisms: String,
    },
    Secure,
    Tune {
        channel_max: u16,
        frame_max: u32,
        heartbeat: u16,
    },
    OpenOk,
    Close(Closing),
    CloseOk,
    Blocked(String),
    Unblocked,
    ChannelOpenOk,
    ChannelFlow(bool),
    ChannelClose(Closing),
    ChannelCloseOk,
    DeclareOk {
        queue: String,
        messages: u32,
        consumers: u32,
    },
    ConsumeOk {
        tag: String,
    },
    Cancel,
    Deliver {
        tag: u64,
        redelivered: bool,
        exchange: String,
        key: String,
    },
    /// Reply to `Get` with a message.
    GetOk {
        tag: u64,
        redelivered: bool,
        exchange: String,
        key: String,
    },
    /// Reply to `Get`: the queue is empty.
    GetEmpty,
    PurgeOk {
        messages: u32,
    },
    Return {
        text: String,
        exchange: String,
        key: String,
    },
    Ack {
        tag: u64,
        multiple: bool,
    },
    Nack {
        tag: u64,
        multiple: bool,
    },
    /// Another method, by class and method number.
    Other(u16, u16),
}

/// Reply code and text of a close method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) code: u16,
    pub(crate) text: String,
}

impl Incoming {
    pub(crate) fn read(payload: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(payload);
        let class = cursor.u16()?;
        let method = cursor.u16()?;
        Ok(match (class, method) {
            (10, 10) => {
                cursor.take(2)?;
                cursor.table()?;
                Self::Start { mechanisms: String::from_utf8_lossy(cursor.long()?).into_owned() }
            }
            (10, 20) => Self::Secure,
            (10, 30) => Self::Tune { channel_max: cursor.u16()?, frame_max: cursor.u32()?, heartbeat: cursor.u16()? },
            (10, 41) => Self::OpenOk,
            (10, 50) => Self::Close(Closing::read(&mut cursor)?),
            (10, 51) => Self::CloseOk,
            (10, 60) => Self::Blocked(cursor.short()?),
            (10, 61) => Self::Unblocked,
            (20, 11) => Self::ChannelOpenOk,
            (20, 20) => Self::ChannelFlow(cursor.u8()? & 1 != 0),
            (20, 40) => Self::ChannelClose(Closing::read(&mut cursor)?),
            (20, 41) => Self::ChannelCloseOk,
            (50, 11) => Self::DeclareOk { queue: cursor.short()?, messages: cursor.u32()?, consumers: cursor.u32()? },
            (50, 31) => Self::PurgeOk { messages: cursor.u32()? },
            (60, 21) => Self::ConsumeOk { tag: cursor.short()? },
            (60, 30) => Self::Cancel,
            (60, 50) => {
                let _code = cursor.u16()?;
                Self::Return { text: cursor.short()?, exchange: cursor.short()?, key: cursor.short()? }
            }
            (60, 60) => {
                let consumer = usize::from(cursor.u8()?);
                cursor.take(consumer)?;
                Self::Deliver {
                    tag: cursor.u64()?,
                    redelivered: cursor.u8()? & 1 != 0,
                    exchange: cursor.short()?,
                    key: cursor.short()?,
                }
            }
            (60, 71) => Self::GetOk {
                tag: cursor.u64()?,
                redelivered: cursor.u8()? & 1 != 0,
                exchange: cursor.short()?,
                key: cursor.short()?,
            },
            (60, 72) => Self::GetEmpty,
            (60, 80) => Self::Ack { tag: cursor.u64()?, multiple: cursor.u8()? & 1 != 0 },
            (60, 120) => Self::Nack { tag: cursor.u64()?, multiple: cursor.u8()? & 1 != 0 },
            (class, method) => Self::Other(class, method),
        })
    }
}

impl Closing {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(Self { code: cursor.u16()?, text: cursor.short()? })
    }
}

/// Method sent to the broker.
#[derive(Debug)]
pub(crate) enum Outgoing<'a> {
    StartOk { properties: &'a Headers, mechanism: &'a str, response: &'a [u8] },
    TuneOk { channel_max: u16, frame_max: u32, heartbeat: u16 },
    Open { vhost: &'a str },
    Close { code: u16, text: &'a str },
    CloseOk,
    ChannelOpen,
    ChannelFlowOk(bool),
    ChannelClose,
    ChannelCloseOk,
    ExchangeDeclare { name: &'a str, kind: &'a str, flags: u8, arguments: &'a Headers },
    QueueDeclare { name: &'a str, flags: u8, arguments: &'a Headers },
    QueueBind { queue: &'a str, exchange: &'a str, key: &'a str, arguments: &'a Headers },
    QueuePurge { queue: &'a str },
    Qos { prefetch: u16 },
    Consume { queue: &'a str, tag: &'a str, flags: u8, arguments: &'a Headers },
    Cancel { tag: &'a str },
    Publish { exchange: &'a str, key: &'a str, mandatory: bool },
    Get { queue: &'a str },
    Ack { tag: u64, multiple: bool },
    Nack { tag: u64, multiple: bool, requeue: bool },
    ConfirmSelect,
}

/// Flag bits of declare and consume methods.
pub(crate) mod flag {
    pub(crate) const PASSIVE: u8 = 1;
    pub(crate) const DURABLE: u8 = 2;
    /// Of queues: used by this connection only.
    pub(crate) const EXCLUSIVE: u8 = 4;
    pub(crate) const QUEUE_AUTO_DELETE: u8 = 8;
    /// Of consumers: excludes other consumers of the queue.
    pub(crate) const CONSUME_EXCLUSIVE: u8 = 4;
}

impl Outgoing<'_> {
    pub(crate) fn write(&self, out: &mut BytesMut) {
        let (class, method) = self.numbers();
        out.put_u16(class);
        out.put_u16(method);
        match *self {
            Self::StartOk { properties, mechanism, response } => {
                put_table(out, properties);
                put_short(out, mechanism);
                put_long(out, response);
                put_short(out, "en_US");
            }
            Self::TuneOk { channel_max, frame_max, heartbeat } => {
                out.put_u16(channel_max);
                out.put_u32(frame_max);
                out.put_u16(heartbeat);
            }
            Self::Open { vhost } => {
                put_short(out, vhost);
                out.put_slice(&[0, 0]);
            }
            Self::Close { code, text } => {
                out.put_u16(code);
                put_short(out, text);
                out.put_u32(0);
            }
            Self::ChannelClose => {
                out.put_u16(200);
                put_short(out, "");
                out.put_u32(0);
            }
            Self::CloseOk | Self::ChannelCloseOk => {}
            Self::ChannelOpen | Self::ConfirmSelect => out.put_u8(0),
            Self::ChannelFlowOk(active) => out.put_u8(u8::from(active)),
            Self::ExchangeDeclare { name, kind, flags, arguments } => {
                out.put_u16(0);
                put_short(out, name);
                put_short(out, kind);
                out.put_u8(flags);
                put_table(out, arguments);
            }
            Self::QueueBind { queue, exchange, key, arguments } => {
                out.put_u16(0);
                put_short(out, queue);
                put_short(out, exchange);
                put_short(out, key);
                out.put_u8(0);
                put_table(out, arguments);
            }
            Self::QueueDeclare { name, flags, arguments } => {
                out.put_u16(0);
                put_short(out, name);
                out.put_u8(flags);
                put_table(out, arguments);
            }
            Self::QueuePurge { queue } | Self::Get { queue } => {
                out.put_u16(0);
                put_short(out, queue);
                out.put_u8(0);
            }
            Self::Qos { prefetch } => {
                out.put_u32(0);
                out.put_u16(prefetch);
                out.put_u8(0);
            }
            Self::Consume { queue, tag, flags, arguments } => {
                out.put_u16(0);
                put_short(out, queue);
                put_short(out, tag);
                out.put_u8(flags);
                put_table(out, arguments);
            }
            Self::Cancel { tag } => {
                put_short(out, tag);
                out.put_u8(0);
            }
            Self::Publish { exchange, key, mandatory } => {
                out.put_u16(0);
                put_short(out, exchange);
                put_short(out, key);
                out.put_u8(u8::from(mandatory));
            }
            Self::Ack { tag, multiple } => {
                out.put_u64(tag);
                out.put_u8(u8::from(multiple));
            }
            Self::Nack { tag, multiple, requeue } => {
                out.put_u64(tag);
                out.put_u8(u8::from(multiple) | u8::from(requeue) << 1);
            }
        }
    }

    fn numbers(&self) -> (u16, u16) {
        match self {
            Self::StartOk { .. } => (10, 11),
            Self::TuneOk { .. } => (10, 31),
            Self::Open { .. } => (10, 40),
            Self::Close { .. } => (10, 50),
            Self::CloseOk => (10, 51),
            Self::ChannelOpen => (20, 10),
            Self::ChannelFlowOk(_) => (20, 21),
            Self::ChannelClose => (20, 40),
            Self::ChannelCloseOk => (20, 41),
            Self::ExchangeDeclare { .. } => (40, 10),
            Self::QueueDeclare { .. } => (50, 10),
            Self::QueueBind { .. } => (50, 20),
            Self::QueuePurge { .. } => (50, 30),
            Self::Qos { .. } => (60, 10),
            Self::Consume { .. } => (60, 20),
            Self::Cancel { .. } => (60, 30),
            Self::Publish { .. } => (60, 40),
            Self::Get { .. } => (60, 70),
            Self::Ack { .. } => (60, 80),
            Self::Nack { .. } => (60, 120),
            Self::ConfirmSelect => (85, 10),
        }
    }
}
