//! Tracks unfinished offsets of a stream, and the offset to resume from.

use super::Dispatcher;
use crate::orphans::Orphans;
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct Offsets {
    /// Delivered and unfinished, also those of a lost channel.
    open: BTreeSet<u64>,
    /// The offset after all delivered ones.
    next: Option<u64>,
    /// When reading began, in seconds since 1970.
    pub(super) since: Option<u64>,
}

/// Where to resume in a stream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Resume {
    At(u64),
    /// Nothing was delivered yet: resume at this time, so that messages published meanwhile are read.
    Since(u64),
}

impl Offsets {
    /// Starts at this offset, if it is known.
    pub(super) fn from(next: Option<u64>) -> Self {
        Self { next, ..Self::default() }
    }

    pub(super) fn finish(&mut self, offset: u64) {
        self.open.remove(&offset);
    }

    /// Lowest unfinished offset.
    pub(super) fn position(&self) -> Option<u64> {
        self.open.first().copied().or(self.next)
    }

    pub(super) fn resume(&self) -> Option<Resume> {
        self.position().map(Resume::At).or(self.since.map(Resume::Since))
    }

    /// Adds a delivery. Returns false if it was finished here: a new channel redelivers everything from the position.
    pub(super) fn deliver(&mut self, offset: u64) -> bool {
        let is_finished = self.next.is_some_and(|next| offset < next) && !self.open.contains(&offset);
        if !is_finished {
            self.open.insert(offset);
            self.next = self.next.max(Some(offset.saturating_add(1)));
        }
        !is_finished
    }

    /// Forgets finished offsets after the position, because the stream may have been recreated when it is read again.
    pub(super) fn forget_finished(&mut self) {
        self.next = self.position();
        self.open.clear();
    }

    pub(super) fn begin(&mut self) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // A few seconds earlier, because the broker's clock may be behind.
        self.since.get_or_insert(now.map_or(0, |now| now.as_secs().saturating_sub(5)));
    }
}

impl Dispatcher {
    /// Restarts at offset 0 of a stream that was deleted and recreated, whose offsets are different messages.
    pub(super) fn restart_stream(&mut self) {
        self.offsets = Offsets { since: self.offsets.since, ..Offsets::from(Some(0)) };
        self.orphans = Orphans::default();
        for message in self.in_pool.values_mut().chain(self.follow_ups.messages().map(|(_, message)| message)) {
            message.offset = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_finished_after_an_open_one_are_skipped_when_redelivered() {
        let mut offsets = Offsets::default();
        assert!((3..10).all(|offset| offsets.deliver(offset)));
        (4..8).for_each(|offset| offsets.finish(offset));
        assert_eq!(offsets.position(), Some(3));
        // A new channel starts at the position. Unfinished messages are redelivered.
        let again: Vec<u64> = (3..12).filter(|offset| offsets.deliver(*offset)).collect();
        assert_eq!(again, [3, 8, 9, 10, 11]);
        again.into_iter().for_each(|offset| offsets.finish(offset));
        assert_eq!(offsets.position(), Some(12));
    }

    #[test]
    fn finished_offsets_are_forgotten_for_a_recreated_stream() {
        let mut offsets = Offsets::from(Some(3));
        assert!((3..10).all(|offset| offsets.deliver(offset)));
        (4..8).for_each(|offset| offsets.finish(offset));
        offsets.forget_finished();
        assert_eq!(offsets.position(), Some(3));
        assert!((3..10).all(|offset| offsets.deliver(offset)));
    }
}
