//! `--exec`: runs a command for each message.
//!
//! Starts the command without a shell, passes the message on standard input, enforces the timeout, and classifies the
//! exit status as the task kind `exec` does. A command has its own process group, killed on cancellation.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gristmill_amqp::Delivery;
use gristmill_jobs::{ProcessGroups, ProcessRecord};
use gristmill_pool::{TaskError, TaskResult};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::metadata::{FieldLimits, MessageField, message_fields, normalize_name, trace_headers};
use crate::commands::environment::{HEADER_PREFIX, withheld};
use crate::error::Error;
use crate::settings::value::show_duration;

/// Limits of the environment variables; every supported system accepts larger environments.
const FIELD_LIMITS: FieldLimits = FieldLimits { max_value: 32 << 10, max_total: 96 << 10 };

/// Bytes kept from the end of each output stream, so that both fit into a header of a dead letter.
const MAX_TAIL_BYTES: usize = 1_500;

/// How long output of remaining child processes is read after the command has exited.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time between SIGTERM and SIGKILL.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);

/// Variable with the number of lines in a batch.
const BATCH_VARIABLE: &str = "GRISTMILL_BATCH";

pub(super) struct Exec {
    command: Vec<String>,
    timeout: Option<Duration>,
    /// True once running commands must end at once.
    cancel: watch::Receiver<bool>,
    /// Names of variables that commands do not inherit.
    withheld: Vec<OsString>,
    /// Records running commands, so that a later run can kill orphans.
    groups: ProcessGroups,
}

impl Exec {
    pub(super) fn new(
        command: Vec<String>,
        timeout: Option<Duration>,
        cancel: watch::Receiver<bool>,
        groups: ProcessGroups,
    ) -> Arc<Self> {
        groups.kill_orphans(None);
        Arc::new(Exec { command, timeout, cancel, withheld: withheld(), groups })
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
        // Dropped after the process group, whose drop kills the command.
        let mut record = self.groups.record("a message");
        let mut child = self.start(variables, input, &record)?;
        if let Some(leader) = child.id() {
            record.started(leader);
        }
        let mut group = ProcessGroupGuard(child.id());
        let (stdout, stderr) = (OutputTail::default(), OutputTail::default());
        let end = {
            let pipes = (child.stdout.take(), child.stderr.take());
            let output = async {
                tokio::join!(stdout.read(pipes.0), stderr.read(pipes.1));
            };
            self.wait(&mut child, &mut group, output).await?
        };
        let failure =
            |reason: String| CommandFailure { reason, outputs: [("stderr", stderr.text()), ("stdout", stdout.text())] };
        match end {
            CommandEnd::Cancelled => Err(TaskError::cancelled()),
            CommandEnd::TimedOut(limit) => {
                let limit = show_duration(limit);
                let reason = format!("killed after the timeout of {limit}");
                // The consumer counts errors of this kind as timeouts.
                Err(TaskError::transient(io::Error::new(ErrorKind::TimedOut, failure(reason))))
            }
            CommandEnd::Exited(status) => match classify(status) {
                ExitOutcome::Done => {
                    tracing::debug!(stdout = stdout.text(), stderr = stderr.text(), "the command succeeded");
                    Ok(())
                }
                ExitOutcome::Transient(reason) => Err(TaskError::transient(failure(reason))),
                ExitOutcome::Unavailable(reason) => Err(TaskError::dependency_failed(failure(reason))),
                ExitOutcome::Permanent(reason) => Err(TaskError::permanent(failure(reason))),
            },
        }
    }

