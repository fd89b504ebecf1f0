//! The database that an import writes: opens it, locks it and publishes it.
//!
//! Incomplete data is never visible. A new database is built in a hidden file in the same folder, and renamed when it
//! is complete and on disk. An existing one is written in transactions. A lock file allows one import at a time.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gristmill_pool::CancelToken;
use gristmill_store::sqlite::{ExistingFile, PublishError, folder_of, nonempty_log, publish, remove_database};
use rusqlite::{Connection, OpenFlags};

use crate::database::{Database, check_format, connect};
use crate::error::{Error, Result};

/// Page size of a new database. Rows of JSONL are wide: with SQLite's default of 4 KiB many of them need overflow
/// pages, and inserting takes 50 % longer.
const PAGE_BYTES: u32 = 16 * 1024;

/// Size of SQLite's page cache, in KiB.
const CACHE_KIB: i64 = 16 * 1024;

#[derive(Debug)]
pub(crate) struct OutputDb {
    target: PathBuf,
    /// Path of the hidden file in which a new database is built.
    draft: Option<PathBuf>,
    lock: Lock,
    keep_draft: bool,
}

impl OutputDb {
    /// Takes the lock and determines whether the database is new.
    pub(crate) fn open(target: &Path, resume: bool) -> Result<Self> {
        // Writes to the target of a link and keeps the link.
        let followed = match fs::symlink_metadata(target) {
            Ok(found) if found.is_symlink() => {
                fs::canonicalize(target).map_err(|error| Error::io("follow the link", target, error))?
            }
            _ => target.to_owned(),
        };
        let target = followed.as_path();
        let name = target.file_name();
        let Some(name) = name.filter(|_| !target.is_dir()) else {
            return Err(Error::path(target, "is a folder; name a file for the database"));
        };
        let hidden = |ending: &str| {
            let mut file = OsString::from(".");
            file.push(name);
            file.push(ending);
            folder_of(target).join(file)
        };
        if fs::metadata(target).is_ok_and(|found| !found.is_file()) {
            return Err(Error::path(target, "is not a regular file; name a file for the database"));
        }
        let lock = Lock::acquire(&hidden(".import-lock"), target)?;
        let is_new = match fs::metadata(target) {
            Ok(metadata) => metadata.len() == 0 && metadata.is_file(),
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(Error::io("open", target, error)),
        };
        if !is_new {
            // An import that was killed after it published the database may have left its draft.
            remove_database(&hidden(".import"));
        }
        let draft = is_new.then(|| hidden(".import"));
        let output = OutputDb { target: target.to_owned(), draft, lock, keep_draft: resume };
        if let Some(draft) = &output.draft {
            // SQLite would apply the journal of a deleted database to the new one.
            if let Some(log) = nonempty_log(target, &["-journal", "-wal"]) {
                let problem = "is left from a database that was deleted; move it away, or name another file";
                return Err(Error::path(&log, problem));
            }
            if !resume {
                remove_database(draft);
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

    /// Folder for temporary files.
    pub(crate) fn folder(&self) -> &Path {
        folder_of(&self.target)
    }

    pub(crate) fn connect(&self, stop: &CancelToken) -> Result<Database> {
        let file = self.draft.as_ref().unwrap_or(&self.target);
        let open = || {
            let create = if self.is_new() { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
            let conn = connect(file, OpenFlags::SQLITE_OPEN_READ_WRITE | create, stop)?;
            if self.is_new() {
                conn.pragma_update(None, "page_size", PAGE_BYTES)?;
                conn.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
                conn.pragma_update_and_check(None, "journal_mode", "TRUNCATE", |_| Ok(()))?;
                conn.pragma_update(None, "synchronous", "NORMAL")?;
            } else {
                conn.pragma_update(None, "synchronous", "FULL")?;
            }
            conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
            conn.pragma_update(None, "foreign_keys", false)?;
            check_format(&conn).map(|()| conn)
        };
        let conn = open().map_err(|error| Error::sqlite(&self.target, error))?;
        Ok(Database::new(conn, &self.target, file, stop))
    }

    /// Opens an existing database again. After some errors SQLite leaves the rollback to the next connection.
    pub(crate) fn recover(&self) {
        if self.draft.is_none()
            && let Ok(conn) = Connection::open_with_flags(&self.target, OpenFlags::SQLITE_OPEN_READ_WRITE)
        {
            // If this fails too, the next program that opens the database rolls back.
            let _ = check_format(&conn);
        }
    }

    /// Renames a new database to its final name, with an fsync before and after.
    pub(crate) fn publish(mut self, conn: Connection) -> Result<()> {
        conn.close().map_err(|(_, error)| Error::sqlite(&self.target, error))?;
        let Some(draft) = self.draft.clone() else { return Ok(()) };
        // An empty file, such as one made by mktemp, is a valid SQLite database and is replaced.
        match publish(&draft, &self.target, ExistingFile::ReplaceEmpty) {
            Ok(()) => {}
            Err(PublishError::Exists) => {
                let problem = "was created by another program during the import; it was kept";
                return Err(Error::Exists(self.target.clone(), problem));
            }
            Err(PublishError::Io(error)) => return Err(Error::io("write", &self.target, error)),
        }
        self.keep_draft = false;
        Ok(())
    }
}

impl Drop for OutputDb {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.as_ref().filter(|_| !self.keep_draft) {
            remove_database(draft);
        }
        self.lock.release();
    }
}

/// A lock file that one import holds.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn acquire(path: &Path, target: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => Error::NoFolder(folder_of(target).to_owned()),
            _ => Error::io("write next to", target, error),
        };
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Error::ImportRunning(target.to_owned())),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The previous holder may have removed the file between the open and the lock.
            let held = file.metadata().map_err(failed)?;
            if fs::metadata(path).is_ok_and(|found| found.ino() == held.ino() && found.dev() == held.dev()) {
                return Ok(Lock { path: path.to_owned(), _file: file });
            }
        }
    }

    fn release(&self) {
        // Removes the file while the lock is still held.
        let _ = fs::remove_file(&self.path);
    }
}
