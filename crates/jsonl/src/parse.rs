//! Parses rows: lines, or elements of a document.
//!
//! Decides which objects are flattened, which keys are skipped and which values match a column. The lexer checks the
//! JSON.

mod blocks;
mod values;

use std::collections::{HashMap, HashSet};

pub(crate) use self::blocks::{parse, parse_each};
use crate::document::compact;
use crate::keys::{ColumnRule, Keys, ROOT};
use crate::lexer::Cursor;
use crate::number::Number;
use crate::parse_error::{ParseError, ParseErrorKind};
use crate::parsed_block::{BadLine, Cell, Line, ParsedBlock, Row, Span};
use crate::text::{unescape, unescaped};

/// What to do with keys that the parse options do not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnknownKeys {
    #[default]
    Inferred,
    Skipped,
    Rejected,
    /// They are collected in one object, the value of this key.
    Overflow(u32),
}

/// What to do with numbers with a fraction or an exponent that a double does not hold without loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Decimals {
    /// They keep their spelling, but columns of doubles round them.
    #[default]
    Written,
    /// They are rounded, as by other JSON parsers.
    Rounded,
    /// They keep their spelling, and columns of numbers reject them.
    Exact,
}

#[derive(Clone, Debug)]
pub(crate) struct ParseOptions {
    /// Number of levels of objects that are flattened.
    pub(crate) flatten: usize,
    /// Languages of localised objects to keep; all if empty.
    pub(crate) languages: Vec<Box<[u8]>>,
    /// Keys that are known before parsing.
    pub(crate) keys: Keys,
    /// Column names by key number, for messages; a column without an entry has the name of its key.
    pub(crate) names: HashMap<u32, String>,
    pub(crate) unknown_keys: UnknownKeys,
    pub(crate) decimals: Decimals,
    pub(crate) max_line: usize,
    pub(crate) filename: Option<Filename>,
}

#[derive(Clone, Debug)]
pub(crate) struct Filename {
    pub(crate) key: u32,
    pub(crate) value: Box<[u8]>,
}

impl Default for ParseOptions {
    fn default() -> Self {
        ParseOptions {
            flatten: 0,
            languages: Vec::new(),
            keys: Keys::default(),
            names: HashMap::new(),
            decimals: Decimals::default(),
            unknown_keys: UnknownKeys::default(),
            max_line: usize::MAX,
            filename: None,
        }
    }
}

/// Maximum depth to which objects are flattened; deeper objects stay JSON.
pub(crate) const MAX_FLATTEN_DEPTH: usize = 32;

pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

struct Parser<'a> {
    options: &'a ParseOptions,
    text: &'a [u8],
    /// Offset of the line in the text.
    line_start: usize,
    out: &'a mut ParsedBlock,
    /// Number of the row, valid or not, from 1; keys are marked with it.
    row: u32,
    overflow: Vec<u8>,
    overflow_keys: HashSet<Box<[u8]>>,
    /// Rows may contain line ends.
    is_document: bool,
    filename: Option<(u32, Cell)>,
}

impl<'a> Parser<'a> {
    fn new(options: &'a ParseOptions, text: &'a [u8], out: &'a mut ParsedBlock) -> Self {
        // An estimate that avoids most reallocations: a value takes about 24 bytes of text.
        out.cells.reserve(text.len() / 24);
        let filename = options.filename.as_ref().map(|filename| {
            let start = out.scratch.len();
            out.scratch.extend_from_slice(&filename.value);
            let span = Span::new(start, out.scratch.len());
            (filename.key, Cell::Text { span, scratch: true, is_json: false })
        });
        Parser {
            options,
            text,
            line_start: 0,
            out,
            row: 0,
            overflow: Vec::new(),
            overflow_keys: HashSet::new(),
            is_document: false,
            filename,
        }
    }

    /// Parses rows whose positions are known. `is_document`: rows may contain line ends.
    fn parse_rows(mut self, rows: impl IntoIterator<Item = Line>, is_document: bool) {
        let all_utf8 = simdutf8::basic::from_utf8(self.text).is_ok();
        self.is_document = is_document;
        for line in rows {
            self.parse_row(line, all_utf8);
        }
    }

    fn parse_row(&mut self, line: Line, all_utf8: bool) {
        self.line_start = line.span.start as usize;
        let bytes = line.span.of(self.text);
        if bytes.len() > self.options.max_line {
            let reason = ParseErrorKind::TooLong(self.options.max_line);
            self.reject(line, reason.at(self.options.max_line));
        } else if !all_utf8 && let Err(error) = simdutf8::compat::from_utf8(bytes) {
            self.reject(line, ParseErrorKind::NotUtf8.at(error.valid_up_to()));
        } else {
            self.line(line, bytes);
        }
    }

