//! Cuts a stream of bytes into blocks, at line ends or between the elements of a JSON document.
//!
//! Owns the limit on the length of a line. A block has only whole lines or elements, so that it can be parsed alone.

use std::io::{self, Read};

use crate::document::{Elements, Splitter, is_document};
use crate::parse_error::ParseErrorKind;

/// Whole lines, or whole elements of a document.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// The first `length` bytes are the block; the rest is left over from earlier use of the buffer.
    pub(crate) buffer: Vec<u8>,
    pub(crate) length: usize,
    /// Whether the stream begins here, perhaps with a byte order mark.
    pub(crate) is_first: bool,
    /// Set if the block is the beginning of a line or element that is longer than this limit.
    pub(crate) too_long: Option<usize>,
    pub(crate) elements: Option<Box<Elements>>,
}

/// Bytes of a line that exceeds the limit, kept for messages.
const EXCERPT_BYTES: usize = 200;

/// Bytes read to detect whether the source is a document or lines.
const HEAD_BYTES: usize = 64 << 10;

impl Block {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

pub(crate) struct Blocks<R> {
    source: R,
    /// Bytes read for detection, not yet returned in a block.
    head: Vec<u8>,
    /// Bytes of the head that have been returned.
    used: usize,
    splitter: Option<Box<Splitter>>,
    may_be_document: bool,
    failure: Option<io::Error>,
    /// Bytes read after the last line end.
    rest: Vec<u8>,
    size: usize,
    max_line: usize,
    has_begun: bool,
    has_ended: bool,
}

impl<R: Read> Blocks<R> {
    /// Cuts blocks of about `size` bytes. Only a line or element of up to `max_line` bytes makes a larger one.
    pub(crate) fn new(source: R, size: usize, max_line: usize) -> Self {
        Blocks { may_be_document: true, ..Blocks::of_lines(source, size, max_line) }
    }

    /// Like [`new`](Self::new), but always reads lines, never a document.
    pub(crate) fn of_lines(source: R, size: usize, max_line: usize) -> Self {
        Blocks {
            source,
            head: Vec::new(),
            used: 0,
            splitter: None,
            may_be_document: false,
            failure: None,
            rest: Vec::new(),
            size,
            max_line: max_line.max(1),
            has_begun: false,
            has_ended: false,
        }
    }

    pub(crate) fn into_source(self) -> R {
        self.source
    }

    /// Returns the next block, in `buffer`. A buffer that was used before need not be cleared.
    pub(crate) fn next(&mut self, mut buffer: Vec<u8>) -> io::Result<Option<Block>> {
        if std::mem::take(&mut self.may_be_document) {
            self.detect()?;
        }
        if let Some(splitter) = self.splitter.take() {
            return self.next_of_document(buffer, splitter);
        }
        let mut length = self.take_rest(&mut buffer);
        // Bytes that are known to have no line end.
        let mut searched = 0;
        let mut target = self.size;
        loop {
            if !self.has_ended && length < target {
                grow(&mut buffer, target);
                length = self.fill(&mut buffer[..target], length)?;
            }
            if let Some(end) = memchr::memrchr(b'\n', &buffer[searched..length]) {
                let end = searched + end + 1;
                if !self.has_ended {
                    self.rest.extend_from_slice(&buffer[end..length]);
                    length = end;
                }
                return Ok(self.block(buffer, length, None));
            }
            searched = length;
            if length > self.max_line {
                self.skip_line()?;
                return Ok(self.block(buffer, EXCERPT_BYTES.min(self.max_line), Some(self.max_line)));
            }
            if self.has_ended {
                return Ok(self.block(buffer, length, None));
            }
            target = (length * 2).clamp(self.size, self.max_line.saturating_add(1));
        }
    }

    /// Moves the bytes after the last block to the beginning of the buffer. Returns their number.
    fn take_rest(&mut self, buffer: &mut Vec<u8>) -> usize {
        let length = self.rest.len();
        grow(buffer, length.max(self.size));
        buffer[..length].copy_from_slice(&self.rest);
        self.rest.clear();
        length
    }

    fn block(&mut self, buffer: Vec<u8>, length: usize, too_long: Option<usize>) -> Option<Block> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        (length > 0).then_some(Block { buffer, length, is_first, too_long, elements: None })
    }

