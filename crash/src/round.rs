//! Rounds that kill or suspend workers or fill their disk, and wait for the recovery.
//!
//! Owns the choice of victims and moments, and the measurement of recovery. Tests may not assert on time; this is a
//! command, and it checks that recovery takes at most two leases.

use std::path::Path;
use std::time::{Duration, Instant};

use gristmill_check::Rng;
use gristmill_store::Store;

use crate::args::{DiskFault, Settings};
use crate::disk::{self, SmallDisk};
use crate::effects::Log;
use crate::history::{self, HistoryReader, Recovery};
use crate::paths::RunPaths;
use crate::processes::{FailedProcess, Processes, Role, pause};
use crate::producer::new_task;
use crate::task_kinds::{Payload, TestKind};
use crate::{Error, ErrorContext};

/// Time beyond two leases that a busy machine may need to start and schedule a process.
const RECOVERY_SLACK: Duration = Duration::from_secs(1);

/// Number of concurrent workers.
const WORKERS: usize = 2;

/// Rounds from one poison pill to the next.
const POISON_INTERVAL: u32 = 12;

pub(crate) struct JobRounds<'a> {
    settings: &'a Settings,
    paths: &'a RunPaths,
    rng: Rng,
    pub(crate) processes: Processes,
    pub(crate) violations: Vec<String>,
    pub(crate) recoveries: Vec<Recovery>,
    pub(crate) poison_tasks: u32,
    /// Beginning and end of each suspension. The end includes one more lease, because a suspended worker may hold a
    /// lock that others wait for.
    pub(crate) suspensions: Vec<(f64, f64)>,
}

impl<'a> JobRounds<'a> {
    pub(crate) fn new(settings: &'a Settings, paths: &'a RunPaths, processes: Processes, seed: u64) -> Self {
        let rng = Rng::new(seed);
        JobRounds {
            settings,
            paths,
            rng,
            processes,
            violations: Vec::new(),
            recoveries: Vec::new(),
            poison_tasks: 0,
            suspensions: Vec::new(),
        }
    }

    /// Runs the rounds that kill or suspend processes.
    pub(crate) fn run_kills(&mut self) -> Result<(), Error> {
        let can_suspend = self.settings.fault == DiskFault::None;
        for round in 1..=self.settings.rounds {
            self.processes.fill(Role::Worker, WORKERS)?;
            self.processes.fill(Role::Producer, 1)?;
            if can_suspend && round % POISON_INTERVAL == POISON_INTERVAL / 2 {
                self.enqueue_poison(round)?;
            }
            match self.rng.u64(0..10) {
                0..5 => self.kill(round, WORKERS)?,
                5..8 => self.kill(round, 1)?,
                _ if can_suspend => self.suspend_one(round)?,
                _ => self.kill(round, WORKERS)?,
            }
            self.check_failed_processes();
        }
        Ok(())
    }

    /// Kills workers, in half of the rounds also the producer, then waits until other workers have their tasks.
    fn kill(&mut self, round: u32, count: usize) -> Result<(), Error> {
        // In 20% of the rounds while they start, open the database and claim, otherwise while they run tasks.
        let delay = if self.rng.percent(20) { self.rng.millis(0..30) } else { self.rng.millis(30..400) };
        pause(delay);
        let with_producer = self.rng.percent(50);
        let killed_at = history::now();
        let killed = self.processes.kill(Role::Worker, count)?;
        if with_producer {
            self.processes.kill(Role::Producer, 1)?;
        }
        let new = self.processes.fill(Role::Worker, WORKERS)?;
        self.processes.wait_for_one(&new, self.settings.lease() * 20)?;
        let recovery = self.wait_for_recovery(&killed, killed_at)?;
        let victims = if count == 1 { "one worker" } else { "all workers" };
        let producer = if with_producer { " and the producer" } else { "" };
        let after = match recovery {
            Some(Recovery { orphans, first, last }) => format!(
                "{orphans} orphans; first reclaimed after {:.2} leases, last released after {:.2}",
                self.in_leases(first),
                self.in_leases(last)
            ),
            None => "no orphans".to_owned(),
        };
        println!("round {round:3}: killed {victims}{producer} after {:3} ms: {after}", delay.as_millis());
        Ok(())
    }

