//! The command `cargo xtask bench`: builds the benchmarks in release mode and passes the arguments on.
//!
//! Owns the call and the tools that it needs. The benchmarks and their output are defined in `benches/`.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::error::Error;
use crate::tools;
use crate::workspace::{Workspace, run_program};

/// Runs a benchmark, or lists the names if none is given.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode, Error> {
    let mut command = workspace.cargo(["run", "--quiet", "--release", "-p", "gristmill-benches", "--"]);
    match args {
        [] => command.arg("--list"),
        args => command.args(args),
    };
    match args.first().and_then(|name| name.to_str()) {
        Some("dedup") => {
            if wants_peers(args) {
                tools::set_up_dedup_peers(workspace)?;
            }
            command.env("PATH", tools::path_with_tools()?);
        }
        Some("import") => {
            if wants_peers(args) {
                tools::set_up_import_peers(workspace)?;
            }
            command.env("PATH", tools::path_with_python()?);
        }
        Some("amqp") => {
            if !wants_help(args) {
                tools::set_up_broker()?;
            }
            if wants_peers(args) {
                tools::set_up_amqp_peers(workspace)?;
            }
            command.env("PATH", tools::path_with_python()?);
        }
        _ => {}
    }
    Ok(if run_program(&mut command)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether missing peers are installed, which takes up to half an hour: not with `--quick` or `--peers`.
fn wants_peers(args: &[OsString]) -> bool {
    !wants_help(args) && !args.iter().any(|arg| arg == "--quick" || arg == "--peers")
}

fn wants_help(args: &[OsString]) -> bool {
    args.iter().any(|arg| arg == "--help" || arg == "-h")
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
