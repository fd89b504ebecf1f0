//! Entries of a folder or a pattern: files to read, and entries that cannot be read, with the reason.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ignore::Error;

#[derive(Debug, Default)]
pub(crate) struct Entries {
    pub(crate) files: Vec<PathBuf>,
    /// Entries with a matching name that cannot be read, and why.
    pub(crate) unreadable: Vec<(PathBuf, String)>,
    /// Folders that could not be listed, and why.
    pub(crate) unlisted: Vec<(PathBuf, String)>,
}

impl Entries {
    /// Adds an entry with a matching name; ignores a folder.
    pub(crate) fn add(&mut self, path: PathBuf) {
        let why = match std::fs::metadata(&path) {
            Ok(found) if found.is_file() => return self.files.push(path),
            Ok(found) if found.is_dir() => return,
            Ok(_) => "it is not a regular file; to read a pipe or a device, name it as an argument".to_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound && path.is_symlink() => {
                "it is a symbolic link to a file that does not exist".to_owned()
            }
            Err(error) => error.to_string(),
        };
        self.unreadable.push((path, why));
    }

    pub(crate) fn add_error(&mut self, folder: &Path, error: Error) {
        match error {
            Error::WithDepth { err, .. } => self.add_error(folder, *err),
            Error::WithPath { path, err } => self.add_error(&path, *err),
            error => self.unlisted.push((folder.to_owned(), error.to_string())),
        }
    }
}
