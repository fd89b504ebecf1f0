//! `--exec`: runs a command for each message.
//!
//! Passes the message on standard input and in the environment, and classifies the exit status as the task kind `exec`
//! does, except that an unavailable command or service does not count against the message. `gristmill_jobs::exec` runs
//! the command.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gristmill_amqp::Delivery;
use gristmill_jobs::ProcessGroups;
use gristmill_jobs::exec::{CommandEnd, CommandError, CommandRun, ExitClass, OutputLimit};
use gristmill_pool::{CancelToken, TaskError, TaskResult};
use tokio::process::Command;
use tokio::sync::watch;

use super::RunControl;
use super::metadata::{FieldLimits, MessageField, message_fields, normalize_name, trace_headers};
use crate::commands::environment::{HEADER_PREFIX, withheld};
use crate::error::Error;
use crate::units::show_duration;

/// Limits of the environment variables; every supported system accepts larger environments.
const FIELD_LIMITS: FieldLimits = FieldLimits { max_value: 32 << 10, max_total: 96 << 10 };

/// Bytes kept from the end of each output stream, so that both fit into a header of a dead letter.
const MAX_TAIL_BYTES: usize = 1_500;

/// Time between SIGTERM and SIGKILL.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);

/// Variable with the number of lines in a batch.
const BATCH_VARIABLE: &str = "GRISTMILL_BATCH";

/// Counts the commands that run.
#[derive(Clone, Default)]
pub(super) struct RunningCommands(watch::Sender<usize>);

impl RunningCommands {
    fn start(&self) -> RunningCommand<'_> {
        self.0.send_modify(|count| *count += 1);
        RunningCommand(&self.0)
    }

    /// Waits until no command runs.
    pub(super) async fn ended(&self) {
        // The sender exists, so the result is no error.
        drop(self.0.subscribe().wait_for(|count| *count == 0).await);
    }
}

/// Counts a command until it is dropped.
struct RunningCommand<'a>(&'a watch::Sender<usize>);

impl Drop for RunningCommand<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

pub(super) struct Exec {
    command: Vec<String>,
    timeout: Option<Duration>,
    /// Cancelled when running commands must end at once.
    abort: CancelToken,
    running: RunningCommands,
    /// Names of variables that commands do not inherit.
    withheld: Vec<OsString>,
    /// Records running commands, so that a later run can kill orphans.
    groups: ProcessGroups,
}

impl Exec {
    pub(super) fn new(
        command: Vec<String>,
        timeout: Option<Duration>,
        control: &RunControl,
        groups: ProcessGroups,
    ) -> Arc<Self> {
        groups.kill_orphans(None);
        let (abort, running) = (control.abort.clone(), control.running.clone());
        Arc::new(Exec { command, timeout, abort, running, withheld: withheld(), groups })
    }

    /// Kills the commands of killed consumers if one of these messages was delivered before.
    async fn kill_orphans_of_redelivered(&self, deliveries: &[Delivery]) {
        if deliveries.iter().any(Delivery::is_redelivered) {
            let groups = self.groups.clone();
            // Killing a process group may take seconds.
            let _ = tokio::task::spawn_blocking(move || groups.kill_orphans(None)).await;
        }
    }

    /// Runs the command for one message. Dropping the future kills the command.
    pub(super) async fn run(self: Arc<Self>, delivery: Delivery) -> TaskResult<()> {
        self.kill_orphans_of_redelivered(std::slice::from_ref(&delivery)).await;
        self.run_with(environment(&delivery), delivery.body()).await
    }

    /// Runs the command for a batch with its lines on standard input.
    pub(super) async fn run_batch(&self, deliveries: &[Delivery], lines: &[u8]) -> TaskResult<()> {
        self.kill_orphans_of_redelivered(deliveries).await;
        let queue = deliveries.first().map(Delivery::queue).unwrap_or_default();
        let variables = [("GRISTMILL_QUEUE", queue), (BATCH_VARIABLE, &deliveries.len().to_string())];
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.run_with(owned.to_vec(), lines).await
    }

