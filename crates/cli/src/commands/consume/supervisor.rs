//! Waits until consuming ends: by a signal, a time limit, a drained queue or a failed check. Then shuts down.

use std::time::Duration;

use gristmill_amqp::stats::StatsHandle;
use gristmill_amqp::{Client, ClientStats, Error as AmqpError};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, sleep_until};

use super::drain;
use super::returning_counter::ReturningCounter;
use crate::commands::amqp_common;
use crate::error::Error;
use crate::output::note;
use crate::units::show_duration;

/// Interval of the checks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time until exit after the second signal, or after a failed check.
const FORCED_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn poll_ticks() -> Interval {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

pub(super) struct Supervisor {
    pub(super) stats: StatsHandle,
    pub(super) signals: UnboundedReceiver<()>,
    /// Set to true when running actions must end at once.
    pub(super) cancel: watch::Sender<bool>,
    pub(super) quiet: bool,
    pub(super) shutdown: Duration,
    pub(super) limit: Option<Duration>,
    /// `--drain` with its timeout: how long nothing may change while messages are left.
    pub(super) drain: Option<(Duration, ReturningCounter)>,
    /// A queue rejects messages while it is full, so the broker may be unable to return messages to it.
    pub(super) rejects_when_full: bool,
    /// Messages that are left, and the reason, if consuming ended because of that.
    pub(super) unfinished: Option<String>,
    pub(super) signal_count: u32,
    /// Consuming stops when one of these fails.
    pub(super) checks: Vec<Check>,
    /// Error of the check that failed.
    pub(super) failure: Option<Error>,
}

/// Fails if consuming cannot continue: a database was deleted, moved or replaced, or a writer thread has ended.
pub(super) type Check = Box<dyn Fn() -> Result<(), Error> + Send>;

impl Supervisor {
    /// Waits until consuming ends, then shuts the client down.
    pub(super) async fn until_stopped(&mut self, client: Client) -> Result<ClientStats, AmqpError> {
        let drain = self.drain.take();
        // Runs beside the loop, so that waiting for the broker does not delay signals and the time limit.
        let drained = async {
            match drain {
                Some((timeout, returning)) => drain::until_drained(&client, timeout, returning).await,
                None => std::future::pending().await,
            }
        };
        self.until_end(&client, drained).await?;
        Ok(self.stop(client).await)
    }

    /// Waits for the first event that ends consuming.
    async fn until_end(
        &mut self,
        client: &Client,
        drained: impl Future<Output = Result<drain::DrainOutcome, AmqpError>>,
    ) -> Result<(), AmqpError> {
        let deadline = self.limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut ticks = poll_ticks();
        let mut drained = std::pin::pin!(drained);
        loop {
            tokio::select! {
                Some(()) = self.signals.recv() => {
                    self.signal_count += 1;
                    return Ok(());
                }
                () = async { sleep_until(deadline.unwrap_or_else(Instant::now)).await }, if deadline.is_some() => return Ok(()),
                end = &mut drained => {
                    let end = end?;
                    if self.has_failed(client) {
                        return Ok(());
                    }
                    self.unfinished = end.unfinished;
                    if let (None, Some(uncounted)) = (&self.unfinished, end.uncounted) {
                        self.report_uncounted(&uncounted);
                    }
                    return Ok(());
                }
                _ = ticks.tick() => {
                    if self.has_failed(client) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Whether a check has failed. If so, cancels running actions; their messages return to the queue.
    fn has_failed(&mut self, client: &Client) -> bool {
        let failure = self.checks.iter().find_map(|check| check().err());
        self.failure = failure.or_else(|| client.check_running().err().map(amqp_common::failed));
        if self.failure.is_some() {
            let _ = self.cancel.send(true);
            self.shutdown = FORCED_SHUTDOWN_TIMEOUT;
        }
        self.failure.is_some()
    }

    /// Reports that returning messages were not counted. If the queue may have been full, the drain has failed.
    fn report_uncounted(&mut self, uncounted: &str) {
        match self.rejects_when_full {
            true => {
                self.unfinished = Some(format!(
                    "all counted messages are handled, but {uncounted}, and a queue with overflow=reject-publish accepts none \
                     while it is full"
                ));
            }
            false if !self.quiet => note(&format!("warning: {uncounted}; no other message is left")),
            false => {}
        }
    }

    async fn stop(&mut self, client: Client) -> ClientStats {
        let limit = show_duration(self.shutdown);
        if self.signal_count > 0 && !self.quiet {
            note(&format!("stopping: waiting up to {limit} for running actions; interrupt again to stop within 1 s"));
        }
        let mut shutdown = std::pin::pin!(client.shutdown(self.shutdown));
        let mut forced_deadline = None;
        loop {
            tokio::select! {
                stats = &mut shutdown => return stats,
                Some(()) = self.signals.recv() => {
                    self.signal_count += 1;
                    let _ = self.cancel.send(true);
                    forced_deadline.get_or_insert(Instant::now() + FORCED_SHUTDOWN_TIMEOUT);
                    if !self.quiet {
                        note(
                            "stopping now: running actions are cancelled and their messages return to the queue; \
                             interrupt again to exit at once",
                        );
                    }
                }
                // The broker redelivers unacknowledged messages after the connection is closed.
                () = async { sleep_until(forced_deadline.unwrap_or_else(Instant::now)).await }, if forced_deadline.is_some() => return self.stats.stats(),
            }
        }
    }
}
