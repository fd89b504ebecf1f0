//! The output of a command: the part that is kept, and the text made from it.

use std::collections::VecDeque;

/// Number of bytes that are kept of each output of a command: the first and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimit {
    head: usize,
    tail: usize,
}

impl OutputLimit {
    /// Keeps half of `max_bytes` from the beginning and half from the end. A line says how much was left out.
    pub fn ends(max_bytes: usize) -> Self {
        OutputLimit { head: max_bytes.div_ceil(2), tail: max_bytes.div_ceil(2) }
    }

    /// Keeps the last `max_bytes`. A cut text begins with "…".
    pub fn last(max_bytes: usize) -> Self {
        OutputLimit { head: 0, tail: max_bytes }
    }
}

/// The beginning and the end of an output of any length.
#[derive(Debug)]
pub(super) struct BoundedOutput {
    limit: OutputLimit,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    omitted: u64,
}

impl BoundedOutput {
    pub(super) fn new(limit: OutputLimit) -> Self {
        BoundedOutput { limit, head: Vec::new(), tail: VecDeque::new(), omitted: 0 }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.limit.head - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.limit.tail);
        self.tail.drain(..over);
        self.omitted += over as u64;
    }

    pub(super) fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.omitted == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        match self.limit.head {
            0 => format!("…{}", tail.trim_start_matches('\u{fffd}')),
            _ => format!("{head}\n[... {} bytes left out ...]\n{tail}", self.omitted),
        }
    }
}

/// The last lines of a text, at most 15 lines and 3,000 characters, with a mark where it is cut.
pub(super) fn last_lines(text: &str) -> String {
    // A line break at the end does not begin another line.
    let line = text.trim_end_matches('\n').rmatch_indices('\n').nth(14).map_or(0, |(at, _)| at + 1);
    let character = text.char_indices().rev().nth(2_999).map_or(0, |(at, _)| at);
    match line.max(character) {
        0 => text.to_owned(),
        start => format!("[... {start} bytes left out ...]\n{}", &text[start..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_mark_where_the_output_is_cut() {
        let lines = |from: u32, to: u32| (from..=to).map(|line| format!("{line:02}\n")).collect::<String>();
        assert_eq!(last_lines("one\ntwo"), "one\ntwo");
        assert_eq!(last_lines(&lines(1, 15)), lines(1, 15));
        assert_eq!(last_lines(&lines(1, 40)), format!("[... 75 bytes left out ...]\n{}", lines(26, 40)));
        let long = "é".repeat(4_000);
        assert_eq!(last_lines(&long), format!("[... 2000 bytes left out ...]\n{}", "é".repeat(3_000)));
    }
}
