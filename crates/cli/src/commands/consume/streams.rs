//! `--drain` of streams: to the end as it was at the start.
//!
//! A stream is never empty. It is drained when everything up to the message that was its last at the start is finished.

use gristmill_amqp::stats::ConsumerStats;
use gristmill_amqp::{Client, ClientStats, Error as Fault};

/// The ends of the streams that are consumed, by consumer; none for other queues and for empty streams.
pub(super) struct Streams(Vec<Option<u64>>);

impl Streams {
    /// The ends as they are now.
    pub(super) async fn now(client: &Client) -> Result<Self, Fault> {
        client.stream_ends().await.map(Streams)
    }

    /// The end of the stream of the consumer at this place.
    pub(super) fn end(&self, place: usize) -> Option<u64> {
        self.0.get(place).copied().flatten()
    }

    /// The same without the consumers at these places.
    pub(super) fn without(&self, places: &[usize]) -> Self {
        let ends = self.0.iter().enumerate().filter(|(at, _)| !places.contains(at));
        Streams(ends.map(|(_, end)| *end).collect())
    }

    /// Whether all streams are read to their ends.
    pub(super) fn are_read(&self, stats: &ClientStats) -> bool {
        let is_read = |(one, end): (&ConsumerStats, &Option<u64>)| {
            end.is_none_or(|end| one.position.is_some_and(|position| position > end))
        };
        stats.consumers.iter().zip(&self.0).all(is_read)
    }

    /// The same without consumers of streams.
    pub(super) fn queues_only(&self, mut stats: ClientStats) -> ClientStats {
        let consumers = std::mem::take(&mut stats.consumers).into_iter().zip(&self.0);
        let queues = consumers.filter(|(one, end)| one.position.is_none() && end.is_none());
        stats.consumers = queues.map(|(one, _)| one).collect();
        stats
    }
}
