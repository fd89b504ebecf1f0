//! Files that commands write: whole, or not at all.
//!
//! Owns how a file gets its content. What goes into it, and whether it may be replaced, is each command's own affair.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes a file, or replaces it. It gets its name when all of it is on disk; after an error what was there is there
/// still.
pub(crate) fn replace(target: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let draft = target.with_file_name(name);
    create(&draft, content)?;
    // The first error is the one to tell.
    std::fs::rename(&draft, target).inspect_err(|_| drop(std::fs::remove_file(&draft)))
}

/// Writes a file that must not be there yet. After an error it is not there either.
pub(crate) fn create(target: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(target)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(std::fs::remove_file(target)))
}
