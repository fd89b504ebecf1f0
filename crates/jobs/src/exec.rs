//! The kind `exec`: runs a command as a durable task.
//!
//! Owns the payload of such a task and which outcome an exit status has. [`CommandRun`] starts the command, waits for it
//! and terminates it, for this kind and for other callers. No shell is involved: the arguments in the payload are passed
//! to the program unchanged.
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

mod output;
mod runner;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Once;
use std::time::{Duration, Instant};

use gristmill_pool::error::Cause;
use gristmill_pool::{Retry, TaskError, TaskResult};
use serde::{Deserialize, Serialize};

pub use self::output::OutputLimit;
pub use self::runner::{CommandEnd, CommandError, CommandFailure, CommandOutput, CommandRun, ExitClass};
use crate::kind::TaskKind;
use crate::process_groups::ProcessGroups;
use crate::task_context::TaskContext;

/// Name of the kind, as tasks in the store have it.
pub const KIND: &str = "exec";

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
    let stdin = command.stdin.as_deref().map(str::as_bytes);
    let output_limit = OutputLimit::ends(settings.max_output);
    let output = CommandRun::new(process(&command, settings, task), stdin, limit, output_limit)
        .run_blocking(&groups, &name, task.cancel_token().cancelled(), |_| task.grace())
        .map_err(|error| command_error(&command, error))?;
    let status = match output.end {
        CommandEnd::Exited(status) => status,
        CommandEnd::Cancelled => return Err(TaskError::cancelled()),
        CommandEnd::TimedOut => {
            let reason = format!("took longer than {:?} and was terminated", limit.unwrap_or_default());
            return Err(TaskError::transient(output.failure(reason)));
        }
    };
    // A signal is formatted as "signal: 9 (SIGKILL)".
    let reason = status.code().map_or_else(|| format!("ended by a {status}"), |code| format!("exit status {code}"));
    match classify(&command, status) {
        ExitClass::Success => {
            let seconds = (start.elapsed().as_secs_f64() * 1_000.0).round() / 1_000.0;
            let CommandOutput { stdout, stderr, .. } = &output;
            task.set_result(&CommandResult { exit_code: 0, seconds, stdout, stderr })
        }
        ExitClass::Transient => Err(TaskError::transient(output.failure(reason))),
        ExitClass::Permanent | ExitClass::Unavailable => Err(TaskError::permanent(output.failure(reason))),
    }
}

fn process(command: &Command, settings: &ExecSettings, task: &TaskContext<'_>) -> tokio::process::Command {
    // A command without a program is refused before.
    let mut process = tokio::process::Command::new(command.argv.first().map_or("", String::as_str));
    process.args(command.argv.iter().skip(1));
    for name in &settings.removed_env {
        process.env_remove(name);
    }
    process.envs(&command.env);
    process.env("GRISTMILL_TASK_ID", task.id().to_string());
    process.env("GRISTMILL_ATTEMPT", task.attempt().to_string());
    process.env("GRISTMILL_REDELIVERED", if task.is_redelivered() { "1" } else { "0" });
    if let Some(cwd) = &command.cwd {
        process.current_dir(cwd);
    }
    process
}

/// The class of an exit status, by the lists in the payload or else by the table above.
fn classify(command: &Command, status: ExitStatus) -> ExitClass {
    match status.code() {
        Some(code) if command.permanent.contains(&code) => ExitClass::Permanent,
        Some(code) if command.transient.contains(&code) => ExitClass::Transient,
        _ => ExitClass::of(status),
    }
}

/// The last lines of each output of a failed command; outer `None` if the error is not a [`CommandFailure`].
pub(crate) fn output_of(error: &TaskError) -> Option<Option<String>> {
    let Cause::Error(error) = error.cause() else { return None };
    error.downcast_ref::<CommandFailure>().map(CommandFailure::last_output)
}

fn command_error(command: &Command, error: CommandError) -> TaskError {
    let error = match error {
        CommandError::Start(error) => error,
        CommandError::Stdin(error) | CommandError::Wait(error) => return TaskError::transient(error),
    };
    let program = command.argv.first().map_or("", String::as_str);
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
