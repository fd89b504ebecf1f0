//! Progress of a scan.

use std::sync::Arc;
use std::time::Duration;

use gristmill_dedup::{ScanHandle, ScanPhase, ScanProgress};

use crate::progress::{ProgressLine, RateMeter, percent};
use crate::units::{bytes, count_of, format_seconds, thousands};

/// Returns the function that describes a running scan.
pub(super) fn lines(control: &Arc<ScanHandle>) -> impl FnMut(Duration) -> ProgressLine + Send + 'static {
    let control = control.clone();
    let mut rate_meter = RateMeter::default();
    let mut phase = ScanPhase::Starting;
    move |elapsed| {
        let progress = control.progress();
        if phase != progress.phase {
            phase = progress.phase;
            tracing::info!("{}", name(phase));
        }
        line(&progress, elapsed, &mut rate_meter, control.is_cancelled())
    }
}

fn percent_read(progress: &ScanProgress) -> u64 {
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

fn line(progress: &ScanProgress, elapsed: Duration, rate_meter: &mut RateMeter, stopping: bool) -> ProgressLine {
    let phase = progress.phase;
    let mut line = match phase {
        _ if stopping => ProgressLine::new("stopping: saving what was found"),
        _ if is_reading(phase) => ProgressLine::new(format!("reading {:>3} %", percent_read(progress))),
        _ => ProgressLine::new(name(phase)),
    };
    line.bar = (is_reading(phase) && !stopping).then(|| percent_read(progress));
    match phase {
        ScanPhase::Starting | ScanPhase::Walking => {
            line.push(6, count_of(progress.folders, "folder"));
            line.push(8, count_of(progress.files, "file"));
            line.push(7, bytes(progress.bytes));
            // Some scans hash files while they walk.
            if progress.bytes_read > 0 {
                line.push(3, format!("{} read", bytes(progress.bytes_read)));
            }
        }
        ScanPhase::Planning => line.push(8, count_of(progress.files, "file")),
        ScanPhase::Samples | ScanPhase::Contents => {
            let ScanProgress { bytes_read, bytes_to_read, .. } = *progress;
            line.push(3, format!("{} of {}", thousands(progress.read), count_of(progress.to_read, "file")));
            let rate = line.push_bytes(bytes_read, Some(bytes_to_read), rate_meter);
            if !stopping {
                line.push_time_left(bytes_to_read.saturating_sub(bytes_read), rate);
            }
        }
        ScanPhase::Finishing => {}
    }
    if progress.errors > 0 {
        line.push(5, format!("{} unreadable", thousands(progress.errors)));
    }
    if !matches!(phase, ScanPhase::Planning | ScanPhase::Finishing) {
        line.push(1, format!("{} of {} workers busy", progress.busy, progress.workers));
    }
    // The elapsed time matters more while the end is not known.
    line.push(if is_reading(phase) { 2 } else { 4 }, format_seconds(elapsed.as_secs()));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(progress: &ScanProgress, width: usize) -> String {
        super::line(progress, Duration::from_secs(75), &mut RateMeter::default(), false).fit(width)
    }

    #[test]
    fn line_fits_and_keeps_the_most_important_segments() {
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
                     3 unreadable · 16 of 16 workers busy · 1:15 min";
        assert_eq!(line(&progress, 200), whole);
        let narrow = "reading  25 % · ██░░░░░░░░ · 5.0 GiB of 20.0 GiB · 0 B/s · 3 unreadable";
        assert_eq!(line(&progress, 79), narrow);
        assert_eq!(line(&progress, 60), "reading  25 % · 5.0 GiB of 20.0 GiB · 0 B/s · 3 unreadable");
        assert_eq!(line(&progress, 30), "reading  25 %");
        assert_eq!(line(&progress, 5), "readi");
        let walking = ScanProgress { phase: ScanPhase::Walking, folders: 1, files: 2_000, ..ScanProgress::default() };
        assert_eq!(line(&walking, 80), "walking · 1 folder · 2,000 files · 0 B · 0 of 0 workers busy · 1:15 min");
    }
}
