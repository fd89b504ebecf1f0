//! Files that commands write: whole, or not at all.
//!
//! Owns how a file gets its content. What goes into it, and whether it may be replaced, is each command's own affair.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use gristmill_store::private;

/// Writes a file, or replaces it. It gets its name when all of it is on disk; after an error the old file is unchanged.
pub(crate) fn replace(target: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let draft = target.with_file_name(name);
    create(&draft, content)?;
    // The first error is the one to report.
    std::fs::rename(&draft, target).inspect_err(|_| drop(std::fs::remove_file(&draft)))
}

/// Writes a file that must not exist yet and that only its owner may read. After an error it does not exist.
pub(crate) fn create_private(target: &Path, content: &[u8]) -> io::Result<()> {
    fill(private::create_new(target)?, target, content)
}

fn create(target: &Path, content: &[u8]) -> io::Result<()> {
    fill(File::create_new(target)?, target, content)
}

/// Writes the content of a new file. After an error the file is removed.
fn fill(mut file: File, target: &Path, content: &[u8]) -> io::Result<()> {
    let written = file.write_all(content).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(std::fs::remove_file(target)))
}
