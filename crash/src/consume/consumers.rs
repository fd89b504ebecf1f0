//! Consumer processes: reads their output.

use serde_json::Value;

use crate::faults::Fault;
use crate::process::Process;

/// Text on standard error that shows that a consumer has started to consume.
const STARTED_MARKER: &str = "consuming ";

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
