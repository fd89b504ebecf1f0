//! The waiting line, in the three orders a pool can have. Pure data: no locks, no capacity, no waiting;
//! the core keeps those.
//!
//! The ordered lines let nothing starve by one rule: every [`FAIR`]th item taken is the one that has waited
//! longest. An item can so be overtaken by at most `FAIR`−1 later ones for each item ahead of it.

use std::collections::{BTreeMap, VecDeque};

/// In what order a pool starts its tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum QueueOrder {
    /// First in, first out.
    #[default]
    Fifo,
    /// Highest [`Priority`](crate::Priority) first; equal ones first in, first out. One start in 16 goes to
    /// the task that has waited longest, so that low ones do not starve.
    Priority,
    /// Smallest [`cost`](crate::Task::cost) first; equal ones first in, first out. One start in 16 goes to
    /// the task that has waited longest, so that costly ones do not starve.
    Cost,
}

/// Every how many-th item taken is the oldest instead of the best.
const FAIR: u32 = 16;

/// How soon an item wants to be taken: its priority in the low byte, its cost above. One word, because every
/// task is moved through the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank(u64);

impl Rank {
    pub(crate) fn new(priority: u8, cost: u64) -> Self {
        Self(cost.min(u64::MAX >> 8) << 8 | u64::from(priority))
    }

    pub(crate) fn priority(self) -> u8 {
        self.0 as u8
    }

    pub(crate) fn cost(self) -> u64 {
        self.0 >> 8
    }

    /// The rank as one number under an order, larger is sooner; equal for all in a first-in-first-out line.
    pub(crate) fn under(self, order: QueueOrder) -> u64 {
        match order {
            QueueOrder::Fifo => 0,
            QueueOrder::Priority => u64::from(self.priority()),
            QueueOrder::Cost => u64::MAX - self.cost(),
        }
    }
}

pub(crate) enum Queue<J> {
    Fifo(VecDeque<J>),
    Priority(Box<Lanes<J>>),
    Cost(Box<Costs<J>>),
}

impl<J> Queue<J> {
    pub(crate) fn new(order: QueueOrder) -> Self {
        match order {
            QueueOrder::Fifo => Self::Fifo(VecDeque::new()),
            QueueOrder::Priority => Self::Priority(Box::new(Lanes::new())),
            QueueOrder::Cost => Self::Cost(Box::new(Costs::new())),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Fifo(line) => line.len(),
            Self::Priority(lanes) => lanes.len,
            Self::Cost(costs) => costs.by_cost.len(),
        }
    }

