//! Progress line and final summary of consumers.

use std::time::Duration;

use gristmill_amqp::ClientStats;
use gristmill_amqp::stats::{ConsumerStats, StatsHandle};
use serde_json::{Value, json};

use super::super::to_object;
use crate::error::Error;
use crate::output::{Output, truncate};
use crate::progress::{ProgressLine, ProgressReporter, RateMeter};
use crate::units::{count_of, in_seconds, thousands};

/// Characters of the reason of a pause in the progress line.
const MAX_REASON_CHARS: usize = 60;

pub(super) fn start_progress(handle: StatsHandle, quiet: bool) -> ProgressReporter {
    let mut rate = RateMeter::recent();
    ProgressReporter::start(quiet, move |_| {
        let stats = handle.stats();
        let sum = Totals::of(&stats);
        progress_line(&sum, rate.rate(sum.acknowledged).round() as u64, &describe_state(&stats))
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
    let mut line = ProgressLine::new(state);
    line.push(8, format!("{}/s", thousands(rate)));
    line.push(7, format!("{} acknowledged", thousands(sum.acknowledged)));
    line.push(5, format!("{} in flight", thousands(sum.in_flight)));
    if let Some(lag) = sum.lag {
        line.push(6, format!("{} waiting", thousands(lag)));
    }
    for (count, what, importance) in [
        (sum.postponed, "postponed", 5),
        (sum.retried, "retried", 3),
        (sum.dead_lettered, "dead-lettered", 4),
        (sum.skipped, "skipped", 2),
    ] {
        if count > 0 {
            line.push(importance, format!("{} {what}", thousands(count)));
        }
    }
    line
}

pub(super) fn summary_json(stats: &ClientStats, elapsed: Duration, interrupted: bool) -> Result<Value, Error> {
    let mut value = to_object(stats)?;
    value.insert("seconds".to_owned(), json!(elapsed.as_secs_f64()));
    value.insert("interrupted".to_owned(), json!(interrupted));
    Ok(Value::Object(value))
}

pub(super) fn summary_text(stats: &ClientStats, elapsed: Duration, output: &Output) -> String {
    let milliseconds = |nanos: u64| format!("{:.1} ms", nanos as f64 / 1e6);
    let row = |one: &ConsumerStats| {
        let times = one.handler.as_ref().map(|handler| [handler.p50_ns, handler.p99_ns].map(milliseconds));
        let mut row = vec![one.name.clone(), one.queue.clone()];
        row.extend([one.received, one.handled, one.retried, one.dead_lettered, one.skipped].map(thousands));
        row.extend(times.unwrap_or_default());
        row
    };
    let headers = ["CONSUMER", "QUEUE", "RECEIVED", "HANDLED", "RETRIED", "DEAD", "SKIPPED", "P50", "P99"];
    let sum = Totals::of(stats);
    let seconds = elapsed.as_secs_f64();
    let mut text = output.table(&headers, stats.consumers.iter().map(row));
    text.push_str(&format!(
        "{} done {}",
        count_of(sum.handled, "message"),
        in_seconds(sum.handled, seconds, thousands)
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
