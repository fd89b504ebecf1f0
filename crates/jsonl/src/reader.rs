//! Reads rows one by one, without a database.
//!
//! Owns the public types of a row. It uses the parser of imports, so both accept and reject the same lines.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::block::Blocks;
use crate::import::options::ImportOptions;
use crate::parse::{ParseOptions, parse};
use crate::parse_error::{BadLine, ParseErrorKind};
use crate::parsed_block::{Cell, Line, ParsedBlock};
use crate::source::{InputFile, classify_name};

/// Reads a stream of JSONL in blocks; memory does not grow with its length. It also reads an array of objects, and
/// objects that span several lines; such a document ends the stream with an error if it is not valid JSON.
///
/// ```
/// use gristmill_jsonl::{Reader, Value};
///
/// let lines = "{\"id\":1,\"name\":\"Tritanium\"}\n\n{\"id\":2,\"name\":}\n{\"id\":3}";
/// let mut reader = Reader::new(lines.as_bytes());
/// let mut ids = Vec::new();
/// while let Some(row) = reader.next_row() {
///     match row {
///         Ok(row) => match row.get("id") {
///             Some(Value::Int(id)) => ids.push(id),
///             other => println!("line {}: no id, but {other:?}", row.line()),
///         },
///         Err(error) => println!("{error}"), // line 3, column 16: a value is expected here: …
///     }
/// }
/// assert_eq!(ids, [1, 3]);
/// # Ok::<(), gristmill_jsonl::ReadError>(())
/// ```
pub struct Reader<R> {
    blocks: Blocks<R>,
    parsed: ParsedBlock,
    /// Indexes of the next row and the next bad line of the block.
    row: usize,
    bad: usize,
    /// Number of lines in earlier blocks.
    lines: u64,
    failed: bool,
}

impl Reader<Box<dyn Read>> {
    /// Opens a file. Gzip and zstd are detected from the first bytes and decompressed. Fails if the name ends in `.gz`
    /// or `.zst` but the file is not compressed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let opened = InputFile::new(File::open(path)?, None, classify_name(&name).1, &Arc::default(), None)?;
        Ok(Reader::new(Box::new(opened)))
    }
}

impl<R: Read> Reader<R> {
    /// Creates a reader of uncompressed lines.
    pub fn new(source: R) -> Self {
        let ImportOptions { block, max_line, .. } = ImportOptions::default();
        let blocks = Blocks::new(source, block, max_line);
        Reader { blocks, parsed: ParsedBlock::default(), row: 0, bad: 0, lines: 0, failed: false }
    }

    /// Returns the next row, or the error in the next line; `None` at the end. After a bad line the next line is read;
    /// an I/O error ends the stream.
    pub fn next_row(&mut self) -> Option<Result<Row<'_>, ReadError>> {
        loop {
            let row = self.parsed.rows.get(self.row).map(|row| row.line.span.start);
            let bad = self.parsed.bad.get(self.bad).map(|bad| bad.line.span.start);
            match (row, bad) {
                (Some(row), bad) if bad.is_none_or(|bad| row < bad) => {
                    self.row += 1;
                    return Some(Ok(self.row_at(self.row - 1)));
                }
                (_, Some(_)) => {
                    self.bad += 1;
                    let bad = &self.parsed.bad[self.bad - 1];
                    let line = self.number(bad.line);
                    let (column, reason) = (bad.column(), bad.reason.clone());
                    return Some(Err(ReadError::Line(BadLine { line, column, reason })));
                }
                _ => match self.next_block() {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => return Some(Err(error.into())),
                },
            }
        }
    }

    /// Returns an iterator that deserializes each row to a type of the caller.
    ///
    /// ```
    /// # use gristmill_jsonl::{ReadError, Reader};
    /// #[derive(serde::Deserialize)]
    /// struct Ore { id: u32, name: String }
    ///
    /// let lines = "{\"id\":34,\"name\":\"Tritanium\"}\n{\"id\":35,\"name\":\"Pyerite\"}\n";
    /// let ores: Result<Vec<Ore>, ReadError> = Reader::new(lines.as_bytes()).typed().collect();
    /// assert_eq!(ores?.iter().map(|ore| ore.id).sum::<u32>(), 69);
    /// # Ok::<(), ReadError>(())
    /// ```
    pub fn typed<T: DeserializeOwned>(self) -> TypedRows<R, T> {
        TypedRows { reader: self, rows: PhantomData }
    }

    fn next_block(&mut self) -> io::Result<bool> {
        if self.failed {
            return Ok(false);
        }
        self.lines += u64::from(self.parsed.lines);
        let mut used = std::mem::take(&mut self.parsed);
        let block = self.blocks.next(std::mem::take(&mut used.text)).inspect_err(|_| self.failed = true)?;
        let Some(block) = block else { return Ok(false) };
        self.parsed = parse(block, &ParseOptions::default(), used);
        (self.row, self.bad) = (0, 0);
        Ok(true)
    }

    fn number(&self, line: Line) -> u64 {
        self.lines + u64::from(line.number) + 1
    }

    fn row_at(&self, index: usize) -> Row<'_> {
        let begin = index.checked_sub(1).map_or(0, |before| self.parsed.rows[before].end as usize);
        let row = &self.parsed.rows[index];
        Row {
            parsed: &self.parsed,
            cells: &self.parsed.cells[begin..row.end as usize],
            line: self.number(row.line),
            column: u64::from(row.line.column),
            text: self.parsed.line(row.line),
        }
    }
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("lines", &self.lines).finish_non_exhaustive()
    }
}

