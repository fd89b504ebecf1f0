//! The harness of runs that kill task workers: sets up, runs the rounds, drains the queue, and checks.
//!
//! Owns the order of a run and its output.

use std::path::Path;
use std::time::Instant;

use gristmill_store::Store;

use crate::args::{DiskFault, Settings};
use crate::checker;
use crate::disk::{self, SmallDisk, Strace};
use crate::effects::Effects;
use crate::history;
use crate::paths::RunPaths;
use crate::processes::Processes;
use crate::record::{HandlerEvent, RunRecord};
use crate::round::JobRounds;
use crate::{Error, ErrorContext};

/// Violations that are printed; the rest is counted.
const MAX_SHOWN: usize = 20;

/// Returns whether no violation was found.
pub(crate) fn run(settings: &Settings) -> Result<bool, Error> {
    let folder = tempfile::Builder::new().prefix("gristmill-crash-").tempdir();
    let mut folder = folder.context("cannot create a folder for the run")?;
    let seed = settings.seed.unwrap_or_else(gristmill_check::random_seed);
    println!(
        "crash run: {} rounds, seed {seed}, fault {:?}, leases of {} ms",
        settings.rounds, settings.fault, settings.lease_ms
    );
    let paths = RunPaths::new(folder.path());
    let violations = run_rounds(settings, seed, &paths)?;
    for violation in violations.iter().take(MAX_SHOWN) {
        println!("VIOLATION: {violation}");
    }
    if violations.len() > MAX_SHOWN {
        println!("… and {} more", violations.len() - MAX_SHOWN);
    }
    if settings.keep || !violations.is_empty() {
        folder.disable_cleanup(true);
        println!("the files of the run are kept in {}", folder.path().display());
    }
    println!("{}", if violations.is_empty() { "no violations found" } else { "VIOLATIONS FOUND" });
    Ok(violations.is_empty())
}

fn run_rounds(settings: &Settings, seed: u64, paths: &RunPaths) -> Result<Vec<String>, Error> {
    let start = Instant::now();
    std::fs::create_dir(paths.disk()).context("cannot create a folder")?;
    let strace = (settings.fault == DiskFault::Eio).then(Strace::detect).transpose()?;
    let disk = (settings.fault == DiskFault::Enospc).then(|| SmallDisk::mount(&paths.disk())).transpose()?;
    set_up(paths)?;
    // Created after the disk, so that all processes have ended when the disk is unmounted.
    let processes = Processes::new(paths, settings.lease(), seed.wrapping_add(1), strace)?;
    let mut rounds = JobRounds::new(settings, paths, processes, seed);
    match &disk {
        Some(disk) => rounds.run_full_disks(disk)?,
        None => rounds.run_kills()?,
    }
    rounds.drain()?;
    let mut record = RunRecord::read(paths, settings.fault != DiskFault::None)?;
    record.deaths.extend(rounds.processes.deaths());
    record.suspensions.clone_from(&rounds.suspensions);
    summarize(&rounds, &record);
    let mut violations = std::mem::take(&mut rounds.violations);
    violations.extend(checker::violations(&record));
    violations.extend(check_conclusive(settings, paths, &record));
    if let (Some(disk), false) = (&disk, violations.is_empty()) {
        disk.copy_files_to(&paths.root().join("rescued")).context("cannot copy the database from the small disk")?;
    }
    println!("{:.1} s", start.elapsed().as_secs_f64());
    Ok(violations)
}

/// Creates the database with the history trigger, and empty logs.
fn set_up(paths: &RunPaths) -> Result<(), Error> {
    drop(Store::open(paths.database()).context("cannot create the database")?);
    history::install(&paths.database())?;
    Effects::create(&paths.effects()).context("cannot create the table of effects")?;
    let empty = |path: &Path| std::fs::write(path, "");
    [paths.acks(), paths.runs(), paths.refusals()]
        .iter()
        .try_for_each(|path| empty(path))
        .context("cannot create the logs")
}

/// Returns a violation if the run tested nothing.
fn check_conclusive(settings: &Settings, paths: &RunPaths, record: &RunRecord) -> Vec<String> {
    let mut violations = Vec::new();
    if !record.tasks.iter().any(|task| task.status == "completed") {
        violations.push("no task was completed: the run tested nothing".to_owned());
    }
    if settings.fault == DiskFault::Eio {
        let count = disk::count_injections(paths);
        println!("{count} system calls were made to fail");
        if count == 0 {
            violations.push("no system call was made to fail: the run tested nothing".to_owned());
        }
    }
    violations
}

fn summarize(rounds: &JobRounds<'_>, record: &RunRecord) {
    let count = |status: &str| record.tasks.iter().filter(|task| task.status == status).count();
    let poisoned = record.dead_letters.iter().filter(|(_, reason)| reason.starts_with("poison")).count();
    let runs = record.handler_events.iter().filter(|event| matches!(event, HandlerEvent::Start(..))).count();
    println!("{}", rounds.processes.summary());
    println!(
        "{} tasks acknowledged, {} in the table: {} completed, {} failed ({poisoned} poison pills, {} of them intended)",
        record.acks.len(),
        record.tasks.len(),
        count("completed"),
        count("failed"),
        rounds.poison_tasks,
    );
    println!("{runs} runs applied {} effects; {} status changes", record.effects.len(), record.changes.len());
    println!("{} leases of live workers expired", checker::taken_from_live_workers(record));
    let mut last: Vec<f64> = rounds.recoveries.iter().map(|recovery| rounds.in_leases(recovery.last)).collect();
    last.sort_by(f64::total_cmp);
    if let (Some(worst), Some(median)) = (last.last(), last.get(last.len() / 2)) {
        println!("{} recoveries: median {median:.2} leases, worst {worst:.2}", last.len());
    }
}
