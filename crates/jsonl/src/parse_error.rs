//! What is wrong with a line, and where.
//!
//! Owns the words: each says what is there and what would be right.

use std::fmt;

/// Why a line cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// The line ends too early.
    Truncated,
    /// The line is the beginning of an object that goes on in the next line.
    PrettyPrinted,
    /// A string has no closing quote.
    OpenString,
    /// An element of a document has no end.
    OpenElement,
    /// The array that a document is has no end.
    OpenArray,
    /// Something other than an object; what it is.
    NotAnObject(&'static str),
    /// A key is expected.
    NoKey,
    /// A colon is expected.
    NoColon,
    /// A comma or the end of the object is expected.
    NoComma,
    /// A comma or the end of the array is expected.
    NoCommaInArray,
    /// A value is expected.
    NoValue,
    /// A control character in a string.
    Control(u8),
    /// A backslash that begins nothing known.
    BadEscape,
    /// Half of a surrogate pair: no character.
    LoneSurrogate,
    /// Not a number as JSON writes them.
    BadNumber,
    /// Nested deeper than is read.
    TooDeep,
    /// Something behind the object.
    Trailing,
    /// Bytes that are not UTF-8.
    NotUtf8,
    /// A key that the object has already.
    DuplicateKey(String),
    /// A key that is also the name of the column for file names.
    FilenameKey(String),
    /// The line is longer than is read.
    TooLong(usize),
    /// A value that the column does not take.
    Misfit {
        /// The column.
        column: String,
        /// Its type, and what that takes.
        takes: &'static str,
        /// What is there.
        found: &'static str,
        /// The value, or its beginning.
        value: String,
    },
    /// A key that the schema does not know.
    UnknownKey(String),
    /// The primary key is missing or null.
    NoPrimaryKey(String),
    /// The database does not take the row; in its words.
    Refused(String),
    /// Well-formed, but not what the caller's type expects; in serde's words.
    Mistyped(String),
}

impl ParseErrorKind {
    /// The key of the row is taken; `why` in the words of the database.
    pub(crate) fn taken(why: &str) -> Self {
        ParseErrorKind::Refused(format!("a row with this key is there already: {why}"))
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
            ParseErrorKind::OpenString => {
                f.write_str("a string begins here and is never closed; is the line cut off?")
            }
            ParseErrorKind::NotAnObject(found) => {
                write!(f, "expected an object such as {{\"id\":1}}; found {found}")
            }
            ParseErrorKind::NoKey => f.write_str("a key in double quotes is expected here"),
            ParseErrorKind::NoColon => f.write_str("a colon is expected here, between key and value"),
            ParseErrorKind::NoComma => f.write_str("a comma or the closing } is expected here"),
            ParseErrorKind::NoCommaInArray => f.write_str("a comma or the closing ] is expected here"),
            ParseErrorKind::NoValue => f.write_str(
                "a value is expected here: an object, an array, a string, a number, true, false or null",
            ),
            ParseErrorKind::Control(0) => f.write_str("a NUL byte in a string; JSON writes it as \\u0000"),
            ParseErrorKind::Control(byte) => {
                write!(f, "a control character (byte {byte}) in a string; JSON writes it as \\u{byte:04x}")
            }
            ParseErrorKind::BadEscape => f.write_str(
                "not an escape; expected: \\\" \\\\ \\/ \\b \\f \\n \\r \\t, and \\u with four hex digits",
            ),
            ParseErrorKind::LoneSurrogate => {
                f.write_str("half of a surrogate pair, such as \\ud83d without its \\ude80: no character")
            }
            ParseErrorKind::BadNumber => f.write_str("not a number as JSON writes them, such as 0, -1.5 or 2e10"),
            ParseErrorKind::TooDeep => {
                write!(f, "nested deeper than {} levels", crate::lexer::MAX_DEPTH)
            }
            ParseErrorKind::Trailing => f.write_str("something follows the object; expected one object a line"),
            ParseErrorKind::NotUtf8 => {
                f.write_str("these bytes are not UTF-8; convert the file first, for example with iconv")
            }
            ParseErrorKind::DuplicateKey(key) => write!(f, "the key {key:?} is there twice"),
            ParseErrorKind::FilenameKey(key) => {
                write!(f, "the key {key:?} is also the --filename-column; choose another name for that")
            }
            ParseErrorKind::TooLong(limit) => {
                write!(f, "longer than {limit} bytes; --max-line sets the limit")
            }
            ParseErrorKind::Misfit { column, takes, found, value } => {
                write!(f, "the column {column:?} is {takes}; found {found}: {value}")
            }
            ParseErrorKind::UnknownKey(key) => write!(f, "the schema does not know the key {key:?}"),
            ParseErrorKind::NoPrimaryKey(column) => write!(f, "the primary key {column:?} is missing or null"),
            ParseErrorKind::Refused(why) => write!(f, "the database does not take it: {why}"),
            ParseErrorKind::Mistyped(why) => f.write_str(why),
        }
    }
}

/// Where in a line something is wrong, in bytes from its beginning, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    pub(crate) at: usize,
    pub(crate) reason: ParseErrorKind,
}
