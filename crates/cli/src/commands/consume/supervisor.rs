//! Consumers at work, and those who wait for them: until they are told to stop, the time is over or nothing is left.
//!
//! Owns when it ends and how it is hurried.

use std::time::Duration;

use gristmill_amqp::stats::StatsHandle;
use gristmill_amqp::{Client, ClientStats, Error as Fault};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, sleep_until};

use super::drain;
use super::returning::Returning;
use crate::commands::amqp_common;
use crate::error::Error;
use crate::output::note;
use crate::settings::value::show_duration;

/// How often it is looked at.
const GLANCE: Duration = Duration::from_millis(100);

/// How long there is after the second signal.
const HURRY: Duration = Duration::from_secs(1);

/// When it is looked at.
pub(super) fn ticks() -> Interval {
    let mut ticks = tokio::time::interval(GLANCE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// What is waited with.
pub(super) struct Supervisor {
    pub(super) watch: StatsHandle,
    pub(super) told: UnboundedReceiver<()>,
    /// Set when not even what runs may go on.
    pub(super) halt: watch::Sender<bool>,
    pub(super) quiet: bool,
    pub(super) shutdown: Duration,
    pub(super) limit: Option<Duration>,
    /// Ends when nothing is left, or nothing has changed for this long while messages are left.
    pub(super) drain: Option<(Duration, Returning)>,
    /// A queue may be full, so that the broker cannot return messages to it.
    pub(super) is_bounded: bool,
    /// Which messages are left, and why, when it ended because of that.
    pub(super) unfinished: Option<String>,
    /// How often it was told to stop.
    pub(super) times_told: u32,
    /// What has to be so for consuming to continue.
    pub(super) checks: Vec<Check>,
    /// Why it ended, if one of them failed.
    pub(super) failure: Option<Error>,
}

/// Fails when consuming cannot continue: a database was deleted, moved or replaced, or a thread that handles messages has
/// ended.
pub(super) type Check = Box<dyn Fn() -> Result<(), Error> + Send>;

impl Supervisor {
    /// Waits for the end, and brings it about in order.
    pub(super) async fn until_stopped(&mut self, client: Client) -> Result<ClientStats, Fault> {
        let drain = self.drain.take();
        // It waits for answers of the broker, and must not keep signals and the time limit waiting with it.
        let drained = async {
            match drain {
                Some((timeout, returning)) => drain::until_drained(&client, timeout, returning).await,
                None => std::future::pending().await,
            }
        };
        self.until_end(&client, drained).await?;
        Ok(self.stop(client).await)
    }

    /// Waits for what ends consuming.
    async fn until_end(
        &mut self,
        client: &Client,
        drained: impl Future<Output = Result<drain::End, Fault>>,
    ) -> Result<(), Fault> {
        let until = self.limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut ticks = ticks();
        let mut drained = std::pin::pin!(drained);
        loop {
            tokio::select! {
                Some(()) = self.told.recv() => {
                    self.times_told += 1;
                    return Ok(());
                }
                () = async { sleep_until(until.unwrap_or_else(Instant::now)).await }, if until.is_some() => return Ok(()),
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

    /// Whether consuming cannot continue. What runs then goes back to the queue.
    fn has_failed(&mut self, client: &Client) -> bool {
        let failure = self.checks.iter().find_map(|check| check().err());
        self.failure = failure.or_else(|| client.check_running().err().map(amqp_common::failed));
        if self.failure.is_some() {
            let _ = self.halt.send(true);
            self.shutdown = HURRY;
        }
        self.failure.is_some()
    }

    /// Nothing is left as far as is known. Where a queue may have been full, the broker may still have messages of it.
    fn report_uncounted(&mut self, uncounted: &str) {
        match self.is_bounded {
            true => {
                self.unfinished = Some(format!(
                    "nothing is left that is counted, but {uncounted}, and a queue with overflow=reject-publish takes none while \
                     it is full"
                ));
            }
            false if !self.quiet => note(&format!("warning: {uncounted}; nothing else is left")),
            false => {}
        }
    }

    async fn stop(&mut self, client: Client) -> ClientStats {
        let limit = show_duration(self.shutdown);
        if self.times_told > 0 && !self.quiet {
            note(&format!("stopping: what runs has {limit}; once more ends it within a second"));
        }
        let mut shutdown = std::pin::pin!(client.shutdown(self.shutdown));
        let mut hurry = None;
        loop {
            tokio::select! {
                stats = &mut shutdown => return stats,
                Some(()) = self.told.recv() => {
                    self.times_told += 1;
                    let _ = self.halt.send(true);
                    hurry.get_or_insert(Instant::now() + HURRY);
                    if !self.quiet {
                        note("stopping now: what runs is ended, and its messages go back to the queue; once more ends it at once");
                    }
                }
                // The broker sees the connection go, and delivers again what was not acknowledged.
                () = async { sleep_until(hurry.unwrap_or_else(Instant::now)).await }, if hurry.is_some() => return self.watch.stats(),
            }
        }
    }
}
