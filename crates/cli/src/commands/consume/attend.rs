//! Consumers at work, and those who wait for them: until they are told to stop, the time is over or nothing is left.
//!
//! Owns when it ends and how it is hurried.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use gristmill_amqp::stats::Watch;
use gristmill_amqp::{Client, Error as Fault, Stats, companions};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use crate::output::aside;
use crate::settings::value::show_duration;

/// How often it is looked at.
const GLANCE: Duration = Duration::from_millis(100);

/// How long there is after the second signal.
const HURRY: Duration = Duration::from_secs(1);

/// How long nothing must happen for there to be nothing left; and while messages that we put off have not come again, for
/// they are in no queue on their way back.
const STILL: Duration = Duration::from_millis(500);
const STILL_AFTER_RETRIES: Duration = Duration::from_secs(10);

/// What is waited with.
pub(super) struct Attended {
    pub(super) watch: Watch,
    pub(super) told: UnboundedReceiver<()>,
    /// Set when not even what runs may go on.
    pub(super) halt: watch::Sender<bool>,
    pub(super) quiet: bool,
    pub(super) shutdown: Duration,
    pub(super) limit: Option<Duration>,
    pub(super) drain: bool,
    /// How many messages came to be tried again.
    pub(super) seen_again: Arc<AtomicU64>,
    /// How often it was told to stop.
    pub(super) times_told: u32,
}

impl Attended {
    /// Waits for the end, and brings it about in order.
    pub(super) async fn until_stopped(&mut self, client: Client) -> Result<Stats, Fault> {
        let until = self.limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut ticks = tokio::time::interval(GLANCE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut drained = Drained::default();
        loop {
            tokio::select! {
                Some(()) = self.told.recv() => {
                    self.times_told += 1;
                    break;
                }
                () = async { sleep_until(until.unwrap_or_else(Instant::now)).await }, if until.is_some() => break,
                _ = ticks.tick() => {
                    let stats = client.stats();
                    if self.drain && drained.is(&client, &stats, self.seen_again.load(Relaxed)).await? {
                        break;
                    }
                }
            }
        }
        Ok(self.stop(client).await)
    }

    async fn stop(&mut self, client: Client) -> Stats {
        let limit = show_duration(self.shutdown);
        if self.times_told > 0 && !self.quiet {
            aside(&format!("stopping: what runs has {limit}; once more ends it within a second"));
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
                        aside("stopping now: what runs is ended, and its messages go back to the queue; once more ends it at once");
                    }
                }
                // The broker sees the connection go, and delivers again what was not acknowledged.
                () = async { sleep_until(hurry.unwrap_or_else(Instant::now)).await }, if hurry.is_some() => return self.watch.stats(),
            }
        }
    }
}

/// Whether there is nothing left. What is between the broker and us is seen by neither: so nothing must have happened for
/// a while.
#[derive(Default)]
struct Drained {
    /// Since when there is nothing, and how many had been received by then.
    still: Option<(Instant, u64)>,
    /// Queues where messages wait for another attempt, as they were when so many had been retried. The broker logs every
    /// question about a queue that is not there; so it is asked about all of them only when there may be new ones.
    rooms: Vec<String>,
    rooms_at: Option<u64>,
}

impl Drained {
    async fn is(&mut self, client: &Client, stats: &Stats, seen_again: u64) -> Result<bool, Fault> {
        let received: u64 = stats.consumers.iter().map(|one| one.received + one.acknowledged).sum();
        let before = self.still.take();
        let idle = |stats: &Stats| {
            stats.consumers.iter().all(|one| one.consuming && one.in_flight + one.waiting == 0)
        };
        if !idle(stats) || !self.is_empty(client, stats).await? || !idle(&client.stats()) {
            return Ok(false);
        }
        let (since, _) = *self
            .still
            .insert(before.filter(|(_, count)| *count == received).unwrap_or((Instant::now(), received)));
        let retried: u64 = stats.consumers.iter().map(|one| one.retried).sum();
        // Somebody else may have taken what we put off; that is not waited for without end.
        let enough = if retried > seen_again { STILL_AFTER_RETRIES } else { STILL };
        Ok(since.elapsed() >= enough)
    }

    /// Whether nothing waits in the queues, nor for another attempt.
    async fn is_empty(&mut self, client: &Client, stats: &Stats) -> Result<bool, Fault> {
        for one in &stats.consumers {
            match client.depth(&one.queue).await {
                Ok((0, _)) => {}
                Ok(_) => return Ok(false),
                Err(error) if error.is_passing() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let retried = Some(stats.consumers.iter().map(|one| one.retried).sum());
        if self.rooms_at != retried {
            self.rooms.clear();
            for room in stats.consumers.iter().flat_map(|one| companions(&one.queue).skip(1)) {
                match client.depth(&room).await {
                    Ok(_) => self.rooms.push(room),
                    Err(error) if error.is_passing() => return Ok(false),
                    Err(_) => {}
                }
            }
            self.rooms_at = retried;
        }
        for room in &self.rooms {
            // One that is gone meanwhile is as good as empty.
            if let Ok((1.., _)) = client.depth(room).await {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
