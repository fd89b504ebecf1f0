//! Cutting into blocks: no byte is lost, lines are not split, and a line that is too long affects no other.

#![no_main]

use std::io::{self, Read};

use gristmill_jsonl::__fuzz::cut;
use libfuzzer_sys::fuzz_target;

/// A reader that returns a few bytes at a time.
struct SlowReader<'a> {
    bytes: &'a [u8],
    max_read: usize,
}

impl Read for SlowReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let max_read = self.max_read.min(buffer.len());
        self.bytes.read(&mut buffer[..max_read])
    }
}

fuzz_target!(|data: &[u8]| {
    let [size, max_line, max_read, bytes @ ..] = data else { return };
    let (size, max_line) = (usize::from(*size) + 1, usize::from(*max_line) + 1);
    let pieces = cut(SlowReader { bytes, max_read: usize::from(*max_read) + 1 }, size, max_line)
        .expect("reading from memory does not fail");
    let mut at = 0;
    for (piece, too_long) in pieces {
        assert!(bytes[at..].starts_with(&piece), "bytes are lost or added");
        assert!(!piece.is_empty() && piece.len() <= size.max(max_line + 1), "a block of {}", piece.len());
        if too_long {
            let line = bytes[at..].iter().position(|byte| *byte == b'\n');
            assert!(line.unwrap_or(bytes.len() - at) > max_line, "a line that is not too long");
            at = line.map_or(bytes.len(), |end| at + end + 1);
        } else {
            at += piece.len();
            assert!(at == bytes.len() || piece.ends_with(b"\n"), "a line is split");
            // A line that is longer than allowed is accepted only if it fits in one block.
            let longest = piece.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0);
            assert!(longest <= max_line.max(size), "a line of {longest} bytes");
        }
    }
    assert_eq!(at, bytes.len(), "the end is missing");
});
