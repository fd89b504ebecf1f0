//! One channel's worth of consuming: how it is opened, and what it has told the broker.

use super::Resume;
use crate::{
    consumer::{Offset, Set},
    crew::Leave,
    error::Error,
    ledger::Ledger,
    link::{Link, TRY_AGAIN},
    net::Channel,
    topology::Topology,
    wire::{
        method::{Outgoing, flag},
        table::{Headers, Value},
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
}

/// So long may an acknowledgement wait for company.
const TELL_WITHIN: Duration = Duration::from_millis(5);
/// So many are told of at once, unless the broker sends few ahead: then it must know sooner.
const TELL_TOGETHER: usize = 64;

impl Session {
    /// Opens a channel and consumes through it; after `failed` failures, not at once.
    pub(super) async fn open(
        set: Arc<Set>,
        link: Link,
        topology: Arc<Topology>,
        resume: Option<Resume>,
        failed: u32,
    ) -> Result<Self, Error> {
        if failed > 0 {
            tokio::time::sleep(TRY_AGAIN.delay(failed)).await;
        }
        let (connection, _) = link.up().await?;
        // Each time: a queue may have been deleted underneath, and its bindings with it.
        topology.declare(&connection).await?;
        let mut channel = Channel::open(&connection).await?;
        channel.call(&Outgoing::Qos { prefetch: set.sizing.prefetch }).await?;
        let mut arguments = Headers::new();
        if set.is_stream {
            match (resume, &set.offset) {
                (Some(Resume::At(number)), _) | (_, &Offset::Number(number)) => {
                    arguments.set("x-stream-offset", i64::try_from(number).unwrap_or(i64::MAX));
                }
                (Some(Resume::Since(seconds)), Offset::Next | Offset::Last) => {
                    arguments.set("x-stream-offset", Value::Time(seconds));
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
        Ok(Self { channel, ledger: Ledger::default(), leave: Leave::default(), tag, tell_by: None })
    }

    /// Tells the broker what is done, if it is enough, or time, or `now`. How many that were.
    pub(super) fn tell(&mut self, prefetch: u16, now: bool) -> usize {
        let untold = self.ledger.untold();
        if untold == 0 {
            return 0;
        }
        let enough = TELL_TOGETHER.min(usize::from(prefetch) / 4).max(1);
        let until = *self.tell_by.get_or_insert_with(|| Instant::now() + TELL_WITHIN);
        if !now && untold < enough && Instant::now() < until {
            return 0;
        }
        self.tell_by = None;
        let channel = &self.channel;
        self.ledger.tell(|ack| channel.send(&Outgoing::Ack { tag: ack.tag, multiple: ack.multiple }));
        untold
    }
}
