//! How far a scan has come.

use std::sync::Arc;
use std::time::Duration;

use gristmill_dedup::{ScanHandle, ScanPhase, ScanProgress};

use super::super::progress::{ProgressLine, ProgressReporter, RateMeter, Segment, percent};
use crate::output::{bytes, count_of, format_seconds, thousands};

/// Shows it until it is ended.
pub(super) fn show(control: &Arc<ScanHandle>, quiet: bool) -> ProgressReporter {
    let control = control.clone();
    let mut pace = RateMeter::default();
    let mut phase = ScanPhase::Starting;
    ProgressReporter::start(quiet, move |elapsed| {
        let progress = control.progress();
        if phase != progress.phase {
            phase = progress.phase;
            tracing::info!("{}", name(phase));
        }
        line(&progress, elapsed, &mut pace, control.is_cancelled())
    })
}

fn line(progress: &ScanProgress, elapsed: Duration, pace: &mut RateMeter, stopping: bool) -> ProgressLine {
    let bar = (is_reading(progress.phase) && !stopping).then(|| done(progress));
    ProgressLine { segments: parts(progress, elapsed, pace, stopping), bar }
}

fn done(progress: &ScanProgress) -> u64 {
    percent(progress.bytes_read, progress.bytes_to_read)
}

fn name(phase: ScanPhase) -> &'static str {
    match phase {
        ScanPhase::Starting | ScanPhase::Walking => "walking",
        ScanPhase::Planning => "planning",
        ScanPhase::Samples | ScanPhase::Contents => "reading",
        ScanPhase::Finishing => "finishing",
    }
}

fn is_reading(phase: ScanPhase) -> bool {
    matches!(phase, ScanPhase::Samples | ScanPhase::Contents)
}

fn parts(progress: &ScanProgress, elapsed: Duration, pace: &mut RateMeter, stopping: bool) -> Vec<Segment> {
    let mut parts = Vec::new();
    let phase = progress.phase;
    if stopping {
        parts.push(Segment(9, "stopping: what was found is being saved".to_owned()));
    } else if is_reading(phase) {
        parts.push(Segment(9, format!("reading {:>3} %", done(progress))));
    } else {
        parts.push(Segment(9, name(phase).to_owned()));
    }
    match phase {
        ScanPhase::Starting | ScanPhase::Walking => {
            parts.push(Segment(6, count_of(progress.folders, "folder")));
            parts.push(Segment(8, count_of(progress.files, "file")));
            parts.push(Segment(7, bytes(progress.bytes)));
            // Some scans read while they walk.
            if progress.bytes_read > 0 {
                parts.push(Segment(3, format!("{} read", bytes(progress.bytes_read))));
            }
        }
        ScanPhase::Planning => parts.push(Segment(8, count_of(progress.files, "file"))),
        ScanPhase::Samples | ScanPhase::Contents => {
            let rate = pace.rate(progress.bytes_read);
            let left = progress.bytes_to_read.saturating_sub(progress.bytes_read);
            parts.push(Segment(
                3,
                format!("{} of {}", thousands(progress.read), count_of(progress.to_read, "file")),
            ));
            parts.push(Segment(
                7,
                format!("{} of {}", bytes(progress.bytes_read), bytes(progress.bytes_to_read)),
            ));
            parts.push(Segment(6, format!("{}/s", bytes(rate as u64))));
            if rate > 0.0 && !stopping {
                parts.push(Segment(8, format!("{} left", format_seconds((left as f64 / rate) as u64))));
            }
        }
        ScanPhase::Finishing => {}
    }
    if progress.errors > 0 {
        parts.push(Segment(5, format!("{} unreadable", thousands(progress.errors))));
    }
    if !matches!(phase, ScanPhase::Planning | ScanPhase::Finishing) {
        parts.push(Segment(1, format!("{}/{} busy", progress.busy, progress.workers)));
    }
    // Where the end cannot be told, how long it has taken says more.
    parts.push(Segment(if is_reading(phase) { 2 } else { 4 }, format_seconds(elapsed.as_secs())));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(progress: &ScanProgress, width: usize) -> String {
        super::line(progress, Duration::from_secs(75), &mut RateMeter::default(), false).fit(width)
    }

    #[test]
    fn the_line_fits_and_keeps_what_matters() {
        let progress = ScanProgress {
            phase: ScanPhase::Contents,
            read: 1_234,
            to_read: 56_789,
            bytes_read: 5 << 30,
            bytes_to_read: 20 << 30,
            errors: 3,
            busy: 16,
            workers: 16,
            ..ScanProgress::default()
        };
        let whole = "reading  25 % · ██████░░░░░░░░░░░░░░░░░░ · 1,234 of 56,789 files · 5.0 GiB of 20.0 GiB · 0 B/s · \
                     3 unreadable · 16/16 busy · 1:15 min";
        assert_eq!(line(&progress, 200), whole);
        let narrow = "reading  25 % · ██░░░░░░░░ · 5.0 GiB of 20.0 GiB · 0 B/s · 3 unreadable";
        assert_eq!(line(&progress, 79), narrow);
        assert_eq!(line(&progress, 60), "reading  25 % · 5.0 GiB of 20.0 GiB · 0 B/s · 3 unreadable");
        assert_eq!(line(&progress, 30), "reading  25 %");
        assert_eq!(line(&progress, 5), "readi");
        let walking =
            ScanProgress { phase: ScanPhase::Walking, folders: 1, files: 2_000, ..ScanProgress::default() };
        assert_eq!(line(&walking, 80), "walking · 1 folder · 2,000 files · 0 B · 0/0 busy · 1:15 min");
    }
}
