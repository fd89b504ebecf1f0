//! Opening a file that cannot be written: on read-only media, in a folder of another user.
//!
//! Owns how such a file can be read. SQLite reads a file with a write-ahead log only where it can create the log and its
//! index, unless it is promised that nobody writes the file (`immutable`). That promise is made only if there is no log, so
//! no process is writing now; a log that is there holds commits, which must not be left out.

use std::path::Path;

use rusqlite::Connection;

use crate::db::{Access, DbFile};
use crate::error::{Error, Result};
use crate::migrations;
use crate::paths::{display_path, with_suffix};

/// Whether an error can mean that the file is there and cannot be written.
pub(crate) fn may_be_read_only(error: &Error, path: &Path) -> bool {
    matches!(error, Error::ReadOnly(_) | Error::CannotOpen(..)) && path.is_file()
}

/// Opens the file for reading only. Gives the connection and the file as further connections are to open it.
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
    let logs = ["-wal", "-journal"].map(|ending| with_suffix(&file.path, ending));
    match logs.iter().find(|log| std::fs::metadata(log).is_ok_and(|found| found.len() > 0)) {
        None => attempt(Access::Immutable).map_err(|_| error),
        Some(log) => Err(Error::CannotOpen(
            file.path.clone(),
            format!(
                "its log {} has to be applied, which needs write access; copy both files into a folder that can be \
                 written, and open the copy",
                display_path(log)
            ),
        )),
    }
}

/// Refuses a file of an older version: it cannot be brought up to date.
pub(crate) fn check_version(file: &DbFile, conn: &Connection) -> Result<()> {
    match migrations::is_current(file, conn)? {
        true => Ok(()),
        false => Err(Error::CannotOpen(
            file.path.clone(),
            "it was made by an older version and is read-only, so it cannot be brought up to date; copy it into a \
             folder that can be written, and open the copy"
                .to_owned(),
        )),
    }
}

/// The address of a file that nobody writes, as SQLite takes it.
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
    fn any_path_has_an_address() {
        for (path, uri) in
            [("/a/b.db", "file:/a/b.db?immutable=1"), ("/a b?#%é", "file:/a%20b%3F%23%25%C3%A9?immutable=1")]
        {
            assert_eq!(immutable_uri(Path::new(path)), uri);
        }
    }
}
