//! One channel's worth of consuming: how it is opened, and what it has told the broker.

use super::offsets::Resume;
use crate::{
    consumer::{Offset, Set},
    crew::Leave,
    error::Error,
    ledger::Ledger,
    link::{Link, TRY_AGAIN},
    net::Channel,
    positions,
    topology::{self, Topology},
    wire::{
        method::{Outgoing, flag},
        table::{FieldValue, Headers},
    },
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

pub(super) struct Session {
    pub(super) channel: Channel,
    pub(super) ledger: Ledger,
    pub(super) leave: Leave,
    pub(super) tag: String,
    /// By when what is done is to be told.
    pub(super) tell_by: Option<Instant>,
    /// When acknowledgements were last sent to the broker.
    pub(super) told_at: Option<Instant>,
    /// How many messages the broker sends ahead.
    pub(super) prefetch: u16,
    change: Change,
    /// How many consumers this channel had before: part of their tags.
    generation: u32,
    /// The last delivery of the consumers before.
    before: u64,
    /// Consumers of the queue beside this one, when it began.
    pub(super) others: u32,
    /// The stream ends before the position that was to be resumed: it was deleted and made anew, and is read from its beginning.
    pub(super) is_made_anew: bool,
}

/// How far a change of the prefetch is. The prefetch of a consumer cannot be changed: another consumer takes its place. What
/// the broker is about to deliver to a consumer that is cancelled it puts back into the queue, behind others; so the consumer
/// is cancelled when it has all that the broker may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// Wished for since then.
    Wished(Instant),
    /// The consumer is cancelled, and the broker has not confirmed that.
    Cancelling(u16),
}

/// What a session is opened with.
pub(super) struct Opening {
    pub(super) set: Arc<Set>,
    pub(super) link: Link,
    pub(super) topology: Arc<Topology>,
    pub(super) resume: Option<Resume>,
    /// This consumer had a channel before.
    pub(super) is_again: bool,
    pub(super) prefetch: u16,
    /// Consumers of the queue beside this one: the fewest of all times that it began.
    pub(super) others: Option<u32>,
    /// How often opening one has failed: then not at once.
    pub(super) failed: u32,
}

/// So long may an acknowledgement wait for company.
const TELL_WITHIN: Duration = Duration::from_millis(5);
/// So many are told of at once, unless the broker sends few ahead: then it must know sooner.
const TELL_TOGETHER: usize = 64;
/// Acknowledgements are held back for at most this long when the prefetch is to change, and again after that.
const HOLD_BACK: Duration = Duration::from_millis(20);
const WISH_AGAIN: Duration = Duration::from_secs(1);
/// How often the broker is asked whether it has noticed the loss of a connection.
const ASK_AGAIN: Duration = Duration::from_millis(200);

