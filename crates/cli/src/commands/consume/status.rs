//! What is told of consumers: a line while they work, a table in the end.

use std::time::{Duration, Instant};

use gristmill_amqp::{ClientStats, stats::StatsHandle};
use serde_json::{Value, json};

use super::super::progress::{ProgressLine, ProgressReporter, Segment};
use super::super::to_object;
use crate::error::Error;
use crate::output::{Output, count_of, format_duration, thousands};

/// Shows how it goes until it is ended.
pub(super) fn show(watch: StatsHandle, quiet: bool) -> ProgressReporter {
    let mut rate = Rate::default();
    ProgressReporter::start(quiet, move |_| {
        let stats = watch.stats();
        let sum = Sum::of(&stats);
        line(&sum, rate.of(sum.acknowledged), &state(&stats))
    })
}

/// All consumers together.
#[derive(Default)]
struct Sum {
    acknowledged: u64,
    done: u64,
    retried: u64,
    rejected: u64,
    skipped: u64,
    in_flight: u64,
    postponed: u64,
    lag: Option<u64>,
}

impl Sum {
    fn of(stats: &ClientStats) -> Self {
        stats.consumers.iter().fold(Sum::default(), |sum, one| Sum {
            acknowledged: sum.acknowledged + one.acknowledged,
            done: sum.done + one.done,
            retried: sum.retried + one.retried,
            rejected: sum.rejected + one.rejected,
            skipped: sum.skipped + one.skipped,
            in_flight: sum.in_flight + one.in_flight,
            postponed: sum.postponed + one.postponed,
            // Those at the broker, and those that wait here, as while consuming is paused.
            lag: one.lag.map(|lag| lag + one.waiting + sum.lag.unwrap_or(0)).or(sum.lag),
        })
    }
}

/// What consumers are doing.
fn state(stats: &ClientStats) -> String {
    let paused: Vec<_> = stats.consumers.iter().filter_map(|one| one.paused.as_deref()).collect();
    match paused.first() {
        _ if !stats.connected => "waiting for the broker".to_owned(),
        None => "consuming".to_owned(),
        Some(why) => {
            let why: String = why.lines().next().unwrap_or_default().chars().take(60).collect();
            let count = match (paused.len(), stats.consumers.len()) {
                (_, 1) => String::new(),
                (paused, all) => format!(" {paused} of {all}"),
            };
            format!("paused{count}: {why}")
        }
    }
}

fn line(sum: &Sum, rate: u64, state: &str) -> ProgressLine {
    let mut parts = vec![
        Segment(9, state.to_owned()),
        Segment(8, format!("{}/s", thousands(rate))),
        Segment(7, format!("{} acknowledged", thousands(sum.acknowledged))),
        Segment(5, format!("{} in flight", thousands(sum.in_flight))),
    ];
    parts.extend(sum.lag.map(|lag| Segment(6, format!("{} waiting", thousands(lag)))));
    for (count, what, weight) in [
        (sum.postponed, "to come back", 5),
        (sum.retried, "retried", 3),
        (sum.rejected, "rejected", 4),
        (sum.skipped, "skipped", 2),
    ] {
        if count > 0 {
            parts.push(Segment(weight, format!("{} {what}", thousands(count))));
        }
    }
    ProgressLine { segments: parts, bar: None }
}

/// How many a second, of late.
#[derive(Default)]
struct Rate {
    since: Option<(Instant, u64)>,
    last: u64,
}

impl Rate {
    fn of(&mut self, count: u64) -> u64 {
        let (begun, before) = *self.since.get_or_insert((Instant::now(), count));
        let seconds = begun.elapsed().as_secs_f64();
        if seconds >= 1.0 {
            self.last = (count.saturating_sub(before) as f64 / seconds).round() as u64;
            self.since = Some((Instant::now(), count));
        }
        self.last
    }
}

/// How it ended, for programs.
pub(super) fn value(stats: &ClientStats, elapsed: Duration, interrupted: bool) -> Result<Value, Error> {
    let mut value = to_object(stats)?;
    value.insert("seconds".to_owned(), json!(elapsed.as_secs_f64()));
    value.insert("interrupted".to_owned(), json!(interrupted));
    Ok(Value::Object(value))
}

/// How it ended, for people.
pub(super) fn text(stats: &ClientStats, elapsed: Duration, output: &Output) -> String {
    let milliseconds = |nanos: u64| format!("{:.1} ms", nanos as f64 / 1e6);
    let rows: Vec<Vec<String>> = stats
        .consumers
        .iter()
        .map(|one| {
            vec![
                one.name.clone(),
                one.queue.clone(),
                thousands(one.received),
                thousands(one.done),
                thousands(one.retried),
                thousands(one.rejected),
                thousands(one.skipped),
                one.handler.as_ref().map_or_else(String::new, |handler| milliseconds(handler.p50_ns)),
                one.handler.as_ref().map_or_else(String::new, |handler| milliseconds(handler.p99_ns)),
            ]
        })
        .collect();
    let headers =
        ["CONSUMER", "QUEUE", "RECEIVED", "DONE", "RETRIED", "REJECTED", "SKIPPED", "MEDIAN", "P99"];
    let sum = Sum::of(stats);
    let seconds = elapsed.as_secs_f64();
    let rate = if seconds > 0.0 { (sum.done as f64 / seconds) as u64 } else { 0 };
    let mut text = output.table(&headers, &rows);
    text.push_str(&format!(
        "{} done in {} ({}/s)",
        count_of(sum.done, "message"),
        format_duration(seconds),
        thousands(rate)
    ));
    if sum.postponed > 0 {
        let count = thousands(sum.postponed);
        text.push_str(&format!("; {count} postponed, which come back to their queue for another attempt"));
    }
    if sum.rejected > 0 {
        text.push_str(&format!(
            "; {} given up: see QUEUE.dead, or where --dead-letters says",
            thousands(sum.rejected)
        ));
    }
    text
}
