//! The JSON lexer: finds where a value ends and checks that it is valid.
//!
//! Owns the grammar. It decodes nothing and allocates nothing. Each level of nesting takes one bit, not a stack frame.

use crate::parse_error::{ParseError, ParseErrorKind};

/// Maximum depth of nesting, equal to that of SQLite's JSON functions.
pub(crate) const MAX_DEPTH: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Null,
    True,
    False,
    Number,
    Text { escaped: bool },
    Object,
    Array,
}

/// Position in one line; reads forward.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn seek(&mut self, at: usize) {
        self.at = at;
    }

    pub(crate) fn error(&self, reason: ParseErrorKind) -> ParseError {
        reason.at(self.at)
    }

    /// Consumes the next byte if it is this one, and returns whether it was.
    #[inline]
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let matches = self.peek() == Some(byte);
        self.at += usize::from(matches);
        matches
    }

    #[inline]
    pub(crate) fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
    }

    /// Reads a key, its colon and the space around them. Returns the raw key and whether it has escapes.
    #[inline(always)] // Called several times per line: not inlining costs the parser 4 %.
    pub(crate) fn key(&mut self) -> Result<(&'a [u8], bool), ParseError> {
        if self.peek() != Some(b'"') {
            return Err(self.expected(ParseErrorKind::NoKey));
        }
        let start = self.at + 1;
        let escaped = self.string()?;
        let key = &self.bytes[start..self.at - 1];
        self.colon()?;
        Ok((key, escaped))
    }

    /// Reads the colon after a key, with the space around it.
    #[inline]
    pub(crate) fn colon(&mut self) -> Result<(), ParseError> {
        self.skip_space();
        if !self.take(b':') {
            return Err(self.expected(ParseErrorKind::NoColon));
        }
        self.skip_space();
        Ok(())
    }

    /// Reads and checks a value of any kind. `depth` is the number of open brackets around it.
    #[inline]
    pub(crate) fn value(&mut self, depth: usize) -> Result<ValueKind, ParseError> {
        match self.peek() {
            Some(b'"') => Ok(ValueKind::Text { escaped: self.string()? }),
            Some(b'-' | b'0'..=b'9') => self.number().map(|()| ValueKind::Number),
            Some(b'{') => self.nested(depth).map(|()| ValueKind::Object),
            Some(b'[') => self.nested(depth).map(|()| ValueKind::Array),
            _ => self.word(),
        }
    }

    pub(crate) fn word(&mut self) -> Result<ValueKind, ParseError> {
        let rest = &self.bytes[self.at..];
        let words: [(&[u8], ValueKind); 3] =
            [(b"null", ValueKind::Null), (b"true", ValueKind::True), (b"false", ValueKind::False)];
        for (word, kind) in words {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(kind);
            }
        }
        Err(self.expected(ParseErrorKind::NoValue))
    }

    fn nested(&mut self, depth: usize) -> Result<(), ParseError> {
        let mut levels = Levels::with_max(MAX_DEPTH.saturating_sub(depth));
        // Each iteration reads a scalar, or the opening bracket of an object or array.
        loop {
            let opens = self.peek();
            match opens {
                Some(b'{' | b'[') => {
                    let is_object = opens == Some(b'{');
                    if !levels.push(is_object) {
                        return Err(self.error(ParseErrorKind::TooDeep));
                    }
                    self.at += 1;
                    self.skip_space();
                    if self.take(if is_object { b'}' } else { b']' }) {
                        levels.pop();
                    } else {
                        if is_object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => {
                    self.word()?;
                }
            }
            // After a value: closing brackets, then a comma before the next value.
            loop {
                let Some(is_object) = levels.top() else { return Ok(()) };
                self.skip_space();
                match (self.peek(), is_object) {
                    (Some(b','), _) => {
                        self.at += 1;
                        self.skip_space();
                        if is_object {
                            self.key()?;
                        }
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        levels.pop();
                    }
                    _ => {
                        let reason = if is_object { ParseErrorKind::NoComma } else { ParseErrorKind::NoCommaInArray };
                        return Err(self.expected(reason));
                    }
                }
            }
        }
    }

    /// Reads a string with its quotation marks. Returns whether it has escapes.
    #[inline]
    pub(crate) fn string(&mut self) -> Result<bool, ParseError> {
        let mut escaped = false;
        let mut at = self.at + 1;
        loop {
            at += plain(&self.bytes[at..]);
            match self.bytes.get(at) {
                Some(b'"') => {
                    self.at = at + 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    at += self.escape(at)?;
                }
                Some(byte) => return Err(ParseErrorKind::Control(*byte).at(at)),
                None => return Err(ParseErrorKind::OpenString.at(self.at)),
            }
        }
    }

    /// Length in bytes of the escape that begins at `at`.
    fn escape(&self, at: usize) -> Result<usize, ParseError> {
        match self.bytes.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(2),
            Some(b'u') => match self.bytes.get(at + 2..at + 6) {
                Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => Ok(6),
                _ => Err(ParseErrorKind::BadEscape.at(at)),
            },
            _ => Err(ParseErrorKind::BadEscape.at(at)),
        }
    }

    #[inline]
    fn number(&mut self) -> Result<(), ParseError> {
        let start = self.at;
        let bad = ParseErrorKind::BadNumber.at(start);
        self.take(b'-');
        if self.take(b'0') {
            if self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                return Err(bad);
            }
        } else if self.digits() == 0 {
            return Err(bad);
        }
        if self.take(b'.') && self.digits() == 0 {
            return Err(bad);
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(bad);
            }
        }
        Ok(())
    }

    #[inline]
    fn digits(&mut self) -> usize {
        let found = digits(&self.bytes[self.at..]);
        self.at += found;
        found
    }

    /// The error `reason` at this position, or `Truncated` at the end of the line.
    pub(crate) fn expected(&self, reason: ParseErrorKind) -> ParseError {
        self.error(if self.at >= self.bytes.len() { ParseErrorKind::Truncated } else { reason })
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Number of leading bytes that are plain text: no quotation mark, no backslash, no control character.
///
/// Most strings are short, but most bytes are in long ones. So it reads a few words of eight bytes first, then uses
/// vector instructions. (The borrow of a subtraction sets a false mark only above a true one, and only the lowest
/// counts.)
#[inline]
fn plain(bytes: &[u8]) -> usize {
    const WORDS: usize = 3;
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, chunk) in words.iter().enumerate().take(WORDS) {
        let word = u64::from_le_bytes(*chunk);
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
        let marks = control | zero(word ^ (ONES * u64::from(b'"'))) | zero(word ^ (ONES * u64::from(b'\\')));
        if marks != 0 {
            return at * 8 + marks.trailing_zeros() as usize / 8;
        }
    }
    if words.len() >= WORDS {
        return WORDS * 8 + plain_in_long(&bytes[WORDS * 8..]);
    }
    let is_plain = |byte: &u8| *byte >= 0x20 && *byte != b'"' && *byte != b'\\';
    bytes.len() - rest.len() + rest.iter().position(|byte| !is_plain(byte)).unwrap_or(rest.len())
}

