//! The answer that every candidate must get right: the sum of the numbers its tasks were given. Kept in
//! shards, a cache line each, so that adding up costs every candidate the same few nanoseconds.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 64;

#[repr(align(128))]
struct Shard(AtomicU64);

static SUMS: [Shard; SHARDS] = [const { Shard(AtomicU64::new(0)) }; SHARDS];
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = THREADS.fetch_add(1, Relaxed) % SHARDS;
}

/// A trivial task's work.
#[inline]
pub(crate) fn add(number: u64) {
    SHARD.with(|shard| SUMS[*shard].0.fetch_add(number, Relaxed));
}

/// Takes the sum, and checks that it is that of `0..each`, `producers` times over.
pub(crate) fn check(producers: u64, each: u64) -> Result<(), String> {
    let got: u64 = SUMS.iter().map(|shard| shard.0.swap(0, Relaxed)).sum();
    let want = producers * (each * (each - 1) / 2);
    if got == want { Ok(()) } else { Err(format!("wrong answer: {got} instead of {want}; tasks were lost")) }
}
