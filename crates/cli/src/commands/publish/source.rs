//! What is published: lines or whole files, one after the other, from a thread of its own.
//!
//! Owns where a message begins and ends, and how long it may be. The number of messages that are read and not yet sent is
//! bounded.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::error::Error;
use crate::output;

/// The longest message. (RabbitMQ's own limit is 16 MiB, unless its settings say otherwise.)
const LONGEST: u64 = 128 << 20;

/// The number of messages that are read ahead.
const AHEAD: usize = 16;

/// Whether lines or whole files are messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) lines_of_files: bool,
    pub(super) whole_input: bool,
}

/// Where a message is from, for people.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    file: Arc<str>,
    line: Option<u64>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

pub(super) enum Input {
    Message(Origin, Vec<u8>),
    /// What cannot be one, and why.
    Bad(Origin, String),
}

/// The receiver is gone: reading ends.
struct Gone;

/// Begins to read on a thread of its own. The thread is not joined: one that waits for a line cannot be stopped.
pub(super) fn read(files: &[PathBuf], way: Way) -> Result<Receiver<Input>, Error> {
    let (sender, inputs) = channel(AHEAD);
    let files = match files {
        [] => vec![PathBuf::from("-")],
        files => files.to_vec(),
    };
    let read_all = move || {
        for file in &files {
            if read_one(file, way, &sender).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("source".to_owned()).spawn(read_all);
    thread.map_err(|error| Error::System(format!("cannot start a thread: {error}")))?;
    Ok(inputs)
}

fn read_one(path: &Path, way: Way, sender: &Sender<Input>) -> Result<(), Gone> {
    let is_input = path == Path::new("-");
    let name = if is_input { "standard input".to_owned() } else { output::path(path) };
    let origin = Origin { file: name.into(), line: None };
    let opened: io::Result<Box<dyn BufRead>> = match is_input {
        true => Ok(Box::new(BufReader::new(io::stdin()))),
        false => std::fs::File::open(path).map(|file| Box::new(BufReader::new(file)) as Box<dyn BufRead>),
    };
    let mut source = match opened {
        Ok(source) => source,
        Err(error) => return send(sender, Input::Bad(origin, format!("cannot be read: {error}"))),
    };
    let is_whole = if is_input { way.whole_input } else { !way.lines_of_files };
    match is_whole {
        true => send(sender, whole(source.as_mut(), origin)),
        false => lines(source.as_mut(), &origin, LONGEST, sender),
    }
}

fn send(sender: &Sender<Input>, input: Input) -> Result<(), Gone> {
    sender.blocking_send(input).map_err(|_| Gone)
}

fn whole(source: &mut dyn BufRead, origin: Origin) -> Input {
    let mut body = Vec::new();
    match source.take(LONGEST + 1).read_to_end(&mut body) {
        Err(error) => Input::Bad(origin, format!("cannot be read: {error}")),
        Ok(size) if size as u64 > LONGEST => Input::Bad(origin, too_long(LONGEST)),
        Ok(_) => Input::Message(origin, body),
    }
}

fn too_long(longest: u64) -> String {
    format!("is too long; at most {longest} bytes are legal")
}

/// A line that is too long is never in memory as a whole.
fn lines(
    source: &mut dyn BufRead,
    origin: &Origin,
    longest: u64,
    sender: &Sender<Input>,
) -> Result<(), Gone> {
    for number in 1.. {
        let origin = Origin { line: Some(number), ..origin.clone() };
        let mut line = Vec::new();
        match source.take(longest + 2).read_until(b'\n', &mut line) {
            Err(error) => return send(sender, Input::Bad(origin, format!("cannot be read: {error}"))),
            Ok(0) => return Ok(()),
            Ok(_) => {}
        }
        let is_cut = line.last() != Some(&b'\n') && line.len() as u64 > longest;
        while matches!(line.last(), Some(b'\n' | b'\r')) {
            line.pop();
        }
        if is_cut || line.len() as u64 > longest {
            if is_cut && let Err(error) = source.skip_until(b'\n') {
                return send(sender, Input::Bad(origin, format!("cannot be read: {error}")));
            }
            send(sender, Input::Bad(origin, too_long(longest)))?;
        } else if !line.is_empty() {
            send(sender, Input::Message(origin, line))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_and_bounded() {
        let (sender, mut inputs) = channel(20);
        let origin = Origin { file: "f".into(), line: None };
        let mut text: &[u8] = b"a\r\n\n12345678\n123456789\n1234567890123\nlast";
        assert!(lines(&mut text, &origin, 8, &sender).is_ok());
        drop(sender);
        let mut found = Vec::new();
        while let Some(input) = inputs.blocking_recv() {
            found.push(match input {
                Input::Message(origin, body) => format!("{origin} {}", String::from_utf8(body).unwrap()),
                Input::Bad(origin, why) => format!("{origin} {why}"),
            });
        }
        let long = too_long(8);
        let expected = [
            "f:1 a".to_owned(),
            "f:3 12345678".to_owned(),
            format!("f:4 {long}"),
            format!("f:5 {long}"),
            "f:6 last".to_owned(),
        ];
        assert_eq!(found, expected);
    }
}
