//! Reads rows: lines, or elements of a document.
//!
//! Owns what a row is made of: which objects are spread, which keys are left out, what a value must be to fit. What
//! is JSON at all, the grammar knows.

mod blocks;

use std::collections::{HashMap, HashSet};

use self::blocks::trimmed;
pub(crate) use self::blocks::{parse, parse_each};
use crate::document::compact;
use crate::fault::{Fault, ParseErrorKind};
use crate::grammar::Cursor;
use crate::keys::{Fate, Keys, ROOT};
use crate::kinds::Type;
use crate::number::{EXACT, Number, rounded};
use crate::rows::{BadLine, Cell, Line, Row, Rows, Span};
use crate::text::{unescape, unescaped};

/// What becomes of keys that are not known beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Others {
    /// They become columns.
    #[default]
    Inferred,
    Skipped,
    /// Their line is refused.
    Refused,
    /// They go into one object, the value of this key.
    Gathered(u32),
}

/// What becomes of numbers with a fraction or an exponent of which a double does not give the digits back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Decimals {
    /// They stay as they were written, but columns of doubles round them.
    #[default]
    Written,
    /// They are rounded, as other readers of JSON do it.
    Rounded,
    /// They stay as they were written, and columns of numbers refuse them.
    Exact,
}

/// How rows are made.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    /// How many levels of objects are spread.
    pub(crate) flatten: usize,
    /// Of localised objects only these are kept; all, when empty.
    pub(crate) languages: Vec<Box<[u8]>>,
    /// Keys known beforehand.
    pub(crate) keys: Keys,
    /// The columns of these, by their numbers, for messages; where there is none it is named like its key.
    pub(crate) names: HashMap<u32, String>,
    pub(crate) others: Others,
    pub(crate) decimals: Decimals,
    /// The longest line, in bytes.
    pub(crate) longest: usize,
    /// The column that names the file of each row.
    pub(crate) filename: Option<Filename>,
}

/// A value that each row gets: the name of its file.
#[derive(Clone, Debug)]
pub(crate) struct Filename {
    pub(crate) key: u32,
    pub(crate) value: Box<[u8]>,
}

impl Default for Form {
    fn default() -> Self {
        Form {
            flatten: 0,
            languages: Vec::new(),
            keys: Keys::default(),
            names: HashMap::new(),
            decimals: Decimals::default(),
            others: Others::default(),
            longest: usize::MAX,
            filename: None,
        }
    }
}

/// What a column takes whose type is nothing we know.
const LOOSE: &str = "of a type for numbers of 64 bits, and text that SQLite does not make a number of";

/// So much of a value that does not fit is shown, in bytes.
const EXCERPT: usize = 60;

/// Objects are spread so deep at most; deeper ones stay JSON.
pub(crate) const DEEPEST: usize = 32;

pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

struct Parser<'a> {
    form: &'a Form,
    text: &'a [u8],
    /// Where the line begins in the text.
    base: usize,
    out: &'a mut Rows,
    /// Counts rows, good or bad, from 1: for the marks of the keys.
    row: u32,
    gathered: Vec<u8>,
    gathered_keys: HashSet<Box<[u8]>>,
    /// Rows may have line ends in them.
    is_document: bool,
    /// The key and the value that each row gets.
    filename: Option<(u32, Cell)>,
}

impl<'a> Parser<'a> {
    fn new(form: &'a Form, text: &'a [u8], out: &'a mut Rows) -> Self {
        // A guess that saves most of the growing: a value takes some 24 bytes of text.
        out.cells.reserve(text.len() / 24);
        let filename = form.filename.as_ref().map(|filename| {
            let start = out.beside.len();
            out.beside.extend_from_slice(&filename.value);
            let span = Span::new(start, out.beside.len());
            (filename.key, Cell::Text { span, beside: true, is_json: false })
        });
        Parser {
            form,
            text,
            base: 0,
            out,
            row: 0,
            gathered: Vec::new(),
            gathered_keys: HashSet::new(),
            is_document: false,
            filename,
        }
    }

