//! Where the database is built, and how it comes to its name.
//!
//! Owns that nothing half-done is ever seen. A new database is built in a hidden file beside its place and moved there
//! when it is complete and on disk; one that exists is written in transactions. One import at a time: the lock says so.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::handle::ImportHandle;
use crate::error::{Error, Result};
use crate::file_identity::{FileIdentity, with_ending};
use crate::publish::{PublishError, folder_of, publish};

/// Pages of a new database. Rows of JSONL are wide: with SQLite's usual 4 KiB many of them spill over, and inserting
/// takes half as long again.
const PAGE_BYTES: u32 = 16 * 1024;

/// Pages kept in memory, in KiB.
const CACHE_KIB: i64 = 16 * 1024;

/// How long another program may keep the database to itself.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// How often SQLite looks whether it is to stop, in its own steps: some milliseconds.
const CANCEL_CHECK_STEPS: i32 = 100_000;

#[derive(Debug)]
pub(crate) struct OutputDb {
    target: PathBuf,
    /// Where it is built, when it is new.
    draft: Option<PathBuf>,
    lock: Lock,
    keep_draft: bool,
}

impl OutputDb {
    /// Finds out whether the database is new, and keeps others away.
    pub(crate) fn open(target: &Path, resume: bool) -> Result<Self> {
        // What a link leads to is what is meant: the link stays.
        let followed = match fs::symlink_metadata(target) {
            Ok(found) if found.is_symlink() => {
                fs::canonicalize(target).map_err(|error| Error::io("follow the link", target, &error))?
            }
            _ => target.to_owned(),
        };
        let target = followed.as_path();
        let name = target.file_name();
        let Some(name) = name.filter(|_| !target.is_dir()) else {
            return Err(Error::Invalid(format!(
                "{} is a folder; name a file for the database",
                target.display()
            )));
        };
        let hidden = |ending: &str| {
            let mut file = OsString::from(".");
            file.push(name);
            file.push(ending);
            folder_of(target).join(file)
        };
        if fs::metadata(target).is_ok_and(|found| !found.is_file()) {
            return Err(Error::Invalid(format!(
                "{} is not a regular file; name a file for the database",
                target.display()
            )));
        }
        let lock = Lock::acquire(&hidden(".import-lock"), target)?;
        let is_new = match fs::metadata(target) {
            Ok(metadata) => metadata.len() == 0 && metadata.is_file(),
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(Error::io("open", target, &error)),
        };
        if !is_new {
            // An import that was killed after it had given the database its name could not clean up.
            remove_draft(&hidden(".import"));
        }
        let draft = is_new.then(|| hidden(".import"));
        let output = OutputDb { target: target.to_owned(), draft, lock, keep_draft: resume };
        if let Some(draft) = &output.draft {
            // SQLite would apply the log of a database that is gone to the new one.
            for ending in ["-journal", "-wal"] {
                let log = with_ending(target, ending);
                if fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
                    return Err(Error::Invalid(format!(
                        "{} is left of a database that is gone; move it away, or name another file",
                        log.display()
                    )));
                }
            }
            if !resume {
                remove_draft(draft);
            }
        }
        Ok(output)
    }

    pub(crate) fn is_new(&self) -> bool {
        self.draft.is_some()
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Folder for what has to be put down for a while.
    pub(crate) fn folder(&self) -> &Path {
        folder_of(&self.target)
    }

    pub(crate) fn connect(&self, handle: &Arc<ImportHandle>) -> Result<Connection> {
        let failed = |error: rusqlite::Error| Error::sqlite(&self.target, &error);
        let path = self.draft.as_ref().unwrap_or(&self.target);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let create = if self.is_new() { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
        let mut conn = Connection::open_with_flags(path, flags | create).map_err(failed)?;
        conn.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        conn.set_prepared_statement_cache_capacity(64);
        if self.is_new() {
            conn.pragma_update(None, "page_size", PAGE_BYTES).map_err(failed)?;
            conn.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failed)?;
            let mode = conn.pragma_update_and_check(None, "journal_mode", "TRUNCATE", |_| Ok(()));
            mode.map_err(failed)?;
            conn.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
        } else {
            conn.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        }
        conn.pragma_update(None, "cache_size", -CACHE_KIB).map_err(failed)?;
        conn.pragma_update(None, "foreign_keys", false).map_err(failed)?;
        let handle = handle.clone();
        conn.progress_handler(CANCEL_CHECK_STEPS, Some(move || handle.is_cancelled())).map_err(failed)?;
        // Whether it is a database at all.
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(failed)?;
        Ok(conn)
    }

    /// The file that a connection of [`Place::connect`] works with.
    pub(crate) fn identity(&self) -> FileIdentity {
        FileIdentity::of(self.draft.as_ref().unwrap_or(&self.target))
    }

    /// Opens a database that exists once more: after some errors SQLite leaves it to the next connection to undo what was not
    /// committed.
    pub(crate) fn recover(&self) {
        if self.draft.is_none()
            && let Ok(conn) = Connection::open_with_flags(&self.target, OpenFlags::SQLITE_OPEN_READ_WRITE)
        {
            // If that fails too, the next one to open it does it.
            let _ = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
        }
    }

    /// Gives a new database its name. Everything is on disk before, and after.
    pub(crate) fn publish(mut self, conn: Connection) -> Result<()> {
        conn.close().map_err(|(_, error)| Error::sqlite(&self.target, &error))?;
        let Some(draft) = self.draft.clone() else { return Ok(()) };
        // An empty file is a database to SQLite, and to people who made it with mktemp.
        match publish(&draft, &self.target, |found| found.len() == 0) {
            Ok(()) => {}
            Err(PublishError::Taken) => {
                let target = self.target.display();
                return Err(Error::Invalid(format!(
                    "{target} was made by another program meanwhile; it was kept"
                )));
            }
            Err(PublishError::Io(error)) => return Err(Error::io("write", &self.target, &error)),
        }
        self.keep_draft = false;
        Ok(())
    }
}

