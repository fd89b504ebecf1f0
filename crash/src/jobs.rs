//! Kills or suspends task workers, or fills their disk, at random moments. Every acknowledged task must end as its kind
//! allows, and tasks of dead workers must be claimed within two leases.
//!
//! Run as `cargo xtask crash jobs`. Owns the choice of victims and moments, and the measurement of recovery. Tests may
//! not assert on time; this is a command, and it checks that recovery takes at most two leases. `producer` and `worker`
//! are the processes, `processes` starts and kills them, `history` and `log` record what happens, `checker` has the
//! rules.

mod checker;
mod history;
mod log;
mod paths;
mod processes;
pub(crate) mod producer;
mod task_kinds;
pub(crate) mod worker;

use std::time::{Duration, Instant};

use gristmill_check::Rng;
use gristmill_store::Store;

use self::history::{Recovery, RunRecord};
use self::log::{Event, Log};
use self::paths::RunPaths;
use self::processes::{FailedProcess, Processes, Role};
use self::task_kinds::{Payload, TestKind};
use crate::args::{DiskFault, JobsArgs};
use crate::disk::{self, SmallDisk, Strace};
use crate::harness::{self, Named, Round, Run, Workload};
use crate::process::{pause, wait_until};
use crate::sqlite::Database;
use crate::{Error, ErrorContext};

/// Time beyond two leases that a busy machine may need to start and schedule a process.
const RECOVERY_SLACK: Duration = Duration::from_secs(1);

/// Number of concurrent workers.
const WORKERS: usize = 2;

/// Rounds from one poison pill to the next.
const POISON_INTERVAL: u32 = 12;

/// Time within which a full disk is noticed, and work continues after it.
const FULL_DISK_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns whether no violation was found.
pub(crate) fn run(args: &JobsArgs) -> Result<bool, Error> {
    let details = format!(", fault {:?}, leases of {} ms", args.fault, args.lease_ms);
    harness::run("jobs", &details, &args.run, |run| Jobs::start(args, run))
}

struct Jobs<'a> {
    args: &'a JobsArgs,
    paths: RunPaths,
    /// Before the disk, so that all processes have ended when the disk is unmounted.
    processes: Processes,
    disk: Option<SmallDisk>,
    recoveries: Vec<Recovery>,
    poison_tasks: u32,
    suspensions: Vec<(f64, f64)>,
}

impl<'a> Jobs<'a> {
    /// Creates the database with the history trigger, and an empty log.
    fn start(args: &'a JobsArgs, run: &Run) -> Result<Self, Error> {
        let paths = RunPaths(run.folder.clone());
        std::fs::create_dir(paths.disk()).context("cannot create a folder")?;
        let strace = (args.fault == DiskFault::Eio).then(Strace::detect).transpose()?;
        let disk = (args.fault == DiskFault::Enospc).then(|| SmallDisk::mount(&paths.disk())).transpose()?;
        drop(Store::open(paths.database()).context("cannot create the database")?);
        history::install(&paths.database())?;
        Log::open(&paths.log())?;
        let processes = Processes::new(&paths, args.lease(), run.seed.wrapping_add(1), strace)?;
        let (recoveries, suspensions) = (Vec::new(), Vec::new());
        Ok(Jobs { args, paths, processes, disk, recoveries, poison_tasks: 0, suspensions })
    }

    /// Kills workers, in half of the rounds also the producer, then waits until other workers have their tasks.
    fn kill(&mut self, count: usize, rng: &mut Rng, round: &mut Round) -> Result<(), Error> {
        // In 20% of the rounds while they start, open the database and claim, otherwise while they run tasks.
        let delay = if rng.percent(20) { rng.millis(0..30) } else { rng.millis(30..400) };
        pause(delay);
        let with_producer = rng.percent(50);
        let killed_at = history::now();
        let killed = self.processes.kill(Role::Worker, count)?;
        if with_producer {
            self.processes.kill(Role::Producer, 1)?;
        }
        let new = self.processes.fill(Role::Worker, WORKERS)?;
        self.processes.wait_for_one(&new, self.args.lease() * 20)?;
        let recovery = self.wait_for_recovery(&killed, killed_at, round)?;
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
        round.event(format!("killed {victims}{producer} after {:3} ms: {after}", delay.as_millis()));
        Ok(())
    }