    fn block(mut self, skipped: usize) {
        let all_utf8 = simdutf8::basic::from_utf8(self.text).is_ok();
        let mut at = skipped;
        while at < self.text.len() {
            let end = memchr::memchr(b'\n', &self.text[at..]).map_or(self.text.len(), |end| at + end + 1);
            self.part(at, trimmed(self.text, at, end), all_utf8);
            at = end;
        }
    }

    /// Rows whose places are known.
    fn elements(mut self, lines: &[Line]) {
        let all_utf8 = simdutf8::basic::from_utf8(self.text).is_ok();
        self.is_document = true;
        for line in lines {
            self.row_at(*line, all_utf8);
        }
    }

    fn each(mut self, ends: &[usize]) {
        let all_utf8 = simdutf8::basic::from_utf8(self.text).is_ok();
        let mut at = 0;
        for end in ends {
            let line = self.part(at, *end, all_utf8);
            at = end + 1;
            if std::mem::take(&mut self.out.blank) > 0 {
                self.refuse(line, Fault { at: 0, reason: ParseErrorKind::NotAnObject("nothing") });
            }
        }
    }

    /// What is to be one row.
    fn part(&mut self, start: usize, stop: usize, all_utf8: bool) -> Line {
        let line = Line { number: self.out.lines, column: 0, span: Span::new(start, stop) };
        self.out.lines += 1;
        self.row_at(line, all_utf8);
        line
    }

    fn row_at(&mut self, line: Line, all_utf8: bool) {
        self.base = line.span.start as usize;
        let bytes = line.span.of(self.text);
        if bytes.len() > self.form.longest {
            let reason = ParseErrorKind::TooLong(self.form.longest);
            self.refuse(line, Fault { at: self.form.longest, reason });
        } else if !all_utf8 && let Err(error) = simdutf8::compat::from_utf8(bytes) {
            self.refuse(line, Fault { at: error.valid_up_to(), reason: ParseErrorKind::NotUtf8 });
        } else {
            self.line(line, bytes);
        }
    }

    fn refuse(&mut self, line: Line, Fault { at, reason }: Fault) {
        self.out.bad.push(BadLine { line, at, reason });
    }

    fn line(&mut self, line: Line, bytes: &'a [u8]) {
        let (cells, beside) = (self.out.cells.len(), self.out.beside.len());
        self.row += 1;
        match self.object(bytes) {
            Ok(true) => {
                for (key, cell) in &self.out.cells[cells..] {
                    self.out.keys.note(*key, cell.kind());
                }
                self.out.rows.push(Row { end: self.out.cells.len() as u32, line });
            }
            Ok(false) => self.out.blank += 1,
            Err(fault) => {
                self.out.cells.truncate(cells);
                self.out.beside.truncate(beside);
                self.refuse(line, fault);
            }
        }
    }

    /// A line. Says no when it is blank.
    fn object(&mut self, bytes: &'a [u8]) -> Result<bool, Fault> {
        let mut cursor = Cursor::new(bytes);
        cursor.skip_space();
        match cursor.peek() {
            None => return Ok(false),
            Some(b'{') => {}
            Some(b'[') => return Err(cursor.fault(ParseErrorKind::NotAnObject("an array"))),
            Some(b'"') => return Err(cursor.fault(ParseErrorKind::NotAnObject("a string"))),
            Some(b'-' | b'0'..=b'9') => return Err(cursor.fault(ParseErrorKind::NotAnObject("a number"))),
            Some(_) => {
                let reason = match cursor.clone().word() {
                    Ok(_) => ParseErrorKind::NotAnObject("a bare word"),
                    Err(fault) => fault.reason,
                };
                return Err(cursor.fault(reason));
            }
        }
        if let Some((key, cell)) = self.filename {
            self.out.keys.mark(key, self.row);
            self.push(key, cell, Span::default(), 0)?;
        }
        self.members(&mut cursor, ROOT, 0).map_err(|fault| pretty_printed(bytes, fault))?;
        cursor.skip_space();
        if cursor.peek().is_some() {
            return Err(cursor.fault(ParseErrorKind::Trailing));
        }
        self.gather_end();
        Ok(true)
    }

