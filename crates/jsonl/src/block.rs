//! Blocks: a stream of bytes, cut at line ends.
//!
//! Owns the limit of a line's length. A block is whole lines, so that each can be read without the others.

use std::io::{self, Read};

/// Whole lines.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Its first `length` bytes; what is behind them is left of other blocks.
    pub(crate) buffer: Vec<u8>,
    pub(crate) length: usize,
    /// The beginning of the stream: a byte order mark may stand there.
    pub(crate) is_first: bool,
    /// It is only the beginning of a line that is longer than this.
    pub(crate) too_long: Option<usize>,
}

/// So much of a line that is too long is kept, to be shown.
const KEPT: usize = 200;

impl Block {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

pub(crate) struct Blocks<R> {
    source: R,
    /// What was read behind the last line end.
    rest: Vec<u8>,
    size: usize,
    longest: usize,
    begun: bool,
    ended: bool,
}

impl<R: Read> Blocks<R> {
    /// Blocks of about `size` bytes; larger only for a line that is, and that up to `longest`.
    pub(crate) fn new(source: R, size: usize, longest: usize) -> Self {
        Blocks { source, rest: Vec::new(), size, longest: longest.max(1), begun: false, ended: false }
    }

    /// What was read from, when all is read.
    pub(crate) fn into_source(self) -> R {
        self.source
    }

    /// The next block, in a buffer that may have been used before: then it need not be cleared.
    pub(crate) fn next(&mut self, mut buffer: Vec<u8>) -> io::Result<Option<Block>> {
        let mut length = self.rest.len();
        grow(&mut buffer, length.max(self.size));
        buffer[..length].copy_from_slice(&self.rest);
        self.rest.clear();
        // Behind these there is no line end to be found.
        let mut searched = 0;
        let mut wanted = self.size;
        loop {
            if !self.ended && length < wanted {
                grow(&mut buffer, wanted);
                length = self.fill(&mut buffer[..wanted], length)?;
            }
            if let Some(end) = memchr::memrchr(b'\n', &buffer[searched..length]) {
                let end = searched + end + 1;
                if !self.ended {
                    self.rest.extend_from_slice(&buffer[end..length]);
                    length = end;
                }
                return Ok(self.block(buffer, length, None));
            }
            searched = length;
            if length > self.longest {
                self.skip_line()?;
                return Ok(self.block(buffer, KEPT.min(self.longest), Some(self.longest)));
            }
            if self.ended {
                return Ok(self.block(buffer, length, None));
            }
            wanted = (length * 2).clamp(self.size, self.longest.saturating_add(1));
        }
    }

    fn block(&mut self, buffer: Vec<u8>, length: usize, too_long: Option<usize>) -> Option<Block> {
        let is_first = !std::mem::replace(&mut self.begun, true);
        (length > 0).then_some(Block { buffer, length, is_first, too_long })
    }

    /// Reads up to the end of the line, and keeps what is behind it.
    fn skip_line(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; self.size];
        while !self.ended {
            let length = self.fill(&mut buffer, 0)?;
            if let Some(end) = memchr::memchr(b'\n', &buffer[..length]) {
                self.rest.extend_from_slice(&buffer[end + 1..length]);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads until the buffer is full, or the source has ended. How far it is filled.
    fn fill(&mut self, buffer: &mut [u8], mut filled: usize) -> io::Result<usize> {
        while filled < buffer.len() && !self.ended {
            match self.source.read(&mut buffer[filled..]) {
                Ok(0) => self.ended = true,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// Only what is new has to be cleared.
fn grow(buffer: &mut Vec<u8>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, size: usize, longest: usize) -> Vec<(String, bool)> {
        let mut blocks = Blocks::new(text.as_bytes(), size, longest);
        let mut all = Vec::new();
        while let Some(block) = blocks.next(b"used before".to_vec()).unwrap() {
            all.push((String::from_utf8(block.bytes().to_vec()).unwrap(), block.too_long.is_some()));
        }
        all
    }

    #[test]
    fn lines_stay_whole_and_none_is_lost() {
        let text = "a\nbb\nccc\n\ndddd\neeeee";
        for size in 1..30 {
            let blocks = cut(text, size, 100);
            assert_eq!(blocks.iter().map(|(bytes, _)| bytes.as_str()).collect::<String>(), text, "{size}");
            for (bytes, _) in &blocks[..blocks.len() - 1] {
                assert!(bytes.ends_with('\n'), "{size}: {blocks:?}");
            }
        }
        assert_eq!(cut("", 8, 100), []);
        assert_eq!(cut("\n", 8, 100), [("\n".to_owned(), false)]);
    }

    #[test]
    fn a_line_that_is_too_long_costs_itself() {
        for size in 1..30 {
            let blocks = cut("a\nbb\ncccccccccccccccc\ndd\n", size, 8);
            let long: Vec<_> = blocks.iter().filter(|(_, too_long)| *too_long).collect();
            let rest: String =
                blocks.iter().filter(|(_, long)| !long).map(|(bytes, _)| bytes.as_str()).collect();
            if size <= 8 {
                assert_eq!(long.len(), 1, "{size}: {blocks:?}");
                assert!(rest.starts_with("a\nbb\n") && rest.ends_with("dd\n"), "{size}: {blocks:?}");
            }
        }
    }
}
