//! The queue of waiting tasks, in the three orders that a pool can have. Pure data: locks, capacity and waiting are in
//! `core`.
//!
//! One rule keeps the ordered queues from starving any item: every [`AGING_INTERVAL`]th pop takes the item that has
//! waited longest. At most `AGING_INTERVAL` − 1 later items therefore overtake an item for each item ahead of it.

use std::collections::{BTreeMap, VecDeque};

/// Order in which a pool starts its tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum QueueOrder {
    /// First in, first out: the order of submission.
    #[default]
    Fifo,
    /// Highest [`Priority`](crate::Priority) first; equal ones first in, first out. One start in 16 goes to the task
    /// that has waited longest, so that low priorities do not starve.
    Priority,
    /// Smallest [`cost`](crate::Task::cost) first; equal ones first in, first out. One start in 16 goes to the task
    /// that has waited longest, so that costly tasks do not starve.
    Cost,
}

/// One pop in this many takes the oldest item instead of the best.
const AGING_INTERVAL: u32 = 16;

/// An item's priority, in the low byte, and its cost, above. One word, because every task moves through the queue.
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

    /// The rank as one number, larger is sooner. Equal for all items of a first-in-first-out queue.
    pub(crate) fn sort_key(self, order: QueueOrder) -> u64 {
        match order {
            QueueOrder::Fifo => 0,
            QueueOrder::Priority => u64::from(self.priority()),
            QueueOrder::Cost => u64::MAX - self.cost(),
        }
    }
}

pub(crate) enum Queue<T> {
    Fifo(VecDeque<T>),
    Priority(Box<PriorityQueue<T>>),
    Cost(Box<CostQueue<T>>),
}

impl<T> Queue<T> {
    pub(crate) fn new(order: QueueOrder) -> Self {
        match order {
            QueueOrder::Fifo => Self::Fifo(VecDeque::new()),
            QueueOrder::Priority => Self::Priority(Box::new(PriorityQueue::new())),
            QueueOrder::Cost => Self::Cost(Box::new(CostQueue::new())),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Fifo(queue) => queue.len(),
            Self::Priority(queue) => queue.len,
            Self::Cost(queue) => queue.by_cost.len(),
        }
    }

    pub(crate) fn push(&mut self, rank: Rank, item: T) {
        match self {
            Self::Fifo(queue) => queue.push_back(item),
            Self::Priority(queue) => queue.push(rank.priority(), item),
            Self::Cost(queue) => queue.push(rank.cost(), item),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        match self {
            Self::Fifo(queue) => queue.pop_front(),
            Self::Priority(queue) => queue.pop(),
            Self::Cost(queue) => queue.pop(),
        }
    }

    /// The [sort key](Rank::sort_key) of the best item.
    pub(crate) fn best(&self) -> Option<u64> {
        match self {
            Self::Fifo(queue) => (!queue.is_empty()).then_some(0),
            Self::Priority(queue) => queue.highest().map(|priority| priority as u64),
            Self::Cost(queue) => queue.by_cost.first_key_value().map(|((cost, _), _)| u64::MAX - cost),
        }
    }
}

/// Counts pops and decides which of them take the oldest item.
#[derive(Default)]
struct Aging(u32);

impl Aging {
    fn oldest_is_next(&mut self) -> bool {
        self.0 = (self.0 + 1) % AGING_INTERVAL;
        self.0 == 0
    }
}

/// A queue per priority, with a bit for each that is not empty: push and pop take constant time.
pub(crate) struct PriorityQueue<T> {
    by_priority: Vec<VecDeque<(u64, T)>>,
    nonempty: [u64; 4],
    len: usize,
    pushed: u64,
    aging: Aging,
}

impl<T> PriorityQueue<T> {
    /// Largest capacity that an empty queue keeps, so that 256 queues that were once full do not keep their memory.
    const MAX_IDLE_CAPACITY: usize = 256;

    fn new() -> Self {
        let by_priority = (0..=u8::MAX).map(|_| VecDeque::new()).collect();
        Self { by_priority, nonempty: [0; 4], len: 0, pushed: 0, aging: Aging::default() }
    }

