//! Measures candidates alternately, excludes wrong results, and compares the rest.
//!
//! Owns the order of the runs and the validity of results. A benchmark defines its candidates, its samples and its
//! tables.

use std::path::Path;

use crate::{
    options::CompareTaskOptions,
    process::Run,
    threshold::{Limit, Threshold},
};

/// Suffix of the names of candidates from an earlier build.
pub(crate) const BEFORE: &str = ", before";

/// Limits of the ratio to an earlier build: at most 3 % slower.
pub(crate) const MAX_TIME_RATIO: Limit = Limit::AtMost(1.03);
pub(crate) const MIN_RATE_RATIO: Limit = Limit::AtLeast(0.97);

/// Measurements of one candidate.
pub(crate) struct Row<S> {
    pub(crate) name: String,
    pub(crate) samples: Vec<S>,
    /// Mistakes of the first wrong result.
    pub(crate) mistakes: Option<String>,
    /// Error that ended its measurements.
    pub(crate) error: Option<String>,
}

impl<S> Row<S> {
    pub(crate) fn new(name: &str) -> Self {
        Row { name: name.to_owned(), samples: Vec::new(), mistakes: None, error: None }
    }

    pub(crate) fn values(&self, value: impl Fn(&S) -> f64) -> Vec<f64> {
        self.samples.iter().map(value).collect()
    }

    /// Returns whether it completed every run with a correct result.
    pub(crate) fn is_valid(&self) -> bool {
        self.error.is_none() && self.mistakes.is_none() && !self.samples.is_empty()
    }

    /// Returns the result as a cell of a table.
    pub(crate) fn result(&self) -> String {
        let mistakes = self.mistakes.as_ref().map(|mistakes| format!("WRONG: {mistakes}"));
        let result = self.error.clone().or(mistakes).unwrap_or_else(|| "correct".into());
        result.replace(['\n', '|'], " ")
    }

    /// Adds a run: its sample and the mistakes in its result. After an error it is not measured again.
    fn add(&mut self, run: Result<(S, Option<String>), String>) {
        match run {
            Ok((sample, mistakes)) => {
                self.samples.push(sample);
                self.mistakes = self.mistakes.take().or(mistakes);
            }
            Err(error) => self.error = Some(error),
        }
    }
}

/// A candidate of the pool and jobs benchmarks, and the program that measures it: this one, or an earlier build of it.
pub(crate) struct Entry<'a> {
    pub(crate) candidate: &'static str,
    pub(crate) before: Option<&'a Path>,
}

impl Entry<'_> {
    pub(crate) fn name(&self) -> String {
        let suffix = if self.before.is_some() { BEFORE } else { "" };
        format!("{}{suffix}", self.candidate)
    }
}

/// Returns the chosen candidates. Each of Gristmill's is followed by the same candidate of the earlier build.
pub(crate) fn entries(
    candidates: impl Iterator<Item = &'static str>,
    options: &CompareTaskOptions,
) -> impl Iterator<Item = Entry<'_>> {
    let chosen = candidates.filter(|candidate| candidate.contains(&options.common.only));
    chosen.flat_map(|candidate| {
        let before = options.before.as_deref().filter(|_| candidate.starts_with("gristmill"));
        let earlier = before.map(|program| Entry { candidate, before: Some(program) });
        std::iter::once(Entry { candidate, before: None }).chain(earlier)
    })
}

/// Measures all candidates alternately, `reps` times. `measure` gets the index of a candidate and the repetition;
/// it returns `None` if the candidate is not measured in this repetition.
pub(crate) fn alternate<S>(
    mut rows: Vec<Row<S>>,
    reps: usize,
    mut measure: impl FnMut(usize, usize) -> Option<Result<(S, Option<String>), String>>,
) -> Vec<Row<S>> {
    for repetition in 0..reps {
        for nth in 0..rows.len() {
            // Each repetition starts with another candidate, so that no candidate always follows the same one.
            let index = (nth + repetition) % rows.len();
            if rows[index].error.is_none()
                && let Some(run) = measure(index, repetition)
            {
                rows[index].add(run);
            }
        }
    }
    rows
}

/// Returns the valid measurements of a candidate.
pub(crate) fn valid<'a, S>(rows: &'a [Row<S>], name: &str) -> Option<&'a Row<S>> {
    rows.iter().find(|row| row.name == name && row.is_valid())
}

pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

pub(crate) fn minimum(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::INFINITY, f64::min)
}

pub(crate) fn maximum(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(0.0, f64::max)
}

