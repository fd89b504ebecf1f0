//! Field tables: what headers and arguments are made of, and the simple values of the protocol.
//!
//! Reading is total: whatever bytes come, the answer is a value or a [`Malformed`], never a panic, and never a
//! reservation of memory that the bytes at hand do not back.

use bytes::{BufMut, Bytes, BytesMut};
use std::{borrow::Cow, fmt};

/// Bytes that are not what the protocol says stands here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed {}", self.0)
    }
}

/// A value in a table of headers or arguments.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FieldValue {
    /// True or false.
    Bool(bool),
    /// A whole number of 64 bits: the type for new messages. [`as_int`](Self::as_int) reads any width.
    Int(i64),
    /// A signed number of 8 bits.
    Int8(i8),
    /// An unsigned number of 8 bits.
    UInt8(u8),
    /// A signed number of 16 bits.
    Int16(i16),
    /// An unsigned number of 16 bits.
    UInt16(u16),
    /// A signed number of 32 bits.
    Int32(i32),
    /// An unsigned number of 32 bits.
    UInt32(u32),
    /// A floating-point number of 32 bits.
    Float(f32),
    /// A floating-point number of 64 bits.
    Double(f64),
    /// A decimal number: its digits, and how many of them stand behind the point.
    Decimal(u8, i32),
    /// Text.
    Text(String),
    /// Text that is not UTF-8.
    RawText(Bytes),
    /// Bytes.
    Bytes(Bytes),
    /// Several values.
    Array(Vec<FieldValue>),
    /// Seconds since 1970.
    Time(u64),
    /// A table in a table.
    Table(Headers),
    /// Nothing.
    Void,
    /// A table more than 32 levels deep: its bytes, not looked into and handed on as they came.
    DeepTable(Bytes),
    /// An array more than 32 levels deep: its bytes, not looked into and handed on as they came.
    DeepArray(Bytes),
}

impl FieldValue {
    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The whole number, of any width, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        match *self {
            Self::Int(number) => Some(number),
            Self::Int8(number) => Some(number.into()),
            Self::UInt8(number) => Some(number.into()),
            Self::Int16(number) => Some(number.into()),
            Self::UInt16(number) => Some(number.into()),
            Self::Int32(number) => Some(number.into()),
            Self::UInt32(number) => Some(number.into()),
            _ => None,
        }
    }
}

