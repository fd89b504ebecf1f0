//! A parsed block: its rows and its rejected lines.
//!
//! Values point into the text of the block where possible. Decoded and composed values are in a scratch buffer.

use std::iter::Peekable;
use std::vec::IntoIter;

use crate::keys::Keys;
use crate::parse_error::ParseErrorKind;
use crate::types::TypeSet;

/// Byte range of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) length: u32,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Span { start: start as u32, length: (end - start) as u32 }
    }

    #[inline]
    pub(crate) fn of(self, text: &[u8]) -> &[u8] {
        &text[self.start as usize..][..self.length as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell {
    Null,
    Bool(bool),
    Int(i64),
    Real(f64),
    /// A number as it is written.
    Decimal(Span),
    Text {
        span: Span,
        /// It is in the scratch buffer, not in the text of the block.
        scratch: bool,
        is_json: bool,
    },
}

impl Cell {
    #[inline]
    pub(crate) fn type_set(self) -> TypeSet {
        match self {
            Cell::Null => TypeSet::NULL,
            Cell::Bool(_) => TypeSet::BOOL,
            Cell::Int(value) if value.unsigned_abs() <= crate::number::MAX_EXACT_INT => TypeSet::INT,
            Cell::Int(_) => TypeSet::BIG,
            Cell::Real(_) => TypeSet::REAL,
            Cell::Decimal(_) => TypeSet::DECIMAL,
            Cell::Text { is_json: true, .. } => TypeSet::JSON,
            Cell::Text { .. } => TypeSet::TEXT,
        }
    }

    pub(crate) fn is_negative_zero(self) -> bool {
        matches!(self, Cell::Real(value) if value == 0.0 && value.is_sign_negative())
    }

    /// Name of the value's kind, for messages about a type mismatch.
    pub(crate) fn found(self) -> &'static str {
        match self {
            Cell::Null => "null",
            Cell::Bool(_) => "true or false",
            Cell::Int(_) => "a whole number",
            Cell::Real(_) => "a number with a fraction or an exponent",
            Cell::Decimal(_) => "a number that needs more than 64 bits",
            Cell::Text { is_json: true, .. } => "an object or an array",
            Cell::Text { .. } => "text",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// End of its values in `cells`; they begin at the end of the previous row.
    pub(crate) end: u32,
    pub(crate) line: Line,
}

/// Position of a row in its block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Line number in the block, from 0.
    pub(crate) number: u32,
    /// Bytes of the line before the row; 0 unless it is an element of a document.
    pub(crate) column: u32,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct BadLine {
    pub(crate) line: Line,
    /// Offset of the error from the beginning of the row, in bytes.
    pub(crate) at: usize,
    pub(crate) reason: ParseErrorKind,
}

impl BadLine {
    /// Column of the error in its line, from 1.
    pub(crate) fn column(&self) -> u64 {
        u64::from(self.line.column) + self.at as u64 + 1
    }
}

#[derive(Debug, Default)]
pub(crate) struct ParsedBlock {
    /// Text that values point into.
    pub(crate) text: Vec<u8>,
    pub(crate) scratch: Vec<u8>,
    /// The original block, if `text` is a modified copy.
    pub(crate) original: Option<Vec<u8>>,
    pub(crate) keys: Keys,
    pub(crate) cells: Vec<(u32, Cell)>,
    pub(crate) rows: Vec<Row>,
    pub(crate) bad: Vec<BadLine>,
    pub(crate) lines: u32,
    pub(crate) blank: u32,
}

/// Rows and bad lines that were detached from their block.
pub(crate) struct DetachedRows {
    rows: Peekable<IntoIter<Row>>,
    cells: Vec<(u32, Cell)>,
    /// Start of the next row's values in `cells`.
    begin: u32,
    bad: Peekable<IntoIter<BadLine>>,
}

impl DetachedRows {
    pub(crate) fn has_more(&mut self) -> bool {
        self.rows.peek().is_some() || self.bad.peek().is_some()
    }
}

impl ParsedBlock {
    /// Clears the block but keeps its allocations.
    pub(crate) fn clear(&mut self) {
        self.scratch.clear();
        self.original = None;
        self.cells.clear();
        self.rows.clear();
        self.bad.clear();
        (self.lines, self.blank) = (0, 0);
    }

    /// Detaches the rows and bad lines, so that `restore_rows` can return some at a time.
    pub(crate) fn detach_rows(&mut self) -> DetachedRows {
        DetachedRows {
            rows: std::mem::take(&mut self.rows).into_iter().peekable(),
            cells: std::mem::take(&mut self.cells),
            begin: 0,
            bad: std::mem::take(&mut self.bad).into_iter().peekable(),
        }
    }

    /// Replaces the rows with the next `count` detached rows and the bad lines before the last of them, or with all
    /// that are left.
    pub(crate) fn restore_rows(&mut self, detached: &mut DetachedRows, count: usize) {
        self.rows.clear();
        self.rows.extend(detached.rows.by_ref().take(count));
        let begin = detached.begin;
        let end = self.rows.last().map_or(begin, |row| row.end);
        detached.begin = end;
        self.cells.clear();
        self.cells.extend_from_slice(&detached.cells[begin as usize..end as usize]);
        self.rows.iter_mut().for_each(|row| row.end -= begin);
        let last = match self.rows.last() {
            _ if self.rows.len() < count => u32::MAX,
            Some(row) => row.line.span.start,
            None => 0,
        };
        self.bad.clear();
        self.bad.extend(std::iter::from_fn(|| detached.bad.next_if(|bad| bad.line.span.start < last)));
        self.keys.forget_rows();
        for (key, cell) in &self.cells {
            self.keys.note(*key, cell.type_set());
        }
    }

    /// Returns the rows with their values, in order.
    #[inline]
    pub(crate) fn each_row(&self) -> impl Iterator<Item = (Line, &[(u32, Cell)])> {
        let mut begin = 0;
        self.rows.iter().map(move |row| {
            let cells = &self.cells[begin..row.end as usize];
            begin = row.end as usize;
            (row.line, cells)
        })
    }

    pub(crate) fn line(&self, line: Line) -> &[u8] {
        line.span.of(self.original.as_ref().unwrap_or(&self.text))
    }

    #[inline]
    pub(crate) fn bytes(&self, span: Span, scratch: bool) -> &[u8] {
        span.of(if scratch { &self.scratch } else { &self.text })
    }
}
