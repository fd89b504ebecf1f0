//! The kind `exec`: any command as a durable task.
//!
//! Owns how a command is started, watched, stopped and judged. There is no shell in between: what is run is the
//! list of words in the payload, whatever is in them.
//!
//! | the command | the task |
//! |---|---|
//! | exits with 0 | completed |
//! | exits with 75 (try again later), 124 (timed out), or any other code | tried again |
//! | exits with 64 to 78 but 75 (used wrongly), 126, 127 (cannot be run, not found) | a dead letter |
//! | is killed by a signal, or takes too long | tried again |
//! | is not there, or may not be run | a dead letter |
//!
//! The payload's lists `permanent` and `transient` of exit codes come before this rule. The command finds the
//! task's number in `GRISTMILL_TASK_ID`, the same in every attempt, the number of this start in `GRISTMILL_ATTEMPT`, and
//! in `GRISTMILL_REDELIVERED` a 1 if it was, or may have been, started before, else 0.
//! A worker that is itself killed cannot take its commands along. The next attempt on the same machine ends what is
//! left of them before it starts; that needs Linux.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::error::Cause;
use gristmill_pool::{Retry, TaskError, TaskResult};
use serde::{Deserialize, Serialize};

use crate::kind::TaskKind;
use crate::process_groups::{ProcessGroups, ProcessRecord};
use crate::task_context::TaskContext;

/// The kind's name.
pub const KIND: &str = "exec";

/// After a command has ended, for output that its own children may still write.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A command, as the payload has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The program and its words.
    pub argv: Vec<String>,
    /// The folder to run it in; the worker's own without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// Variables beside those of the worker.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// How long it may take; as the worker's settings say without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// Exit codes that mean: never again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permanent: Vec<i32>,
    /// Exit codes that mean: try again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transient: Vec<i32>,
}

impl Command {
    /// Checks what no system takes: an empty argv, a NUL in a text, a variable without a name, a timeout that is not
    /// longer than nothing. The error names the field and what is legal.
    pub fn check(&self) -> Result<(), String> {
        if self.argv.is_empty() {
            return Err("argv is empty; the program and its words are legal".to_owned());
        }
        let argv =
            self.argv.iter().enumerate().map(|(index, word)| (format!("argv[{index}]"), word.as_bytes()));
        let cwd = self.cwd.iter().map(|cwd| ("cwd".to_owned(), cwd.as_os_str().as_encoded_bytes()));
        let env = self.env.iter().map(|(name, value)| (format!("env.{name:?}"), value.as_bytes()));
        if let Some((field, _)) = argv.chain(cwd).chain(env).find(|(_, text)| text.contains(&0)) {
            return Err(format!("{field} has a NUL character in it, which no command can be given"));
        }
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(format!("env has the name {name:?}; a name without \"=\" and NUL is legal"));
        }
        self.timeout().map(drop)
    }

    fn timeout(&self) -> Result<Option<Duration>, String> {
        let Some(seconds) = self.timeout_seconds else { return Ok(None) };
        match Duration::try_from_secs_f64(seconds) {
            Ok(limit) if !limit.is_zero() => Ok(Some(limit)),
            _ => Err(format!("timeout_seconds is {seconds}; a number of seconds above 0 is legal")),
        }
    }
}

/// How commands are run.
#[derive(Clone, Debug)]
pub struct ExecSettings {
    /// How many at a time.
    pub workers: usize,
    /// How long one may take, unless its payload says otherwise.
    pub timeout: Option<Duration>,
    /// How much is output of each of its two outputs, in bytes: the beginning and the end.
    pub max_output: usize,
    /// How often, and after how long, it is tried again.
    pub retry: Retry,
    /// Variables of the worker that commands do not inherit, such as those with a password.
    pub removed_env: Vec<OsString>,
}

impl Default for ExecSettings {
    fn default() -> Self {
        ExecSettings {
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            timeout: Some(Duration::from_secs(3_600)),
            max_output: 64 << 10,
            retry: Retry::exponential(5, Duration::from_secs(1)).max_delay(Duration::from_secs(600)),
            removed_env: Vec::new(),
        }
    }
}

/// The kind.
pub fn kind(settings: ExecSettings) -> TaskKind {
    let (workers, retry, timeout) = (settings.workers, settings.retry, settings.timeout);
    let orphans_killed = Once::new();
    let handler = move |work: &TaskContext<'_>| {
        orphans_killed.call_once(|| {
            ProcessGroups::for_database(work.store().path()).kill_orphans(None);
        });
        run(&settings, work)
    };
    let mut kind = TaskKind::new(KIND, handler).workers(workers).retry(retry).log_starts();
    kind.own_timeout = timeout;
    kind
}

