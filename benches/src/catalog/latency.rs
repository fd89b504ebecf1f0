//! Measures how long a call takes, many times, and returns percentiles.

use std::time::{Duration, Instant};

use gristmill_store::catalog::SortBy;

/// Calls of one position stop after this time.
const BUDGET: Duration = Duration::from_secs(20);

/// Calls of one position that are made in any case.
const MIN_CALLS: usize = 3;

/// Durations of calls, in ms, sorted.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<f64>);

impl Latencies {
    /// Returns the smallest duration that `percent` of the calls did not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let rank = (self.0.len() as f64 * percent / 100.0).ceil() as usize;
        self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.percentile(99.0)
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.len()
    }
}

/// Latencies of the pages of one catalog.
pub(crate) struct PageLatencies {
    pub(crate) files: u64,
    pub(crate) groups: u64,
    /// What a scan wrote in the meantime; None if none did.
    pub(crate) written: Option<super::writer::Written>,
    /// For each order, the latencies at each position.
    pub(crate) orders: Vec<(SortBy, Vec<Latencies>)>,
}

/// Makes `count` different calls alternately, `reps` times, after one call each that is not measured.
pub(crate) fn measure(
    reps: usize,
    count: usize,
    mut call: impl FnMut(usize) -> Result<(), String>,
) -> Result<Vec<Latencies>, String> {
    (0..count).try_for_each(&mut call)?;
    let mut latencies: Vec<Latencies> = (0..count).map(|_| Latencies::default()).collect();
    let started = Instant::now();
    for repetition in 0..reps {
        if repetition >= MIN_CALLS && started.elapsed() > BUDGET * count as u32 {
            break;
        }
        for (nth, latencies) in latencies.iter_mut().enumerate() {
            let start = Instant::now();
            call(nth)?;
            latencies.0.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    latencies.iter_mut().for_each(|latencies| latencies.0.sort_by(f64::total_cmp));
    Ok(latencies)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(in crate::catalog) fn latencies(milliseconds: &[f64]) -> Latencies {
        Latencies(milliseconds.to_vec())
    }

    #[test]
    fn percentile_is_a_measured_value() {
        let hundred = latencies(&(1..=100).map(f64::from).collect::<Vec<_>>());
        assert_eq!((hundred.percentile(50.0), hundred.p99(), hundred.percentile(100.0)), (50.0, 99.0, 100.0));
        assert_eq!(latencies(&[1.0, 2.0, 9.0]).p99(), 9.0);
        assert!(latencies(&[]).p99().is_nan());
    }

    #[test]
    fn calls_alternate_after_one_that_is_not_measured() {
        let mut calls = Vec::new();
        let latencies = measure(2, 2, |nth| {
            calls.push(nth);
            Ok(())
        });
        assert_eq!(calls, [0, 1, 0, 1, 0, 1]);
        assert_eq!(latencies.unwrap().iter().map(Latencies::calls).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(measure(1, 1, |_| Err("no".to_owned())).unwrap_err(), "no");
    }
}
