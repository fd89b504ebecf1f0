//! An object that a sink does not take, in words for whoever sent it.

use std::fmt;

use crate::parse_error::ParseErrorKind;

/// So much of an object is shown where something is wrong, in bytes.
const EXCERPT_BYTES: usize = 60;

/// Why one object is no row. The others of its batch are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedObject {
    /// Where it is wrong: from 1, in bytes.
    pub at: u64,
    /// What is wrong there.
    pub reason: ParseErrorKind,
    /// What stands there.
    near: String,
}

impl RejectedObject {
    pub(crate) fn new(object: &[u8], at: usize, reason: ParseErrorKind) -> Self {
        let rest = object.get(at..).unwrap_or_default();
        let mut near = String::from_utf8_lossy(&rest[..rest.len().min(EXCERPT_BYTES)]).into_owned();
        if rest.len() > EXCERPT_BYTES {
            // The cut may have gone through a character.
            near.truncate(near.trim_end_matches('\u{fffd}').len());
            near.push('…');
        }
        RejectedObject { at: at as u64 + 1, reason, near }
    }
}

/// The reasons speak of lines and files; here are none.
impl fmt::Display for RejectedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at;
        match &self.reason {
            ParseErrorKind::Refused(_) => write!(f, "{}", self.reason),
            ParseErrorKind::TooLong(limit) => write!(f, "it is longer than {limit} bytes"),
            ParseErrorKind::NotAnObject(found) => {
                write!(f, "expected an object such as {{\"id\":1}}; found {found}")
            }
            ParseErrorKind::Truncated => {
                write!(f, "byte {at}: it ends in the middle of a value; is it cut off?")
            }
            ParseErrorKind::PrettyPrinted => {
                write!(f, "byte {at}: it ends in the middle of a value; is it cut off?")
            }
            ParseErrorKind::OpenString => {
                write!(f, "byte {at}: a string begins here and is never closed; is it cut off?")
            }
            ParseErrorKind::Trailing => {
                write!(f, "byte {at}: something follows the object; expected one object: {}", self.near)
            }
            ParseErrorKind::Misfit { .. } => write!(f, "byte {at}: {}", self.reason),
            ParseErrorKind::NotUtf8 => write!(f, "byte {at}: these bytes are not UTF-8"),
            reason => write!(f, "byte {at}: {reason}: {}", self.near),
        }
    }
}

impl std::error::Error for RejectedObject {}
