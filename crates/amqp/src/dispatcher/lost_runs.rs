//! Runs that end while the consumer stops, and whose channel is lost: by the broker's `consumer_timeout`, or with the connection.
//!
//! The broker delivers their messages again. Without a channel nothing would acknowledge them, and the next consumer would handle
//! them again. So when everything has ended another channel is opened for a moment. It is not opened before: the messages that
//! the broker sends ahead would be held, by a consumer that handles none of them, for as long as a handler runs.

use super::{
    Dispatcher, Flight,
    course::{GOOD_BYE, next_event},
    give_back::SETTLE,
};
use std::time::Duration;
use tokio::time::Instant;

/// How long messages are waited for. Another consumer may have taken them.
const WITHIN: Duration = Duration::from_secs(5);

impl Dispatcher {
    /// Settles what is delivered while the consumer stops, if it is of a run that was here. Everything else goes back to the
    /// queue.
    pub(super) fn settle_known(&mut self, flight: Flight) {
        let is_redelivered = flight.delivery.is_redelivered() || flight.offset.is_some();
        if is_redelivered && !self.orphans.is_empty() {
            drop(self.adopt(flight));
        }
    }

    /// Waits for the messages of runs that have ended without a channel, and settles them.
    pub(super) async fn settle_lost(&mut self, until: Instant) {
        // The position in a stream is kept without acknowledgements.
        let now = Instant::now();
        if self.set.is_stream || !self.orphans.has_ended(now) {
            return;
        }
        let until = (now + WITHIN).min(until.max(now + GOOD_BYE));
        self.tell(true);
        let is_settling = self.is_settling();
        // Its consumer is cancelled.
        if let Some(session) = self.session.take() {
            if is_settling {
                tokio::time::sleep(SETTLE).await;
            }
            session.leave.revoke();
            session.channel.close(GOOD_BYE).await;
        }
        let _ = tokio::time::timeout_at(until, self.settle_through_another_channel()).await;
    }

    async fn settle_through_another_channel(&mut self) {
        match self.opening(0).await {
            Ok((session, _)) => self.session = Some(session),
            Err(error) => {
                tracing::debug!(consumer = self.set.name, %error, "messages that were handled cannot be acknowledged");
                return;
            }
        }
        while self.orphans.has_ended(Instant::now()) || !self.steps.has_no_moves() {
            tokio::select! {
                end = self.steps.next() => self.stepped(end),
                event = next_event(&mut self.session) => {
                    if let Err(error) = event.and_then(|event| self.hear_all(event)) {
                        return self.lose(&error);
                    }
                }
            }
            self.tell(true);
        }
    }
}
