//! Waits until consuming ends: by a signal, a time limit, a drained queue or a failed check. Then shuts down.

use std::convert::Infallible;
use std::time::Duration;

use gristmill_amqp::{Client, ClientStats, Error as AmqpError};
use gristmill_pool::CancelToken;
use tokio::time::{Instant, Interval, MissedTickBehavior, sleep_until};

use super::drain;
use super::exec::RunningCommands;
use super::returning_counter::ReturningCounter;
use crate::commands::amqp_common;
use crate::error::Error;
use crate::output::note;
use crate::supervisor::{FORCED_SHUTDOWN_TIMEOUT, Supervisor};

/// Interval of the checks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn poll_ticks() -> Interval {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

pub(super) struct Consuming<'a> {
    pub(super) supervisor: &'a Supervisor,
    /// Cancelled when running actions must end at once: by the second signal, or here.
    pub(super) abort: CancelToken,
    pub(super) running: RunningCommands,
    pub(super) quiet: bool,
    pub(super) shutdown: Duration,
    pub(super) limit: Option<Duration>,
    /// `--drain` with its timeout: how long nothing may change while messages are left.
    pub(super) drain: Option<(Duration, ReturningCounter)>,
    /// A queue rejects messages while it is full, so the broker may be unable to return messages to it.
    pub(super) rejects_when_full: bool,
    /// Messages that are left, and the reason, if consuming ended because of that.
    pub(super) unfinished: Option<String>,
    /// Consuming stops when one of these fails.
    pub(super) checks: Vec<Check>,
    /// Error of the check that failed.
    pub(super) failure: Option<Error>,
}

/// Fails if consuming cannot continue: a database was deleted, moved or replaced, or a writer has panicked.
pub(super) type Check = Box<dyn Fn() -> Result<(), Error> + Send>;

impl Consuming<'_> {
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
        let stopped = match self.until_end(&client, drained).await {
            Ok(()) => Ok(self.stop(client).await),
            Err(error) => {
                drop(client);
                Err(error)
            }
        };
        self.end_commands().await;
        stopped
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
                () = self.supervisor.stop.cancelled() => return Ok(()),
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
            self.abort.cancel();
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

    /// Ends the commands that still run after the client has stopped. The end of the runtime drops other actions, but
    /// not a batch, which runs on a thread.
    async fn end_commands(&self) {
        self.abort.cancel();
        drop(tokio::time::timeout(FORCED_SHUTDOWN_TIMEOUT, self.running.ended()).await);
    }

    async fn stop(&self, client: Client) -> ClientStats {
        self.supervisor.note_stopping(self.shutdown, "actions");
        let stats = client.stats_handle();
        let forced = async {
            self.supervisor.force.cancelled().await;
            self.supervisor.note_forced("actions are cancelled and their messages");
            tokio::time::sleep(FORCED_SHUTDOWN_TIMEOUT).await;
        };
        // The last part of the timeout is for commands to end, so that none runs when its messages are redelivered.
        let terminated = async {
            let grace = (self.shutdown / 10).min(FORCED_SHUTDOWN_TIMEOUT);
            tokio::time::sleep(self.shutdown.saturating_sub(grace)).await;
            self.abort.cancel();
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            stats = client.shutdown(self.shutdown) => stats,
            never = terminated => match never {},
            // The broker redelivers unacknowledged messages after the connection is closed.
            () = forced => stats.stats(),
        }
    }
}
