//! Scan and hash jobs, which other programs create in the database.
//!
//! Owns the meaning of a job's payload. A job of the kind scan walks and records files; one of the kind hash reads
//! files that can be duplicates. `gristmill_dedup` scans.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gristmill_dedup::{ScanHandle, ScanMode, ScanOptions, scan};
use gristmill_jobs::RowContext;
use gristmill_pool::{TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::catalog::Algorithm;
use gristmill_store::jobs::{JobKind, JobRow};
use gristmill_store::roots::Root;
use serde::Deserialize;

use crate::settings::Scan;

/// Interval at which progress is stored.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Payload of a job. A missing field and null are equal. Other fields, such as batch sizes, are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Payload {
    library_names: Option<Vec<String>>,
    algorithm: Option<String>,
}

/// Runs a scan or hash job until it ends or is cancelled. Files that cannot be read do not fail it; a root that cannot
/// be reached does.
pub(super) fn run(call: &RowContext<'_, JobRow>, settings: &Scan) -> TaskResult<()> {
    let job = call.row();
    let payload: Payload = serde_json::from_str(&job.payload)
        .map_err(|error| TaskError::permanent(format!("the payload is invalid: {error}")))?;
    let algorithm = match payload.algorithm.as_deref() {
        None => settings.algorithm,
        Some(name) => {
            Algorithm::parse(name).ok_or_else(|| TaskError::permanent(format!("unknown hash algorithm {name:?}")))?
        }
    };
    let mut options = ScanOptions::default();
    options.mode = if job.kind == JobKind::Hash { ScanMode::Hash } else { ScanMode::Walk };
    options.algorithm = algorithm;
    options.workers = settings.workers;
    options.io_limit = settings.io_limit;
    let roots = roots(call.store(), payload.library_names.as_deref(), settings.libraries.as_deref())?;
    let control = Arc::new(ScanHandle::default());
    let summary = std::thread::scope(|scope| {
        let scan = scope.spawn(|| scan(call.store(), &roots, &options, &control));
        while !scan.is_finished() {
            if call.wait_cancelled(PROGRESS_INTERVAL) {
                control.cancel();
                break;
            }
            let progress = control.progress();
            let part = progress.bytes_read as f64 / progress.bytes_to_read.max(1) as f64;
            call.progress(progress.files.max(progress.read), part);
        }
        scan.join().unwrap_or_else(|_| Err(gristmill_dedup::Error::System("the scan panicked".to_owned())))
    })
    .map_err(TaskError::permanent)?;
    if summary.interrupted {
        return Err(TaskError::cancelled());
    }
    if summary.failed_roots > 0 {
        let (failed, roots, errors) = (summary.failed_roots, summary.roots.len(), summary.error_samples.join("; "));
        return Err(TaskError::permanent(format!("{failed} of {roots} roots could not be scanned: {errors}")));
    }
    Ok(())
}

/// Returns the roots that a job names. If it names none, returns all roots, and registers new subfolders of the
/// libraries folder first.
fn roots(store: &Store, names: Option<&[String]>, libraries: Option<&Path>) -> TaskResult<Vec<Root>> {
    let Some(names) = names else {
        if let Some(folder) = libraries {
            for library in folders_in(folder)? {
                store.roots().register(&library)?;
            }
        }
        return Ok(store.roots().list()?);
    };
    let known = store.roots().list()?;
    let named = |name: &String| {
        let root = known.iter().find(|root| root.name == *name).cloned();
        root.ok_or_else(|| TaskError::permanent(format!("there is no library {name:?}")))
    };
    names.iter().map(named).collect()
}

/// Returns the subfolders of the libraries folder. Links are not followed.
fn folders_in(folder: &Path) -> TaskResult<Vec<PathBuf>> {
    let unreadable = |error: std::io::Error| {
        TaskError::permanent(format!("cannot read the folder {} (setting scan.libraries): {error}", folder.display()))
    };
    let folder = std::fs::canonicalize(folder).map_err(unreadable)?;
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if entry.file_type().is_ok_and(|what| what.is_dir()) {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
}
