//! Libraries that need another SQLite than gristmill. A program can link only one, so each is a program in a
//! workspace of its own under `peers/`, built here and started once for each measurement. It prints the
//! seconds for enqueueing, the seconds for draining and the sum; the answer is checked where all answers are.
//!
//! Each takes part twice: as it comes, and with the one thing set right that holds it back max_tasks.

use super::{BoxError, Candidate, Outcome, Plan, SLOW_MAX_TASKS, UNLIMITED, numbers};
use crate::program;
use std::{process::Command, time::Duration};

pub(super) const CANDIDATES: &[Candidate] = &[
    Candidate {
        name: "effectum (NORMAL, no WAL)",
        measure: effectum,
        max_tasks: UNLIMITED,
        in_growth: false,
    },
    Candidate {
        name: "effectum, WAL set (NORMAL)",
        measure: effectum_wal,
        max_tasks: UNLIMITED,
        in_growth: false,
    },
    // Its cost in_growth with the square of the tasks: 10,000 take half a minute.
    Candidate { name: "apalis (OFF and FULL)", measure: apalis, max_tasks: SLOW_MAX_TASKS, in_growth: false },
    Candidate {
        name: "apalis, without LIdx (OFF and FULL)",
        measure: apalis_lighter,
        max_tasks: UNLIMITED,
        in_growth: false,
    },
];

const PROGRAMS: &[&str] = &["effectum", "apalis"];

pub(super) fn is_peer(candidate: &Candidate) -> bool {
    CANDIDATES.iter().any(|peer| peer.name == candidate.name)
}

/// Builds them all. The first time takes minutes.
pub(super) fn build() -> Result<(), String> {
    PROGRAMS.iter().try_for_each(|name| program::build_peer(name).map(drop))
}

/// It means to set WAL, but asks for a pragma that does not exist: SQLite's rollback journal it is.
fn effectum(plan: &Plan) -> Result<Outcome, BoxError> {
    start("effectum", plan, None, "SELECT count(*) FROM jobs WHERE status = 'succeeded'")
}

/// WAL is a property of the file: set beforehand, it stays.
fn effectum_wal(plan: &Plan) -> Result<Outcome, BoxError> {
    rusqlite::Connection::open(&plan.database)?.pragma_update(None, "journal_mode", "WAL")?;
    effectum(plan)
}

fn apalis(plan: &Plan) -> Result<Outcome, BoxError> {
    start("apalis", plan, None, "SELECT count(*) FROM Jobs WHERE status = 'Done'")
}

/// Its index on the worker leads SQLite to read all that the worker ever did, for each batch of results.
fn apalis_lighter(plan: &Plan) -> Result<Outcome, BoxError> {
    start("apalis", plan, Some("lighter"), "SELECT count(*) FROM Jobs WHERE status = 'Done'")
}

fn start(name: &str, plan: &Plan, arg: Option<&str>, completed: &'static str) -> Result<Outcome, BoxError> {
    let program = program::peer_path(name)?;
    let mut command = Command::new(&program);
    command.arg(&plan.database).arg(plan.tasks.to_string()).args(arg);
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}; the benchmark `jobs` builds it", program.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let answer = String::from_utf8_lossy(&output.stdout);
    let [enqueue, drain, sum] =
        numbers(&answer).ok_or_else(|| format!("{} answered {answer:?}", program.display()))?;
    let [enqueue, drain] = [enqueue, drain].map(Duration::from_secs_f64);
    // A sum of numbers below a million is exact in 53 bits.
    Ok(Outcome { enqueue, drain, sum: sum as u64, completed })
}
