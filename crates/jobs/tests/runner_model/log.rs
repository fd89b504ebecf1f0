//! The log of a round: events that handlers and the test append, in the order in which they happen.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

/// A file to which several processes append lines.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(folder: &Path) -> Self {
        Log(OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap())
    }

    /// Appends a line with one write, so that lines of several processes are not mixed.
    pub(crate) fn line(&self, line: &str) {
        (&self.0).write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// One line of the log. Times are microseconds of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A process has started the handler of a task.
    Start { task: i64, process: u32, attempt: u32, at: i64 },
    /// A handler is about to return.
    End { task: i64, process: u32, outcome: Outcome, at: i64 },
    /// A task was enqueued that is due at a later time.
    Due { task: i64, at: i64 },
    /// A task was cancelled: at once, or when its run has ended.
    Cancel { task: i64, at_once: bool },
    /// A process is about to be killed.
    Kill { process: u32 },
    /// The runner of a process has returned from its stop.
    Stopped { process: u32 },
    /// The test opens a gate: the runs that wait at it may end.
    Gate { number: i64 },
    /// From here on one process with one worker for each kind runs.
    Finish,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Transient,
    Permanent,
    Cancelled,
}

impl Outcome {
    const ALL: [Outcome; 4] = [Outcome::Ok, Outcome::Transient, Outcome::Permanent, Outcome::Cancelled];

    /// The number by which the log names it.
    pub(crate) fn number(self) -> usize {
        Self::ALL.iter().position(|outcome| *outcome == self).unwrap_or_default()
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

    /// Returns all events logged so far.
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
            let (task, process, outcome, at) = (number()?, number()? as u32, number()?, number()?);
            Event::End { task, process, outcome: *Outcome::ALL.get(usize::try_from(outcome).ok()?)?, at }
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
