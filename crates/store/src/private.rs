//! Files that only their owner may read: the database, its log, its copies, and settings with passwords.
//!
//! Owns the mode with which they are created. The mode is given at creation, so there is no moment at which others can open
//! them, and the umask can only narrow it. SQLite gives log, index and journal the mode of the database.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::paths::with_suffix;

/// Creates a file that must not exist yet.
pub fn create_new(path: &Path) -> io::Result<File> {
    options().create_new(true).open(path)
}

/// Creates an empty file unless there is one: an empty file is an empty database. What keeps it from being created,
/// SQLite reports.
pub(crate) fn create_if_absent(path: &Path) {
    if fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        // Not `create_new`: a link that leads to a file yet to be made is followed.
        let _ = options().create(true).truncate(false).open(path);
    }
}

/// Creates a folder unless it exists, and those above it: only their owner may list and enter those that it creates.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// The files of a database that others than their owner may read or write, the database itself first. None of an empty
/// database, and none of one that is read-only: that one was published.
pub fn files_open_to_others(database: &Path) -> Vec<PathBuf> {
    let is_in_use = |found: fs::Metadata| found.len() > 0 && !found.permissions().readonly();
    if !fs::metadata(database).is_ok_and(is_in_use) {
        return Vec::new();
    }
    let endings = ["", "-wal", "-shm", "-journal", "-wal.replaced"];
    endings
        .into_iter()
        .map(|ending| with_suffix(database, ending))
        .filter(|path| is_open_to_others(path))
        .collect()
}

/// Whether others than its owner may read or write a file or a folder.
#[cfg(unix)]
pub fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

/// Other systems have no modes.
#[cfg(not(unix))]
pub fn is_open_to_others(_: &Path) -> bool {
    false
}