/// One row: an object with any keys.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    parsed: &'a ParsedBlock,
    cells: &'a [(u32, Cell)],
    line: u64,
    /// Bytes before the row in its line.
    column: u64,
    text: &'a [u8],
}

impl<'a> Row<'a> {
    /// Number of the line in which the row begins, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Text of the object: the line, or the element of an array.
    pub fn text(&self) -> &'a str {
        str(self.text)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Returns all keys and values, in the order of the line.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let parsed = self.parsed;
        self.cells.iter().map(move |(key, cell)| (str(&parsed.keys.get(*key).name), value(parsed, *cell)))
    }
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Value of a key in a [`Row`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A whole number that fits 64 bits.
    Int(i64),
    /// Any other number that a double holds without loss.
    Real(f64),
    /// A number that neither of them holds, as it is written.
    Decimal(&'a str),
    /// A string with its escapes decoded.
    Text(&'a str),
    /// An object or an array, as it is written.
    Json(&'a str),
}

fn value(parsed: &ParsedBlock, cell: Cell) -> Value<'_> {
    match cell {
        Cell::Null => Value::Null,
        Cell::Bool(value) => Value::Bool(value),
        Cell::Int(value) => Value::Int(value),
        Cell::Real(value) => Value::Real(value),
        Cell::Decimal(span) => Value::Decimal(str(parsed.bytes(span, false))),
        Cell::Text { span, scratch, is_json: true } => Value::Json(str(parsed.bytes(span, scratch))),
        Cell::Text { span, scratch, .. } => Value::Text(str(parsed.bytes(span, scratch))),
    }
}

/// The parser has checked that the bytes are UTF-8.
fn str(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// Iterator over rows of one type, returned by [`Reader::typed`].
pub struct TypedRows<R, T> {
    reader: Reader<R>,
    rows: PhantomData<fn() -> T>,
}

impl<R: Read, T: DeserializeOwned> Iterator for TypedRows<R, T> {
    type Item = Result<T, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = match self.reader.next_row()? {
            Ok(row) => row,
            Err(error) => return Some(Err(error)),
        };
        Some(serde_json::from_slice(row.text).map_err(|error| {
            let reason = ParseErrorKind::Mistyped(error.to_string());
            let (line, column) = (error.line() as u64, error.column() as u64);
            let column = if line > 1 { column } else { row.column + column };
            ReadError::Line(BadLine { line: row.line + line.max(1) - 1, column, reason })
        }))
    }
}

impl<R, T> fmt::Debug for TypedRows<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reader.fmt(f)
    }
}

/// Why a row could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// A line is invalid. Later lines can still be read.
    Line(BadLine),
    /// The source failed, so there are no more rows.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Line(bad) => bad.fmt(f),
            ReadError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        error.downcast().map_or_else(ReadError::Io, ReadError::Line)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error,
            ReadError::Line(bad) => bad.into(),
        }
    }
}
