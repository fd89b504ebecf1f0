//! In a stream: which messages are not finished, and where to go on.

use super::Dispatcher;
use crate::{delivery::Delivery, orphans::Orphans};
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct Offsets {
    /// Delivered and not finished, also those whose channel was lost.
    open: BTreeSet<u64>,
    /// The one after all that were delivered.
    next: Option<u64>,
    /// When it began to read, in seconds since 1970.
    since: Option<u64>,
}

/// Where in a stream to go on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Resume {
    At(u64),
    /// Nothing has come yet; what came meanwhile must.
    Since(u64),
}

impl Offsets {
    /// Begins with this offset, if it is known.
    pub(super) fn from(next: Option<u64>) -> Self {
        Self { next, ..Self::default() }
    }

    /// Whether it began to read.
    pub(super) fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    pub(super) fn finish(&mut self, offset: u64) {
        self.open.remove(&offset);
    }

    /// The lowest offset that is not finished.
    pub(super) fn position(&self) -> Option<u64> {
        self.open.first().copied().or(self.next)
    }

    pub(super) fn resume(&self) -> Option<Resume> {
        self.position().map(Resume::At).or(self.since.map(Resume::Since))
    }

    /// A message is delivered. False: it was finished here. A new channel delivers everything from the position on.
    pub(super) fn deliver(&mut self, offset: u64) -> bool {
        let is_finished = self.next.is_some_and(|next| offset < next) && !self.open.contains(&offset);
        if !is_finished {
            self.open.insert(offset);
            self.next = self.next.max(Some(offset.saturating_add(1)));
        }
        !is_finished
    }

    /// Forgets what was finished from the position on: the stream may be another when it is read again.
    pub(super) fn forget_finished(&mut self) {
        self.next = self.position();
        self.open.clear();
    }

    pub(super) fn begin(&mut self) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // A few seconds before: the broker's clock may be behind ours.
        self.since.get_or_insert(now.map_or(0, |now| now.as_secs().saturating_sub(5)));
    }
}

impl Dispatcher {
    /// The stream was deleted and made anew: its messages are others, though their offsets are the same.
    pub(super) fn restart_stream(&mut self) {
        self.offsets = Offsets { since: self.offsets.since, ..Offsets::from(Some(0)) };
        self.orphans = Orphans::default();
        for message in self.in_pool.values_mut().chain(self.follow_ups.messages().map(|(_, message)| message))
        {
            message.offset = None;
        }
    }
}

/// The offset that a delivery carries. Anybody can put a header of that name on a message.
pub(super) fn offset_of(delivery: &Delivery) -> Option<u64> {
    delivery
        .headers()
        .get("x-stream-offset")
        .and_then(crate::FieldValue::as_int)
        .and_then(|at| u64::try_from(at).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_finished_behind_an_open_message_is_known_when_it_is_delivered_again() {
        let mut offsets = Offsets::default();
        assert!((3..10).all(|offset| offsets.deliver(offset)));
        (4..8).for_each(|offset| offsets.finish(offset));
        assert_eq!(offsets.position(), Some(3));
        // A new channel begins at the position. What was not finished, waiting or running, is delivered anew.
        let again: Vec<u64> = (3..12).filter(|offset| offsets.deliver(*offset)).collect();
        assert_eq!(again, [3, 8, 9, 10, 11]);
        again.into_iter().for_each(|offset| offsets.finish(offset));
        assert_eq!(offsets.position(), Some(12));
    }

    #[test]
    fn nothing_is_known_of_a_stream_that_may_be_another() {
        let mut offsets = Offsets::from(Some(3));
        assert!((3..10).all(|offset| offsets.deliver(offset)));
        (4..8).for_each(|offset| offsets.finish(offset));
        offsets.forget_finished();
        assert_eq!(offsets.position(), Some(3));
        assert!((3..10).all(|offset| offsets.deliver(offset)));
    }
}
