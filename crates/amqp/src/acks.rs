//! Which deliveries of one channel are done, and how to tell the broker in the fewest words.
//!
//! Pure data. The rule: a delivery is acknowledged only when it is done. Those at the front are acknowledged together;
//! those done behind one that is not are acknowledged one by one, so that a slow message does not hold back the
//! broker from sending more. A ledger belongs to one channel and dies with it.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct AckTracker {
    /// How many have been forgotten at the front; tags count from 1.
    forgotten: u64,
    states: VecDeque<State>,
    /// Done and not yet told.
    pending: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Done,
    Acked,
}

/// What to tell the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) tag: u64,
    /// And all before it that were not told of yet.
    pub(crate) multiple: bool,
}

impl AckTracker {
    /// A delivery has come. Tags come in order, without gaps; false: this one does not.
    #[must_use]
    pub(crate) fn track(&mut self, tag: u64) -> bool {
        let expected = self.forgotten + 1 + self.states.len() as u64;
        if tag == expected {
            self.states.push_back(State::Open);
        }
        tag == expected
    }

    /// It is done: to be acknowledged.
    pub(crate) fn mark_done(&mut self, tag: u64) {
        let Some(at) = tag.checked_sub(self.forgotten + 1) else { return };
        if let Some(state @ State::Open) = self.states.get_mut(at as usize) {
            *state = State::Done;
            self.pending += 1;
        }
    }

    /// It was rejected: it is not to be acknowledged.
    pub(crate) fn mark_rejected(&mut self, tag: u64) {
        let Some(at) = tag.checked_sub(self.forgotten + 1) else { return };
        if let Some(state @ State::Open) = self.states.get_mut(at as usize) {
            *state = State::Acked;
        }
        // Where everything is rejected there is never anything to tell.
        while self.states.front() == Some(&State::Acked) {
            self.states.pop_front();
            self.forgotten += 1;
        }
    }

    /// How many wait to be told.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// The latest delivery.
    pub(crate) fn last_tag(&self) -> u64 {
        self.forgotten + self.states.len() as u64
    }

    /// The oldest delivery that is not done.
    pub(crate) fn oldest_unfinished(&self) -> Option<u64> {
        let at = self.states.iter().position(|state| *state == State::Open)?;
        Some(self.forgotten + 1 + at as u64)
    }

    /// How many deliveries after this one the broker has not been told of.
    pub(crate) fn outstanding_after(&self, tag: u64) -> usize {
        let from = usize::try_from(tag.saturating_sub(self.forgotten)).unwrap_or(usize::MAX);
        self.states.iter().skip(from).filter(|state| **state != State::Acked).count()
    }

    /// How many are not done.
    #[cfg(test)]
    pub(crate) fn unfinished(&self) -> usize {
        self.states.iter().filter(|state| **state == State::Open).count()
    }

    /// Everything there is to tell.
    pub(crate) fn drain(&mut self, mut send: impl FnMut(Ack)) {
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
            send(Ack { tag, multiple: count > 1 });
        }
        if self.pending > count {
            for (at, state) in self.states.iter_mut().enumerate().filter(|(_, state)| **state == State::Done)
            {
                *state = State::Acked;
                send(Ack { tag: self.forgotten + 1 + at as u64, multiple: false });
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
        acks.drain(|ack| sent.push((ack.tag, ack.multiple)));
        assert_eq!(sent, expected, "{open} open, done: {done:?}");
    }

    #[test]
    fn what_is_told() {
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
    fn a_rejected_one_is_never_acknowledged_by_its_own_number() {
        let mut acks = AckTracker::default();
        (1..=4).for_each(|tag| assert!(acks.track(tag)));
        acks.mark_done(1);
        acks.mark_rejected(2);
        acks.mark_rejected(4);
        let mut sent = Vec::new();
        acks.drain(|ack| sent.push((ack.tag, ack.multiple)));
        acks.mark_done(4);
        acks.mark_done(3);
        acks.drain(|ack| sent.push((ack.tag, ack.multiple)));
        assert_eq!(sent, [(1, false), (3, false)]);
    }

    #[test]
    fn rejected_ones_are_forgotten_though_nothing_is_to_be_told() {
        let mut acks = AckTracker::default();
        for tag in 1..=1000 {
            assert!(acks.track(tag));
            acks.mark_rejected(tag);
            acks.drain(|ack| panic!("{ack:?}"));
        }
        assert_eq!((acks.states.len(), acks.last_tag()), (0, 1000));
    }

    proptest! {
        /// Against a broker that is a set: never past an unfinished one, never twice, and in the end all.
        #[test]
        fn a_broker_would_agree(steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..300)) {
            let mut acks = AckTracker::default();
            let (mut outstanding, mut running) = (BTreeSet::new(), Vec::new());
            let mut next = 1;
            let apply = |acks: &mut AckTracker, outstanding: &mut BTreeSet<u64>, running: &[u64]| {
                acks.drain(|ack| {
                    assert!(outstanding.contains(&ack.tag), "{} is not outstanding", ack.tag);
                    let settled: Vec<u64> = match ack.multiple {
                        true => outstanding.range(..=ack.tag).copied().collect(),
                        false => vec![ack.tag],
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
                prop_assert_eq!(acks.unfinished(), running.len());
            }
            for tag in running.drain(..) {
                acks.mark_done(tag);
            }
            apply(&mut acks, &mut outstanding, &[]);
            prop_assert!(outstanding.is_empty());
            prop_assert_eq!(acks.pending(), 0);
        }
    }
}