#[inline(never)]
fn plain_in_long(bytes: &[u8]) -> usize {
    let end = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
    // The minimum of 16 bytes is one vector instruction.
    match bytes[..end].iter().copied().min() {
        Some(0..0x20) => bytes.iter().position(|byte| *byte < 0x20).unwrap_or(end),
        _ => end,
    }
}

/// Number of leading bytes that are digits. Reads eight at a time, because most numbers are in arrays and objects that
/// are only checked. A carry sets a false mark only above a true one.
#[inline]
fn digits(bytes: &[u8]) -> usize {
    let mut at = 0;
    let (words, rest) = bytes.as_chunks::<8>();
    for chunk in words {
        // The XOR maps digits to 0 to 9; after the addition they stay below 128.
        let word = u64::from_le_bytes(*chunk) ^ (ONES * 0x30);
        let marks = (word.wrapping_add(ONES * 0x76) | word) & HIGH;
        if marks != 0 {
            return at + marks.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())
}

/// The open brackets, one bit for each: set for an object, clear for an array.
struct Levels {
    objects: [u64; MAX_DEPTH.div_ceil(64)],
    depth: usize,
    max: usize,
}

impl Levels {
    fn with_max(max: usize) -> Self {
        Levels { objects: [0; MAX_DEPTH.div_ceil(64)], depth: 0, max }
    }

    /// Adds a level. Returns false if the maximum depth is reached.
    #[inline]
    fn push(&mut self, is_object: bool) -> bool {
        if self.depth == self.max {
            return false;
        }
        let (word, bit) = (self.depth / 64, self.depth % 64);
        self.objects[word] = self.objects[word] & !(1 << bit) | u64::from(is_object) << bit;
        self.depth += 1;
        true
    }

    #[inline]
    fn pop(&mut self) {
        self.depth -= 1;
    }

    /// Whether the innermost open bracket is an object; `None` if all are closed.
    #[inline]
    fn top(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        Some(self.objects[last / 64] >> (last % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn word_at_a_time_agrees_with_byte_at_a_time(text in prop::collection::vec(prop_oneof![8 => Just(b'7'), 1 => any::<u8>()], 0..100)) {
            let slow = |is: fn(u8) -> bool| text.iter().position(|byte| !is(*byte)).unwrap_or(text.len());
            prop_assert_eq!(digits(&text), slow(|byte| byte.is_ascii_digit()));
            prop_assert_eq!(plain(&text), slow(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\'));
        }
    }
}
