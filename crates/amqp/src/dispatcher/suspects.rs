//! Runs messages that may have crashed their process one at a time, so that the next crash identifies the culprit.
//!
//! Other messages run in parallel. One that is running in two crashes becomes a suspect itself.

use super::InFlight;
use crate::keyed_queue::KeyedQueue;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Suspects {
    pub(super) waiting: VecDeque<InFlight>,
    /// Number of suspects in the pool.
    pub(super) running: usize,
}

impl Suspects {
    pub(super) fn next(&mut self, keyed_queue: &mut KeyedQueue<InFlight>) -> Option<InFlight> {
        if self.running == 0
            && let Some(message) = self.waiting.pop_front()
        {
            return Some(message);
        }
        loop {
            let message = keyed_queue.pop()?;
            if !message.suspect || self.running == 0 {
                return Some(message);
            }
            self.waiting.push_back(message);
        }
    }
}
