//! Orders messages by key: one of each key at a time, in order, with different keys in parallel.
//!
//! Pure data. Holds messages that are ready to start, first in first out, and messages that wait for their key.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
};

/// Ordering key: a header value, a routing key or a message id.
pub(crate) type Key = Arc<str>;

#[derive(Debug)]
pub(crate) struct KeyedQueue<T> {
    ready: VecDeque<T>,
    /// Keys with a ready or running message, and the messages that wait behind it.
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

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Puts a popped message back, to be started before any other.
    pub(crate) fn push_front(&mut self, item: T) {
        self.ready.push_front(item);
    }

    /// Frees a key whose message has finished: the next of that key becomes ready.
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

    /// Number of messages, ready or waiting for their key.
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.waiting
    }

    /// Reserves a key for a message that is not in the queue. Returns false if the key is in use.
    pub(crate) fn reserve_key(&mut self, key: &Key) -> bool {
        let is_free = !self.blocked.contains_key(key);
        if is_free {
            self.blocked.insert(Key::clone(key), VecDeque::new());
        }
        is_free
    }

    /// Drops all messages in the queue and calls `discard` with each. Keys of running messages stay in use.
    pub(crate) fn clear(&mut self, key_of: impl Fn(&T) -> Option<Key>, mut discard: impl FnMut(&T)) {
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
    fn messages_of_one_key_run_one_at_a_time() {
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
    fn discarded_messages_free_their_key_and_running_ones_keep_it() {
        let mut queue = KeyedQueue::default();
        queue.push(key(1), ("running", 1));
        queue.push(key(2), ("ready", 2));
        queue.push(key(1), ("behind", 1));
        queue.pop();
        queue.clear(|(_, name)| key(*name), |_| {});
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
        fn each_key_is_in_order_and_never_runs_twice_at_once(keys in prop::collection::vec(0u8..5, 1..100), picks in any::<u64>()) {
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
