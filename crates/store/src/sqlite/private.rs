//! Files that only their owner may read: the database, its WAL, backups, and settings with passwords.
//!
//! Owns the mode with which they are created. It is set at creation, so other users can never open the file, and the
//! umask can only restrict it further. SQLite gives WAL, WAL index and journal the mode of the database.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::paths::with_suffix;

/// Creates a file that must not exist yet.
pub fn create_new(path: &Path) -> io::Result<File> {
    options().create_new(true).open(path)
}

/// Creates an empty file if none exists; an empty file is an empty database. Errors are left to SQLite to report.
pub(crate) fn create_if_absent(path: &Path) {
    if fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        // Not `create_new`, which does not follow a symbolic link to a missing file.
        let _ = options().create(true).truncate(false).open(path);
    }
}

/// Creates a folder and its missing parents. Only their owner may list and enter the created ones.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Creates a file in `folder` and removes its name. The system deletes it when it is closed.
pub fn create_unnamed(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!(".gristmill-{}", uuid::Uuid::new_v4().simple()));
    let file = options().read(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Options that open a file for writing, and create it for its owner only.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Returns the files of a database that other users may read or write, the database itself first. Empty for an empty
/// database and for a read-only one, which was published on purpose.
pub fn files_open_to_others(database: &Path) -> Vec<PathBuf> {
    let is_in_use = |found: fs::Metadata| found.len() > 0 && !found.permissions().readonly();
    if !fs::metadata(database).is_ok_and(is_in_use) {
        return Vec::new();
    }
    let endings = ["", "-wal", "-shm", "-journal", "-wal.replaced"];
    endings.into_iter().map(|ending| with_suffix(database, ending)).filter(|path| is_open_to_others(path)).collect()
}

/// Returns whether other users may read or write a file or folder.
#[cfg(unix)]
pub fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

/// Always false on systems without file modes.
#[cfg(not(unix))]
pub fn is_open_to_others(_: &Path) -> bool {
    false
}
