//! `gristmill enqueue`: work into the queue, one task or a file of them.
//!
//! Owns how words become a task. What a task of some kind needs in its payload, only `exec` is known here.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use gristmill_jobs::exec;
use gristmill_store::tasks::{MAX_PAYLOAD, NewTask};
use gristmill_store::{Store, UtcTime};
use serde_json::json;

use crate::context::{Context, open_or_create};
use crate::error::{Error, Outcome};
use crate::output::{note, plural};
use crate::settings::{absolute, value};
use crate::signals::Listener;

const EXAMPLES: &str = "\
When the command says that a task is queued, it is on disk.

With --lines, a line that is no payload is named and skipped, and the rest is queued; the exit code is 1 then. \
Ctrl-C ends it after the lines read so far, and it says how many those are (130).

The built-in worker runs the kind exec; tasks of other kinds wait for workers of your own.

The payload of exec:
  argv             the program and its words, such as [\"make\", \"test\"]; all else may be left out
  cwd              the folder to run it in; the worker's own without it
  env              variables beside those of the worker, such as {\"LANG\": \"C\"}
  stdin            a text for it to read
  timeout_seconds  how long it may run; as the worker's settings say without it
  permanent        exit codes after which it is given up at once, such as [2, 3]
  transient        exit codes after which it is tried again

Examples:
  gristmill enqueue exec -- rsync -a ~/Pictures nas:backup
  gristmill enqueue exec --timeout 10m --env LANG=C -- make -C /src test
  gristmill enqueue exec --payload '{\"argv\": [\"sync\"], \"transient\": [1]}'
  seq 1000 | sed 's/.*/{\"argv\": [\"echo\", \"&\"]}/' | gristmill enqueue exec --lines -
  gristmill enqueue thumbnail --payload @job.json --priority 5 --run-after 'in 2h'
  gristmill enqueue report --payload '{}' --unique-key daily --run-after '2030-01-01 06:00:00'";

const USAGE: &str = "gristmill enqueue [OPTIONS] <KIND> --payload <JSON>
       gristmill enqueue [OPTIONS] <KIND> --lines <FILE>
       gristmill enqueue [OPTIONS] exec -- <COMMAND>...";

/// So many tasks go into the database at once, with so many bytes of payload.
const MAX_BATCH_TASKS: usize = 1_000;
const MAX_BATCH_BYTES: usize = 4 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["payload", "lines", "command"])))]
pub(crate) struct Args {
    /// Which handler runs it: exec, or what your own workers know
    kind: String,

    /// What it is about: JSON, @FILE to read it from, or - for standard input
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    payload: Option<String>,

    /// Many tasks: a file with one payload a line, or - for standard input
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,

    /// For exec: the command and its words
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,

    /// Which workers may take it
    #[arg(long, default_value = "default")]
    queue: String,

    /// Higher ones are taken first
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = priority, allow_hyphen_values = true)]
    priority: i32,

    /// Not before: a UTC time, or a time from now such as 'in 5m'
    #[arg(long, value_name = "WHEN", value_parser = when)]
    run_after: Option<When>,

    /// How many attempts may fail before it is given up [default: as its handler says]
    #[arg(long, value_name = "N", value_parser = attempts, allow_hyphen_values = true)]
    max_attempts: Option<u32>,

    /// While a task of this kind with this key is unfinished, queue no second one
    #[arg(long, value_name = "KEY", conflicts_with = "lines")]
    unique_key: Option<String>,

    /// What it is about, for people and for dead letters
    #[arg(long, value_name = "ID")]
    document: Option<String>,

    /// For exec: how long the command may run [default: as the worker's settings say]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,

    /// For exec: the folder to run it in [default: this one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// For exec: a variable for the command; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = env_variable)]
    env: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    At(UtcTime),
    In(Duration),
}

fn when(text: &str) -> Result<When, String> {
    let span = text.strip_prefix("in ").unwrap_or(text);
    if let Some(span) = value::duration(span) {
        return Ok(When::In(span));
    }
    let moment = text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_microsecond);
    let civil = || {
        let time = text.parse::<jiff::civil::DateTime>().ok()?;
        Some(jiff::tz::Offset::UTC.to_timestamp(time).ok()?.as_microsecond())
    };
    moment.or_else(civil).map(|micros| When::At(UtcTime::from_micros(micros))).ok_or_else(|| {
        "legal: a UTC time such as '2030-01-01 06:00:00', one with an offset such as 2030-01-01T06:00:00+02:00, or a \
         time from now such as 'in 5m'"
            .to_owned()
    })
}

