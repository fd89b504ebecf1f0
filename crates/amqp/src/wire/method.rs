//! Methods of AMQP 0-9-1 that Gristmill uses, and RabbitMQ's extensions.
//!
//! Defines numbers and layout. Unused methods, for example of newer brokers, are read as [`Incoming::Other`].

use super::table::{Argument, Cursor, Headers, Malformed};
use bytes::BytesMut;

/// Declares the methods received from the broker: class and method number, name, arguments that are read and dropped,
/// and arguments that are kept, in the order of the protocol. Arguments behind those are not read.
macro_rules! incoming {
    ($(
        $(#[$doc:meta])*
        ($class:literal, $method:literal) $name:ident $(skip $($skip:path),+ ;)? $({ $($field:ident: $type:ty),+ })?
    )+) => {
        /// Method received from the broker.
        #[derive(Debug, Clone, PartialEq)]
        pub(crate) enum Incoming {
            $($(#[$doc])* $name $({ $($field: $type),+ })?,)+
            /// Another method, by class and method number.
            Other(u16, u16),
        }

        impl Incoming {
            pub(crate) fn read(payload: &[u8]) -> Result<Self, Malformed> {
                let mut cursor = Cursor::new(payload);
                Ok(match (cursor.u16()?, cursor.u16()?) {
                    $(($class, $method) => {
                        $($($skip(&mut cursor)?;)+)?
                        Self::$name $({ $($field: cursor.read()?),+ })?
                    })+
                    (class, method) => Self::Other(class, method),
                })
            }
        }
    };
}

incoming! {
    (10, 10) Start skip Cursor::u16, Cursor::table; { mechanisms: Vec<u8> }
    (10, 20) Secure
    (10, 30) Tune { channel_max: u16, frame_max: u32, heartbeat: u16 }
    (10, 41) OpenOk
    (10, 50) Close { code: u16, text: String }
    (10, 51) CloseOk
    (10, 60) Blocked { why: String }
    (10, 61) Unblocked
    (20, 11) ChannelOpenOk
    (20, 20) ChannelFlow { active: bool }
    (20, 40) ChannelClose { code: u16, text: String }
    (20, 41) ChannelCloseOk
    (50, 11) DeclareOk { queue: String, messages: u32, consumers: u32 }
    (50, 31) PurgeOk { messages: u32 }
    (60, 21) ConsumeOk { tag: String }
    (60, 30) Cancel
    (60, 50) Return skip Cursor::u16; { text: String, exchange: String, key: String }
    (60, 60) Deliver skip Cursor::short_bytes; { tag: u64, redelivered: bool, exchange: String, key: String }
    /// Reply to `Get` with a message.
    (60, 71) GetOk { tag: u64, redelivered: bool, exchange: String, key: String }
    /// Reply to `Get`: the queue is empty.
    (60, 72) GetEmpty
    (60, 80) Ack { tag: u64, multiple: bool }
    (60, 120) Nack { tag: u64, multiple: bool }
}

/// Declares the methods sent to the broker: class and method number, name, fields, and the arguments in the order of
/// the protocol.
macro_rules! outgoing {
    ($(
        ($class:literal, $method:literal) $name:ident $({ $($field:ident: $type:ty),+ })? => $($argument:expr),*;
    )+) => {
        /// Method sent to the broker.
        #[derive(Debug)]
        pub(crate) enum Outgoing<'a> {
            $($name $({ $($field: $type),+ })?,)+
        }

        impl Outgoing<'_> {
            pub(crate) fn write(&self, out: &mut BytesMut) {
                match *self {
                    $(Self::$name $({ $($field),+ })? => {
                        u16::put($class, out);
                        u16::put($method, out);
                        $($argument.put(out);)*
                    })+
                }
            }
        }
    };
}

outgoing! {
    (10, 11) StartOk { properties: &'a Headers, mechanism: &'a str, response: &'a [u8] } =>
        properties, mechanism, response, "en_US";
    (10, 31) TuneOk { channel_max: u16, frame_max: u32, heartbeat: u16 } => channel_max, frame_max, heartbeat;
    (10, 40) Open { vhost: &'a str } => vhost, 0_u16;
    (10, 50) Close { code: u16, text: &'a str } => code, text, 0_u32;
    (10, 51) CloseOk => ;
    (20, 10) ChannelOpen => 0_u8;
    (20, 21) ChannelFlowOk { active: bool } => active;
    (20, 40) ChannelClose => 200_u16, "", 0_u32;
    (20, 41) ChannelCloseOk => ;
    (40, 10) ExchangeDeclare { name: &'a str, kind: &'a str, flags: u8, arguments: &'a Headers } =>
        0_u16, name, kind, flags, arguments;
    (50, 10) QueueDeclare { name: &'a str, flags: u8, arguments: &'a Headers } => 0_u16, name, flags, arguments;
    (50, 20) QueueBind { queue: &'a str, exchange: &'a str, key: &'a str, arguments: &'a Headers } =>
        0_u16, queue, exchange, key, 0_u8, arguments;
    (50, 30) QueuePurge { queue: &'a str } => 0_u16, queue, 0_u8;
    (60, 10) Qos { prefetch: u16 } => 0_u32, prefetch, 0_u8;
    (60, 20) Consume { queue: &'a str, tag: &'a str, flags: u8, arguments: &'a Headers } =>
        0_u16, queue, tag, flags, arguments;
    (60, 30) Cancel { tag: &'a str } => tag, 0_u8;
    (60, 40) Publish { exchange: &'a str, key: &'a str, mandatory: bool } => 0_u16, exchange, key, mandatory;
    (60, 70) Get { queue: &'a str } => 0_u16, queue, 0_u8;
    (60, 80) Ack { tag: u64, multiple: bool } => tag, multiple;
    (60, 120) Nack { tag: u64, multiple: bool, requeue: bool } => tag, u8::from(multiple) | u8::from(requeue) << 1;
    (85, 10) ConfirmSelect => 0_u8;
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
