//! `gristmill enqueue`: queues one task, or one for each line of a file.
//!
//! Owns how arguments become a task. Only payloads of the kind `exec` are checked here; other kinds are not known.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use gristmill_jobs::exec;
use gristmill_store::tasks::{MAX_PAYLOAD, NewTask};
use gristmill_store::{Store, UtcTime};
use serde_json::json;

use super::value_parsers::positive_duration;
use crate::context::{Context, open_or_create};
use crate::error::{Error, Outcome};
use crate::lines;
use crate::output::note;
use crate::settings::absolute;
use crate::supervisor::Supervisor;
use crate::units::{self, plural};

const HELP: &str = "\
A task is on disk when this command reports it as queued. `gristmill worker` runs tasks of the kind exec; tasks of \
other kinds wait for workers that you write.

With --lines, a line that is not a valid payload is reported and skipped, and the others are queued; the exit status \
is then 1. Ctrl-C stops after the lines read so far and reports their number; the exit status is then 130.

Payload of exec:
  argv             program and arguments, such as [\"make\", \"test\"]; required
  cwd              folder to run in [default: that of the worker]
  env              additional environment variables, such as {\"LANG\": \"C\"}
  stdin            text for standard input
  timeout_seconds  how long the command may run [default: setting exec.timeout]
  permanent        exit statuses that make the task a dead letter at once, such as [2, 3]
  transient        exit statuses after which the task is retried

The command runs with the variables GRISTMILL_TASK_ID (the same in every attempt), GRISTMILL_ATTEMPT (1 for the first \
start) and GRISTMILL_REDELIVERED (1 if it was or may have been started before, otherwise 0).

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

const EXEC_OPTIONS: &str = "Options of exec -- COMMAND";

/// Maximum number of tasks that one transaction inserts.
const MAX_BATCH_TASKS: usize = 1_000;

/// Size of payloads, in bytes, at which a batch is inserted.
const MAX_BATCH_BYTES: usize = 4 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP, override_usage = USAGE)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["payload", "lines", "command"])))]
pub(crate) struct Args {
    /// Kind of the task: exec, or a kind that your own workers handle
    kind: String,

    /// Payload: JSON, @FILE to read it from a file, or - for standard input
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    payload: Option<String>,

    /// Queue one task for each line of a file, or of standard input with -
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,

    /// Command and its arguments, for exec
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,

    /// Queue of the task; workers take tasks from the queues they serve
    #[arg(long, default_value = "default")]
    queue: String,

    /// Priority; higher numbers run first
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = priority, allow_hyphen_values = true)]
    priority: i32,

    /// Earliest start: a UTC time, or a time from now such as 'in 5m' [default: now]
    #[arg(long, value_name = "WHEN", value_parser = when)]
    run_after: Option<When>,

    /// Failed attempts after which the task becomes a dead letter [default: that of its kind]
    #[arg(long, value_name = "N", value_parser = attempts, allow_hyphen_values = true)]
    max_attempts: Option<u32>,

    /// Queue nothing while a task of this kind with this key is unfinished
    #[arg(long, value_name = "KEY", conflicts_with = "lines")]
    unique_key: Option<String>,

    /// Identifier of what the task is about, shown in lists and dead letters
    #[arg(long, value_name = "ID")]
    document: Option<String>,

    /// How long the command may run [default: setting exec.timeout]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, allow_hyphen_values = true, help_heading = EXEC_OPTIONS)]
    timeout: Option<Duration>,

    /// Folder to run the command in [default: the current folder]
    #[arg(long, value_name = "DIR", help_heading = EXEC_OPTIONS)]
    cwd: Option<PathBuf>,

    /// Environment variable for the command; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = env_variable, help_heading = EXEC_OPTIONS)]
    env: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    At(UtcTime),
    In(Duration),
}

fn when(text: &str) -> Result<When, String> {
    let span = text.strip_prefix("in ").unwrap_or(text);
    if let Some(span) = units::duration(span) {
        return Ok(When::In(span));
    }
    let timestamp = text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_microsecond);
    let civil = || {
        let time = text.parse::<jiff::civil::DateTime>().ok()?;
        Some(jiff::tz::Offset::UTC.to_timestamp(time).ok()?.as_microsecond())
    };
    timestamp.or_else(civil).map(|micros| When::At(UtcTime::from_micros(micros))).ok_or_else(|| {
        "expected: a UTC time such as '2030-01-01 06:00:00', one with an offset such as 2030-01-01T06:00:00+02:00, or a \
         time from now such as 'in 5m'"
            .to_owned()
    })
}

