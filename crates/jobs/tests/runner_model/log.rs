//! The log of a round: what handlers and the test have written, in the order in which it happened.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

/// A file to which several processes append lines.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(folder: &Path) -> Self {
        Log(OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap())
    }

    /// Appends a line by one call, so that lines are not mixed.
    pub(crate) fn line(&self, line: &str) {
        (&self.0).write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// One line. Times are microseconds of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A handler was started for a task by a process, with the number of the start.
    Start { task: i64, process: u32, attempt: u32, at: i64 },
    /// A handler is about to return.
    End { task: i64, process: u32, end: End, at: i64 },
    /// A task was enqueued that is not due before a time.
    Due { task: i64, at: i64 },
    /// A task was cancelled: at once, or when its run has ended.
    Cancel { task: i64, at_once: bool },
    /// A process is about to be killed.
    Kill { process: u32 },
    /// The runner of a process has returned from its stop.
    Stopped { process: u32 },
    /// The runs that wait at this gate may end.
    Gate { number: i64 },
    /// From here on one process with one worker runs.
    Finish,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Ok,
    Transient,
    Permanent,
    Cancelled,
}

impl End {
    const ALL: [End; 4] = [End::Ok, End::Transient, End::Permanent, End::Cancelled];

    /// As the log has it.
    pub(crate) fn number(self) -> usize {
        Self::ALL.iter().position(|end| *end == self).unwrap_or_default()
    }
}

/// Reads the log while it is being written.
pub(crate) struct Reader {
    file: File,
    rest: Vec<u8>,
    events: Vec<Event>,
}

impl Reader {
    pub(crate) fn open(folder: &Path) -> Self {
        Reader { file: File::open(folder.join("log")).unwrap(), rest: Vec::new(), events: Vec::new() }
    }

    /// All events so far.
    pub(crate) fn events(&mut self) -> &[Event] {
        self.file.read_to_end(&mut self.rest).unwrap();
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        let lines = String::from_utf8(lines).unwrap();
        let event = |line| event(line).unwrap_or_else(|| panic!("the log has the line {line:?}"));
        self.events.extend(lines.lines().map(event));
        &self.events
    }
}

fn event(line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let name = words.next()?;
    let mut number = || words.next()?.parse::<i64>().ok();
    Some(match name {
        "start" => {
            let (task, process, attempt, at) = (number()?, number()? as u32, number()? as u32, number()?);
            Event::Start { task, process, attempt, at }
        }
        "end" => {
            let (task, process, end, at) = (number()?, number()? as u32, number()?, number()?);
            Event::End { task, process, end: *End::ALL.get(usize::try_from(end).ok()?)?, at }
        }
        "due" => Event::Due { task: number()?, at: number()? },
        "cancel" => Event::Cancel { task: number()?, at_once: number()? == 1 },
        "kill" => Event::Kill { process: number()? as u32 },
        "stopped" => Event::Stopped { process: number()? as u32 },
        "gate" => Event::Gate { number: number()? },
        "finish" => Event::Finish,
        _ => return None,
    })
}
