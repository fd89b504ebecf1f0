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

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails `failures` times, as busy or not. Returns the result and the number of attempts.
    fn run(failures: u32, is_busy: bool, limit: Duration, stop: &CancelToken) -> (Result<u32, u32>, u32) {
        let mut attempts = 0;
        let attempt = || {
            attempts += 1;
            if attempts <= failures { Err(attempts) } else { Ok(attempts) }
        };
        (retry_while_busy(limit, stop, |_| is_busy, attempt), attempts)
    }

    #[test]
    fn only_busy_errors_are_retried_until_the_limit_or_the_cancellation() {
        let (open, cancelled) = (CancelToken::new(), CancelToken::new());
        cancelled.cancel();
        for (failures, is_busy, limit, stop, result) in [
            (0, true, Duration::ZERO, &cancelled, Ok(1)),
            (2, true, Duration::MAX, &open, Ok(3)),
            (2, false, Duration::MAX, &open, Err(1)),
            (2, true, Duration::ZERO, &open, Err(1)),
            (2, true, Duration::MAX, &cancelled, Err(1)),
        ] {
            let (found, attempts) = run(failures, is_busy, limit, stop);
            assert_eq!(found, result, "{failures} {is_busy} {limit:?}");
            assert_eq!(found.unwrap_or_else(|last| last), attempts);
        }
    }
}
