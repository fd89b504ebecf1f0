//! A child process with its output in files, and waiting for what other processes do.
//!
//! Owns the processes that the harness starts: dropping a [`Process`] kills it, and signals are sent only to these.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Error, ErrorContext};

/// Time after which a process that was killed must have ended.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) started_at: Instant,
    child: Child,
    /// Whether the child is strace, and the process its child.
    traced: bool,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts a command. Its output goes to the files `NAME.out` and `NAME.err` in `folder`.
    pub(crate) fn start(mut command: Command, folder: &Path, name: &str) -> Result<Self, Error> {
        let [stdout, stderr] = ["out", "err"].map(|end| folder.join(format!("{name}.{end}")));
        let create = |path: &Path| File::create(path).context("cannot create a file for the output of a process");
        command.stdout(create(&stdout)?).stderr(create(&stderr)?);
        let traced = command.get_program() == "strace";
        let child = command.spawn().context(format!("cannot start {name}"))?;
        Ok(Process { name: name.to_owned(), started_at: Instant::now(), child, traced, stdout, stderr })
    }

    /// Returns its exit status, if it has ended.
    pub(crate) fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child.try_wait().context("cannot wait for a process")
    }

    /// Waits for its exit; `None` after `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, Error> {
        wait_until(limit, || Ok(self.try_wait()?.is_some()))?;
        self.try_wait()
    }

    /// Closes its standard input, which asks workers and producers to stop.
    pub(crate) fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Sends a signal, if the process runs.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // It may have ended a moment ago.
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends SIGTERM, as soon as strace has started the process.
    pub(crate) fn terminate(&mut self) -> Result<(), Error> {
        wait_until(KILL_TIMEOUT, || Ok(self.pid().is_some() || self.try_wait()?.is_some()))?;
        self.signal(Signal::TERM);
        Ok(())
    }

    /// Kills the process and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        wait_until(KILL_TIMEOUT, || {
            self.signal(Signal::KILL);
            Ok(self.try_wait()?.is_some())
        })?;
        Ok(())
    }

    /// Returns the id of the process, which under strace is a child of the started process.
    fn pid(&self) -> Option<Pid> {
        let pid = Pid::from_child(&self.child);
        if !self.traced {
            return Some(pid);
        }
        let pid = pid.as_raw_nonzero();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok().and_then(Pid::from_raw)
    }

    pub(crate) fn stdout(&self) -> Vec<u8> {
        std::fs::read(&self.stdout).unwrap_or_default()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// Returns its last line on standard error.
    pub(crate) fn last_line(&self) -> String {
        self.stderr().lines().last().unwrap_or("no output").to_owned()
    }

    /// Removes the files with its output.
    pub(crate) fn remove_output(self) {
        for path in [&self.stdout, &self.stderr] {
            // A file that stays is removed with the folder of the run.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.signal(Signal::KILL);
            // Killing a process that has ended meanwhile fails, which is harmless.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns whether a process was ended by this signal.
pub(crate) fn ended_by(status: ExitStatus, signal: Signal) -> bool {
    status.signal() == Some(signal.as_raw())
}

/// Sleeps for `time`; other processes send no signal that could be waited for instead.
pub(crate) fn pause(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::park_timeout(time.saturating_sub(start.elapsed()));
    }
}

/// Waits until `happened` returns true, at most for `limit`. Returns whether it did.
pub(crate) fn wait_until(limit: Duration, mut happened: impl FnMut() -> Result<bool, Error>) -> Result<bool, Error> {
    let start = Instant::now();
    loop {
        if happened()? {
            return Ok(true);
        }
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        pause(left.min(Duration::from_millis(2)));
    }
}
