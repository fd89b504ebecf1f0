//! One table's worth of measurements: some participants over one folder, in turns, and every database checked.
//!
//! Owns the order of the runs and what lies ready before each: the files in the system's caches, nothing left to be
//! written, an empty folder. What the numbers mean is decided in `report`.

use std::fs;

use super::{
    candidate::{ImportTask, Participant},
    database_check,
    folder::Folder,
    options::Options,
};
use crate::{
    process::{self, Run},
    scratch::Scratch,
};

/// One participant's measurements.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) runs: Vec<Run>,
    /// What was wrong with its databases.
    pub(super) mistakes: Option<String>,
    /// Why it was given up.
    pub(super) error: Option<String>,
}

/// A table.
pub(super) struct Benchmark {
    pub(super) scale: f64,
    pub(super) megabytes: f64,
    pub(super) lines: u64,
    pub(super) rows: Vec<Row>,
}

/// Measures.
pub(super) fn measure_all(
    folder: &Folder,
    participants: &[Participant],
    options: &Options,
) -> Result<Benchmark, String> {
    let mut rows: Vec<Row> = participants
        .iter()
        .map(|one| Row { name: one.candidate.name, runs: Vec::new(), mistakes: None, error: None })
        .collect();
    for turn in 0..options.reps {
        for (participant, row) in participants.iter().zip(&mut rows) {
            let candidate = participant.candidate;
            let reps = candidate.reps(folder.scale, options.reps, options.names_peer(candidate.name));
            if turn >= reps || row.error.is_some() {
                continue;
            }
            match measure(participant, folder) {
                Ok((run, mistakes)) => {
                    row.runs.push(run);
                    row.mistakes = row.mistakes.take().or(mistakes);
                }
                Err(error) => row.error = Some(error),
            }
        }
    }
    rows.retain(|row| !row.runs.is_empty() || row.error.is_some());
    Ok(Benchmark { scale: folder.scale, megabytes: folder.megabytes(), lines: folder.expected.rows(), rows })
}

/// One run, and what was wrong with its database.
fn measure(participant: &Participant, folder: &Folder) -> Result<(Run, Option<String>), String> {
    let root = &folder.root;
    // Beside the files: the database is on the same disk.
    let scratch = Scratch::new(root.parent().ok_or("the folder has no parent")?)?;
    let task = ImportTask { root, database: &scratch.path().join("answer.db") };
    let call = participant.call(&task)?;
    process::warm_caches(root).map_err(|error| format!("{}: {error}", root.display()))?;
    process::sync_disks()?;
    let run = process::run(&call, scratch.path())?;
    if !fs::exists(task.database).is_ok_and(|there| there) {
        return Err("it made no database".into());
    }
    Ok((run, database_check::mistakes(task.database, &folder.expected)?))
}
