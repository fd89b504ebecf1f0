//! How far a scan has come, on standard error.
//!
//! Owns the line that is drawn again and again on a terminal, and the plain lines elsewhere. It only reads; nothing
//! waits for it.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gristmill_dedup::{Control, Phase, Progress};

use crate::output::{aside, bytes, grouped};

/// How often a terminal is drawn, and how often a log gets a line.
const DRAWN: Duration = Duration::from_millis(100);
const LOGGED: Duration = Duration::from_secs(10);

/// The bar's cells.
const BAR: u64 = 24;

/// Shows until it is ended.
pub(crate) struct Shown(Option<(Sender<()>, JoinHandle<()>)>);

impl Shown {
    /// Begins to show, unless that is not wanted.
    pub(crate) fn start(control: &Arc<Control>, quiet: bool) -> Self {
        if quiet {
            return Shown(None);
        }
        let terminal = io::stderr().is_terminal();
        let width = || terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| width.0);
        let (end, ended) = mpsc::channel();
        let control = control.clone();
        let show = move || {
            let started = Instant::now();
            let mut pace = Pace::default();
            loop {
                let wait = if terminal { DRAWN } else { LOGGED };
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                let line = line(&control.progress(), started.elapsed(), &mut pace, terminal);
                if terminal {
                    draw(&line, usize::from(width()));
                } else {
                    aside(&line);
                }
            }
            if terminal {
                draw("", usize::from(width()));
            }
        };
        // Without a thread nothing is shown, and all is done.
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
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

fn line(progress: &Progress, elapsed: Duration, pace: &mut Pace, terminal: bool) -> String {
    let Progress { folders, files, busy, workers, .. } = *progress;
    let seconds = elapsed.as_secs();
    let clock = format!("{}:{:02}", seconds / 60, seconds % 60);
    let errors = match progress.errors {
        0 => String::new(),
        errors => format!(" · {} unreadable", grouped(errors)),
    };
    match progress.phase {
        Phase::Starting | Phase::Walking => format!(
            "walking  {} folders · {} files · {}{errors} · {busy}/{workers} busy · {clock}",
            grouped(folders),
            grouped(files),
            bytes(progress.bytes)
        ),
        Phase::Planning => format!("planning  {} files · {clock}", grouped(files)),
        Phase::Edges | Phase::Contents => {
            let rate = pace.rate(progress);
            let left = progress.bytes_to_read.saturating_sub(progress.bytes_read);
            let eta = if rate > 0.0 {
                format!(" · {} left", short((left as f64 / rate) as u64))
            } else {
                String::new()
            };
            let bar = if terminal { bar(progress) } else { String::new() };
            format!(
                "reading  {bar}{} of {} files · {} of {} · {}/s{eta}{errors} · {busy}/{workers} busy · {clock}",
                grouped(progress.read),
                grouped(progress.to_read),
                bytes(progress.bytes_read),
                bytes(progress.bytes_to_read),
                bytes(rate as u64)
            )
        }
        Phase::Finishing => format!("finishing · {clock}"),
    }
}

fn bar(progress: &Progress) -> String {
    let done = (progress.bytes_read * BAR).checked_div(progress.bytes_to_read).unwrap_or(BAR).min(BAR);
    let cells: String = (0..BAR).map(|cell| if cell < done { '█' } else { '░' }).collect();
    format!("{cells} ")
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
fn draw(line: &str, width: usize) {
    let cut: String = line.chars().take(width.saturating_sub(1)).collect();
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "\r\u{1b}[K{cut}").and_then(|()| stderr.flush());
}
