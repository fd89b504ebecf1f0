//! How far a command has come, on standard error.
//!
//! Owns the line that is drawn again and again on a terminal, and the plain lines elsewhere. It only reads; nothing
//! waits for it. What the line says is each command's own affair.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::output::note;

/// How often it looks, and draws on a terminal; and how often a log gets a line.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The bar's cells, where there is room and where there is little.
const WIDE_BAR_CELLS: usize = 24;
const NARROW_BAR_CELLS: usize = 10;

/// What there is to say at one moment.
pub(super) struct ProgressLine {
    /// In their order.
    pub(super) segments: Vec<Segment>,
    /// How far it is, in percent, where that can be told.
    pub(super) bar: Option<u64>,
}

/// A part of the line, and how much it matters: those that matter least go first where there is little room.
pub(super) struct Segment(pub(super) u8, pub(super) String);

/// Shows until it is ended.
pub(crate) struct ProgressReporter(Option<(Sender<()>, JoinHandle<()>)>);

impl ProgressReporter {
    /// Begins to show, unless that is not wanted. `tell` is asked again and again, with the time since the beginning.
    pub(super) fn start(quiet: bool, tell: impl FnMut(Duration) -> ProgressLine + Send + 'static) -> Self {
        if quiet {
            return ProgressReporter(None);
        }
        let (end, ended) = mpsc::channel();
        // Without a thread nothing is shown, and all is done.
        let thread = std::thread::Builder::new().name("progress".to_owned());
        let thread = thread.spawn(move || show(tell, &ended)).ok();
        ProgressReporter(thread.map(|thread| (end, thread)))
    }

    /// Takes the line away.
    pub(crate) fn end(self) {
        if let Some((end, thread)) = self.0 {
            drop(end);
            drop(thread.join());
        }
    }
}

fn show(mut tell: impl FnMut(Duration) -> ProgressLine, ended: &Receiver<()>) {
    let terminal = io::stderr().is_terminal();
    let width = || terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| width.0);
    let started = Instant::now();
    let (mut logged, mut last) = (started, String::new());
    while ended.recv_timeout(DRAW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let line = tell(started.elapsed());
        if terminal {
            draw(&line.fit(usize::from(width()).saturating_sub(1)));
        } else if logged.elapsed() >= LOG_INTERVAL {
            logged = Instant::now();
            // Where nothing happens, nothing is said.
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

/// How fast it goes.
#[derive(Default)]
pub(super) struct RateMeter {
    since: Option<(Instant, u64)>,
}

impl RateMeter {
    /// Bytes a second since it was asked first.
    pub(super) fn rate(&mut self, bytes: u64) -> f64 {
        let (begun, before) = *self.since.get_or_insert((Instant::now(), bytes));
        let seconds = begun.elapsed().as_secs_f64();
        if seconds < 0.2 { 0.0 } else { bytes.saturating_sub(before) as f64 / seconds }
    }
}

impl ProgressLine {
    /// As many of the parts as there is room for, in their order, with a bar behind the first.
    pub(super) fn fit(&self, width: usize) -> String {
        let line = |least: u8, cells: usize| {
            let drawn = self.bar.filter(|_| cells > 0).map(|percent| bar_text(percent, cells));
            let mut shown: Vec<&str> =
                self.segments.iter().filter(|part| part.0 >= least).map(|part| part.1.as_str()).collect();
            shown.splice(1.min(shown.len())..1.min(shown.len()), drawn.as_deref());
            shown.join(" · ")
        };
        let with_bar = (0..=4).map(|least| line(least, NARROW_BAR_CELLS));
        let mut lines = std::iter::once(line(0, WIDE_BAR_CELLS))
            .chain(with_bar)
            .chain((5..=9).map(|least| line(least, 0)));
        let fits = lines.find(|line| line.chars().count() <= width);
        fits.unwrap_or_else(|| line(9, 0).chars().take(width).collect())
    }
}

/// How much of a whole, in percent. All of nothing.
pub(super) fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(100).min(100)
}

fn bar_text(percent: u64, cells: usize) -> String {
    let done = percent as usize * cells / 100;
    (0..cells).map(|cell| if cell < done { '█' } else { '░' }).collect()
}

/// Draws over the line that was there.
fn draw(line: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "\r\u{1b}[K{line}").and_then(|()| stderr.flush());
}
