//! Opens a file that cannot be written: on read-only media, or in a folder of another user.
//!
//! SQLite reads a file in WAL mode only where it can create the WAL and the WAL index, unless it is opened as
//! `immutable`, which promises that no process writes the file. That is done only if there is no WAL, which means that
//! no process is writing. An existing WAL contains commits that must not be ignored.

use std::path::Path;

use rusqlite::Connection;

use crate::error::{Error, Result};
use crate::paths::display_path;
use crate::sqlite::db::{Access, DbFile, nonempty_log};
use crate::sqlite::migrations;

/// Returns whether an error can mean that the file exists and cannot be written.
pub(crate) fn may_be_read_only(error: &Error, path: &Path) -> bool {
    matches!(error, Error::ReadOnly(_) | Error::CannotOpen(..)) && path.is_file()
}

/// Opens the file for reading only. Returns the connection, and the settings for further connections.
pub(crate) fn open(file: &DbFile) -> Result<(DbFile, Connection)> {
    let attempt = |access| {
        let file = DbFile { access, ..file.clone() };
        let conn = file.open_reader()?;
        migrations::check_compatible(&file, &conn)?;
        Ok((file, conn))
    };
    let error = match attempt(Access::ReadOnly) {
        Err(error @ (Error::ReadOnly(_) | Error::CannotOpen(..))) => error,
        result => return result,
    };
    match nonempty_log(&file.path, &["-wal", "-journal"]) {
        None => attempt(Access::Immutable).map_err(|_| error),
        Some(log) => Err(Error::CannotOpen(
            file.path.clone(),
            format!(
                "its WAL {} must be applied, which needs write access; copy both files into a writable folder, and open \
                 the copy",
                display_path(log)
            ),
        )),
    }
}

/// Refuses a file of an older version, because it cannot be migrated.
pub(crate) fn check_version(file: &DbFile, conn: &Connection) -> Result<()> {
    match migrations::is_current(file, conn)? {
        true => Ok(()),
        false => Err(Error::CannotOpen(
            file.path.clone(),
            "it was created by an older version and is read-only, so it cannot be migrated; copy it into a writable \
             folder, and open the copy"
                .to_owned(),
        )),
    }
}

/// Returns the URI by which SQLite opens a file that no process writes.
pub(crate) fn immutable_uri(path: &Path) -> String {
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => uri.push(char::from(byte)),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri + "?immutable=1"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immutable_uri_escapes_every_path() {
        for (path, uri) in
            [("/a/b.db", "file:/a/b.db?immutable=1"), ("/a b?#%é", "file:/a%20b%3F%23%25%C3%A9?immutable=1")]
        {
            assert_eq!(immutable_uri(Path::new(path)), uri);
        }
    }
}
