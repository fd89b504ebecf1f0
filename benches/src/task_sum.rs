//! The sum of the numbers of all tasks, by which every candidate's result is checked. It is kept in shards of one cache
//! line each, so that the addition costs every candidate the same few nanoseconds.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 64;

#[repr(align(128))]
struct Shard(AtomicU64);

static SUMS: [Shard; SHARDS] = [const { Shard(AtomicU64::new(0)) }; SHARDS];
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = THREADS.fetch_add(1, Relaxed) % SHARDS;
}

/// Adds a number; this is all that a trivial task does.
#[inline]
pub(crate) fn add(number: u64) {
    SHARD.with(|shard| SUMS[*shard].0.fetch_add(number, Relaxed));
}

/// Resets the sum and checks that it was that of `0..count`, once for each producer.
pub(crate) fn check(producers: u64, count: u64) -> Result<(), String> {
    let got: u64 = SUMS.iter().map(|shard| shard.0.swap(0, Relaxed)).sum();
    let want = producers * (count * (count - 1) / 2);
    if got == want { Ok(()) } else { Err(format!("wrong sum: {got} instead of {want}; tasks were lost or repeated")) }
}