/// Returns the median of the ratios of measurements made in the same repetition: the load of the machine affects both.
pub(crate) fn ratio(samples: &[f64], base: &[f64]) -> f64 {
    let pairs: Vec<f64> = samples.iter().zip(base).map(|(a, b)| a / b).collect();
    median(&pairs)
}

/// Compares each candidate with that of the earlier build. `limit`: [`MAX_TIME_RATIO`] or [`MIN_RATE_RATIO`].
pub(crate) fn before_thresholds<S>(
    rows: &[Row<S>],
    what: &str,
    value: impl Fn(&S) -> f64,
    limit: Limit,
) -> Vec<Threshold> {
    let compared = rows.iter().filter(|row| row.is_valid()).filter_map(|before| {
        let name = before.name.strip_suffix(BEFORE)?;
        let ratio = ratio(&valid(rows, name)?.values(&value), &before.values(&value));
        Some(Threshold { what: format!("{what}{name} × before"), value: Some(ratio), limit })
    });
    compared.collect()
}

impl Row<Run> {
    pub(crate) fn seconds(&self) -> Vec<f64> {
        self.values(|run| run.seconds)
    }

    pub(crate) fn peak_mib(&self) -> f64 {
        maximum(&self.values(|run| run.peak_mib))
    }
}

/// Prints a Markdown table of candidates: the cells of each, between its name and its result. A candidate without
/// measurements has empty cells.
pub(crate) fn print_rows<S>(head: &[&str], rows: &[Row<S>], cells: impl Fn(&Row<S>) -> Vec<String>) {
    let all = [&[""], head, &["result"]].concat();
    let lines = rows.iter().map(|row| {
        let cells = if row.samples.is_empty() { vec![String::new(); head.len()] } else { cells(row) };
        [vec![row.name.clone()], cells, vec![row.result()]].concat()
    });
    print_table(&all, lines);
}

/// Prints a Markdown table. The first cell of a row is its name; other columns are aligned right, except `result`.
pub(crate) fn print_table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let cell = |text: &str| if text.is_empty() { " |".to_owned() } else { format!(" {text} |") };
    let align = |(nth, head): (usize, &&str)| if nth == 0 || *head == "result" { "---|" } else { "---:|" };
    println!("|{}", head.iter().map(|text| cell(text)).collect::<String>());
    println!("|{}", head.iter().enumerate().map(align).collect::<String>());
    for row in rows {
        println!("|{}", row.iter().map(|text| cell(text)).collect::<String>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_ratio_use_the_middle_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(ratio(&[2.0, 30.0, 2.0], &[1.0, 10.0, 2.0]), 2.0);
    }

    #[test]
    fn candidates_alternate_and_stop_after_an_error() {
        let mut order = Vec::new();
        let rows = ["a", "b", "c"].map(Row::new).into();
        let rows = alternate(rows, 3, |index, repetition| {
            order.push((repetition, index));
            Some(match (index, repetition) {
                (1, 1) => Err("connection refused".to_owned()),
                (2, _) => Ok((repetition, Some(format!("wrong {repetition}")))),
                _ => Ok((repetition, None)),
            })
        });
        assert_eq!(order, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0), (2, 2), (2, 0)]);
        assert_eq!(rows[0].samples, [0, 1, 2]);
        let results: Vec<_> = rows.iter().map(|row| (row.is_valid(), row.result())).collect();
        let expected = [(true, "correct"), (false, "connection refused"), (false, "WRONG: wrong 0")];
        assert_eq!(results, expected.map(|(valid, text)| (valid, text.to_owned())));
    }

    #[test]
    fn slower_than_the_earlier_build_is_not_met() {
        let row = |name: &str, value: f64| Row { samples: vec![value; 3], ..Row::new(name) };
        let statuses = |now, limit| {
            let rows = [row("base", 9.0), row("x", now), row("x, before", 100.0)];
            before_thresholds(&rows, "", |value| *value, limit).iter().map(Threshold::status).collect::<Vec<_>>()
        };
        assert_eq!((statuses(97.0, MIN_RATE_RATIO), statuses(96.0, MIN_RATE_RATIO)), (vec!["met"], vec!["NOT MET"]));
        assert_eq!((statuses(103.0, MAX_TIME_RATIO), statuses(104.0, MAX_TIME_RATIO)), (vec!["met"], vec!["NOT MET"]));
        assert!(before_thresholds(&[row("x", 1.0)], "", |value| *value, MAX_TIME_RATIO).is_empty());
    }
}
