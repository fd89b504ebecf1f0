//! `--exec`: a command for each message.
//!
//! Owns how a command is started, fed, watched, stopped and judged: by the same rule as the kind `exec` of tasks. There
//! is no shell in between. A command has a process group of its own, and whatever ends its message ends the group.

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

use super::metadata::{Bounds, MessageField, about, plain, trace};
use crate::commands::environment::{HEADER, withheld};
use crate::error::Error;
use crate::settings::value::show_duration;

/// What a system takes for the environment of a program at the very least is more than this.
const BOUNDS: Bounds = Bounds { each: 32 << 10, total: 96 << 10 };

/// So much is kept of the end of each output: more does not go into a header of a dead letter.
const TAIL: usize = 1_500;

/// After a command has ended, for output that its own children may still write.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// For a command that is asked to end.
const GRACE: Duration = Duration::from_secs(2);

/// The number of lines that a batch has.
const BATCH: &str = "GRISTMILL_BATCH";

/// What commands are run with.
pub(super) struct Exec {
    words: Vec<String>,
    timeout: Option<Duration>,
    /// True: there is no more time, not even to finish.
    halt: watch::Receiver<bool>,
    /// Variables of this process that commands do not inherit.
    withheld: Vec<OsString>,
    /// Where running commands are recorded.
    groups: ProcessGroups,
}

impl Exec {
    pub(super) fn new(
        words: Vec<String>,
        timeout: Option<Duration>,
        halt: watch::Receiver<bool>,
        groups: ProcessGroups,
    ) -> Arc<Self> {
        groups.kill_orphans(None);
        Arc::new(Exec { words, timeout, halt, withheld: withheld(), groups })
    }

    /// Ends the commands of consumers that were killed, if one of these messages may have been theirs.
    async fn end_left_over(&self, deliveries: &[Delivery]) {
        if deliveries.iter().any(Delivery::is_redelivered) {
            let groups = self.groups.clone();
            // A group may take seconds to end.
            let _ = tokio::task::spawn_blocking(move || groups.kill_orphans(None)).await;
        }
    }

    /// Runs the command for one message. Dropped, it takes the command along.
    pub(super) async fn run(self: Arc<Self>, delivery: Delivery) -> TaskResult<()> {
        self.end_left_over(std::slice::from_ref(&delivery)).await;
        self.run_with(environment(&delivery), delivery.body()).await
    }

    /// Runs the command for a batch, whose lines it reads.
    pub(super) async fn run_batch(&self, deliveries: &[Delivery], lines: &[u8]) -> TaskResult<()> {
        self.end_left_over(deliveries).await;
        let queue = deliveries.first().map(Delivery::queue).unwrap_or_default();
        let variables = [("GRISTMILL_QUEUE", queue), (BATCH, &deliveries.len().to_string())];
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.run_with(owned.to_vec(), lines).await
    }

    async fn run_with(&self, variables: Vec<(String, String)>, input: &[u8]) -> TaskResult<()> {
        // Dropped after the group, which ends the command.
        let mut record = self.groups.record("a message");
        let mut child = self.start(variables, input, &record)?;
        if let Some(leader) = child.id() {
            record.started(leader);
        }
        let mut group = Group(child.id());
        let (stdout, stderr) = (Tail::default(), Tail::default());
        let end = {
            let pipes = (child.stdout.take(), child.stderr.take());
            let talk = async {
                tokio::join!(stdout.gather(pipes.0), stderr.gather(pipes.1));
            };
            self.watch(&mut child, &mut group, talk).await?
        };
        let fault = |reason: String| Fault {
            reason,
            outputs: [("stderr", stderr.text()), ("stdout", stdout.text())],
        };
        match end {
            End::Halted => Err(TaskError::cancelled()),
            End::TimedOut(limit) => {
                let limit = show_duration(limit);
                let reason = format!("took longer than {limit} and was ended");
                // Timeouts are counted by this kind.
                Err(TaskError::transient(io::Error::new(ErrorKind::TimedOut, fault(reason))))
            }
            End::Exited(status) => match judge(status) {
                Judgement::Done => {
                    tracing::debug!(stdout = stdout.text(), stderr = stderr.text(), "the command is done");
                    Ok(())
                }
                Judgement::Again(reason) => Err(TaskError::transient(fault(reason))),
                Judgement::Unavailable(reason) => Err(TaskError::dependency_failed(fault(reason))),
                Judgement::Never(reason) => Err(TaskError::permanent(fault(reason))),
            },
        }
    }

