//! Counters and durations, cheap enough to be always on: each worker counts on its own cache lines with plain loads and
//! stores, and a snapshot adds them up. A task costs at most one reading of the clock.

use crate::{
    breaker::BreakerStats,
    sync::{
        Mutex, OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
        lock,
    },
};
use serde::Serialize;

/// A snapshot of a pool's counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// Number of workers, without stalled ones that were replaced.
    pub workers: usize,
    /// Tasks that are running.
    pub active: usize,
    /// Tasks waiting for a worker.
    pub queued: usize,
    /// Tasks waiting for their next attempt.
    pub waiting_retry: usize,
    /// Number of tasks that may wait in the queue.
    pub queue_capacity: usize,
    /// Largest number of tasks that have waited in the queue at once.
    pub queue_high_water: usize,
    /// Tasks submitted and spawned.
    pub submitted: u64,
    /// Tasks that other tasks spawned, a part of `submitted`.
    pub spawned: u64,
    /// Number of tasks that succeeded.
    pub completed: u64,
    /// Tasks whose last attempt failed.
    pub failed: u64,
    /// Number of attempts that panicked.
    pub panicked: u64,
    /// Attempts that failed and were followed by a retry.
    pub retried: u64,
    /// Attempts that exceeded their timeout.
    pub timed_out: u64,
    /// Workers whose running task has exceeded its timeout.
    pub overdue: usize,
    /// Workers that were replaced because their task gave no heartbeat.
    pub stalled: u64,
    /// Results of abandoned tasks, which came too late and were discarded.
    pub late_discarded: u64,
    /// Tasks that were not started before the pool was cancelled.
    pub never_started: u64,
    /// Counters of the pool's circuit breaker, if it has one.
    pub breaker: Option<BreakerStats>,
    /// Durations of attempts by kind, in order of first appearance.
    pub kinds: Vec<KindStats>,
}

/// Durations of the attempts of one kind of task. Count and mean are exact, percentiles to one part in 16. A worker
/// whose attempts take under a microsecond or so measures eight of them together.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KindStats {
    /// Kind of the tasks: see [`Task::kind`](crate::Task::kind).
    pub kind: &'static str,
    /// Number of attempts measured so far.
    pub count: u64,
    /// Mean duration in nanoseconds.
    pub mean_ns: u64,
    /// Median duration in nanoseconds.
    pub p50_ns: u64,
    /// 95th percentile in nanoseconds.
    pub p95_ns: u64,
    /// 99th percentile in nanoseconds.
    pub p99_ns: u64,
    /// Longest duration in nanoseconds.
    pub max_ns: u64,
}

/// A counter with one writer and any number of readers.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without an atomic read-modify-write, as there is one writer. A reader that sees the new value also sees
    /// what any worker counted before it: see `Core::snapshot`.
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Release);
    }

    fn raise(&self, to: u64) {
        if to > self.0.load(Relaxed) {
            self.0.store(to, Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Acquire)
    }
}

/// Counters and durations of one worker.
#[derive(Default)]
pub(crate) struct WorkerCounters {
    pub(crate) spawned: Counter,
    pub(crate) completed: Counter,
    pub(crate) failed: Counter,
    pub(crate) panicked: Counter,
    pub(crate) retried: Counter,
    durations: [OnceLock<Box<DurationHistogram>>; MAX_KINDS],
}

impl WorkerCounters {
    /// Records `count` attempts that took `elapsed` nanoseconds together. One attempt usually takes `typical`.
    pub(crate) fn record(&self, kind: usize, elapsed: u64, count: u64, typical: u64) {
        self.durations[kind].get_or_init(Box::default).record(elapsed, count, typical);
    }

    /// Adds the counters of another worker.
    pub(crate) fn merge(&self, other: &Self) {
        let Self { spawned, completed, failed, panicked, retried, durations } = other;
        self.spawned.add(spawned.get());
        self.completed.add(completed.get());
        self.failed.add(failed.get());
        self.panicked.add(panicked.get());
        self.retried.add(retried.get());
        for (mine, theirs) in self.durations.iter().zip(durations) {
            if let Some(theirs) = theirs.get() {
                mine.get_or_init(Box::default).merge(theirs);
            }
        }
    }

    pub(crate) fn write_to(&self, kinds: &KindNames, stats: &mut PoolStats) {
        stats.completed = self.completed.get();
        stats.failed += self.failed.get();
        stats.panicked = self.panicked.get();
        stats.retried = self.retried.get();
        let names = lock(&kinds.names);
        let measured = names.iter().zip(&self.durations);
        stats.kinds = measured.filter_map(|(kind, cell)| Some(cell.get()?.summary(kind))).collect();
    }
}

/// Number of kinds with their own durations. The last one is shared by all further kinds.
const MAX_KINDS: usize = 32;

/// The kinds of a pool's tasks, in order of first appearance.
#[derive(Default)]
pub(crate) struct KindNames {
    names: Mutex<Vec<&'static str>>,
}

impl KindNames {
    /// Returns the number of a kind. Kinds beyond the limit share the last number.
    pub(crate) fn number(&self, kind: &'static str) -> usize {
        let mut names = lock(&self.names);
        if let Some(known) = names.iter().position(|name| *name == kind) {
            return known;
        }
        match names.len() {
            known if known < MAX_KINDS - 1 => names.push(kind),
            known if known < MAX_KINDS => names.push("(other)"),
            _ => {}
        }
        names.len() - 1
    }

    pub(crate) fn name(&self, number: usize) -> &'static str {
        lock(&self.names).get(number).copied().unwrap_or("(other)")
    }
}

/// Number of buckets of a log-linear histogram: exact below 8 ns, then 8 per octave.
const BUCKETS: usize = 62 * 8;