    fn start(&self, variables: Vec<(String, String)>, body: &[u8], record: &ProcessRecord) -> TaskResult<Child> {
        let (program, arguments) =
            self.command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let mut command = Command::new(program);
        command.args(arguments).process_group(0).kill_on_drop(true);
        for name in &self.withheld {
            command.env_remove(name);
        }
        command.envs(variables).env(ProcessRecord::RUN_ID_VARIABLE, record.run_id());
        let input = stdin_file(body).map_err(|error| {
            TaskError::unavailable(format!("cannot write the message to a temporary file: {error}"))
        })?;
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| {
            let text = format!("cannot run {program:?}: {error}");
            match error.kind() {
                // Caused by the message, whose properties are in the environment.
                ErrorKind::InvalidInput | ErrorKind::ArgumentListTooLong => TaskError::permanent(text),
                // Missing program, too many processes or files, too little memory: no message can be handled.
                _ => TaskError::unavailable(text),
            }
        })
    }

    /// Waits for the command to exit; terminates it at the timeout or when cancelled.
    async fn wait(
        &self,
        child: &mut Child,
        group: &mut ProcessGroupGuard,
        output: impl Future<Output = ()>,
    ) -> TaskResult<CommandEnd> {
        let mut output = std::pin::pin!(output);
        let mut is_reading = true;
        let mut cancel = self.cancel.clone();
        let mut limit = std::pin::pin!(async {
            match self.timeout {
                Some(limit) => {
                    tokio::time::sleep(limit).await;
                    limit
                }
                None => std::future::pending().await,
            }
        });
        loop {
            tokio::select! {
                status = child.wait() => {
                    group.disarm();
                    if is_reading {
                        // A child of the command may keep the pipes open for longer.
                        let _ = tokio::time::timeout(OUTPUT_TIMEOUT, output).await;
                    }
                    return Ok(CommandEnd::Exited(status?));
                }
                () = &mut output, if is_reading => is_reading = false,
                limit = &mut limit => {
                    group.terminate(child, TERMINATE_TIMEOUT).await;
                    return Ok(CommandEnd::TimedOut(limit));
                }
                () = until_cancelled(&mut cancel) => {
                    group.terminate(child, TERMINATE_TIMEOUT / 4).await;
                    return Ok(CommandEnd::Cancelled);
                }
            }
        }
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

async fn until_cancelled(cancel: &mut watch::Receiver<bool>) {
    if cancel.wait_for(|is_cancelled| *is_cancelled).await.is_err() {
        std::future::pending::<()>().await;
    }
}

enum CommandEnd {
    Exited(ExitStatus),
    TimedOut(Duration),
    Cancelled,
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

/// Returns a file with the whole message. With a pipe, the command would read a truncated message if this process were
/// killed while it fills the pipe.
fn stdin_file(body: &[u8]) -> io::Result<Stdio> {
    let mut file = anonymous_file()?;
    file.write_all(body)?;
    file.rewind()?;
    Ok(Stdio::from(file))
}

/// Creates a file without a name, which is freed when it is closed.
#[cfg(target_os = "linux")]
fn anonymous_file() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("message", rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

#[cfg(not(target_os = "linux"))]
fn anonymous_file() -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("gristmill-{}", uuid::Uuid::new_v4()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Keeps the last [`MAX_TAIL_BYTES`] of an output stream.
#[derive(Default)]
struct OutputTail(Mutex<(Vec<u8>, bool)>);

impl OutputTail {
    async fn read(&self, pipe: Option<impl AsyncRead + Unpin>) {
        let Some(mut pipe) = pipe else { return };
        let mut buffer = vec![0; 8 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.0.extend_from_slice(&buffer[..count]);
            let over = kept.0.len().saturating_sub(MAX_TAIL_BYTES);
            kept.0.drain(..over);
            kept.1 |= over > 0;
        }
    }

    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&kept.0);
        if kept.1 { format!("…{}", text.trim_start_matches('\u{fffd}')) } else { text.into_owned() }
    }
}

/// Kills the process group of a command when dropped, unless disarmed.
struct ProcessGroupGuard(Option<u32>);

impl ProcessGroupGuard {
    /// Called after the command exited: its remaining children may continue.
    fn disarm(&mut self) {
        self.0 = None;
    }

    fn signal(&self, signal: Signal) {
        let group = self.0.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            // The group may have exited just now.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Sends SIGTERM to the group, and SIGKILL after the grace period.
    async fn terminate(&mut self, child: &mut Child, grace: Duration) {
        self.signal(Signal::TERM);
        // A timed out wait does not reap the process, so the id cannot be reused before the group is killed.
        let ended = tokio::time::timeout(grace, child.wait()).await.is_ok();
        self.signal(Signal::KILL);
        if !ended {
            let _ = child.wait().await;
        }
        self.disarm();
    }
}

impl Drop for ProcessGroupGuard {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ExitOutcome {
    Done,
    Transient(String),
    /// The command, or a service that it needs, is not available.
    Unavailable(String),
    Permanent(String),
}

/// Classifies an exit status as the task kind `exec` does, except that an unavailable command or service does not
/// count against the message.
fn classify(status: ExitStatus) -> ExitOutcome {
    let Some(code) = status.code() else {
        // The status prints as "signal: 9 (SIGKILL)".
        return ExitOutcome::Transient(format!("killed by {status}"));
    };
    let reason = format!("exit status {code}");
    match code {
        0 => ExitOutcome::Done,
        // EX_UNAVAILABLE; a shell returns 126 for a program that it cannot run and 127 for one that it does not find.
        69 | 126 | 127 => ExitOutcome::Unavailable(reason),
        75 => ExitOutcome::Transient(reason),
        64..=78 => ExitOutcome::Permanent(reason),
        _ => ExitOutcome::Transient(reason),
    }
}

/// Error of a failed command: the reason in the first line, then the last lines of its output.
#[derive(Debug)]
struct CommandFailure {
    reason: String,
    outputs: [(&'static str, String); 2],
}

impl std::fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)?;
        for (name, text) in &self.outputs {
            if !text.trim().is_empty() {
                write!(f, "\n--- {name}\n{}", text.trim_end())?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for CommandFailure {}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn exit_codes_are_classified_as_for_tasks() {
        let classified = |code: i32| classify(ExitStatus::from_raw(code << 8));
        assert_eq!(classified(0), ExitOutcome::Done);
        for code in [1, 2, 63, 75, 79, 124, 125, 128, 255] {
            assert_eq!(classified(code), ExitOutcome::Transient(format!("exit status {code}")));
        }
        for code in [69, 126, 127] {
            assert_eq!(classified(code), ExitOutcome::Unavailable(format!("exit status {code}")));
        }
        for code in [64, 65, 68, 70, 74, 76, 78] {
            assert_eq!(classified(code), ExitOutcome::Permanent(format!("exit status {code}")));
        }
        assert_eq!(
            classify(ExitStatus::from_raw(9)),
            ExitOutcome::Transient("killed by signal: 9 (SIGKILL)".to_owned())
        );
    }

    #[tokio::test]
    async fn output_tail_keeps_the_last_bytes() {
        let tail = OutputTail::default();
        let long = format!("{}é{}", "x".repeat(MAX_TAIL_BYTES), "y".repeat(MAX_TAIL_BYTES - 1));
        tail.read(Some(long.as_bytes())).await;
        assert_eq!(tail.text(), format!("…{}", "y".repeat(MAX_TAIL_BYTES - 1)));
    }
}
