//! Counts rejected lines, keeps the first ones for the summary, and writes all to a file if the user names one.

use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use gristmill_store::private;
use serde::Serialize;

use super::summary::RejectedLine;
use crate::error::{Error, Result};

/// Maximum number of rejected lines in the summary.
const MAX_EXAMPLES: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct Rejects {
    file: Option<Output>,
    pub(crate) examples: Vec<RejectedLine>,
    pub(crate) count: u64,
    /// Offset in the file where the rejects of this import begin.
    start: u64,
}

#[derive(Debug)]
struct Output {
    path: PathBuf,
    file: BufWriter<File>,
    /// Whether it can be truncated. A pipe cannot, so it receives the rejects of a file again in each pass.
    is_regular: bool,
}

/// Start of the rejects of one input, for a rollback when it is read again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    bytes: u64,
    examples: usize,
    count: u64,
}

/// A rejected line as JSON in the file.
#[derive(Serialize)]
struct RejectRecord<'a> {
    #[serde(flatten)]
    rejected: &'a RejectedLine,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<&'a str>,
    /// Bytes of the line in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_hex: Option<String>,
    /// Whether `raw` has only the beginning of the line.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// First bytes of a file of rejects.
const FIRST_BYTES: &[u8] = b"{\"file\":";

impl Rejects {
    /// Opens the file for appending. Fails if it exists and is not a file of rejects.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Rejects::default()) };
        let failed = |error: io::Error| Error::io("write the rejects to", path, error);
        // Rejected lines are user data, so only the owner may read a new file.
        let file = private::options().read(true).append(true).create(true).open(path);
        let mut file = match file {
            // A terminal or a pipe can be written, but not read.
            Err(error) if path.exists() && !path.is_file() => {
                File::options().append(true).open(path).map_err(|_| failed(error))?
            }
            file => file.map_err(failed)?,
        };
        let is_regular = file.metadata().map_err(failed)?.is_file();
        let mut start = 0;
        if is_regular {
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Error::RejectsInUse(path.to_owned())),
                // Some file systems have no locks.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            let problem = "exists and is not a file of rejects; name another with --rejects";
            start = append_to(&mut file).map_err(failed)?.ok_or_else(|| Error::path(path, problem))?;
        }
        let output = Output { path: path.to_owned(), file: BufWriter::new(file), is_regular };
        Ok(Rejects { file: Some(output), start, ..Rejects::default() })
    }

    /// Adds a rejected line, or its beginning if it is truncated.
    pub(crate) fn add(&mut self, rejected: RejectedLine, line: &[u8], truncated: bool) -> Result<()> {
        self.count += 1;
        if let Some(output) = &mut self.file {
            let raw = std::str::from_utf8(line).ok();
            let raw_hex = raw.is_none().then(|| line.iter().map(|byte| format!("{byte:02x}")).collect());
            let written =
                serde_json::to_vec(&RejectRecord { rejected: &rejected, raw, raw_hex, truncated }).unwrap_or_default();
            let done = output.file.write_all(&written).and_then(|()| output.file.write_all(b"\n"));
            done.map_err(|error| output.failed(error))?;
        }
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(rejected);
        }
        Ok(())
    }

    pub(crate) fn mark(&mut self) -> Result<Mark> {
        let bytes = match &mut self.file {
            Some(output) if output.is_regular => output.file.stream_position().map_err(|error| output.failed(error))?,
            _ => 0,
        };
        Ok(Mark { bytes, examples: self.examples.len(), count: self.count })
    }

    /// Removes the rejects since the mark, because their input is read again.
    pub(crate) fn rollback(&mut self, mark: Mark) -> Result<()> {
        self.examples.truncate(mark.examples);
        self.count = mark.count;
        self.cut(mark.bytes)
    }

    /// Truncates the file of rejects at the mark; without a mark, at the start of this import.
    pub(crate) fn discard(&mut self, mark: Option<Mark>) -> Result<()> {
        self.cut(mark.map_or(self.start, |mark| mark.bytes))
    }

    fn cut(&mut self, bytes: u64) -> Result<()> {
        match &mut self.file {
            Some(output) if output.is_regular => {
                let cut = output.file.seek(SeekFrom::Start(bytes));
                cut.and_then(|_| output.file.get_ref().set_len(bytes)).map_err(|error| output.failed(error))
            }
            _ => Ok(()),
        }
    }

    /// Flushes the buffer. An input is committed only after its rejects are written.
    pub(crate) fn flush(&mut self) -> Result<()> {
        match &mut self.file {
            Some(output) => output.file.flush().map_err(|error| output.failed(error)),
            None => Ok(()),
        }
    }
}

impl Output {
    fn failed(&self, error: io::Error) -> Error {
        Error::io("write the rejects to", &self.path, error)
    }
}

/// Seeks to the end of a file of rejects; `None` for another kind of file. Terminates a truncated last line.
fn append_to(file: &mut File) -> io::Result<Option<u64>> {
    let mut beginning = Vec::new();
    (&*file).take(FIRST_BYTES.len() as u64).read_to_end(&mut beginning)?;
    if !beginning.is_empty() && beginning != FIRST_BYTES {
        return Ok(None);
    }
    let mut end = file.seek(SeekFrom::End(0))?;
    if end > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != [b'\n'] {
            file.write_all(b"\n")?;
            end += 1;
        }
    }
    Ok(Some(end))
}
