//! Tracks which deliveries of one channel are done, and batches their acknowledgements.
//!
//! Pure data. A delivery is acknowledged only when it is done. Those at the front are acknowledged with one `multiple`
//! ack; those done behind an unfinished one are acknowledged singly, so that a slow message does not use up the
//! prefetch. A tracker belongs to one channel.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct AckTracker {
    /// Number of acknowledged deliveries dropped at the front. Delivery tags count from 1.
    forgotten: u64,
    states: VecDeque<State>,
    /// Deliveries that are done and not acknowledged.
    pub(crate) pending: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Done,
    Acked,
}

impl AckTracker {
    /// Adds a delivery. Tags are consecutive; returns false if this one is not the next.
    #[must_use]
    pub(crate) fn track(&mut self, tag: u64) -> bool {
        let expected = self.forgotten + 1 + self.states.len() as u64;
        if tag == expected {
            self.states.push_back(State::Open);
        }
        tag == expected
    }

    /// Marks a delivery as done, to be acknowledged.
    pub(crate) fn mark_done(&mut self, tag: u64) {
        let Some(at) = tag.checked_sub(self.forgotten + 1) else { return };
        if let Some(state @ State::Open) = self.states.get_mut(at as usize) {
            *state = State::Done;
            self.pending += 1;
        }
    }

    /// Marks a delivery as rejected: it is never acknowledged.
    pub(crate) fn mark_rejected(&mut self, tag: u64) {
        let Some(at) = tag.checked_sub(self.forgotten + 1) else { return };
        if let Some(state @ State::Open) = self.states.get_mut(at as usize) {
            *state = State::Acked;
        }
        // `drain` returns early where every delivery is rejected.
        while self.states.front() == Some(&State::Acked) {
            self.states.pop_front();
            self.forgotten += 1;
        }
    }

    pub(crate) fn last_tag(&self) -> u64 {
        self.forgotten + self.states.len() as u64
    }

    /// Tag of the oldest delivery that is not done.
    pub(crate) fn oldest_unfinished(&self) -> Option<u64> {
        let at = self.states.iter().position(|state| *state == State::Open)?;
        Some(self.forgotten + 1 + at as u64)
    }

    /// Number of deliveries after `tag` that are neither acknowledged nor rejected.
    pub(crate) fn outstanding_after(&self, tag: u64) -> usize {
        let from = usize::try_from(tag.saturating_sub(self.forgotten)).unwrap_or(usize::MAX);
        self.states.iter().skip(from).filter(|state| **state != State::Acked).count()
    }

    /// Passes every due acknowledgement to `send`, in order: its tag, and whether it includes all earlier deliveries.
    pub(crate) fn drain(&mut self, mut send: impl FnMut(u64, bool)) {
        if self.pending == 0 {
            return;
        }
        let (mut last, mut count) = (None, 0);
        while let Some(state @ (State::Done | State::Acked)) = self.states.front() {
            let done = *state == State::Done;
            self.states.pop_front();
            self.forgotten += 1;
            if done {
                (last, count) = (Some(self.forgotten), count + 1);
            }
        }
        if let Some(tag) = last {
            send(tag, count > 1);
        }
        if self.pending > count {
            for (at, state) in self.states.iter_mut().enumerate().filter(|(_, state)| **state == State::Done) {
                *state = State::Acked;
                send(self.forgotten + 1 + at as u64, false);
            }
        }
        self.pending = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[track_caller]
    fn check(open: u64, done: &[u64], expected: &[(u64, bool)]) {
        let mut acks = AckTracker::default();
        (1..=open).for_each(|tag| assert!(acks.track(tag)));
        assert!(!acks.track(open) && !acks.track(open + 2));
        done.iter().for_each(|tag| acks.mark_done(*tag));
        let mut sent = Vec::new();
        acks.drain(|tag, multiple| sent.push((tag, multiple)));
        assert_eq!(sent, expected, "{open} open, done: {done:?}");
    }

    #[test]
    fn acks_cover_done_deliveries_only() {
        check(3, &[], &[]);
        check(3, &[1], &[(1, false)]);
        check(3, &[1, 2, 3], &[(3, true)]);
        check(3, &[3, 1, 2], &[(3, true)]);
        check(3, &[2], &[(2, false)]);
        check(5, &[1, 2, 4], &[(2, true), (4, false)]);
        check(5, &[2, 3, 5], &[(2, false), (3, false), (5, false)]);
        check(3, &[1, 1, 9, 0], &[(1, false)]);
    }

    #[test]
    fn rejected_delivery_is_never_acknowledged_singly() {
        let mut acks = AckTracker::default();
        (1..=4).for_each(|tag| assert!(acks.track(tag)));
        acks.mark_done(1);
        acks.mark_rejected(2);
        acks.mark_rejected(4);
        let mut sent = Vec::new();
        acks.drain(|tag, multiple| sent.push((tag, multiple)));
        acks.mark_done(4);
        acks.mark_done(3);
        acks.drain(|tag, multiple| sent.push((tag, multiple)));
        assert_eq!(sent, [(1, false), (3, false)]);
    }

    #[test]
    fn rejected_deliveries_are_dropped_without_a_drain() {
        let mut acks = AckTracker::default();
        for tag in 1..=1000 {
            assert!(acks.track(tag));
            acks.mark_rejected(tag);
            acks.drain(|tag, multiple| panic!("{tag}, {multiple}"));
        }
        assert_eq!((acks.states.len(), acks.last_tag()), (0, 1000));
    }

    proptest! {
        /// Model broker: no ack covers an unfinished delivery, none is sent twice, and in the end all are acknowledged.
        #[test]
        fn acks_match_a_model_broker(steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..300)) {
            let mut acks = AckTracker::default();
            let (mut outstanding, mut running) = (BTreeSet::new(), Vec::new());
            let mut next = 1;
            let apply = |acks: &mut AckTracker, outstanding: &mut BTreeSet<u64>, running: &[u64]| {
                acks.drain(|tag, multiple| {
                    assert!(outstanding.contains(&tag), "{tag} is not outstanding");
                    let settled: Vec<u64> = match multiple {
                        true => outstanding.range(..=tag).copied().collect(),
                        false => vec![tag],
                    };
                    for tag in settled {
                        assert!(!running.contains(&tag), "{tag} is not done");
                        outstanding.remove(&tag);
                    }
                });
            };
            for (step, index) in steps {
                match step {
                    0 | 1 => {
                        assert!(acks.track(next));
                        outstanding.insert(next);
                        running.push(next);
                        next += 1;
                    }
                    2 if !running.is_empty() => {
                        let tag = running.swap_remove(index.index(running.len()));
                        acks.mark_done(tag);
                    }
                    _ => apply(&mut acks, &mut outstanding, &running),
                }
                let unfinished = acks.states.iter().filter(|state| **state == State::Open);
                prop_assert_eq!(unfinished.count(), running.len());
            }
            for tag in running.drain(..) {
                acks.mark_done(tag);
            }
            apply(&mut acks, &mut outstanding, &[]);
            prop_assert!(outstanding.is_empty());
            prop_assert_eq!(acks.pending, 0);
        }
    }
}
