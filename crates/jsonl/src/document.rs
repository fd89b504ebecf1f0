//! JSON documents: arrays of objects, and objects that span several lines.
//!
//! Owns the detection of documents and finds where their elements begin and end. It checks only the separators between
//! elements; the parser checks the elements.

use crate::parse::BYTE_ORDER_MARK;
use crate::parse_error::{BadLine, ParseError, ParseErrorKind};
use crate::parsed_block::Span;

#[derive(Debug, Default)]
pub(crate) struct Elements {
    pub(crate) spans: Vec<Span>,
    /// Bytes of the first line that were in earlier blocks.
    pub(crate) column: usize,
    /// Line ends in the block, counting those of skipped bytes.
    pub(crate) lines: usize,
}

/// Whether a source that begins with `head` is a document, not lines. `ended`: `head` is the whole source.
pub(crate) fn is_document(head: &[u8], ended: bool) -> bool {
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head).trim_ascii_start();
    match head.first() {
        Some(b'[') => is_array(head, ended),
        Some(b'{') => is_pretty_printed(head, ended),
        _ => false,
    }
}

/// Whether it is an array of objects, or an array that spans lines. Lines that are arrays of other values stay lines.
fn is_array(head: &[u8], ended: bool) -> bool {
    let first_byte = head[1..].iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r'));
    if !matches!(first_byte, None | Some(b'{' | b'\n' | b']')) {
        return false;
    }
    match Nesting::default().close(head) {
        Ok(None) => true,
        Ok(Some(end)) => match head[end..].trim_ascii_start().first() {
            None => ended || head[1..end - 1].contains(&b'{'),
            next => next == Some(&b'['),
        },
        Err(_) => true,
    }
}

/// Whether it is an object that is not closed on its first line and continues on the next.
fn is_pretty_printed(head: &[u8], ended: bool) -> bool {
    let Some(end) = memchr::memchr(b'\n', head) else { return false };
    let mut nesting = Nesting::default();
    if !matches!(nesting.close(&head[..end]), Ok(None)) || nesting.in_string {
        return false;
    }
    let line = head[..end].trim_ascii_end();
    let next = head[end..].trim_ascii_start().first();
    // A truncated line is followed by a line that begins with a bracket, too.
    let continues = match next {
        Some(b'{') => matches!(line.last(), Some(b'[' | b':')),
        Some(_) => true,
        None => false,
    };
    let closes = matches!(nesting.close(&head[end..]), Ok(Some(_)));
    continues && (closes || (!ended && next != Some(&b'{')))
}

#[derive(Debug, Default)]
struct Nesting {
    open: Vec<u8>,
    /// Number of open brackets beyond `MAX_BRACKETS`.
    deeper: usize,
    in_string: bool,
    escaped: bool,
}

/// Maximum number of brackets whose kind is checked; the parser rejects deeper nesting.
const MAX_BRACKETS: usize = 4_096;

impl Nesting {
    /// Reads until the open value is closed. Returns its end, or the position of a bracket that does not match.
    fn close(&mut self, bytes: &[u8]) -> Result<Option<usize>, ParseError> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            if self.in_string {
                if std::mem::take(&mut self.escaped) {
                    at += 1;
                    continue;
                }
                let Some(found) = memchr::memchr2(b'"', b'\\', &bytes[at..]) else { break };
                at += found;
                match bytes[at] {
                    b'"' => self.in_string = false,
                    _ => self.escaped = true,
                }
                at += 1;
                if self.is_closed() {
                    return Ok(Some(at));
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' if self.open.len() < MAX_BRACKETS => self.open.push(*byte),
                b'{' | b'[' => self.deeper += 1,
                b'}' | b']' if self.deeper > 0 => self.deeper -= 1,
                b'}' | b']' => {
                    match (self.open.pop(), byte) {
                        (Some(b'{'), b'}') | (Some(b'['), b']') => {}
                        (Some(b'{'), _) => return Err(ParseErrorKind::NoComma.at(at)),
                        _ => return Err(ParseErrorKind::NoCommaInArray.at(at)),
                    }
                    if self.is_closed() {
                        return Ok(Some(at + 1));
                    }
                }
                _ => {}
            }
            at += 1;
        }
        Ok(None)
    }

    fn is_closed(&self) -> bool {
        self.open.is_empty() && !self.in_string
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    /// An array or an object, outside of any array.
    #[default]
    Document,
    /// The first element of an array or its end.
    First,
    Element,
    CommaOrEnd,
}

/// Finds the elements of a document. Objects outside of arrays are elements, too.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    expected: Expected,
    nesting: Nesting,
    /// Whether the open element is a number or a word, which ends where another token begins.
    is_bare: bool,
    /// Offset in the buffer of the element that is not complete.
    pub(crate) element_start: Option<usize>,
    /// Number of bytes of the buffer that have been read.
    scanned: usize,
    /// Line ends before the buffer, and bytes after the last of them.
    lines: u64,
    column: usize,
    /// Line and column where the open array begins, from 1.
    array: (u64, u64),
}

