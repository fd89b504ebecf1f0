//! One consuming channel: opens it, acknowledges deliveries, and changes the prefetch.

use super::offsets::Resume;
use crate::{
    acks::AckTracker,
    consumer::{ConsumerConfig, Offset},
    error::Error,
    net::Channel,
    positions,
    reconnect::{BACKOFF, ManagedConnection},
    topology::{self, Topology},
    wire::{
        method::{Outgoing, flag},
        table::{FieldValue, Headers},
    },
};
use gristmill_pool::CancelToken;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

pub(super) struct Session {
    pub(super) channel: Channel,
    pub(super) acks: AckTracker,
    pub(super) cancel: CancelToken,
    pub(super) tag: String,
    /// Time by which finished deliveries are acknowledged.
    pub(super) flush_by: Option<Instant>,
    /// When acknowledgements were last sent to the broker.
    pub(super) acked_at: Option<Instant>,
    /// Maximum number of unacknowledged messages.
    pub(super) prefetch: u16,
    change: Change,
    /// Number of earlier consumers of this channel: part of the consumer tag.
    generation: u32,
    /// Last delivery tag of the previous consumer of this channel.
    last_of_previous: u64,
    /// Other consumers of the queue when this one began.
    pub(super) others: u32,
    /// The position is past the end of the stream, which was deleted and recreated: it is read from its beginning.
    pub(super) was_recreated: bool,
}

/// Progress of a prefetch change. A consumer's prefetch is fixed, so another consumer replaces it on the channel.
/// Messages that the broker is about to deliver to a cancelled consumer return to the queue behind others; so the
/// consumer is cancelled only when it has everything that its prefetch allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Requested(Instant),
    /// The consumer is being cancelled; waits for the broker's confirmation.
    Cancelling(u16),
}

pub(super) struct SessionOptions {
    pub(super) config: Arc<ConsumerConfig>,
    pub(super) broker: ManagedConnection,
    pub(super) topology: Arc<Topology>,
    pub(super) resume: Option<Resume>,
    /// Whether this consumer had a channel before.
    pub(super) is_reopen: bool,
    pub(super) prefetch: u16,
    /// Other consumers of the queue: the smallest count seen when a channel was opened.
    pub(super) others: Option<u32>,
    /// Number of failed attempts to open; with any, it waits first.
    pub(super) failed: u32,
}

