//! Fuzzing: what reads strangers' bytes, with bytes that nobody would think of.
//!
//! Owns how the targets in `fuzz/` are built and run, and how many executions each gets. What must hold for any bytes
//! stands in the targets. Without a sanitizer: all of it is safe Rust, so what is looked for are panics and wrong
//! answers, and a sanitizer would only make that slower.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::args::FuzzOptions;
use crate::fault::Fault;
use crate::needs;
use crate::step::{Outcome, Step, run_all};
use crate::workspace::{Workspace, answers, shown, watched_errors};

/// Executions of all targets together: in the full run 10 million for JSONL, and 10 million for what a broker sends.
const SHORT: u64 = 800_000;
const FULL: u64 = 20_000_000;

/// The targets; how many of [`SHARES`] executions are theirs: one of `infer` loads a database and reads it back, and takes
/// as long as a hundred others; and the longest input. Long ones are slow, and find nothing more: blocks of `cut` have up
/// to 256 bytes, a thousand brackets with their ends are too deep for `parse`, and 40 tables in each other, with a length
/// for each, for `tables` and `properties`.
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
const SHARES: u64 = 200;

/// An execution that takes longer than this, in seconds, hangs; memory is in MiB.
const LONGEST: u64 = 10;
const MEMORY: u64 = 1024;

/// The command `cargo xtask fuzz`.
pub(crate) fn run(workspace: &Workspace, options: FuzzOptions) -> ExitCode {
    let get = Step::new("set-up", || needs::set_up_fuzz(workspace));
    run_all(vec![get, step(workspace, options)], false)
}

/// It as a step of a run.
pub(crate) fn step(workspace: &Workspace, options: FuzzOptions) -> Step<'_> {
    Step::new("fuzz", move || fuzz(workspace, options))
}

fn fuzz(workspace: &Workspace, options: FuzzOptions) -> Result<Outcome, Fault> {
    let missing = |why: &str| Ok(Outcome::NotDone("NOT RUN", why.to_owned()));
    if !has_nightly(workspace) {
        return missing("no nightly toolchain (rustup toolchain install nightly)");
    }
    if needs::cargo_fuzz(workspace).is_none() {
        return missing("cargo-fuzz is not there, and could not be installed");
    }
    let executions = options.executions.unwrap_or(if options.short { SHORT } else { FULL });
    let mut counts = Vec::new();
    for (target, share, longest) in TARGETS {
        let wanted = (executions * share / SHARES).max(1);
        match judged(target, &mut command(workspace, (target, longest), wanted)?)? {
            Verdict::Ran(count) if count >= wanted => counts.push((target, count)),
            Verdict::Ran(count) => {
                return Ok(Outcome::Failed(format!("{target} ended after {count} of {wanted} executions")));
            }
            Verdict::Failed(why) => return Ok(Outcome::Failed(why)),
        }
    }
    println!();
    for (target, count) in &counts {
        println!("{target:10} {count:>10} executions");
    }
    println!("{:10} {:>10} executions", "all", counts.iter().map(|(_, count)| count).sum::<u64>());
    Ok(Outcome::Passed)
}

/// Asking whether a toolchain is there must not install it.
pub(crate) fn has_nightly(workspace: &Workspace) -> bool {
    let mut command = workspace.program("cargo", ["+nightly", "--version"]);
    answers(command.env("RUSTUP_AUTO_INSTALL", "0"))
}

/// Runs a target so many times. What it finds interesting is kept under the target folder, for the next run to begin
/// with; an input that fails, under `fuzz/artifacts`.
fn command(
    workspace: &Workspace,
    (target, longest): (&str, usize),
    executions: u64,
) -> Result<Command, Fault> {
    let build = workspace.target().join("fuzz");
    let corpus = build.join("corpus").join(target);
    std::fs::create_dir_all(&corpus)
        .map_err(|error| Fault::System(format!("cannot make {}: {error}", corpus.display())))?;
    let words = ["+nightly", "fuzz", "run", "--fuzz-dir", "fuzz", "--sanitizer", "none", "--target-dir"];
    let mut command = workspace.program("cargo", words);
    command.arg(build).arg(target).arg(corpus).arg(seeds(workspace, target));
    command.args(["--", "-verbosity=0", "-print_final_stats=1"]);
    command.args([format!("-runs={executions}"), format!("-timeout={LONGEST}")]);
    command.args([format!("-max_len={longest}"), format!("-rss_limit_mb={MEMORY}")]);
    command.env("PATH", needs::path_with_tools()?);
    Ok(command)
}

/// Inputs to begin with.
fn seeds(workspace: &Workspace, target: &str) -> PathBuf {
    workspace.root().join("fuzz").join("seeds").join(target)
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// So many executions, all well.
    Ran(u64),
    Failed(String),
}

fn judged(target: &str, command: &mut Command) -> Result<Verdict, Fault> {
    let line = shown(command);
    println!("{line}");
    let (mut count, mut kept) = (0, None);
    let status = watched_errors(command, |line| {
        // Words that it thinks would do well in a dictionary are many, and of no use to people.
        if !line.starts_with(['"', '#']) {
            eprintln!("{line}");
        }
        count = after(line, "stat::number_of_executed_units:").and_then(|n| n.parse().ok()).unwrap_or(count);
        kept = kept.take().or_else(|| after(line, "Test unit written to").map(str::to_owned));
    })?;
    Ok(match (status.success(), kept) {
        (true, None) => Verdict::Ran(count),
        (_, Some(kept)) => {
            Verdict::Failed(format!("{target} failed after {count} executions; the input is in {kept}"))
        }
        (false, None) => Verdict::Failed(format!("`{line}`")),
    })
}

/// What stands behind these words.
fn after<'a>(line: &'a str, words: &str) -> Option<&'a str> {
    line.split_once(words).map(|(_, rest)| rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(script: &str, expected: &Verdict) {
        let verdict = judged("cut", Command::new("sh").args(["-c", script])).unwrap();
        match (&verdict, expected) {
            (Verdict::Failed(found), Verdict::Failed(part)) => {
                assert!(found.contains(part.as_str()), "{found}");
            }
            _ => assert_eq!(&verdict, expected, "{script}"),
        }
    }

    #[test]
    fn what_libfuzzer_says_is_understood() {
        let ran = "echo 'stat::number_of_executed_units: 2000' >&2";
        check(ran, &Verdict::Ran(2_000));
        check("true", &Verdict::Ran(0));
        check(&format!("{ran}; exit 1"), &Verdict::Failed("sh -c".to_owned()));
        let kept =
            "echo \"artifact_prefix='a/'; Test unit written to fuzz/artifacts/cut/crash-1\" >&2; exit 77";
        check(kept, &Verdict::Failed("the input is in fuzz/artifacts/cut/crash-1".to_owned()));
    }

    #[test]
    fn each_target_has_its_share_and_its_seeds() {
        assert_eq!(TARGETS.iter().map(|(_, share, _)| share).sum::<u64>(), SHARES);
        let workspace = Workspace::find().unwrap();
        for (target, ..) in TARGETS {
            let seeds = seeds(&workspace, target);
            assert!(std::fs::read_dir(&seeds).unwrap().count() > 0, "{}", seeds.display());
        }
    }
}
