//! How far a scan has come, on standard error.
//!
//! Owns the line that is drawn again and again on a terminal, and the plain lines elsewhere. It only reads; nothing
//! waits for it.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gristmill_dedup::{Control, Phase, Progress};

use crate::output::{aside, bytes, counted, grouped};

/// How often it looks, and draws on a terminal; and how often a log gets a line.
const DRAWN: Duration = Duration::from_millis(100);
const LOGGED: Duration = Duration::from_secs(10);

/// The bar's cells, where there is room and where there is little.
const WIDE: usize = 24;
const NARROW: usize = 10;

/// Shows until it is ended.
pub(crate) struct Shown(Option<(Sender<()>, JoinHandle<()>)>);

impl Shown {
    /// Begins to show, unless that is not wanted.
    pub(crate) fn start(control: &Arc<Control>, quiet: bool) -> Self {
        if quiet {
            return Shown(None);
        }
        let (end, ended) = mpsc::channel();
        let control = control.clone();
        // Without a thread nothing is shown, and all is done.
        let thread = std::thread::Builder::new().name("progress".to_owned());
        let thread = thread.spawn(move || show(&control, &ended)).ok();
        Shown(thread.map(|thread| (end, thread)))
    }

    /// Takes the line away.
    pub(crate) fn end(self) {
        if let Some((end, thread)) = self.0 {
            drop(end);
            drop(thread.join());
        }
    }
}

fn show(control: &Control, ended: &Receiver<()>) {
    let terminal = io::stderr().is_terminal();
    let width = || terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| width.0);
    let started = Instant::now();
    let mut logged = started;
    let mut pace = Pace::default();
    let mut phase = Phase::Starting;
    while ended.recv_timeout(DRAWN) == Err(RecvTimeoutError::Timeout) {
        let progress = control.progress();
        if phase != progress.phase {
            phase = progress.phase;
            tracing::info!("{}", name(phase));
        }
        let stopping = control.is_stopped();
        let parts = parts(&progress, started.elapsed(), &mut pace, stopping);
        if terminal {
            let bar = (is_reading(phase) && !stopping).then(|| percent(&progress));
            draw(&fitting(&parts, bar, usize::from(width()).saturating_sub(1)));
        } else if logged.elapsed() >= LOGGED {
            logged = Instant::now();
            aside(&fitting(&parts, None, usize::MAX));
        }
    }
    if terminal {
        draw("");
    }
}

/// How fast the reading goes.
#[derive(Default)]
struct Pace {
    since: Option<(Instant, u64)>,
}

impl Pace {
    /// Bytes a second since the reading began.
    fn rate(&mut self, progress: &Progress) -> f64 {
        let (begun, bytes) = *self.since.get_or_insert((Instant::now(), progress.bytes_read));
        let seconds = begun.elapsed().as_secs_f64();
        if seconds < 0.2 { 0.0 } else { progress.bytes_read.saturating_sub(bytes) as f64 / seconds }
    }
}

/// A part of the line, and how much it matters: those that matter least go first where there is little room.
struct Part(u8, String);

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting | Phase::Walking => "walking",
        Phase::Planning => "planning",
        Phase::Edges | Phase::Contents => "reading",
        Phase::Finishing => "finishing",
    }
}

fn is_reading(phase: Phase) -> bool {
    matches!(phase, Phase::Edges | Phase::Contents)
}