    fn reject(&mut self, line: Line, ParseError { at, reason }: ParseError) {
        self.out.bad.push(BadLine { line, at, reason });
    }

    fn line(&mut self, line: Line, bytes: &'a [u8]) {
        let (cells, scratch) = (self.out.cells.len(), self.out.scratch.len());
        self.row += 1;
        match self.object(bytes) {
            Ok(true) => {
                for (key, cell) in &self.out.cells[cells..] {
                    self.out.keys.note(*key, cell.type_set());
                }
                self.out.rows.push(Row { end: self.out.cells.len() as u32, line });
            }
            Ok(false) => self.out.blank += 1,
            Err(error) => {
                self.out.cells.truncate(cells);
                self.out.scratch.truncate(scratch);
                self.reject(line, error);
            }
        }
    }

    /// Parses a line. Returns false if it is blank.
    fn object(&mut self, bytes: &'a [u8]) -> Result<bool, ParseError> {
        let mut cursor = Cursor::new(bytes);
        cursor.skip_space();
        match cursor.peek() {
            None => return Ok(false),
            Some(b'{') => {}
            Some(b'[') => return Err(cursor.error(ParseErrorKind::NotAnObject("an array"))),
            Some(b'"') => return Err(cursor.error(ParseErrorKind::NotAnObject("a string"))),
            Some(b'-' | b'0'..=b'9') => return Err(cursor.error(ParseErrorKind::NotAnObject("a number"))),
            Some(_) => {
                let reason = match cursor.clone().word() {
                    Ok(_) => ParseErrorKind::NotAnObject("a bare word"),
                    Err(error) => error.reason,
                };
                return Err(cursor.error(reason));
            }
        }
        if let Some((key, cell)) = self.filename {
            self.out.keys.mark(key, self.row);
            self.push(key, cell, Span::default(), 0)?;
        }
        self.members(&mut cursor, ROOT, 0).map_err(|error| pretty_printed(bytes, error))?;
        cursor.skip_space();
        if cursor.peek().is_some() {
            return Err(cursor.error(ParseErrorKind::Trailing));
        }
        self.end_overflow();
        Ok(true)
    }

    /// Parses the members of an object that is flattened. The cursor is at its opening bracket.
    fn members(&mut self, cursor: &mut Cursor<'a>, parent: u32, depth: usize) -> Result<(), ParseError> {
        cursor.take(b'{');
        cursor.skip_space();
        if cursor.take(b'}') {
            return Ok(());
        }
        let mut last = None;
        loop {
            self.member(cursor, parent, &mut last, depth)?;
            cursor.skip_space();
            if cursor.take(b',') {
                cursor.skip_space();
            } else if cursor.take(b'}') {
                return Ok(());
            } else {
                return Err(cursor.expected(ParseErrorKind::NoComma));
            }
        }
    }

    #[inline]
    fn member(
        &mut self,
        cursor: &mut Cursor<'a>,
        parent: u32,
        last: &mut Option<u32>,
        depth: usize,
    ) -> Result<(), ParseError> {
        let start = cursor.at();
        let rest = &cursor.bytes()[start..];
        let guess = match rest.split_first() {
            Some((b'"', name)) => self.out.keys.guess(parent, *last, name),
            _ => None,
        };
        let key = match guess {
            Some(key) => {
                cursor.seek(start + self.out.keys.get(key).name.len() + 2);
                cursor.colon()?;
                key
            }
            None => {
                let (raw, escaped) = cursor.key()?;
                let name = unescaped(raw, escaped).map_err(|error| error.shifted(start + 1))?;
                match self.known_key(parent, *last, &name) {
                    Some(key) => key,
                    None => return self.unknown_key(cursor, start, &name),
                }
            }
        };
        *last = Some(key);
        if !self.out.keys.mark(key, self.row) {
            let name = String::from_utf8_lossy(&self.out.keys.get(key).name).into_owned();
            let is_filename = self.filename.is_some_and(|(filename, _)| filename == key);
            let reason =
                if is_filename { ParseErrorKind::FilenameKey(name) } else { ParseErrorKind::DuplicateKey(name) };
            return Err(reason.at(start));
        }
        self.value(cursor, key, depth)
    }

    fn known_key(&mut self, parent: u32, last: Option<u32>, name: &[u8]) -> Option<u32> {
        let is_open = || parent != ROOT && self.out.keys.get(parent).is_open;
        if self.options.unknown_keys == UnknownKeys::Inferred || is_open() || self.out.keys.find(parent, name).is_some()
        {
            return Some(self.out.keys.intern(parent, last, name));
        }
        None
    }