/// What is output of a command that ended well.
#[derive(Debug, Serialize)]
struct CommandResult<'a> {
    exit_code: i32,
    seconds: f64,
    stdout: &'a str,
    stderr: &'a str,
}

fn run(settings: &ExecSettings, work: &TaskContext<'_>) -> TaskResult<()> {
    let command: Command = work.parse()?;
    command.check().map_err(TaskError::permanent)?;
    let limit = command.timeout().map_err(TaskError::permanent)?.or(settings.timeout);
    let groups = ProcessGroups::for_database(work.store().path());
    let name = format!("task {}", work.id());
    if work.attempt() > 1 || work.crashes() > 0 {
        groups.kill_orphans(Some(&name));
    }
    let start = Instant::now();
    let mut record = groups.record(&name);
    let mut running = RunningCommand::start(&command, settings, work, &record)?;
    record.started(running.child.id());
    let end = running.wait(work, limit.and_then(|limit| start.checked_add(limit)))?;
    let (stdout, stderr) = running.output();
    let failure = |reason: String| CommandFailure { reason, stdout: stdout.clone(), stderr: stderr.clone() };
    let status = match end {
        WaitOutcome::Exited(status) => status,
        WaitOutcome::Cancelled => return Err(TaskError::cancelled()),
        WaitOutcome::TimedOut => {
            let limit = limit.unwrap_or_default();
            return Err(TaskError::transient(failure(format!("took longer than {limit:?} and was ended"))));
        }
    };
    match classify(&command, status) {
        Outcome::Success => {
            let seconds = (start.elapsed().as_secs_f64() * 1_000.0).round() / 1_000.0;
            work.set_result(&CommandResult { exit_code: 0, seconds, stdout: &stdout, stderr: &stderr })
        }
        Outcome::Transient(reason) => Err(TaskError::transient(failure(reason))),
        Outcome::Permanent(reason) => Err(TaskError::permanent(failure(reason))),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    Transient(String),
    Permanent(String),
}

fn classify(command: &Command, status: ExitStatus) -> Outcome {
    let Some(code) = status.code() else {
        // "signal: 9 (SIGKILL)" and the like.
        return Outcome::Transient(format!("ended by a {status}"));
    };
    let reason = format!("exit code {code}");
    match code {
        _ if command.permanent.contains(&code) => Outcome::Permanent(reason),
        _ if command.transient.contains(&code) => Outcome::Transient(reason),
        0 => Outcome::Success,
        75 => Outcome::Transient(reason),
        64..=78 | 126 | 127 => Outcome::Permanent(reason),
        _ => Outcome::Transient(reason),
    }
}

/// A failed command: the reason in the first line, then what it wrote.
#[derive(Debug)]
struct CommandFailure {
    reason: String,
    stdout: String,
    stderr: String,
}

impl CommandFailure {
    fn outputs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let outputs = [("stderr", self.stderr.trim_end()), ("stdout", self.stdout.trim_end())];
        outputs.into_iter().filter(|(_, text)| !text.is_empty())
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        self.outputs().try_for_each(|(name, text)| write!(f, "\n--- {name}\n{text}"))
    }
}

/// The last lines of each output of a command that failed; outer `None` if the error is not of a command.
pub(crate) fn output_of(error: &TaskError) -> Option<Option<String>> {
    let Cause::Error(error) = error.cause() else { return None };
    let failure = error.downcast_ref::<CommandFailure>()?;
    let parts: Vec<_> =
        failure.outputs().map(|(name, text)| format!("--- {name}\n{}", last_lines(text))).collect();
    Some(Some(parts.join("\n")).filter(|text| !text.is_empty()))
}

/// The last lines of a text, at max_bytes 15 and 3,000 characters, with a mark where it is cut.
fn last_lines(text: &str) -> String {
    // A line break at the very end begins no line.
    let line = text.trim_end_matches('\n').rmatch_indices('\n').nth(14).map_or(0, |(at, _)| at + 1);
    let character = text.char_indices().rev().nth(2_999).map_or(0, |(at, _)| at);
    match line.max(character) {
        0 => text.to_owned(),
        start => format!("[... {start} bytes left out ...]\n{}", &text[start..]),
    }
}

impl Error for CommandFailure {}

enum WaitOutcome {
    Exited(ExitStatus),
    Cancelled,
    TimedOut,
}

/// A command, started.
struct RunningCommand {
    child: Child,
    closed: Receiver<()>,
    stdout: Arc<Mutex<BoundedOutput>>,
    stderr: Arc<Mutex<BoundedOutput>>,
}