impl fmt::Display for FieldValue {
    /// As one would write it in an environment variable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Int8(value) => write!(f, "{value}"),
            Self::UInt8(value) => write!(f, "{value}"),
            Self::Int16(value) => write!(f, "{value}"),
            Self::UInt16(value) => write!(f, "{value}"),
            Self::Int32(value) => write!(f, "{value}"),
            Self::UInt32(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Double(value) => write!(f, "{value}"),
            Self::Decimal(scale, digits) => {
                write!(f, "{}", f64::from(*digits) / 10f64.powi(i32::from(*scale)))
            }
            Self::Text(text) => f.write_str(text),
            Self::RawText(bytes) | Self::Bytes(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Time(seconds) => write!(f, "{seconds}"),
            Self::Void => Ok(()),
            Self::DeepTable(_) | Self::DeepArray(_) => write!(f, "(nested deeper than {MAX_DEPTH})"),
            Self::Array(values) => {
                for (at, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if at == 0 { "" } else { "," })?;
                }
                Ok(())
            }
            Self::Table(table) => {
                for (at, (key, value)) in table.iter().enumerate() {
                    write!(f, "{}{key}={value}", if at == 0 { "" } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

macro_rules! values_from {
    ($($from:ty => $make:expr),* $(,)?) => {
        $(impl From<$from> for FieldValue {
            fn from(value: $from) -> Self {
                ($make)(value)
            }
        })*
    };
}

values_from! {
    bool => FieldValue::Bool,
    i64 => FieldValue::Int,
    i32 => |number| FieldValue::Int(i64::from(number)),
    u32 => |number| FieldValue::Int(i64::from(number)),
    f64 => FieldValue::Double,
    &str => |text: &str| FieldValue::Text(text.to_owned()),
    String => FieldValue::Text,
    Headers => FieldValue::Table,
}

/// Names and values, in order: the headers of a message, or the arguments of a declaration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Headers(Vec<Field>);

/// A name and its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// The name came as bytes that are no UTF-8, read as Latin-1: it goes out as it came.
    pub(crate) is_latin: bool,
    pub(crate) value: FieldValue,
}

impl Field {
    /// The bytes of the name in a frame.
    pub(crate) fn name_bytes(&self) -> Cow<'_, [u8]> {
        match to_latin1(&self.name).filter(|_| self.is_latin) {
            Some(bytes) => bytes.into(),
            None => self.name.as_bytes().into(),
        }
    }
}

impl Headers {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one, or replaces the one of that name.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<FieldValue>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|field| field.name == name) {
            Some(field) => field.value = value,
            None => self.push(name, value),
        }
    }

    /// [`set`](Self::set), for chains.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<FieldValue>) -> Self {
        self.set(name, value);
        self
    }

    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        self.0.iter().find(|field| field.name == name).map(|field| &field.value)
    }

    /// Adds one behind the others, as it came: another may have that name.
    pub(crate) fn push(&mut self, name: String, value: FieldValue) {
        self.0.push(Field { name, is_latin: false, value });
    }

    /// The same with a name that may be no UTF-8.
    pub(crate) fn push_bytes(&mut self, name: &[u8], value: FieldValue) {
        let (name, is_latin) = decode_text(name);
        self.0.push(Field { name, is_latin, value });
    }

    /// All of them, in order, with how their names are written.
    pub(crate) fn fields(&self) -> &[Field] {
        &self.0
    }

    /// Keeps those that are wanted.
    pub(crate) fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.0.retain(|field| wanted(&field.name));
    }

    /// Takes one out.
    pub fn remove(&mut self, name: &str) -> Option<FieldValue> {
        let at = self.0.iter().position(|field| field.name == name)?;
        Some(self.0.remove(at).value)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FieldValue)> {
        self.0.iter().map(|field| (field.name.as_str(), &field.value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// How deep tables and arrays are read. The broker's own are two deep; without a bound a hostile message would decide
/// how much stack is used. What lies deeper is kept as bytes, so that it costs nothing else of the message.
const MAX_DEPTH: usize = 32;

/// Reads the protocol's values from bytes, front to back.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed("frame: it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("as many as were taken"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Text of up to 255 bytes.
    pub(crate) fn short(&mut self) -> Result<String, Malformed> {
        Ok(self.short_with_encoding()?.0)
    }

    /// The same, and whether it was read as Latin-1.
    pub(crate) fn short_with_encoding(&mut self) -> Result<(String, bool), Malformed> {
        self.short_bytes().map(decode_text)
    }

    fn short_bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::from(self.u8()?);
        self.take(length)
    }

    pub(crate) fn long(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub(crate) fn table(&mut self) -> Result<Headers, Malformed> {
        self.table_at(0)
    }

    fn table_at(&mut self, depth: usize) -> Result<Headers, Malformed> {
        let mut inside = Cursor::new(self.long()?);
        let mut table = Headers::new();
        while !inside.is_empty() {
            let name = inside.short_bytes()?;
            table.push_bytes(name, inside.value_at(depth)?);
        }
        Ok(table)
    }

    fn value_at(&mut self, depth: usize) -> Result<FieldValue, Malformed> {
        Ok(match self.u8()? {
            b't' => FieldValue::Bool(self.u8()? != 0),
            b'b' => FieldValue::Int8(i8::from_be_bytes(self.array()?)),
            b'B' => FieldValue::UInt8(self.u8()?),
            b's' => FieldValue::Int16(i16::from_be_bytes(self.array()?)),
            b'u' => FieldValue::UInt16(self.u16()?),
            b'I' => FieldValue::Int32(i32::from_be_bytes(self.array()?)),
            b'i' => FieldValue::UInt32(self.u32()?),
            b'l' | b'L' => FieldValue::Int(i64::from_be_bytes(self.array()?)),
            b'f' => FieldValue::Float(f32::from_be_bytes(self.array()?)),
            b'd' => FieldValue::Double(f64::from_be_bytes(self.array()?)),
            b'D' => FieldValue::Decimal(self.u8()?, i32::from_be_bytes(self.array()?)),
            b'S' => {
                let bytes = self.long()?;
                match std::str::from_utf8(bytes) {
                    Ok(text) => FieldValue::Text(text.to_owned()),
                    Err(_) => FieldValue::RawText(Bytes::copy_from_slice(bytes)),
                }
            }
            b'x' => FieldValue::Bytes(Bytes::copy_from_slice(self.long()?)),
            b'A' if depth == MAX_DEPTH => FieldValue::DeepArray(Bytes::copy_from_slice(self.long()?)),
            b'F' if depth == MAX_DEPTH => FieldValue::DeepTable(Bytes::copy_from_slice(self.long()?)),
            b'A' => {
                let mut inside = Cursor::new(self.long()?);
                let mut values = Vec::new();
                while !inside.is_empty() {
                    values.push(inside.value_at(depth + 1)?);
                }
                FieldValue::Array(values)
            }
            b'T' => FieldValue::Time(self.u64()?),
            b'F' => FieldValue::Table(self.table_at(depth + 1)?),
            b'V' => FieldValue::Void,
            _ => return Err(Malformed("table: a value of a kind that is not known")),
        })
    }
}

/// The protocol does not say in which encoding texts are; what is not UTF-8 is taken for Latin-1, in which any bytes are
/// text, and different bytes are different text. And whether that was so.
fn decode_text(bytes: &[u8]) -> (String, bool) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), false),
        Err(_) => (bytes.iter().map(|byte| char::from(*byte)).collect(), true),
    }
}

