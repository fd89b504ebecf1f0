//! Converts values to the types of their columns, or rejects them.

use super::{Decimals, Parser};
use crate::keys::ColumnRule;
use crate::lexer::Cursor;
use crate::number::{MAX_EXACT_INT, rounded};
use crate::parse_error::{ParseError, ParseErrorKind};
use crate::parsed_block::{Cell, Span};
use crate::text::excerpt;
use crate::types::Type;

/// Accepted values of an existing column with a type that imports do not use.
const NUMERIC_AFFINITY: &str = "of a numeric type (64-bit numbers, and text that is not a number)";

/// Maximum bytes of a rejected value that a message shows.
const EXCERPT_BYTES: usize = 60;

impl Parser<'_> {
    /// Adds a value to the row if its column accepts it. `written` is its text and `at` its offset in the line.
    #[inline]
    pub(super) fn push(&mut self, key: u32, cell: Cell, written: Span, at: usize) -> Result<(), ParseError> {
        let cell = match self.out.keys.get(key).rule {
            ColumnRule::Inferred => cell,
            ColumnRule::Skipped => return Ok(()),
            ColumnRule::NumericAffinity if self.looks_like_a_number(cell) => {
                return Err(self.type_mismatch(key, cell, NUMERIC_AFFINITY, at));
            }
            ColumnRule::NumericAffinity => cell,
            ColumnRule::Detected(found) => self.converted(cell, found, written).unwrap_or(cell),
            ColumnRule::Fixed(target) => match self.converted(cell, target, written) {
                Some(cell) => cell,
                None => return Err(self.type_mismatch(key, cell, target.accepts(), at)),
            },
        };
        self.out.cells.push((key, cell));
        Ok(())
    }

    /// Cell of a number that a double does not hold without loss. A whole number keeps its spelling: it is more often
    /// an identifier than a measurement.
    #[cold]
    pub(super) fn decimal(&self, key: u32, start: usize, written: &[u8]) -> Cell {
        let is_whole = !written.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
        let decimals = self.options.decimals;
        let is_rounded = match self.out.keys.get(key).rule {
            ColumnRule::Inferred | ColumnRule::Detected(_) => decimals == Decimals::Rounded && !is_whole,
            ColumnRule::Fixed(Type::Real) => decimals != Decimals::Exact,
            ColumnRule::Fixed(Type::Numeric) | ColumnRule::NumericAffinity => decimals != Decimals::Exact && !is_whole,
            ColumnRule::Fixed(_) | ColumnRule::Skipped => false,
        };
        match rounded(written).filter(|_| is_rounded) {
            Some(value) => Cell::Real(value),
            None => Cell::Decimal(self.span(start, start + written.len())),
        }
    }

    /// Converts a value to the type of its column; `None` if that is not possible. Text accepts all values as written.
    #[inline]
    fn converted(&self, cell: Cell, target: Type, written: Span) -> Option<Cell> {
        match (target, cell) {
            (Type::Real, Cell::Int(value)) if value.unsigned_abs() > MAX_EXACT_INT => {
                (self.options.decimals != Decimals::Exact).then_some(Cell::Real(value as f64))
            }
            _ => converted(cell, target, written),
        }
    }

    fn looks_like_a_number(&self, cell: Cell) -> bool {
        let text = match cell {
            Cell::Text { span, scratch: false, is_json: false } => span.of(self.text),
            Cell::Text { span, is_json: false, .. } => span.of(&self.out.scratch),
            Cell::Decimal(_) => return true,
            _ => return false,
        };
        std::str::from_utf8(text).is_ok_and(|text| text.trim().parse::<f64>().is_ok())
    }

    #[cold]
    fn type_mismatch(&self, key: u32, cell: Cell, accepts: &'static str, at: usize) -> ParseError {
        let path = self.out.keys.path(key);
        let name = || path.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>().join("_");
        let column = self.options.names.get(&key).cloned().unwrap_or_else(name);
        let mut cursor = Cursor::new(self.text.get(self.line_start + at..).unwrap_or_default());
        // The value is valid, so this cannot fail.
        let _ = cursor.value(0);
        let value = excerpt(&cursor.bytes()[..cursor.at()], EXCERPT_BYTES);
        ParseError { at, reason: ParseErrorKind::TypeMismatch { column, accepts, found: cell.found(), value } }
    }
}

/// Like [`Parser::converted`], without rounding.
fn converted(cell: Cell, target: Type, written: Span) -> Option<Cell> {
    match (target, cell) {
        (Type::Any, cell) | (_, cell @ Cell::Null) | (Type::Text, cell @ Cell::Text { .. }) => Some(cell),
        (Type::Text, _) => Some(Cell::Text { span: written, scratch: false, is_json: false }),
        (Type::Integer | Type::Numeric, cell @ (Cell::Int(_) | Cell::Bool(_))) => Some(cell),
        (Type::Integer, Cell::Real(value)) => {
            (value.fract() == 0.0 && value.abs() <= MAX_EXACT_INT as f64).then_some(Cell::Int(value as i64))
        }
        (Type::Numeric, cell @ Cell::Real(_)) => Some(cell),
        (Type::Real, cell @ (Cell::Real(_) | Cell::Bool(_))) => Some(cell),
        (Type::Real, cell @ Cell::Int(_)) => Some(cell),
        (Type::Boolean, cell @ (Cell::Bool(_) | Cell::Int(0 | 1))) => Some(cell),
        _ => None,
    }
}