    async fn run_with(&self, variables: Vec<(String, String)>, input: &[u8]) -> TaskResult<()> {
        let _running = self.running.start();
        // The remaining messages of a batch that runs one by one are not started.
        if self.abort.is_cancelled() {
            return Err(TaskError::cancelled());
        }
        let (program, arguments) =
            self.command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let mut command = Command::new(program);
        command.args(arguments);
        for name in &self.withheld {
            command.env_remove(name);
        }
        command.envs(variables);
        let grace = |end| if end == CommandEnd::TimedOut { TERMINATE_TIMEOUT } else { TERMINATE_TIMEOUT / 4 };
        let run = CommandRun::new(command, Some(input), self.timeout, OutputLimit::last(MAX_TAIL_BYTES));
        let run = run.run(&self.groups, "a message", self.abort.cancelled(), grace);
        let output = run.await.map_err(|error| command_error(program, error))?;
        let status = match output.end {
            CommandEnd::Exited(status) => status,
            CommandEnd::Cancelled => return Err(TaskError::cancelled()),
            CommandEnd::TimedOut => {
                let reason = format!("killed after the timeout of {}", show_duration(self.timeout.unwrap_or_default()));
                // The consumer counts errors of this kind as timeouts.
                return Err(TaskError::transient(io::Error::new(ErrorKind::TimedOut, output.failure(reason))));
            }
        };
        // A signal is formatted as "signal: 9 (SIGKILL)".
        let reason = status.code().map_or_else(|| format!("killed by {status}"), |code| format!("exit status {code}"));
        match ExitClass::of(status) {
            ExitClass::Success => {
                tracing::debug!(stdout = output.stdout, stderr = output.stderr, "the command succeeded");
                Ok(())
            }
            ExitClass::Transient => Err(TaskError::transient(output.failure(reason))),
            // Does not count against the message.
            ExitClass::Unavailable => Err(TaskError::dependency_failed(output.failure(reason))),
            ExitClass::Permanent => Err(TaskError::permanent(output.failure(reason))),
        }
    }
}

fn command_error(program: &str, error: CommandError) -> TaskError {
    match error {
        CommandError::Stdin(error) => {
            TaskError::unavailable(format!("cannot write the message to a temporary file: {error}"))
        }
        CommandError::Start(error) => {
            let text = format!("cannot run {program:?}: {error}");
            match error.kind() {
                // Caused by the message, whose properties are in the environment.
                ErrorKind::InvalidInput | ErrorKind::ArgumentListTooLong => TaskError::permanent(text),
                // Missing program, too many processes or files, too little memory: no message can be handled.
                _ => TaskError::unavailable(text),
            }
        }
        CommandError::Wait(error) => TaskError::transient(error),
    }
}

/// Fails if the program does not exist, instead of pausing at the first message.
pub(super) fn check_program(words: &[String]) -> Result<(), Error> {
    let program = words.first().map_or("", String::as_str);
    let is_program =
        |path: &Path| path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0);
    let found = match program.contains('/') {
        true => is_program(Path::new(program)),
        false => {
            let folders = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&folders).any(|folder| is_program(&folder.join(program)))
        }
    };
    if found {
        return Ok(());
    }
    let hint = match program.contains(' ') {
        true => "give the command and its arguments as separate words, without quotes around all of them",
        false => "check that it is executable and on the PATH",
    };
    Err(Error::Setting(format!("--exec: no program {program:?}; {hint}")))
}

/// Returns the variables of a message. Omits values with a NUL, and headers whose variable is already set.
fn environment(delivery: &Delivery) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for one in message_fields(delivery, FIELD_LIMITS, |value| !value.contains('\0')) {
        let (name, value) = match one {
            MessageField::Property(name, value) => (format!("GRISTMILL_{name}"), value),
            MessageField::Header(name, value) => (format!("{HEADER_PREFIX}{}", normalize_name(&name, '_')), value),
        };
        if name != HEADER_PREFIX && variables.iter().all(|(known, _)| *known != name) {
            variables.push((name, value));
        }
    }
    let clean = |value: &&str| !value.contains('\0') && value.len() <= 512;
    let traces = trace_headers(delivery).filter(|(_, value)| clean(value));
    variables.extend(traces.map(|(name, value)| (name.to_ascii_uppercase(), value.to_owned())));
    variables
}
