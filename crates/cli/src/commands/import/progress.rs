//! Progress of an import.

use std::sync::Arc;
use std::time::Duration;

use gristmill_jsonl::import::handle::{ImportHandle, ImportPhase, ImportProgress};

use crate::progress::{ProgressLine, RateMeter, percent};
use crate::units::{count_of, format_seconds, thousands};

/// Returns the function that describes a running import.
pub(super) fn lines(control: &Arc<ImportHandle>) -> impl FnMut(Duration) -> ProgressLine + Send + 'static {
    let control = control.clone();
    let mut rate_meter = RateMeter::default();
    move |elapsed| line(&control.progress(), elapsed, &mut rate_meter, control.is_cancelled())
}

fn line(progress: &ImportProgress, elapsed: Duration, rate_meter: &mut RateMeter, stopping: bool) -> ProgressLine {
    let ImportProgress { phase, files, files_done, bytes: size, bytes_read, rows, rejected } = *progress;
    let knows_end = size > 0 && !stopping && matches!(phase, ImportPhase::Loading | ImportPhase::Indexing);
    let mut line = match phase {
        _ if stopping => ProgressLine::new("stopping: rolling back incomplete files"),
        ImportPhase::Starting => ProgressLine::new("finding files"),
        ImportPhase::Loading if size > 0 => ProgressLine::new(format!("loading {:>3} %", percent(bytes_read, size))),
        ImportPhase::Loading => ProgressLine::new("loading"),
        ImportPhase::Indexing => ProgressLine::new("creating indexes"),
        ImportPhase::Finishing => ProgressLine::new("finishing"),
    };
    line.bar = knows_end.then(|| percent(bytes_read, size));
    if phase != ImportPhase::Starting {
        line.push(3, format!("{} of {}", thousands(files_done), count_of(files, "file")));
        // Standard input has no size.
        let rate = line.push_bytes(bytes_read, Some(size).filter(|size| *size > 0), rate_meter);
        line.push(4, count_of(rows, "row"));
        if knows_end {
            line.push_time_left(size.saturating_sub(bytes_read), rate);
        }
    }
    if rejected > 0 {
        line.push(5, format!("{} rejected", thousands(rejected)));
    }
    line.push(2, format_seconds(elapsed.as_secs()));
    line
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
