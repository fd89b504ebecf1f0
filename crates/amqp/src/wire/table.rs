//! Field tables, which headers and arguments consist of, and the basic values of the protocol.
//!
//! Any bytes are read as a value or as [`Malformed`], without a panic and with memory bounded by the input.

use bytes::{BufMut, Bytes, BytesMut};
use std::{borrow::Cow, fmt};

/// Bytes that do not follow the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed {}", self.0)
    }
}

/// A value in a field table.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FieldValue {
    /// Boolean value, true or false.
    Bool(bool),
    /// Signed 64-bit integer: the type for new messages. [`as_int`](Self::as_int) reads any width.
    Int(i64),
    /// Signed 8-bit integer value.
    Int8(i8),
    /// Unsigned 8-bit integer value.
    UInt8(u8),
    /// Signed 16-bit integer value.
    Int16(i16),
    /// Unsigned 16-bit integer value.
    UInt16(u16),
    /// Signed 32-bit integer value.
    Int32(i32),
    /// Unsigned 32-bit integer value.
    UInt32(u32),
    /// 32-bit floating-point value.
    Float(f32),
    /// 64-bit floating-point value.
    Double(f64),
    /// Decimal number: the number of digits after the point, and the digits.
    Decimal(u8, i32),
    /// Text that is valid UTF-8.
    Text(String),
    /// Text that is not valid UTF-8.
    RawText(Bytes),
    /// Byte array without an encoding.
    Bytes(Bytes),
    /// Array of values of any type.
    Array(Vec<FieldValue>),
    /// Time in seconds since 1970.
    Time(u64),
    /// Nested table with its own names.
    Table(Headers),
    /// Field without a value.
    Void,
    /// Table nested deeper than 32 levels: its bytes, not decoded and passed on unchanged.
    DeepTable(Bytes),
    /// Array nested deeper than 32 levels: its bytes, not decoded and passed on unchanged.
    DeepArray(Bytes),
}

impl FieldValue {
    /// Returns the text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the integer, of any width, if it is one.
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

    /// Type of the value: its tag in a table, and its name in JSON.
    pub(crate) fn kind(&self) -> (u8, &'static str) {
        match self {
            Self::Bool(_) => (b't', "bool"),
            Self::Int(_) => (b'l', "int"),
            Self::Int8(_) => (b'b', "int8"),
            Self::UInt8(_) => (b'B', "uint8"),
            Self::Int16(_) => (b's', "int16"),
            Self::UInt16(_) => (b'u', "uint16"),
            Self::Int32(_) => (b'I', "int32"),
            Self::UInt32(_) => (b'i', "uint32"),
            Self::Float(_) => (b'f', "float"),
            Self::Double(_) => (b'd', "double"),
            Self::Decimal(..) => (b'D', "decimal"),
            Self::Text(_) | Self::RawText(_) => (b'S', "text"),
            Self::Bytes(_) => (b'x', "bytes"),
            Self::Array(_) => (b'A', "array"),
            Self::Time(_) => (b'T', "time"),
            Self::Table(_) => (b'F', "table"),
            Self::Void => (b'V', "void"),
            Self::DeepTable(_) => (b'F', "deep_table"),
            Self::DeepArray(_) => (b'A', "deep_array"),
        }
    }
}

impl fmt::Display for FieldValue {
    /// Formats the value as for an environment variable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
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
            integer => write!(f, "{}", integer.as_int().unwrap_or_default()),
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

/// Names and values in order: the headers of a message, or the arguments of a declaration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Headers(Vec<Field>);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// The name came as bytes that are not UTF-8, read as Latin-1: it is written unchanged.
    pub(crate) is_latin: bool,
    pub(crate) value: FieldValue,
}

impl Field {
    /// Bytes of the name in a frame.
    pub(crate) fn name_bytes(&self) -> Cow<'_, [u8]> {
        match to_latin1(&self.name).filter(|_| self.is_latin) {
            Some(bytes) => bytes.into(),
            None => self.name.as_bytes().into(),
        }
    }
}

impl Headers {
    /// Creates a table without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a field, replacing one of that name.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<FieldValue>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|field| field.name == name) {
            Some(field) => field.value = value,
            None => self.push(name, value),
        }
    }

    /// Sets a field and returns the table, for chaining.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<FieldValue>) -> Self {
        self.set(name, value);
        self
    }

    /// Returns the first value of that name.
    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        self.0.iter().find(|field| field.name == name).map(|field| &field.value)
    }

    /// Appends a field as received: another may have that name.
    pub(crate) fn push(&mut self, name: String, value: FieldValue) {
        self.0.push(Field { name, is_latin: false, value });
    }

    /// Appends a field whose name may not be UTF-8.
    pub(crate) fn push_bytes(&mut self, name: &[u8], value: FieldValue) {
        let (name, is_latin) = decode_text(name);
        self.0.push(Field { name, is_latin, value });
    }

    /// All fields in order, with the encoding of their names.
    pub(crate) fn fields(&self) -> &[Field] {
        &self.0
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|field| keep(&field.name));
    }

    /// Removes and returns the first field of that name.
    pub fn remove(&mut self, name: &str) -> Option<FieldValue> {
        let at = self.0.iter().position(|field| field.name == name)?;
        Some(self.0.remove(at).value)
    }

    /// Iterates over names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FieldValue)> {
        self.0.iter().map(|field| (field.name.as_str(), &field.value))
    }

    /// Number of fields, counting repeated names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Maximum nesting depth that is decoded. The broker's own tables are two deep; without a bound a hostile message would