    fn start(
        &self,
        variables: Vec<(String, String)>,
        body: &[u8],
        record: &ProcessRecord,
    ) -> TaskResult<Child> {
        let (program, words) =
            self.words.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let mut command = Command::new(program);
        command.args(words).process_group(0).kill_on_drop(true);
        for name in &self.withheld {
            command.env_remove(name);
        }
        command.envs(variables).env(ProcessRecord::RUN_ID_VARIABLE, record.run_id());
        let input = input(body)
            .map_err(|error| TaskError::unavailable(format!("cannot hand over the message: {error}")))?;
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| {
            let text = format!("cannot run {program:?}: {error}");
            match error.kind() {
                // The message's properties are in the environment.
                ErrorKind::InvalidInput | ErrorKind::ArgumentListTooLong => TaskError::permanent(text),
                // No such program, too many processes or files, too little memory: no message can be handled.
                _ => TaskError::unavailable(text),
            }
        })
    }

    /// Waits for the command's end, or brings it about.
    async fn watch(
        &self,
        child: &mut Child,
        group: &mut Group,
        talk: impl Future<Output = ()>,
    ) -> TaskResult<End> {
        let mut talk = std::pin::pin!(talk);
        let mut talking = true;
        let mut halt = self.halt.clone();
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
                    group.over();
                    if talking {
                        // A child of its own may hold the pipes open for longer than we wait.
                        let _ = tokio::time::timeout(LAST_WORDS, talk).await;
                    }
                    return Ok(End::Exited(status?));
                }
                () = &mut talk, if talking => talking = false,
                limit = &mut limit => {
                    group.end(child, GRACE).await;
                    return Ok(End::TimedOut(limit));
                }
                () = halted(&mut halt) => {
                    group.end(child, GRACE / 4).await;
                    return Ok(End::Halted);
                }
            }
        }
    }
}

/// Whether there is such a program. Without, every message would be given up before anybody notices.
pub(super) fn look_for(words: &[String]) -> Result<(), Error> {
    let program = words.first().map_or("", String::as_str);
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
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
        true => "a command and its arguments are words of their own: leave off the quotes around all of it",
        false => "is it executable, and on the PATH?",
    };
    Err(Error::Setting(format!("there is no program {program:?} to run for each message; {hint}")))
}

/// Waits until there is no more time.
async fn halted(halt: &mut watch::Receiver<bool>) {
    if halt.wait_for(|halt| *halt).await.is_err() {
        std::future::pending::<()>().await;
    }
}

enum End {
    Exited(ExitStatus),
    TimedOut(Duration),
    Halted,
}

/// The variables of a message. What no variable can hold is left out, and of two names that become one the second.
fn environment(delivery: &Delivery) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for one in about(delivery, BOUNDS, |value| !value.contains('\0')) {
        let (name, value) = match one {
            MessageField::Property(name, value) => (format!("GRISTMILL_{name}"), value),
            MessageField::Header(name, value) => (format!("{HEADER}{}", plain(&name, '_')), value),
        };
        if name != HEADER && variables.iter().all(|(known, _)| *known != name) {
            variables.push((name, value));
        }
    }
    let clean = |value: &&str| !value.contains('\0') && value.len() <= 512;
    let traces = trace(delivery).filter(|(_, value)| clean(value));
    variables.extend(traces.map(|(name, value)| (name.to_ascii_uppercase(), value.to_owned())));
    variables
}

