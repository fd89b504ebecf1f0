//! Lines that were rejected: counted, the first ones kept, all written to a file if one is wanted.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::summary::Rejected;
use crate::error::{Error, Result};

/// So many are shown.
const SHOWN: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct Rejects {
    file: Option<(PathBuf, BufWriter<File>)>,
    pub(crate) examples: Vec<Rejected>,
    pub(crate) count: u64,
}

/// Where the rejects of a file begin, to take them back when it is read again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    bytes: u64,
    examples: usize,
    count: u64,
}

/// As it is written to the file.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    rejected: &'a Rejected,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<&'a str>,
    /// Where it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_hex: Option<String>,
}

/// How such a file begins.
const BEGINNING: &[u8] = b"{\"file\":";

impl Rejects {
    /// Opens the file. One that is there is written over only if it has rejects in it.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Rejects::default()) };
        let failed = |error: std::io::Error| Error::io("write the rejects to", path, &error);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(failed)?;
        if file.metadata().map_err(failed)?.is_file() {
            let mut beginning = Vec::new();
            (&file).take(BEGINNING.len() as u64).read_to_end(&mut beginning).map_err(failed)?;
            if !beginning.is_empty() && beginning != BEGINNING {
                return Err(Error::Invalid(format!(
                    "{} is there already, and is no file of rejects; name another with --rejects",
                    path.display()
                )));
            }
            file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(failed)?;
        }
        Ok(Rejects { file: Some((path.to_owned(), BufWriter::new(file))), ..Rejects::default() })
    }

    pub(crate) fn add(&mut self, rejected: Rejected, line: &[u8]) -> Result<()> {
        self.count += 1;
        if let Some((path, file)) = &mut self.file {
            let raw = std::str::from_utf8(line).ok();
            let raw_hex = raw.is_none().then(|| line.iter().map(|byte| format!("{byte:02x}")).collect());
            let written =
                serde_json::to_vec(&Written { rejected: &rejected, raw, raw_hex }).unwrap_or_default();
            let done = file.write_all(&written).and_then(|()| file.write_all(b"\n"));
            done.map_err(|error| Error::io("write the rejects to", path, &error))?;
        }
        if self.examples.len() < SHOWN {
            self.examples.push(rejected);
        }
        Ok(())
    }

    pub(crate) fn mark(&mut self) -> Mark {
        let bytes = self.file.as_mut().and_then(|(_, file)| file.stream_position().ok()).unwrap_or(0);
        Mark { bytes, examples: self.examples.len(), count: self.count }
    }

    /// Forgets those since the mark: their file is read again.
    pub(crate) fn take_back(&mut self, mark: Mark) {
        self.examples.truncate(mark.examples);
        self.count = mark.count;
        if let Some((_, file)) = &mut self.file {
            // What is no regular file cannot take anything back; it gets them twice.
            let _ = file.seek(SeekFrom::Start(mark.bytes)).and_then(|_| file.get_ref().set_len(mark.bytes));
        }
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        match &mut self.file {
            Some((path, file)) => {
                file.flush().map_err(|error| Error::io("write the rejects to", path, &error))
            }
            None => Ok(()),
        }
    }
}