/// Maximum wait of an acknowledgement for others to join it.
const ACK_INTERVAL: Duration = Duration::from_millis(5);
/// Acknowledgements that are sent without waiting; fewer with a small prefetch.
const ACK_BATCH: usize = 64;
/// Maximum time that acknowledgements are held back for a prefetch change, and interval between such holds.
const MAX_ACK_HOLD: Duration = Duration::from_millis(20);
const PREFETCH_CHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between queries whether the broker has noticed a lost connection.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Session {
    pub(super) async fn open(options: SessionOptions) -> Result<Self, Error> {
        let SessionOptions { config, broker, topology, mut resume, is_reopen, prefetch, others, failed } = options;
        if failed > 0 {
            tokio::time::sleep(BACKOFF.delay(failed)).await;
        }
        let (connection, _) = broker.connected().await?;
        // Each time, because a queue may have been deleted, and its bindings with it.
        topology.declare(&connection).await?;
        let mut channel = Channel::open(&connection).await?;
        let others = match config.waits_for_old_consumer() {
            true => wait_for_old_consumer(&config, &mut channel, others, connection.heartbeat()).await?,
            false => 0,
        };
        let mut was_recreated = false;
        if let Some(Resume::At(position @ 1..)) = resume.filter(|_| config.is_stream && is_reopen) {
            was_recreated = positions::is_past_end(&config, position, &connection).await?;
            resume = resume.map(|resume| if was_recreated { Resume::At(0) } else { resume });
        }
        channel.call(&Outgoing::Qos { prefetch }).await?;
        let mut arguments = Headers::new();
        if config.is_stream {
            match (resume, &config.offset) {
                (Some(Resume::At(number)), _) | (_, &Offset::Number(number)) => {
                    arguments.set("x-stream-offset", i64::try_from(number).unwrap_or(i64::MAX));
                }
                (Some(Resume::Since(seconds)), Offset::Next | Offset::Last) => {
                    arguments.set("x-stream-offset", FieldValue::Time(seconds));
                }
                (_, Offset::First) => arguments.set("x-stream-offset", "first"),
                (None, Offset::Last) => arguments.set("x-stream-offset", "last"),
                (None, Offset::Next) => arguments.set("x-stream-offset", "next"),
            }
        }
        let tag = format!("{}.{}", config.name, std::process::id());
        let flags = if config.declared.exclusive { flag::CONSUME_EXCLUSIVE } else { 0 };
        channel.call(&Outgoing::Consume { queue: &config.queue, tag: &tag, flags, arguments: &arguments }).await?;
        let (acks, cancel) = (AckTracker::default(), CancelToken::default());
        Ok(Self {
            channel,
            acks,
            cancel,
            tag,
            flush_by: None,
            acked_at: None,
            prefetch,
            change: Change::None,
            generation: 0,
            last_of_previous: 0,
            others,
            was_recreated,
        })
    }

    /// Rejects a message: the broker drops it, or sends it to the queue's dead-letter exchange.
    pub(super) fn reject(&mut self, tag: u64) {
        // A later `multiple` acknowledgement must not cover it.
        self.acks.mark_rejected(tag);
        self.channel.send(&Outgoing::Nack { tag, multiple: false, requeue: false });
    }

    /// Changes the prefetch as soon as the broker may send nothing more.
    pub(super) fn request_prefetch(&mut self, prefetch: u16) {
        let is_new = match self.change {
            Change::None => true,
            Change::Requested(since) => since.elapsed() >= PREFETCH_CHANGE_INTERVAL,
            Change::Cancelling(_) => return,
        };
        if is_new {
            self.change = Change::Requested(Instant::now());
        }
        if self.acks.outstanding_after(self.last_of_previous) >= usize::from(self.prefetch) {
            self.change = Change::Cancelling(prefetch);
            self.channel.send(&Outgoing::Cancel { tag: &self.tag });
        }
    }

    /// Time until which acknowledgements are held back, so that the broker exhausts the prefetch. It is short, because
    /// with few messages the broker does not.
    fn acks_held_until(&self) -> Option<Instant> {
        match self.change {
            Change::Requested(since) => Some(since + MAX_ACK_HOLD).filter(|until| Instant::now() < *until),
            _ => None,
        }
    }

    /// Consumes with the new prefetch after the broker has confirmed the cancellation.
    pub(super) fn consume_with_new_prefetch(&mut self, config: &ConsumerConfig) {
        let Change::Cancelling(prefetch) = self.change else { return };
        tracing::debug!(consumer = config.name, from = self.prefetch, to = prefetch, "prefetch changed");
        (self.change, self.prefetch) = (Change::None, prefetch);
        self.last_of_previous = self.acks.last_tag();
        self.generation += 1;
        self.tag = format!("{}.{}.{}", config.name, std::process::id(), self.generation);
        self.channel.send(&Outgoing::Qos { prefetch });
        let arguments = &Headers::new();
        self.channel.send(&Outgoing::Consume { queue: &config.queue, tag: &self.tag, flags: 0, arguments });
    }

    /// Acknowledges finished deliveries, if there are enough, if it is time, `now`, or `at_end`. Returns their number.
    pub(super) fn flush_acks(&mut self, now: bool, at_end: bool) -> usize {
        let pending = self.acks.pending;
        if pending == 0 {
            return 0;
        }
        if let Some(until) = self.acks_held_until().filter(|_| !at_end) {
            self.flush_by = Some(until);
            return 0;
        }
        let batch = ACK_BATCH.min(usize::from(self.prefetch) / 4).max(1);
        let until = *self.flush_by.get_or_insert_with(|| Instant::now() + ACK_INTERVAL);
        if !now && !at_end && pending < batch && Instant::now() < until {
            return 0;
        }
        self.flush_by = None;
        self.acked_at = Some(Instant::now());
        let channel = &self.channel;
        self.acks.drain(|tag, multiple| channel.send(&Outgoing::Ack { tag, multiple }));
        pending
    }
}

/// Waits until the broker has noticed that the old connection of an ordered consumer is lost: until then later messages
/// would be delivered before those of the old consumer. Returns the number of other consumers.
async fn wait_for_old_consumer(
    config: &ConsumerConfig,
    channel: &mut Channel,
    others: Option<u32>,
    heartbeat: Duration,
) -> Result<u32, Error> {
    // A broker closes a connection after two heartbeats without data.
    let until = Instant::now() + (heartbeat * 4).max(Duration::from_secs(5));
    loop {
        let (_, consumers) = topology::depth(channel, &config.queue).await?;
        let Some(others) = others else { return Ok(consumers) };
        if consumers <= others {
            return Ok(consumers);
        }
        if Instant::now() >= until {
            tracing::warn!(
                consumer = config.name,
                queue = &*config.queue,
                consumers,
                "another consumer receives messages from a queue that this consumer reads in order"
            );
            return Ok(consumers);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