/// decide how much stack is used. Deeper values are kept as bytes, so that the rest of the message is unaffected.
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
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed("frame: ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("exactly N bytes were taken"))
    }

    pub(crate) fn read<T: Read>(&mut self) -> Result<T, Malformed> {
        T::read(self)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.read()
    }

    /// Reads text of up to 255 bytes, and whether it is Latin-1.
    pub(crate) fn short(&mut self) -> Result<(String, bool), Malformed> {
        self.short_bytes().map(decode_text)
    }

    pub(crate) fn short_bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::from(self.read::<u8>()?);
        self.take(length)
    }

    pub(crate) fn long(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.read::<u32>()? as usize;
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
        Ok(match self.read::<u8>()? {
            b't' => FieldValue::Bool(self.read::<u8>()? != 0),
            b'b' => FieldValue::Int8(self.read()?),
            b'B' => FieldValue::UInt8(self.read()?),
            b's' => FieldValue::Int16(self.read()?),
            b'u' => FieldValue::UInt16(self.read()?),
            b'I' => FieldValue::Int32(self.read()?),
            b'i' => FieldValue::UInt32(self.read()?),
            b'l' | b'L' => FieldValue::Int(self.read()?),
            b'f' => FieldValue::Float(self.read()?),
            b'd' => FieldValue::Double(self.read()?),
            b'D' => FieldValue::Decimal(self.read()?, self.read()?),
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
            b'T' => FieldValue::Time(self.read()?),
            b'F' => FieldValue::Table(self.table_at(depth + 1)?),
            b'V' => FieldValue::Void,
            _ => return Err(Malformed("table: value of an unknown type")),
        })
    }
}

/// A value that [`Cursor::read`] reads. Of a `bool` only the lowest bit counts; texts have up to 255 bytes.
pub(crate) trait Read: Sized {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed>;
}

/// A value that is written as an argument of a method or a field of a table. Texts have up to 255 bytes.
pub(crate) trait Argument {
    fn put(self, out: &mut BytesMut);
}

/// Implements both for numbers, [`Read`] by an expression, and [`Argument`] by a function.
macro_rules! values {
    ($($type:ty),*; $($readable:ty: |$cursor:ident| $read:expr),*; $($argument:ty => $put:expr),*) => {
        $(impl Read for $type {
            fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
                cursor.array().map(Self::from_be_bytes)
            }
        }

        impl Argument for $type {
            fn put(self, out: &mut BytesMut) {
                out.put_slice(&self.to_be_bytes());
            }
        })*

        $(impl Read for $readable {
            fn read($cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
                $read
            }
        })*

        $(impl Argument for $argument {
            fn put(self, out: &mut BytesMut) {
                $put(out, self);
            }
        })*
    };
}

values! {
    u8, u16, u32, u64, i8, i16, i32, i64, f32, f64;
    bool: |cursor| Ok(cursor.read::<u8>()? & 1 != 0),
    String: |cursor| Ok(cursor.short()?.0),
    Vec<u8>: |cursor| Ok(cursor.long()?.to_vec());
    bool => |out: &mut BytesMut, flag| u8::from(flag).put(out),
    &str => put_short,
    &[u8] => put_long,
    &Headers => put_table
}

/// Decodes text, whose encoding the protocol does not specify. Bytes that are not UTF-8 are read as Latin-1, in which
/// any bytes are text and different bytes are different text. Returns whether it is Latin-1.
fn decode_text(bytes: &[u8]) -> (String, bool) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), false),
        Err(_) => (bytes.iter().map(|byte| char::from(*byte)).collect(), true),
    }
}

/// Encodes text as Latin-1, if possible.
pub(crate) fn to_latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|character| u8::try_from(character).ok()).collect()
}

/// Writes text of up to 255 bytes. Longer text is refused where names are checked, and cut here.
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

/// Writes the output of `inside`, preceded by its length.
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
    out.put_u8(value.kind().0);
    match value {
        FieldValue::Bool(value) => value.put(out),
        FieldValue::Int(number) => number.put(out),
        FieldValue::Int8(number) => number.put(out),
        FieldValue::UInt8(number) => number.put(out),
        FieldValue::Int16(number) => number.put(out),
        FieldValue::UInt16(number) => number.put(out),
        FieldValue::Int32(number) => number.put(out),
        FieldValue::UInt32(number) => number.put(out),
        FieldValue::Float(number) => number.put(out),
        FieldValue::Double(number) => number.put(out),
        FieldValue::Decimal(scale, digits) => {
            scale.put(out);
            digits.put(out);
        }
        FieldValue::Text(text) => put_long(out, text.as_bytes()),
        FieldValue::RawText(bytes)
        | FieldValue::Bytes(bytes)
        | FieldValue::DeepTable(bytes)
        | FieldValue::DeepArray(bytes) => put_long(out, bytes),
        FieldValue::Array(values) => put_measured(out, |out| values.iter().for_each(|value| put_value(out, value))),
        FieldValue::Time(seconds) => seconds.put(out),
        FieldValue::Table(table) => put_table(out, table),
        FieldValue::Void => {}
    }
}