struct DurationHistogram {
    count: Counter,
    sum: Counter,
    max: Counter,
    buckets: [Counter; BUCKETS],
}

impl Default for DurationHistogram {
    fn default() -> Self {
        let buckets = std::array::from_fn(|_| Counter::default());
        Self { count: Counter::default(), sum: Counter::default(), max: Counter::default(), buckets }
    }
}

impl DurationHistogram {
    /// Tiny attempts are measured several at once, and each counts with the mean. If they took much longer than
    /// typical, one of them was slow and the others count as typical.
    fn record(&self, elapsed: u64, count: u64, typical: u64) {
        let mean = elapsed / count;
        let per_attempt = if count > 1 && mean > 4 * typical { typical } else { mean };
        let longest = elapsed - per_attempt * (count - 1);
        self.count.add(count);
        self.sum.add(elapsed);
        self.max.raise(longest);
        self.buckets[bucket(per_attempt)].add(count - 1);
        self.buckets[bucket(longest)].add(1);
    }

    fn merge(&self, other: &Self) {
        self.count.add(other.count.get());
        self.sum.add(other.sum.get());
        self.max.raise(other.max.get());
        for (mine, theirs) in self.buckets.iter().zip(&other.buckets) {
            mine.add(theirs.get());
        }
    }

    fn summary(&self, kind: &'static str) -> KindStats {
        // Percentiles use the buckets' own total, because a worker may be counting meanwhile.
        let buckets: Vec<u64> = self.buckets.iter().map(Counter::get).collect();
        let (count, max_ns) = (self.count.get(), self.max.get());
        let at = |percent| percentile(&buckets, percent).min(max_ns);
        KindStats {
            kind,
            count,
            mean_ns: self.sum.get() / count.max(1),
            p50_ns: at(50),
            p95_ns: at(95),
            p99_ns: at(99),
            max_ns,
        }
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < 8 {
        return nanos as usize;
    }
    let octave = 63 - nanos.leading_zeros() as usize;
    (octave - 2) * 8 + ((nanos >> (octave - 3)) & 7) as usize
}

/// Returns the middle of a bucket in nanoseconds.
fn middle(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let octave = bucket / 8 + 2;
    let width = 1u64 << (octave - 3);
    (8 + (bucket % 8) as u64) * width + width / 2
}

fn percentile(buckets: &[u64], percent: u64) -> u64 {
    let total: u64 = buckets.iter().sum();
    let rank = (total * percent).div_ceil(100);
    let mut seen = 0;
    for (number, count) in buckets.iter().enumerate() {
        seen += count;
        if seen >= rank && seen > 0 {
            return middle(number);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_close_to_their_values() {
        let mut last = 0;
        for value in (0..64).flat_map(|shift| [1u64 << shift, (1u64 << shift) + (1u64 << shift) / 3]) {
            let number = bucket(value);
            assert!(number < BUCKETS && number >= last, "{value}");
            last = number;
            let off = middle(number).abs_diff(value);
            assert!(off as f64 <= value as f64 / 16.0, "{value} is reported as {}", middle(number));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_of_a_uniform_distribution_are_close() {
        let durations = DurationHistogram::default();
        (1..=1_000).for_each(|micros| durations.record(micros * 1_000, 1, 0));
        let summary = durations.summary("x");
        assert_eq!((summary.count, summary.mean_ns, summary.max_ns), (1_000, 500_500, 1_000_000));
        for (got, want) in [(summary.p50_ns, 500_000.0), (summary.p95_ns, 950_000.0), (summary.p99_ns, 990_000.0)] {
            assert!((got as f64 / want - 1.0).abs() <= 1.0 / 16.0, "{got} for {want}");
        }
    }

    #[test]
    fn maximum_shows_one_long_attempt_among_tiny_ones() {
        let durations = DurationHistogram::default();
        (0..100).for_each(|_| durations.record(8 * 90, 8, 100));
        durations.record(7 * 100 + 5_000_000, 8, 100);
        let summary = durations.summary("x");
        assert_eq!((summary.count, summary.max_ns), (808, 5_000_000));
        assert!((80..=110).contains(&summary.p50_ns) && (80..=110).contains(&summary.p99_ns), "{summary:?}");
    }

    #[test]
    fn merged_counters_equal_common_counters() {
        let (one, two, both) = (WorkerCounters::default(), WorkerCounters::default(), WorkerCounters::default());
        for (counters, nanos) in [(&one, 10), (&two, 5_000), (&both, 10), (&both, 5_000)] {
            counters.completed.add(1);
            counters.record(0, nanos, 1, 0);
        }
        one.merge(&two);
        let kinds = KindNames::default();
        kinds.number("x");
        let stats_of = |counters: &WorkerCounters| {
            let mut stats = PoolStats::default();
            counters.write_to(&kinds, &mut stats);
            stats
        };
        assert_eq!(stats_of(&one), stats_of(&both));
        assert_eq!(stats_of(&one).kinds[0].count, 2);
    }

    #[test]
    fn kinds_beyond_the_maximum_share_one_number() {
        let kinds = KindNames::default();
        let names: Vec<&'static str> = (0..40).map(|n| &*n.to_string().leak()).collect();
        let numbers: Vec<usize> = names.iter().map(|name| kinds.number(name)).collect();
        assert_eq!(numbers[..31], (0..31).collect::<Vec<_>>()[..]);
        assert!(numbers[31..].iter().all(|number| *number == 31));
        assert_eq!(kinds.name(30), "30");
        assert_eq!(kinds.name(31), "(other)");
        assert_eq!(kinds.number("3"), 3);
    }
}