    /// The members of an object that is spread. The cursor stands at its opening bracket.
    fn members(&mut self, cursor: &mut Cursor<'a>, parent: u32, depth: usize) -> Result<(), Fault> {
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
                return Err(cursor.missing(ParseErrorKind::NoComma));
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
    ) -> Result<(), Fault> {
        let begun = cursor.at();
        let rest = &cursor.bytes()[begun..];
        let guess = match rest.split_first() {
            Some((b'"', name)) => self.out.keys.guess(parent, *last, name),
            _ => None,
        };
        let key = match guess {
            Some(key) => {
                cursor.seek(begun + self.out.keys.get(key).name.len() + 2);
                cursor.colon()?;
                key
            }
            None => {
                let (raw, escaped) = cursor.key()?;
                let name = unescaped(raw, escaped).map_err(|fault| beyond(fault, begun + 1))?;
                match self.known(parent, *last, &name) {
                    Some(key) => key,
                    None => return self.stranger(cursor, begun, &name),
                }
            }
        };
        *last = Some(key);
        if !self.out.keys.mark(key, self.row) {
            let name = String::from_utf8_lossy(&self.out.keys.get(key).name).into_owned();
            let is_filename = self.filename.is_some_and(|(filename, _)| filename == key);
            let reason = if is_filename {
                ParseErrorKind::FilenameKey(name)
            } else {
                ParseErrorKind::DuplicateKey(name)
            };
            return Err(Fault { at: begun, reason });
        }
        self.value(cursor, key, depth)
    }

    fn known(&mut self, parent: u32, last: Option<u32>, name: &[u8]) -> Option<u32> {
        let is_open = || parent != ROOT && self.out.keys.get(parent).is_open;
        if self.form.others == Others::Inferred || is_open() || self.out.keys.find(parent, name).is_some() {
            return Some(self.out.keys.intern(parent, last, name));
        }
        None
    }

    /// A key that is not known, where only known ones become columns.
    fn stranger(&mut self, cursor: &mut Cursor<'a>, begun: usize, name: &[u8]) -> Result<(), Fault> {
        let text = || String::from_utf8_lossy(name).into_owned();
        if self.form.others == Others::Refused {
            return Err(Fault { at: begun, reason: ParseErrorKind::UnknownKey(text()) });
        }
        cursor.value(1)?;
        if let Others::Gathered(_) = self.form.others {
            if !self.gathered_keys.insert(name.into()) {
                return Err(Fault { at: begun, reason: ParseErrorKind::DuplicateKey(text()) });
            }
            self.gathered.push(if self.gathered.is_empty() { b'{' } else { b',' });
            let member = &cursor.bytes()[begun..cursor.at()];
            if self.is_document {
                compact(member, &mut self.gathered);
            } else {
                self.gathered.extend_from_slice(member);
            }
        }
        Ok(())
    }

    fn gather_end(&mut self) {
        if let Others::Gathered(key) = self.form.others
            && !self.gathered.is_empty()
        {
            self.gathered.push(b'}');
            let start = self.out.beside.len();
            self.out.beside.append(&mut self.gathered);
            let span = Span::new(start, self.out.beside.len());
            self.out.cells.push((key, Cell::Text { span, beside: true, is_json: true }));
        }
        self.gathered_keys.clear();
    }

