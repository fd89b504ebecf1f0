//! The kind `exec`: runs a command as a durable task.
//!
//! Owns how a command is started, awaited and terminated, and which outcome its exit status has. No shell is involved:
//! the arguments in the payload are passed to the program unchanged.
//!
//! | the command | the task |
//! |---|---|
//! | exits with 0 | is completed |
//! | exits with 75 (temporary failure), 124 (timed out), or a code not listed here | is retried |
//! | exits with 64 to 78 except 75 (used wrongly), 126 or 127 (cannot be run, not found) | becomes a dead letter |
//! | is killed by a signal, or exceeds its timeout | is retried |
//! | does not exist, or cannot be executed | becomes a dead letter |
//!
//! The lists `permanent` and `transient` of exit statuses in the payload take precedence. The command gets the environment
//! variables `GRISTMILL_TASK_ID` (number of the task, the same in every attempt), `GRISTMILL_ATTEMPT` (number of this
//! start) and `GRISTMILL_REDELIVERED` (1 if the task was or may have been started before, otherwise 0).
//!
//! A worker that is killed leaves its commands running. On Linux, the next attempt on the same machine kills them
//! before it starts.

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

/// Name of the kind, as tasks in the store have it.
pub const KIND: &str = "exec";

/// How long output is read after a command has ended, because its children may still write.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The payload of a task of the kind [`KIND`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Working directory; default: the worker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// Environment variables, in addition to the worker's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Text for the standard input; default: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Timeout of one attempt in seconds; default: [`ExecSettings::timeout`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// Exit statuses that make the task a dead letter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permanent: Vec<i32>,
    /// Exit statuses after which the task is retried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transient: Vec<i32>,
}

impl Command {
    /// Rejects commands that no system can run: an empty argv, a NUL character, a variable without a name, a timeout
    /// that is not positive. The error names the field and the expected value.
    pub fn check(&self) -> Result<(), String> {
        if self.argv.is_empty() {
            return Err("argv is empty; expected: the program and its arguments".to_owned());
        }
        let argv = self.argv.iter().enumerate().map(|(index, arg)| (format!("argv[{index}]"), arg.as_bytes()));
        let cwd = self.cwd.iter().map(|cwd| ("cwd".to_owned(), cwd.as_os_str().as_encoded_bytes()));
        let env = self.env.iter().map(|(name, value)| (format!("env.{name:?}"), value.as_bytes()));
        if let Some((field, _)) = argv.chain(cwd).chain(env).find(|(_, text)| text.contains(&0)) {
            return Err(format!("{field} has a NUL character, which cannot be passed to a command"));
        }
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(format!("env has the name {name:?}; expected: a name without \"=\" and NUL"));
        }
        self.timeout().map(drop)
    }

    fn timeout(&self) -> Result<Option<Duration>, String> {
        let Some(seconds) = self.timeout_seconds else { return Ok(None) };
        match Duration::try_from_secs_f64(seconds) {
            Ok(limit) if !limit.is_zero() => Ok(Some(limit)),
            _ => Err(format!("timeout_seconds is {seconds}; expected: a number of seconds above 0")),
        }
    }
}

/// Settings of the kind [`KIND`].
#[derive(Clone, Debug)]
pub struct ExecSettings {
    /// Maximum number of commands that run at a time; default: the number of cores.
    pub workers: usize,
    /// Timeout of one attempt, unless the payload sets it; default: one hour.
    pub timeout: Option<Duration>,
    /// Number of bytes kept of each output, half from the beginning and half from the end; default: 64 KiB.
    pub max_output: usize,
    /// Number of attempts and the delays between them; default: 5 attempts, 1 second to 10 minutes.
    pub retry: Retry,
    /// Environment variables of the worker that commands do not inherit, such as those with a password.
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

/// Creates the kind [`KIND`].
pub fn kind(settings: ExecSettings) -> TaskKind {
    let (workers, retry, timeout) = (settings.workers, settings.retry, settings.timeout);
    let orphans_killed = Once::new();
    let handler = move |task: &TaskContext<'_>| {
        orphans_killed.call_once(|| {
            ProcessGroups::for_database(task.store().path()).kill_orphans(None);
        });
        run(&settings, task)
    };
    let mut kind = TaskKind::new(KIND, handler).workers(workers).retry(retry).log_starts();
    kind.own_timeout = timeout;
    kind
}