/// What a command reads: all of the message. Through a pipe it would read a part and take it for all, when the one who
/// fills that is killed.
fn input(body: &[u8]) -> io::Result<Stdio> {
    let mut file = nameless()?;
    file.write_all(body)?;
    file.rewind()?;
    Ok(Stdio::from(file))
}

/// A file that nobody else can open, and that goes with its last reader.
#[cfg(target_os = "linux")]
fn nameless() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("message", rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

#[cfg(not(target_os = "linux"))]
fn nameless() -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("gristmill-{}", uuid::Uuid::new_v4()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// The end of what a command writes.
#[derive(Default)]
struct Tail(Mutex<(Vec<u8>, bool)>);

impl Tail {
    async fn gather(&self, pipe: Option<impl AsyncRead + Unpin>) {
        let Some(mut pipe) = pipe else { return };
        let mut buffer = vec![0; 8 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.0.extend_from_slice(&buffer[..count]);
            let over = kept.0.len().saturating_sub(TAIL);
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

/// The processes of a command. Dropped before they are over, they are killed.
struct Group(Option<u32>);

impl Group {
    /// The command has ended; what it left behind may go on.
    fn over(&mut self) {
        self.0 = None;
    }

    fn signal(&self, signal: Signal) {
        let group = self.0.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            // It may have ended a moment ago.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Asks it and its children to end; makes them, if they do not.
    async fn end(&mut self, child: &mut Child, grace: Duration) {
        self.signal(Signal::TERM);
        // Not yet waited for by us in the end: its number stays its own until the group is killed.
        let ended = tokio::time::timeout(grace, child.wait()).await.is_ok();
        self.signal(Signal::KILL);
        if !ended {
            let _ = child.wait().await;
        }
        self.over();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Done,
    Again(String),
    /// What the command needs does not work, or the command itself is not there.
    Unavailable(String),
    Never(String),
}

/// The rule of the kind `exec`; but a command, or a service that it needs, which is not there is no fault of the message.
fn judge(status: ExitStatus) -> Judgement {
    let Some(code) = status.code() else {
        // "signal: 9 (SIGKILL)" and the like.
        return Judgement::Again(format!("ended by a {status}"));
    };
    let reason = format!("exit code {code}");
    match code {
        0 => Judgement::Done,
        // EX_UNAVAILABLE; and what a shell says of a program that it cannot run, or does not find.
        69 | 126 | 127 => Judgement::Unavailable(reason),
        75 => Judgement::Again(reason),
        64..=78 => Judgement::Never(reason),
        _ => Judgement::Again(reason),
    }
}

/// A failed command: the reason in the first line, then the end of what it wrote.
#[derive(Debug)]
struct Fault {
    reason: String,
    outputs: [(&'static str, String); 2],
}

impl std::fmt::Display for Fault {
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

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn exit_codes_are_judged_as_those_of_tasks() {
        let judged = |code: i32| judge(ExitStatus::from_raw(code << 8));
        assert_eq!(judged(0), Judgement::Done);
        for code in [1, 2, 63, 75, 79, 124, 125, 128, 255] {
            assert_eq!(judged(code), Judgement::Again(format!("exit code {code}")));
        }
        for code in [69, 126, 127] {
            assert_eq!(judged(code), Judgement::Unavailable(format!("exit code {code}")));
        }
        for code in [64, 65, 68, 70, 74, 76, 78] {
            assert_eq!(judged(code), Judgement::Never(format!("exit code {code}")));
        }
        assert_eq!(
            judge(ExitStatus::from_raw(9)),
            Judgement::Again("ended by a signal: 9 (SIGKILL)".to_owned())
        );
    }

    #[tokio::test]
    async fn only_the_end_of_an_output_is_kept() {
        let tail = Tail::default();
        let long = format!("{}é{}", "x".repeat(TAIL), "y".repeat(TAIL - 1));
        tail.gather(Some(long.as_bytes())).await;
        assert_eq!(tail.text(), format!("…{}", "y".repeat(TAIL - 1)));
    }
}