    pub(crate) fn push(&mut self, rank: Rank, item: J) {
        match self {
            Self::Fifo(line) => line.push_back(item),
            Self::Priority(lanes) => lanes.push(rank.priority(), item),
            Self::Cost(costs) => costs.push(rank.cost(), item),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<J> {
        match self {
            Self::Fifo(line) => line.pop_front(),
            Self::Priority(lanes) => lanes.pop(),
            Self::Cost(costs) => costs.pop(),
        }
    }

    /// The rank of the best item, as [`Rank::under`] counts it.
    pub(crate) fn best(&self) -> Option<u64> {
        match self {
            Self::Fifo(line) => (!line.is_empty()).then_some(0),
            Self::Priority(lanes) => lanes.highest().map(|lane| lane as u64),
            Self::Cost(costs) => costs.by_cost.first_key_value().map(|((cost, _), _)| u64::MAX - cost),
        }
    }
}

/// Counts takes, and says when it is the oldest's turn.
#[derive(Default)]
struct Turns(u32);

impl Turns {
    fn oldest_is_next(&mut self) -> bool {
        self.0 = (self.0 + 1) % FAIR;
        self.0 == 0
    }
}

/// A lane for each of the 256 priorities and a bit for each lane that is not empty: push and pop take the
/// same time whatever the length.
pub(crate) struct Lanes<J> {
    lanes: Vec<VecDeque<(u64, J)>>,
    filled: [u64; 4],
    len: usize,
    pushed: u64,
    turns: Turns,
}

impl<J> Lanes<J> {
    /// An empty lane gives back what it grew beyond this: 256 lanes that were each full once must not keep
    /// 256 times the queue's memory.
    const KEPT: usize = 256;

    fn new() -> Self {
        let lanes = (0..=u8::MAX).map(|_| VecDeque::new()).collect();
        Self { lanes, filled: [0; 4], len: 0, pushed: 0, turns: Turns::default() }
    }

    fn push(&mut self, priority: u8, item: J) {
        let lane = usize::from(priority);
        self.lanes[lane].push_back((self.pushed, item));
        self.filled[lane / 64] |= 1 << (lane % 64);
        self.pushed += 1;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<J> {
        let lane = if self.turns.oldest_is_next() { self.oldest() } else { self.highest() }?;
        let (_, item) = self.lanes[lane].pop_front()?;
        if self.lanes[lane].is_empty() {
            self.filled[lane / 64] &= !(1 << (lane % 64));
            if self.lanes[lane].capacity() > Self::KEPT {
                self.lanes[lane] = VecDeque::new();
            }
        }
        self.len -= 1;
        Some(item)
    }

    fn highest(&self) -> Option<usize> {
        let word = self.filled.iter().rposition(|bits| *bits != 0)?;
        Some(word * 64 + 63 - self.filled[word].leading_zeros() as usize)
    }

    fn oldest(&self) -> Option<usize> {
        let mut oldest = None;
        for (word, bits) in self.filled.iter().enumerate() {
            // Lane by lane, but only those that hold something.
            let mut bits = *bits;
            while bits != 0 {
                let lane = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let head = self.lanes[lane].front().map(|(pushed, _)| (*pushed, lane));
                oldest = oldest.min(head).or(head);
            }
        }
        oldest.map(|(_, lane)| lane)
    }
}

/// Two trees over the same items: by cost, and by age.
pub(crate) struct Costs<J> {
    by_cost: BTreeMap<(u64, u64), J>,
    by_age: BTreeMap<u64, u64>,
    pushed: u64,
    turns: Turns,
}

impl<J> Costs<J> {
    fn new() -> Self {
        Self { by_cost: BTreeMap::new(), by_age: BTreeMap::new(), pushed: 0, turns: Turns::default() }
    }

    fn push(&mut self, cost: u64, item: J) {
        self.by_cost.insert((cost, self.pushed), item);
        self.by_age.insert(self.pushed, cost);
        self.pushed += 1;
    }

    fn pop(&mut self) -> Option<J> {
        let key = if self.turns.oldest_is_next() {
            self.by_age.first_key_value().map(|(age, cost)| (*cost, *age))
        } else {
            self.by_cost.first_key_value().map(|(key, _)| *key)
        }?;
        self.by_age.remove(&key.1);
        self.by_cost.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(number: u64) -> Rank {
        Rank::new(number as u8, number)
    }

    fn drain<J>(queue: &mut Queue<J>) -> Vec<J> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    /// Pushes items named (rank, nth) and says in which order they come out.
    fn check(order: QueueOrder, pushes: &[u64], want: &[(u64, usize)]) {
        let mut queue = Queue::new(order);
        for (nth, number) in pushes.iter().enumerate() {
            queue.push(rank(*number), (*number, nth));
        }
        assert_eq!(queue.len(), pushes.len());
        assert_eq!(drain(&mut queue), want, "{order:?} of {pushes:?}");
        assert_eq!((queue.len(), queue.best()), (0, None));
    }

    #[test]
    fn orders() {
        check(QueueOrder::Fifo, &[3, 1, 2, 1], &[(3, 0), (1, 1), (2, 2), (1, 3)]);
        check(
            QueueOrder::Priority,
            &[3, 1, 2, 1, 255, 64],
            &[(255, 4), (64, 5), (3, 0), (2, 2), (1, 1), (1, 3)],
        );
        check(QueueOrder::Cost, &[3, 1, 2, 1], &[(1, 1), (1, 3), (2, 2), (3, 0)]);
    }

    #[test]
    fn best_is_what_comes_next() {
        for order in [QueueOrder::Priority, QueueOrder::Cost] {
            let mut queue = Queue::new(order);
            for number in [7, 200, 3] {
                queue.push(rank(number), number);
            }
            let best = queue.best();
            let next = queue.pop().unwrap();
            assert_eq!(best, Some(rank(next).under(order)), "{order:?}");
        }
    }

    /// A stream of better items that never ends: the one at the back still comes within FAIR takes for each
    /// item that was ahead of it.
    #[test]
    fn nothing_starves() {
        for order in [QueueOrder::Priority, QueueOrder::Cost] {
            let (better, worst) = if order == QueueOrder::Priority { (200, 0) } else { (1, 1_000) };
            let mut queue = Queue::new(order);
            for _ in 0..9 {
                queue.push(rank(better), false);
            }
            queue.push(rank(worst), true);
            let mut takes = 0;
            while queue.pop() == Some(false) {
                takes += 1;
                queue.push(rank(better), false);
                assert!(takes <= 10 * FAIR, "{order:?} starves");
            }
        }
    }

    #[test]
    fn an_emptied_lane_gives_its_memory_back() {
        let mut lanes = Lanes::new();
        for _ in 0..10_000 {
            lanes.push(9, ());
        }
        while lanes.pop().is_some() {}
        assert!(lanes.lanes[9].capacity() <= Lanes::<()>::KEPT);
    }
}
