//! Runs `gristmill` commands as users do, to their end or with a fault.

use std::ffi::OsString;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Signal, geteuid};
use serde_json::Value;

use crate::faults::Fault;
use crate::process::{Process, ended_by};
use crate::{Error, ErrorContext};

/// User that commands run as instead of root, who could read every file.
const NOBODY_UID: u32 = 65_534;

/// Time that a command has to exit after a signal, and without one.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// Exit code after Ctrl-C.
pub(crate) const INTERRUPTED: Option<i32> = Some(130);

/// Number of commands that were started; names the files with their output.
static STARTED: AtomicU32 = AtomicU32::new(0);

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

#[derive(Clone)]
pub(crate) struct Cli {
    program: PathBuf,
    home: PathBuf,
    user: Option<u32>,
}

impl Cli {
    /// Links or copies the program into a folder where every user can run it. The default is `gristmill` in the folder
    /// of this program, where Cargo builds all programs of a workspace.
    pub(crate) fn new(program: Option<&Path>, home: &Path) -> Result<Self, Error> {
        let this = std::env::current_exe().context("cannot find the path of this program")?;
        let program = program.map_or_else(|| this.with_file_name("gristmill"), Path::to_path_buf);
        let copy = home.join("gristmill");
        let copied = std::fs::hard_link(&program, &copy).or_else(|_| std::fs::copy(&program, &copy).map(drop));
        copied.context(format!("cannot use {}; build it with `cargo build -p gristmill`", program.display()))?;
        Ok(Cli { program: copy, home: home.to_path_buf(), user: geteuid().is_root().then_some(NOBODY_UID) })
    }

    /// Makes the user of the commands the owner of a file or folder.
    pub(crate) fn chown(&self, path: &Path) -> Result<(), Error> {
        match self.user {
            Some(user) => chown(path, Some(user), Some(user)).context("cannot change the owner of a file"),
            None => Ok(()),
        }
    }

    /// Creates a folder that commands can write to.
    pub(crate) fn create_folder(&self, path: &Path) -> Result<(), Error> {
        std::fs::create_dir(path).context("cannot create a folder")?;
        self.chown(path)
    }

    /// Runs a command and waits for its exit.
    pub(crate) fn run(&self, db: &Path, args: &[OsString]) -> Result<CliExit, Error> {
        wait_for_exit(self.start(db, args, None)?, RUN_TIMEOUT)
    }

    /// Runs a command with a fault; a command that exits before its fault is left alone.
    pub(crate) fn run_with_fault(&self, db: &Path, args: &[OsString], fault: Fault) -> Result<CliExit, Error> {
        let mut process = self.start(db, args, Some(fault))?;
        let (time, signal) = match fault {
            Fault::KillAfter(time) => (time, Signal::KILL),
            Fault::InterruptAfter(time) => (time, Signal::INT),
            Fault::KillAtCall(..) | Fault::FailCall(..) => return wait_for_exit(process, RUN_TIMEOUT),
        };
        if process.wait(time)?.is_none() {
            process.signal(signal);
        }
        wait_for_exit(process, EXIT_TIMEOUT)
    }

    pub(crate) fn start(&self, db: &Path, args: &[OsString], fault: Option<Fault>) -> Result<Process, Error> {
        let name = format!("gristmill{}", STARTED.fetch_add(1, Ordering::Relaxed));
        Process::start(self.command(db, args, fault), &self.home, &name)
    }

    /// Returns a command that the caller starts. A fault at a system call is injected by strace; others are the
    /// caller's.
    pub(crate) fn command(&self, db: &Path, args: &[OsString], fault: Option<Fault>) -> Command {
        let mut command = Fault::command(fault, &self.program);
        command.arg("--db").arg(db).arg("--json").args(args);
        // Settings in the environment of the caller must not apply.
        command.env_clear().env("HOME", &self.home).current_dir(&self.home);
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.stdin(Stdio::null());
        command
    }
}

/// Waits for the exit of a command, and kills it after `limit`.
pub(crate) fn wait_for_exit(mut process: Process, limit: Duration) -> Result<CliExit, Error> {
    let Some(status) = process.wait(limit)? else {
        return Ok(CliExit::Failed { code: None, message: format!("still running after {limit:?}") });
    };
    let exit = parse_exit(status, &process);
    process.remove_output();
    Ok(exit)
}

fn parse_exit(status: ExitStatus, process: &Process) -> CliExit {
    if [Signal::KILL, Signal::INT].into_iter().any(|signal| ended_by(status, signal)) {
        return CliExit::Killed;
    }
    let failed = |message: String| CliExit::Failed { code: status.code(), message };
    match (status.success(), serde_json::from_slice::<Value>(&process.stdout())) {
        (true, Ok(value)) => CliExit::Done(value),
        // A scan that could not read some files exits with 1 and has scanned the others.
        (false, Ok(value)) if status.code() == Some(1) && value.get("error_samples").is_some() => CliExit::Done(value),
        (true, Err(error)) => failed(format!("output is not JSON: {error}")),
        (false, _) => failed(format!("{status}: {}", process.last_line())),
    }
}
