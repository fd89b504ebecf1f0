//! Reasons why a line is rejected, their messages, and the position in the line.

use std::fmt;
use std::io;

/// Why a line is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// The line ends too early.
    Truncated,
    /// The line is the beginning of an object that continues on the next line.
    PrettyPrinted,
    /// A string has no closing quotation mark.
    OpenString,
    /// An element of a JSON document is never closed.
    OpenElement,
    /// The array of a JSON document is never closed.
    OpenArray,
    /// The line is not an object. Holds what was found instead.
    NotAnObject(&'static str),
    /// A key is expected at this position.
    NoKey,
    /// A colon is expected between a key and its value.
    NoColon,
    /// A comma or the end of the object is expected.
    NoComma,
    /// A comma or the end of the array is expected.
    NoCommaInArray,
    /// A value is expected at this position.
    NoValue,
    /// A string contains this unescaped control character.
    Control(u8),
    /// A backslash does not begin a valid escape.
    BadEscape,
    /// A `\u` escape is half of a surrogate pair.
    LoneSurrogate,
    /// The number does not follow the JSON grammar.
    BadNumber,
    /// Objects and arrays are nested deeper than the maximum.
    TooDeep,
    /// Text follows the object on the same line.
    Trailing,
    /// The line has bytes that are not UTF-8.
    NotUtf8,
    /// The object has this key twice.
    DuplicateKey(String),
    /// The object has a key with the name of the column for file names.
    FilenameKey(String),
    /// The line is longer than this number of bytes.
    TooLong(usize),
    /// The value does not match the type of its column.
    TypeMismatch {
        /// Name of the column.
        column: String,
        /// Type of the column, with the values that it accepts.
        accepts: &'static str,
        /// Kind of value that was found.
        found: &'static str,
        /// Text of the value, or its beginning if it is long.
        value: String,
    },
    /// The schema rejects keys that it does not name, and this is one.
    UnknownKey(String),
    /// The value of this primary key column is missing or null.
    NoPrimaryKey(String),
    /// The database rejected the row. Holds its error message.
    Refused(String),
    /// The object does not match the caller's type. Holds the message of serde.
    Mistyped(String),
}

impl ParseErrorKind {
    pub(crate) fn at(self, at: usize) -> ParseError {
        ParseError { at, reason: self }
    }

    /// Error for a row whose key already exists; `why` is the message of the database.
    pub(crate) fn key_exists(why: &str) -> Self {
        ParseErrorKind::Refused(format!("a row with this key already exists: {why}"))
    }
}

impl fmt::Display for ParseErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseErrorKind::Truncated => f.write_str("the line ends in the middle of a value; is it cut off?"),
            ParseErrorKind::PrettyPrinted => f.write_str(
                "looks like pretty-printed JSON, an object spread over lines; jq -c . makes one line of each object",
            ),
            ParseErrorKind::OpenElement => {
                f.write_str("an element begins here and is never closed; is the file cut off?")
            }
            ParseErrorKind::OpenArray => f.write_str("the array is never closed; is the file cut off?"),
            ParseErrorKind::OpenString => f.write_str("a string begins here and is never closed; is the line cut off?"),
            ParseErrorKind::NotAnObject(found) => {
                write!(f, "expected an object such as {{\"id\":1}}; found {found}")
            }
            ParseErrorKind::NoKey => f.write_str("a key in double quotes is expected here"),
            ParseErrorKind::NoColon => f.write_str("a colon is expected here, between key and value"),
            ParseErrorKind::NoComma => f.write_str("a comma or the closing } is expected here"),
            ParseErrorKind::NoCommaInArray => f.write_str("a comma or the closing ] is expected here"),
            ParseErrorKind::NoValue => {
                f.write_str("a value is expected here: an object, an array, a string, a number, true, false or null")
            }
            ParseErrorKind::Control(0) => f.write_str("a NUL byte in a string; JSON writes it as \\u0000"),
            ParseErrorKind::Control(byte) => {
                write!(f, "a control character (byte {byte}) in a string; JSON writes it as \\u{byte:04x}")
            }
            ParseErrorKind::BadEscape => {
                f.write_str("not an escape; expected: \\\" \\\\ \\/ \\b \\f \\n \\r \\t, and \\u with four hex digits")
            }
            ParseErrorKind::LoneSurrogate => f.write_str("half of a surrogate pair, such as \\ud83d without \\ude80"),
            ParseErrorKind::BadNumber => f.write_str("not a JSON number, such as 0, -1.5 or 2e10"),
            ParseErrorKind::TooDeep => {
                write!(f, "nested deeper than {} levels", crate::lexer::MAX_DEPTH)
            }
            ParseErrorKind::Trailing => f.write_str("unexpected text after the object; expected one object per line"),
            ParseErrorKind::NotUtf8 => {
                f.write_str("these bytes are not UTF-8; convert the file first, for example with iconv")
            }
            ParseErrorKind::DuplicateKey(key) => write!(f, "the key {key:?} occurs twice"),
            ParseErrorKind::FilenameKey(key) => {
                write!(f, "the key {key:?} has the name of the --filename-column; choose another name for that column")
            }
            ParseErrorKind::TooLong(limit) => {
                write!(f, "longer than {limit} bytes; set the limit with --max-line")
            }
            ParseErrorKind::TypeMismatch { column, accepts, found, value } => {
                write!(f, "the column {column:?} is {accepts}; found {found}: {value}")
            }
            ParseErrorKind::UnknownKey(key) => write!(f, "the key {key:?} is not in the schema"),
            ParseErrorKind::NoPrimaryKey(column) => write!(f, "the primary key {column:?} is missing or null"),
            ParseErrorKind::Refused(why) => write!(f, "the database rejected it: {why}"),
            ParseErrorKind::Mistyped(why) => f.write_str(why),
        }
    }
}

/// An invalid line and the position of the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Line number, from 1.
    pub line: u64,
    /// Column in bytes, from 1.
    pub column: u64,
    /// Error at this position.
    pub reason: ParseErrorKind,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.reason)
    }
}

impl std::error::Error for BadLine {}

impl From<BadLine> for io::Error {
    fn from(bad: BadLine) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, bad)
    }
}

/// An error in a line, and its offset in bytes from the beginning of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    pub(crate) at: usize,
    pub(crate) reason: ParseErrorKind,
}

impl ParseError {
    /// The same error with `by` added to its offset.
    pub(crate) fn shifted(self, by: usize) -> Self {
        ParseError { at: self.at + by, ..self }
    }
}
