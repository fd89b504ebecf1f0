//! Benchmarks: builds the benches in release and hands the words over.
//!
//! Owns nothing but the call, and the programs that have to be there for it. Which benchmarks exist and what they print
//! is known in `benches/` alone.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::fault::Fault;
use crate::needs;
use crate::workspace::{Workspace, succeeds};

/// Runs a benchmark, or lists the names when none is given.
pub(crate) fn run(workspace: &Workspace, words: &[OsString]) -> Result<ExitCode, Fault> {
    let mut command = workspace.cargo(["run", "--quiet", "--release", "-p", "gristmill-benches", "--"]);
    match words {
        [] => command.arg("--list"),
        words => command.args(words),
    };
    match words.first().and_then(|name| name.to_str()) {
        Some("dedup") => {
            if wants_peers(words) {
                needs::set_up_peers(workspace)?;
            }
            command.env("PATH", needs::path_with_tools()?);
        }
        Some("import") => {
            if wants_peers(words) {
                needs::set_up_import_peers(workspace)?;
            }
            command.env("PATH", needs::path_with_python()?);
        }
        Some("amqp") => {
            if !wants_help(words) {
                needs::set_up_broker(workspace)?;
            }
            if wants_peers(words) {
                needs::set_up_amqp_peers(workspace)?;
            }
            command.env("PATH", needs::path_with_python()?);
        }
        _ => {}
    }
    Ok(if succeeds(&mut command)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A quick look makes do with the peers that are there, and a choice of peers with those that were chosen: none of them
/// is worth half an hour of building to somebody who did not ask for it.
fn wants_peers(words: &[OsString]) -> bool {
    !wants_help(words) && !words.iter().any(|word| word == "--quick" || word == "--peers")
}

fn wants_help(words: &[OsString]) -> bool {
    words.iter().any(|word| word == "--help" || word == "-h")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_installed_only_for_a_whole_run() {
        let wants = |line: &str| wants_peers(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(wants("dedup"));
        assert!(wants("dedup --only small --warm"));
        assert!(!wants("dedup --quick"));
        assert!(!wants("dedup --peers yadf"));
        assert!(!wants("dedup --help"));
        assert!(!wants("amqp -h"));
        assert!(wants("import --scale 0.3"));
        assert!(wants("amqp --queues quorum --recovery"));
    }
}
