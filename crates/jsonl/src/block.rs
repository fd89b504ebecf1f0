//! Blocks: a stream of bytes, cut at line ends.
//!
//! Owns the limit of a line's length. A block is whole lines, so that each can be read without the others.

use std::io::{self, Read};

/// Whole lines.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) bytes: Vec<u8>,
    /// The beginning of the stream: a byte order mark may stand there.
    pub(crate) is_first: bool,
    /// It is only the beginning of a line that is longer than this.
    pub(crate) too_long: Option<usize>,
}

/// So much of a line that is too long is kept, to be shown.
const KEPT: usize = 200;

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

    /// The next block.
    pub(crate) fn next(&mut self) -> io::Result<Option<Block>> {
        let mut bytes = std::mem::take(&mut self.rest);
        // Behind these there is no line end to be found.
        let mut searched = 0;
        let mut wanted = self.size;
        loop {
            if !self.ended && bytes.len() < wanted {
                self.ended = fill(&mut self.source, &mut bytes, wanted)?;
            }
            if let Some(end) = memchr::memrchr(b'\n', &bytes[searched..]) {
                let end = searched + end + 1;
                if !self.ended {
                    self.rest = Vec::with_capacity(self.size.max(bytes.len() - end));
                    self.rest.extend_from_slice(&bytes[end..]);
                    bytes.truncate(end);
                }
                return Ok(self.block(bytes, None));
            }
            searched = bytes.len();
            if bytes.len() > self.longest {
                bytes.truncate(KEPT.min(self.longest));
                self.skip_line()?;
                return Ok(self.block(bytes, Some(self.longest)));
            }
            if self.ended {
                return Ok(self.block(bytes, None));
            }
            wanted = (bytes.len() * 2).clamp(self.size, self.longest.saturating_add(1));
        }
    }

    fn block(&mut self, bytes: Vec<u8>, too_long: Option<usize>) -> Option<Block> {
        let is_first = !std::mem::replace(&mut self.begun, true);
        (!bytes.is_empty()).then_some(Block { bytes, is_first, too_long })
    }

    /// Reads up to the end of the line, and keeps what is behind it.
    fn skip_line(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        while !self.ended {
            bytes.clear();
            self.ended = fill(&mut self.source, &mut bytes, self.size)?;
            if let Some(end) = memchr::memchr(b'\n', &bytes) {
                bytes.drain(..=end);
                self.rest = bytes;
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Reads until there are so many bytes. Whether the source has ended.
fn fill(source: &mut impl Read, bytes: &mut Vec<u8>, wanted: usize) -> io::Result<bool> {
    let mut filled = bytes.len();
    bytes.resize(wanted, 0);
    let mut ended = false;
    while filled < wanted && !ended {
        match source.read(&mut bytes[filled..]) {
            Ok(0) => ended = true,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, size: usize, longest: usize) -> Vec<(String, bool)> {
        let mut blocks = Blocks::new(text.as_bytes(), size, longest);
        let mut all = Vec::new();
        while let Some(block) = blocks.next().unwrap() {
            all.push((String::from_utf8(block.bytes).unwrap(), block.too_long.is_some()));
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
