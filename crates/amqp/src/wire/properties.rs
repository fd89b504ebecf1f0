//! Properties of a message: fourteen optional fields, one of which is the table of headers.

use super::table::{Cursor, Field, Headers, Malformed, put_short, put_short_bytes, put_table, to_latin1};
use bytes::{BufMut, BytesMut};

/// Properties of a message, named as in AMQP. All are optional.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)] // Defined by the protocol.
pub struct Properties {
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub headers: Headers,
    /// 2: persistent, so the message survives a restart of the broker. The default of [`Message`](crate::Message).
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    /// Time to live in the queue, in milliseconds, as text.
    pub expiration: Option<String>,
    pub message_id: Option<String>,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    /// Type of the event (`type` in AMQP).
    pub kind: Option<String>,
    /// Must be the connected user, or the broker refuses the message.
    pub user_id: Option<String>,
    pub app_id: Option<String>,
    /// Defined by AMQP 0-8; the broker passes it on.
    pub cluster_id: Option<String>,
    /// Flags of the texts that came as bytes that are not UTF-8: they are written unchanged.
    pub(crate) latin: u16,
}

// Bits of the flags word, highest first; the lowest means that another word follows.
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
    /// Reads properties into `self`, which must be empty and stays empty after an error.
    pub(crate) fn read(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        self.fill(cursor).inspect_err(|_| *self = Self::default())
    }

    fn fill(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let flags = cursor.u16()?;
        let mut more = flags & MORE != 0;
        while more {
            more = cursor.u16()? & MORE != 0;
        }
        let has = |bit: u16| flags & bit != 0;
        macro_rules! text {
            ($bit:expr, $field:ident) => {
                if has($bit) {
                    let (text, is_latin) = cursor.short_with_encoding()?;
                    self.latin |= if is_latin { $bit } else { 0 };
                    self.$field = Some(text);
                }
            };
        }
        macro_rules! number {
            ($bit:expr, $field:ident, $read:ident) => {
                if has($bit) {
                    self.$field = Some(cursor.$read()?);
                }
            };
        }
        text!(CONTENT_TYPE, content_type);
        text!(CONTENT_ENCODING, content_encoding);
        if has(HEADERS) {
            self.headers = cursor.table()?;
        }
        number!(DELIVERY_MODE, delivery_mode, u8);
        number!(PRIORITY, priority, u8);
        text!(CORRELATION_ID, correlation_id);
        text!(REPLY_TO, reply_to);
        text!(EXPIRATION, expiration);
        text!(MESSAGE_ID, message_id);
        number!(TIMESTAMP, timestamp, u64);
        text!(KIND, kind);
        text!(USER_ID, user_id);
        text!(APP_ID, app_id);
        text!(CLUSTER_ID, cluster_id);
        Ok(())
    }

    pub(crate) fn write(&self, out: &mut BytesMut) {
        let at = out.len();
        out.put_u16(0);
        let mut flags = 0;
        put_text(out, &mut flags, self.latin, CONTENT_TYPE, &self.content_type);
        put_text(out, &mut flags, self.latin, CONTENT_ENCODING, &self.content_encoding);
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
        put_text(out, &mut flags, self.latin, CORRELATION_ID, &self.correlation_id);
        put_text(out, &mut flags, self.latin, REPLY_TO, &self.reply_to);
        put_text(out, &mut flags, self.latin, EXPIRATION, &self.expiration);
        put_text(out, &mut flags, self.latin, MESSAGE_ID, &self.message_id);
        if let Some(seconds) = self.timestamp {
            flags |= TIMESTAMP;
            out.put_u64(seconds);
        }
        put_text(out, &mut flags, self.latin, KIND, &self.kind);
        put_text(out, &mut flags, self.latin, USER_ID, &self.user_id);
        put_text(out, &mut flags, self.latin, APP_ID, &self.app_id);
        put_text(out, &mut flags, self.latin, CLUSTER_ID, &self.cluster_id);
        out[at..at + 2].copy_from_slice(&flags.to_be_bytes());
    }

    /// Whether the message id came as bytes that are not UTF-8.
    pub(crate) fn has_non_utf8_id(&self) -> bool {
        self.latin & MESSAGE_ID != 0
    }

    /// Text properties, each with its AMQP name and flag.
    pub(crate) fn texts(&self) -> [(&'static str, u16, &Option<String>); 10] {
        [
            ("content_type", CONTENT_TYPE, &self.content_type),
            ("content_encoding", CONTENT_ENCODING, &self.content_encoding),
            ("correlation_id", CORRELATION_ID, &self.correlation_id),
            ("reply_to", REPLY_TO, &self.reply_to),
            ("expiration", EXPIRATION, &self.expiration),
            ("message_id", MESSAGE_ID, &self.message_id),
            ("type", KIND, &self.kind),
            ("user_id", USER_ID, &self.user_id),
            ("app_id", APP_ID, &self.app_id),
            ("cluster_id", CLUSTER_ID, &self.cluster_id),
        ]
    }

    /// Text property of this AMQP name, and its flag.
    pub(crate) fn text_mut(&mut self, name: &str) -> Option<(&mut Option<String>, u16)> {
        Some(match name {
            "content_type" => (&mut self.content_type, CONTENT_TYPE),
            "content_encoding" => (&mut self.content_encoding, CONTENT_ENCODING),
            "correlation_id" => (&mut self.correlation_id, CORRELATION_ID),
            "reply_to" => (&mut self.reply_to, REPLY_TO),
            "expiration" => (&mut self.expiration, EXPIRATION),
            "message_id" => (&mut self.message_id, MESSAGE_ID),
            "type" => (&mut self.kind, KIND),
            "user_id" => (&mut self.user_id, USER_ID),
            "app_id" => (&mut self.app_id, APP_ID),
            "cluster_id" => (&mut self.cluster_id, CLUSTER_ID),
            _ => return None,
        })
    }

    /// Name of the first text that is longer than the protocol allows.
    pub(crate) fn too_long(&self) -> Option<&'static str> {
        let long = |bit: u16, text: &str| match to_latin1(text).filter(|_| self.latin & bit != 0) {
            Some(bytes) => bytes.len() > 255,
            None => text.len() > 255,
        };
        let found =
            self.texts().into_iter().find(|(_, bit, text)| text.as_deref().is_some_and(|text| long(*bit, text)));
        found.map(|(name, ..)| name).or_else(|| {
            let long = |field: &Field| field.name_bytes().len() > 255;
            self.headers.fields().iter().any(long).then_some("name of a header")
        })
    }
}

fn put_text(out: &mut BytesMut, flags: &mut u16, latin: u16, bit: u16, text: &Option<String>) {
    let Some(text) = text else { return };
    *flags |= bit;
    match to_latin1(text).filter(|_| latin & bit != 0) {
        Some(bytes) => put_short_bytes(out, &bytes),
        None => put_short(out, text),
    }
}