    /// Waits until no killed worker holds a task, and measures the time.
    fn wait_for_recovery(
        &mut self,
        killed: &[String],
        killed_at: f64,
        round: &mut Round,
    ) -> Result<Option<Recovery>, Error> {
        let reader = Database::open(&self.paths.database())?;
        let recovered = wait_until(self.args.lease() * 20, || {
            // Replaces workers that a poison pill has killed meanwhile.
            self.processes.fill(Role::Worker, WORKERS)?;
            Ok(reader.held_by(killed)? == 0)
        })?;
        if !recovered {
            round.violation(format!("{killed:?} still hold tasks 20 leases after they were killed"));
            return Ok(None);
        }
        let recovery = reader.recovery(killed, killed_at)?;
        if let Some(recovery) = recovery {
            self.recoveries.push(recovery);
            let limit = self.args.lease() * 2 + RECOVERY_SLACK;
            // With injected failures, workers may wait before they retry.
            if self.args.fault == DiskFault::None && recovery.first.max(recovery.last) > limit {
                let text = format!("recovery of the tasks of {killed:?} took {:?}", recovery.last);
                round.violation(format!("{text}, more than two leases"));
            }
        }
        Ok(recovery)
    }

    /// Suspends a worker until its leases have expired, so that others have its tasks when it resumes.
    fn suspend_one(&mut self, rng: &mut Rng, round: &mut Round) -> Result<(), Error> {
        pause(rng.millis(50..400));
        let lease = self.args.lease_ms;
        let time = rng.millis(lease * 13 / 10..lease * 2);
        let Some(name) = self.processes.suspend_one(Role::Worker)? else { return Ok(()) };
        let from = history::now();
        pause(time);
        self.processes.resume(&name);
        self.suspensions.push((from, history::now() + self.args.lease().as_secs_f64()));
        round.event(format!("suspended a worker for {:.2} leases", self.in_leases(time)));
        // Long enough for the worker to report its results and be refused.
        pause(self.args.lease() / 2);
        Ok(())
    }

    /// Enqueues a task that kills its worker. It is logged as acknowledged, so it must exist at the end.
    fn enqueue_poison(&mut self, round: u32) -> Result<(), Error> {
        let key = format!("poison-{round}");
        let payload = Payload { key: key.clone(), millis: 0, padding: String::new() };
        let store = Store::open(self.paths.database()).context("cannot enqueue a poison pill")?;
        let task = producer::new_task(TestKind::Poison, &payload);
        let task = store.tasks().enqueue(task).context("cannot enqueue a poison pill")?.id;
        let event = Event::Enqueued { task, kind: TestKind::Poison.name(), key };
        Log::open(&self.paths.log())?.append(&event).context("cannot log a poison pill")?;
        self.poison_tasks += 1;
        Ok(())
    }

