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
use crate::work::TaskContext;

/// The kind's name.
pub const KIND: &str = "exec";

/// After a command has ended, for output that its own children may still write.
const LAST_WORDS: Duration = Duration::from_secs(1);

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
    /// How much is kept of each of its two outputs, in bytes: the beginning and the end.
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
    let swept = Once::new();
    let handler = move |work: &TaskContext<'_>| {
        swept.call_once(|| {
            ProcessGroups::for_database(work.store().path()).kill_orphans(None);
        });
        run(&settings, work)
    };
    let mut kind = TaskKind::new(KIND, handler).workers(workers).retry(retry).log_starts();
    kind.own_timeout = timeout;
    kind
}

/// What is kept of a command that ended well.
#[derive(Debug, Serialize)]
struct Ended<'a> {
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
    let mut running = Running::start(&command, settings, work, &record)?;
    record.started(running.child.id());
    let end = running.watch(work, limit.and_then(|limit| start.checked_add(limit)))?;
    let (stdout, stderr) = running.output();
    let fault = |reason: String| Fault { reason, stdout: stdout.clone(), stderr: stderr.clone() };
    let status = match end {
        End::Exited(status) => status,
        End::Cancelled => return Err(TaskError::cancelled()),
        End::TimedOut => {
            let limit = limit.unwrap_or_default();
            return Err(TaskError::transient(fault(format!("took longer than {limit:?} and was ended"))));
        }
    };
    match judge(&command, status) {
        Judgement::Done => {
            let seconds = (start.elapsed().as_secs_f64() * 1_000.0).round() / 1_000.0;
            work.set_result(&Ended { exit_code: 0, seconds, stdout: &stdout, stderr: &stderr })
        }
        Judgement::Again(reason) => Err(TaskError::transient(fault(reason))),
        Judgement::Never(reason) => Err(TaskError::permanent(fault(reason))),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Done,
    Again(String),
    Never(String),
}

fn judge(command: &Command, status: ExitStatus) -> Judgement {
    let Some(code) = status.code() else {
        // "signal: 9 (SIGKILL)" and the like.
        return Judgement::Again(format!("ended by a {status}"));
    };
    let reason = format!("exit code {code}");
    match code {
        _ if command.permanent.contains(&code) => Judgement::Never(reason),
        _ if command.transient.contains(&code) => Judgement::Again(reason),
        0 => Judgement::Done,
        75 => Judgement::Again(reason),
        64..=78 | 126 | 127 => Judgement::Never(reason),
        _ => Judgement::Again(reason),
    }
}

/// A failed command: the reason in the first line, then what it wrote.
#[derive(Debug)]
struct Fault {
    reason: String,
    stdout: String,
    stderr: String,
}

impl Fault {
    fn outputs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let outputs = [("stderr", self.stderr.trim_end()), ("stdout", self.stdout.trim_end())];
        outputs.into_iter().filter(|(_, text)| !text.is_empty())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        self.outputs().try_for_each(|(name, text)| write!(f, "\n--- {name}\n{text}"))
    }
}

/// The last lines of each output of a command that failed; outer `None` if the error is not of a command.
pub(crate) fn output_of(error: &TaskError) -> Option<Option<String>> {
    let Cause::Error(error) = error.cause() else { return None };
    let fault = error.downcast_ref::<Fault>()?;
    let parts: Vec<_> =
        fault.outputs().map(|(name, text)| format!("--- {name}\n{}", last_lines(text))).collect();
    Some(Some(parts.join("\n")).filter(|text| !text.is_empty()))
}

/// The last lines of a text, at most 15 and 3,000 characters, with a mark where it is cut.
fn last_lines(text: &str) -> String {
    // A line break at the very end begins no line.
    let line = text.trim_end_matches('\n').rmatch_indices('\n').nth(14).map_or(0, |(at, _)| at + 1);
    let character = text.char_indices().rev().nth(2_999).map_or(0, |(at, _)| at);
    match line.max(character) {
        0 => text.to_owned(),
        start => format!("[... {start} bytes left out ...]\n{}", &text[start..]),
    }
}

impl Error for Fault {}

enum End {
    Exited(ExitStatus),
    Cancelled,
    TimedOut,
}

/// A command, started.
struct Running {
    child: Child,
    closed: Receiver<()>,
    stdout: Arc<Mutex<Kept>>,
    stderr: Arc<Mutex<Kept>>,
}

