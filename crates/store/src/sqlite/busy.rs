//! Waits for the locks of other connections where SQLite's own busy timeout does not.

use std::time::{Duration, Instant};

use gristmill_pool::CancelToken;

/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Repeats `attempt` while it fails with a busy error. Returns that error once `limit` has passed or `stop` is cancelled.
///
/// SQLite does not wait for some locks: those of processes that open a new file, change its journal mode, or copy it at
/// the same time.
pub fn retry_while_busy<T, E>(
    limit: Duration,
    stop: &CancelToken,
    is_busy: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && start.elapsed() < limit => {
                if stop.wait_timeout(RETRY_INTERVAL) {
                    return Err(error);
                }
            }
            result => return result,
        }
    }
}