    /// Waits until no killed worker holds a task, and measures the time.
    fn wait_for_recovery(&mut self, killed: &[String], killed_at: f64) -> Result<Option<Recovery>, Error> {
        let start = Instant::now();
        let reader = HistoryReader::open(&self.paths.database())?;
        while reader.held_by(killed)? > 0 {
            if start.elapsed() > self.settings.lease() * 20 {
                self.violations.push(format!("{killed:?} still hold tasks 20 leases after they were killed"));
                return Ok(None);
            }
            pause(Duration::from_millis(5));
            // Replaces workers that a poison pill has killed meanwhile.
            self.processes.fill(Role::Worker, WORKERS)?;
        }
        let recovery = reader.recovery(killed, killed_at)?;
        if let Some(recovery) = recovery {
            self.recoveries.push(recovery);
            let limit = self.settings.lease() * 2 + RECOVERY_SLACK;
            // With injected failures, workers may wait before they retry.
            if self.settings.fault == DiskFault::None && recovery.first.max(recovery.last) > limit {
                self.violations.push(format!(
                    "recovery of the tasks of {killed:?} took {:?}, more than two leases",
                    recovery.last
                ));
            }
        }
        Ok(recovery)
    }

    /// Suspends a worker until its leases have expired, so that others have its tasks when it resumes.
    fn suspend_one(&mut self, round: u32) -> Result<(), Error> {
        pause(self.rng.millis(50..400));
        let lease = self.settings.lease_ms;
        let time = self.rng.millis(lease * 13 / 10..lease * 2);
        let Some(name) = self.processes.suspend_one(Role::Worker)? else { return Ok(()) };
        let from = history::now();
        pause(time);
        self.processes.resume(&name)?;
        self.suspensions.push((from, history::now() + self.settings.lease().as_secs_f64()));
        println!("round {round:3}: suspended a worker for {:.2} leases", self.in_leases(time));
        // Long enough for the worker to report its results and be refused.
        pause(self.settings.lease() / 2);
        Ok(())
    }

    /// Enqueues a task that kills its worker. It is logged as acknowledged, so it must exist at the end.
    fn enqueue_poison(&mut self, round: u32) -> Result<(), Error> {
        let key = format!("poison-{round}");
        let payload = Payload { key: key.clone(), millis: 0, padding: String::new() };
        let store = Store::open(self.paths.database()).context("cannot enqueue a poison pill")?;
        let id =
            store.tasks().enqueue(new_task(TestKind::Poison, &payload)).context("cannot enqueue a poison pill")?.id;
        let line = format!("{id} {} {key}", TestKind::Poison.name());
        let logged = Log::open(&self.paths.acks()).and_then(|log| log.append(&line));
        logged.context("cannot log a poison pill")?;
        self.poison_tasks += 1;
        Ok(())
    }

    /// Runs the rounds in which the disk is full for a while.
    pub(crate) fn run_full_disks(&mut self, disk: &SmallDisk) -> Result<(), Error> {
        for round in 1..=self.settings.rounds {
            self.processes.fill(Role::Worker, WORKERS)?;
            self.processes.fill(Role::Producer, 1)?;
            pause(self.rng.millis(100..500));
            self.full_disk(round, disk)?;
            self.check_failed_processes();
        }
        Ok(())
    }