#[derive(Debug, Serialize)]
struct CommandResult<'a> {
    exit_code: i32,
    seconds: f64,
    stdout: &'a str,
    stderr: &'a str,
}

fn run(settings: &ExecSettings, task: &TaskContext<'_>) -> TaskResult<()> {
    let command: Command = task.parse()?;
    command.check().map_err(TaskError::permanent)?;
    let limit = command.timeout().map_err(TaskError::permanent)?.or(settings.timeout);
    let groups = ProcessGroups::for_database(task.store().path());
    let name = format!("task {}", task.id());
    if task.attempt() > 1 || task.crashes() > 0 {
        groups.kill_orphans(Some(&name));
    }
    let start = Instant::now();
    let mut record = groups.record(&name);
    let mut running = RunningCommand::start(&command, settings, task, &record)?;
    record.started(running.child.id());
    let end = running.wait(task, limit.and_then(|limit| start.checked_add(limit)))?;
    let (stdout, stderr) = running.output();
    let failure = |reason: String| CommandFailure { reason, stdout: stdout.clone(), stderr: stderr.clone() };
    let status = match end {
        WaitOutcome::Exited(status) => status,
        WaitOutcome::Cancelled => return Err(TaskError::cancelled()),
        WaitOutcome::TimedOut => {
            let limit = limit.unwrap_or_default();
            return Err(TaskError::transient(failure(format!("took longer than {limit:?} and was terminated"))));
        }
    };
    match classify(&command, status) {
        Outcome::Success => {
            let seconds = (start.elapsed().as_secs_f64() * 1_000.0).round() / 1_000.0;
            task.set_result(&CommandResult { exit_code: 0, seconds, stdout: &stdout, stderr: &stderr })
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
        // Formatted as "signal: 9 (SIGKILL)".
        return Outcome::Transient(format!("ended by a {status}"));
    };
    let reason = format!("exit status {code}");
    match code {
        _ if command.permanent.contains(&code) => Outcome::Permanent(reason),
        _ if command.transient.contains(&code) => Outcome::Transient(reason),
        0 => Outcome::Success,
        75 => Outcome::Transient(reason),
        64..=78 | 126 | 127 => Outcome::Permanent(reason),
        _ => Outcome::Transient(reason),
    }
}

/// The error of a failed command. Its text has the reason in the first line, followed by the output.
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

/// The last lines of each output of a failed command; outer `None` if the error is not a [`CommandFailure`].
pub(crate) fn output_of(error: &TaskError) -> Option<Option<String>> {
    let Cause::Error(error) = error.cause() else { return None };
    let failure = error.downcast_ref::<CommandFailure>()?;
    let parts: Vec<_> = failure.outputs().map(|(name, text)| format!("--- {name}\n{}", last_lines(text))).collect();
    Some(Some(parts.join("\n")).filter(|text| !text.is_empty()))
}

/// The last lines of a text, at most 15 lines and 3,000 characters, with a mark where it is cut.
fn last_lines(text: &str) -> String {
    // A line break at the end does not begin another line.
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
        task: &TaskContext<'_>,
        record: &ProcessRecord,
    ) -> TaskResult<Self> {
        let Some((program, args)) = command.argv.split_first() else {
            return Err(TaskError::permanent("argv is empty; expected: the program and its arguments"));
        };
        let mut start = std::process::Command::new(program);
        start.args(args);
        for name in &settings.removed_env {
            start.env_remove(name);
        }
        start.envs(&command.env);
        start.env(ProcessRecord::RUN_ID_VARIABLE, record.run_id());
        start.env("GRISTMILL_TASK_ID", task.id().to_string());
        start.env("GRISTMILL_ATTEMPT", task.attempt().to_string());
        start.env("GRISTMILL_REDELIVERED", if task.is_redelivered() { "1" } else { "0" });
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
            // Without threads for its output the command cannot run.
            system::kill(&mut running.child);
            drop(running.child.wait());
        })?;
        Ok(running)
    }

    fn spawn_io_threads(&mut self, command: &Command, on_close: Sender<()>) -> TaskResult<()> {
        spawn_reader(self.child.stdout.take(), &self.stdout, on_close.clone())?;
        spawn_reader(self.child.stderr.take(), &self.stderr, on_close)?;
        if let (Some(mut pipe), Some(text)) = (self.child.stdin.take(), command.stdin.clone()) {
            // On a thread, because a command may never read its input. Reading only a part of it is not an error.
            thread("exec-stdin", move || drop(pipe.write_all(text.as_bytes())))?;
        }
        Ok(())
    }

    /// Waits until the command exits, or terminates it when it is cancelled or exceeds its timeout.
    fn wait(&mut self, task: &TaskContext<'_>, limit: Option<Instant>) -> TaskResult<WaitOutcome> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(WaitOutcome::Exited(status));
            }
            let is_expired = limit.is_some_and(|limit| Instant::now() >= limit);
            if is_expired || task.is_cancelled() {
                self.terminate(task.grace())?;
                return Ok(if is_expired { WaitOutcome::TimedOut } else { WaitOutcome::Cancelled });
            }
            // A command that has closed both outputs is usually about to exit.
            if let Err(RecvTimeoutError::Disconnected) = self.closed.recv_timeout(pause) {
                task.wait_cancelled(pause);
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Sends SIGTERM to the command and its children, and SIGKILL after `grace`.
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
        // Kills children that are left.
        system::kill(&mut self.child);
        Ok(())
    }

    /// The collected output. A child of the command may hold the pipes open for longer than this waits.
    fn output(&self) -> (String, String) {
        let limit = Instant::now() + OUTPUT_DRAIN_TIMEOUT;
        while let Ok(()) = self.closed.recv_timeout(limit.saturating_duration_since(Instant::now())) {}
        let text = |output: &Arc<Mutex<BoundedOutput>>| output.lock().unwrap_or_else(PoisonError::into_inner).text();
        (text(&self.stdout), text(&self.stderr))
    }
}

