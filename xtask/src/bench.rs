//! Benchmarks: builds the benches in release and hands the words over.
//!
//! Owns nothing but the call. Which benchmarks exist and what they print is known in `benches/` alone.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::fault::Fault;
use crate::workspace::{Workspace, succeeds};

/// Runs a benchmark, or lists the names when none is given.
pub(crate) fn run(workspace: &Workspace, words: &[OsString]) -> Result<ExitCode, Fault> {
    let mut command = workspace.cargo(["run", "--quiet", "--release", "-p", "gristmill-benches", "--"]);
    match words {
        [] => command.arg("--list"),
        words => command.args(words),
    };
    Ok(if succeeds(&mut command)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
