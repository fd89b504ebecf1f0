//! Runs messages that may have crashed their process one at a time, so that the next crash identifies the culprit.
//!
//! Other messages run in parallel. One that is running in two crashes becomes a suspect itself.

use super::InFlight;
use crate::keyed_queue::KeyedQueue;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Suspects {
    waiting: VecDeque<InFlight>,
    running: usize,
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

    pub(super) fn started(&mut self, message: &InFlight) {
        self.running += usize::from(message.suspect);
    }

    pub(super) fn ended(&mut self, message: &InFlight) {
        self.running -= usize::from(message.suspect);
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn clear(&mut self) -> Vec<InFlight> {
        self.waiting.drain(..).collect()
    }
}