fn spawn_error(program: &str, command: &Command, error: &io::Error) -> TaskError {
    let missing_cwd = command.cwd.as_deref().filter(|cwd| !cwd.is_dir());
    let text = match missing_cwd {
        Some(cwd) => format!("cannot run {program:?} in {}: no such folder", cwd.display()),
        None => format!("cannot run {program:?}: {error}"),
    };
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::NotADirectory | ErrorKind::InvalidInput => {
            TaskError::permanent(text)
        }
        // For example too many processes, too little memory, or a program file that is being written.
        _ => TaskError::transient(text),
    }
}

/// Starts a thread that reads an output to its end. The output ends when the last process that can write to it ends,
/// possibly long after the command: children that the command leaves running keep its two threads.
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

/// The beginning and the end of an output of any length.
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

#[cfg(unix)]
mod system {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use rustix::process::{Pid, Signal, kill_process_group};

    /// Starts the command in a new process group: Ctrl-C in the worker's terminal does not reach it, and its children
    /// can be terminated together with it.
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
            // Fails if the group has already ended.
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
    fn bounded_output_keeps_the_beginning_and_the_end() {
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
    fn last_lines_mark_where_the_output_is_cut() {
        let lines = |from: u32, to: u32| (from..=to).map(|line| format!("{line:02}\n")).collect::<String>();
        assert_eq!(last_lines("one\ntwo"), "one\ntwo");
        assert_eq!(last_lines(&lines(1, 15)), lines(1, 15));
        assert_eq!(last_lines(&lines(1, 40)), format!("[... 75 bytes left out ...]\n{}", lines(26, 40)));
        let long = "é".repeat(4_000);
        assert_eq!(last_lines(&long), format!("[... 2000 bytes left out ...]\n{}", "é".repeat(3_000)));
    }

    #[cfg(unix)]
    #[test]
    fn exit_codes_are_classified_and_payload_lists_take_precedence() {
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
