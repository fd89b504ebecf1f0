//! `gristmill` as users run it: to its end, or killed on the way.
//!
//! Owns the processes, and the moments at which they are killed.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::chown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};
use serde_json::Value;

use crate::crew::pause;
use crate::{OrTrouble, Trouble};

/// Somebody who may not read everything: root may, and then nothing would be unreadable.
const NOBODY: u32 = 65_534;

/// When a scan is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    After(Duration),
    /// As it is about to make a call of this name for the n-th time.
    Call(&'static str, u64),
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blow::After(time) => write!(f, "after {} ms", time.as_millis()),
            Blow::Call(name, number) => write!(f, "at {name} {number}"),
        }
    }
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ended {
    Killed,
    Done(Value),
    /// With an exit code that it should not have had; says what it said.
    Failed(String),
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

    /// Runs a command and kills it, if it is still there by then.
    pub(crate) fn strike(&self, database: &Path, words: &[OsString], blow: Blow) -> Result<Ended, Trouble> {
        let begin = match blow {
            Blow::After(_) => Command::new(&self.program),
            Blow::Call(name, number) => {
                let mut strace = Command::new("strace");
                strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={name}")]);
                strace.args(["-e", &format!("inject={name}:signal=KILL:when={number}")]);
                strace.arg(&self.program);
                strace
            }
        };
        let start = Instant::now();
        let child = self.command(begin, database, words).spawn();
        let mut child = child.or_trouble("cannot start gristmill")?;
        if let Blow::After(time) = blow {
            while start.elapsed() < time {
                if child.try_wait().or_trouble("lost sight of a process")?.is_some() {
                    break;
                }
                pause((time - start.elapsed().min(time)).min(Duration::from_millis(2)));
            }
            // One that has ended by itself is as good.
            let _ = child.kill();
        }
        child.wait_with_output().or_trouble("lost sight of a process").map(|output| ended(&output))
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

fn ended(output: &Output) -> Ended {
    if output.status.signal() == Some(Signal::KILL.as_raw()) {
        return Ended::Killed;
    }
    let said = || {
        let words = String::from_utf8_lossy(&output.stderr);
        format!("{}: {}", output.status, words.lines().last().unwrap_or("no word"))
    };
    match (output.status.success(), serde_json::from_slice(&output.stdout)) {
        (true, Ok(value)) => Ended::Done(value),
        (true, Err(error)) => Ended::Failed(format!("no JSON: {error}")),
        (false, _) => Ended::Failed(said()),
    }
}