    #[inline]
    fn value(&mut self, cursor: &mut Cursor<'a>, key: u32, depth: usize) -> Result<(), Fault> {
        let start = cursor.at();
        let cell = match cursor.peek() {
            Some(b'"') => {
                let escaped = cursor.string()?;
                let (from, to) = (start + 1, cursor.at() - 1);
                if escaped {
                    let begun = self.out.beside.len();
                    let raw = &cursor.bytes()[from..to];
                    unescape(raw, &mut self.out.beside).map_err(|fault| beyond(fault, from))?;
                    let span = Span::new(begun, self.out.beside.len());
                    Cell::Text { span, beside: true, is_json: false }
                } else {
                    Cell::Text { span: self.span(from, to), beside: false, is_json: false }
                }
            }
            Some(b'-' | b'0'..=b'9') => match cursor.number_value()? {
                Number::Int(value) => Cell::Int(value),
                Number::Real(value) => Cell::Real(value),
                Number::Decimal => self.decimal(key, start, &cursor.bytes()[start..cursor.at()]),
            },
            Some(b'{') if depth < self.form.flatten && self.is_spread(key) && !is_empty(cursor) => {
                return self.members(cursor, key, depth + 1);
            }
            Some(b'{' | b'[') => {
                cursor.value(depth + 1)?;
                let value = &cursor.bytes()[start..cursor.at()];
                // A value in a table is one line, so that it can be a part of JSONL again.
                if self.is_document && memchr::memchr(b'\n', value).is_some() {
                    let begun = self.out.beside.len();
                    compact(value, &mut self.out.beside);
                    let span = Span::new(begun, self.out.beside.len());
                    Cell::Text { span, beside: true, is_json: true }
                } else {
                    Cell::Text { span: self.span(start, cursor.at()), beside: false, is_json: true }
                }
            }
            _ => match cursor.word()? {
                crate::grammar::Shape::True => Cell::Bool(true),
                crate::grammar::Shape::False => Cell::Bool(false),
                _ => Cell::Null,
            },
        };
        self.push(key, cell, self.span(start, cursor.at()), start)
    }

    /// Adds a value to the row, if its column takes it. `written` is its text, `at` where that begins in the line.
    #[inline]
    fn push(&mut self, key: u32, cell: Cell, written: Span, at: usize) -> Result<(), Fault> {
        let cell = match self.out.keys.get(key).fate {
            Fate::Inferred => cell,
            Fate::Skipped => return Ok(()),
            Fate::Loose if self.looks_like_a_number(cell) => return Err(self.misfit(key, cell, LOOSE, at)),
            Fate::Loose => cell,
            Fate::Found(found) => self.fitted(cell, found, written).unwrap_or(cell),
            Fate::Fixed(wanted) => match self.fitted(cell, wanted, written) {
                Some(cell) => cell,
                None => return Err(self.misfit(key, cell, wanted.takes(), at)),
            },
        };
        self.out.cells.push((key, cell));
        Ok(())
    }

    /// A number of which a double does not give the digits back. A whole one stays as it is: it is a name more often than
    /// a measure.
    #[cold]
    fn decimal(&self, key: u32, start: usize, written: &[u8]) -> Cell {
        let is_whole = !written.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
        let is_rounded = match self.out.keys.get(key).fate {
            Fate::Inferred | Fate::Found(_) => self.form.decimals == Decimals::Rounded && !is_whole,
            Fate::Fixed(Type::Real) => self.form.decimals != Decimals::Exact,
            Fate::Fixed(Type::Numeric) | Fate::Loose => self.form.decimals != Decimals::Exact && !is_whole,
            Fate::Fixed(_) | Fate::Skipped => false,
        };
        match rounded(written).filter(|_| is_rounded) {
            Some(value) => Cell::Real(value),
            None => Cell::Decimal(self.span(start, start + written.len())),
        }
    }

