//! Rejects messages that expire before their next attempt.

use super::{Dispatcher, InFlight};
use std::sync::atomic::Ordering::Relaxed;

impl Dispatcher {
    /// Rejects a message that expires before its next attempt. The broker treats it like a message that expires in the
    /// queue: it goes to the queue's dead-letter exchange, or is dropped.
    pub(super) fn expire(&mut self, message: &InFlight) {
        let Some(session) = self.end(message) else { return };
        session.reject(message.tag);
        self.counters.expired.fetch_add(1, Relaxed);
        tracing::info!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            attempt = message.delivery.attempt(),
            "a message expires before its next attempt"
        );
    }
}
