//! Copies the whole database while other processes use it.
//!
//! The copy is written to a temporary file beside the target, checked, synced and then renamed. After a failure the
//! target is unchanged. Writers are not blocked; writes after the start are not in the copy.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use serde::Serialize;

use crate::Store;
use crate::error::{Error, Result};
use crate::paths::{display_path, with_suffix};
use crate::private;

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

/// What to do if the target exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingFile {
    /// Keep the file and fail.
    Keep,
    /// Replace the file with the copy.
    Replace,
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
        let draft = Draft::create(target)?;
        let source = self.0.file.open_reader()?;
        copy(self.path(), &source, &draft.path, &mut progress)?;
        drop(source);
        let report = draft.check()?;
        draft.publish(target, existing)?;
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
    if existing == ExistingFile::Keep && fs::symlink_metadata(target).is_ok() {
        return Err(already_exists(target));
    }
    // The first program that opens the copy would apply a WAL beside it.
    for log in ["-wal", "-journal"].map(|ending| with_suffix(target, ending)) {
        if fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
            return Err(Error::Conflict(format!(
                "{} exists: a process has {} open as a database, or crashed with it. Choose another file",
                display_path(&log),
                display_path(target)
            )));
        }
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
        loop {
            let step = backup.step(PAGES_PER_STEP).map_err(draft_error)?;
            let pages = backup.progress();
            let total = u64::try_from(pages.pagecount).unwrap_or(0);
            progress(total - u64::try_from(pages.remaining).unwrap_or(0).min(total), total);
            match step {
                StepResult::Done => break,
                StepResult::More => {}
                // No other process knows the draft, and readers are not blocked, so this is transient.
                _ => std::thread::park_timeout(Duration::from_millis(5)),
            }
        }
    }
    // The copy inherits WAL mode from its source. Rollback mode keeps it in a single file.
    let mode: rusqlite::Result<String> =
        target.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get(0));
    mode.map_err(draft_error)?;
    target.close().map_err(|(_, error)| draft_error(error))
}

/// A copy under a temporary name, deleted on drop.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn create(target: &Path) -> Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(Error::Invalid(format!("{} is not a file name", display_path(target))));
        };
        let mut draft = std::ffi::OsString::from(".");
        draft.push(name);
        draft.push(format!(".{}.part", uuid::Uuid::new_v4().simple()));
        let path = parent_folder(target).join(draft);
        private::create_new(&path).map_err(|error| cannot_write(target, &error))?;
        Ok(Draft { path })
    }

    /// Checks that the copy can be read, and returns its size.
    fn check(&self) -> Result<BackupReport> {
        let failed = |error: rusqlite::Error| Error::sqlite(&self.path, &error);
        let conn = Connection::open(&self.path).map_err(failed)?;
        let check_result: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
        let pages: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0)).map_err(failed)?;
        conn.close().map_err(|(_, error)| failed(error))?;
        if check_result != "ok" {
            return Err(Error::Corrupt(self.path.clone(), format!("the copy is damaged: {check_result}")));
        }
        let bytes = fs::metadata(&self.path).map_err(|error| cannot_write(&self.path, &error))?.len();
        Ok(BackupReport { pages: pages.unsigned_abs(), bytes })
    }

    /// Syncs the copy, then gives it the target's name.
    fn publish(self, target: &Path, existing: ExistingFile) -> Result<()> {
        let failed = |error: io::Error| cannot_write(target, &error);
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(failed)?;
        match existing {
            ExistingFile::Replace => fs::rename(&self.path, target).map_err(failed)?,
            ExistingFile::Keep => self.link_or_rename(target)?,
        }
        sync_folder(parent_folder(target)).map_err(failed)
    }

    /// Hard-links the copy, because a rename would replace a target created meanwhile. Falls back to a rename.
    fn link_or_rename(&self, target: &Path) -> Result<()> {
        match fs::hard_link(&self.path, target) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(already_exists(target)),
            Err(_) if fs::symlink_metadata(target).is_ok() => Err(already_exists(target)),
            Err(_) => fs::rename(&self.path, target).map_err(|error| cannot_write(target, &error)),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename the file no longer exists; other errors leave it behind.
        let _ = fs::remove_file(&self.path);
        for ending in ["-journal", "-wal", "-shm"] {
            let _ = fs::remove_file(with_suffix(&self.path, ending));
        }
    }
}

fn parent_folder(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs the folder, without which a new name may not survive a power cut.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
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
