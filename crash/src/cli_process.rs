//! Runs `gristmill` commands as users do, to their end or with a fault.
//!
//! Owns the processes, and how faults are injected into them.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::chown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

use crate::processes::pause;
use crate::{Error, ErrorContext};

/// User that commands run as instead of root, who could read every file.
const NOBODY_UID: u32 = 65_534;

/// Time that a command has to exit after a signal.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Fault that is injected into a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillAfter(Duration),
    /// Kill at the n-th system call of one of these names.
    KillAtCall(&'static str, u64),
    /// The n-th system call of one of these names fails with EIO.
    FailCall(&'static str, u64),
    /// SIGINT (Ctrl-C) after this time.
    InterruptAfter(Duration),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::KillAfter(time) => write!(f, "kill after {} ms", time.as_millis()),
            Fault::KillAtCall(name, number) => write!(f, "kill at {name} {number}"),
            Fault::FailCall(name, number) => write!(f, "failure of {name} {number}"),
            Fault::InterruptAfter(time) => write!(f, "Ctrl-C after {} ms", time.as_millis()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CliExit {
    /// Ended by SIGKILL, or by SIGINT before it handled the signal.
    Killed,
    Done(Value),
    /// Failed with this exit code, if any; `message` is its last line on standard error.
    Failed {
        code: Option<i32>,
        message: String,
    },
}

impl CliExit {
    /// Returns the JSON output of a command that ran without faults.
    pub(crate) fn expect_done(self) -> Result<Value, Error> {
        match self {
            CliExit::Done(value) => Ok(value),
            other => Err(Error::System(format!("gristmill failed without a fault: {other:?}"))),
        }
    }
}

/// Exit code after Ctrl-C.
pub(crate) const INTERRUPTED: Option<i32> = Some(130);

/// Returns the path of `gristmill` in the folder of this program; Cargo builds all programs of a workspace there.
pub(crate) fn default_program() -> Result<PathBuf, Error> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(program.with_file_name("gristmill"))
}

pub(crate) struct Cli {
    program: PathBuf,
    home: PathBuf,
    user: Option<u32>,
}

impl Cli {
    /// Links or copies the program into a folder where every user can run it.
    pub(crate) fn new(program: &Path, home: &Path) -> Result<Self, Error> {
        let copy = home.join("gristmill");
        let copied = std::fs::hard_link(program, &copy).or_else(|_| std::fs::copy(program, &copy).map(drop));
        copied.context(format!("cannot use {}; build it with `cargo build -p gristmill`", program.display()))?;
        let cli = Cli { program: copy, home: home.to_path_buf(), user: geteuid().is_root().then_some(NOBODY_UID) };
        Ok(cli)
    }

    /// Makes the user of the commands the owner of a file or folder.
    pub(crate) fn chown(&self, path: &Path) -> Result<(), Error> {
        match self.user {
            Some(user) => chown(path, Some(user), Some(user)).context("cannot change the owner of a file"),
            None => Ok(()),
        }
    }

    /// Runs a command and waits for its exit.
    pub(crate) fn run(&self, db: &Path, args: &[OsString]) -> Result<CliExit, Error> {
        let output = self.configure(Command::new(&self.program), db, args).output();
        output.context("cannot start gristmill").map(|output| parse_exit(&output))
    }

    pub(crate) fn start(&self, db: &Path, args: &[OsString]) -> Result<Child, Error> {
        self.configure(Command::new(&self.program), db, args).spawn().context("cannot start gristmill")
    }

    /// Runs a command with a fault; a command that exits before its fault is left alone.
    pub(crate) fn run_with_fault(&self, db: &Path, args: &[OsString], fault: Fault) -> Result<CliExit, Error> {
        let (time, signal) = match fault {
            Fault::KillAfter(time) => (time, Signal::KILL),
            Fault::InterruptAfter(time) => (time, Signal::INT),
            Fault::KillAtCall(name, number) => {
                return self.run_traced(db, args, name, &format!("signal=KILL:when={number}"));
            }
            Fault::FailCall(name, number) => {
                return self.run_traced(db, args, name, &format!("error=EIO:when={number}"));
            }
        };
        let start = Instant::now();
        let mut child = self.start(db, args)?;
        while start.elapsed() < time && !has_exited(&mut child)? {
            pause((time - start.elapsed().min(time)).min(Duration::from_millis(2)));
        }
        if !has_exited(&mut child)? {
            kill_process(Pid::from_child(&child), signal).context("cannot send a signal")?;
        }
        wait_for_exit(child)
    }

    /// Returns a command that the caller starts; `kill_at` kills it at the n-th system call of one of these names.
    pub(crate) fn command(&self, db: &Path, args: &[OsString], kill_at: Option<(&str, u64)>) -> Command {
        let command = match kill_at {
            Some((name, number)) => self.strace(name, &format!("signal=KILL:when={number}")),
            None => Command::new(&self.program),
        };
        self.configure(command, db, args)
    }

    /// Runs a command with an injection into system calls of this name.
    fn run_traced(&self, db: &Path, args: &[OsString], name: &str, injection: &str) -> Result<CliExit, Error> {
        let output = self.configure(self.strace(name, injection), db, args).output();
        output.context("cannot start gristmill").map(|output| parse_exit(&output))
    }

    fn strace(&self, name: &str, injection: &str) -> Command {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={name}")]);
        strace.args(["-e", &format!("inject={name}:{injection}")]).arg(&self.program);
        strace
    }

    fn configure(&self, mut command: Command, db: &Path, args: &[OsString]) -> Command {
        command.arg("--db").arg(db).arg("--json").args(args);
        // Settings in the environment of the caller must not apply.
        command.env_clear().env("HOME", &self.home).current_dir(&self.home);
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn has_exited(child: &mut Child) -> Result<bool, Error> {
    child.try_wait().map(|status| status.is_some()).context("cannot wait for a process")
}

/// Waits for the exit of a command, and kills it after a timeout of 5 s.
pub(crate) fn wait_for_exit(mut child: Child) -> Result<CliExit, Error> {
    let start = Instant::now();
    while !has_exited(&mut child)? {
        if start.elapsed() > EXIT_TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(CliExit::Failed { code: None, message: format!("still running after {EXIT_TIMEOUT:?}") });
        }
        pause(Duration::from_millis(2));
    }
    child.wait_with_output().context("cannot wait for a process").map(|output| parse_exit(&output))
}

fn parse_exit(output: &Output) -> CliExit {
    let signals = [Signal::KILL, Signal::INT].map(|signal| Some(signal.as_raw()));
    if signals.contains(&output.status.signal()) {
        return CliExit::Killed;
    }
    let failed = |message: String| CliExit::Failed { code: output.status.code(), message };
    match (output.status.success(), serde_json::from_slice::<Value>(&output.stdout)) {
        (true, Ok(value)) => CliExit::Done(value),
        // A scan that could not read some files exits with 1 and has scanned the others.
        (false, Ok(value)) if output.status.code() == Some(1) && value.get("error_samples").is_some() => {
            CliExit::Done(value)
        }
        (true, Err(error)) => failed(format!("output is not JSON: {error}")),
        (false, _) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            failed(format!("{}: {}", output.status, stderr.lines().last().unwrap_or("no output")))
        }
    }
}
