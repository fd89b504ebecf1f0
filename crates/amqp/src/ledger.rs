//! Which deliveries of one channel are done, and how to tell the broker in the fewest words.
//!
//! Pure data. The rule: a delivery is acknowledged only when it is done. Those at the front are acknowledged together;
//! those done behind one that is not are acknowledged one by one, so that a slow message does not hold back the
//! broker from sending more. A ledger belongs to one channel and dies with it.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// How many have been forgotten at the front; tags count from 1.
    before: u64,
    states: VecDeque<State>,
    /// Done and not yet told.
    untold: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Done,
    Told,
}

/// What to tell the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) tag: u64,
    /// And all before it that were not told of yet.
    pub(crate) multiple: bool,
}

impl Ledger {
    /// A delivery has come. Tags come in order, without gaps; false: this one does not.
    #[must_use]
    pub(crate) fn open(&mut self, tag: u64) -> bool {
        let expected = self.before + 1 + self.states.len() as u64;
        if tag == expected {
            self.states.push_back(State::Open);
        }
        tag == expected
    }

    /// It is done: to be acknowledged.
    pub(crate) fn done(&mut self, tag: u64) {
        let Some(at) = tag.checked_sub(self.before + 1) else { return };
        if let Some(state @ State::Open) = self.states.get_mut(at as usize) {
            *state = State::Done;
            self.untold += 1;
        }
    }

    /// It was rejected: it is not to be acknowledged.
    pub(crate) fn rejected(&mut self, tag: u64) {
        let Some(at) = tag.checked_sub(self.before + 1) else { return };
        if let Some(state @ State::Open) = self.states.get_mut(at as usize) {
            *state = State::Told;
        }
        // Where everything is rejected there is never anything to tell.
        while self.states.front() == Some(&State::Told) {
            self.states.pop_front();
            self.before += 1;
        }
    }

    /// How many wait to be told.
    pub(crate) fn untold(&self) -> usize {
        self.untold
    }

    /// The latest delivery.
    pub(crate) fn last(&self) -> u64 {
        self.before + self.states.len() as u64
    }

    /// The oldest delivery that is not done.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let at = self.states.iter().position(|state| *state == State::Open)?;
        Some(self.before + 1 + at as u64)
    }

    /// How many deliveries after this one the broker has not been told of.
    pub(crate) fn outstanding_after(&self, tag: u64) -> usize {
        let from = usize::try_from(tag.saturating_sub(self.before)).unwrap_or(usize::MAX);
        self.states.iter().skip(from).filter(|state| **state != State::Told).count()
    }

    /// How many are not done.
    #[cfg(test)]
    pub(crate) fn unfinished(&self) -> usize {
        self.states.iter().filter(|state| **state == State::Open).count()
    }

    /// Everything there is to tell.
    pub(crate) fn tell(&mut self, mut say: impl FnMut(Ack)) {
        if self.untold == 0 {
            return;
        }
        let (mut last, mut count) = (None, 0);
        while let Some(state @ (State::Done | State::Told)) = self.states.front() {
            let done = *state == State::Done;
            self.states.pop_front();
            self.before += 1;
            if done {
                (last, count) = (Some(self.before), count + 1);
            }
        }
        if let Some(tag) = last {
            say(Ack { tag, multiple: count > 1 });
        }
        if self.untold > count {
            for (at, state) in self.states.iter_mut().enumerate().filter(|(_, state)| **state == State::Done)
            {
                *state = State::Told;
                say(Ack { tag: self.before + 1 + at as u64, multiple: false });
            }
        }
        self.untold = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[track_caller]
    fn check(open: u64, done: &[u64], told: &[(u64, bool)]) {
        let mut ledger = Ledger::default();
        (1..=open).for_each(|tag| assert!(ledger.open(tag)));
        assert!(!ledger.open(open) && !ledger.open(open + 2));
        done.iter().for_each(|tag| ledger.done(*tag));
        let mut acks = Vec::new();
        ledger.tell(|ack| acks.push((ack.tag, ack.multiple)));
        assert_eq!(acks, told, "{open} open, done: {done:?}");
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
        let mut ledger = Ledger::default();
        (1..=4).for_each(|tag| assert!(ledger.open(tag)));
        ledger.done(1);
        ledger.rejected(2);
        ledger.rejected(4);
        let mut acks = Vec::new();
        ledger.tell(|ack| acks.push((ack.tag, ack.multiple)));
        ledger.done(4);
        ledger.done(3);
        ledger.tell(|ack| acks.push((ack.tag, ack.multiple)));
        assert_eq!(acks, [(1, false), (3, false)]);
    }

    #[test]
    fn rejected_ones_are_forgotten_though_nothing_is_to_be_told() {
        let mut ledger = Ledger::default();
        for tag in 1..=1000 {
            assert!(ledger.open(tag));
            ledger.rejected(tag);
            ledger.tell(|ack| panic!("{ack:?}"));
        }
        assert_eq!((ledger.states.len(), ledger.last()), (0, 1000));
    }

    proptest! {
        /// Against a broker that is a set: never past an unfinished one, never twice, and in the end all.
        #[test]
        fn a_broker_would_agree(steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..300)) {
            let mut ledger = Ledger::default();
            let (mut outstanding, mut running) = (BTreeSet::new(), Vec::new());
            let mut next = 1;
            let hear = |ledger: &mut Ledger, outstanding: &mut BTreeSet<u64>, running: &[u64]| {
                ledger.tell(|ack| {
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
                        assert!(ledger.open(next));
                        outstanding.insert(next);
                        running.push(next);
                        next += 1;
                    }
                    2 if !running.is_empty() => {
                        let tag = running.swap_remove(index.index(running.len()));
                        ledger.done(tag);
                    }
                    _ => hear(&mut ledger, &mut outstanding, &running),
                }
                prop_assert_eq!(ledger.unfinished(), running.len());
            }
            for tag in running.drain(..) {
                ledger.done(tag);
            }
            hear(&mut ledger, &mut outstanding, &[]);
            prop_assert!(outstanding.is_empty());
            prop_assert_eq!(ledger.untold(), 0);
        }
    }
}
