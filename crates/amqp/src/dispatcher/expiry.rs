//! Messages whose time is over.

use super::{Dispatcher, Flight};
use std::sync::atomic::Ordering::Relaxed;

impl Dispatcher {
    /// Rejects a message whose time is over before its next attempt. The broker then does with it what it does with messages
    /// that expire in the queue: it goes to the queue's dead-letter exchange, or nowhere.
    pub(super) fn expire(&mut self, flight: &Flight) {
        self.release(flight);
        self.starts.end(flight.run);
        if let Some(offset) = flight.offset {
            self.offsets.finish(offset);
        }
        let Some(session) = self.session.as_mut().filter(|_| !flight.leave.is_revoked()) else { return };
        tracing::info!(
            consumer = self.set.name,
            id = flight.delivery.message_id(),
            attempt = flight.delivery.attempt(),
            "a message expires before its next attempt"
        );
        self.counters.expired.fetch_add(1, Relaxed);
        session.reject(flight.tag);
    }
}
