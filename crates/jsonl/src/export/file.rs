//! Exports a table to a file, which gets its name when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gristmill_store::sqlite::{Draft, ExistingFile, PublishError};

use super::{ExportSummary, export};
use crate::error::{Error, Result};
use crate::import::handle::ImportHandle;
use crate::source::{Compression, classify_name};

/// Writes a table to a file, compressed if its name ends in `.gz` or `.zst`. An existing file is replaced only with
/// `force`, and only when the export is complete.
pub fn export_to_file(
    database: &Path,
    table: &str,
    target: &Path,
    force: bool,
    handle: &Arc<ImportHandle>,
) -> Result<ExportSummary> {
    let target = checked(database, target, force)?;
    let failed = |error: io::Error| Error::io("write", &target, error);
    let draft = Draft::beside(&target);
    let file = OpenOptions::new().write(true).create_new(true).open(draft.path()).map_err(failed)?;
    let name = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut writer = Compressed::new(BufWriter::new(file), classify_name(&name).1).map_err(failed)?;
    let exported = export(database, table, &mut writer, handle)?;
    writer.finish().map_err(failed)?;
    match draft.publish(if force { ExistingFile::Replace } else { ExistingFile::Keep }) {
        Ok(()) => Ok(exported),
        Err(PublishError::Exists) => Err(exists(&target)),
        Err(PublishError::Io(error)) => Err(failed(error)),
    }
}

/// Checks the target and returns its path, with links followed.
fn checked(database: &Path, target: &Path, force: bool) -> Result<PathBuf> {
    let Ok(found) = fs::metadata(target) else { return Ok(target.to_owned()) };
    let refused = |problem: &str| Err(Error::path(target, problem));
    let followed = fs::canonicalize(target).map_err(|error| Error::io("write", target, error))?;
    match () {
        () if found.is_dir() => refused("is a folder; name a file in it"),
        () if !found.is_file() => refused("is not a regular file; - writes to standard output"),
        () if fs::canonicalize(database).is_ok_and(|database| database == followed) => {
            refused("is the database itself; name another file")
        }
        () if !force => Err(exists(target)),
        () => Ok(followed),
    }
}

fn exists(target: &Path) -> Error {
    Error::Exists(target.to_owned(), "exists; --force replaces it")
}

enum Compressed {
    Plain(BufWriter<File>),
    Gzip(Box<flate2::write::GzEncoder<BufWriter<File>>>),
    Zstd(Box<zstd::Encoder<'static, BufWriter<File>>>),
}

impl Compressed {
    fn new(file: BufWriter<File>, compression: Compression) -> io::Result<Self> {
        Ok(match compression {
            Compression::Plain => Compressed::Plain(file),
            Compression::Gzip => {
                let level = flate2::Compression::default();
                Compressed::Gzip(Box::new(flate2::write::GzEncoder::new(file, level)))
            }
            Compression::Zstd => Compressed::Zstd(Box::new(zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?)),
        })
    }

    fn finish(self) -> io::Result<()> {
        let mut file = match self {
            Compressed::Plain(file) => file,
            Compressed::Gzip(encoder) => encoder.finish()?,
            Compressed::Zstd(encoder) => encoder.finish()?,
        };
        file.flush()
    }
}

impl Write for Compressed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Compressed::Plain(file) => file.write(bytes),
            Compressed::Gzip(encoder) => encoder.write(bytes),
            Compressed::Zstd(encoder) => encoder.write(bytes),
        }
    }

    /// Does nothing: `finish` flushes the file.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
