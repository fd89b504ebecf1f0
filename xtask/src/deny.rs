//! The two steps of cargo-deny: the rules of `deny.toml`, and known vulnerabilities.
//!
//! Owns the interpretation of cargo-deny's output. The rules need no network. Advisories are NOT CHECKED only if their
//! database is unreachable and no copy of it exists. Every other error fails the step, so that a broken configuration
//! is not mistaken for a missing network.

use std::process::{Command, Output};

use crate::error::Error;
use crate::step::{Outcome, program};
use crate::tools;
use crate::workspace::{Workspace, display, run_captured};

/// Checks licences, duplicates and sources.
pub(crate) fn rules(workspace: &Workspace) -> Result<Outcome, Error> {
    program(&mut cargo_deny(workspace, &["check", "licenses", "bans", "sources"])?)
}

/// Checks for known vulnerabilities, unsound and unmaintained crates, and yanked versions.
pub(crate) fn advisories(workspace: &Workspace) -> Result<Outcome, Error> {
    let first = check_advisories(&mut cargo_deny(workspace, &["check", "advisories"])?)?;
    if first != Advisories::Unreachable {
        return Ok(outcome(first));
    }
    println!("the database is unreachable; trying a copy fetched earlier");
    match check_advisories(&mut cargo_deny(workspace, &["--offline", "check", "advisories"])?)? {
        Advisories::Clean => Ok(Outcome::PassedBut("on a copy of the database fetched earlier".to_owned())),
        Advisories::NoCopy => Ok(Outcome::NotDone("NOT CHECKED", "database unreachable".to_owned())),
        other => Ok(outcome(other)),
    }
}

fn outcome(result: Advisories) -> Outcome {
    match result {
        Advisories::Clean => Outcome::Passed,
        Advisories::Findings => Outcome::Failed("see the findings above".to_owned()),
        Advisories::Unreachable | Advisories::NoCopy | Advisories::Broken => {
            Outcome::Failed("cargo-deny could not check; see its error above".to_owned())
        }
    }
}

fn cargo_deny(workspace: &Workspace, arguments: &[&str]) -> Result<Command, Error> {
    let path = tools::find_program("cargo-deny")
        .ok_or_else(|| Error::System("cargo-deny is missing; the step set-up installs it".to_owned()))?;
    Ok(workspace.program(path, arguments))
}

/// Runs cargo-deny with English messages, prints its output, and interprets it.
fn check_advisories(command: &mut Command) -> Result<Advisories, Error> {
    println!("{}", display(command));
    // git translates its messages, and would ask for a password on the terminal.
    command.envs([("LC_ALL", "C"), ("GIT_TERMINAL_PROMPT", "0"), ("CARGO_TERM_COLOR", "never")]);
    let Output { status, stdout, stderr } = run_captured(command)?;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    eprint!("{stderr}");
    print!("{stdout}");
    Ok(parse_output(status.success(), &stdout, &stderr))
}

/// Result of `cargo deny check advisories`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advisories {
    Clean,
    Findings,
    /// The database could not be fetched, because the network is unreachable.
    Unreachable,
    /// cargo-deny ran offline, and there is no copy of the database.
    NoCopy,
    /// Any other error: no git, a bad `deny.toml`, a damaged or stale copy.
    Broken,
}

/// Interprets the output. Standard output is read first: it has only the result, and only if the check was completed,
/// while advisories on standard error may quote any message.
fn parse_output(success: bool, stdout: &str, stderr: &str) -> Advisories {
    if success {
        return Advisories::Clean;
    }
    if stdout.lines().any(|line| line.trim() == "advisories FAILED") {
        return Advisories::Findings;
    }
    let logged = |text: &str| stderr.lines().any(|line| line.contains("[ERROR]") && line.contains(text));
    let fatal = |start: &str| stderr.lines().any(|line| line.starts_with(start));
    if logged("failed to fetch advisory database") && fatal("fatal: unable to access ") {
        Advisories::Unreachable
    } else if logged("failed to get 'FETCH_HEAD' metadata") && fatal("fatal: cannot change to ") {
        Advisories::NoCopy
    } else {
        Advisories::Broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output that cargo-deny 0.20.2 wrote to standard error, with changed paths.
    macro_rules! captured {
        ($name:literal) => {
            include_str!(concat!("../captured/", $name, ".txt"))
        };
    }

    #[track_caller]
    fn check(success: bool, stdout: &str, stderr: &str, expected: Advisories) {
        assert_eq!(parse_output(success, stdout, stderr), expected, "{stdout}{stderr}");
    }

    #[test]
    fn completed_check_is_clean_or_has_findings() {
        check(true, "advisories ok\n", "", Advisories::Clean);
        check(false, "advisories FAILED\n", captured!("finding"), Advisories::Findings);
    }

    #[test]
    fn finding_that_quotes_a_network_error_is_a_finding() {
        check(false, "advisories FAILED\n", captured!("finding-quoting"), Advisories::Findings);
    }

    #[test]
    fn network_errors_make_the_database_unreachable() {
        check(false, "", captured!("clone-without-network"), Advisories::Unreachable);
        check(false, "", captured!("fetch-without-network"), Advisories::Unreachable);
        check(false, "", captured!("clone-refused"), Advisories::Unreachable);
        check(false, "", captured!("offline-without-copy"), Advisories::NoCopy);
    }

    #[test]
    fn other_errors_are_broken() {
        check(false, "", captured!("clone-without-git"), Advisories::Broken);
        check(false, "", captured!("clone-of-nothing"), Advisories::Broken);
        check(false, "", captured!("offline-damaged-copy"), Advisories::Broken);
        check(false, "", captured!("offline-stale-copy"), Advisories::Broken);
        check(false, "", captured!("bad-configuration"), Advisories::Broken);
        check(false, "", "", Advisories::Broken);
    }

    #[test]
    fn only_a_clean_check_passes() {
        assert_eq!(outcome(Advisories::Clean), Outcome::Passed);
        for result in [Advisories::Findings, Advisories::Unreachable, Advisories::NoCopy, Advisories::Broken] {
            assert!(matches!(outcome(result), Outcome::Failed(_)), "{result:?}");
        }
    }
}
