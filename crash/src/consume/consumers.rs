//! Consumer processes: starts them and reads their output.

use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::Value;

use crate::Error;
use crate::cli::Cli;
use crate::faults::Fault;
use crate::process::Process;

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
    /// Starts a consumer, which may be killed at a system call.
    pub(crate) fn start(&mut self, extra: &[&str], fault: Option<Fault>) -> Result<Consumer, Error> {
        self.started += 1;
        // The command of `--exec` must be last.
        let mut args = self.args[..2].to_vec();
        args.extend(extra.iter().map(OsString::from));
        args.extend_from_slice(&self.args[2..]);
        let db = super::results::output_dir(&self.folder).join("own.db");
        let mut command = self.cli.command(&db, &args, fault);
        command.env("GRISTMILL_AMQP_URI", &self.uri);
        let process = Process::start(command, &self.folder, &format!("consumer{}", self.started))?;
        Ok(Consumer { process, fault })
    }
}

/// A consumer process.
pub(crate) struct Consumer {
    pub(crate) process: Process,
    /// Its fault at a system call, if it has one.
    pub(crate) fault: Option<Fault>,
}

impl Consumer {
    pub(crate) fn has_started(&self) -> bool {
        self.process.stderr().contains(STARTED_MARKER)
    }

    /// Returns whether it failed before it consumed, because the disk was full.
    pub(crate) fn failed_on_full_disk(&self) -> bool {
        !self.has_started() && self.process.last_line().contains("is full")
    }

    /// Returns whether the broker closed its channel after SIGTERM, because an acknowledgement came too late.
    pub(crate) fn lost_channel_while_stopping(&self) -> bool {
        let stderr = self.process.stderr();
        stderr.split_once("stopping: ").is_some_and(|(_, rest)| rest.contains("consuming was interrupted"))
    }

    /// Returns the summary that it printed as JSON, if any.
    pub(crate) fn summary(&self) -> Option<Value> {
        let value: Value = serde_json::from_slice(&self.process.stdout()).ok()?;
        Some(value["consumers"][0].clone())
    }

    /// Returns violations in its output: the password, or a panic.
    pub(crate) fn output_violations(&self, password: &str) -> Vec<String> {
        let (name, stderr) = (&self.process.name, self.process.stderr());
        let mut violations = Vec::new();
        if stderr.contains(password) || String::from_utf8_lossy(&self.process.stdout()).contains(password) {
            violations.push(format!("{name} printed the password"));
        }
        if let Some(line) = stderr.lines().find(|line| line.contains("panicked at")) {
            violations.push(format!("{name} panicked: {line}"));
        }
        violations
    }
}
