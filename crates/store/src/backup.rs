//! A copy of the whole database, made while others work in it.
//!
//! Owns the copy's way to its name: into a temporary file beside the target, checked, on disk, and only then
//! renamed. Whatever goes wrong, under the target's name there is what was there before, or a sound copy.
//! Nobody is kept from writing meanwhile; what they write after the beginning is not in the copy.

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

/// So many pages between two words about the progress; 4 MiB with the usual page.
const PAGES_PER_STEP: i32 = 1_024;

/// A copy that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackupReport {
    /// How many pages it has.
    pub pages: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What to do with a file that has the target's name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingFile {
    /// Leave it, and make no copy.
    Keep,
    /// Put the copy in its place.
    Replace,
}

impl Store {
    /// Copies the database as it is at one moment into the file `target`, one file without a log beside it.
    /// `progress` is told how many pages of how many are done.
    ///
    /// The moment is kept for as long as this takes, so the database's log grows by what is written meanwhile.
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
            "{} is the database itself; a copy needs a file of its own",
            display_path(target)
        )));
    }
    if target.is_dir() {
        return Err(Error::Invalid(format!(
            "{} is a folder; name a file for the copy",
            display_path(target)
        )));
    }
    if existing == ExistingFile::Keep && fs::symlink_metadata(target).is_ok() {
        return Err(already_exists(target));
    }
    // A log beside it would be played into the copy by the first one to open it.
    for log in ["-wal", "-journal"].map(|ending| with_suffix(target, ending)) {
        if fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
            return Err(Error::Conflict(format!(
                "{} exists: somebody has {} open as a database, or died with it. Name another file",
                display_path(&log),
                display_path(target)
            )));
        }
    }
    Ok(())
}

fn already_exists(target: &Path) -> Error {
    Error::Conflict(format!("{} is there already, and was left as it is", display_path(target)))
}

/// Copies at one moment: the transaction that is held on the source keeps others' commits out of it, so the
/// copy never begins anew.
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
            let at = backup.progress();
            let total = u64::try_from(at.pagecount).unwrap_or(0);
            progress(total - u64::try_from(at.remaining).unwrap_or(0).min(total), total);
            match step {
                StepResult::Done => break,
                StepResult::More => {}
                // Nobody else knows the draft, and readers are kept out by nothing: this passes.
                _ => std::thread::park_timeout(Duration::from_millis(5)),
            }
        }
    }
    // The copy says that it has a log, as its source does. One file is easier to carry.
    let mode: rusqlite::Result<String> =
        target.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get(0));
    mode.map_err(draft_error)?;
    target.close().map_err(|(_, error)| draft_error(error))
}

/// A copy under a name of its own; gone when it is dropped.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn create(target: &Path) -> Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(Error::Invalid(format!("{} does not name a file", display_path(target))));
        };
        let mut draft = std::ffi::OsString::from(".");
        draft.push(name);
        draft.push(format!(".{}.part", uuid::Uuid::new_v4().simple()));
        let path = parent_folder(target).join(draft);
        private::create_new(&path).map_err(|error| cannot_write(target, &error))?;
        Ok(Draft { path })
    }

    /// Whether it can be read back, and how large it is.
    fn check(&self) -> Result<BackupReport> {
        let failed = |error: rusqlite::Error| Error::sqlite(&self.path, &error);
        let conn = Connection::open(&self.path).map_err(failed)?;
        let check_result: String =
            conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
        let pages: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0)).map_err(failed)?;
        conn.close().map_err(|(_, error)| failed(error))?;
        if check_result != "ok" {
            return Err(Error::Corrupt(self.path.clone(), format!("the copy is not sound: {check_result}")));
        }
        let bytes = fs::metadata(&self.path).map_err(|error| cannot_write(&self.path, &error))?.len();
        Ok(BackupReport { pages: pages.unsigned_abs(), bytes })
    }

    /// Makes sure that it is on disk, then gives it the target's name.
    fn publish(self, target: &Path, existing: ExistingFile) -> Result<()> {
        let failed = |error: io::Error| cannot_write(target, &error);
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(failed)?;
        match existing {
            ExistingFile::Replace => fs::rename(&self.path, target).map_err(failed)?,
            ExistingFile::Keep => self.link_or_rename(target)?,
        }
        sync_folder(parent_folder(target)).map_err(failed)
    }

    /// A link does not replace what came meanwhile, as a rename would. Some file systems have no links.
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
        // After a rename it is gone already; and what cannot be removed, nobody else could either.
        let _ = fs::remove_file(&self.path);
        for ending in ["-journal", "-wal", "-shm"] {
            let _ = fs::remove_file(with_suffix(&self.path, ending));
        }
    }
}

fn parent_folder(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name is on disk when its folder is.
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