    /// Fills the disk for a while. The processes that met the full disk must continue after it.
    fn fill_disk(&mut self, rng: &mut Rng, round: &mut Round) -> Result<(), Error> {
        pause(rng.millis(100..500));
        let Some(disk) = &self.disk else { return Ok(()) };
        let refused = self.refusals_and_acks()?.0;
        disk.fill()?;
        let full = wait_until(FULL_DISK_TIMEOUT, || Ok(self.refusals_and_acks()?.0 > refused))?;
        let time = rng.millis(0..self.args.lease_ms * 3);
        pause(time);
        let killed = if rng.percent(50) { self.processes.kill(Role::Worker, 1)? } else { Vec::new() };
        let survivors = self.processes.names(Role::Worker);
        // The new worker opens the database while the disk is full.
        self.processes.fill(Role::Worker, WORKERS)?;
        pause(rng.millis(0..100));
        let (now_refused, acks) = self.refusals_and_acks()?;
        disk.free()?;
        if !full {
            round.violation("the disk was never full");
            return Ok(());
        }
        // No process is started: those that met the full disk must continue.
        let (done, start) = (self.finished()?, Instant::now());
        let continued =
            wait_until(FULL_DISK_TIMEOUT, || Ok(self.refusals_and_acks()?.1 > acks && self.finished()? > done))?;
        if !continued {
            round.violation("no process continued after the disk had free space again");
        }
        let left = self.processes.names(Role::Worker);
        if survivors.iter().any(|name| !left.contains(name)) {
            round.violation(format!("of the workers {survivors:?} only {left:?} survived a full disk"));
        }
        round.event(format!(
            "full for {} ms, {} writes refused{}; {} after {} ms",
            time.as_millis(),
            now_refused - refused,
            if killed.is_empty() { "" } else { ", a worker killed meanwhile" },
            if continued { "work continued" } else { "STUCK" },
            start.elapsed().as_millis(),
        ));
        Ok(())
    }

    /// Counts the writes that producers were refused, and those that were acknowledged.
    fn refusals_and_acks(&self) -> Result<(usize, usize), Error> {
        let log = std::fs::read_to_string(self.paths.log()).context("cannot read the log")?;
        let count = |name: &str| log.lines().filter(|line| line.starts_with(name)).count();
        Ok((count("{\"Refused"), count("{\"Enqueued")))
    }

    fn finished(&self) -> Result<i64, Error> {
        Database::open(&self.paths.database())?.tasks_in(&["completed", "failed"])
    }

    /// Lets workers without disk faults run all remaining tasks.
    fn drain(&mut self, round: &mut Round) -> Result<(), Error> {
        self.processes.strace = None;
        self.processes.stop_all(Role::Producer)?;
        if self.args.fault == DiskFault::Eio {
            self.processes.stop_all(Role::Worker)?;
        }
        self.check_failed_processes(round);
        let mut left = i64::MAX;
        let mut progress = Instant::now();
        loop {
            let new = self.processes.fill(Role::Worker, WORKERS)?;
            self.processes.wait_for_one(&new, Duration::from_secs(10))?;
            let now = Database::open(&self.paths.database())?.tasks_in(&["pending", "scheduled", "running"])?;
            if now == 0 {
                break;
            }
            if now < left {
                (left, progress) = (now, Instant::now());
            }
            // Three attempts of a poison pill take about four leases without visible progress.
            if progress.elapsed() > self.args.lease() * 20 {
                round.violation(format!("{now} tasks are left, without progress for 20 leases"));
                break;
            }
            pause(Duration::from_millis(20));
        }
        self.processes.stop_all(Role::Worker)?;
        self.check_failed_processes(round);
        Ok(())
    }

    /// Adds a violation for each process that ended unexpectedly: a worker must survive a store that fails for a while.
    fn check_failed_processes(&mut self, round: &mut Round) {
        for failed in std::mem::take(&mut self.processes.failed) {
            if !self.is_excused(&failed) {
                round.violation(format!("{} ended unexpectedly: {}", failed.name, failed.last_line));
            }
        }
    }

    /// Returns whether a process may end: it cannot open a database on a faulty disk, or a read failed, which SQLite
    /// reports as damage (SQLITE_IOERR_CORRUPTFS becomes SQLITE_CORRUPT). The next process must find the file
    /// undamaged.
    fn is_excused(&self, failed: &FailedProcess) -> bool {
        match self.args.fault {
            DiskFault::None => false,
            _ if failed.last_line.contains("cannot open the store") => true,
            DiskFault::Enospc => false,
            DiskFault::Eio => {
                let log = self.paths.strace_log_of(&failed.name);
                failed.last_line.contains("is damaged") && disk::count_failed_calls(&log, "pread64") > 0
            }
        }
    }

