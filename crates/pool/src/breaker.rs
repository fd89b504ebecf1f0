//! A circuit breaker: stops calls to a failing service and tests it with single probes. Usable alone, or for a whole
//! pool with [`PoolBuilder::breaker`](crate::PoolBuilder::breaker).

use crate::{
    clock::{Clock, nanos},
    sync::{Arc, Mutex, lock},
};
use serde::Serialize;
use std::{error::Error, fmt, time::Duration};

/// A circuit breaker. Opens after a number of failures in a row and rejects calls for the reset time. Then it permits a
/// single probe: the breaker closes if the probe succeeds, and opens again if the probe fails.
///
/// Clones share one state.
///
/// ```
/// use gristmill_pool::Breaker;
/// use std::time::Duration;
///
/// let breaker = Breaker::new(2, Duration::from_secs(30));
/// for _ in 0..2 {
///     let permit = breaker.acquire()?;
///     permit.failure(); // the call was made: connection refused
/// }
/// let open = breaker.acquire().unwrap_err(); // the call is not made
/// assert!(open.retry_in <= Duration::from_secs(30));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Breaker {
    shared: Arc<Shared>,
    clock: Clock,
}

struct Shared {
    threshold: u32,
    reset_after: Duration,
    max_reset: Duration,
    is_quiet: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// Counts changes of phase. Permits of an earlier generation have no effect.
    generation: u64,
    failures: u32,
    /// Number of probes in a row that failed.
    failed_probes: u32,
    open_until: u64,
    opened: u64,
    rejected: u64,
    probes: u64,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Closed,
    Open,
    Probing,
}

/// Whether a breaker permits calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// Calls are permitted, and failures in a row are counted.
    Closed,
    /// Calls are rejected until the reset time has passed.
    Open,
    /// The reset time has passed: one probe is permitted or running.
    HalfOpen,
}

/// State and counters of a breaker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BreakerStats {
    /// Whether calls are permitted now.
    pub state: BreakerState,
    /// Number of failures in a row so far.
    pub failures: u32,
    /// Number of times the breaker has opened.
    pub opened: u64,
    /// Number of calls rejected.
    pub rejected: u64,
    /// Number of probes permitted.
    pub probes: u64,
}

/// Rejection of a call: the breaker is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// Time until the next probe is permitted; zero while a probe is running.
    pub retry_in: Duration,
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the circuit breaker is open; retry in {:?}", self.retry_in)
    }
}

impl Error for Open {}

impl Breaker {
    /// Creates a breaker that opens for `reset_after` after `threshold` failures in a row (0 means 1).
    pub fn new(threshold: u32, reset_after: Duration) -> Self {
        Self::with(Shared {
            threshold: threshold.max(1),
            reset_after,
            max_reset: reset_after,
            is_quiet: false,
            state: Mutex::default(),
        })
    }

    /// Creates a breaker that opens at the first failure and logs nothing, for an owner that reports changes itself.
    /// The reset time doubles with each failed probe, up to `max_reset`.
    pub fn with_backoff(reset_after: Duration, max_reset: Duration) -> Self {
        let max_reset = max_reset.max(reset_after);
        Self::with(Shared { threshold: 1, reset_after, max_reset, is_quiet: true, state: Mutex::default() })
    }

    fn with(shared: Shared) -> Self {
        Self { shared: Arc::new(shared), clock: Clock::system() }
    }

    /// Uses another clock, for example a [`ManualClock`](crate::clock::ManualClock) in tests.
    #[must_use]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Requests a permit for one call. The caller reports the result to the permit; dropping it, as a panic does, counts
    /// as a failure.
    pub fn acquire(&self) -> Result<Permit, Open> {
        let now = self.clock.now();
        let mut state = lock(&self.shared.state);
        match state.phase {
            Phase::Closed => {}
            Phase::Open if now >= state.open_until => {
                state.enter(Phase::Probing);
                state.probes += 1;
            }
            Phase::Open | Phase::Probing => {
                state.rejected += 1;
                return Err(Open { retry_in: Duration::from_nanos(state.open_until.saturating_sub(now)) });
            }
        }
        Ok(Permit { breaker: self.clone(), generation: state.generation, is_reported: false })
    }

