//! The log of a run: what workers and producers did and the database cannot tell.
//!
//! An event is one line of JSON and one write(2) to a file opened for appending, so a kill after the call does not lose
//! it, and lines of several processes do not mix. A power cut may lose them; no run simulates one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorContext};

/// Event that a process logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// The enqueueing of a task was acknowledged.
    Enqueued { task: i64, kind: String, key: String },
    /// A write of a producer failed.
    Refused { producer: String, error: String },
    /// A worker began to run a task.
    Start { task: i64, worker: String },
    /// A run of a task is about to look up its checkpoint; each lookup has a unique name.
    LookUp { task: i64, lookup: String },
    /// That lookup found this step.
    Resumed { task: i64, lookup: String, step: u32 },
    /// The checkpoint of this step was acknowledged.
    Saved { task: i64, step: u32 },
    /// A task changed the external state under this key. The change is idempotent, so a key may occur several times.
    Effect { task: i64, key: String },
}

/// The log, opened for appending by several processes.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        OpenOptions::new().create(true).append(true).open(path).map(Log).context("cannot open the log")
    }

    pub(crate) fn append(&self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        (&self.0).write_all(&line)
    }
}

/// Reads all events. An invalid line could hide a violation, so it is an error.
pub(crate) fn read(path: &Path) -> Result<Vec<Event>, Error> {
    let text = std::fs::read_to_string(path).context(format!("cannot read {}", path.display()))?;
    let event = |line: &str| serde_json::from_str(line).context(format!("{}: invalid line {line:?}", path.display()));
    text.lines().map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_logged_and_invalid_lines_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let events =
            [Event::Start { task: 7, worker: "w1".to_owned() }, Event::Effect { task: 7, key: "a b".to_owned() }];
        let log = Log::open(&path).unwrap();
        events.iter().for_each(|event| log.append(event).unwrap());
        assert_eq!(read(&path).unwrap(), events);
        std::fs::write(&path, "{\"Saved\":{\"task\":7,\"st").unwrap();
        assert!(read(&path).is_err());
    }
}
