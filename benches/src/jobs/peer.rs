//! Libraries that need another SQLite than Gristmill. A program can link only one SQLite, so each library has its own
//! program in a separate workspace under `peers/`, built here and started once for each measurement. It prints the
//! seconds for enqueueing, the seconds for draining and the sum; the sum is checked in `jobs`.
//!
//! Each is measured twice: with its default settings, and with the one change that removes its largest bottleneck.

use super::{BoxError, Candidate, FEW, MANY, Outcome, Plan, candidate};
use crate::{process, program};
use std::{process::Command, time::Duration};

pub(super) const CANDIDATES: &[Candidate] = &[
    candidate("effectum (NORMAL, no WAL)", effectum, MANY),
    candidate("effectum, WAL set (NORMAL)", effectum_wal, MANY),
    // Its time grows with the square of the number of tasks: 10,000 take half a minute.
    candidate("apalis (OFF and FULL)", apalis, FEW),
    candidate("apalis, without LIdx (OFF and FULL)", apalis_lighter, MANY),
];

const PROGRAMS: &[&str] = &["effectum", "apalis"];

pub(super) fn is_peer(candidate: &str) -> bool {
    CANDIDATES.iter().any(|peer| peer.name == candidate)
}

/// Builds all peers, which takes minutes the first time.
pub(super) fn build() -> Result<(), String> {
    PROGRAMS.iter().try_for_each(|name| program::build_peer(name).map(drop))
}

/// effectum intends to set WAL, but uses a pragma that does not exist; SQLite keeps the rollback journal.
fn effectum(plan: &Plan) -> Result<Outcome, BoxError> {
    start("effectum", plan, None, "SELECT count(*) FROM jobs WHERE status = 'succeeded'")
}

/// WAL is a property of the database file, so effectum keeps it when it is set before.
fn effectum_wal(plan: &Plan) -> Result<Outcome, BoxError> {
    rusqlite::Connection::open(&plan.database)?.pragma_update(None, "journal_mode", "WAL")?;
    effectum(plan)
}

fn apalis(plan: &Plan) -> Result<Outcome, BoxError> {
    start("apalis", plan, None, "SELECT count(*) FROM Jobs WHERE status = 'Done'")
}

/// Because of its index on the worker, SQLite reads all earlier tasks of the worker for each batch of results.
fn apalis_lighter(plan: &Plan) -> Result<Outcome, BoxError> {
    start("apalis", plan, Some("lighter"), "SELECT count(*) FROM Jobs WHERE status = 'Done'")
}

fn start(name: &str, plan: &Plan, arg: Option<&str>, completed: &'static str) -> Result<Outcome, BoxError> {
    let program = program::peer_path(name)?;
    let mut command = Command::new(&program);
    command.arg(&plan.database).arg(plan.tasks.to_string()).args(arg);
    let numbers = process::numbers(&mut command);
    let [enqueue, drain, sum] = numbers.map_err(|error| format!("{error}; the benchmark `jobs` builds the program"))?;
    let [enqueue, drain] = [enqueue, drain].map(Duration::from_secs_f64);
    // A sum of numbers below a million is exact in 53 bits.
    Ok(Outcome { enqueue, drain, sum: sum as u64, completed })
}