    fn full_disk(&mut self, round: u32, disk: &SmallDisk) -> Result<(), Error> {
        let refused = lines(&self.paths.refusals());
        disk.fill()?;
        let full =
            self.wait_until("the disk was never full", |rounds| Ok(lines(&rounds.paths.refusals()) > refused))?;
        let time = self.rng.millis(0..self.settings.lease_ms * 3);
        pause(time);
        let killed = if self.rng.percent(50) { self.processes.kill(Role::Worker, 1)? } else { Vec::new() };
        let survivors = self.processes.names(Role::Worker);
        // The new worker opens the database while the disk is full.
        self.processes.fill(Role::Worker, WORKERS)?;
        pause(self.rng.millis(0..100));
        let refusals = lines(&self.paths.refusals()) - refused;
        disk.free()?;
        if !full {
            return Ok(());
        }
        // No process is started: those that met the full disk must continue.
        let (acks, done) = (lines(&self.paths.acks()), self.finished()?);
        let start = Instant::now();
        let continued = self.wait_until("no process continued after the disk had free space again", |rounds| {
            Ok(lines(&rounds.paths.acks()) > acks && rounds.finished()? > done)
        })?;
        let left = self.processes.names(Role::Worker);
        if survivors.iter().any(|name| !left.contains(name)) {
            self.violations.push(format!("of the workers {survivors:?} only {left:?} survived a full disk"));
        }
        println!(
            "round {round:3}: full for {} ms, {refusals} writes refused{}; {} after {} ms",
            time.as_millis(),
            if killed.is_empty() { "" } else { ", a worker killed meanwhile" },
            if continued { "work continued" } else { "STUCK" },
            start.elapsed().as_millis(),
        );
        Ok(())
    }

    fn finished(&self) -> Result<u64, Error> {
        HistoryReader::open(&self.paths.database())?.count(&["completed", "failed"])
    }

    /// Waits up to 20 s until `happened` returns true; otherwise adds the violation.
    fn wait_until(&mut self, otherwise: &str, happened: impl Fn(&Self) -> Result<bool, Error>) -> Result<bool, Error> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if happened(self)? {
                return Ok(true);
            }
            pause(Duration::from_millis(10));
        }
        self.violations.push(otherwise.to_owned());
        Ok(false)
    }

    /// Lets workers without disk faults run all remaining tasks.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        self.processes.stop_injecting();
        self.processes.stop_all(Role::Producer)?;
        if self.settings.fault == DiskFault::Eio {
            self.processes.stop_all(Role::Worker)?;
        }
        self.check_failed_processes();
        let mut left = u64::MAX;
        let mut progress = Instant::now();
        loop {
            let new = self.processes.fill(Role::Worker, WORKERS)?;
            self.processes.wait_for_one(&new, Duration::from_secs(10))?;
            let now = HistoryReader::open(&self.paths.database())?.count(&["pending", "scheduled", "running"])?;
            if now == 0 {
                break;
            }
            if now < left {
                (left, progress) = (now, Instant::now());
            }
            // Three attempts of a poison pill take about four leases without visible progress.
            if progress.elapsed() > self.settings.lease() * 20 {
                self.violations.push(format!("{now} tasks are left, without progress for 20 leases"));
                break;
            }
            pause(Duration::from_millis(20));
        }
        self.processes.stop_all(Role::Worker)?;
        self.check_failed_processes();
        Ok(())
    }

    /// Adds a violation for each process that ended unexpectedly: a worker must survive a store that fails for a while.
    fn check_failed_processes(&mut self) {
        for failed in self.processes.take_failed() {
            if !self.is_excused(&failed) {
                self.violations.push(format!("{} ended unexpectedly: {}", failed.name, failed.last_line));
            }
        }
    }

    /// Returns whether a process may end: it cannot open a database on a faulty disk, or a read failed, which SQLite
    /// reports as damage (SQLITE_IOERR_CORRUPTFS becomes SQLITE_CORRUPT). The next process must find the file
    /// undamaged.
    fn is_excused(&self, failed: &FailedProcess) -> bool {
        match self.settings.fault {
            DiskFault::None => false,
            _ if failed.last_line.contains("cannot open the store") => true,
            DiskFault::Enospc => false,
            DiskFault::Eio => {
                failed.last_line.contains("is damaged") && disk::had_read_failure(self.paths, &failed.name)
            }
        }
    }

    pub(crate) fn in_leases(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.settings.lease().as_secs_f64()
    }
}

/// Counts the lines of a log; 0 if it does not exist.
fn lines(path: &Path) -> usize {
    std::fs::read(path).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
}