impl Drop for OutputDb {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.as_ref().filter(|_| !self.keep_draft) {
            remove_draft(draft);
        }
        self.lock.release();
    }
}

/// Opens a database that exists, only to read it.
pub(crate) fn read_only(path: &Path) -> Result<Connection> {
    let found = fs::metadata(path).map_err(|error| Error::io("read", path, &error))?;
    if !found.is_file() {
        return Err(Error::Invalid(format!("{} is not a regular file; name a database", path.display())));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error: rusqlite::Error| Error::sqlite(path, &error);
    let conn = Connection::open_with_flags(path, flags).map_err(failed)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    // Whether it is a database at all.
    conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(failed)?;
    Ok(conn)
}

/// A file that one import holds.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn acquire(path: &Path, target: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => {
                Error::Invalid(format!("there is no folder {} for the database", folder_of(target).display()))
            }
            _ => Error::io("write beside", target, &error),
        };
        loop {
            let file =
                OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::Invalid(format!(
                        "another import into {} is running; try again when it is done",
                        target.display()
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The import that held it before may have removed it just now.
            let held = file.metadata().map_err(failed)?;
            if fs::metadata(path).is_ok_and(|found| found.ino() == held.ino() && found.dev() == held.dev()) {
                return Ok(Lock { path: path.to_owned(), _file: file });
            }
        }
    }

    fn release(&self) {
        // The file is nothing but the lock. While it is removed it is still held.
        let _ = fs::remove_file(&self.path);
    }
}

fn remove_draft(draft: &Path) {
    for ending in ["", "-journal", "-wal", "-shm"] {
        // What is not there need not be removed; what cannot be is in the way of SQLite, and it says so.
        let _ = fs::remove_file(with_ending(draft, ending));
    }
}