    /// Handles an unknown key where only known keys become columns.
    fn unknown_key(&mut self, cursor: &mut Cursor<'a>, start: usize, name: &[u8]) -> Result<(), ParseError> {
        let text = || String::from_utf8_lossy(name).into_owned();
        if self.options.unknown_keys == UnknownKeys::Rejected {
            return Err(ParseErrorKind::UnknownKey(text()).at(start));
        }
        cursor.value(1)?;
        if let UnknownKeys::Overflow(_) = self.options.unknown_keys {
            if !self.overflow_keys.insert(name.into()) {
                return Err(ParseErrorKind::DuplicateKey(text()).at(start));
            }
            self.overflow.push(if self.overflow.is_empty() { b'{' } else { b',' });
            let member = &cursor.bytes()[start..cursor.at()];
            if self.is_document {
                compact(member, &mut self.overflow);
            } else {
                self.overflow.extend_from_slice(member);
            }
        }
        Ok(())
    }

    fn end_overflow(&mut self) {
        if let UnknownKeys::Overflow(key) = self.options.unknown_keys
            && !self.overflow.is_empty()
        {
            self.overflow.push(b'}');
            let start = self.out.scratch.len();
            self.out.scratch.append(&mut self.overflow);
            let span = Span::new(start, self.out.scratch.len());
            self.out.cells.push((key, Cell::Text { span, scratch: true, is_json: true }));
        }
        self.overflow_keys.clear();
    }

    #[inline]
    fn value(&mut self, cursor: &mut Cursor<'a>, key: u32, depth: usize) -> Result<(), ParseError> {
        let start = cursor.at();
        let cell = match cursor.peek() {
            Some(b'"') => {
                let escaped = cursor.string()?;
                let (from, to) = (start + 1, cursor.at() - 1);
                if escaped {
                    let begin = self.out.scratch.len();
                    let raw = &cursor.bytes()[from..to];
                    unescape(raw, &mut self.out.scratch).map_err(|error| error.shifted(from))?;
                    let span = Span::new(begin, self.out.scratch.len());
                    Cell::Text { span, scratch: true, is_json: false }
                } else {
                    Cell::Text { span: self.span(from, to), scratch: false, is_json: false }
                }
            }
            Some(b'-' | b'0'..=b'9') => match cursor.number_value()? {
                Number::Int(value) => Cell::Int(value),
                Number::Real(value) => Cell::Real(value),
                Number::Decimal => self.decimal(key, start, &cursor.bytes()[start..cursor.at()]),
            },
            Some(b'{') if depth < self.options.flatten && self.is_flattened(key) && !is_empty(cursor) => {
                return self.members(cursor, key, depth + 1);
            }
            Some(b'{' | b'[') => {
                cursor.value(depth + 1)?;
                let value = &cursor.bytes()[start..cursor.at()];
                // JSON in a table is one line, so that an export can write it as JSONL.
                if self.is_document && memchr::memchr(b'\n', value).is_some() {
                    let begin = self.out.scratch.len();
                    compact(value, &mut self.out.scratch);
                    let span = Span::new(begin, self.out.scratch.len());
                    Cell::Text { span, scratch: true, is_json: true }
                } else {
                    Cell::Text { span: self.span(start, cursor.at()), scratch: false, is_json: true }
                }
            }
            _ => match cursor.word()? {
                crate::lexer::ValueKind::True => Cell::Bool(true),
                crate::lexer::ValueKind::False => Cell::Bool(false),
                _ => Cell::Null,
            },
        };
        self.push(key, cell, self.span(start, cursor.at()), start)
    }

    fn is_flattened(&self, key: u32) -> bool {
        let key = self.out.keys.get(key);
        !key.whole && key.rule != ColumnRule::Skipped
    }

    #[inline]
    fn span(&self, start: usize, end: usize) -> Span {
        Span::new(self.line_start + start, self.line_start + end)
    }
}

/// Rewords the error if the line has only an opening bracket.
#[cold]
fn pretty_printed(line: &[u8], error: ParseError) -> ParseError {
    let is_opening = error.reason == ParseErrorKind::Truncated && line.trim_ascii() == b"{";
    if is_opening { ParseError { reason: ParseErrorKind::PrettyPrinted, ..error } } else { error }
}

fn is_empty(cursor: &Cursor<'_>) -> bool {
    let mut ahead = cursor.clone();
    ahead.take(b'{');
    ahead.skip_space();
    ahead.peek() == Some(b'}')
}
