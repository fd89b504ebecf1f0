//! The worker and producer processes of a run: starts, kills, suspends, resumes and replaces them.

use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use clap::ValueEnum;
use gristmill_check::Rng;
use rustix::process::Signal;

use super::history;
use super::paths::RunPaths;
use crate::disk::Strace;
use crate::harness::Named;
use crate::process::{Process, ended_by, wait_until};
use crate::{Error, ErrorContext};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Worker,
    Producer,
}

pub(crate) struct Processes {
    paths: RunPaths,
    program: PathBuf,
    lease: Duration,
    rng: Rng,
    /// Injects disk faults into the processes that are started, if any.
    pub(crate) strace: Option<Strace>,
    running: Vec<(Role, Process)>,
    started: u32,
    killed: Vec<(String, f64)>,
    self_killed: Vec<(String, f64)>,
    pub(crate) failed: Vec<FailedProcess>,
}

/// A process that ended by itself with an error.
pub(crate) struct FailedProcess {
    pub(crate) name: String,
    pub(crate) last_line: String,
}

impl Processes {
    /// Creates an empty set. With `strace`, disk operations of all processes fail at times.
    pub(crate) fn new(paths: &RunPaths, lease: Duration, seed: u64, strace: Option<Strace>) -> Result<Self, Error> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        Ok(Processes {
            paths: paths.clone(),
            program,
            lease,
            rng: Rng::new(seed),
            strace,
            running: Vec::new(),
            started: 0,
            killed: Vec::new(),
            self_killed: Vec::new(),
            failed: Vec::new(),
        })
    }

    /// Starts processes of a role until `count` of them run. Returns the names of the new ones.
    pub(crate) fn fill(&mut self, role: Role, count: usize) -> Result<Vec<String>, Error> {
        self.reap()?;
        let mut new = Vec::new();
        while self.names(role).len() < count {
            new.push(self.start(role)?);
        }
        Ok(new)
    }

    pub(crate) fn names(&self, role: Role) -> Vec<String> {
        self.of(role).map(|index| self.running[index].1.name.clone()).collect()
    }

    /// Kills `count` random processes at one moment. Returns their names.
    pub(crate) fn kill(&mut self, role: Role, count: usize) -> Result<Vec<String>, Error> {
        self.reap()?;
        let mut victims = Vec::new();
        while victims.len() < count
            && let Some(victim) = self.pick(role)
        {
            victims.push(self.running.remove(victim).1);
        }
        // All are killed before any is waited for, so that none sees the others die.
        let killed_at = history::now();
        victims.iter().for_each(|victim| victim.signal(Signal::KILL));
        for victim in &mut victims {
            victim.kill()?;
            self.killed.push((victim.name.clone(), killed_at));
        }
        Ok(victims.iter().map(|victim| victim.name.clone()).collect())
    }

    /// Suspends a random process with SIGSTOP, as closing a laptop does. Returns its name, if one runs.
    pub(crate) fn suspend_one(&mut self, role: Role) -> Result<Option<String>, Error> {
        self.reap()?;
        let Some(chosen) = self.pick(role) else { return Ok(None) };
        let process = &self.running[chosen].1;
        process.signal(Signal::STOP);
        Ok(Some(process.name.clone()))
    }

    /// Resumes a suspended process, if it still runs.
    pub(crate) fn resume(&self, name: &str) {
        self.running.iter().filter(|(_, process)| process.name == name).for_each(|(_, it)| it.signal(Signal::CONT));
    }

    /// Waits until one of these processes is ready, all of them have ended, or `limit` has passed.
    pub(crate) fn wait_for_one(&mut self, names: &[String], limit: Duration) -> Result<(), Error> {
        wait_until(limit, || {
            self.reap()?;
            let alive = |name: &String| self.running.iter().any(|(_, process)| process.name == *name);
            Ok(names.iter().any(|name| self.paths.ready_flag_of(name).exists()) || !names.iter().any(alive))
        })
        .map(drop)
    }

    /// Closes the standard input of all processes of a role and waits until they have ended.
    pub(crate) fn stop_all(&mut self, role: Role) -> Result<(), Error> {
        self.running.iter_mut().filter(|(it, _)| *it == role).for_each(|(_, process)| process.close_stdin());
        let stopped = wait_until(Duration::from_secs(30), || {
            self.reap()?;
            Ok(self.names(role).is_empty())
        })?;
        if stopped { Ok(()) } else { Err(Error::System(format!("a {} did not stop within 30 s", role.name()))) }
    }

    /// Returns all processes that were killed, or killed themselves, with the earliest possible time of death.
    pub(crate) fn deaths(&self) -> impl Iterator<Item = (String, f64)> {
        self.killed.iter().chain(&self.self_killed).cloned()
    }

    pub(crate) fn summary(&self) -> String {
        let (started, killed, poisoned) = (self.started, self.killed.len(), self.self_killed.len());
        format!("{started} processes started, {killed} killed, {poisoned} killed by poison pills")
    }

    /// Returns the indexes of the processes of a role.
    fn of(&self, role: Role) -> impl Iterator<Item = usize> {
        (0..self.running.len()).filter(move |index| self.running[*index].0 == role)
    }

    /// Returns the index of a random process of a role.
    fn pick(&mut self, role: Role) -> Option<usize> {
        let of_role: Vec<usize> = self.of(role).collect();
        self.rng.choice(of_role)
    }

    fn start(&mut self, role: Role) -> Result<String, Error> {
        self.started += 1;
        let name = format!("{}{}", role.name(), self.started);
        let mut command = match &self.strace {
            Some(strace) => {
                let (files, log) = ([self.paths.database(), self.paths.wal()], self.paths.strace_log_of(&name));
                strace.fail_at_times(&self.program, &files, &log, &mut self.rng)
            }
            None => Command::new(&self.program),
        };
        command.arg(role.name()).arg(&self.paths.0).arg(&name).stdin(Stdio::piped());
        command.args([self.rng.u64(..).to_string(), self.lease.as_millis().to_string()]);
        self.running.push((role, Process::start(command, &self.paths.0, &name)?));
        Ok(name)
    }

    /// Removes processes that have ended by themselves.
    fn reap(&mut self) -> Result<(), Error> {
        for (role, mut process) in std::mem::take(&mut self.running) {
            match process.try_wait()? {
                None => self.running.push((role, process)),
                Some(status) => self.record_exit(&process, status),
            }
        }
        Ok(())
    }

    fn record_exit(&mut self, process: &Process, status: ExitStatus) {
        let name = process.name.clone();
        if ended_by(status, Signal::KILL) {
            // The time of death is unknown; it is at most one lease ago, because its lease still ran.
            self.self_killed.push((name, history::now() - self.lease.as_secs_f64()));
        } else if !status.success() {
            self.failed.push(FailedProcess { name, last_line: process.last_line() });
        }
    }
}
