//! Retry policies: whether and when to retry a failed task. The waiting itself is in `core::settle`.

use crate::error::{ErrorClass, TaskError};
use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Policy that limits how often a failed task is retried and sets the delays.
///
/// Only [`ErrorClass::Transient`] and [`ErrorClass::Partial`] failures are retried. Delays have full jitter, a random
/// time between zero and the delay, so that tasks which failed together are not retried together.
///
/// ```
/// use gristmill_pool::Retry;
/// use std::time::Duration;
///
/// // Up to 5 attempts, with delays of up to 1 s, 2 s, 4 s and 5 s.
/// let policy = Retry::exponential(5, Duration::from_secs(1)).max_delay(Duration::from_secs(5));
/// assert_eq!(policy.without_jitter().delay(4), Duration::from_secs(5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    attempts: u32,
    base: Duration,
    growth: Growth,
    max_delay: Duration,
    jitter: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Linear,
    Exponential,
}

impl Retry {
    /// Delays of `base`, 2·`base`, 3·`base` and so on. `attempts` includes the first attempt; 0 means 1.
    pub const fn linear(attempts: u32, base: Duration) -> Self {
        Self::new(attempts, base, Growth::Linear)
    }

    /// Delays of `base`, 2·`base`, 4·`base`, 8·`base` and so on. `attempts` includes the first attempt; 0 means 1.
    pub const fn exponential(attempts: u32, base: Duration) -> Self {
        Self::new(attempts, base, Growth::Exponential)
    }

    const fn new(attempts: u32, base: Duration, growth: Growth) -> Self {
        Self { attempts, base, growth, max_delay: Duration::MAX, jitter: true }
    }

    /// Sets the longest delay. Only [`TaskError::with_retry_after`] can demand a longer one. Default: no limit.
    #[must_use]
    pub const fn max_delay(mut self, max_delay: Duration) -> Self {
        self.max_delay = max_delay;
        self
    }

    /// Uses the exact delays, without jitter.
    #[must_use]
    pub const fn without_jitter(mut self) -> Self {
        self.jitter = false;
        self
    }

    /// Largest number of attempts, counting the first.
    pub const fn max_attempts(&self) -> u32 {
        if self.attempts == 0 { 1 } else { self.attempts }
    }

    /// Returns the delay after `failed` failed attempts: with jitter, a random part of it.
    pub fn delay(&self, failed: u32) -> Duration {
        let full = match self.growth {
            Growth::Linear => self.base.saturating_mul(failed),
            Growth::Exponential => {
                self.base.saturating_mul(1u32.checked_shl(failed.saturating_sub(1)).unwrap_or(u32::MAX))
            }
        }
        .min(self.max_delay);
        if self.jitter { full.mul_f64(random_fraction()) } else { full }
    }

    /// Returns the delay before the next attempt, or `None` if the task is not retried.
    pub(crate) fn next_delay(&self, failed: u32, error: &TaskError) -> Option<Duration> {
        if error.class() == ErrorClass::Permanent || failed >= self.attempts {
            return None;
        }
        let delay = self.delay(failed);
        Some(error.retry_after().map_or(delay, |shortest| shortest.max(delay)))
    }
}

/// Returns a random number in `0.0..=1.0`. Fresh SipHash keys are random enough for jitter.
fn random_fraction() -> f64 {
    let bits = RandomState::new().hash_one(0u8);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn next_delay_depends_on_class_attempts_and_retry_after() {
        let policy = Retry::linear(3, SEC).without_jitter().max_delay(SEC);
        let check = |failed, error: TaskError, want: Option<Duration>| {
            assert_eq!(policy.next_delay(failed, &error), want, "{error}");
        };
        check(1, TaskError::transient("x"), Some(SEC));
        check(2, TaskError::partial("s", "x"), Some(SEC));
        check(3, TaskError::transient("x"), None);
        check(1, TaskError::permanent("x"), None);
        check(1, TaskError::transient("x").with_retry_after(SEC * 60), Some(SEC * 60));
        check(1, TaskError::transient("x").with_retry_after(SEC / 2), Some(SEC));
    }
}