    fn push(&mut self, priority: u8, item: T) {
        let priority = usize::from(priority);
        self.by_priority[priority].push_back((self.pushed, item));
        self.nonempty[priority / 64] |= 1 << (priority % 64);
        self.pushed += 1;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<T> {
        let priority = if self.aging.oldest_is_next() { self.oldest() } else { self.highest() }?;
        let (_, item) = self.by_priority[priority].pop_front()?;
        if self.by_priority[priority].is_empty() {
            self.nonempty[priority / 64] &= !(1 << (priority % 64));
            if self.by_priority[priority].capacity() > Self::MAX_IDLE_CAPACITY {
                self.by_priority[priority] = VecDeque::new();
            }
        }
        self.len -= 1;
        Some(item)
    }

    fn highest(&self) -> Option<usize> {
        let word = self.nonempty.iter().rposition(|bits| *bits != 0)?;
        Some(word * 64 + 63 - self.nonempty[word].leading_zeros() as usize)
    }

    fn oldest(&self) -> Option<usize> {
        let mut oldest = None;
        for (word, bits) in self.nonempty.iter().enumerate() {
            // Visits only the queues that are not empty.
            let mut bits = *bits;
            while bits != 0 {
                let priority = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let head = self.by_priority[priority].front().map(|(pushed, _)| (*pushed, priority));
                oldest = oldest.min(head).or(head);
            }
        }
        oldest.map(|(_, priority)| priority)
    }
}

/// Items in two trees: by cost and by age.
pub(crate) struct CostQueue<T> {
    by_cost: BTreeMap<(u64, u64), T>,
    by_age: BTreeMap<u64, u64>,
    pushed: u64,
    aging: Aging,
}

impl<T> CostQueue<T> {
    fn new() -> Self {
        Self { by_cost: BTreeMap::new(), by_age: BTreeMap::new(), pushed: 0, aging: Aging::default() }
    }

    fn push(&mut self, cost: u64, item: T) {
        self.by_cost.insert((cost, self.pushed), item);
        self.by_age.insert(self.pushed, cost);
        self.pushed += 1;
    }

    fn pop(&mut self) -> Option<T> {
        let key = if self.aging.oldest_is_next() {
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

    fn drain<T>(queue: &mut Queue<T>) -> Vec<T> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    /// Pushes items named (rank, nth) and checks the order in which they are popped.
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
    fn each_order_pops_by_its_rank() {
        check(QueueOrder::Fifo, &[3, 1, 2, 1], &[(3, 0), (1, 1), (2, 2), (1, 3)]);
        check(QueueOrder::Priority, &[3, 1, 2, 1, 255, 64], &[(255, 4), (64, 5), (3, 0), (2, 2), (1, 1), (1, 3)]);
        check(QueueOrder::Cost, &[3, 1, 2, 1], &[(1, 1), (1, 3), (2, 2), (3, 0)]);
    }

    #[test]
    fn best_is_the_sort_key_of_the_next_pop() {
        for order in [QueueOrder::Priority, QueueOrder::Cost] {
            let mut queue = Queue::new(order);
            for number in [7, 200, 3] {
                queue.push(rank(number), number);
            }
            let best = queue.best();
            let next = queue.pop().unwrap();
            assert_eq!(best, Some(rank(next).sort_key(order)), "{order:?}");
        }
    }

    /// The last item is popped within `AGING_INTERVAL` pops for each item that was ahead of it.
    #[test]
    fn worst_item_is_popped_despite_endless_better_ones() {
        for order in [QueueOrder::Priority, QueueOrder::Cost] {
            let (better, worst) = if order == QueueOrder::Priority { (200, 0) } else { (1, 1_000) };
            let mut queue = Queue::new(order);
            for _ in 0..9 {
                queue.push(rank(better), false);
            }
            queue.push(rank(worst), true);
            let mut pops = 0;
            while queue.pop() == Some(false) {
                pops += 1;
                queue.push(rank(better), false);
                assert!(pops <= 10 * AGING_INTERVAL, "{order:?} starves");
            }
        }
    }

    #[test]
    fn emptied_priority_releases_its_memory() {
        let mut queue = PriorityQueue::new();
        for _ in 0..10_000 {
            queue.push(9, ());
        }
        while queue.pop().is_some() {}
        assert!(queue.by_priority[9].capacity() <= PriorityQueue::<()>::MAX_IDLE_CAPACITY);
    }
}
