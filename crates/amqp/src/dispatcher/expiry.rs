//! Messages whose time is over.

use super::{Dispatcher, InFlight};
use std::sync::atomic::Ordering::Relaxed;

impl Dispatcher {
    /// Rejects a message whose time is over before its next attempt. The broker then does with it what it does with messages
    /// that expire in the queue: it goes to the queue's dead-letter exchange, or nowhere.
    pub(super) fn expire(&mut self, message: &InFlight) {
        self.release(message);
        self.starts.finish(message.run);
        if let Some(offset) = message.offset {
            self.offsets.finish(offset);
        }
        let Some(session) = self.session.as_mut().filter(|_| !message.cancel.is_cancelled()) else { return };
        tracing::info!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            attempt = message.delivery.attempt(),
            "a message expires before its next attempt"
        );
        self.counters.expired.fetch_add(1, Relaxed);
        session.reject(message.tag);
    }
}
