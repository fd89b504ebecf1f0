//! Rounds without a kill: a full disk, two concurrent imports, a database that another connection has locked.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use gristmill_check::Rng;
use rusqlite::Connection;

use super::fixture::{ImportMode, Workdir};
use super::round::{ImportEnd, ImportRound};
use crate::cli_process::{self, CliExit, Fault, INTERRUPTED};
use crate::disk::SmallDisk;
use crate::processes::pause;
use crate::{Error, ErrorContext};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trial {
    /// The disk is full before the import ends.
    FullDisk,
    /// Two imports load into the same database.
    Concurrent,
    /// Another connection has a transaction open, and the import gets Ctrl-C.
    Locked,
}

/// Maximum free space on the small disk when an import starts.
const MAX_FREE_BYTES: u64 = 3 << 19;

impl Trial {
    pub(crate) const ALL: [Trial; 4] = [Trial::FullDisk, Trial::Concurrent, Trial::Locked, Trial::FullDisk];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Trial::FullDisk => "full disk",
            Trial::Concurrent => "concurrent",
            Trial::Locked => "locked database",
        }
    }

    /// Runs the trial. Returns a description, and whether the intended situation occurred.
    pub(crate) fn run(self, round: &mut ImportRound<'_>, rng: &mut Rng) -> Result<(String, bool), Error> {
        match self {
            Trial::FullDisk => full_disk(round, rng),
            Trial::Concurrent => concurrent(round, rng),
            Trial::Locked => locked(round, rng),
        }
    }
}

/// The import fails with exit code 2 and the reason; with free space, it can be resumed.
fn full_disk(round: &mut ImportRound<'_>, rng: &mut Rng) -> Result<(String, bool), Error> {
    let folder = round.workdir.folder().join("disk");
    std::fs::create_dir(&folder).context("cannot create a folder")?;
    let disk = SmallDisk::mount(&folder)?;
    let workdir = Workdir::create(round.cli, &folder.join("workdir"))?;
    let mut inner = ImportRound::new(round.cli, round.scenario, &workdir, round.copy);
    workdir.set_up(round.cli, round.scenario, rng.percent(30))?;
    let description = on_small_disk(&mut inner, &disk, rng);
    round.violations.append(&mut inner.violations);
    drop(disk);
    std::fs::remove_dir(&folder).context("cannot remove a folder")?;
    description
}

fn on_small_disk(round: &mut ImportRound<'_>, disk: &SmallDisk, rng: &mut Rng) -> Result<(String, bool), Error> {
    let free_bytes = rng.u64(0..MAX_FREE_BYTES);
    let spare = round.workdir.folder().join("spare");
    let reserve = || File::create(&spare)?.write_all(&vec![0; free_bytes as usize]);
    reserve().context("cannot write a file")?;
    disk.fill()?;
    std::fs::remove_file(&spare).context("cannot remove a file")?;
    let database = round.workdir.database();
    let failed = round.cli.run(&round.workdir.own_db(), &round.scenario.args(&database, false))?;
    disk.free()?;
    let resume = round.scenario.mode != ImportMode::New;
    let (description, happened) = match failed {
        CliExit::Failed { code: Some(2), message } if message.contains("full") => {
            round.inspect(ImportEnd::DiskFull)?;
            let loaded = round.loaded.len();
            match round.cli.run(&round.workdir.own_db(), &round.scenario.args(&database, resume))? {
                CliExit::Done(summary) => round.check_summary(&summary),
                other => round.add_violation(format!("cannot resume the import with free space: {other:?}")),
            }
            (format!("{free_bytes} bytes free, {loaded} tables loaded; resumed"), true)
        }
        CliExit::Done(_) => (format!("{free_bytes} bytes free were enough"), false),
        other => {
            round.add_violation(format!("unexpected end on a full disk: {other:?}"));
            (format!("{free_bytes} bytes free"), false)
        }
    };
    if round.violations.is_empty() {
        round.inspect(ImportEnd::Done)?;
    }
    Ok((description, happened))
}

/// One import is refused, or finds everything loaded; the other loads.
fn concurrent(round: &mut ImportRound<'_>, rng: &mut Rng) -> Result<(String, bool), Error> {
    round.workdir.set_up(round.cli, round.scenario, false)?;
    let args = round.scenario.args(&round.workdir.database(), true);
    let first = round.cli.start(&round.workdir.own_db(), &args)?;
    let max = u64::try_from(round.scenario.duration.as_micros()).unwrap_or(0) / 2 + 1;
    pause(Duration::from_micros(rng.u64(0..max)));
    let second = round.cli.start(&round.workdir.own_db(), &args)?;
    let ends = [cli_process::wait_for_exit(first)?, cli_process::wait_for_exit(second)?];
    let mut refused = 0;
    for end in &ends {
        match end {
            CliExit::Done(_) => {}
            CliExit::Failed { code: Some(1), message } if message.contains("another import") => refused += 1,
            other => round.add_violation(format!("unexpected end of a concurrent import: {other:?}")),
        }
    }
    if refused == ends.len() {
        round.add_violation("both of two concurrent imports were refused");
    }
    round.inspect(ImportEnd::Done)?;
    Ok((format!("{refused} refused"), refused == 1))
}

/// Ctrl-C interrupts an import that waits for a lock.
fn locked(round: &mut ImportRound<'_>, rng: &mut Rng) -> Result<(String, bool), Error> {
    if round.scenario.mode == ImportMode::New {
        return Ok(("a new database cannot be locked".to_owned(), false));
    }
    round.workdir.set_up(round.cli, round.scenario, false)?;
    let database = round.workdir.database();
    let lock = || -> rusqlite::Result<Connection> {
        let conn = Connection::open(&database)?;
        conn.execute_batch("BEGIN IMMEDIATE")?;
        Ok(conn)
    };
    let conn = lock().context("cannot lock a database")?;
    let time = rng.millis(300..900);
    let args = round.scenario.args(&database, false);
    match round.cli.run_with_fault(&round.workdir.own_db(), &args, Fault::InterruptAfter(time))? {
        CliExit::Failed { code: INTERRUPTED, .. } => {}
        other => round.add_violation(format!("unexpected end after Ctrl-C during a wait for a lock: {other:?}")),
    }
    drop(conn);
    round.inspect(ImportEnd::Stopped { resume: false })?;
    Ok((format!("Ctrl-C after {} ms", time.as_millis()), true))
}
