//! Chooses the prefetch: as many messages as the workers handle in 200 ms, within a bound on bytes.
//!
//! Pure data. A prefetched message is kept from other consumers, and the broker's timeout for it runs. With handlers
//! that take minutes, the prefetch is hardly larger than the number of workers.

use crate::sizing::Sizing;
use std::time::Duration;

/// Messages that the workers handle in this time are prefetched.
const PREFETCH_WINDOW: Duration = Duration::from_millis(200);
/// Approximate maximum of the bytes in prefetched bodies; one message may be larger.
const MAX_BYTES: f64 = 64.0 * 1024.0 * 1024.0;
/// Maximum initial prefetch, until message sizes are known, of handlers that take one message at a time.
const MAX_INITIAL: u32 = 16;
/// Weight of a new message in the mean size.
const SIZE_WEIGHT: f64 = 1.0 / 16.0;
/// Factors by which the prefetch must grow or shrink to be changed.
const MIN_GROWTH_FACTOR: u32 = 2;
const MIN_SHRINK_FACTOR: u32 = 3;

#[derive(Debug)]
pub(crate) struct AdaptivePrefetch {
    /// Number of messages handled at a time.
    workers: u32,
    max_prefetch: u32,
    /// Maximum initial prefetch, until message sizes are known.
    max_initial: u32,
    bytes: Option<f64>,
    handler: Option<Duration>,
    /// Attempts measured before, and their total duration in nanoseconds.
    measured: (u64, u128),
}

impl AdaptivePrefetch {
    pub(crate) fn new(sizing: &Sizing) -> Self {
        let (workers, max_prefetch) = (sizing.messages() as u32, u32::from(sizing.prefetch));
        // A batch must fit, or it would never be full.
        let max_initial = if sizing.batch > 1 { max_prefetch } else { MAX_INITIAL };
        Self { workers, max_prefetch, max_initial, bytes: None, handler: None, measured: (0, 0) }
    }

    /// Updates the mean message size.
    pub(crate) fn received(&mut self, bytes: usize) {
        let bytes = bytes as f64;
        self.bytes = Some(self.bytes.map_or(bytes, |mean| mean + (bytes - mean) * SIZE_WEIGHT));
    }

    /// Updates the handler duration from the number and mean duration of all attempts; only the latest count.
    pub(crate) fn measure(&mut self, count: u64, mean: Duration) {
        let total = mean.as_nanos() * u128::from(count);
        let (count_before, total_before) = self.measured;
        let latest = count.saturating_sub(count_before);
        if latest > 0 {
            let nanos = total.saturating_sub(total_before) / u128::from(latest);
            self.handler = Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
            self.measured = (count, total);
        }
    }

    /// Prefetch of a new channel: by measurement, else as configured, else a few more than the workers.
    pub(crate) fn initial(&self, is_explicit: bool) -> u16 {
        let first = match (self.handler, is_explicit) {
            (Some(_), _) => self.target(),
            (None, true) => self.limit_by_bytes(self.max_prefetch),
            (None, false) => self.limit_by_bytes(self.with_reserve(0).min(self.max_prefetch).min(self.max_initial)),
        };
        first.clamp(1, u32::from(u16::MAX)) as u16
    }

    /// Returns a prefetch that is worth changing to, if any.
    pub(crate) fn adjusted(&self, current: u16) -> Option<u16> {
        self.bytes?;
        let (target, current) = (self.target(), u32::from(current));
        let is_enough_for_workers = current >= self.with_reserve(0);
        let grows = target >= current * MIN_GROWTH_FACTOR
            || (target > current && (target == self.max_prefetch || !is_enough_for_workers));
        // Until a handler has ended, only message sizes make it smaller.
        let is_known = self.handler.is_some() || self.limit_by_bytes(current) < current;
        let shrinks = target * MIN_SHRINK_FACTOR <= current && is_known;
        (grows || shrinks).then_some(target.min(u32::from(u16::MAX)) as u16)
    }

