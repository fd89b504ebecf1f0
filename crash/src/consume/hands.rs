//! Consumers: real processes, what they are told on the command line, how they are killed, and what they said.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::crew::pause;
use crate::mill::Mill;
use crate::{OrTrouble, Trouble};

/// What they say on standard error when they have begun.
const BEGUN: &str = "consuming ";

/// Where consumers of a round work, and as what.
pub(crate) struct Yard<'a> {
    pub(crate) mill: &'a Mill,
    pub(crate) folder: PathBuf,
    pub(crate) uri: String,
    pub(crate) words: Vec<OsString>,
    pub(crate) started: u32,
}

impl Yard<'_> {
    /// Gristmill's own database.
    pub(crate) fn own(&self) -> PathBuf {
        super::books::disk(&self.folder).join("own.db")
    }

    /// Starts a consumer; killed at the n-th call of one of these names, if that is wanted.
    pub(crate) fn start(&mut self, more: &[&str], at: Option<(&'static str, u64)>) -> Result<Hand, Trouble> {
        self.started += 1;
        let path = |end: &str| self.folder.join(format!("hand{}.{end}", self.started));
        let (out, err) = (path("out"), path("err"));
        let file = |path: &Path| File::create(path).or_trouble("cannot make a file");
        // A command of `--exec` is the last on the line.
        let mut words = self.words[..2].to_vec();
        words.extend(more.iter().map(OsString::from));
        words.extend_from_slice(&self.words[2..]);
        let mut command = self.mill.prepared(&self.own(), &words, at);
        command.env("GRISTMILL_AMQP_URI", &self.uri).stdout(file(&out)?).stderr(file(&err)?);
        let child = command.spawn().or_trouble("cannot start gristmill")?;
        Ok(Hand { number: self.started, child, at, out, err, since: Instant::now(), ended: false })
    }
}

/// A process that consumes. Killed when it is dropped.
pub(crate) struct Hand {
    pub(crate) number: u32,
    child: Child,
    /// It runs under strace, and is killed at this call.
    pub(crate) at: Option<(&'static str, u64)>,
    out: PathBuf,
    err: PathBuf,
    pub(crate) since: Instant,
    ended: bool,
}

impl Hand {
    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, Trouble> {
        let status = self.child.try_wait().or_trouble("lost sight of a process")?;
        self.ended |= status.is_some();
        Ok(status)
    }

    /// Waits for its end; nothing, when that does not come.
    pub(crate) fn wait(&mut self, patience: Duration) -> Result<Option<ExitStatus>, Trouble> {
        let start = Instant::now();
        loop {
            let status = self.ended()?;
            if status.is_some() || start.elapsed() > patience {
                return Ok(status);
            }
            pause(Duration::from_millis(2));
        }
    }

    /// Tells it to end.
    pub(crate) fn tell(&mut self) -> Result<(), Trouble> {
        // One that strace has not started yet has no number.
        while self.id().is_none() && self.ended()?.is_none() {
            pause(Duration::from_millis(2));
        }
        self.signal(Signal::TERM);
        Ok(())
    }

    /// Sends a signal, if there is somebody to get it.
    fn signal(&self, signal: Signal) {
        if let Some(id) = self.id() {
            // It may have ended a moment ago.
            let _ = kill_process(id, signal);
        }
    }

    /// The process itself, which under strace is a child of ours.
    fn id(&self) -> Option<Pid> {
        let ours = Pid::from_child(&self.child);
        if self.at.is_none() {
            return Some(ours);
        }
        let ours = ours.as_raw_nonzero();
        let children = std::fs::read_to_string(format!("/proc/{ours}/task/{ours}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok().and_then(Pid::from_raw)
    }

    pub(crate) fn kill(&mut self) -> Result<(), Trouble> {
        let start = Instant::now();
        while self.ended()?.is_none() && start.elapsed() < Duration::from_secs(5) {
            self.signal(Signal::KILL);
            pause(Duration::from_millis(2));
        }
        Ok(())
    }

    /// What it said on standard error.
    pub(crate) fn said(&self) -> String {
        let bytes = std::fs::read(&self.err).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.said().contains(BEGUN)
    }

    /// Whether it ended before it had begun, because the disk for its database was full.
    pub(crate) fn found_full_disk(&self) -> bool {
        !self.has_begun() && self.last_word().contains("is full")
    }

    /// Whether the broker closed its channel after SIGTERM, because an acknowledgement came too late.
    pub(crate) fn lost_channel_while_stopping(&self) -> bool {
        let said = self.said();
        said.split_once("stopping: ").is_some_and(|(_, rest)| rest.contains("consuming was interrupted"))
    }

    /// What it said in the end.
    pub(crate) fn summary(&self) -> Option<Value> {
        let value: Value = serde_json::from_slice(&std::fs::read(&self.out).ok()?).ok()?;
        Some(value["consumers"][0].clone())
    }

    /// What must never be said.
    pub(crate) fn blunders(&self, password: &str) -> Vec<String> {
        let said = self.said();
        let out = std::fs::read_to_string(&self.out).unwrap_or_default();
        let line = |words: &str| said.lines().find(|line| line.contains(words)).map(str::to_owned);
        let mut blunders = Vec::new();
        if said.contains(password) || out.contains(password) {
            blunders.push(format!("consumer {} has told the password", self.number));
        }
        if let Some(line) = line("panicked at") {
            blunders.push(format!("consumer {} panicked: {line}", self.number));
        }
        blunders
    }

    /// The last that it said, in a line.
    pub(crate) fn last_word(&self) -> String {
        self.said().lines().last().unwrap_or("no word").to_owned()
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        if !self.ended {
            self.signal(Signal::KILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether it was ended by this signal.
pub(crate) fn ended_by(status: ExitStatus, signal: Signal) -> bool {
    status.signal() == Some(signal.as_raw())
}
