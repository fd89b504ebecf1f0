//! Properties of a message: fourteen optional fields, one of which is the table of headers.

use super::table::{Argument, Cursor, Field, Headers, Malformed, put_short, put_short_bytes, put_table, to_latin1};
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

/// Passes all properties to a macro in the order of the protocol: bit in the flags word, kind, field and AMQP name.
macro_rules! each_property {
    ($visit:ident) => {
        $visit! {
            15 text content_type "content_type",
            14 text content_encoding "content_encoding",
            13 table headers "headers",
            12 number delivery_mode "delivery_mode",
            11 number priority "priority",
            10 text correlation_id "correlation_id",
            9 text reply_to "reply_to",
            8 text expiration "expiration",
            7 text message_id "message_id",
            6 number timestamp "timestamp",
            5 text kind "type",
            4 text user_id "user_id",
            3 text app_id "app_id",
            2 text cluster_id "cluster_id"
        }
    };
}

/// An option for a text; `None` for a property of another kind.
macro_rules! if_text {
    (text $found:expr) => {
        $found
    };
    ($other:ident $found:expr) => {
        None
    };
}

const MESSAGE_ID: u16 = 1 << 7;
/// Flag of a flags word that is followed by another.
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
        macro_rules! read_value {
            ($bit:literal text $field:ident) => {
                let (text, is_latin) = cursor.short()?;
                self.latin |= u16::from(is_latin) << $bit;
                self.$field = Some(text);
            };
            ($bit:literal table $field:ident) => {
                self.$field = cursor.table()?;
            };
            ($bit:literal number $field:ident) => {
                self.$field = Some(cursor.read()?);
            };
        }
        macro_rules! read_all {
            ($($bit:literal $kind:ident $field:ident $name:literal),+) => {
                $(if flags & 1 << $bit != 0 {
                    read_value!($bit $kind $field);
                })+
            };
        }
        each_property!(read_all);
        Ok(())
    }

    pub(crate) fn write(&self, out: &mut BytesMut) {
        let at = out.len();
        out.put_u16(0);
        let mut flags = 0_u16;
        macro_rules! write_value {
            ($bit:literal text $field:ident) => {
                self.$field.as_ref().map(|text| put_text(out, self.latin & 1 << $bit != 0, text))
            };
            ($bit:literal table $field:ident) => {
                (!self.$field.is_empty()).then(|| put_table(out, &self.$field))
            };
            ($bit:literal number $field:ident) => {
                self.$field.map(|number| number.put(out))
            };
        }
        macro_rules! write_all {
            ($($bit:literal $kind:ident $field:ident $name:literal),+) => {
                $(flags |= u16::from(write_value!($bit $kind $field).is_some()) << $bit;)+
            };
        }
        each_property!(write_all);
        out[at..at + 2].copy_from_slice(&flags.to_be_bytes());
    }

    /// Whether the message id came as bytes that are not UTF-8.
    pub(crate) fn has_non_utf8_id(&self) -> bool {
        self.latin & MESSAGE_ID != 0
    }

    /// Properties with their AMQP names and flags, and their texts; those that are no text have none.
    pub(crate) fn texts(&self) -> [(&'static str, u16, Option<&String>); 14] {
        macro_rules! texts {
            ($($bit:literal $kind:ident $field:ident $name:literal),+) => {
                [$(($name, 1 << $bit, if_text!($kind self.$field.as_ref()))),+]
            };
        }
        each_property!(texts)
    }

    /// Text property of this AMQP name, and its flag.
    pub(crate) fn text_mut(&mut self, name: &str) -> Option<(&mut Option<String>, u16)> {
        macro_rules! find {
            ($($bit:literal $kind:ident $field:ident $name:literal),+) => {
                match name {
                    $($name => if_text!($kind Some((&mut self.$field, 1 << $bit))),)+
                    _ => None,
                }
            };
        }
        each_property!(find)
    }

    /// Name of the first text that is longer than the protocol allows.
    pub(crate) fn too_long(&self) -> Option<&'static str> {
        let long = |bit: u16, text: &str| match to_latin1(text).filter(|_| self.latin & bit != 0) {
            Some(bytes) => bytes.len() > 255,
            None => text.len() > 255,
        };
        let found = self.texts().into_iter().find(|(_, bit, text)| text.is_some_and(|text| long(*bit, text)));
        found.map(|(name, ..)| name).or_else(|| {
            let long = |field: &Field| field.name_bytes().len() > 255;
            self.headers.fields().iter().any(long).then_some("name of a header")
        })
    }
}

fn put_text(out: &mut BytesMut, is_latin: bool, text: &str) {
    match is_latin.then(|| to_latin1(text)).flatten() {
        Some(bytes) => put_short_bytes(out, &bytes),
        None => put_short(out, text),
    }
}
