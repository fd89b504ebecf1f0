//! Bars: what is to be reached, and whether it was.

use std::fmt::Write;

/// A value and the most that it may be.
pub(crate) struct Bar {
    pub(crate) what: String,
    /// Nothing, where it could not be measured.
    pub(crate) value: Option<f64>,
    pub(crate) most: f64,
}

impl Bar {
    pub(crate) fn verdict(&self) -> &'static str {
        match self.value {
            Some(value) if value <= self.most => "met",
            Some(_) => "NOT MET",
            None => "not measured",
        }
    }
}

/// Prints them as a Markdown table.
pub(crate) fn print(bars: impl Iterator<Item = Bar>) {
    let mut text = String::from("\n| bar | ours | at most | |\n|---|---:|---:|---|\n");
    for bar in bars {
        let value = bar.value.map_or_else(|| "?".to_owned(), |value| format!("{value:.2}"));
        let _ = writeln!(text, "| {} | {value} | {} | {} |", bar.what, bar.most, bar.verdict());
    }
    print!("{text}");
}
