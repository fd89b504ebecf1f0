//! Fuzzing of the parsers and of type inference.
//!
//! Owns how the targets in `fuzz/` are built and run, and the number of executions of each. The targets define the
//! rules to check. No sanitizer is used: all tested code is safe Rust, so the errors to find are panics and wrong
//! results, and a sanitizer would only be slower.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::args::FuzzOptions;
use crate::error::Error;
use crate::step::{Outcome, Step, run_all};
use crate::tools;
use crate::workspace::{Workspace, display, runs, watch_stderr};

/// Executions of all targets together. Of the full run 10 million are for JSONL, and 10 million for a broker's bytes.
const SHORT_EXECUTIONS: u64 = 800_000;
const FULL_EXECUTIONS: u64 = 20_000_000;

/// Name of each target, its share of [`TOTAL_SHARES`] executions, and the maximum length of its input. An execution of
/// `infer` loads a database and reads it back, which takes as long as a hundred others. Longer inputs are slow and find
/// no more: blocks of `cut` have up to 256 bytes, a thousand nested brackets are too deep for `parse`, and 40 nested
/// tables for `tables` and `properties`.
const TARGETS: [(&str, u64, usize); 8] = [
    ("cut", 30, 600),
    ("parse", 68, 2_100),
    ("infer", 2, 300),
    ("frames", 40, 1_200),
    ("methods", 10, 600),
    ("properties", 20, 800),
    ("tables", 20, 800),
    ("uris", 10, 200),
];
const TOTAL_SHARES: u64 = 200;

/// An execution that takes longer counts as a hang.
const TIMEOUT_SECONDS: u64 = 10;
const MAX_MEMORY_MIB: u64 = 1024;

pub(crate) fn run(workspace: &Workspace, options: FuzzOptions) -> ExitCode {
    let set_up = Step::new("set-up", || tools::set_up_fuzz(workspace));
    run_all(vec![set_up, step(workspace, options)], false)
}

pub(crate) fn step(workspace: &Workspace, options: FuzzOptions) -> Step<'_> {
    Step::new("fuzz", move || fuzz(workspace, options))
}

fn fuzz(workspace: &Workspace, options: FuzzOptions) -> Result<Outcome, Error> {
    let not_run = |why: &str| Ok(Outcome::NotDone("NOT RUN", why.to_owned()));
    if !has_nightly(workspace) {
        return not_run("no nightly toolchain (rustup toolchain install nightly)");
    }
    if tools::find_program("cargo-fuzz").is_none() {
        return not_run("cargo-fuzz is missing and could not be installed");
    }
    let executions = options.executions.unwrap_or(if options.short { SHORT_EXECUTIONS } else { FULL_EXECUTIONS });
    let mut counts = Vec::new();
    for (target, share, max_len) in TARGETS {
        let planned = (executions * share / TOTAL_SHARES).max(1);
        match run_target(target, &mut command(workspace, (target, max_len), planned)?)? {
            FuzzOutcome::Ran(count) if count >= planned => counts.push((target, count)),
            FuzzOutcome::Ran(count) => {
                return Ok(Outcome::Failed(format!("{target} ended after {count} of {planned} executions")));
            }
            FuzzOutcome::Failed(why) => return Ok(Outcome::Failed(why)),
        }
    }
    println!();
    for (target, count) in &counts {
        println!("{target:10} {count:>10} executions");
    }
    println!("{:10} {:>10} executions", "all", counts.iter().map(|(_, count)| count).sum::<u64>());
    Ok(Outcome::Passed)
}

/// Whether a nightly toolchain is installed. The check must not install it.
pub(crate) fn has_nightly(workspace: &Workspace) -> bool {
    let mut command = workspace.program("cargo", ["+nightly", "--version"]);
    runs(command.env("RUSTUP_AUTO_INSTALL", "0"))
}

