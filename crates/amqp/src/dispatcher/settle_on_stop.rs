//! Runs that end while the consumer stops, and whose channel is lost: by the broker's `consumer_timeout`, or with the connection.
//!
//! The broker delivers their messages again. Without a channel nothing would acknowledge them, and the next consumer would handle
//! them again. So when everything has ended another channel is opened for a moment. It is not opened before: the messages that
//! the broker sends ahead would be held, by a consumer that handles none of them, for as long as a handler runs.

use super::{
    Dispatcher, InFlight,
    requeue_on_pause::ACK_SETTLE_TIME,
    run_loop::{CLOSE_TIMEOUT, next_event},
};
use std::time::Duration;
use tokio::time::Instant;

/// How long messages are waited for. Another consumer may have taken them.
const REDELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

impl Dispatcher {
    /// Settles what is delivered while the consumer stops, if it is of a run that was here. Everything else goes back to the
    /// queue.
    pub(super) fn settle_if_known_run(&mut self, message: InFlight) {
        let is_redelivered = message.delivery.is_redelivered() || message.offset.is_some();
        if is_redelivered && !self.orphans.is_empty() {
            drop(self.adopt(message));
        }
    }

    /// Waits for the messages of runs that have ended without a channel, and settles them.
    pub(super) async fn settle_orphans(&mut self, until: Instant) {
        // The position in a stream is kept without acknowledgements.
        let now = Instant::now();
        if self.config.is_stream || !self.orphans.has_outcomes(now) {
            return;
        }
        let until = (now + REDELIVERY_TIMEOUT).min(until.max(now + CLOSE_TIMEOUT));
        self.flush_acks(true);
        let is_settling = self.is_settling();
        // Its consumer is cancelled.
        if let Some(session) = self.session.take() {
            if is_settling {
                tokio::time::sleep(ACK_SETTLE_TIME).await;
            }
            session.cancel.cancel();
            session.channel.close(CLOSE_TIMEOUT).await;
        }
        let _ = tokio::time::timeout_at(until, self.settle_through_another_channel()).await;
    }

    async fn settle_through_another_channel(&mut self) {
        match self.open_session(0).await {
            Ok((session, _)) => self.session = Some(session),
            Err(error) => {
                tracing::debug!(consumer = self.config.name, %error, "messages that were handled cannot be acknowledged");
                return;
            }
        }
        while self.orphans.has_outcomes(Instant::now()) || !self.follow_ups.has_no_moves() {
            tokio::select! {
                end = self.follow_ups.next() => self.on_follow_up_end(end),
                event = next_event(&mut self.session) => {
                    if let Err(error) = event.and_then(|event| self.on_events(event)) {
                        return self.on_channel_lost(&error);
                    }
                }
            }
            self.flush_acks(true);
        }
    }
}
