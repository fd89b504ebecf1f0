//! Prints the latencies of pages, and checks the thresholds.

use super::{
    commands::Commands,
    latency::{Latencies, PageLatencies},
    page::{self, Position},
};
use crate::{
    comparison::{median, print_table},
    threshold::{self, Limit::AtMost, Threshold},
};

/// Maximum p99 of a page in ms, without and with a scan that writes.
const MAX_MS: f64 = 5.0;
const MAX_WRITING_MS: f64 = 20.0;

/// Maximum ratio of the p99 of the last page to that of the first.
const MAX_LAST_RATIO: f64 = 1.5;

impl PageLatencies {
    pub(super) fn print(&self) {
        let calls = self.orders.iter().flat_map(|(_, positions)| positions.iter().map(Latencies::calls));
        let (files, groups, calls) = (self.files, self.groups, calls.min().unwrap_or_default());
        println!("\n{}, ms ({files} files, {groups} groups, {calls} calls or more)\n", self.title());
        let head = [String::new()].into_iter().chain(
            Position::NAMES
                .iter()
                .flat_map(|position| ["p50", "p99"].map(|percentile| format!("{position} {percentile}"))),
        );
        let head: Vec<String> = head.chain(["last × first".to_owned()]).collect();
        let rows = self.orders.iter().map(|(order, positions)| {
            let cells = positions.iter().flat_map(|latencies| [latencies.percentile(50.0), latencies.p99()]);
            let cells = cells.chain([last_ratio(positions)]).map(|value| format!("{value:.2}"));
            [page::name(*order).to_owned()].into_iter().chain(cells).collect()
        });
        print_table(&head.iter().map(String::as_str).collect::<Vec<_>>(), rows);
        if let Some(written) = self.written {
            println!("\nwritten: {} files, {:.0} per second", written.files, written.files_per_second);
        }
    }

    fn title(&self) -> &'static str {
        if self.written.is_some() { "pages of 200 groups while a scan writes" } else { "pages of 200 groups" }
    }
}

fn last_ratio(positions: &[Latencies]) -> f64 {
    match positions {
        [first, .., last] => last.p99() / first.p99(),
        _ => f64::NAN,
    }
}

/// Prints the thresholds, for the pages of the largest catalog.
pub(super) fn print_thresholds(pages: &[PageLatencies], commands: Option<&Commands>) {
    let files = pages.iter().map(|table| table.files).max();
    let largest = pages.iter().filter(|table| Some(table.files) == files);
    threshold::print(largest.flat_map(of_pages).chain(commands.into_iter().flat_map(of_commands)));
}

fn of_pages(table: &PageLatencies) -> Vec<Threshold> {
    let mut thresholds = Vec::new();
    for (order, positions) in &table.orders {
        let mut add = |what: &str, value, limit| {
            let what = format!("{}, by {}, {} files: {what}", table.title(), page::name(*order), table.files);
            thresholds.push(Threshold { what, value: Some(value), limit: AtMost(limit) });
        };
        let slowest = positions.iter().map(Latencies::p99).fold(0.0, f64::max);
        if table.written.is_some() {
            add("p99 in ms", slowest, MAX_WRITING_MS);
        } else {
            add("p99 in ms", slowest, MAX_MS);
            add("p99 of the last × the first", last_ratio(positions), MAX_LAST_RATIO);
        }
    }
    thresholds
}

fn of_commands(commands: &Commands) -> Vec<Threshold> {
    let rows = commands.rows.iter().filter_map(|row| {
        let what = format!("first output of {}, {} files: ms", row.name, commands.files);
        Some(Threshold { what, value: Some(median(&row.first_ms)), limit: AtMost(row.limit_ms?) })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{commands, latency::tests::latencies, writer::Written};

    fn table(written: Option<Written>) -> PageLatencies {
        let positions = [[1.0, 4.0], [1.0, 10.0], [2.0, 6.0]].map(|times| latencies(&times));
        PageLatencies {
            files: 10,
            groups: 3,
            written,
            orders: vec![(gristmill_store::catalog::SortBy::Size, positions.into())],
        }
    }

    #[test]
    fn slowest_position_and_last_page_are_checked() {
        let statuses = |thresholds: Vec<Threshold>| {
            thresholds.iter().map(|threshold| (threshold.value, threshold.status())).collect::<Vec<_>>()
        };
        assert_eq!(statuses(of_pages(&table(None))), [(Some(10.0), "NOT MET"), (Some(1.5), "met")]);
        let written = Written { files: 1, files_per_second: 1.0 };
        assert_eq!(statuses(of_pages(&table(Some(written)))), [(Some(10.0), "met")]);
        let rows = [("a", 101.0, Some(100.0)), ("b", 5.0, None), ("c", 2_999.0, Some(3_000.0))];
        let rows = rows.map(|(name, first, limit)| commands::tests::row(name, first, limit)).into();
        assert_eq!(
            statuses(of_commands(&Commands { files: 10, rows })),
            [(Some(101.0), "NOT MET"), (Some(2_999.0), "met")]
        );
    }
}