impl Splitter {
    /// Reads the new bytes of the buffer and adds the complete elements to `spans`. Fails if the elements cannot be
    /// separated, because the document is not valid JSON.
    pub(crate) fn scan(&mut self, buffer: &[u8], spans: &mut Vec<Span>) -> Result<(), BadLine> {
        if self.lines == 0 && self.column == 0 && self.scanned == 0 && buffer.starts_with(BYTE_ORDER_MARK) {
            self.scanned = BYTE_ORDER_MARK.len();
        }
        self.elements(buffer, spans).map_err(|error| self.error_at(buffer, error))
    }

    fn elements(&mut self, buffer: &[u8], spans: &mut Vec<Span>) -> Result<(), ParseError> {
        while let Some(byte) = buffer.get(self.scanned) {
            let at = self.scanned;
            if let Some(element_start) = self.element_start {
                let Some(length) = self.remaining(&buffer[at..]).map_err(|error| error.shifted(at))? else {
                    self.scanned = buffer.len();
                    break;
                };
                self.scanned += length;
                self.element_start = None;
                spans.push(Span::new(element_start, self.scanned));
                continue;
            }
            match (byte, self.expected) {
                (b' ' | b'\t' | b'\r' | b'\n', _) => {}
                (b',', Expected::CommaOrEnd) => self.expected = Expected::Element,
                (b']', Expected::CommaOrEnd | Expected::First) => self.expected = Expected::Document,
                (b'[', Expected::Document) => {
                    self.expected = Expected::First;
                    self.array = self.position(buffer, at);
                }
                (_, Expected::CommaOrEnd) => {
                    return Err(ParseErrorKind::NoCommaInArray.at(at));
                }
                (b',' | b':' | b']' | b'}', _) => {
                    return Err(ParseErrorKind::NoValue.at(at));
                }
                (byte, expected) => {
                    self.element_start = Some(at);
                    self.is_bare = !matches!(byte, b'{' | b'[' | b'"');
                    if expected != Expected::Document {
                        self.expected = Expected::CommaOrEnd;
                    }
                    continue;
                }
            }
            self.scanned += 1;
        }
        Ok(())
    }

    /// Number of further bytes of the open element; `None` if `bytes` does not have its end.
    pub(crate) fn remaining(&mut self, bytes: &[u8]) -> Result<Option<usize>, ParseError> {
        if !self.is_bare {
            return self.nesting.close(bytes);
        }
        let ends =
            |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b':' | b'"' | b'{' | b'}' | b'[' | b']');
        Ok(bytes.iter().position(ends))
    }

    /// Ends the document. Fails if an element or an array is still open.
    pub(crate) fn finish(&mut self, buffer: &[u8], spans: &mut Vec<Span>) -> Result<(), BadLine> {
        match self.element_start {
            Some(element_start) if self.is_bare => {
                self.element_start = None;
                spans.push(Span::new(element_start, buffer.len()));
            }
            Some(at) => {
                return Err(self.error_at(buffer, ParseErrorKind::OpenElement.at(at)));
            }
            None => {}
        }
        if self.expected == Expected::Document {
            return Ok(());
        }
        let (line, column) = self.array;
        Err(BadLine { line, column, reason: ParseErrorKind::OpenArray })
    }

    /// Removes the first bytes of the buffer. Returns the number of their line ends and the column at which they begin.
    pub(crate) fn cut(&mut self, bytes: &[u8]) -> (usize, usize) {
        let column = self.column;
        self.element_start = self.element_start.map(|element_start| element_start.saturating_sub(bytes.len()));
        self.scanned = self.scanned.saturating_sub(bytes.len());
        (self.advance(bytes), column)
    }

    pub(crate) fn end_skipped(&mut self) {
        self.element_start = None;
        self.scanned = 0;
    }

    /// Updates line and column for bytes that were passed. Returns the number of their line ends.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> usize {
        let lines = memchr::memchr_iter(b'\n', bytes).count();
        self.lines += lines as u64;
        self.column = match memchr::memrchr(b'\n', bytes) {
            Some(last) => bytes.len() - last - 1,
            None => self.column + bytes.len(),
        };
        lines
    }

    /// Returns line and column of a byte of the buffer, from 1.
    fn position(&self, buffer: &[u8], at: usize) -> (u64, u64) {
        let before = &buffer[..at.min(buffer.len())];
        let lines = memchr::memchr_iter(b'\n', before).count() as u64;
        let column = memchr::memrchr(b'\n', before).map_or(self.column + at, |last| at - last - 1);
        (self.lines + lines + 1, column as u64 + 1)
    }

    pub(crate) fn error_at(&self, buffer: &[u8], error: ParseError) -> BadLine {
        let (line, column) = self.position(buffer, error.at);
        BadLine { line, column, reason: error.reason }
    }
}

/// Appends a valid value to `out`, without the white space between its tokens.
pub(crate) fn compact(value: &[u8], out: &mut Vec<u8>) {
    let (mut in_string, mut escaped) = (false, false);
    for byte in value {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' if !in_string => continue,
            b'"' if !escaped => in_string = !in_string,
            _ => {}
        }
        escaped = *byte == b'\\' && !escaped;
        out.push(*byte);
    }
}
