//! Blocks of complete lines in the order of the files, and their parsed rows.

use std::{fs::File, io::Read, path::PathBuf, sync::Arc};

use sonic_rs::{JsonValueTrait, LazyValue};

use crate::schema::Table;

const BLOCK_BYTES: usize = 256 << 10;

/// Reads the files one after the other.
pub struct Source {
    folder: PathBuf,
    tables: std::vec::IntoIter<Arc<Table>>,
    open: Option<(Arc<Table>, File)>,
    /// Start of a line whose end was not in the previous block.
    rest: Vec<u8>,
}

/// Complete lines of one table.
pub struct Block {
    pub table: Arc<Table>,
    pub lines: Vec<u8>,
}

impl Source {
    pub fn new(folder: PathBuf, tables: Vec<Arc<Table>>) -> Source {
        Source { folder, tables: tables.into_iter(), open: None, rest: Vec::new() }
    }

    /// Returns the next block in a reused buffer.
    pub fn next(&mut self, mut lines: Vec<u8>) -> Option<Block> {
        loop {
            if self.open.is_none() {
                let table = self.tables.next()?;
                let file =
                    File::open(self.folder.join(format!("{}.jsonl", table.name))).expect("every table has a file");
                self.open = Some((table, file));
            }
            let (table, file) = self.open.as_mut()?;
            lines.clear();
            lines.append(&mut self.rest);
            // A line that is longer than a block makes the block longer.
            let mut read_bytes = BLOCK_BYTES;
            loop {
                let before = lines.len();
                file.take(read_bytes as u64).read_to_end(&mut lines).expect("the file is readable");
                if lines.len() < before + read_bytes {
                    break;
                }
                if let Some(end) = memchr::memrchr(b'\n', &lines[before..]) {
                    self.rest.extend_from_slice(&lines[before + end + 1..]);
                    lines.truncate(before + end + 1);
                    return Some(Block { table: table.clone(), lines });
                }
                read_bytes *= 2;
            }
            let table = table.clone();
            self.open = None;
            if !lines.is_empty() {
                return Some(Block { table, lines });
            }
        }
    }
}

#[derive(Clone, Copy)]
pub enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    /// Start and end in the lines.
    Raw(usize, usize),
    /// Start and end in the unescaped texts.
    Unescaped(usize, usize),
}

/// Rows of a block, each with one cell per column of the table.
pub struct Rows {
    pub block: Block,
    pub cells: Vec<Cell>,
    pub unescaped: String,
}

impl Rows {
    pub fn parse(block: Block) -> Rows {
        let columns = &block.table.columns;
        let mut cells = Vec::with_capacity(block.lines.len() / 16);
        let mut unescaped = String::new();
        let start = block.lines.as_ptr() as usize;
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', &block.lines) {
            let line = &block.lines[from..end];
            from = end + 1;
            let row = cells.len();
            cells.resize(row + columns.len(), Cell::Null);
            let mut expected = 0;
            for field in sonic_rs::to_object_iter(line) {
                let (key, value) = field.expect("the line is valid JSON");
                // Lines have their keys in the order of the columns; some are missing.
                let column = (expected..columns.len())
                    .chain(0..expected)
                    .find(|nth| columns[*nth].name == *key)
                    .expect("the schema has the column");
                expected = column + 1;
                cells[row + column] = cell(&value, start, &mut unescaped);
            }
        }
        Rows { block, cells, unescaped }
    }

    /// Returns the buffer for the next block.
    pub fn into_buffer(self) -> Vec<u8> {
        self.block.lines
    }
}

fn cell(value: &LazyValue<'_>, start: usize, unescaped: &mut String) -> Cell {
    let raw = value.as_raw_str();
    let at = raw.as_ptr() as usize - start;
    match raw.as_bytes()[0] {
        b'{' | b'[' => Cell::Raw(at, at + raw.len()),
        b'"' if memchr::memchr(b'\\', raw.as_bytes()).is_none() => Cell::Raw(at + 1, at + raw.len() - 1),
        b'"' => {
            let text = value.as_str().expect("the string is valid");
            unescaped.push_str(text);
            Cell::Unescaped(unescaped.len() - text.len(), unescaped.len())
        }
        b't' => Cell::Integer(1),
        b'f' => Cell::Integer(0),
        b'n' => Cell::Null,
        _ => match value.as_i64() {
            Some(number) => Cell::Integer(number),
            None => Cell::Real(value.as_f64().expect("the number is valid")),
        },
    }
}