/// The command that runs a target. Inputs that reach new code are kept under the target folder for the next run; an
/// input that fails is kept under `fuzz/artifacts`.
fn command(workspace: &Workspace, (target, max_len): (&str, usize), executions: u64) -> Result<Command, Error> {
    let build = workspace.target.join("fuzz");
    let corpus = build.join("corpus").join(target);
    std::fs::create_dir_all(&corpus)
        .map_err(|error| Error::System(format!("cannot create {}: {error}", corpus.display())))?;
    let args = ["+nightly", "fuzz", "run", "--fuzz-dir", "fuzz", "--sanitizer", "none", "--target-dir"];
    let mut command = workspace.program("cargo", args);
    command.arg(build).arg(target).arg(corpus).arg(seeds(workspace, target));
    command.args(["--", "-verbosity=0", "-print_final_stats=1"]);
    command.args([format!("-runs={executions}"), format!("-timeout={TIMEOUT_SECONDS}")]);
    command.args([format!("-max_len={max_len}"), format!("-rss_limit_mb={MAX_MEMORY_MIB}")]);
    command.env("PATH", tools::path_with_tools()?);
    Ok(command)
}

fn seeds(workspace: &Workspace, target: &str) -> PathBuf {
    workspace.root.join("fuzz").join("seeds").join(target)
}

#[derive(Debug, PartialEq, Eq)]
enum FuzzOutcome {
    /// Number of executions, none of which failed.
    Ran(u64),
    Failed(String),
}

fn run_target(target: &str, command: &mut Command) -> Result<FuzzOutcome, Error> {
    let line = display(command);
    println!("{line}");
    let (mut count, mut artifact) = (0, None);
    let status = watch_stderr(command, |line| {
        // Suggestions for a dictionary are not printed.
        if !line.starts_with(['"', '#']) {
            eprintln!("{line}");
        }
        count = text_after(line, "stat::number_of_executed_units:").and_then(|n| n.parse().ok()).unwrap_or(count);
        artifact = artifact.take().or_else(|| text_after(line, "Test unit written to").map(str::to_owned));
    })?;
    Ok(match (status.success(), artifact) {
        (true, None) => FuzzOutcome::Ran(count),
        (_, Some(artifact)) => {
            FuzzOutcome::Failed(format!("{target} failed after {count} executions; the input is in {artifact}"))
        }
        (false, None) => FuzzOutcome::Failed(format!("`{line}`")),
    })
}

fn text_after<'a>(line: &'a str, text: &str) -> Option<&'a str> {
    line.split_once(text).map(|(_, rest)| rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(script: &str, expected: &FuzzOutcome) {
        let outcome = run_target("cut", Command::new("sh").args(["-c", script])).unwrap();
        match (&outcome, expected) {
            (FuzzOutcome::Failed(found), FuzzOutcome::Failed(part)) => {
                assert!(found.contains(part.as_str()), "{found}");
            }
            _ => assert_eq!(&outcome, expected, "{script}"),
        }
    }

    #[test]
    fn output_of_libfuzzer_is_parsed() {
        let ran = "echo 'stat::number_of_executed_units: 2000' >&2";
        check(ran, &FuzzOutcome::Ran(2_000));
        check("true", &FuzzOutcome::Ran(0));
        check(&format!("{ran}; exit 1"), &FuzzOutcome::Failed("sh -c".to_owned()));
        let artifact = "echo \"artifact_prefix='a/'; Test unit written to fuzz/artifacts/cut/crash-1\" >&2; exit 77";
        check(artifact, &FuzzOutcome::Failed("the input is in fuzz/artifacts/cut/crash-1".to_owned()));
    }

    #[test]
    fn every_target_has_a_share_and_seeds() {
        assert_eq!(TARGETS.iter().map(|(_, share, _)| share).sum::<u64>(), TOTAL_SHARES);
        let workspace = Workspace::find().unwrap();
        for (target, ..) in TARGETS {
            let seeds = seeds(&workspace, target);
            assert!(std::fs::read_dir(&seeds).unwrap().count() > 0, "{}", seeds.display());
        }
    }
}
