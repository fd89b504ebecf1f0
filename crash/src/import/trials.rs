//! Rounds without a kill: a full disk, two concurrent imports, a database that another connection has locked.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use clap::ValueEnum;
use gristmill_check::Rng;

use super::fixture::{ImportMode, Workdir};
use super::round::{Import, ImportEnd};
use crate::cli::{self, CliExit, EXIT_TIMEOUT, INTERRUPTED};
use crate::disk::SmallDisk;
use crate::faults::Fault;
use crate::harness::Round;
use crate::process::pause;
use crate::sqlite::Database;
use crate::{Error, ErrorContext};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Trial {
    /// The disk is full before the import ends.
    #[value(name = "full disk")]
    FullDisk,
    /// Two imports load into the same database.
    Concurrent,
    /// Another connection has a transaction open, and the import gets Ctrl-C.
    #[value(name = "locked database")]
    Locked,
}

/// Maximum free space on the small disk when an import starts.
const MAX_FREE_BYTES: u64 = 3 << 19;

impl Trial {
    pub(crate) const ALL: [Trial; 4] = [Trial::FullDisk, Trial::Concurrent, Trial::Locked, Trial::FullDisk];

    /// Runs the trial and adds a description to the round. Returns whether the intended situation occurred.
    pub(crate) fn run(self, import: &mut Import<'_>, rng: &mut Rng, round: &mut Round) -> Result<bool, Error> {
        match self {
            Trial::FullDisk => full_disk(import, rng, round),
            Trial::Concurrent => concurrent(import, rng, round),
            Trial::Locked => locked(import, rng, round),
        }
    }
}

/// The import fails with exit code 2 and the reason; with free space, it can be resumed.
fn full_disk(import: &mut Import<'_>, rng: &mut Rng, round: &mut Round) -> Result<bool, Error> {
    let folder = import.workdir.0.join("disk");
    std::fs::create_dir(&folder).context("cannot create a folder")?;
    let disk = match SmallDisk::mount(&folder) {
        Err(Error::Unsupported(why)) => {
            round.event(format!("NOT DONE: {why}"));
            return Ok(false);
        }
        disk => disk?,
    };
    let workdir = Workdir::create(import.cli, &folder.join("workdir"))?;
    let mut inner = Import::new(import.cli, import.scenario, &workdir, import.copy);
    workdir.set_up(import.cli, import.scenario, rng.percent(30))?;
    let happened = on_small_disk(&mut inner, &disk, rng, round);
    drop(disk);
    std::fs::remove_dir(&folder).context("cannot remove a folder")?;
    happened
}

fn on_small_disk(import: &mut Import<'_>, disk: &SmallDisk, rng: &mut Rng, round: &mut Round) -> Result<bool, Error> {
    let free_bytes = rng.u64(0..MAX_FREE_BYTES);
    let spare = import.workdir.0.join("spare");
    let reserve = || File::create(&spare)?.write_all(&vec![0; free_bytes as usize]);
    reserve().context("cannot write a file")?;
    disk.fill()?;
    std::fs::remove_file(&spare).context("cannot remove a file")?;
    let database = import.workdir.database();
    let failed = import.cli.run(&import.workdir.own_db(), &import.scenario.args(&database, false))?;
    disk.free()?;
    let resume = import.scenario.mode != ImportMode::New;
    let happened = match failed {
        CliExit::Failed { code: Some(2), message } if message.contains("full") => {
            import.inspect(ImportEnd::DiskFull, round)?;
            round.event(format!("{free_bytes} bytes free, {} tables loaded; resumed", import.loaded.len()));
            match import.cli.run(&import.workdir.own_db(), &import.scenario.args(&database, resume))? {
                CliExit::Done(summary) => import.check_summary(&summary, round),
                other => round.violation(format!("cannot resume the import with free space: {other:?}")),
            }
            true
        }
        CliExit::Done(_) => {
            round.event(format!("{free_bytes} bytes free were enough"));
            false
        }
        other => {
            round.event(format!("{free_bytes} bytes free"));
            round.violation(format!("unexpected end on a full disk: {other:?}"));
            false
        }
    };
    if !round.has_violations() {
        import.inspect(ImportEnd::Done, round)?;
    }
    Ok(happened)
}

/// One import is refused, or finds everything loaded; the other loads.
fn concurrent(import: &mut Import<'_>, rng: &mut Rng, round: &mut Round) -> Result<bool, Error> {
    import.workdir.set_up(import.cli, import.scenario, false)?;
    let args = import.scenario.args(&import.workdir.database(), true);
    let first = import.cli.start(&import.workdir.own_db(), &args, None)?;
    let max = u64::try_from(import.scenario.duration.as_micros()).unwrap_or(0) / 2 + 1;
    pause(Duration::from_micros(rng.u64(0..max)));
    let second = import.cli.start(&import.workdir.own_db(), &args, None)?;
    let ends = [cli::wait_for_exit(first, EXIT_TIMEOUT)?, cli::wait_for_exit(second, EXIT_TIMEOUT)?];
    let mut refused = 0;
    for end in &ends {
        match end {
            CliExit::Done(_) => {}
            CliExit::Failed { code: Some(1), message } if message.contains("another import") => refused += 1,
            other => round.violation(format!("unexpected end of a concurrent import: {other:?}")),
        }
    }
    if refused == ends.len() {
        round.violation("both of two concurrent imports were refused");
    }
    import.inspect(ImportEnd::Done, round)?;
    round.event(format!("{refused} refused"));
    Ok(refused == 1)
}

/// Ctrl-C interrupts an import that waits for a lock.
fn locked(import: &mut Import<'_>, rng: &mut Rng, round: &mut Round) -> Result<bool, Error> {
    if import.scenario.mode == ImportMode::New {
        round.event("a new database cannot be locked");
        return Ok(false);
    }
    import.workdir.set_up(import.cli, import.scenario, false)?;
    let database = import.workdir.database();
    let lock = Database::open_copy(&database)?;
    lock.0.execute_batch("BEGIN IMMEDIATE").context("cannot lock a database")?;
    let time = rng.millis(300..900);
    let args = import.scenario.args(&database, false);
    match import.cli.run_with_fault(&import.workdir.own_db(), &args, Fault::InterruptAfter(time))? {
        CliExit::Failed { code: INTERRUPTED, .. } => {}
        other => round.violation(format!("unexpected end after Ctrl-C during a wait for a lock: {other:?}")),
    }
    drop(lock);
    import.inspect(ImportEnd::Stopped { resume: false }, round)?;
    round.event(format!("Ctrl-C after {} ms", time.as_millis()));
    Ok(true)
}
