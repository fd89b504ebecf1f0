//! Progress of an import.

use std::sync::Arc;
use std::time::Duration;

use gristmill_jsonl::import::handle::{ImportHandle, ImportPhase, ImportProgress};

use super::super::progress::{ProgressLine, ProgressReporter, RateMeter, Segment, percent};
use crate::units::{bytes, count_of, format_seconds, thousands};

pub(super) fn show(control: &Arc<ImportHandle>, quiet: bool) -> ProgressReporter {
    let control = control.clone();
    let mut rate_meter = RateMeter::default();
    ProgressReporter::start(quiet, move |elapsed| {
        line(&control.progress(), elapsed, &mut rate_meter, control.is_cancelled())
    })
}

fn line(progress: &ImportProgress, elapsed: Duration, rate_meter: &mut RateMeter, stopping: bool) -> ProgressLine {
    let ImportProgress { phase, files, files_done, bytes: size, bytes_read, rows, rejected } = *progress;
    let knows_end = size > 0 && !stopping && matches!(phase, ImportPhase::Loading | ImportPhase::Indexing);
    let mut segments = vec![Segment(
        9,
        match phase {
            _ if stopping => "stopping: rolling back incomplete files".to_owned(),
            ImportPhase::Starting => "finding files".to_owned(),
            ImportPhase::Loading if size > 0 => format!("loading {:>3} %", percent(bytes_read, size)),
            ImportPhase::Loading => "loading".to_owned(),
            ImportPhase::Indexing => "creating indexes".to_owned(),
            ImportPhase::Finishing => "finishing".to_owned(),
        },
    )];
    if phase != ImportPhase::Starting {
        let rate = rate_meter.rate(bytes_read);
        segments.push(Segment(3, format!("{} of {}", thousands(files_done), count_of(files, "file"))));
        // Standard input has no size.
        let read = if size > 0 { format!("{} of {}", bytes(bytes_read), bytes(size)) } else { bytes(bytes_read) };
        segments.push(Segment(7, read));
        segments.push(Segment(6, format!("{}/s", bytes(rate as u64))));
        segments.push(Segment(4, count_of(rows, "row")));
        if rate > 0.0 && knows_end {
            let left = size.saturating_sub(bytes_read) as f64 / rate;
            segments.push(Segment(8, format!("{} left", format_seconds(left as u64))));
        }
    }
    if rejected > 0 {
        segments.push(Segment(5, format!("{} rejected", thousands(rejected))));
    }
    segments.push(Segment(2, format_seconds(elapsed.as_secs())));
    ProgressLine { segments, bar: knows_end.then(|| percent(bytes_read, size)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_keeps_the_most_important_segments() {
        let progress = ImportProgress {
            phase: ImportPhase::Loading,
            files: 57,
            files_done: 3,
            bytes: 400 << 20,
            bytes_read: 100 << 20,
            rows: 1_234_567,
            rejected: 2,
        };
        let line = line(&progress, Duration::from_secs(75), &mut RateMeter::default(), false);
        assert_eq!(
            line.fit(200),
            "loading  25 % · ██████░░░░░░░░░░░░░░░░░░ · 3 of 57 files · 100.0 MiB of 400.0 MiB · 0 B/s · \
             1,234,567 rows · 2 rejected · 1:15 min"
        );
        assert_eq!(line.fit(60), "loading  25 % · 100.0 MiB of 400.0 MiB · 0 B/s · 2 rejected");
    }
}
