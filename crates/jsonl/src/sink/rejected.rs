//! The error for an object that a sink rejects, worded for its sender.

use std::fmt;

use crate::parse_error::ParseErrorKind;
use crate::text::excerpt;

/// Maximum bytes of the object that are shown at the position of the error.
const EXCERPT_BYTES: usize = 60;

/// Why one object was rejected. The other objects of its batch are not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedObject {
    /// Position of the error in bytes, from 1.
    pub at: u64,
    /// Error at this position.
    pub reason: ParseErrorKind,
    /// Text at this position.
    near: String,
}

impl RejectedObject {
    pub(crate) fn new(object: &[u8], at: usize, reason: ParseErrorKind) -> Self {
        let near = excerpt(object.get(at..).unwrap_or_default(), EXCERPT_BYTES);
        RejectedObject { at: at as u64 + 1, reason, near }
    }
}

/// Rewords the messages that mention lines, files or flags.
impl fmt::Display for RejectedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at;
        match &self.reason {
            ParseErrorKind::Refused(_) => write!(f, "{}", self.reason),
            ParseErrorKind::TooLong(limit) => write!(f, "it is longer than {limit} bytes"),
            ParseErrorKind::NotAnObject(found) => {
                write!(f, "expected an object such as {{\"id\":1}}; found {found}")
            }
            ParseErrorKind::Truncated | ParseErrorKind::PrettyPrinted => {
                write!(f, "byte {at}: it ends in the middle of a value; is it cut off?")
            }
            ParseErrorKind::OpenString => {
                write!(f, "byte {at}: a string begins here and is never closed; is it cut off?")
            }
            ParseErrorKind::Trailing => {
                write!(f, "byte {at}: unexpected text after the object; expected one object: {}", self.near)
            }
            ParseErrorKind::TypeMismatch { .. } => write!(f, "byte {at}: {}", self.reason),
            ParseErrorKind::NotUtf8 => write!(f, "byte {at}: these bytes are not UTF-8"),
            reason => write!(f, "byte {at}: {reason}: {}", self.near),
        }
    }
}

impl std::error::Error for RejectedObject {}