    fn target(&self) -> u32 {
        let ahead = match self.handler {
            None => 0,
            Some(took) => {
                let rounds = PREFETCH_WINDOW.as_nanos() / took.as_nanos().max(1);
                (rounds * u128::from(self.workers)).min(u128::from(u32::MAX)) as u32
            }
        };
        self.limit_by_bytes(self.with_reserve(ahead).min(self.max_prefetch)).max(1)
    }

    /// Adds messages ahead to the workers: at least a quarter of the workers, so that none waits for the broker.
    fn with_reserve(&self, ahead: u32) -> u32 {
        self.workers.saturating_add(ahead.max(self.workers / 4).max(1))
    }

    fn limit_by_bytes(&self, target: u32) -> u32 {
        match self.bytes {
            Some(mean) if mean > 0.0 => target.min((MAX_BYTES / mean) as u32),
            _ => target,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn adaptive(workers: usize, prefetch: u16) -> AdaptivePrefetch {
        AdaptivePrefetch::new(&Sizing { workers, batch: 1, prefetch, is_explicit: false, queue: workers * 2 })
    }

    /// Target prefetch for a number of workers, a handler duration and a message size.
    fn target(workers: usize, prefetch: u16, millis: u64, bytes: usize) -> u32 {
        let mut adaptive = adaptive(workers, prefetch);
        adaptive.received(bytes);
        adaptive.measure(10, Duration::from_millis(millis));
        adaptive.target()
    }

    #[test]
    fn prefetch_is_large_for_fast_handlers_and_small_for_slow_ones() {
        assert_eq!(target(8, 80, 0, 100), 80);
        assert_eq!(target(8, 80, 10, 100), 80);
        assert_eq!(target(8, 80, 100, 100), 24);
        assert_eq!(target(8, 80, 1_000, 100), 10);
        assert_eq!(target(8, 80, 3_600_000, 100), 10);
        assert_eq!(target(1, 10, 3_600_000, 100), 2);
        assert_eq!(target(4, 1000, 1, 100), 804);
        // The configured prefetch is the bound, also below the number of workers.
        assert_eq!((target(8, 3, 0, 100), target(8, 3, 60_000, 100)), (3, 3));
    }

    #[test]
    fn prefetched_bytes_are_bounded_and_one_message_is_always_allowed() {
        assert_eq!(target(50, 500, 0, MIB), 64);
        assert_eq!(target(50, 500, 0, 16 * MIB), 4);
        assert_eq!(target(50, 500, 0, 500 * MIB), 1);
    }

    #[test]
    fn prefetch_starts_small_and_changes_by_factors() {
        let mut adaptive = adaptive(8, 80);
        assert_eq!((adaptive.initial(false), adaptive.initial(true)), (10, 80));
        assert_eq!(self::adaptive(200, 500).initial(false), 16);
        assert_eq!(self::adaptive(1, 10).initial(false), 2);
        assert_eq!(adaptive.adjusted(10), None);
        adaptive.received(10);
        adaptive.measure(100, Duration::from_micros(50));
        assert_eq!(adaptive.adjusted(10), Some(80));
        assert_eq!(adaptive.adjusted(80), None);
        // Only the latest count: 100 that took 50 µs, then 10 that took a second.
        adaptive.measure(110, Duration::from_nanos((100 * 50_000 + 10 * 1_000_000_000) / 110));
        assert_eq!(adaptive.adjusted(80), Some(10));
        assert_eq!(adaptive.adjusted(25), None);
    }

    #[test]
    fn only_message_size_shrinks_the_prefetch_before_a_handler_has_ended() {
        let mut small = adaptive(8, 80);
        small.received(10);
        assert_eq!(small.adjusted(80), None);
        let mut large = adaptive(8, 80);
        large.received(16 * MIB);
        assert_eq!(large.adjusted(80), Some(4));
        // There are more workers than the initial prefetch.
        let mut many = adaptive(20, 200);
        many.received(10);
        assert_eq!((many.initial(false), many.adjusted(16)), (16, Some(25)));
    }

    #[test]
    fn next_channel_starts_with_the_measured_prefetch() {
        let mut slow = adaptive(1, 10);
        slow.received(10);
        slow.measure(3, Duration::from_secs(60));
        assert_eq!((slow.initial(true), slow.initial(false)), (2, 2));
    }
}
