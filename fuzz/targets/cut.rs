//! Cutting into blocks: no byte is lost, lines stay whole, and one that is too long costs itself.

#![no_main]

use std::io::{self, Read};

use gristmill_jsonl::__fuzz::cut;
use libfuzzer_sys::fuzz_target;

/// A source that gives a few bytes at a time.
struct Trickle<'a> {
    bytes: &'a [u8],
    most: usize,
}

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.most.min(buffer.len());
        self.bytes.read(&mut buffer[..most])
    }
}

fuzz_target!(|data: &[u8]| {
    let [size, longest, most, bytes @ ..] = data else { return };
    let (size, longest) = (usize::from(*size) + 1, usize::from(*longest) + 1);
    let pieces =
        cut(Trickle { bytes, most: usize::from(*most) + 1 }, size, longest).expect("nothing fails here");
    let mut at = 0;
    for (piece, too_long) in pieces {
        assert!(bytes[at..].starts_with(&piece), "bytes are lost or made up");
        assert!(!piece.is_empty() && piece.len() <= size.max(longest + 1), "a block of {}", piece.len());
        if too_long {
            let line = bytes[at..].iter().position(|byte| *byte == b'\n');
            assert!(line.unwrap_or(bytes.len() - at) > longest, "a line that is not too long");
            at = line.map_or(bytes.len(), |end| at + end + 1);
        } else {
            at += piece.len();
            assert!(at == bytes.len() || piece.ends_with(b"\n"), "a line is cut");
            // What is longer than allowed came with all of its block.
            let longest_here = piece.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0);
            assert!(longest_here <= longest.max(size), "a line of {longest_here} bytes");
        }
    }
    assert_eq!(at, bytes.len(), "the end is missing");
});
