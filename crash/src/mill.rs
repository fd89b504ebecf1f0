//! `gristmill` as users run it: to its end, or killed on the way.
//!
//! Owns the processes, and the moments at which they are killed or told to end.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::chown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

use crate::crew::pause;
use crate::{OrTrouble, Trouble};

/// Somebody who may not read everything: root may, and then nothing would be unreadable.
const NOBODY: u32 = 65_534;

/// How long a program may take to end when it is told to.
const PATIENCE: Duration = Duration::from_secs(5);

/// When a process is killed, or told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    After(Duration),
    /// At the n-th call of one of these names.
    Call(&'static str, u64),
    /// The n-th call of one of these names fails, as on a bad disk.
    Fault(&'static str, u64),
    /// Ctrl-C after so long.
    Interrupt(Duration),
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blow::After(time) => write!(f, "after {} ms", time.as_millis()),
            Blow::Call(name, number) => write!(f, "at {name} {number}"),
            Blow::Fault(name, number) => write!(f, "by a failing {name} {number}"),
            Blow::Interrupt(time) => write!(f, "by Ctrl-C after {} ms", time.as_millis()),
        }
    }
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ended {
    /// By a signal of ours, before it could do anything about it.
    Killed,
    Done(Value),
    /// With another exit code, or none; says what it said.
    Failed {
        code: Option<i32>,
        said: String,
    },
}

impl Ended {
    /// What nobody disturbs succeeds.
    pub(crate) fn done(self) -> Result<Value, Trouble> {
        match self {
            Ended::Done(value) => Ok(value),
            other => Err(Trouble::System(format!("undisturbed, gristmill ended so: {other:?}"))),
        }
    }
}

/// The exit code after Ctrl-C.
pub(crate) const INTERRUPTED: Option<i32> = Some(130);

/// Cargo puts all programs of a workspace into one folder.
pub(crate) fn beside_us() -> Result<PathBuf, Trouble> {
    let us = std::env::current_exe().or_trouble("cannot find myself")?;
    Ok(us.with_file_name("gristmill"))
}

pub(crate) struct Mill {
    program: PathBuf,
    home: PathBuf,
    user: Option<u32>,
}

impl Mill {
    /// Puts the program into a folder where everybody can run it.
    pub(crate) fn new(program: &Path, home: &Path) -> Result<Self, Trouble> {
        let copy = home.join("gristmill");
        let copied = std::fs::hard_link(program, &copy).or_else(|_| std::fs::copy(program, &copy).map(drop));
        copied
            .or_trouble(format!("cannot use {} (`cargo build -p gristmill` makes it)", program.display()))?;
        let mill =
            Mill { program: copy, home: home.to_path_buf(), user: geteuid().is_root().then_some(NOBODY) };
        Ok(mill)
    }

    /// Makes a file or folder one that the program can write.
    pub(crate) fn give(&self, path: &Path) -> Result<(), Trouble> {
        match self.user {
            Some(user) => chown(path, Some(user), Some(user)).or_trouble("cannot give a file away"),
            None => Ok(()),
        }
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, database: &Path, words: &[OsString]) -> Result<Ended, Trouble> {
        let output = self.command(Command::new(&self.program), database, words).output();
        output.or_trouble("cannot start gristmill").map(|output| ended(&output))
    }

    /// Starts a command.
    pub(crate) fn start(&self, database: &Path, words: &[OsString]) -> Result<Child, Trouble> {
        self.command(Command::new(&self.program), database, words)
            .spawn()
            .or_trouble("cannot start gristmill")
    }

    /// Runs a command and kills it, or tells it to end, if it is still there by then.
    pub(crate) fn strike(&self, database: &Path, words: &[OsString], blow: Blow) -> Result<Ended, Trouble> {
        let (time, signal) = match blow {
            Blow::After(time) => (time, Signal::KILL),
            Blow::Interrupt(time) => (time, Signal::INT),
            Blow::Call(name, number) => {
                return self.traced(database, words, name, &format!("signal=KILL:when={number}"));
            }
            Blow::Fault(name, number) => {
                return self.traced(database, words, name, &format!("error=EIO:when={number}"));
            }
        };
        let start = Instant::now();
        let mut child = self.start(database, words)?;
        while start.elapsed() < time && !is_gone(&mut child)? {
            pause((time - start.elapsed().min(time)).min(Duration::from_millis(2)));
        }
        // One that has ended by itself is as good.
        if !is_gone(&mut child)? {
            kill_process(Pid::from_child(&child), signal).or_trouble("cannot send a signal")?;
        }
        end(child)
    }

    /// A command for somebody who starts it himself; killed at the n-th call of one of these names, if that is wanted.
    pub(crate) fn prepared(&self, database: &Path, words: &[OsString], at: Option<(&str, u64)>) -> Command {
        let begin = match at {
            Some((name, number)) => self.strace(name, &format!("signal=KILL:when={number}")),
            None => Command::new(&self.program),
        };
        self.command(begin, database, words)
    }

    /// Runs a command to which something happens at a call.
    fn traced(&self, database: &Path, words: &[OsString], name: &str, what: &str) -> Result<Ended, Trouble> {
        let output = self.command(self.strace(name, what), database, words).output();
        output.or_trouble("cannot start gristmill").map(|output| ended(&output))
    }

    fn strace(&self, name: &str, what: &str) -> Command {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={name}")]);
        strace.args(["-e", &format!("inject={name}:{what}")]).arg(&self.program);
        strace
    }

    fn command(&self, mut begin: Command, database: &Path, words: &[OsString]) -> Command {
        begin.arg("--db").arg(database).arg("--json").args(words);
        // Settings of whoever runs us are not meant.
        begin.env_clear().env("HOME", &self.home).current_dir(&self.home);
        begin.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        if let Some(user) = self.user {
            begin.uid(user).gid(user);
        }
        begin.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        begin
    }
}

fn is_gone(child: &mut Child) -> Result<bool, Trouble> {
    child.try_wait().map(|status| status.is_some()).or_trouble("lost sight of a process")
}

/// Waits for the end of a process that was told to end, or is known to.
pub(crate) fn end(mut child: Child) -> Result<Ended, Trouble> {
    let start = Instant::now();
    while !is_gone(&mut child)? {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(Ended::Failed { code: None, said: format!("still there after {PATIENCE:?}") });
        }
        pause(Duration::from_millis(2));
    }
    child.wait_with_output().or_trouble("lost sight of a process").map(|output| ended(&output))
}

fn ended(output: &Output) -> Ended {
    let signals = [Signal::KILL, Signal::INT].map(|signal| Some(signal.as_raw()));
    if signals.contains(&output.status.signal()) {
        return Ended::Killed;
    }
    let failed = |said: String| Ended::Failed { code: output.status.code(), said };
    match (output.status.success(), serde_json::from_slice::<Value>(&output.stdout)) {
        (true, Ok(value)) => Ended::Done(value),
        // A scan that could not read everything has done the rest.
        (false, Ok(value)) if output.status.code() == Some(1) && value.get("error_samples").is_some() => {
            Ended::Done(value)
        }
        (true, Err(error)) => failed(format!("no JSON: {error}")),
        (false, _) => {
            let words = String::from_utf8_lossy(&output.stderr);
            failed(format!("{}: {}", output.status, words.lines().last().unwrap_or("no word")))
        }
    }
}
