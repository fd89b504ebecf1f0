//! How far an import has come.

use std::sync::Arc;
use std::time::Duration;

use gristmill_jsonl::import::control::{ImportHandle, ImportPhase, ImportProgress};

use super::super::progress::{Line, Pace, Part, Shown, percent, short};
use crate::output::{bytes, counted, grouped};

/// Shows it until it is ended.
pub(super) fn show(control: &Arc<ImportHandle>, quiet: bool) -> Shown {
    let control = control.clone();
    let mut pace = Pace::default();
    Shown::start(quiet, move |elapsed| line(&control.progress(), elapsed, &mut pace, control.is_cancelled()))
}

fn line(progress: &ImportProgress, elapsed: Duration, pace: &mut Pace, stopping: bool) -> Line {
    let ImportProgress { phase, files, files_done, bytes: size, bytes_read, rows, rejected } = *progress;
    let knows_end = size > 0 && !stopping && matches!(phase, ImportPhase::Loading | ImportPhase::Indexing);
    let mut parts = vec![Part(
        9,
        match phase {
            _ if stopping => "stopping: what is not complete is taken back".to_owned(),
            ImportPhase::Starting => "looking".to_owned(),
            ImportPhase::Loading if size > 0 => format!("loading {:>3} %", percent(bytes_read, size)),
            ImportPhase::Loading => "loading".to_owned(),
            ImportPhase::Indexing => "making indexes".to_owned(),
            ImportPhase::Finishing => "finishing".to_owned(),
        },
    )];
    if phase != ImportPhase::Starting {
        let rate = pace.rate(bytes_read);
        parts.push(Part(3, format!("{} of {}", grouped(files_done), counted(files, "file"))));
        // Standard input has no size.
        let read =
            if size > 0 { format!("{} of {}", bytes(bytes_read), bytes(size)) } else { bytes(bytes_read) };
        parts.push(Part(7, read));
        parts.push(Part(6, format!("{}/s", bytes(rate as u64))));
        parts.push(Part(4, counted(rows, "row")));
        if rate > 0.0 && knows_end {
            let left = size.saturating_sub(bytes_read) as f64 / rate;
            parts.push(Part(8, format!("{} left", short(left as u64))));
        }
    }
    if rejected > 0 {
        parts.push(Part(5, format!("{} rejected", grouped(rejected))));
    }
    parts.push(Part(2, short(elapsed.as_secs())));
    Line { parts, bar: knows_end.then(|| percent(bytes_read, size)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_most_is_kept() {
        let progress = ImportProgress {
            phase: ImportPhase::Loading,
            files: 57,
            files_done: 3,
            bytes: 400 << 20,
            bytes_read: 100 << 20,
            rows: 1_234_567,
            rejected: 2,
        };
        let line = line(&progress, Duration::from_secs(75), &mut Pace::default(), false);
        assert_eq!(
            line.fitting(200),
            "loading  25 % · ██████░░░░░░░░░░░░░░░░░░ · 3 of 57 files · 100.0 MiB of 400.0 MiB · 0 B/s · \
             1,234,567 rows · 2 rejected · 1:15 min"
        );
        assert_eq!(line.fitting(60), "loading  25 % · 100.0 MiB of 400.0 MiB · 0 B/s · 2 rejected");
    }
}
