//! Reads the messages to publish from lines or whole files, on a separate thread.
//!
//! Owns how input is split into messages, and their maximum size. `lines` reads the lines. The number of messages read ahead is bounded.

use std::fmt;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::error::Error;
use crate::{lines, output};

/// Maximum size of a message. (RabbitMQ's default limit is 16 MiB.)
const MAX_MESSAGE_BYTES: usize = 128 << 20;

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

/// Starts the reading thread.
pub(super) fn read(files: &[PathBuf], splitting: Splitting) -> Result<Receiver<Input>, Error> {
    let (sender, inputs) = channel(READ_AHEAD_CAPACITY);
    let files = match files {
        [] => vec![PathBuf::from("-")],
        files => files.to_vec(),
    };
    lines::spawn(move || {
        // Reading ends early if the receiver is dropped.
        let _ = files.iter().try_for_each(|file| read_one(file, splitting, &sender));
    })?;
    Ok(inputs)
}

fn read_one(path: &Path, splitting: Splitting, sender: &Sender<Input>) -> Result<(), ReceiverClosed> {
    let is_input = path == Path::new("-");
    let name = if is_input { "standard input".to_owned() } else { output::path(path) };
    let origin = MessageOrigin { file: name.into(), line: None };
    let mut source = match lines::open(path) {
        Ok(source) => source,
        Err(error) => return send(sender, unreadable(origin, &error)),
    };
    let is_whole = if is_input { splitting.whole_input } else { !splitting.lines_of_files };
    match is_whole {
        true => send(sender, whole(source.as_mut(), origin)),
        false => read_lines(source.as_mut(), &origin, sender),
    }
}

fn send(sender: &Sender<Input>, input: Input) -> Result<(), ReceiverClosed> {
    sender.blocking_send(input).map_err(|_| ReceiverClosed)
}

fn unreadable(origin: MessageOrigin, error: &io::Error) -> Input {
    Input::Invalid(origin, format!("cannot read: {error}"))
}

fn whole(source: &mut dyn BufRead, origin: MessageOrigin) -> Input {
    let mut body = Vec::new();
    match source.take(MAX_MESSAGE_BYTES as u64 + 1).read_to_end(&mut body) {
        Err(error) => unreadable(origin, &error),
        Ok(size) if size > MAX_MESSAGE_BYTES => Input::Invalid(origin, lines::too_long(MAX_MESSAGE_BYTES)),
        Ok(_) => Input::Message(origin, body),
    }
}

/// Sends each line that is not empty as a message.
fn read_lines(source: &mut dyn BufRead, origin: &MessageOrigin, sender: &Sender<Input>) -> Result<(), ReceiverClosed> {
    for number in 1.. {
        let origin = MessageOrigin { line: Some(number), ..origin.clone() };
        match lines::next(source, MAX_MESSAGE_BYTES) {
            Ok(None) => break,
            Ok(Some(Ok(line))) if line.is_empty() => {}
            Ok(Some(Ok(line))) => send(sender, Input::Message(origin, line))?,
            Ok(Some(Err(why))) => send(sender, Input::Invalid(origin, why))?,
            Err(error) => return send(sender, unreadable(origin, &error)),
        }
    }
    Ok(())
}
