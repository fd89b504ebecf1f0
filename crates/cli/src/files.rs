//! Files that commands write, which are either complete or absent.
//!
//! Owns the atomic write. Each command decides on the content, and whether an existing file may be replaced.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use gristmill_store::private;

/// Creates or replaces a file. It gets its name when its content is on disk; after an error the old file is unchanged.
pub(crate) fn replace(target: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let draft = target.with_file_name(name);
    create(&draft, content)?;
    // The error of the rename is reported, not one of removing the draft.
    std::fs::rename(&draft, target).inspect_err(|_| drop(std::fs::remove_file(&draft)))
}

/// Creates a file that only its owner may read. The file must not exist; after an error it does not exist.
pub(crate) fn create_private(target: &Path, content: &[u8]) -> io::Result<()> {
    fill(private::create_new(target)?, target, content)
}

fn create(target: &Path, content: &[u8]) -> io::Result<()> {
    fill(File::create_new(target)?, target, content)
}

/// Writes the content of a new file, and removes the file after an error.
fn fill(mut file: File, target: &Path, content: &[u8]) -> io::Result<()> {
    let written = file.write_all(content).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(std::fs::remove_file(target)))
}
