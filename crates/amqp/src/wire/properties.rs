//! What a message carries beside its body: fourteen optional properties, one of which is the table of headers.

use super::table::{Cursor, Headers, Malformed, fits_short, put_short, put_table};
use bytes::{BufMut, BytesMut};

/// The properties of a message. All are optional.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)] // They are the protocol's own, and named as it names them.
pub struct Properties {
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub headers: Headers,
    /// 2: the broker keeps the message through a restart. What [`Message`](crate::Message) makes is kept.
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    /// How long the broker keeps it waiting, in milliseconds, as text.
    pub expiration: Option<String>,
    pub message_id: Option<String>,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    /// What happened: the type of the event.
    pub kind: Option<String>,
    /// The broker refuses a message whose user is not the one that is connected.
    pub user_id: Option<String>,
    pub app_id: Option<String>,
}

// The bits of the first word, highest first; the lowest says that another word follows.
const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const PRIORITY: u16 = 1 << 11;
const CORRELATION_ID: u16 = 1 << 10;
const REPLY_TO: u16 = 1 << 9;
const EXPIRATION: u16 = 1 << 8;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
const KIND: u16 = 1 << 5;
const USER_ID: u16 = 1 << 4;
const APP_ID: u16 = 1 << 3;
const CLUSTER_ID: u16 = 1 << 2;
const MORE: u16 = 1;

impl Properties {
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let flags = cursor.u16()?;
        let mut more = flags & MORE != 0;
        while more {
            more = cursor.u16()? & MORE != 0;
        }
        let has = |bit: u16| flags & bit != 0;
        macro_rules! optional {
            ($bit:expr, $read:ident) => {
                if has($bit) { Some(cursor.$read()?) } else { None }
            };
        }
        let properties = Self {
            content_type: optional!(CONTENT_TYPE, short),
            content_encoding: optional!(CONTENT_ENCODING, short),
            headers: if has(HEADERS) { cursor.table()? } else { Headers::new() },
            delivery_mode: optional!(DELIVERY_MODE, u8),
            priority: optional!(PRIORITY, u8),
            correlation_id: optional!(CORRELATION_ID, short),
            reply_to: optional!(REPLY_TO, short),
            expiration: optional!(EXPIRATION, short),
            message_id: optional!(MESSAGE_ID, short),
            timestamp: optional!(TIMESTAMP, u64),
            kind: optional!(KIND, short),
            user_id: optional!(USER_ID, short),
            app_id: optional!(APP_ID, short),
        };
        let _: Option<String> = optional!(CLUSTER_ID, short);
        Ok(properties)
    }

    pub(crate) fn write(&self, out: &mut BytesMut) {
        let at = out.len();
        out.put_u16(0);
        let mut flags = 0;
        put_text(out, &mut flags, CONTENT_TYPE, &self.content_type);
        put_text(out, &mut flags, CONTENT_ENCODING, &self.content_encoding);
        if !self.headers.is_empty() {
            flags |= HEADERS;
            put_table(out, &self.headers);
        }
        if let Some(mode) = self.delivery_mode {
            flags |= DELIVERY_MODE;
            out.put_u8(mode);
        }
        if let Some(priority) = self.priority {
            flags |= PRIORITY;
            out.put_u8(priority);
        }
        put_text(out, &mut flags, CORRELATION_ID, &self.correlation_id);
        put_text(out, &mut flags, REPLY_TO, &self.reply_to);
        put_text(out, &mut flags, EXPIRATION, &self.expiration);
        put_text(out, &mut flags, MESSAGE_ID, &self.message_id);
        if let Some(seconds) = self.timestamp {
            flags |= TIMESTAMP;
            out.put_u64(seconds);
        }
        put_text(out, &mut flags, KIND, &self.kind);
        put_text(out, &mut flags, USER_ID, &self.user_id);
        put_text(out, &mut flags, APP_ID, &self.app_id);
        out[at..at + 2].copy_from_slice(&flags.to_be_bytes());
    }

    /// The first of its texts that is longer than the protocol can say.
    pub(crate) fn too_long(&self) -> Option<&'static str> {
        let texts = [
            ("content_type", &self.content_type),
            ("content_encoding", &self.content_encoding),
            ("correlation_id", &self.correlation_id),
            ("reply_to", &self.reply_to),
            ("expiration", &self.expiration),
            ("message_id", &self.message_id),
            ("type", &self.kind),
            ("user_id", &self.user_id),
            ("app_id", &self.app_id),
        ];
        let long = |text: &str| !fits_short(text);
        let found = texts.into_iter().find(|(_, text)| text.as_deref().is_some_and(long));
        found
            .map(|(name, _)| name)
            .or_else(|| self.headers.iter().any(|(name, _)| long(name)).then_some("name of a header"))
    }
}

fn put_text(out: &mut BytesMut, flags: &mut u16, bit: u16, text: &Option<String>) {
    if let Some(text) = text {
        *flags |= bit;
        put_short(out, text);
    }
}
