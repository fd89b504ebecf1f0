//! Progress of running commands, on standard error.
//!
//! Owns the line that is redrawn on a terminal, and the plain lines elsewhere. It runs on its own thread and only
//! reads; no work waits for it. Each command provides the segments of the line.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::output::{CLEAR_LINE, note};
use crate::units::{bytes, format_seconds};

/// Time after which the line is first drawn on a terminal. Shorter work shows no progress.
const FIRST_DRAW: Duration = Duration::from_millis(50);

/// Interval at which the line is redrawn on a terminal.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which a line is printed elsewhere.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Cells of the bar on a wide and on a narrow terminal.
const WIDE_BAR_CELLS: usize = 24;
const NARROW_BAR_CELLS: usize = 10;

pub(crate) struct ProgressLine {
    /// Parts of the line with their importance, 0 to 9. On a narrow terminal, the least important are dropped first.
    segments: Vec<(u8, String)>,
    /// Progress in percent, if it is known.
    pub(crate) bar: Option<u64>,
}

/// Thread that shows progress until this is dropped, which clears the line.
pub(crate) struct ProgressReporter(Option<(Sender<()>, JoinHandle<()>)>);

impl ProgressReporter {
    /// Starts to show progress, unless `quiet`. `current` returns the line for the time since the start.
    pub(crate) fn start(quiet: bool, current: impl FnMut(Duration) -> ProgressLine + Send + 'static) -> Self {
        if quiet {
            return ProgressReporter(None);
        }
        let (end, ended) = mpsc::channel();
        // If the thread cannot be started, the work continues without progress.
        let thread = std::thread::Builder::new().name("progress".to_owned());
        let thread = thread.spawn(move || show(current, &ended)).ok();
        ProgressReporter(thread.map(|thread| (end, thread)))
    }
}

/// Runs `work`, and shows what it does and for how long. For queries whose end cannot be predicted.
pub(crate) fn while_showing<T>(quiet: bool, what: &'static str, work: impl FnOnce() -> T) -> T {
    let line = move |elapsed: Duration| ProgressLine {
        segments: vec![(9, what.to_owned()), (5, format_seconds(elapsed.as_secs()))],
        bar: None,
    };
    let _progress = ProgressReporter::start(quiet, line);
    work()
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            drop(thread.join());
        }
    }
}

fn show(mut current: impl FnMut(Duration) -> ProgressLine, ended: &Receiver<()>) {
    let terminal = io::stderr().is_terminal();
    let width = || terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| width.0);
    let started = Instant::now();
    let (mut logged, mut last, mut interval) = (started, String::new(), FIRST_DRAW);
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        interval = DRAW_INTERVAL;
        let line = current(started.elapsed());
        if terminal {
            draw(&line.fit(usize::from(width()).saturating_sub(1)));
        } else if logged.elapsed() >= LOG_INTERVAL {
            logged = Instant::now();
            // An unchanged line is not repeated.
            let line = ProgressLine { bar: None, ..line }.fit(usize::MAX);
            if line != last {
                note(&line);
                last = line;
            }
        }
    }
    if terminal {
        draw("");
    }
}

/// Measures a rate per second.
#[derive(Default)]
pub(crate) struct RateMeter {
    since: Option<(Instant, u64)>,
    last: f64,
    is_recent: bool,
}

impl RateMeter {
    /// Measures the rate of the last second instead of the rate since the first call.
    pub(crate) fn recent() -> Self {
        RateMeter { is_recent: true, ..RateMeter::default() }
    }

    /// Returns the rate at which `count` grows; 0 until enough time has passed to measure it.
    pub(crate) fn rate(&mut self, count: u64) -> f64 {
        let (begun, before) = *self.since.get_or_insert((Instant::now(), count));
        let seconds = begun.elapsed().as_secs_f64();
        if seconds >= if self.is_recent { 1.0 } else { 0.2 } {
            self.last = count.saturating_sub(before) as f64 / seconds;
            self.since = self.since.filter(|_| !self.is_recent).or(Some((Instant::now(), count)));
        }
        self.last
    }
}

impl ProgressLine {
    /// Creates a line that begins with the state of the work.
    pub(crate) fn new(state: impl Into<String>) -> Self {
        ProgressLine { segments: vec![(9, state.into())], bar: None }
    }

    pub(crate) fn push(&mut self, importance: u8, text: impl Into<String>) {
        self.segments.push((importance, text.into()));
    }

    /// Adds the bytes done, of those in all if that is known, and the rate, which is returned.
    pub(crate) fn push_bytes(&mut self, done: u64, all: Option<u64>, meter: &mut RateMeter) -> f64 {
        let rate = meter.rate(done);
        self.push(7, all.map_or_else(|| bytes(done), |all| format!("{} of {}", bytes(done), bytes(all))));
        self.push(6, format!("{}/s", bytes(rate as u64)));
        rate
    }

    /// Adds the time left until `left` bytes are done, if it can be known.
    pub(crate) fn push_time_left(&mut self, left: u64, rate: f64) {
        if rate > 0.0 {
            self.push(8, format!("{} left", format_seconds((left as f64 / rate) as u64)));
        }
    }

    /// Returns the most important segments that fit, in their order, with a bar after the first.
    pub(crate) fn fit(&self, width: usize) -> String {
        let line = |min: u8, cells: usize| {
            let bar = self.bar.filter(|_| cells > 0).map(|percent| bar_text(percent, cells));
            let mut shown: Vec<&str> =
                self.segments.iter().filter(|part| part.0 >= min).map(|part| part.1.as_str()).collect();
            shown.splice(1.min(shown.len())..1.min(shown.len()), bar.as_deref());
            shown.join(" · ")
        };
        let with_bar = (0..=4).map(|min| line(min, NARROW_BAR_CELLS));
        let mut lines = std::iter::once(line(0, WIDE_BAR_CELLS)).chain(with_bar).chain((5..=9).map(|min| line(min, 0)));
        let fits = lines.find(|line| line.chars().count() <= width);
        fits.unwrap_or_else(|| line(9, 0).chars().take(width).collect())
    }
}

/// Returns a part of a whole in percent; 100 if the whole is 0.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(100).min(100)
}

fn bar_text(percent: u64, cells: usize) -> String {
    let done = percent as usize * cells / 100;
    (0..cells).map(|cell| if cell < done { '█' } else { '░' }).collect()
}

fn draw(line: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{CLEAR_LINE}{line}").and_then(|()| stderr.flush());
}
