//! Measures the runs of one table: several candidates import one folder alternately, and every database is checked.
//!
//! Owns the order of the runs and the state before each: the files in the system's cache, all data on disk, an empty
//! folder. `report` evaluates the numbers.

use std::fs;

use super::{
    candidate::{ImportTask, Participant},
    database_check,
    folder::Folder,
};
use crate::{
    comparison::{self, Row},
    options::CompareOptions,
    process::{self, Run},
    scratch::Scratch,
};

/// Measurements of one table.
pub(super) struct Benchmark {
    pub(super) scale: f64,
    pub(super) megabytes: f64,
    pub(super) lines: u64,
    pub(super) rows: Vec<Row<Run>>,
}

/// Measures all participants alternately.
pub(super) fn measure_all(
    folder: &Folder,
    participants: &[Participant],
    options: &CompareOptions,
    reps: usize,
) -> Benchmark {
    let rows = participants.iter().map(|participant| Row::new(participant.candidate.name)).collect();
    let mut rows = comparison::alternate(rows, reps, |nth, repetition| {
        let candidate = participants[nth].candidate;
        let reps = candidate.reps(folder.scale, reps, options.names_peer(candidate.name));
        (repetition < reps).then(|| measure(&participants[nth], folder))
    });
    rows.retain(|row| !row.samples.is_empty() || row.error.is_some());
    Benchmark { scale: folder.scale, megabytes: folder.bytes as f64 / 1e6, lines: folder.expected.rows(), rows }
}

/// Runs a participant once and returns the mistakes in its database.
fn measure(participant: &Participant, folder: &Folder) -> Result<(Run, Option<String>), String> {
    let root = &folder.root;
    // Beside the files, so that the database is on the same disk.
    let scratch = Scratch::new(root.parent().ok_or("the folder has no parent")?)?;
    let task = ImportTask { root, database: &scratch.path().join("import.db") };
    let command_line = participant.command_line(&task)?;
    process::warm_caches(root).map_err(|error| format!("{}: {error}", root.display()))?;
    process::sync_disks()?;
    let run = process::run(&command_line, scratch.path())?;
    if !fs::exists(task.database).is_ok_and(|exists| exists) {
        return Err("it created no database".into());
    }
    Ok((run, database_check::mistakes(task.database, &folder.expected)?))
}
