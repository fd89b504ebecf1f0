//! Order by key: of each key one at a time, in order; different keys beside each other.
//!
//! Pure data. Holds what waits for its key, and what is ready to be started, first come first.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
};

/// What orders messages: a header's value, a routing key, a message id.
pub(crate) type Key = Arc<str>;

#[derive(Debug)]
pub(crate) struct KeyedQueue<T> {
    ready: VecDeque<T>,
    /// A key is here while one of it is ready or running; with it, who waits behind.
    blocked: HashMap<Key, VecDeque<T>>,
    waiting: usize,
}

impl<T> Default for KeyedQueue<T> {
    fn default() -> Self {
        Self { ready: VecDeque::new(), blocked: HashMap::new(), waiting: 0 }
    }
}

impl<T> KeyedQueue<T> {
    pub(crate) fn push(&mut self, key: Option<Key>, item: T) {
        match key.map(|key| self.blocked.entry(key)) {
            None => self.ready.push_back(item),
            Some(Entry::Vacant(waiting_items)) => {
                waiting_items.insert(VecDeque::new());
                self.ready.push_back(item);
            }
            Some(Entry::Occupied(mut waiting_items)) => {
                waiting_items.get_mut().push_back(item);
                self.waiting += 1;
            }
        }
    }

    /// The next to start.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// One that was taken is to be started after all, before anything else.
    pub(crate) fn push_front(&mut self, item: T) {
        self.ready.push_front(item);
    }

    /// The one of this key that was taken is over: the next of it may start.
    pub(crate) fn release_key(&mut self, key: Option<&Key>) {
        let Some(key) = key else { return };
        let Some(waiting_items) = self.blocked.get_mut(key) else { return };
        match waiting_items.pop_front() {
            Some(item) => {
                self.waiting -= 1;
                self.ready.push_back(item);
            }
            None => {
                self.blocked.remove(key);
            }
        }
    }

    /// How many wait, ready or not.
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.waiting
    }

    /// Takes a key for one that was not added. False: the key is taken.
    pub(crate) fn reserve_key(&mut self, key: &Key) -> bool {
        match self.blocked.entry(Key::clone(key)) {
            Entry::Vacant(waiting_items) => {
                waiting_items.insert(VecDeque::new());
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Forgets all that waits, and calls `forget` with each. Keys of what is running stay taken.
    pub(crate) fn discard_waiting(
        &mut self,
        key_of: impl Fn(&T) -> Option<Key>,
        mut discard: impl FnMut(&T),
    ) {
        for waiting_items in self.blocked.values_mut() {
            waiting_items.drain(..).for_each(|item| discard(&item));
        }
        self.waiting = 0;
        for item in std::mem::take(&mut self.ready) {
            discard(&item);
            if let Some(key) = key_of(&item) {
                self.blocked.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(name: u8) -> Option<Key> {
        Some(Key::from(name.to_string()))
    }

    #[test]
    fn of_a_key_one_at_a_time() {
        let mut queue = KeyedQueue::default();
        queue.push(key(1), "a1");
        queue.push(key(1), "a2");
        queue.push(key(2), "b1");
        queue.push(None, "free");
        assert_eq!(queue.len(), 4);
        let now: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(now, ["a1", "b1", "free"]);
        queue.release_key(key(1).as_ref());
        assert_eq!(queue.pop(), Some("a2"));
        queue.release_key(key(1).as_ref());
        queue.push(key(1), "a3");
        assert_eq!(queue.pop(), Some("a3"));
    }

    #[test]
    fn what_is_forgotten_frees_its_key_and_what_runs_keeps_it() {
        let mut queue = KeyedQueue::default();
        queue.push(key(1), ("running", 1));
        queue.push(key(2), ("ready", 2));
        queue.push(key(1), ("behind", 1));
        queue.pop();
        queue.discard_waiting(|(_, name)| key(*name), |_| {});
        assert_eq!(queue.len(), 0);
        queue.push(key(1), ("again", 1));
        queue.push(key(2), ("again", 2));
        assert_eq!(queue.pop(), Some(("again", 2)));
        assert_eq!(queue.pop(), None);
        queue.release_key(key(1).as_ref());
        assert_eq!(queue.pop(), Some(("again", 1)));
    }

    proptest! {
        #[test]
        fn every_key_in_order_and_never_two_at_once(keys in prop::collection::vec(0u8..5, 1..100), picks in any::<u64>()) {
            let mut queue = KeyedQueue::default();
            for (number, name) in keys.iter().enumerate() {
                queue.push(key(*name), (*name, number));
            }
            let mut running: Vec<(u8, usize)> = Vec::new();
            let (mut seen, mut done) = (HashMap::new(), 0);
            let mut picks = picks;
            loop {
                while let Some((name, number)) = queue.pop() {
                    prop_assert!(running.iter().all(|(other, _)| *other != name));
                    if let Some(before) = seen.insert(name, number) {
                        prop_assert!(before < number);
                    }
                    running.push((name, number));
                }
                if running.is_empty() {
                    break;
                }
                picks = picks.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let (name, _) = running.swap_remove((picks >> 33) as usize % running.len());
                queue.release_key(key(name).as_ref());
                done += 1;
            }
            prop_assert_eq!(done, keys.len());
        }
    }
}