impl Running {
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
        system::alone(&mut start);
        let child = start.spawn().map_err(|error| not_started(program, command, &error))?;
        let (tell, closed) = channel();
        let kept = || Arc::new(Mutex::new(Kept::new(settings.max_output)));
        let mut running = Running { child, closed, stdout: kept(), stderr: kept() };
        running.listen(command, tell).inspect_err(|_| {
            // No thread to listen with: it must not run on unheard.
            system::make_end(&mut running.child);
            drop(running.child.wait());
        })?;
        Ok(running)
    }

    fn listen(&mut self, command: &Command, tell: Sender<()>) -> TaskResult<()> {
        gather(self.child.stdout.take(), &self.stdout, tell.clone())?;
        gather(self.child.stderr.take(), &self.stderr, tell)?;
        if let (Some(mut pipe), Some(text)) = (self.child.stdin.take(), command.stdin.clone()) {
            // On a thread: a command that does not read must not stop us from watching it. One that reads
            // only a part is content with that.
            thread("exec-stdin", move || drop(pipe.write_all(text.as_bytes())))?;
        }
        Ok(())
    }

    /// Waits for its end, or ends it.
    fn watch(&mut self, work: &TaskContext<'_>, limit: Option<Instant>) -> TaskResult<End> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(End::Exited(status));
            }
            let over = limit.is_some_and(|limit| Instant::now() >= limit);
            if over || work.is_cancelled() {
                self.end(work.grace())?;
                return Ok(if over { End::TimedOut } else { End::Cancelled });
            }
            // Both outputs closed means in most cases that it is about to end.
            if let Err(RecvTimeoutError::Disconnected) = self.closed.recv_timeout(pause) {
                work.wait_cancelled(pause);
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Asks it and its children to end; makes them, if they do not.
    fn end(&mut self, grace: Duration) -> TaskResult<()> {
        system::ask_to_end(&self.child);
        let limit = Instant::now() + grace;
        let pause = crate::flight::Stop::default();
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= limit {
                system::make_end(&mut self.child);
                self.child.wait()?;
                break;
            }
            pause.wait(Duration::from_millis(5));
        }
        // Whatever of its children is left.
        system::make_end(&mut self.child);
        Ok(())
    }

    /// What it wrote. A child of its own may hold the pipes open for longer than we wait.
    fn output(&self) -> (String, String) {
        let limit = Instant::now() + LAST_WORDS;
        while let Ok(()) = self.closed.recv_timeout(limit.saturating_duration_since(Instant::now())) {}
        let text = |kept: &Arc<Mutex<Kept>>| kept.lock().unwrap_or_else(PoisonError::into_inner).text();
        (text(&self.stdout), text(&self.stderr))
    }
}

fn not_started(program: &str, command: &Command, error: &io::Error) -> TaskError {
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

/// Reads an output to its end, keeping what is to be kept. It ends when the last process that can write there does,
/// which may be long after the command: a child that the command left behind costs its two threads.
fn gather(
    pipe: Option<impl Read + Send + 'static>,
    kept: &Arc<Mutex<Kept>>,
    tell: Sender<()>,
) -> TaskResult<()> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let kept = kept.clone();
    thread("exec-output", move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            kept.lock().unwrap_or_else(PoisonError::into_inner).add(&buffer[..count]);
        }
        drop(tell);
    })
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> TaskResult<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(drop).map_err(TaskError::transient)
}

/// The beginning and the end of a text of any length.
#[derive(Debug)]
struct Kept {
    half: usize,
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    left_out: u64,
}

impl Kept {
    fn new(most: usize) -> Self {
        Kept {
            half: most.div_ceil(2),
            head: Vec::new(),
            tail: std::collections::VecDeque::new(),
            left_out: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
        self.left_out += over as u64;
    }

    fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.left_out == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        format!("{head}\n[... {} bytes left out ...]\n{tail}", self.left_out)
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
    pub(super) fn alone(command: &mut Command) {
        command.process_group(0);
    }

    pub(super) fn ask_to_end(child: &Child) {
        signal(child, Signal::TERM);
    }

    pub(super) fn make_end(child: &mut Child) {
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

    pub(super) fn alone(_: &mut Command) {}

    pub(super) fn ask_to_end(_: &Child) {}

    pub(super) fn make_end(child: &mut Child) {
        drop(child.kill());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept() {
        let check = |most: usize, parts: &[&str], expected: &str| {
            let mut kept = Kept::new(most);
            parts.iter().for_each(|part| kept.add(part.as_bytes()));
            assert_eq!(kept.text(), expected, "{most} of {parts:?}");
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
        let check = |command: &Command, raw: i32, expected: fn(String) -> Judgement| {
            let found = judge(command, ExitStatus::from_raw(raw));
            let (Judgement::Again(text) | Judgement::Never(text)) = &found else {
                return assert_eq!(found, Judgement::Done, "{raw}");
            };
            assert_eq!(found, expected(text.clone()), "{raw}");
        };
        let plain = Command::default();
        check(&plain, 0, |_| Judgement::Done);
        for code in [1, 2, 3, 75, 79, 124, 125, 128, 255] {
            check(&plain, code << 8, Judgement::Again);
        }
        for code in [64, 70, 74, 76, 78, 126, 127] {
            check(&plain, code << 8, Judgement::Never);
        }
        check(&plain, 9, Judgement::Again);
        check(&listed, 3 << 8, Judgement::Never);
        check(&listed, 75 << 8, Judgement::Never);
        check(&listed, 64 << 8, Judgement::Again);
        check(&listed, 0, Judgement::Again);
    }
}