fn priority(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| format!("expected: a whole number from {} to {}", i32::MIN, i32::MAX))
}

fn attempts(text: &str) -> Result<u32, String> {
    let found = text.parse().ok().filter(|count| *count > 0);
    found.ok_or_else(|| format!("expected: a whole number from 1 to {}", u32::MAX))
}

fn env_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected: NAME=VALUE".to_owned()),
    }
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    if !args.command.is_empty() && args.kind != exec::KIND {
        return Err(Error::Setting(format!(
            "a command after -- is for the kind exec only; for {:?}, use --payload or --lines",
            args.kind
        )));
    }
    check_exec_flags(args)?;
    let settings = context.settings()?;
    if let Some(path) = &args.lines {
        let source =
            lines::open(path).map_err(|error| Error::Setting(format!("cannot read {}: {error}", path.display())))?;
        let store = open_or_create(&settings)?;
        return enqueue_lines(context, &store, &template(args, &store), source);
    }
    let payload = payload(args)?;
    let store = open_or_create(&settings)?;
    let enqueued = store.tasks().enqueue(NewTask { payload, ..template(args, &store) })?;
    context.output.print(&enqueued, |_| match enqueued.created {
        true => format!("queued task {}", enqueued.id),
        false => format!("nothing queued: task {} has this key and is not finished", enqueued.id),
    })
}

/// Refuses the flags about running a command if no command was given, because they would have no effect.
fn check_exec_flags(args: &Args) -> Result<(), Error> {
    let given = [
        ("--timeout", "timeout_seconds", args.timeout.is_some()),
        ("--cwd", "cwd", args.cwd.is_some()),
        ("--env", "env", !args.env.is_empty()),
    ];
    let Some((flag, field, _)) = given.into_iter().find(|(_, _, given)| *given && args.command.is_empty()) else {
        return Ok(());
    };
    let remedy = match (args.kind.as_str(), &args.lines) {
        (exec::KIND, None) => format!("in a payload of exec, set the field {field:?}"),
        (exec::KIND, Some(_)) => {
            format!("in each line, which is a payload of exec, set the field {field:?}")
        }
        (kind, _) => format!("for the kind {kind:?}, put it into the payload"),
    };
    Err(Error::Setting(format!("{flag} is for `exec -- COMMAND` only; {remedy}")))
}

/// Returns the task without its payload.
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
                let file = std::fs::File::open(path)
                    .map_err(|error| Error::Setting(format!("cannot read the payload from {path}: {error}")))?;
                (path.to_owned(), read(file, path)?)
            }
        },
    };
    check(&args.kind, &text).map_err(|error| Error::Setting(format!("the payload from {source} {error}")))?;
    Ok(text)
}

fn read(source: impl Read, name: &str) -> Result<String, Error> {
    let mut text = String::new();
    let max = MAX_PAYLOAD as u64 + 1;
    source
        .take(max)
        .read_to_string(&mut text)
        .map_err(|error| Error::Setting(format!("cannot read the payload from {name}: {error}")))?;
    Ok(text)
}

/// Checks the payload of a task. The error completes a sentence that begins with the name of its source.
pub(super) fn check(kind: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_PAYLOAD {
        return Err(lines::too_long(MAX_PAYLOAD));
    }
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| format!("is not JSON: {error}"))?;
    if kind == exec::KIND {
        let command: exec::Command =
            serde_json::from_str(text).map_err(|error| format!("is not a command: {error}"))?;
        command.check().map_err(|error| format!("is not a command: {error}"))?;
    }
    Ok(())
}

/// Returns the payload for a command given after `--`.
fn command(args: &Args) -> Result<String, Error> {
    let cwd = absolute(args.cwd.as_deref().unwrap_or(Path::new(".")))?;
    if args.cwd.is_some() && !cwd.is_dir() {
        return Err(Error::Setting(format!("--cwd {} is not a folder", cwd.display())));
    }
    let command = exec::Command {
        argv: args.command.clone(),
        // `absolute` keeps a trailing dot of "."; collecting the components drops it.
        cwd: Some(cwd.components().collect()),
        env: args.env.iter().cloned().collect::<BTreeMap<_, _>>(),
        timeout_seconds: args.timeout.map(|timeout| timeout.as_secs_f64()),
        ..exec::Command::default()
    };
    serde_json::to_string(&command)
        .map_err(|error| Error::Setting(format!("the command cannot be written as JSON: {error}")))
}

enum Input {
    Line(Result<Vec<u8>, String>),
    /// The lines have ended, or cannot be read.
    End(Result<(), Error>),
    Signal,
}

