//! `--drain` of streams.
//!
//! A stream is never empty. It is drained when every message up to the one that was last at the start is finished.

use gristmill_amqp::stats::ConsumerStats;
use gristmill_amqp::{Client, ClientStats, Error as AmqpError};

/// Last offset of each consumer's stream at the start; none for other queues and for empty streams.
pub(super) struct StreamEnds(Vec<Option<u64>>);

impl StreamEnds {
    pub(super) async fn fetch(client: &Client) -> Result<Self, AmqpError> {
        client.stream_ends().await.map(StreamEnds)
    }

    pub(super) fn end(&self, index: usize) -> Option<u64> {
        self.0.get(index).copied().flatten()
    }

    /// Removes the consumers at these indexes.
    pub(super) fn without(&self, indexes: &[usize]) -> Self {
        let ends = self.0.iter().enumerate().filter(|(at, _)| !indexes.contains(at));
        StreamEnds(ends.map(|(_, end)| *end).collect())
    }

    /// Whether all streams are handled up to their last offsets.
    pub(super) fn are_read(&self, stats: &ClientStats) -> bool {
        let is_read = |(one, end): (&ConsumerStats, &Option<u64>)| {
            end.is_none_or(|end| one.position.is_some_and(|position| position > end))
        };
        stats.consumers.iter().zip(&self.0).all(is_read)
    }

    /// Removes consumers of streams from the statistics.
    pub(super) fn queues_only(&self, mut stats: ClientStats) -> ClientStats {
        let consumers = std::mem::take(&mut stats.consumers).into_iter().zip(&self.0);
        let queues = consumers.filter(|(one, end)| one.position.is_none() && end.is_none());
        stats.consumers = queues.map(|(one, _)| one).collect();
        stats
    }
}
