//! The worker and producer processes of a run: starts, kills, suspends, resumes and replaces them.
//!
//! Owns every process that the harness starts, and sends signals only to these. Dropping [`Processes`] kills those that
//! still run.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use gristmill_check::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::disk::Strace;
use crate::history;
use crate::paths::RunPaths;
use crate::{Error, ErrorContext};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Worker,
    Producer,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Producer => "producer",
        }
    }
}

struct Process {
    name: String,
    role: Role,
    child: Child,
}

pub(crate) struct Processes {
    paths: RunPaths,
    program: PathBuf,
    lease: Duration,
    rng: Rng,
    strace: Option<Strace>,
    running: Vec<Process>,
    started: u32,
    killed: Vec<(String, f64)>,
    self_killed: Vec<(String, f64)>,
    failed: Vec<FailedProcess>,
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

    /// Starts later processes without injected disk faults.
    pub(crate) fn stop_injecting(&mut self) {
        self.strace = None;
    }

    /// Starts processes of a role until `count` of them run. Returns the names of the new ones.
    pub(crate) fn fill(&mut self, role: Role, count: usize) -> Result<Vec<String>, Error> {
        self.reap()?;
        let mut new = Vec::new();
        while self.count(role) < count {
            new.push(self.start(role)?);
        }
        Ok(new)
    }

    pub(crate) fn count(&self, role: Role) -> usize {
        self.running.iter().filter(|process| process.role == role).count()
    }

    pub(crate) fn names(&self, role: Role) -> Vec<String> {
        self.running.iter().filter(|process| process.role == role).map(|process| process.name.clone()).collect()
    }

    /// Kills `count` random processes at one moment. Returns their names.
    pub(crate) fn kill(&mut self, role: Role, count: usize) -> Result<Vec<String>, Error> {
        self.reap()?;
        let mut victims = Vec::new();
        while victims.len() < count
            && let Some(victim) = self.pick(role)
        {
            victims.push(self.running.remove(victim));
        }
        // All are killed before any is waited for, so that none sees the others die.
        let killed_at = history::now();
        for victim in &mut victims {
            // It may have ended by itself since it was reaped.
            let _ = victim.child.kill();
        }
        for victim in &mut victims {
            victim.child.wait().context("cannot wait for a process")?;
            self.killed.push((victim.name.clone(), killed_at));
        }
        Ok(victims.into_iter().map(|victim| victim.name).collect())
    }

    /// Suspends a random process with SIGSTOP, as closing a laptop does. Returns its name, if one runs.
    pub(crate) fn suspend_one(&mut self, role: Role) -> Result<Option<String>, Error> {
        self.reap()?;
        let Some(chosen) = self.pick(role) else { return Ok(None) };
        let process = &self.running[chosen];
        signal(&process.child, Signal::STOP)?;
        Ok(Some(process.name.clone()))
    }

    /// Resumes a suspended process, if it still runs.
    pub(crate) fn resume(&self, name: &str) -> Result<(), Error> {
        let process = self.running.iter().find(|process| process.name == name);
        process.map_or(Ok(()), |process| signal(&process.child, Signal::CONT))
    }

    /// Waits until one of these processes is ready, all of them have ended, or `limit` has passed.
    pub(crate) fn wait_for_one(&mut self, names: &[String], limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        while start.elapsed() < limit {
            let alive = |name: &&String| self.running.iter().any(|process| process.name == **name);
            let ready = |name: &String| self.paths.ready_flag_of(name).exists();
            if names.iter().any(ready) || !names.iter().any(|name| alive(&name)) {
                return Ok(());
            }
            pause(Duration::from_millis(2));
            self.reap()?;
        }
        Ok(())
    }

    /// Closes the standard input of all processes of a role and waits until they have ended.
    pub(crate) fn stop_all(&mut self, role: Role) -> Result<(), Error> {
        for process in self.running.iter_mut().filter(|process| process.role == role) {
            drop(process.child.stdin.take());
        }
        let start = Instant::now();
        while self.count(role) > 0 {
            self.reap()?;
            if start.elapsed() > Duration::from_secs(30) {
                return Err(Error::System(format!("a {} did not stop within 30 s", role.name())));
            }
            pause(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the processes that ended by themselves with an error since the last call.
    pub(crate) fn take_failed(&mut self) -> Vec<FailedProcess> {
        std::mem::take(&mut self.failed)
    }

    /// Returns all processes that were killed, or killed themselves, with the earliest possible time of death.
    pub(crate) fn deaths(&self) -> impl Iterator<Item = (String, f64)> {
        self.killed.iter().chain(&self.self_killed).cloned()
    }

    pub(crate) fn summary(&self) -> String {
        let (started, killed, poisoned) = (self.started, self.killed.len(), self.self_killed.len());
        format!("{started} processes started, {killed} killed, {poisoned} killed by poison pills")
    }

    /// Returns the index of a random process of a role.
    fn pick(&mut self, role: Role) -> Option<usize> {
        let of_role: Vec<usize> = (0..self.running.len()).filter(|index| self.running[*index].role == role).collect();
        if of_role.is_empty() { None } else { Some(of_role[self.rng.usize(..of_role.len())]) }
    }

    fn start(&mut self, role: Role) -> Result<String, Error> {
        self.started += 1;
        let name = format!("{}{}", role.name(), self.started);
        let stderr =
            File::create(self.paths.stderr_of(&name)).context("cannot create a file for a process's standard error")?;
        let mut command = match &self.strace {
            Some(strace) => strace.wrap(&self.program, &self.paths, &name, &mut self.rng),
            None => Command::new(&self.program),
        };
        command.arg(role.name()).arg(self.paths.root()).arg(&name);
        command.args([self.rng.u64(..).to_string(), self.lease.as_millis().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr);
        let child = command.spawn().context(format!("cannot start a {}", role.name()))?;
        self.running.push(Process { name: name.clone(), role, child });
        Ok(name)
    }

    /// Removes processes that have ended by themselves.
    fn reap(&mut self) -> Result<(), Error> {
        let mut left = Vec::new();
        for mut process in std::mem::take(&mut self.running) {
            let ended = process.child.try_wait();
            match ended.context("cannot wait for a process")? {
                None => left.push(process),
                Some(status) => self.record_exit(&process, status),
            }
        }
        self.running = left;
        Ok(())
    }

    fn record_exit(&mut self, process: &Process, status: ExitStatus) {
        if status.signal() == Some(Signal::KILL.as_raw()) {
            // The time of death is unknown; it is at most one lease ago, because its lease still ran.
            self.self_killed.push((process.name.clone(), history::now() - self.lease.as_secs_f64()));
        } else if !status.success() {
            let stderr = std::fs::read_to_string(self.paths.stderr_of(&process.name)).unwrap_or_default();
            let last_line = stderr.lines().last().unwrap_or("no output").to_owned();
            self.failed.push(FailedProcess { name: process.name.clone(), last_line });
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.running {
            // Killing a process that has already ended fails, which is harmless.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

fn signal(child: &Child, signal: Signal) -> Result<(), Error> {
    // A process that has just killed itself is a zombie until it is reaped, and still accepts signals.
    kill_process(Pid::from_child(child), signal).context("cannot send a signal")
}

/// Sleeps for `time`; other processes send no signal that could be waited for instead.
pub(crate) fn pause(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::park_timeout(time - start.elapsed().min(time));
    }
}