    /// The value as a column of this type holds it, or nothing. Text takes all, as it was written.
    #[inline]
    fn fitted(&self, cell: Cell, wanted: Type, written: Span) -> Option<Cell> {
        match (wanted, cell) {
            (Type::Real, Cell::Int(value)) if value.unsigned_abs() > EXACT => {
                (self.form.decimals != Decimals::Exact).then_some(Cell::Real(value as f64))
            }
            _ => fitted(cell, wanted, written),
        }
    }

    fn looks_like_a_number(&self, cell: Cell) -> bool {
        let text = match cell {
            Cell::Text { span, beside: false, is_json: false } => span.of(self.text),
            Cell::Text { span, is_json: false, .. } => span.of(&self.out.beside),
            Cell::Decimal(_) => return true,
            _ => return false,
        };
        std::str::from_utf8(text).is_ok_and(|text| text.trim().parse::<f64>().is_ok())
    }

    fn is_spread(&self, key: u32) -> bool {
        let key = self.out.keys.get(key);
        !key.whole && key.fate != Fate::Skipped
    }

    #[cold]
    fn misfit(&self, key: u32, cell: Cell, takes: &'static str, at: usize) -> Fault {
        let path = self.out.keys.path(key);
        let name = || path.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>().join("_");
        let column = self.form.names.get(&key).cloned().unwrap_or_else(name);
        let value = excerpt(self.text.get(self.base + at..).unwrap_or_default());
        Fault { at, reason: ParseErrorKind::Misfit { column, takes, found: cell.found(), value } }
    }

    #[inline]
    fn span(&self, start: usize, end: usize) -> Span {
        Span::new(self.base + start, self.base + end)
    }
}

/// The same, where nothing is rounded.
fn fitted(cell: Cell, wanted: Type, written: Span) -> Option<Cell> {
    match (wanted, cell) {
        (Type::Any, cell) | (_, cell @ Cell::Null) | (Type::Text, cell @ Cell::Text { .. }) => Some(cell),
        (Type::Text, _) => Some(Cell::Text { span: written, beside: false, is_json: false }),
        (Type::Integer | Type::Numeric, cell @ (Cell::Int(_) | Cell::Bool(_))) => Some(cell),
        (Type::Integer, Cell::Real(value)) => {
            (value.fract() == 0.0 && value.abs() <= EXACT as f64).then_some(Cell::Int(value as i64))
        }
        (Type::Numeric, cell @ Cell::Real(_)) => Some(cell),
        (Type::Real, cell @ (Cell::Real(_) | Cell::Bool(_))) => Some(cell),
        (Type::Real, cell @ Cell::Int(_)) => Some(cell),
        (Type::Boolean, cell @ (Cell::Bool(_) | Cell::Int(0 | 1))) => Some(cell),
        _ => None,
    }
}

/// The value that begins here, cut to a length that can be shown.
fn excerpt(rest: &[u8]) -> String {
    let mut cursor = Cursor::new(rest);
    // It has been read before.
    let _ = cursor.value(0);
    let value = &rest[..cursor.at()];
    let mut shown = String::from_utf8_lossy(&value[..value.len().min(EXCERPT)]).into_owned();
    if value.len() > EXCERPT {
        // The cut may have gone through a character.
        shown.truncate(shown.trim_end_matches('\u{fffd}').len());
        shown.push('…');
    }
    shown
}

/// Nothing but the opening bracket is on the line.
#[cold]
fn pretty_printed(line: &[u8], fault: Fault) -> Fault {
    let is = fault.reason == ParseErrorKind::Truncated && line.trim_ascii() == b"{";
    if is { Fault { reason: ParseErrorKind::PrettyPrinted, ..fault } } else { fault }
}

fn is_empty(cursor: &Cursor<'_>) -> bool {
    let mut ahead = cursor.clone();
    ahead.take(b'{');
    ahead.skip_space();
    ahead.peek() == Some(b'}')
}

fn beyond(fault: Fault, by: usize) -> Fault {
    Fault { at: fault.at + by, ..fault }
}