/// As Latin-1, if it is.
pub(crate) fn to_latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|character| u8::try_from(character).ok()).collect()
}

/// Text of up to 255 bytes. Longer is refused where names are checked; here it would break the frame.
pub(crate) fn put_short(out: &mut BytesMut, text: &str) {
    put_short_bytes(out, text.as_bytes());
}

pub(crate) fn put_short_bytes(out: &mut BytesMut, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(255)];
    out.put_u8(bytes.len() as u8);
    out.put_slice(bytes);
}

pub(crate) fn put_long(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

/// Writes what `inside` writes, with its length before it.
pub(crate) fn put_measured(out: &mut BytesMut, inside: impl FnOnce(&mut BytesMut)) {
    let at = out.len();
    out.put_u32(0);
    inside(out);
    let length = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

pub(crate) fn put_table(out: &mut BytesMut, table: &Headers) {
    put_measured(out, |out| {
        for field in &table.0 {
            put_short_bytes(out, &field.name_bytes());
            put_value(out, &field.value);
        }
    });
}

fn put_value(out: &mut BytesMut, value: &FieldValue) {
    match value {
        FieldValue::Bool(value) => {
            out.put_u8(b't');
            out.put_u8(u8::from(*value));
        }
        FieldValue::Int(number) => {
            out.put_u8(b'l');
            out.put_i64(*number);
        }
        FieldValue::Int8(number) => {
            out.put_u8(b'b');
            out.put_i8(*number);
        }
        FieldValue::UInt8(number) => {
            out.put_u8(b'B');
            out.put_u8(*number);
        }
        FieldValue::Int16(number) => {
            out.put_u8(b's');
            out.put_i16(*number);
        }
        FieldValue::UInt16(number) => {
            out.put_u8(b'u');
            out.put_u16(*number);
        }
        FieldValue::Int32(number) => {
            out.put_u8(b'I');
            out.put_i32(*number);
        }
        FieldValue::UInt32(number) => {
            out.put_u8(b'i');
            out.put_u32(*number);
        }
        FieldValue::Float(number) => {
            out.put_u8(b'f');
            out.put_f32(*number);
        }
        FieldValue::Double(number) => {
            out.put_u8(b'd');
            out.put_f64(*number);
        }
        FieldValue::Decimal(scale, digits) => {
            out.put_u8(b'D');
            out.put_u8(*scale);
            out.put_i32(*digits);
        }
        FieldValue::Text(text) => {
            out.put_u8(b'S');
            put_long(out, text.as_bytes());
        }
        FieldValue::RawText(bytes) => {
            out.put_u8(b'S');
            put_long(out, bytes);
        }
        FieldValue::Bytes(bytes) => {
            out.put_u8(b'x');
            put_long(out, bytes);
        }
        FieldValue::Array(values) => {
            out.put_u8(b'A');
            put_measured(out, |out| values.iter().for_each(|value| put_value(out, value)));
        }
        FieldValue::Time(seconds) => {
            out.put_u8(b'T');
            out.put_u64(*seconds);
        }
        FieldValue::Table(table) => {
            out.put_u8(b'F');
            put_table(out, table);
        }
        FieldValue::Void => out.put_u8(b'V'),
        FieldValue::DeepTable(bytes) => {
            out.put_u8(b'F');
            put_long(out, bytes);
        }
        FieldValue::DeepArray(bytes) => {
            out.put_u8(b'A');
            put_long(out, bytes);
        }
    }
}
