//! Runs one command: starts it in its own process group, waits for it, and terminates it when it must end.
//!
//! Owns the command's standard input and output and its process group. No shell is involved. The caller chooses the
//! program, its arguments, environment and working directory, and what an exit status means.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::output::{BoundedOutput, OutputLimit, last_lines};
use crate::process_groups::{ProcessGroups, ProcessRecord, signal_group};

/// How long output is read after a command has ended, because its children may still write.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// One run of a command.
///
/// The command is the leader of a new process group: Ctrl-C in the terminal does not reach it, and its children are
/// terminated together with it. Dropping the future of [`run`](Self::run) kills the group. Children that a command
/// leaves running when it exits are not killed, and can still write to its outputs.
#[derive(Debug)]
pub struct CommandRun<'a> {
    command: Command,
    stdin: Option<&'a [u8]>,
    timeout: Option<Duration>,
    output_limit: OutputLimit,
}

impl<'a> CommandRun<'a> {
    /// Runs `command`, which has its arguments, environment and working directory, with the contents `stdin`, which it
    /// need not read. It is terminated after `timeout`.
    pub fn new(
        command: Command,
        stdin: Option<&'a [u8]>,
        timeout: Option<Duration>,
        output_limit: OutputLimit,
    ) -> Self {
        CommandRun { command, stdin, timeout, output_limit }
    }

    /// Runs the command to its end on a tokio runtime. Terminates it at the timeout or when `cancelled` completes, with
    /// SIGTERM and, after the time that `grace` returns for that end, SIGKILL. The command is recorded in `groups` under
    /// the name `work` while it runs.
    pub async fn run(
        mut self,
        groups: &ProcessGroups,
        work: &str,
        cancelled: impl Future<Output = ()>,
        grace: impl Fn(CommandEnd) -> Duration,
    ) -> Result<CommandOutput, CommandError> {
        let stdin = match self.stdin {
            Some(contents) => stdin_file(contents).map_err(CommandError::Stdin)?,
            None => Stdio::null(),
        };
        // Dropped after the process group, whose drop kills the command.
        let mut record = groups.record(work);
        let command = self.command.env(ProcessRecord::RUN_ID_VARIABLE, record.run_id()).kill_on_drop(true);
        #[cfg(unix)]
        command.process_group(0);
        let spawned = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(CommandError::Start)?;
        let mut group = ProcessGroup(child.id());
        child.id().into_iter().for_each(|leader| record.started(leader));
        let (stdout, stdout_reader) = read_output(child.stdout.take(), self.output_limit);
        let (stderr, stderr_reader) = read_output(child.stderr.take(), self.output_limit);
        let mut readers = vec![stdout_reader, stderr_reader];
        let end = tokio::select! {
            biased;
            status = child.wait() => CommandEnd::Exited(status.map_err(CommandError::Wait)?),
            () = sleep(self.timeout) => CommandEnd::TimedOut,
            () = cancelled => CommandEnd::Cancelled,
        };
        match end {
            // Its remaining children may continue.
            CommandEnd::Exited(_) => group.disarm(),
            CommandEnd::TimedOut | CommandEnd::Cancelled => group.terminate(&mut child, grace(end)).await,
        }
        // The output of a cancelled command is not used. A child of the command may keep the outputs open for longer.
        if end != CommandEnd::Cancelled {
            let _ = tokio::time::timeout(OUTPUT_TIMEOUT, join(&mut readers)).await;
        }
        let [stdout, stderr] = [stdout, stderr].map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner).text());
        Ok(CommandOutput { end, stdout, stderr, readers })
    }

    /// Runs the command as [`run`](Self::run) does, on this thread.
    pub fn run_blocking(
        self,
        groups: &ProcessGroups,
        work: &str,
        cancelled: impl Future<Output = ()>,
        grace: impl Fn(CommandEnd) -> Duration,
    ) -> Result<CommandOutput, CommandError> {
        // Takes about 12 µs to create, of 1 ms to run a command.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandError::Wait)?;
        let mut output = runtime.block_on(self.run(groups, work, cancelled, grace))?;
        let mut readers = std::mem::take(&mut output.readers);
        if !readers.iter().all(JoinHandle::is_finished) {
            // Children of the command write to its outputs, and would be killed by SIGPIPE if these were closed.
            let read = move || runtime.block_on(join(&mut readers));
            drop(std::thread::Builder::new().name("exec-output".to_owned()).spawn(read));
        }
        Ok(output)
    }
}

async fn sleep(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// It exited, or was killed by a signal that the runner did not send.
    Exited(ExitStatus),
    /// It was terminated at its timeout.
    TimedOut,
    /// It was terminated because it was cancelled.
    Cancelled,
}

/// The end of a command, with the part of its output that was kept.
#[derive(Debug)]
pub struct CommandOutput {
    /// How the command ended.
    pub end: CommandEnd,
    /// The kept part of the standard output; of a cancelled command, what was read until then.
    pub stdout: String,
    /// The kept part of the standard error; of a cancelled command, what was read until then.
    pub stderr: String,
    /// The tasks that read the outputs, which children of the command may hold open.
    readers: Vec<JoinHandle<()>>,
}