fn duration(text: &str) -> Result<Duration, String> {
    let found = value::duration(text).filter(|duration| !duration.is_zero());
    found.ok_or_else(|| format!("legal: more than 0s, written as {}", value::DURATIONS))
}

fn priority(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| format!("legal: a whole number from {} to {}", i32::MIN, i32::MAX))
}

fn attempts(text: &str) -> Result<u32, String> {
    let found = text.parse().ok().filter(|count| *count > 0);
    found.ok_or_else(|| format!("legal: a whole number from 1 to {}", u32::MAX))
}

fn env_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("legal: NAME=VALUE".to_owned()),
    }
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    if !args.command.is_empty() && args.kind != exec::KIND {
        return Err(Error::Setting(format!(
            "words after -- are a command, which only the kind exec runs; {:?} takes --payload or --lines",
            args.kind
        )));
    }
    check_exec_flags(args)?;
    let settings = context.settings()?;
    if let Some(path) = &args.lines {
        let source = open_lines(path)?;
        let store = open_or_create(&settings)?;
        return enqueue_lines(context, &store, &template(args, &store), source);
    }
    let payload = payload(args)?;
    let store = open_or_create(&settings)?;
    let enqueued = store.tasks().enqueue(NewTask { payload, ..template(args, &store) })?;
    context.output.print(&enqueued, |_| match enqueued.created {
        true => format!("task {} is queued", enqueued.id),
        false => format!("task {} has this key and is not finished; nothing was queued", enqueued.id),
    })?;
    Ok(Outcome::Done)
}

/// Some flags say how a command is run. Where no command was given they would be ignored, and somebody thinks that
/// they are not.
fn check_exec_flags(args: &Args) -> Result<(), Error> {
    let given = [
        ("--timeout", "timeout_seconds", args.timeout.is_some()),
        ("--cwd", "cwd", args.cwd.is_some()),
        ("--env", "env", !args.env.is_empty()),
    ];
    let Some((flag, field, _)) = given.into_iter().find(|(_, _, given)| *given && args.command.is_empty())
    else {
        return Ok(());
    };
    let right = match (args.kind.as_str(), &args.lines) {
        (exec::KIND, None) => format!("a payload of exec has the field {field:?} for it"),
        (exec::KIND, Some(_)) => {
            format!("each line is a payload of exec, which has the field {field:?} for it")
        }
        (kind, _) => format!("what a task of the kind {kind:?} needs is part of its payload"),
    };
    Err(Error::Setting(format!("{flag} goes with `exec -- COMMAND` only; {right}")))
}

/// The task but for its payload.
fn template(args: &Args, store: &Store) -> NewTask {
    NewTask {
        queue: args.queue.clone(),
        priority: args.priority,
        run_after: args.run_after.map(|when| match when {
            When::At(time) => time,
            When::In(span) => store.now().plus(span),
        }),
        max_attempts: args.max_attempts,
        unique_key: args.unique_key.clone(),
        document_id: args.document.clone(),
        ..NewTask::new(args.kind.clone(), String::new())
    }
}

fn payload(args: &Args) -> Result<String, Error> {
    let (source, text) = match args.payload.as_deref() {
        None => return command(args),
        Some("-") => ("standard input".to_owned(), read(io::stdin().lock(), "standard input")?),
        Some(text) => match text.strip_prefix('@') {
            None => ("--payload".to_owned(), text.to_owned()),
            Some(path) => {
                let file = std::fs::File::open(path).map_err(|error| {
                    Error::Setting(format!("cannot read the payload from {path}: {error}"))
                })?;
                (path.to_owned(), read(file, path)?)
            }
        },
    };
    check(&args.kind, &text).map_err(|error| Error::Setting(format!("the payload from {source} {error}")))?;
    Ok(text)
}

fn read(source: impl Read, name: &str) -> Result<String, Error> {
    let mut text = String::new();
    let most = MAX_PAYLOAD as u64 + 1;
    source
        .take(most)
        .read_to_string(&mut text)
        .map_err(|error| Error::Setting(format!("cannot read the payload from {name}: {error}")))?;
    Ok(text)
}