fn parts(progress: &Progress, elapsed: Duration, pace: &mut Pace, stopping: bool) -> Vec<Part> {
    let mut parts = Vec::new();
    let phase = progress.phase;
    if stopping {
        parts.push(Part(9, "stopping: what was found is being saved".to_owned()));
    } else if is_reading(phase) {
        parts.push(Part(9, format!("reading {:>3} %", percent(progress))));
    } else {
        parts.push(Part(9, name(phase).to_owned()));
    }
    match phase {
        Phase::Starting | Phase::Walking => {
            parts.push(Part(6, counted(progress.folders, "folder")));
            parts.push(Part(8, counted(progress.files, "file")));
            parts.push(Part(7, bytes(progress.bytes)));
            // Some scans read while they walk.
            if progress.bytes_read > 0 {
                parts.push(Part(3, format!("{} read", bytes(progress.bytes_read))));
            }
        }
        Phase::Planning => parts.push(Part(8, counted(progress.files, "file"))),
        Phase::Edges | Phase::Contents => {
            let rate = pace.rate(progress);
            let left = progress.bytes_to_read.saturating_sub(progress.bytes_read);
            parts.push(Part(
                3,
                format!("{} of {}", grouped(progress.read), counted(progress.to_read, "file")),
            ));
            parts.push(Part(
                7,
                format!("{} of {}", bytes(progress.bytes_read), bytes(progress.bytes_to_read)),
            ));
            parts.push(Part(6, format!("{}/s", bytes(rate as u64))));
            if rate > 0.0 && !stopping {
                parts.push(Part(8, format!("{} left", short((left as f64 / rate) as u64))));
            }
        }
        Phase::Finishing => {}
    }
    if progress.errors > 0 {
        parts.push(Part(5, format!("{} unreadable", grouped(progress.errors))));
    }
    if !matches!(phase, Phase::Planning | Phase::Finishing) {
        parts.push(Part(1, format!("{}/{} busy", progress.busy, progress.workers)));
    }
    // Where the end cannot be told, how long it has taken says more.
    parts.push(Part(if is_reading(phase) { 2 } else { 4 }, short(elapsed.as_secs())));
    parts
}

/// As many of the parts as there is room for, in their order, with a bar behind the first.
fn fitting(parts: &[Part], bar: Option<u64>, width: usize) -> String {
    let line = |least: u8, cells: usize| {
        let drawn = bar.filter(|_| cells > 0).map(|percent| drawn(percent, cells));
        let mut shown: Vec<&str> =
            parts.iter().filter(|part| part.0 >= least).map(|part| part.1.as_str()).collect();
        shown.splice(1.min(shown.len())..1.min(shown.len()), drawn.as_deref());
        shown.join(" · ")
    };
    let with_bar = (0..=4).map(|least| line(least, NARROW));
    let mut lines = std::iter::once(line(0, WIDE)).chain(with_bar).chain((5..=9).map(|least| line(least, 0)));
    let fits = lines.find(|line| line.chars().count() <= width);
    fits.unwrap_or_else(|| line(9, 0).chars().take(width).collect())
}

fn percent(progress: &Progress) -> u64 {
    progress.bytes_read.saturating_mul(100).checked_div(progress.bytes_to_read).unwrap_or(100).min(100)
}

fn drawn(percent: u64, cells: usize) -> String {
    let done = percent as usize * cells / 100;
    (0..cells).map(|cell| if cell < done { '█' } else { '░' }).collect()
}

/// Seconds, for a glance.
fn short(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3_600, seconds / 60 % 60),
    }
}

/// Draws over the line that was there.
fn draw(line: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "\r\u{1b}[K{line}").and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(progress: &Progress, width: usize) -> String {
        let mut pace = Pace { since: None };
        let bar = is_reading(progress.phase).then(|| percent(progress));
        fitting(&parts(progress, Duration::from_secs(75), &mut pace, false), bar, width)
    }

    #[test]
    fn the_line_fits_and_keeps_what_matters() {
        let progress = Progress {
            phase: Phase::Contents,
            read: 1_234,
            to_read: 56_789,
            bytes_read: 5 << 30,
            bytes_to_read: 20 << 30,
            errors: 3,
            busy: 16,
            workers: 16,
            ..Progress::default()
        };
        let whole = "reading  25 % · ██████░░░░░░░░░░░░░░░░░░ · 1,234 of 56,789 files · 5.0 GiB of 20.0 GiB · 0 B/s · \
                     3 unreadable · 16/16 busy · 1:15 min";
        assert_eq!(line(&progress, 200), whole);
        let narrow = "reading  25 % · ██░░░░░░░░ · 5.0 GiB of 20.0 GiB · 0 B/s · 3 unreadable";
        assert_eq!(line(&progress, 79), narrow);
        assert_eq!(line(&progress, 60), "reading  25 % · 5.0 GiB of 20.0 GiB · 0 B/s · 3 unreadable");
        assert_eq!(line(&progress, 30), "reading  25 %");
        assert_eq!(line(&progress, 5), "readi");
        let walking = Progress { phase: Phase::Walking, folders: 1, files: 2_000, ..Progress::default() };
        assert_eq!(line(&walking, 80), "walking · 1 folder · 2,000 files · 0 B · 0/0 busy · 1:15 min");
    }
}
