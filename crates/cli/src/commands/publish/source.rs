//! Reads the messages to publish from lines or whole files, on a separate thread.
//!
//! Owns how input is split into messages, and their maximum size. The number of messages read ahead is bounded.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::error::Error;
use crate::output;

/// Maximum size of a message. (RabbitMQ's default limit is 16 MiB.)
const MAX_MESSAGE_BYTES: u64 = 128 << 20;

const READ_AHEAD_CAPACITY: usize = 16;

/// How input is split into messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splitting {
    pub(super) lines_of_files: bool,
    pub(super) whole_input: bool,
}

/// File and line of a message, for errors.
#[derive(Clone, Debug)]
pub(super) struct MessageOrigin {
    file: Arc<str>,
    line: Option<u64>,
}

impl fmt::Display for MessageOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

pub(super) enum Input {
    Message(MessageOrigin, Vec<u8>),
    /// Origin of the input, and why it is not a message.
    Invalid(MessageOrigin, String),
}

/// The receiver was dropped, so reading ends.
struct ReceiverClosed;

/// Starts the reading thread. It is not joined, because a thread that waits for a line cannot be stopped.
pub(super) fn read(files: &[PathBuf], splitting: Splitting) -> Result<Receiver<Input>, Error> {
    let (sender, inputs) = channel(READ_AHEAD_CAPACITY);
    let files = match files {
        [] => vec![PathBuf::from("-")],
        files => files.to_vec(),
    };
    let read_all = move || {
        for file in &files {
            if read_one(file, splitting, &sender).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("source".to_owned()).spawn(read_all);
    thread.map_err(|error| Error::System(format!("cannot start a thread: {error}")))?;
    Ok(inputs)
}

fn read_one(path: &Path, splitting: Splitting, sender: &Sender<Input>) -> Result<(), ReceiverClosed> {
    let is_input = path == Path::new("-");
    let name = if is_input { "standard input".to_owned() } else { output::path(path) };
    let origin = MessageOrigin { file: name.into(), line: None };
    let opened: io::Result<Box<dyn BufRead>> = match is_input {
        true => Ok(Box::new(BufReader::new(io::stdin()))),
        false => std::fs::File::open(path).map(|file| Box::new(BufReader::new(file)) as Box<dyn BufRead>),
    };
    let mut source = match opened {
        Ok(source) => source,
        Err(error) => return send(sender, Input::Invalid(origin, format!("cannot read: {error}"))),
    };
    let is_whole = if is_input { splitting.whole_input } else { !splitting.lines_of_files };
    match is_whole {
        true => send(sender, whole(source.as_mut(), origin)),
        false => lines(source.as_mut(), &origin, MAX_MESSAGE_BYTES, sender),
    }
}

fn send(sender: &Sender<Input>, input: Input) -> Result<(), ReceiverClosed> {
    sender.blocking_send(input).map_err(|_| ReceiverClosed)
}

fn whole(source: &mut dyn BufRead, origin: MessageOrigin) -> Input {
    let mut body = Vec::new();
    match source.take(MAX_MESSAGE_BYTES + 1).read_to_end(&mut body) {
        Err(error) => Input::Invalid(origin, format!("cannot read: {error}")),
        Ok(size) if size as u64 > MAX_MESSAGE_BYTES => Input::Invalid(origin, too_long(MAX_MESSAGE_BYTES)),
        Ok(_) => Input::Message(origin, body),
    }
}

fn too_long(max_bytes: u64) -> String {
    format!("is too long; the maximum is {max_bytes} bytes")
}

/// Sends each line as a message. A line that is too long is never held in memory as a whole.
fn lines(
    source: &mut dyn BufRead,
    origin: &MessageOrigin,
    max_bytes: u64,
    sender: &Sender<Input>,
) -> Result<(), ReceiverClosed> {
    for number in 1.. {
        let origin = MessageOrigin { line: Some(number), ..origin.clone() };
        let mut line = Vec::new();
        match source.take(max_bytes + 2).read_until(b'\n', &mut line) {
            Err(error) => return send(sender, Input::Invalid(origin, format!("cannot read: {error}"))),
            Ok(0) => return Ok(()),
            Ok(_) => {}
        }
        let is_cut = line.last() != Some(&b'\n') && line.len() as u64 > max_bytes;
        while matches!(line.last(), Some(b'\n' | b'\r')) {
            line.pop();
        }
        if is_cut || line.len() as u64 > max_bytes {
            if is_cut && let Err(error) = source.skip_until(b'\n') {
                return send(sender, Input::Invalid(origin, format!("cannot read: {error}")));
            }
            send(sender, Input::Invalid(origin, too_long(max_bytes)))?;
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
    fn lines_longer_than_the_limit_are_rejected() {
        let (sender, mut inputs) = channel(20);
        let origin = MessageOrigin { file: "f".into(), line: None };
        let mut text: &[u8] = b"a\r\n\n12345678\n123456789\n1234567890123\nlast";
        assert!(lines(&mut text, &origin, 8, &sender).is_ok());
        drop(sender);
        let mut found = Vec::new();
        while let Some(input) = inputs.blocking_recv() {
            found.push(match input {
                Input::Message(origin, body) => format!("{origin} {}", String::from_utf8(body).unwrap()),
                Input::Invalid(origin, why) => format!("{origin} {why}"),
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