/// Whether a payload is one for this kind. The error says where it is not.
pub(super) fn check(kind: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_PAYLOAD {
        return Err(format!("is too long; at most {MAX_PAYLOAD} bytes are legal"));
    }
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| format!("is not JSON: {error}"))?;
    if kind == exec::KIND {
        let command: exec::Command =
            serde_json::from_str(text).map_err(|error| format!("is not a command: {error}"))?;
        command.check().map_err(|error| format!("is not a command: {error}"))?;
    }
    Ok(())
}

/// The payload of a command line.
fn command(args: &Args) -> Result<String, Error> {
    let cwd = absolute(args.cwd.as_deref().unwrap_or(Path::new(".")))?;
    if args.cwd.is_some() && !cwd.is_dir() {
        return Err(Error::Setting(format!("--cwd {} is not a folder", cwd.display())));
    }
    let command = exec::Command {
        argv: args.command.clone(),
        // `absolute` keeps a trailing dot of "."; a path made of parts does not.
        cwd: Some(cwd.components().collect()),
        env: args.env.iter().cloned().collect::<BTreeMap<_, _>>(),
        timeout_seconds: args.timeout.map(|timeout| timeout.as_secs_f64()),
        ..exec::Command::default()
    };
    serde_json::to_string(&command)
        .map_err(|error| Error::Setting(format!("the command cannot be written as JSON: {error}")))
}

fn open_lines(path: &Path) -> Result<Box<dyn BufRead + Send>, Error> {
    if path == Path::new("-") {
        return Ok(Box::new(io::BufReader::new(io::stdin())));
    }
    let file = std::fs::File::open(path)
        .map_err(|error| Error::Setting(format!("cannot read {}: {error}", path.display())))?;
    Ok(Box::new(io::BufReader::new(file)))
}

/// What comes while many tasks are queued.
enum Input {
    Line(Result<String, String>),
    /// No more lines, or none that can be read.
    End(Result<(), Error>),
    /// It was told to stop.
    Signal,
}

/// Many tasks, in batches. A line that is no payload is named and costs only itself.
fn enqueue_lines(
    context: &Context,
    store: &Store,
    template: &NewTask,
    source: Box<dyn BufRead + Send>,
) -> Result<Outcome, Error> {
    let (inputs, input) = mpsc::sync_channel(MAX_BATCH_TASKS);
    let signals = Listener::start(1, {
        let inputs = inputs.clone();
        move || drop(inputs.send(Input::Signal))
    })?;
    read_lines(source, inputs)?;
    let mut batches = Batches { store, batch: Vec::new(), bytes: 0, queued: 0, lines: 0 };
    let (mut refused, mut lines) = (0, 0u64);
    let end = loop {
        let line = match input.recv() {
            Ok(Input::Line(line)) => line,
            Ok(Input::End(result)) => break result.map(|()| Outcome::Done),
            Ok(Input::Signal) | Err(_) => break Ok(Outcome::Interrupted),
        };
        lines += 1;
        let checked = line.and_then(|text| match text.trim().is_empty() {
            true => Ok(None),
            false => check(&template.kind, &text).map(|()| Some(text)),
        });
        match checked {
            Ok(None) => {}
            Ok(Some(text)) => batches.add(NewTask { payload: text, ..template.clone() }, lines)?,
            Err(error) => {
                refused += 1;
                // The number of the line is known better here.
                let error = error.replace(" at line 1 column ", " at column ");
                note(&format!("error: line {lines} {error}"));
            }
        }
    };
    batches.flush(lines)?;
    // Whoever still has something to say must not wait for us to listen.
    drop(input);
    signals.stop();
    let queued = batches.queued;
    let outcome = end.inspect_err(|_| batches.report_progress())?;
    let value = json!({"queued": queued, "refused": refused, "lines": lines});
    // Lines that were refused have been told.
    context.output.summary(&value, Outcome::Done, |_| {
        let mut text = format!("{} queued", plural(queued, "task"));
        if refused > 0 {
            text.push_str(&format!(", {} refused", plural(refused, "line")));
        }
        if outcome == Outcome::Interrupted {
            text.push_str(&format!("; interrupted after line {lines}"));
        }
        text
    })?;
    Ok(if refused == 0 { outcome } else { outcome.and(Outcome::UserError) })
}

