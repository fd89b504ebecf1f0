//! Messages that may have ended their process run one at a time, so that the next end names the guilty one.
//!
//! Every other message runs beside them. One that is killed along twice becomes a suspect itself, and then runs when no other
//! suspect does.

use super::Flight;
use crate::lanes::Lanes;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Suspects {
    waiting: VecDeque<Flight>,
    running: usize,
}

impl Suspects {
    /// The next flight to start.
    pub(super) fn next(&mut self, lanes: &mut Lanes<Flight>) -> Option<Flight> {
        if self.running == 0
            && let Some(flight) = self.waiting.pop_front()
        {
            return Some(flight);
        }
        loop {
            let flight = lanes.next()?;
            if !flight.suspect || self.running == 0 {
                return Some(flight);
            }
            self.waiting.push_back(flight);
        }
    }

    pub(super) fn started(&mut self, flight: &Flight) {
        self.running += usize::from(flight.suspect);
    }

    pub(super) fn ended(&mut self, flight: &Flight) {
        self.running -= usize::from(flight.suspect);
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Gives back all that wait.
    pub(super) fn clear(&mut self) -> Vec<Flight> {
        self.waiting.drain(..).collect()
    }
}
