//! Thresholds: the values that a benchmark must reach.

use std::fmt::{self, Write};

/// A measured value and its limit.
pub(crate) struct Threshold {
    pub(crate) what: String,
    /// None if it could not be measured.
    pub(crate) value: Option<f64>,
    pub(crate) limit: Limit,
}

/// Upper or lower limit of a value, inclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Threshold {
    pub(crate) fn status(&self) -> &'static str {
        let met = |value| match self.limit {
            Limit::AtMost(max) => value <= max,
            Limit::AtLeast(min) => value >= min,
        };
        match self.value {
            Some(value) if met(value) => "met",
            Some(_) => "NOT MET",
            None => "not measured",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::AtMost(max) => write!(f, "at most {max}"),
            Limit::AtLeast(min) => write!(f, "at least {min}"),
        }
    }
}

/// Prints the thresholds as a Markdown table.
pub(crate) fn print(thresholds: impl Iterator<Item = Threshold>) {
    let mut text = String::from("\n| threshold | gristmill | expected | |\n|---|---:|---:|---|\n");
    for threshold in thresholds {
        let value = threshold.value.map_or_else(|| "?".to_owned(), |value| format!("{value:.2}"));
        let _ = writeln!(text, "| {} | {value} | {} | {} |", threshold.what, threshold.limit, threshold.status());
    }
    print!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_inclusive_and_nan_is_not_met() {
        for (value, limit, status) in [
            (1.0, Limit::AtMost(1.0), "met"),
            (1.1, Limit::AtMost(1.0), "NOT MET"),
            (0.8, Limit::AtLeast(0.8), "met"),
            (0.7, Limit::AtLeast(0.8), "NOT MET"),
            (f64::NAN, Limit::AtLeast(0.8), "NOT MET"),
        ] {
            let threshold = Threshold { what: String::new(), value: Some(value), limit };
            assert_eq!(threshold.status(), status, "{value} {limit}");
        }
    }
}
