//! Progress line and final summary of consumers.

use std::time::{Duration, Instant};

use gristmill_amqp::{ClientStats, stats::StatsHandle};
use serde_json::{Value, json};

use super::super::progress::{ProgressLine, ProgressReporter, Segment};
use super::super::to_object;
use crate::error::Error;
use crate::output::{Output, truncate};
use crate::units::{count_of, format_duration, thousands};

/// Characters of the reason of a pause in the progress line.
const MAX_REASON_CHARS: usize = 60;

pub(super) fn start_progress(handle: StatsHandle, quiet: bool) -> ProgressReporter {
    let mut rate = MessageRate::default();
    ProgressReporter::start(quiet, move |_| {
        let stats = handle.stats();
        let sum = Totals::of(&stats);
        progress_line(&sum, rate.update(sum.acknowledged), &describe_state(&stats))
    })
}

#[derive(Default)]
struct Totals {
    acknowledged: u64,
    handled: u64,
    retried: u64,
    dead_lettered: u64,
    skipped: u64,
    in_flight: u64,
    postponed: u64,
    lag: Option<u64>,
}

impl Totals {
    fn of(stats: &ClientStats) -> Self {
        stats.consumers.iter().fold(Totals::default(), |sum, one| Totals {
            acknowledged: sum.acknowledged + one.acknowledged,
            handled: sum.handled + one.handled,
            retried: sum.retried + one.retried,
            dead_lettered: sum.dead_lettered + one.dead_lettered,
            skipped: sum.skipped + one.skipped,
            in_flight: sum.in_flight + one.in_flight,
            postponed: sum.postponed + one.postponed,
            // Messages at the broker, and those waiting in this process, as while consuming is paused.
            lag: one.lag.map(|lag| lag + one.waiting + sum.lag.unwrap_or(0)).or(sum.lag),
        })
    }
}

/// Describes whether the consumers are connected, consuming or paused.
fn describe_state(stats: &ClientStats) -> String {
    let paused: Vec<_> = stats.consumers.iter().filter_map(|one| one.paused.as_deref()).collect();
    match paused.first() {
        _ if !stats.connected => "waiting for the broker".to_owned(),
        None => "consuming".to_owned(),
        Some(why) => {
            let why = why.lines().next().unwrap_or_default();
            let why = truncate(why, Some(MAX_REASON_CHARS));
            let count = match (paused.len(), stats.consumers.len()) {
                (_, 1) => String::new(),
                (paused, all) => format!(" {paused} of {all}"),
            };
            format!("paused{count}: {why}")
        }
    }
}

fn progress_line(sum: &Totals, rate: u64, state: &str) -> ProgressLine {
    let mut parts = vec![
        Segment(9, state.to_owned()),
        Segment(8, format!("{}/s", thousands(rate))),
        Segment(7, format!("{} acknowledged", thousands(sum.acknowledged))),
        Segment(5, format!("{} in flight", thousands(sum.in_flight))),
    ];
    parts.extend(sum.lag.map(|lag| Segment(6, format!("{} waiting", thousands(lag)))));
    for (count, what, weight) in [
        (sum.postponed, "postponed", 5),
        (sum.retried, "retried", 3),
        (sum.dead_lettered, "dead-lettered", 4),
        (sum.skipped, "skipped", 2),
    ] {
        if count > 0 {
            parts.push(Segment(weight, format!("{} {what}", thousands(count))));
        }
    }
    ProgressLine { segments: parts, bar: None }
}

/// Messages per second, updated every second.
#[derive(Default)]
struct MessageRate {
    since: Option<(Instant, u64)>,
    last: u64,
}

impl MessageRate {
    fn update(&mut self, count: u64) -> u64 {
        let (begun, before) = *self.since.get_or_insert((Instant::now(), count));
        let seconds = begun.elapsed().as_secs_f64();
        if seconds >= 1.0 {
            self.last = (count.saturating_sub(before) as f64 / seconds).round() as u64;
            self.since = Some((Instant::now(), count));
        }
        self.last
    }
}

pub(super) fn summary_json(stats: &ClientStats, elapsed: Duration, interrupted: bool) -> Result<Value, Error> {
    let mut value = to_object(stats)?;
    value.insert("seconds".to_owned(), json!(elapsed.as_secs_f64()));
    value.insert("interrupted".to_owned(), json!(interrupted));
    Ok(Value::Object(value))
}

pub(super) fn summary_text(stats: &ClientStats, elapsed: Duration, output: &Output) -> String {
    let milliseconds = |nanos: u64| format!("{:.1} ms", nanos as f64 / 1e6);
    let rows: Vec<Vec<String>> = stats
        .consumers
        .iter()
        .map(|one| {
            vec![
                one.name.clone(),
                one.queue.clone(),
                thousands(one.received),
                thousands(one.handled),
                thousands(one.retried),
                thousands(one.dead_lettered),
                thousands(one.skipped),
                one.handler.as_ref().map_or_else(String::new, |handler| milliseconds(handler.p50_ns)),
                one.handler.as_ref().map_or_else(String::new, |handler| milliseconds(handler.p99_ns)),
            ]
        })
        .collect();
    let headers = ["CONSUMER", "QUEUE", "RECEIVED", "HANDLED", "RETRIED", "DEAD", "SKIPPED", "P50", "P99"];
    let sum = Totals::of(stats);
    let seconds = elapsed.as_secs_f64();
    let rate = if seconds > 0.0 { (sum.handled as f64 / seconds) as u64 } else { 0 };
    let mut text = output.table(&headers, &rows);
    text.push_str(&format!(
        "{} done in {} ({}/s)",
        count_of(sum.handled, "message"),
        format_duration(seconds),
        thousands(rate)
    ));
    if sum.postponed > 0 {
        let count = thousands(sum.postponed);
        text.push_str(&format!("; {count} postponed (they return to their queue after the retry delay)"));
    }
    if sum.dead_lettered > 0 {
        text.push_str(&format!(
            "; {} dead-lettered (in QUEUE.dead or at --dead-letters)",
            thousands(sum.dead_lettered)
        ));
    }
    text
}
