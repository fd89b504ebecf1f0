//! I/O rate limits: of one process, and those that all workers of a file share.
//!
//! Owns the table `io_rate_limits`: for each bucket the time at which all reservations are used up. A reader reserves
//! its bytes, then waits until they are free.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::CancelToken;

use crate::Store;
use crate::error::{Error, Result};
use crate::sqlite::{Db, WriteKind};

/// Bucket for reading source files of thumbnails.
pub const THUMBNAIL_IO: &str = "thumbnail_io_global";

/// Maximum backlog of reservations in milliseconds; a longer one means that the row is wrong.
const MAX_BACKLOG_MS: i64 = 3_600_000;

/// Maximum duration of one reservation: ten years, so that sums do not overflow.
const MAX_COST: Duration = Duration::from_secs(315_360_000);

/// Returns how long reading `bytes` takes at a rate. A rate of 0 means no limit.
fn cost(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_second.max(1)));
    let cost = u64::try_from(nanos).map_or(MAX_COST, Duration::from_nanos).min(MAX_COST);
    if bytes_per_second == 0 { Duration::ZERO } else { cost }
}

/// Limits the rate at which all threads of this process that share it read.
#[derive(Debug)]
pub struct RateLimiter {
    bytes_per_second: u64,
    /// Time at which all reservations are used up.
    free_at: Mutex<Instant>,
}

impl RateLimiter {
    /// Creates a limiter. A rate of 0 means no limit.
    pub fn new(bytes_per_second: u64) -> Self {
        RateLimiter { bytes_per_second, free_at: Mutex::new(Instant::now()) }
    }

    /// Returns whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.bytes_per_second > 0
    }

    /// Reserves reading `bytes` and waits until they may be read. Returns false if `stop` is cancelled.
    pub fn acquire(&self, bytes: u64, stop: &CancelToken) -> bool {
        if !self.is_limited() {
            return !stop.is_cancelled();
        }
        let start = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let start = (*free_at).max(Instant::now());
            *free_at = start.checked_add(cost(bytes, self.bytes_per_second)).unwrap_or(start);
            start
        };
        !stop.wait_deadline(start)
    }
}

/// Rate limits of a store.
#[derive(Clone, Copy, Debug)]
pub struct RateLimits<'a>(pub(crate) &'a Store);

impl RateLimits<'_> {
    /// Reserves reading `bytes` and returns how long to wait before. A rate of 0 means no limit.
    pub fn reserve(self, bucket: &str, bytes: u64, bytes_per_second: u64) -> Result<Duration> {
        let cost = cost(bytes, bytes_per_second);
        if cost.is_zero() {
            return Ok(cost);
        }
        let cost = i64::try_from(cost.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        let bucket = bucket.to_owned();
        self.0.write(WriteKind::TaskCompound, move |db| reserve(db, &bucket, cost))
    }
}

fn reserve(db: &Db<'_>, bucket: &str, cost: i64) -> Result<Duration> {
    let now = db.now.micros().div_euclid(1_000);
    let ensure = "INSERT INTO io_rate_limits (bucket_key, next_available_at_ms, updated_at) VALUES (?1, 0, ?2)
        ON CONFLICT (bucket_key) DO NOTHING";
    db.execute(ensure, (bucket, db.now()))?;
    // The backlog is the time from now, or from the row's last use if that is later, to `next_available_at_ms`. The
    // last use is later if the clock was set back; counting from now would make every caller wait for as long as it was
    // set back. If the backlog is even then longer than reservations allow (another program used the row after the
    // clock was set back), the row is wrong and is reset.
    let sql = "UPDATE io_rate_limits SET updated_at = ?5, next_available_at_ms = ?2 + ?3 +
            (SELECT CASE WHEN backlog BETWEEN 0 AND ?4 THEN backlog ELSE 0 END FROM
                (SELECT next_available_at_ms - max(?2,
                    coalesce(CAST(unixepoch(updated_at, 'subsec') * 1000 AS INTEGER), 0)) AS backlog))
        WHERE bucket_key = ?1 RETURNING next_available_at_ms";
    let next = db.first(sql, (bucket, now, cost, MAX_BACKLOG_MS, db.now()), |row| row.get::<_, i64>(0))?;
    let next = next.ok_or_else(|| Error::Internal(format!("the row of bucket {bucket:?} vanished")))?;
    Ok(Duration::from_millis(u64::try_from(next - cost - now).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_the_time_at_the_rate_and_is_limited() {
        for (bytes, rate, expected) in [
            (0, 1_000, Duration::ZERO),
            (1_000, 0, Duration::ZERO),
            (1_000, 1_000, Duration::from_secs(1)),
            (1, 1_000_000, Duration::from_micros(1)),
            (1, 3, Duration::from_nanos(333_333_334)),
            (u64::MAX, 1, MAX_COST),
            (u64::MAX, u64::MAX, Duration::from_secs(1)),
        ] {
            assert_eq!(cost(bytes, rate), expected, "{bytes} at {rate}");
        }
    }
}
