//! Acknowledges runs that end while the consumer stops and whose channel the broker closed or the network lost.
//!
//! The broker redelivers their messages. Without a channel they would not be acknowledged, and the next consumer would
//! handle them again, so another channel is opened briefly after everything has ended. It is not opened earlier,
//! because the messages that the broker prefetches to it would be held, unhandled, for as long as a handler runs.

use super::{
    Dispatcher, InFlight,
    requeue_on_pause::ACK_SETTLE_TIME,
    run_loop::{CLOSE_TIMEOUT, next_event},
};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum wait for redeliveries. Another consumer may receive them.
const REDELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

impl Dispatcher {
    /// Settles a delivery that arrives while the consumer stops, if it belongs to a known run. Others are requeued.
    pub(super) fn settle_if_known_run(&mut self, message: InFlight) {
        let is_redelivered = message.delivery.is_redelivered() || message.offset.is_some();
        if is_redelivered && !self.orphans.is_empty() {
            drop(self.adopt(message));
        }
    }

    /// Waits for redeliveries of runs that ended without a channel, and settles them.
    pub(super) async fn settle_orphans(&mut self, until: Instant) {
        // A stream needs no acknowledgements: its position is stored.
        let now = Instant::now();
        if self.config.is_stream || !self.orphans.has_outcomes(now) {
            return;
        }
        let until = (now + REDELIVERY_TIMEOUT).min(until.max(now + CLOSE_TIMEOUT));
        self.flush_acks(true);
        let is_settling = self.may_have_unprocessed_acks();
        // The consumer of the old channel is cancelled.
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
                tracing::debug!(consumer = self.config.name, %error, "cannot open a channel to acknowledge handled messages");
                return;
            }
        }
        while self.orphans.has_outcomes(Instant::now()) || !self.follow_ups.moves.is_empty() {
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