/// Queues a task for each line, in batches. An invalid line is reported and skipped.
fn enqueue_lines(
    context: &Context,
    store: &Store,
    template: &NewTask,
    source: Box<dyn BufRead + Send>,
) -> Result<Outcome, Error> {
    let supervisor = Supervisor::with_stop(context.quiet)?;
    let (inputs, input) = mpsc::sync_channel(MAX_BATCH_TASKS);
    let signalled = inputs.clone();
    // Wakes a receiver that waits. If the channel is full, none waits.
    let _wake = supervisor.stop.on_cancel(move || drop(signalled.try_send(Input::Signal)));
    lines::spawn(move || read_lines(source, &inputs))?;
    let mut batches = Batches { store, batch: Vec::new(), bytes: 0, queued: 0, lines: 0 };
    let (mut refused, mut lines) = (0, 0u64);
    let end = loop {
        if supervisor.stop.is_cancelled() {
            break Ok(Outcome::Interrupted);
        }
        let line = match input.recv() {
            Ok(Input::Line(line)) => line,
            Ok(Input::End(result)) => break result.map(|()| Outcome::Done),
            Ok(Input::Signal) | Err(_) => break Ok(Outcome::Interrupted),
        };
        lines += 1;
        match line.and_then(|line| payload_of_line(&template.kind, line)) {
            Ok(None) => {}
            Ok(Some(payload)) => batches.add(NewTask { payload, ..template.clone() }, lines)?,
            Err(error) => {
                refused += 1;
                note(&format!("error: line {lines} {error}"));
            }
        }
    };
    batches.flush(lines)?;
    let queued = batches.queued;
    let outcome = end.inspect_err(|_| batches.report_progress())?;
    let value = json!({"queued": queued, "refused": refused, "lines": lines});
    // Refused lines have been reported on standard error.
    context.output.summary(&value, Outcome::Done, |_| {
        let mut text = format!("queued {}", plural(queued, "task"));
        if refused > 0 {
            text.push_str(&format!(", refused {}", plural(refused, "line")));
        }
        if outcome == Outcome::Interrupted {
            text.push_str(&format!("; interrupted after line {lines}"));
        }
        text
    })?;
    Ok(if refused == 0 { outcome } else { outcome.and(Outcome::UserError) })
}

fn read_lines(mut source: Box<dyn BufRead + Send>, inputs: &SyncSender<Input>) {
    let end = loop {
        let line = match lines::next(source.as_mut(), MAX_PAYLOAD) {
            Ok(Some(line)) => line,
            Ok(None) => break Ok(()),
            Err(error) => break Err(Error::System(format!("cannot read the lines: {error}"))),
        };
        if inputs.send(Input::Line(line)).is_err() {
            return;
        }
    };
    // After a signal there is no receiver.
    drop(inputs.send(Input::End(end)));
}

/// Returns the payload in a line, or none if the line is blank.
fn payload_of_line(kind: &str, line: Vec<u8>) -> Result<Option<String>, String> {
    let text = String::from_utf8(line).map_err(|error| format!("is not UTF-8: {error}"))?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    // serde_json counts from the start of this line.
    check(kind, &text).map_err(|error| error.replace(" at line 1 column ", " at column "))?;
    Ok(Some(text))
}

/// Tasks that are inserted by one transaction.
struct Batches<'a> {
    store: &'a Store,
    batch: Vec<NewTask>,
    bytes: usize,
    /// Number of tasks in the database.
    queued: u64,
    /// Number of lines they come from.
    lines: u64,
}

impl Batches<'_> {
    fn add(&mut self, task: NewTask, line: u64) -> Result<(), Error> {
        self.bytes += task.payload.len();
        self.batch.push(task);
        if self.batch.len() >= MAX_BATCH_TASKS || self.bytes >= MAX_BATCH_BYTES { self.flush(line) } else { Ok(()) }
    }

    /// Inserts the collected tasks, which come from the lines up to this one.
    fn flush(&mut self, line: u64) -> Result<(), Error> {
        self.bytes = 0;
        let queued = self.store.tasks().enqueue_many(std::mem::take(&mut self.batch));
        self.queued += queued.inspect_err(|_| self.report_progress())?.len() as u64;
        self.lines = line;
        Ok(())
    }

    /// Reports how much was queued before a failure, so that the user can resume from there.
    fn report_progress(&self) {
        let lines = plural(self.lines, "line");
        note(&format!("queued {} before this, from the first {lines}", plural(self.queued, "task")));
    }
}
