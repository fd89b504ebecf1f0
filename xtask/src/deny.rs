//! The two steps of cargo-deny: the rules of `deny.toml`, and known vulnerabilities.
//!
//! Owns the reading of what cargo-deny says. The rules need no network. Advisories need their database; the
//! one excuse for not checking them is that it cannot be reached and no copy of it is here. Every other
//! trouble fails the step, so that a broken configuration never passes for a missing network.

use std::process::{Command, Output};

use crate::fault::Fault;
use crate::needs;
use crate::step::{Outcome, program};
use crate::workspace::{Workspace, captured, shown};

/// Licences, duplicates and sources.
pub(crate) fn rules(workspace: &Workspace) -> Result<Outcome, Fault> {
    program(&mut cargo_deny(workspace, &["check", "licenses", "bans", "sources"])?)
}

/// Known vulnerabilities, unsound and unmaintained crates, yanked versions.
pub(crate) fn advisories(workspace: &Workspace) -> Result<Outcome, Fault> {
    let first = reading(&mut cargo_deny(workspace, &["check", "advisories"])?)?;
    if first != Reading::Unreachable {
        return Ok(judged(first));
    }
    println!("the database cannot be reached: trying a copy fetched earlier");
    match reading(&mut cargo_deny(workspace, &["--offline", "check", "advisories"])?)? {
        Reading::Clean => Ok(Outcome::PassedBut("on a copy of the database fetched earlier".to_owned())),
        Reading::NoCopy => Ok(Outcome::NotDone("NOT CHECKED", "database unreachable".to_owned())),
        other => Ok(judged(other)),
    }
}

fn judged(reading: Reading) -> Outcome {
    match reading {
        Reading::Clean => Outcome::Passed,
        Reading::Findings => Outcome::Failed("see the findings above".to_owned()),
        Reading::Unreachable | Reading::NoCopy | Reading::Broken => {
            Outcome::Failed("cargo-deny could not check; its error stands above".to_owned())
        }
    }
}

fn cargo_deny(workspace: &Workspace, arguments: &[&str]) -> Result<Command, Fault> {
    let path = needs::cargo_deny(workspace)
        .ok_or_else(|| Fault::System("cargo-deny is not there; the step set-up gets it".to_owned()))?;
    Ok(workspace.program(path, arguments))
}

/// Runs cargo-deny in a language we can read, and passes on what it says.
fn reading(command: &mut Command) -> Result<Reading, Fault> {
    println!("{}", shown(command));
    // git translates its messages, and would ask for a password on the terminal.
    command.envs([("LC_ALL", "C"), ("GIT_TERMINAL_PROMPT", "0"), ("CARGO_TERM_COLOR", "never")]);
    let Output { status, stdout, stderr } = captured(command)?;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    eprint!("{stderr}");
    print!("{stdout}");
    Ok(read(status.success(), &stdout, &stderr))
}

/// What a run of `cargo deny check advisories` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Clean,
    Findings,
    /// The database could not be fetched for want of a network.
    Unreachable,
    /// Offline, and no copy of the database here.
    NoCopy,
    /// Anything else: no git, a bad `deny.toml`, a damaged or stale copy.
    Broken,
}

/// Standard output holds the verdict alone, and only when the check came to its end. So it is asked first:
/// the text of an advisory, which goes to standard error, may quote any message.
fn read(success: bool, stdout: &str, stderr: &str) -> Reading {
    if success {
        return Reading::Clean;
    }
    if stdout.lines().any(|line| line.trim() == "advisories FAILED") {
        return Reading::Findings;
    }
    let logged = |text: &str| stderr.lines().any(|line| line.contains("[ERROR]") && line.contains(text));
    let fatal = |start: &str| stderr.lines().any(|line| line.starts_with(start));
    if logged("failed to fetch advisory database") && fatal("fatal: unable to access ") {
        Reading::Unreachable
    } else if logged("failed to get 'FETCH_HEAD' metadata") && fatal("fatal: cannot change to ") {
        Reading::NoCopy
    } else {
        Reading::Broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that cargo-deny 0.20.2 really wrote to standard error; only paths are changed.
    macro_rules! captured {
        ($name:literal) => {
            include_str!(concat!("../captured/", $name, ".txt"))
        };
    }

    #[track_caller]
    fn check(success: bool, stdout: &str, stderr: &str, expected: Reading) {
        assert_eq!(read(success, stdout, stderr), expected, "{stdout}{stderr}");
    }

    #[test]
    fn a_check_that_came_to_its_end() {
        check(true, "advisories ok\n", "", Reading::Clean);
        check(false, "advisories FAILED\n", captured!("finding"), Reading::Findings);
    }

    #[test]
    fn a_finding_that_quotes_a_missing_network_is_still_a_finding() {
        check(false, "advisories FAILED\n", captured!("finding-quoting"), Reading::Findings);
    }

    #[test]
    fn no_network() {
        check(false, "", captured!("clone-without-network"), Reading::Unreachable);
        check(false, "", captured!("fetch-without-network"), Reading::Unreachable);
        check(false, "", captured!("clone-refused"), Reading::Unreachable);
        check(false, "", captured!("offline-without-copy"), Reading::NoCopy);
    }

    #[test]
    fn other_trouble_is_no_excuse() {
        check(false, "", captured!("clone-without-git"), Reading::Broken);
        check(false, "", captured!("clone-of-nothing"), Reading::Broken);
        check(false, "", captured!("offline-damaged-copy"), Reading::Broken);
        check(false, "", captured!("offline-stale-copy"), Reading::Broken);
        check(false, "", captured!("bad-configuration"), Reading::Broken);
        check(false, "", "", Reading::Broken);
    }

    #[test]
    fn only_an_unreachable_database_excuses() {
        assert_eq!(judged(Reading::Clean), Outcome::Passed);
        for reading in [Reading::Findings, Reading::Unreachable, Reading::NoCopy, Reading::Broken] {
            assert!(matches!(judged(reading), Outcome::Failed(_)), "{reading:?}");
        }
    }
}
