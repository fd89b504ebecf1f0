//! Retry policy of a consumer, from its settings.

use std::time::Duration;

use gristmill_amqp::{DEFAULT_RETRY, DEFAULT_RETRY_IN_PLACE};
use gristmill_pool::Retry;

use super::Consumer;

/// Upper bound of a retry delay, unless the first delay or `Retry-After` is longer.
const MAX_DELAY: Duration = Duration::from_secs(60 * 60);

impl Consumer {
    /// Returns the retry policy for messages that are retried in place, or for others. `retry_for` allows as many
    /// attempts as fit into its time; with `attempts`, the smaller number counts.
    pub(super) fn retry(&self, in_place: bool) -> Retry {
        let default = if in_place { DEFAULT_RETRY_IN_PLACE } else { DEFAULT_RETRY };
        let delay = self.retry_delay.unwrap_or_else(|| default.without_jitter().delay(1));
        let policy = |attempts| Retry::exponential(attempts, delay).max_delay(MAX_DELAY.max(delay));
        match (self.attempts, self.retry_for) {
            (attempts, None) => policy(attempts.unwrap_or(default.max_attempts())),
            (attempts, Some(time)) => {
                let fitting = attempts_within(policy(u32::MAX).without_jitter(), time);
                policy(attempts.unwrap_or(u32::MAX).min(fitting))
            }
        }
    }
}

/// Number of attempts whose delays together do not exceed `time`.
fn attempts_within(policy: Retry, time: Duration) -> u32 {
    let mut waited = Duration::ZERO;
    let fits = |failed: &u32| {
        waited = waited.saturating_add(policy.delay(*failed));
        waited <= time
    };
    (1..MAX_ATTEMPTS).take_while(fits).count() as u32 + 1
}

const MAX_ATTEMPTS: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn retry_for_allows_attempts_whose_delays_fit() {
        let of =
            |delay, time| attempts_within(Retry::exponential(u32::MAX, delay).max_delay(HOUR).without_jitter(), time);
        assert_eq!(of(SECOND, Duration::ZERO), 1);
        assert_eq!(of(SECOND, SECOND * 7), 4);
        assert_eq!(of(SECOND, SECOND * 6), 3);
        // 1, 2, 4, 8, 16 and 32 minutes, then 22 times 1 hour.
        assert_eq!(of(SECOND * 60, HOUR * 24), 1 + 6 + 22);
        assert_eq!(of(Duration::from_millis(1), Duration::MAX), MAX_ATTEMPTS);
    }
}