impl CommandOutput {
    /// Creates the error of a command that failed.
    pub fn failure(self, reason: String) -> CommandFailure {
        CommandFailure { reason, stdout: self.stdout, stderr: self.stderr }
    }
}

/// Why a command could not be run.
#[derive(Debug)]
pub enum CommandError {
    /// Its standard input could not be stored.
    Stdin(io::Error),
    /// It could not be started.
    Start(io::Error),
    /// It could not be waited for, or the runtime for that could not be created.
    Wait(io::Error),
}

/// What an exit status says about the work of a command, unless the caller knows better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitClass {
    /// 0: the work is done.
    Success,
    /// Any status not named here, such as 75 and 124, or the end by a signal: another attempt may succeed.
    Transient,
    /// 64 to 78, except 69 and 75: every attempt will fail.
    Permanent,
    /// 69 (EX_UNAVAILABLE), and 126 and 127, which a shell returns for a program that it cannot run or find: the
    /// command, or a service that it needs, is not available.
    Unavailable,
}

impl ExitClass {
    /// Classifies an exit status.
    pub fn of(status: ExitStatus) -> Self {
        match status.code() {
            Some(0) => ExitClass::Success,
            Some(69 | 126 | 127) => ExitClass::Unavailable,
            Some(75) => ExitClass::Transient,
            Some(64..=78) => ExitClass::Permanent,
            _ => ExitClass::Transient,
        }
    }
}

/// The error of a failed command. Its text has the reason in the first line, followed by the output.
#[derive(Debug)]
pub struct CommandFailure {
    reason: String,
    stdout: String,
    stderr: String,
}

impl CommandFailure {
    fn outputs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let outputs = [("stderr", self.stderr.trim_end()), ("stdout", self.stdout.trim_end())];
        outputs.into_iter().filter(|(_, text)| !text.is_empty())
    }

    /// The last lines of each output.
    pub(super) fn last_output(&self) -> Option<String> {
        let parts: Vec<_> = self.outputs().map(|(name, text)| format!("--- {name}\n{}", last_lines(text))).collect();
        Some(parts.join("\n")).filter(|text| !text.is_empty())
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        self.outputs().try_for_each(|(name, text)| write!(f, "\n--- {name}\n{text}"))
    }
}

impl Error for CommandFailure {}

/// Starts a task that reads an output to its end. The output ends when the last process that can write to it ends,
/// possibly long after the command.
fn read_output(
    pipe: Option<impl AsyncRead + Unpin + Send + 'static>,
    limit: OutputLimit,
) -> (Arc<Mutex<BoundedOutput>>, JoinHandle<()>) {
    let kept = Arc::new(Mutex::new(BoundedOutput::new(limit)));
    let shared = kept.clone();
    let reader = tokio::spawn(async move {
        let Some(mut pipe) = pipe else { return };
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            shared.lock().unwrap_or_else(PoisonError::into_inner).add(&buffer[..count]);
        }
    });
    (kept, reader)
}

/// Waits until the outputs have been read to their ends.
async fn join(readers: &mut [JoinHandle<()>]) {
    for reader in readers.iter_mut().filter(|reader| !reader.is_finished()) {
        let _ = reader.await;
    }
}

/// Returns a file with the whole input. With a pipe, the command would read a truncated input if this process were
/// killed while it fills the pipe, and a thread or task would wait for a command that does not read.
fn stdin_file(contents: &[u8]) -> io::Result<Stdio> {
    let mut file = anonymous_file()?;
    file.write_all(contents)?;
    file.rewind()?;
    Ok(Stdio::from(file))
}

/// Creates a file without a name, which is freed when it is closed.
#[cfg(target_os = "linux")]
fn anonymous_file() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("stdin", rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

#[cfg(not(target_os = "linux"))]
fn anonymous_file() -> io::Result<File> {
    gristmill_store::private::create_unnamed(&std::env::temp_dir())
}

/// Kills the process group of a command when dropped, unless disarmed.
struct ProcessGroup(Option<u32>);

impl ProcessGroup {
    /// Called after the command has ended.
    fn disarm(&mut self) {
        self.0 = None;
    }

    fn signal(&self, kill: bool) {
        self.0.into_iter().for_each(|group| signal_group(group, kill));
    }

    /// Sends SIGTERM to the group, and SIGKILL when its leader has ended, at the latest after the grace period.
    async fn terminate(&mut self, child: &mut Child, grace: Duration) {
        self.signal(false);
        // A wait that has timed out does not reap the process, so its id cannot be reused before the group is killed.
        let ended = tokio::time::timeout(grace, child.wait()).await.is_ok();
        self.signal(true);
        if !ended {
            let _ = child.kill().await;
        }
        self.disarm();
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(true);
    }
}