impl RunningCommand {
    fn start(
        command: &Command,
        settings: &ExecSettings,
        work: &TaskContext<'_>,
        record: &ProcessRecord,
    ) -> TaskResult<Self> {
        let Some((program, words)) = command.argv.split_first() else {
            return Err(TaskError::permanent("argv is empty; the program and its words are legal"));
        };
        let mut start = std::process::Command::new(program);
        start.args(words);
        for name in &settings.removed_env {
            start.env_remove(name);
        }
        start.envs(&command.env);
        start.env(ProcessRecord::RUN_ID_VARIABLE, record.run_id());
        start.env("GRISTMILL_TASK_ID", work.id().to_string());
        start.env("GRISTMILL_ATTEMPT", work.attempt().to_string());
        start.env("GRISTMILL_REDELIVERED", if work.is_redelivered() { "1" } else { "0" });
        if let Some(cwd) = &command.cwd {
            start.current_dir(cwd);
        }
        let stdin = if command.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
        start.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        system::new_process_group(&mut start);
        let child = start.spawn().map_err(|error| spawn_error(program, command, &error))?;
        let (on_close, closed) = channel();
        let output = || Arc::new(Mutex::new(BoundedOutput::new(settings.max_output)));
        let mut running = RunningCommand { child, closed, stdout: output(), stderr: output() };
        running.spawn_io_threads(command, on_close).inspect_err(|_| {
            // No thread to spawn_io_threads with: it must not run on unheard.
            system::kill(&mut running.child);
            drop(running.child.wait());
        })?;
        Ok(running)
    }

    fn spawn_io_threads(&mut self, command: &Command, on_close: Sender<()>) -> TaskResult<()> {
        spawn_reader(self.child.stdout.take(), &self.stdout, on_close.clone())?;
        spawn_reader(self.child.stderr.take(), &self.stderr, on_close)?;
        if let (Some(mut pipe), Some(text)) = (self.child.stdin.take(), command.stdin.clone()) {
            // On a thread: a command that does not read must not stop us from watching it. One that reads
            // only a part is content with that.
            thread("exec-stdin", move || drop(pipe.write_all(text.as_bytes())))?;
        }
        Ok(())
    }

    /// Waits for its end, or ends it.
    fn wait(&mut self, work: &TaskContext<'_>, limit: Option<Instant>) -> TaskResult<WaitOutcome> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(WaitOutcome::Exited(status));
            }
            let over = limit.is_some_and(|limit| Instant::now() >= limit);
            if over || work.is_cancelled() {
                self.terminate(work.grace())?;
                return Ok(if over { WaitOutcome::TimedOut } else { WaitOutcome::Cancelled });
            }
            // Both outputs closed means in max_bytes cases that it is about to end.
            if let Err(RecvTimeoutError::Disconnected) = self.closed.recv_timeout(pause) {
                work.wait_cancelled(pause);
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Asks it and its children to end; makes them, if they do not.
    fn terminate(&mut self, grace: Duration) -> TaskResult<()> {
        system::terminate(&self.child);
        let limit = Instant::now() + grace;
        let pause = crate::in_flight::CancelToken::default();
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= limit {
                system::kill(&mut self.child);
                self.child.wait()?;
                break;
            }
            pause.wait(Duration::from_millis(5));
        }
        // Whatever of its children is left.
        system::kill(&mut self.child);
        Ok(())
    }

    /// What it wrote. A child of its own may hold the pipes open for longer than we wait.
    fn output(&self) -> (String, String) {
        let limit = Instant::now() + OUTPUT_DRAIN_TIMEOUT;
        while let Ok(()) = self.closed.recv_timeout(limit.saturating_duration_since(Instant::now())) {}
        let text =
            |output: &Arc<Mutex<BoundedOutput>>| output.lock().unwrap_or_else(PoisonError::into_inner).text();
        (text(&self.stdout), text(&self.stderr))
    }
}

fn spawn_error(program: &str, command: &Command, error: &io::Error) -> TaskError {
    let place = command.cwd.as_deref().filter(|cwd| !cwd.is_dir());
    let text = match place {
        Some(cwd) => format!("cannot run {program:?} in {}: there is no such folder", cwd.display()),
        None => format!("cannot run {program:?}: {error}"),
    };
    match error.kind() {
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::NotADirectory
        | ErrorKind::InvalidInput => TaskError::permanent(text),
        // Too many processes, too little memory, a program that is being written.
        _ => TaskError::transient(text),
    }
}