    fn in_leases(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.args.lease().as_secs_f64()
    }

    /// Returns a violation if the run tested nothing.
    fn check_conclusive(&self, record: &RunRecord) -> Result<Vec<String>, Error> {
        let mut violations = Vec::new();
        if !record.tasks.iter().any(|task| task.status == "completed") {
            violations.push("no task was completed: the run tested nothing".to_owned());
        }
        if self.args.fault == DiskFault::Eio {
            let mut count = 0;
            for entry in std::fs::read_dir(&self.paths.0).context("cannot list a folder")? {
                let path = entry.context("cannot list a folder")?.path();
                if path.extension().is_some_and(|end| end == "strace") {
                    count += disk::count_failed_calls(&path, "");
                }
            }
            println!("{count} system calls were made to fail");
            if count == 0 {
                violations.push("no system call was made to fail: the run tested nothing".to_owned());
            }
        }
        Ok(violations)
    }

    fn print_summary(&self, record: &RunRecord) {
        let count = |status: &str| record.tasks.iter().filter(|task| task.status == status).count();
        let events = |is: fn(&Event) -> bool| record.events.iter().filter(|event| is(event)).count();
        let poisoned = record.dead_letters.iter().filter(|(_, reason)| reason.starts_with("poison")).count();
        println!("{}", self.processes.summary());
        println!(
            "{} tasks acknowledged, {} in the table: {} completed, {} failed ({poisoned} poison pills, {} of them \
             intended)",
            events(|event| matches!(event, Event::Enqueued { .. })),
            record.tasks.len(),
            count("completed"),
            count("failed"),
            self.poison_tasks,
        );
        println!(
            "{} runs applied {} effects; {} status changes",
            events(|event| matches!(event, Event::Start { .. })),
            checker::effects(record).len(),
            record.changes.len()
        );
        println!("{} leases of live workers expired", checker::taken_from_live_workers(record));
        let mut last: Vec<f64> = self.recoveries.iter().map(|recovery| self.in_leases(recovery.last)).collect();
        last.sort_by(f64::total_cmp);
        if let (Some(worst), Some(median)) = (last.last(), last.get(last.len() / 2)) {
            println!("{} recoveries: median {median:.2} leases, worst {worst:.2}", last.len());
        }
    }
}

impl Workload for Jobs<'_> {
    fn round(&mut self, run: &mut Run, round: &mut Round) -> Result<(), Error> {
        self.processes.fill(Role::Worker, WORKERS)?;
        self.processes.fill(Role::Producer, 1)?;
        let can_suspend = self.args.fault == DiskFault::None;
        if can_suspend && round.number % POISON_INTERVAL == POISON_INTERVAL / 2 {
            self.enqueue_poison(round.number)?;
        }
        let rng = &mut run.rng;
        match rng.u64(0..10) {
            _ if self.disk.is_some() => self.fill_disk(rng, round)?,
            5..8 => self.kill(1, rng, round)?,
            8.. if can_suspend => self.suspend_one(rng, round)?,
            _ => self.kill(WORKERS, rng, round)?,
        }
        self.check_failed_processes(round);
        Ok(())
    }

    fn finish(mut self, run: &Run) -> Result<Vec<String>, Error> {
        let mut end = Round::default();
        self.drain(&mut end)?;
        let mut record = Database::open(&self.paths.database())?.run_record()?;
        record.events = log::read(&self.paths.log())?;
        record.deaths.extend(self.processes.deaths());
        record.suspensions.clone_from(&self.suspensions);
        record.bad_disk = self.args.fault != DiskFault::None;
        self.print_summary(&record);
        end.violations.extend(checker::violations(&record));
        end.violations.extend(self.check_conclusive(&record)?);
        if let (Some(disk), true) = (&self.disk, end.has_violations() || run.bad_rounds > 0) {
            let copied = disk.copy_files_to(&self.paths.0.join("rescued"));
            copied.context("cannot copy the database from the small disk")?;
        }
        Ok(end.violations)
    }
}