/// Reads on a thread of its own, which nobody waits for: one that waits for a line cannot be told to stop.
fn read_lines(mut source: Box<dyn BufRead + Send>, inputs: SyncSender<Input>) -> Result<(), Error> {
    let read = move || {
        loop {
            let (input, more) = match next_line(source.as_mut()) {
                Ok(Some(line)) => (Input::Line(line), true),
                Ok(None) => (Input::End(Ok(())), false),
                Err(error) => (Input::End(Err(error)), false),
            };
            if inputs.send(input).is_err() || !more {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("lines".to_owned()).spawn(read);
    thread.map(drop).map_err(|error| Error::System(format!("cannot start a thread: {error}")))
}

/// Tasks on their way into the database.
struct Batches<'a> {
    store: &'a Store,
    batch: Vec<NewTask>,
    bytes: usize,
    /// So many are in it, from so many lines.
    queued: u64,
    lines: u64,
}

impl Batches<'_> {
    fn add(&mut self, task: NewTask, line: u64) -> Result<(), Error> {
        self.bytes += task.payload.len();
        self.batch.push(task);
        if self.batch.len() >= MAX_BATCH_TASKS || self.bytes >= MAX_BATCH_BYTES {
            self.flush(line)
        } else {
            Ok(())
        }
    }

    /// Queues what has come together, up to this line.
    fn flush(&mut self, line: u64) -> Result<(), Error> {
        let count = self.batch.len() as u64;
        self.bytes = 0;
        if count > 0 {
            let batch = std::mem::take(&mut self.batch);
            self.store.tasks().enqueue_many(batch).inspect_err(|_| self.report_progress())?;
        }
        self.queued += count;
        self.lines = line;
        Ok(())
    }

    /// How far it came, for whoever has to go on from there.
    fn report_progress(&self) {
        let lines = plural(self.lines, "line");
        note(&format!("{} queued before this, from the first {lines}", plural(self.queued, "task")));
    }
}

/// A line, or why it cannot be one; nothing at the end. A line is never held in memory beyond what is legal.
fn next_line(source: &mut dyn BufRead) -> Result<Option<Result<String, String>>, Error> {
    let failed = |error: io::Error| Error::System(format!("cannot read the lines: {error}"));
    let mut line = Vec::new();
    let most = MAX_PAYLOAD as u64 + 2;
    if source.take(most).read_until(b'\n', &mut line).map_err(failed)? == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') && line.len() as u64 == most {
        source.skip_until(b'\n').map_err(failed)?;
        return Ok(Some(Err(format!("is too long; at most {MAX_PAYLOAD} bytes are legal"))));
    }
    while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        line.pop();
    }
    Ok(Some(String::from_utf8(line).map_err(|error| format!("is not UTF-8: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_when(text: &str, expected: Option<&str>) {
        let found = when(text).ok().map(|when| match when {
            When::At(time) => time.to_string(),
            When::In(span) => value::show_duration(span),
        });
        assert_eq!(found.as_deref(), expected, "{text:?}");
    }

    #[test]
    fn times_and_times_from_now() {
        check_when("in 5m", Some("5m"));
        check_when("2h", Some("2h"));
        check_when("2030-01-01 06:00:00", Some("2030-01-01 06:00:00.000000"));
        check_when("2030-01-01", Some("2030-01-01 00:00:00.000000"));
        check_when("2030-01-01T06:00:00Z", Some("2030-01-01 06:00:00.000000"));
        check_when("2030-01-01T06:00:00+02:00", Some("2030-01-01 04:00:00.000000"));
        for text in ["", "tomorrow", "in five minutes", "2030-13-01", "5"] {
            check_when(text, None);
        }
    }

    #[test]
    fn lines_are_bounded_and_told_apart() {
        let long = "x".repeat(MAX_PAYLOAD + 2);
        let text = format!("1\r\n\n{long}\n3");
        let mut source: &[u8] = text.as_bytes();
        let mut found = Vec::new();
        while let Some(line) = next_line(&mut source).unwrap() {
            found.push(line.map_err(|error| error[..14].to_owned()));
        }
        let expected =
            [Ok("1".to_owned()), Ok(String::new()), Err("is too long; a".to_owned()), Ok("3".to_owned())];
        assert_eq!(found, expected);
    }
}
