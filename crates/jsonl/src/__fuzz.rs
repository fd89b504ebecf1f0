//! Internals for the fuzz targets in `fuzz/`. Not part of the public API.

use std::io::{self, Read};

use crate::block::{Block, Blocks};
use crate::parse::{ParseOptions, parse as parse_block};
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{Cell, ParsedBlock};

/// A block: its bytes, and whether it is the beginning of a line that exceeds the limit.
pub type Piece = (Vec<u8>, bool);

/// Cuts a stream into blocks of about `size` bytes.
pub fn cut(source: impl Read, size: usize, max_line: usize) -> io::Result<Vec<Piece>> {
    let mut blocks = Blocks::of_lines(source, size, max_line);
    let mut pieces = Vec::new();
    // A buffer that was used before need not be cleared.
    while let Some(block) = blocks.next(b"used before".to_vec())? {
        pieces.push((block.bytes().to_vec(), block.too_long.is_some()));
    }
    Ok(pieces)
}

/// A value that owns its text.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Real(f64),
    /// A number as it is written.
    Decimal(String),
    Text(String),
    Json(String),
}

/// The keys that lead to a value, and the value.
pub type Member = (Vec<String>, Value);

/// The rows and the rejected lines of a block, with line numbers from 0.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Parsed {
    pub rows: Vec<(usize, Vec<Member>)>,
    pub bad: Vec<(usize, usize, ParseErrorKind)>,
    pub lines: usize,
    pub blank: usize,
}

/// Parses the first block of a stream.
pub fn parse(bytes: &[u8], flatten: usize, languages: &[&str]) -> Parsed {
    let languages = languages.iter().map(|language| language.as_bytes().into()).collect();
    let options = ParseOptions { flatten, languages, ..ParseOptions::default() };
    let block = parse_block(
        Block { buffer: bytes.to_vec(), length: bytes.len(), is_first: true, too_long: None, elements: None },
        &options,
        ParsedBlock::default(),
    );
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the parser rejects lines that are not UTF-8");
    let value = |cell: &Cell| match *cell {
        Cell::Null => Value::Null,
        Cell::Bool(value) => Value::Bool(value),
        Cell::Int(value) => Value::Int(value),
        Cell::Real(value) => Value::Real(value),
        Cell::Decimal(span) => Value::Decimal(text(block.bytes(span, false))),
        Cell::Text { span, scratch, is_json: true } => Value::Json(text(block.bytes(span, scratch))),
        Cell::Text { span, scratch, .. } => Value::Text(text(block.bytes(span, scratch))),
    };
    let path = |key: u32| block.keys.path(key).into_iter().map(text).collect();
    let mut parsed = Parsed { lines: block.lines as usize, blank: block.blank as usize, ..Parsed::default() };
    for (line, cells) in block.each_row() {
        let members = cells.iter().map(|(key, cell)| (path(*key), value(cell))).collect();
        parsed.rows.push((line.number as usize, members));
    }
    parsed.bad = block.bad.iter().map(|bad| (bad.line.number as usize, bad.at, bad.reason.clone())).collect();
    parsed
}
