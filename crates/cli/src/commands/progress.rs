//! Progress of running commands, on standard error.
//!
//! Owns the line that is redrawn on a terminal, and the plain lines elsewhere. It runs on its own thread and only
//! reads; no work waits for it. Each command provides the segments of the line.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::output::note;

/// Interval at which the line is redrawn on a terminal.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which a line is printed elsewhere.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Cells of the bar on a wide and on a narrow terminal.
const WIDE_BAR_CELLS: usize = 24;
const NARROW_BAR_CELLS: usize = 10;

pub(super) struct ProgressLine {
    pub(super) segments: Vec<Segment>,
    /// Progress in percent, if it is known.
    pub(super) bar: Option<u64>,
}

/// A part of the line with its importance, 0 to 9. On a narrow terminal, the least important parts are dropped first.
pub(super) struct Segment(pub(super) u8, pub(super) String);

/// Thread that shows progress until it is ended.
pub(crate) struct ProgressReporter(Option<(Sender<()>, JoinHandle<()>)>);

impl ProgressReporter {
    /// Starts to show progress, unless `quiet`. `current` returns the line for the time since the start.
    pub(super) fn start(quiet: bool, current: impl FnMut(Duration) -> ProgressLine + Send + 'static) -> Self {
        if quiet {
            return ProgressReporter(None);
        }
        let (end, ended) = mpsc::channel();
        // If the thread cannot be started, the work continues without progress.
        let thread = std::thread::Builder::new().name("progress".to_owned());
        let thread = thread.spawn(move || show(current, &ended)).ok();
        ProgressReporter(thread.map(|thread| (end, thread)))
    }

    /// Stops the thread, which clears the line.
    pub(crate) fn end(self) {
        if let Some((end, thread)) = self.0 {
            drop(end);
            drop(thread.join());
        }
    }
}

fn show(mut current: impl FnMut(Duration) -> ProgressLine, ended: &Receiver<()>) {
    let terminal = io::stderr().is_terminal();
    let width = || terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| width.0);
    let started = Instant::now();
    let (mut logged, mut last) = (started, String::new());
    while ended.recv_timeout(DRAW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
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

/// Measures the rate at which bytes are processed.
#[derive(Default)]
pub(super) struct RateMeter {
    since: Option<(Instant, u64)>,
}

impl RateMeter {
    /// Returns bytes per second since the first call, or 0 in the first 0.2 s.
    pub(super) fn rate(&mut self, bytes: u64) -> f64 {
        let (begun, before) = *self.since.get_or_insert((Instant::now(), bytes));
        let seconds = begun.elapsed().as_secs_f64();
        if seconds < 0.2 { 0.0 } else { bytes.saturating_sub(before) as f64 / seconds }
    }
}

impl ProgressLine {
    /// Returns the most important segments that fit, in their order, with a bar after the first.
    pub(super) fn fit(&self, width: usize) -> String {
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
pub(super) fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(100).min(100)
}

fn bar_text(percent: u64, cells: usize) -> String {
    let done = percent as usize * cells / 100;
    (0..cells).map(|cell| if cell < done { '█' } else { '░' }).collect()
}

fn draw(line: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "\r\u{1b}[K{line}").and_then(|()| stderr.flush());
}