/// Reads an output to its end, keeping what is to be output. It ends when the last process that can write there does,
/// which may be long after the command: a child that the command left behind costs its two threads.
fn spawn_reader(
    pipe: Option<impl Read + Send + 'static>,
    output: &Arc<Mutex<BoundedOutput>>,
    on_close: Sender<()>,
) -> TaskResult<()> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let output = output.clone();
    thread("exec-output", move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            output.lock().unwrap_or_else(PoisonError::into_inner).add(&buffer[..count]);
        }
        drop(on_close);
    })
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> TaskResult<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(drop).map_err(TaskError::transient)
}

/// The beginning and the end of a text of any length.
#[derive(Debug)]
struct BoundedOutput {
    half: usize,
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    omitted: u64,
}

impl BoundedOutput {
    fn new(max_bytes: usize) -> Self {
        BoundedOutput {
            half: max_bytes.div_ceil(2),
            head: Vec::new(),
            tail: std::collections::VecDeque::new(),
            omitted: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
        self.omitted += over as u64;
    }

    fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.omitted == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        format!("{head}\n[... {} bytes left out ...]\n{tail}", self.omitted)
    }
}

/// What is particular to the system.
#[cfg(unix)]
mod system {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use rustix::process::{Pid, Signal, kill_process_group};

    /// A process group of its own: Ctrl-C on the worker's terminal is for the worker, and what the command
    /// starts can be ended with it.
    pub(super) fn new_process_group(command: &mut Command) {
        command.process_group(0);
    }

    pub(super) fn terminate(child: &Child) {
        signal(child, Signal::TERM);
    }

    pub(super) fn kill(child: &mut Child) {
        signal(child, Signal::KILL);
    }

    fn signal(child: &Child, signal: Signal) {
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended a moment ago.
            let _ = kill_process_group(group, signal);
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::process::{Child, Command};

    pub(super) fn new_process_group(_: &mut Command) {}

    pub(super) fn terminate(_: &Child) {}

    pub(super) fn kill(child: &mut Child) {
        drop(child.kill());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept() {
        let check = |max_bytes: usize, parts: &[&str], expected: &str| {
            let mut output = BoundedOutput::new(max_bytes);
            parts.iter().for_each(|part| output.add(part.as_bytes()));
            assert_eq!(output.text(), expected, "{max_bytes} of {parts:?}");
        };
        check(8, &[], "");
        check(8, &["abc"], "abc");
        check(8, &["abcdefgh"], "abcdefgh");
        check(8, &["abcdefghi"], "abcd\n[... 1 bytes left out ...]\nfghi");
        check(8, &["ab", "cdef", "ghijk", "l"], "abcd\n[... 4 bytes left out ...]\nijkl");
        check(6, &["abé"], "ab\u{e9}");
    }

    #[test]
    fn last_lines_have_a_mark_where_the_output_is_cut() {
        let lines = |from: u32, to: u32| (from..=to).map(|line| format!("{line:02}\n")).collect::<String>();
        assert_eq!(last_lines("one\ntwo"), "one\ntwo");
        assert_eq!(last_lines(&lines(1, 15)), lines(1, 15));
        assert_eq!(last_lines(&lines(1, 40)), format!("[... 75 bytes left out ...]\n{}", lines(26, 40)));
        let long = "é".repeat(4_000);
        assert_eq!(last_lines(&long), format!("[... 2000 bytes left out ...]\n{}", "é".repeat(3_000)));
    }

    #[cfg(unix)]
    #[test]
    fn exit_codes_are_judged_by_rule() {
        use std::os::unix::process::ExitStatusExt;
        let listed = Command { permanent: vec![3, 75], transient: vec![0, 64], ..Command::default() };
        let check = |command: &Command, raw: i32, expected: fn(String) -> Outcome| {
            let found = classify(command, ExitStatus::from_raw(raw));
            let (Outcome::Transient(text) | Outcome::Permanent(text)) = &found else {
                return assert_eq!(found, Outcome::Success, "{raw}");
            };
            assert_eq!(found, expected(text.clone()), "{raw}");
        };
        let plain = Command::default();
        check(&plain, 0, |_| Outcome::Success);
        for code in [1, 2, 3, 75, 79, 124, 125, 128, 255] {
            check(&plain, code << 8, Outcome::Transient);
        }
        for code in [64, 70, 74, 76, 78, 126, 127] {
            check(&plain, code << 8, Outcome::Permanent);
        }
        check(&plain, 9, Outcome::Transient);
        check(&listed, 3 << 8, Outcome::Permanent);
        check(&listed, 75 << 8, Outcome::Permanent);
        check(&listed, 64 << 8, Outcome::Transient);
        check(&listed, 0, Outcome::Transient);
    }
}
