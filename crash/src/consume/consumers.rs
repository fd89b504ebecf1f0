//! Consumer processes: starts them, stops or kills them, and reads their output.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cli_process::Cli;
use crate::processes::pause;
use crate::{Error, ErrorContext};

/// Text on standard error that shows that a consumer has started to consume.
const STARTED_MARKER: &str = "consuming ";

/// Starts the consumers of a round.
pub(crate) struct ConsumerSpawner<'a> {
    pub(crate) cli: &'a Cli,
    pub(crate) folder: PathBuf,
    pub(crate) uri: String,
    pub(crate) args: Vec<OsString>,
    pub(crate) started: u32,
}

impl ConsumerSpawner<'_> {
    /// Database that `--db` names.
    pub(crate) fn own_db(&self) -> PathBuf {
        super::results::output_dir(&self.folder).join("own.db")
    }

    /// Starts a consumer; `kill_at` kills it at the n-th system call of one of these names.
    pub(crate) fn start(
        &mut self,
        extra: &[&str],
        kill_at: Option<(&'static str, u64)>,
    ) -> Result<ConsumerProcess, Error> {
        self.started += 1;
        let path = |end: &str| self.folder.join(format!("consumer{}.{end}", self.started));
        let (out, err) = (path("out"), path("err"));
        let file = |path: &Path| File::create(path).context("cannot create a file");
        // The command of `--exec` must be last.
        let mut args = self.args[..2].to_vec();
        args.extend(extra.iter().map(OsString::from));
        args.extend_from_slice(&self.args[2..]);
        let mut command = self.cli.command(&self.own_db(), &args, kill_at);
        command.env("GRISTMILL_AMQP_URI", &self.uri).stdout(file(&out)?).stderr(file(&err)?);
        let child = command.spawn().context("cannot start gristmill")?;
        let (number, started_at) = (self.started, Instant::now());
        Ok(ConsumerProcess { number, child, kill_at, out, err, started_at, exited: false })
    }
}

/// A consumer process. It is killed when it is dropped.
pub(crate) struct ConsumerProcess {
    pub(crate) number: u32,
    child: Child,
    /// System call at which strace kills it, if it runs under strace.
    pub(crate) kill_at: Option<(&'static str, u64)>,
    out: PathBuf,
    err: PathBuf,
    pub(crate) started_at: Instant,
    exited: bool,
}

impl ConsumerProcess {
    /// Returns its exit status, if it has ended.
    pub(crate) fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        let status = self.child.try_wait().context("cannot wait for a process")?;
        self.exited |= status.is_some();
        Ok(status)
    }

    /// Waits for its exit; `None` after the timeout.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, Error> {
        let start = Instant::now();
        loop {
            let status = self.try_wait()?;
            if status.is_some() || start.elapsed() > timeout {
                return Ok(status);
            }
            pause(Duration::from_millis(2));
        }
    }

    /// Sends SIGTERM, when strace has started the consumer.
    pub(crate) fn terminate(&mut self) -> Result<(), Error> {
        while self.pid().is_none() && self.try_wait()?.is_none() {
            pause(Duration::from_millis(2));
        }
        self.signal(Signal::TERM);
        Ok(())
    }

    /// Sends a signal, if the process runs.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // It may have ended a moment ago.
            let _ = kill_process(pid, signal);
        }
    }

    /// Returns the id of the consumer, which under strace is a child of the started process.
    fn pid(&self) -> Option<Pid> {
        let child_pid = Pid::from_child(&self.child);
        if self.kill_at.is_none() {
            return Some(child_pid);
        }
        let child_pid = child_pid.as_raw_nonzero();
        let children = std::fs::read_to_string(format!("/proc/{child_pid}/task/{child_pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok().and_then(Pid::from_raw)
    }

    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        while self.try_wait()?.is_none() && start.elapsed() < Duration::from_secs(5) {
            self.signal(Signal::KILL);
            pause(Duration::from_millis(2));
        }
        Ok(())
    }

    pub(crate) fn stderr(&self) -> String {
        let bytes = std::fs::read(&self.err).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn has_started(&self) -> bool {
        self.stderr().contains(STARTED_MARKER)
    }

    /// Returns whether it failed before it consumed, because the disk was full.
    pub(crate) fn failed_on_full_disk(&self) -> bool {
        !self.has_started() && self.last_line().contains("is full")
    }

    /// Returns whether the broker closed its channel after SIGTERM, because an acknowledgement came too late.
    pub(crate) fn lost_channel_while_stopping(&self) -> bool {
        let stderr = self.stderr();
        stderr.split_once("stopping: ").is_some_and(|(_, rest)| rest.contains("consuming was interrupted"))
    }

    /// Returns the summary that it printed as JSON, if any.
    pub(crate) fn summary(&self) -> Option<Value> {
        let value: Value = serde_json::from_slice(&std::fs::read(&self.out).ok()?).ok()?;
        Some(value["consumers"][0].clone())
    }

    /// Returns violations in its output: the password, or a panic.
    pub(crate) fn output_violations(&self, password: &str) -> Vec<String> {
        let stderr = self.stderr();
        let out = std::fs::read_to_string(&self.out).unwrap_or_default();
        let line = |text: &str| stderr.lines().find(|line| line.contains(text)).map(str::to_owned);
        let mut violations = Vec::new();
        if stderr.contains(password) || out.contains(password) {
            violations.push(format!("consumer {} printed the password", self.number));
        }
        if let Some(line) = line("panicked at") {
            violations.push(format!("consumer {} panicked: {line}", self.number));
        }
        violations
    }

    pub(crate) fn last_line(&self) -> String {
        self.stderr().lines().last().unwrap_or("no output").to_owned()
    }
}

impl Drop for ConsumerProcess {
    fn drop(&mut self) {
        if !self.exited {
            self.signal(Signal::KILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub(crate) fn ended_by(status: ExitStatus, signal: Signal) -> bool {
    status.signal() == Some(signal.as_raw())
}
