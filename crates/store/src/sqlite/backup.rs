//! Copies the whole database while other processes use it.
//!
//! The copy is written to a draft beside the target, checked and published. Writers are not blocked; writes after the
//! start are not in the copy.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use gristmill_pool::CancelToken;
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use serde::Serialize;

use crate::Store;
use crate::error::{Error, Result};
use crate::paths::display_path;
use crate::private;
use crate::sqlite::busy::retry_while_busy;
use crate::sqlite::db::nonempty_log;
pub use crate::sqlite::publish::ExistingFile;
use crate::sqlite::publish::{Draft, PublishError};

/// Number of pages copied between two progress reports; 4 MiB with the default page size.
const PAGES_PER_STEP: i32 = 1_024;

/// Size of a completed copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackupReport {
    /// Number of pages in the copy.
    pub pages: u64,
    /// Size of the copy in bytes.
    pub bytes: u64,
}

impl Store {
    /// Copies a snapshot of the database to `target`, a single file without a WAL. `progress` receives the number of
    /// copied pages and the total.
    ///
    /// The snapshot is held for the whole copy, so the database's WAL grows by all writes meanwhile.
    pub fn backup(
        &self,
        target: &Path,
        existing: ExistingFile,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<BackupReport> {
        check_target(self.path(), target, existing)?;
        let draft = Draft::beside(target);
        private::create_new(draft.path()).map_err(|error| cannot_write(target, &error))?;
        let source = self.0.file.open_reader()?;
        copy(self.path(), &source, draft.path(), &mut progress)?;
        drop(source);
        let report = check_copy(draft.path())?;
        draft.publish(existing).map_err(|error| match error {
            PublishError::Exists => already_exists(target),
            PublishError::Io(error) => cannot_write(target, &error),
        })?;
        Ok(report)
    }
}

fn check_target(source: &Path, target: &Path, existing: ExistingFile) -> Result<()> {
    let same = || Some(fs::canonicalize(source).ok()? == fs::canonicalize(target).ok()?);
    if same() == Some(true) {
        return Err(Error::Invalid(format!(
            "{} is the database itself; choose another file for the copy",
            display_path(target)
        )));
    }
    if target.is_dir() {
        return Err(Error::Invalid(format!("{} is a folder; name a file for the copy", display_path(target))));
    }
    if target.file_name().is_none() {
        return Err(Error::Invalid(format!("{} is not a file name", display_path(target))));
    }
    if existing == ExistingFile::Keep && fs::symlink_metadata(target).is_ok() {
        return Err(already_exists(target));
    }
    // The first program that opens the copy would apply a WAL beside it.
    if let Some(log) = nonempty_log(target, &["-wal", "-journal"]) {
        return Err(Error::Conflict(format!(
            "{} exists: a process has {} open as a database, or crashed with it. Choose another file",
            display_path(&log),
            display_path(target)
        )));
    }
    Ok(())
}

fn already_exists(target: &Path) -> Error {
    Error::Conflict(format!("{} already exists and was not changed", display_path(target)))
}

/// Copies one snapshot: the transaction on the source hides commits of others, so the copy never restarts.
fn copy(path: &Path, source: &Connection, draft: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let source_error = |error: rusqlite::Error| Error::sqlite(path, &error);
    let draft_error = |error: rusqlite::Error| Error::sqlite(draft, &error);
    let snapshot = source.unchecked_transaction().map_err(source_error)?;
    snapshot.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(source_error)?;
    let mut target = Connection::open(draft).map_err(draft_error)?;
    // The file is synced once, when it is complete.
    target.pragma_update(None, "synchronous", "OFF").map_err(draft_error)?;
    {
        let backup = Backup::new(&snapshot, &mut target).map_err(draft_error)?;
        // No other process knows the draft, and readers are not blocked, so a busy step is transient.
        let step = || match backup.step(PAGES_PER_STEP).map_err(draft_error)? {
            StepResult::Done => Ok(true),
            StepResult::More => Ok(false),
            _ => Err(Error::Busy(draft.to_path_buf())),
        };
        loop {
            let is_done = retry_while_busy(Duration::MAX, &CancelToken::new(), Error::is_busy, step)?;
            let pages = backup.progress();
            let total = u64::try_from(pages.pagecount).unwrap_or(0);
            progress(total - u64::try_from(pages.remaining).unwrap_or(0).min(total), total);
            if is_done {
                break;
            }
        }
    }
    // The copy inherits WAL mode from its source. Rollback mode keeps it in a single file.
    let mode: rusqlite::Result<String> =
        target.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get(0));
    mode.map_err(draft_error)?;
    target.close().map_err(|(_, error)| draft_error(error))
}

/// Checks that the copy can be read, and returns its size.
fn check_copy(path: &Path) -> Result<BackupReport> {
    let failed = |error: rusqlite::Error| Error::sqlite(path, &error);
    let conn = Connection::open(path).map_err(failed)?;
    let check_result: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    let pages: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0)).map_err(failed)?;
    conn.close().map_err(|(_, error)| failed(error))?;
    if check_result != "ok" {
        return Err(Error::Corrupt(path.to_path_buf(), format!("the copy is damaged: {check_result}")));
    }
    let bytes = fs::metadata(path).map_err(|error| cannot_write(path, &error))?.len();
    Ok(BackupReport { pages: pages.unsigned_abs(), bytes })
}

fn cannot_write(path: &Path, error: &io::Error) -> Error {
    let path = path.to_path_buf();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::Full(path),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Error::ReadOnly(path),
        ErrorKind::NotFound | ErrorKind::NotADirectory => Error::CannotOpen(path, error.to_string()),
        _ => Error::Io(path, error.to_string()),
    }
}
