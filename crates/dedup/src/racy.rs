//! Handles files that changed just before they are read.
//!
//! Owns git's rule for racy files: a change after the read, but within the granularity of the filesystem's timestamps,
//! leaves the timestamps unchanged and would never be noticed. So a file is read once its last change is older than
//! that granularity, or it is marked as racy and read again by the next scan.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gristmill_pool::CancelToken;
use gristmill_store::catalog::Stat;

/// Granularity of exact timestamps. The kernel's clock for timestamps ticks every 1 to 10 ms; exFAT stores 10 ms.
const FINE_TICK: Duration = Duration::from_millis(20);

/// Granularity of timestamps in whole seconds. Old ext and some network filesystems store seconds, FAT even seconds.
const COARSE_TICK: Duration = Duration::from_secs(2);

const SECOND_NS: i64 = 1_000_000_000;

/// Time after the last change of a file in which another change can leave the same timestamps.
fn granularity(stat: &Stat) -> Duration {
    if stat.ctime_ns % SECOND_NS == 0 && stat.mtime_ns % SECOND_NS == 0 { COARSE_TICK } else { FINE_TICK }
}

/// Time from `now` until a change would change the timestamps. The change time decides, because programs can set the
/// modification time.
fn racy_for(stat: &Stat, now: Duration) -> Duration {
    let Ok(changed) = u64::try_from(stat.ctime_ns) else { return Duration::ZERO };
    (Duration::from_nanos(changed) + granularity(stat)).saturating_sub(now)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether a change from now on would be noticed. Most files changed long ago; the clock is read only for the others.
pub(crate) fn is_settled(stat: &Stat) -> bool {
    static EARLIER: LazyLock<Duration> = LazyLock::new(now);
    racy_for(stat, *EARLIER).is_zero() || racy_for(stat, now()).is_zero()
}

/// Waits until a change would be noticed, if that takes at most `FINE_TICK`. Returns false if it takes longer, or the
/// scan is cancelled.
pub(crate) fn wait_until_settled(stat: &Stat, token: &CancelToken) -> bool {
    if is_settled(stat) {
        return true;
    }
    loop {
        let left = racy_for(stat, now());
        if left.is_zero() || left > FINE_TICK {
            return left.is_zero();
        }
        if token.wait_timeout(left) {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(ctime_ns: i64, mtime_ns: i64) -> Stat {
        Stat { ctime_ns, mtime_ns, ..Stat::default() }
    }

    #[test]
    fn file_is_racy_within_the_timestamp_granularity_of_its_change() {
        let at = |nanoseconds: i64| Duration::from_nanos(nanoseconds.unsigned_abs());
        for (ctime, mtime, now, left) in [
            // Timestamps in whole seconds: two seconds.
            (5 * SECOND_NS, 5 * SECOND_NS, 5 * SECOND_NS, 2 * SECOND_NS),
            (5 * SECOND_NS, 5 * SECOND_NS, 6 * SECOND_NS, SECOND_NS),
            (5 * SECOND_NS, 5 * SECOND_NS, 7 * SECOND_NS, 0),
            // A program may have set the modification time; the change time decides.
            (5 * SECOND_NS, SECOND_NS, 6 * SECOND_NS, SECOND_NS),
            (5 * SECOND_NS + 1, SECOND_NS, 5 * SECOND_NS + 20_000_001, 0),
            (5 * SECOND_NS + 1, SECOND_NS, 5 * SECOND_NS + 10_000_001, 10_000_000),
            // The clock was set back.
            (9 * SECOND_NS + 1, SECOND_NS, 5 * SECOND_NS + 1, 4 * SECOND_NS + 20_000_000),
            // The change time is unknown.
            (0, 5 * SECOND_NS + 1, 5 * SECOND_NS, 0),
        ] {
            assert_eq!(racy_for(&stat(ctime, mtime), at(now)), at(left), "{ctime} {mtime} {now}");
        }
    }

    #[test]
    fn racy_file_is_waited_for_unless_its_timestamps_are_coarse() {
        let moment = i64::try_from(now().as_nanos()).unwrap();
        let fine = stat(moment | 1, moment | 1);
        assert!(wait_until_settled(&fine, &CancelToken::new()) && is_settled(&fine));
        let coarse = stat(moment / SECOND_NS * SECOND_NS + SECOND_NS, moment / SECOND_NS * SECOND_NS);
        assert!(!wait_until_settled(&coarse, &CancelToken::new()) && !is_settled(&coarse));
    }
}