    /// Reads the head of the source and detects whether it is a document.
    fn detect(&mut self) -> io::Result<()> {
        let mut head = vec![0; HEAD_BYTES];
        let length = self.fill(&mut head, 0)?;
        head.truncate(length);
        if is_document(&head, self.has_ended) {
            self.splitter = Some(Box::default());
        }
        // The head is read again as input, so the source has not ended yet.
        self.has_ended = false;
        self.head = head;
        Ok(())
    }

    fn next_of_document(&mut self, mut buffer: Vec<u8>, mut splitter: Box<Splitter>) -> io::Result<Option<Block>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut length = self.take_rest(&mut buffer);
        let mut spans = Vec::new();
        let mut target = self.size;
        loop {
            if !self.has_ended && length < target {
                grow(&mut buffer, target);
                length = self.fill(&mut buffer[..target], length)?;
            }
            let mut scanned = splitter.scan(&buffer[..length], &mut spans);
            if self.has_ended && scanned.is_ok() {
                scanned = splitter.finish(&buffer[..length], &mut spans);
            }
            let failed = scanned.is_err();
            if let Err(broken) = scanned {
                // Elements before the error are valid and are returned first.
                self.failure = Some(broken.into());
            }
            let end = if failed { length } else { splitter.element_start.unwrap_or(length) };
            if end > 0 || self.has_ended {
                self.rest.extend_from_slice(&buffer[end..length]);
                let (lines, column) = splitter.cut(&buffer[..end]);
                self.splitter = Some(splitter);
                let Some(mut block) = self.block(buffer, end, None) else {
                    return self.failure.take().map_or(Ok(None), Err);
                };
                block.elements = Some(Box::new(Elements { spans, column, lines }));
                return Ok(Some(block));
            }
            if length > self.max_line {
                let (lines, column) = self.skip_element(&mut splitter, &buffer[..length])?;
                self.splitter = Some(splitter);
                let block = self.block(buffer, EXCERPT_BYTES.min(self.max_line), Some(self.max_line));
                let elements = Some(Box::new(Elements { spans, column, lines }));
                return Ok(block.map(|block| Block { elements, ..block }));
            }
            target = (length * 2).clamp(self.size, self.max_line.saturating_add(1));
        }
    }

    /// Skips the rest of the element that fills the buffer and keeps the bytes after it. Returns the number of its line
    /// ends and the column at which it begins.
    fn skip_element(&mut self, splitter: &mut Splitter, start: &[u8]) -> io::Result<(usize, usize)> {
        let open = splitter.error_at(start, ParseErrorKind::OpenElement.at(0));
        let (mut lines, column) = splitter.cut(start);
        let mut buffer = vec![0; self.size];
        while !self.has_ended {
            let length = self.fill(&mut buffer, 0)?;
            match splitter.remaining(&buffer[..length]) {
                Err(error) => return Err(splitter.error_at(&buffer[..length], error).into()),
                Ok(Some(end)) => {
                    lines += splitter.advance(&buffer[..end]);
                    splitter.end_skipped();
                    self.rest.extend_from_slice(&buffer[end..length]);
                    return Ok((lines, column));
                }
                Ok(None) => lines += splitter.advance(&buffer[..length]),
            }
        }
        Err(open.into())
    }

    /// Skips the rest of the line and keeps the bytes after it.
    fn skip_line(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; self.size];
        while !self.has_ended {
            let length = self.fill(&mut buffer, 0)?;
            if let Some(end) = memchr::memchr(b'\n', &buffer[..length]) {
                self.rest.extend_from_slice(&buffer[end + 1..length]);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads until the buffer is full or the source ends. Returns the number of bytes in the buffer.
    fn fill(&mut self, buffer: &mut [u8], mut filled: usize) -> io::Result<usize> {
        while filled < buffer.len() && !self.has_ended {
            if self.used < self.head.len() {
                let length = (self.head.len() - self.used).min(buffer.len() - filled);
                buffer[filled..filled + length].copy_from_slice(&self.head[self.used..][..length]);
                self.used += length;
                filled += length;
                continue;
            }
            self.head = Vec::new();
            self.used = 0;
            match self.source.read(&mut buffer[filled..]) {
                Ok(0) => self.has_ended = true,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// Grows the buffer; only the new bytes are cleared.
fn grow(buffer: &mut Vec<u8>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
}
