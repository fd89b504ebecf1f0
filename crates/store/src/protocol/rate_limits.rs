//! I/O rate limits that all workers of a file share.
//!
//! Owns the table `io_rate_limits`: for each bucket the time at which all reservations are used up. The caller waits.

use std::time::Duration;

use crate::Store;
use crate::error::{Error, Result};
use crate::sqlite::{Db, WriteKind};

/// Bucket for reading source files of thumbnails.
pub const THUMBNAIL_IO: &str = "thumbnail_io_global";

/// Maximum backlog of reservations in milliseconds; a longer one means that the row is wrong.
const MAX_BACKLOG_MS: i64 = 3_600_000;

/// Maximum duration of one reservation in milliseconds: ten years, so that sums do not overflow.
const MAX_COST_MS: i64 = 315_360_000_000;

/// Rate limits of a store.
#[derive(Clone, Copy, Debug)]
pub struct RateLimits<'a>(pub(crate) &'a Store);

impl RateLimits<'_> {
    /// Reserves reading `bytes` and returns how long to wait before. A rate of 0 means no limit.
    pub fn reserve(self, bucket: &str, bytes: u64, bytes_per_second: u64) -> Result<Duration> {
        if bytes == 0 || bytes_per_second == 0 {
            return Ok(Duration::ZERO);
        }
        let cost = (u128::from(bytes) * 1_000).div_ceil(u128::from(bytes_per_second));
        let cost = i64::try_from(cost).unwrap_or(MAX_COST_MS).min(MAX_COST_MS);
        let bucket = bucket.to_owned();
        self.0.write(WriteKind::Compound, move |db| reserve(db, &bucket, cost))
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
