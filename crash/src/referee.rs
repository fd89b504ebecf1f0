//! The referee: sets the field, has the rounds played, lets everything be finished, and judges.
//!
//! Owns the order of a run and what is printed about it.

use std::path::Path;
use std::time::Instant;

use gristmill_store::Store;

use crate::args::{Fault, Settings};
use crate::chance::Chance;
use crate::crew::Crew;
use crate::disk::{self, SmallDisk, Strace};
use crate::judge;
use crate::ledger::Effects;
use crate::record::{Note, Record};
use crate::rounds::Rounds;
use crate::site::Site;
use crate::witness;
use crate::{OrTrouble, Trouble};

/// So many findings are shown; the rest is counted.
const SHOWN: usize = 20;

/// Says whether all was well.
pub(crate) fn run(settings: &Settings) -> Result<bool, Trouble> {
    let folder = tempfile::Builder::new().prefix("gristmill-crash-").tempdir();
    let mut folder = folder.or_trouble("cannot make a folder for the run")?;
    let seed = settings.seed.unwrap_or_else(Chance::seed);
    println!(
        "crash run: {} rounds, seed {seed}, fault {:?}, leases of {} ms",
        settings.rounds, settings.fault, settings.lease_ms
    );
    let site = Site::new(folder.path());
    let findings = play(settings, seed, &site)?;
    for finding in findings.iter().take(SHOWN) {
        println!("FOUND: {finding}");
    }
    if findings.len() > SHOWN {
        println!("… and {} more", findings.len() - SHOWN);
    }
    if settings.keep || !findings.is_empty() {
        folder.disable_cleanup(true);
        println!("the files of the run are kept in {}", folder.path().display());
    }
    println!("{}", if findings.is_empty() { "all is well" } else { "NOT WELL" });
    Ok(findings.is_empty())
}

fn play(settings: &Settings, seed: u64, site: &Site) -> Result<Vec<String>, Trouble> {
    let start = Instant::now();
    std::fs::create_dir(site.disk()).or_trouble("cannot make a folder")?;
    let strace = (settings.fault == Fault::Eio).then(Strace::find).transpose()?;
    let disk = (settings.fault == Fault::Enospc).then(|| SmallDisk::mount(&site.disk())).transpose()?;
    set_up(site)?;
    // After the disk, so that nobody is on it any more when it goes.
    let crew = Crew::new(site, settings.lease(), seed.wrapping_add(1), strace)?;
    let mut rounds = Rounds::new(settings, site, crew, seed);
    match &disk {
        Some(disk) => rounds.of_full_disks(disk)?,
        None => rounds.of_kills()?,
    }
    rounds.drain()?;
    let mut record = Record::read(site, settings.fault != Fault::None)?;
    record.deaths.extend(rounds.crew.deaths());
    record.stops.clone_from(&rounds.stops);
    summarize(&rounds, &record);
    let mut findings = std::mem::take(&mut rounds.findings);
    findings.extend(judge::findings(&record));
    findings.extend(proves_nothing(settings, site, &record));
    if let (Some(disk), false) = (&disk, findings.is_empty()) {
        disk.rescue(&site.root().join("rescued"))
            .or_trouble("cannot rescue the database from the small disk")?;
    }
    println!("{:.1} s", start.elapsed().as_secs_f64());
    Ok(findings)
}

/// The database as the store makes it, with our witness in it, and empty logs.
fn set_up(site: &Site) -> Result<(), Trouble> {
    drop(Store::open(site.database()).or_trouble("cannot make the database")?);
    witness::install(&site.database())?;
    Effects::create(&site.effects()).or_trouble("cannot make the table of effects")?;
    let empty = |path: &Path| std::fs::write(path, "");
    [site.acks(), site.runs(), site.refusals()]
        .iter()
        .try_for_each(|path| empty(path))
        .or_trouble("cannot make the logs")
}

/// A run in which nothing happened must not look like one in which all was well.
fn proves_nothing(settings: &Settings, site: &Site, record: &Record) -> Vec<String> {
    let mut wrong = Vec::new();
    if !record.tasks.iter().any(|task| task.status == "completed") {
        wrong.push("no task was completed: the run proves nothing".to_owned());
    }
    if settings.fault == Fault::Eio {
        let count = disk::injections(site);
        println!("{count} system calls were made to fail");
        if count == 0 {
            wrong.push("no system call was made to fail: the run proves nothing".to_owned());
        }
    }
    wrong
}

fn summarize(rounds: &Rounds<'_>, record: &Record) {
    let count = |status: &str| record.tasks.iter().filter(|task| task.status == status).count();
    let poisoned = record.letters.iter().filter(|(_, reason)| reason.starts_with("poison")).count();
    let runs = record.notes.iter().filter(|note| matches!(note, Note::Start(..))).count();
    println!("{}", rounds.crew.summary());
    println!(
        "{} tasks acknowledged, {} in the table: {} completed, {} failed ({poisoned} as poison pills, {} of them planted)",
        record.acks.len(),
        record.tasks.len(),
        count("completed"),
        count("failed"),
        rounds.planted,
    );
    println!("{runs} runs had {} effects; {} changes of status", record.effects.len(), record.history.len());
    println!("{} leases ran out under workers that lived", judge::taken_from_the_living(record));
    let mut last: Vec<f64> =
        rounds.recoveries.iter().map(|recovery| rounds.in_leases(recovery.last)).collect();
    last.sort_by(f64::total_cmp);
    if let (Some(worst), Some(median)) = (last.last(), last.get(last.len() / 2)) {
        println!("{} recoveries: median {median:.2} leases, worst {worst:.2}", last.len());
    }
}