impl Session {
    /// Opens a channel and consumes through it.
    pub(super) async fn open(opening: Opening) -> Result<Self, Error> {
        let Opening { set, link, topology, mut resume, is_again, prefetch, others, failed } = opening;
        if failed > 0 {
            tokio::time::sleep(TRY_AGAIN.delay(failed)).await;
        }
        let (connection, _) = link.up().await?;
        // Each time: a queue may have been deleted underneath, and its bindings with it.
        topology.declare(&connection).await?;
        let mut channel = Channel::open(&connection).await?;
        let others = match set.waits_for_old_consumer() {
            true => wait_for_old_consumer(&set, &mut channel, others, connection.heartbeat()).await?,
            false => 0,
        };
        let mut is_made_anew = false;
        if let Some(Resume::At(position @ 1..)) = resume.filter(|_| set.is_stream && is_again) {
            is_made_anew = positions::is_behind_end(&set, position, &connection).await?;
            resume = resume.map(|resume| if is_made_anew { Resume::At(0) } else { resume });
        }
        channel.call(&Outgoing::Qos { prefetch }).await?;
        let mut arguments = Headers::new();
        if set.is_stream {
            match (resume, &set.offset) {
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
        let tag = format!("{}.{}", set.name, std::process::id());
        let flags = if set.exclusive { flag::CONSUME_EXCLUSIVE } else { 0 };
        channel
            .call(&Outgoing::Consume { queue: &set.queue, tag: &tag, flags, arguments: &arguments })
            .await?;
        let (ledger, leave) = (Ledger::default(), Leave::default());
        Ok(Self {
            channel,
            ledger,
            leave,
            tag,
            tell_by: None,
            told_at: None,
            prefetch,
            change: Change::None,
            generation: 0,
            before: 0,
            others,
            is_made_anew,
        })
    }

    /// Tells the broker that a message is to be thrown away, or given to the queue's dead-letter exchange.
    pub(super) fn reject(&mut self, tag: u64) {
        // Acknowledgements of several at once must not come behind it.
        self.ledger.rejected(tag);
        self.channel.send(&Outgoing::Nack { tag, multiple: false, requeue: false });
    }

    /// Has the prefetch changed as soon as the broker may send nothing more.
    pub(super) fn wish(&mut self, prefetch: u16) {
        let is_new = match self.change {
            Change::None => true,
            Change::Wished(since) => since.elapsed() >= WISH_AGAIN,
            Change::Cancelling(_) => return,
        };
        if is_new {
            self.change = Change::Wished(Instant::now());
        }
        if self.ledger.outstanding_after(self.before) >= usize::from(self.prefetch) {
            self.change = Change::Cancelling(prefetch);
            self.channel.send(&Outgoing::Cancel { tag: &self.tag });
        }
    }

    /// Until when acknowledgements wait, so that the broker comes to the end of what it may send. Not for long: where there are
    /// few messages it does not.
    fn holds_back_until(&self) -> Option<Instant> {
        match self.change {
            Change::Wished(since) => Some(since + HOLD_BACK).filter(|until| Instant::now() < *until),
            _ => None,
        }
    }

    /// The broker has confirmed that the consumer is cancelled: consumes with the new prefetch.
    pub(super) fn cancelled(&mut self, set: &Set) {
        let Change::Cancelling(prefetch) = self.change else { return };
        tracing::debug!(consumer = set.name, from = self.prefetch, to = prefetch, "the prefetch is changed");
        (self.change, self.prefetch) = (Change::None, prefetch);
        self.before = self.ledger.last();
        self.generation += 1;
        self.tag = format!("{}.{}.{}", set.name, std::process::id(), self.generation);
        self.channel.send(&Outgoing::Qos { prefetch });
        let arguments = &Headers::new();
        self.channel.send(&Outgoing::Consume { queue: &set.queue, tag: &self.tag, flags: 0, arguments });
    }

    /// Tells the broker what is done, if it is enough, or time, or `now`, or the end. How many that were.
    pub(super) fn tell(&mut self, now: bool, at_end: bool) -> usize {
        let untold = self.ledger.untold();
        if untold == 0 {
            return 0;
        }
        if let Some(until) = self.holds_back_until().filter(|_| !at_end) {
            self.tell_by = Some(until);
            return 0;
        }
        let enough = TELL_TOGETHER.min(usize::from(self.prefetch) / 4).max(1);
        let until = *self.tell_by.get_or_insert_with(|| Instant::now() + TELL_WITHIN);
        if !now && !at_end && untold < enough && Instant::now() < until {
            return 0;
        }
        self.tell_by = None;
        self.told_at = Some(Instant::now());
        let channel = &self.channel;
        self.ledger.tell(|ack| channel.send(&Outgoing::Ack { tag: ack.tag, multiple: ack.multiple }));
        untold
    }
}

/// Waits, before an ordered consumer begins again, until the broker has noticed that its old connection is lost. Until then
/// later messages would be delivered before those that the old consumer has. How many other consumers there are.
async fn wait_for_old_consumer(
    set: &Set,
    channel: &mut Channel,
    others: Option<u32>,
    heartbeat: Duration,
) -> Result<u32, Error> {
    // A broker closes a connection that has been silent for two heartbeats.
    let until = Instant::now() + (heartbeat * 4).max(Duration::from_secs(5));
    loop {
        let (_, consumers) = topology::depth(channel, &set.queue).await?;
        let Some(others) = others else { return Ok(consumers) };
        if consumers <= others {
            return Ok(consumers);
        }
        if Instant::now() >= until {
            tracing::warn!(
                consumer = set.name,
                queue = &*set.queue,
                consumers,
                "another consumer takes messages from a queue whose order is to be kept"
            );
            return Ok(consumers);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}