    /// Whether [`acquire`](Self::acquire) would permit a call now: closed, or half open without a running probe.
    pub fn would_permit(&self) -> bool {
        let now = self.clock.now();
        let state = lock(&self.shared.state);
        match state.phase {
            Phase::Closed => true,
            Phase::Open => now >= state.open_until,
            Phase::Probing => false,
        }
    }

    /// Returns the state and the counters.
    pub fn stats(&self) -> BreakerStats {
        let now = self.clock.now();
        let state = lock(&self.shared.state);
        BreakerStats {
            state: match state.phase {
                Phase::Closed => BreakerState::Closed,
                Phase::Open if now < state.open_until => BreakerState::Open,
                Phase::Open | Phase::Probing => BreakerState::HalfOpen,
            },
            failures: state.failures,
            opened: state.opened,
            rejected: state.rejected,
            probes: state.probes,
        }
    }

    fn withdraw(&self, generation: u64) {
        let mut state = lock(&self.shared.state);
        if state.generation == generation && state.phase == Phase::Probing {
            // The reset time has passed already, so the next call is the probe.
            state.enter(Phase::Open);
        }
    }

    fn on_success(&self, generation: u64) {
        let mut state = lock(&self.shared.state);
        if state.generation != generation {
            return;
        }
        state.failures = 0;
        if state.phase == Phase::Probing {
            state.failed_probes = 0;
            state.enter(Phase::Closed);
            if !self.shared.is_quiet {
                tracing::info!("circuit breaker closed: the probe succeeded");
            }
        }
    }

    fn on_failure(&self, generation: u64, at_least: Duration) {
        let now = self.clock.now();
        let mut state = lock(&self.shared.state);
        if state.generation != generation {
            return;
        }
        state.failures = state.failures.saturating_add(1);
        let was_probe = state.phase == Phase::Probing;
        if was_probe || state.failures >= self.shared.threshold {
            state.failed_probes = if was_probe { state.failed_probes.saturating_add(1) } else { 0 };
            let factor = 1_u32.checked_shl(state.failed_probes).unwrap_or(u32::MAX);
            let reset = self.shared.reset_after.saturating_mul(factor).min(self.shared.max_reset);
            state.enter(Phase::Open);
            state.open_until = now.saturating_add(nanos(reset.max(at_least)));
            state.opened += 1;
            if !self.shared.is_quiet {
                tracing::warn!(failures = state.failures, "circuit breaker opened");
            }
        }
    }
}

impl State {
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.generation += 1;
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Breaker").field(&self.stats()).finish()
    }
}

/// Permit for one call. The caller reports the call's result to it.
#[derive(Debug)]
#[must_use = "a dropped permit counts as a failed call"]
pub struct Permit {
    breaker: Breaker,
    generation: u64,
    is_reported: bool,
}

impl Permit {
    /// Reports that the call succeeded.
    pub fn success(mut self) {
        self.is_reported = true;
        self.breaker.on_success(self.generation);
    }

    /// Returns the permit unused: the call was not made, or its result does not concern the service. If the call
    /// was the probe, the next call becomes the probe.
    pub fn withdraw(mut self) {
        self.is_reported = true;
        self.breaker.withdraw(self.generation);
    }

    /// Reports that the call failed.
    pub fn failure(self) {
        drop(self);
    }

    /// Reports that the call failed and that the next must not be made for `at_least`.
    pub fn failure_with_delay(mut self, at_least: Duration) {
        self.is_reported = true;
        self.breaker.on_failure(self.generation, at_least);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.is_reported {
            self.breaker.on_failure(self.generation, Duration::ZERO);
        }
    }
}
