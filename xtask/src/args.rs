//! What was typed after `cargo xtask`, and the help that explains it.
//!
//! Owns the grammar of the commands. It looks at nothing but its arguments: no file, no environment.

use std::ffi::OsString;
use std::str::FromStr;

use crate::fault::Fault;
use crate::proofs::Proof;

/// One chore, understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help(&'static str),
    Test(TestOptions),
    Prove(ProveOptions),
    Crash(CrashOptions),
    Bench(Vec<OsString>),
}

/// How much of the whole test run is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    pub(crate) fast: bool,
    pub(crate) fail_fast: bool,
}

/// Which proofs are wanted, and how thorough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProveOptions {
    pub(crate) full: bool,
    pub(crate) only: Option<Proof>,
}

/// Which crash run is wanted. What is not said is the crash run's own choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CrashOptions {
    pub(crate) victim: Victim,
    pub(crate) disk: Disk,
    pub(crate) rounds: Option<u32>,
    pub(crate) seed: Option<u64>,
}

/// Who is killed in a crash run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Victim {
    #[default]
    Jobs,
    Scan,
}

/// What is wrong with the disk in a crash run of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Disk {
    #[default]
    Sound,
    Full,
    Failing,
}

impl Disk {
    const ALL: [Disk; 3] = [Disk::Sound, Disk::Full, Disk::Failing];

    /// As it is typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Disk::Sound => "none",
            Disk::Full => "enospc",
            Disk::Failing => "eio",
        }
    }
}

pub(crate) const HELP: &str = "\
The house's own chores.

Usage: cargo xtask COMMAND [OPTIONS]

Commands:
  test    the whole test run: format, lints, tests, docs, proofs, crashes, dependencies
  prove   the concurrency proofs of crates/pool
  crash   real workers and scans, killed at random, on sound and on bad disks
  bench   benchmarks against named peers
  help    this text; `cargo xtask COMMAND --help` for one command

Examples:
  cargo xtask test                   everything, as continuous integration runs it
  cargo xtask test --fast            what to run before each commit
  cargo xtask prove --full           many more schedules, takes long
  cargo xtask crash jobs             kills workers 50 times and looks at what is left
  cargo xtask crash scan             kills scans and compares what they come to in the end
  cargo xtask bench                  the names of the benchmarks

Exit codes: 0 all is well, 1 something for you to put right, 2 the system failed
";

pub(crate) const TEST_HELP: &str = "\
The whole test run, with a table of the steps at the end.

Usage: cargo xtask test [--fast] [--fail-fast]

Options:
  --fast        only format, lints, tests and doc tests
  --fail-fast   stop at the first step that fails; without it the later steps still run
  -h, --help    this text

Steps:
  set-up        gets what the tests need and is not there: cargo-deny, strace
  format        cargo fmt --check
  lints         cargo clippy, warnings are errors
  tests         cargo nextest run (cargo test where it is not installed), ignored tests as well
  doc tests     cargo test --doc
  docs          cargo doc, warnings are errors
  shuttle, loom, miri   as in `cargo xtask prove`
  crash jobs, enospc, eio   as in `cargo xtask crash jobs`, 50, 5 and 10 rounds
  crash scan    as in `cargo xtask crash scan`, 50 rounds
  dependencies  cargo deny: licences, duplicates, sources
  advisories    cargo deny: known vulnerabilities; NOT CHECKED when their database is out of reach

Examples:
  cargo xtask test
  cargo xtask test --fast --fail-fast
";

pub(crate) const PROVE_HELP: &str = "\
The concurrency proofs of crates/pool.

Usage: cargo xtask prove [--full] [--only NAME]

Options:
  --full        20000 schedules per shuttle test instead of 200
  --only NAME   one proof: shuttle, loom or miri
  -h, --help    this text

Proofs:
  shuttle   the pool's own scenarios under random schedules
  loom      its smallest building blocks under every schedule
  miri      its unit tests without undefined behaviour; needs the miri component of a toolchain

Examples:
  cargo xtask prove
  cargo xtask prove --full --only shuttle
";

pub(crate) const CRASH_HELP: &str = "\
Real processes, killed with kill -9 at random moments, and a look at what is left.

jobs: workers on one database are killed, or stopped until their leases have run out. Afterwards:
every acknowledged task has come to its end, with one effect per key, nothing was finished twice or
by somebody who had lost it, the database is sound, and the tasks of the dead were taken over within
two lease lengths.

scan: scans of made-up trees, first ones and ones after changes, are killed up to four times each
and gone on with. Afterwards: the catalog is that of a scan which nobody disturbed, row for row, and
nothing that was committed before a kill was walked or read again.

Usage: cargo xtask crash jobs [--rounds N] [--seed S] [--fault NAME]
       cargo xtask crash scan [--rounds N] [--seed S]

Options:
  --rounds N     how often somebody is killed or stopped, or the disk is filled; 50 without it
  --seed S       the choices of an earlier run again, as it printed them; moments still vary
  --fault NAME   jobs: what is wrong with the disk:
                   none     nothing, the default
                   enospc   it is full now and then: a small tmpfs; needs the right to mount one
                   eio      reads, writes and syncs fail now and then; needs strace
  -h, --help     this text

Where the machine does not allow a fault, the run is NOT DONE and says why. Files of a run in which
something was found are kept, and their folder is named.

Examples:
  cargo xtask crash jobs
  cargo xtask crash jobs --rounds 1000
  cargo xtask crash jobs --fault enospc --rounds 5
  cargo xtask crash jobs --rounds 10 --seed 4711
  cargo xtask crash scan --rounds 500
";

pub(crate) const BENCH_HELP: &str = "\
Benchmarks against named peers, in a release build.

Usage: cargo xtask bench [NAME [ARGS...]]

Without NAME it lists the names. ARGS go to the benchmark as they are.

Examples:
  cargo xtask bench
  cargo xtask bench NAME --help
";

/// Understands the words after `cargo xtask`.
pub(crate) fn parse(words: impl Iterator<Item = OsString>) -> Result<Command, Fault> {
    let words: Vec<OsString> = words.collect();
    let Some((name, rest)) = words.split_first() else {
        return Ok(Command::Help(HELP));
    };
    match name.to_str() {
        Some("help" | "--help" | "-h") => Ok(Command::Help(HELP)),
        Some("test") => parse_test(rest),
        Some("prove") => parse_prove(rest),
        Some("crash") => parse_crash(rest),
        Some("bench") => Ok(parse_bench(rest)),
        _ => Err(Fault::User(format!(
            "no command {name:?}; there are test, prove, crash, bench and help (see `cargo xtask --help`)"
        ))),
    }
}

fn parse_test(words: &[OsString]) -> Result<Command, Fault> {
    let mut options = TestOptions::default();
    for word in words {
        match word.to_str() {
            Some("--fast") => options.fast = true,
            Some("--fail-fast") => options.fail_fast = true,
            Some("--help" | "-h") => return Ok(Command::Help(TEST_HELP)),
            _ => return Err(unknown("test", word, "--fast, --fail-fast and --help")),
        }
    }
    Ok(Command::Test(options))
}

fn parse_prove(words: &[OsString]) -> Result<Command, Fault> {
    let mut options = ProveOptions::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--full") => options.full = true,
            Some("--only") => options.only = Some(proof(words.next())?),
            Some("--help" | "-h") => return Ok(Command::Help(PROVE_HELP)),
            _ => return Err(unknown("prove", word, "--full, --only NAME and --help")),
        }
    }
    Ok(Command::Prove(options))
}

fn parse_crash(words: &[OsString]) -> Result<Command, Fault> {
    let mut words = words.iter();
    let victim = match words.next().map(|word| (word, word.to_str())) {
        Some((_, Some("jobs"))) => Victim::Jobs,
        Some((_, Some("scan"))) => Victim::Scan,
        Some((_, Some("--help" | "-h"))) => return Ok(Command::Help(CRASH_HELP)),
        Some((word, _)) => {
            let text = format!("crash: nothing called {word:?} to crash; there are jobs and scan");
            return Err(Fault::User(text));
        }
        None => return Err(Fault::User("crash: say what to crash; there are jobs and scan".to_owned())),
    };
    let mut options = CrashOptions { victim, ..CrashOptions::default() };
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--rounds") => options.rounds = Some(number("--rounds", words.next())?),
            Some("--seed") => options.seed = Some(number("--seed", words.next())?),
            Some("--fault") if victim == Victim::Jobs => options.disk = disk(words.next())?,
            Some("--help" | "-h") => return Ok(Command::Help(CRASH_HELP)),
            _ if victim == Victim::Scan => {
                return Err(unknown("crash scan", word, "--rounds N, --seed S and --help"));
            }
            _ => return Err(unknown("crash", word, "--rounds N, --seed S, --fault NAME and --help")),
        }
    }
    Ok(Command::Crash(options))
}

fn number<T: FromStr>(option: &str, word: Option<&OsString>) -> Result<T, Fault> {
    let read = word.and_then(|word| word.to_str()).and_then(|word| word.parse().ok());
    read.ok_or_else(|| {
        let found = word.map_or_else(|| "nothing".to_owned(), |word| format!("{word:?}"));
        Fault::User(format!("crash: {option} wants a whole number from 0 on, not {found}"))
    })
}

fn disk(name: Option<&OsString>) -> Result<Disk, Fault> {
    let Some(name) = name else {
        return Err(Fault::User("crash: --fault wants a name: none, enospc or eio".to_owned()));
    };
    let known = Disk::ALL.into_iter().find(|disk| name == disk.name());
    known.ok_or_else(|| Fault::User(format!("crash: no fault {name:?}; there are none, enospc and eio")))
}

/// Only a first `--help` is ours: after the name, every word belongs to the benchmark.
fn parse_bench(words: &[OsString]) -> Command {
    match words.first().and_then(|word| word.to_str()) {
        Some("--help" | "-h") => Command::Help(BENCH_HELP),
        _ => Command::Bench(words.to_vec()),
    }
}

fn proof(name: Option<&OsString>) -> Result<Proof, Fault> {
    let Some(name) = name else {
        return Err(Fault::User("prove: --only wants a name: shuttle, loom or miri".to_owned()));
    };
    let known = Proof::ALL.into_iter().find(|proof| name == proof.name());
    known.ok_or_else(|| Fault::User(format!("prove: no proof {name:?}; there are shuttle, loom and miri")))
}

fn unknown(command: &str, word: &OsString, legal: &str) -> Fault {
    Fault::User(format!(
        "{command}: {word:?} is not understood; {command} takes {legal} (see `cargo xtask {command} --help`)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Command, Fault> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[track_caller]
    fn check(line: &str, expected: &Command) {
        assert_eq!(parse_line(line).as_ref(), Ok(expected), "cargo xtask {line}");
    }

    /// Every rejected line must name what was wrong and what would be right.
    #[track_caller]
    fn check_rejected(line: &str, wrong: &str, legal: &str) {
        let Err(fault) = parse_line(line) else {
            panic!("cargo xtask {line} was accepted");
        };
        let text = fault.to_string();
        assert!(text.contains(wrong) && text.contains(legal), "cargo xtask {line} said: {text}");
        assert_eq!(fault.exit_code(), 1, "cargo xtask {line}");
    }

    #[test]
    fn lines_that_are_understood() {
        let test = |fast, fail_fast| Command::Test(TestOptions { fast, fail_fast });
        let prove = |full, only| Command::Prove(ProveOptions { full, only });
        let crash =
            |disk, rounds, seed| Command::Crash(CrashOptions { victim: Victim::Jobs, disk, rounds, seed });
        let scan = |rounds, seed| {
            Command::Crash(CrashOptions { victim: Victim::Scan, disk: Disk::Sound, rounds, seed })
        };
        let bench = |words: &[&str]| Command::Bench(words.iter().map(OsString::from).collect());

        check("", &Command::Help(HELP));
        check("--help", &Command::Help(HELP));
        check("test", &test(false, false));
        check("test --fast", &test(true, false));
        check("test --fail-fast --fast", &test(true, true));
        check("test --fast -h", &Command::Help(TEST_HELP));
        check("prove", &prove(false, None));
        check("prove --full --only loom", &prove(true, Some(Proof::Loom)));
        check("prove --only miri", &prove(false, Some(Proof::Miri)));
        check("prove --help", &Command::Help(PROVE_HELP));
        check("crash --help", &Command::Help(CRASH_HELP));
        check("crash jobs", &crash(Disk::Sound, None, None));
        check("crash jobs --rounds 1000 --seed 7", &crash(Disk::Sound, Some(1000), Some(7)));
        check("crash jobs --fault enospc", &crash(Disk::Full, None, None));
        check("crash jobs --fault eio --rounds 5 -h", &Command::Help(CRASH_HELP));
        check("crash scan", &scan(None, None));
        check("crash scan --seed 4 --rounds 9", &scan(Some(9), Some(4)));
        check("crash scan --help", &Command::Help(CRASH_HELP));
        check("bench", &bench(&[]));
        check("bench --help", &Command::Help(BENCH_HELP));
        check("bench submit --help --fast", &bench(&["submit", "--help", "--fast"]));
    }

    #[test]
    fn lines_that_are_not() {
        check_rejected("tests", "\"tests\"", "test, prove, crash, bench");
        check_rejected("crash", "what to crash", "jobs");
        check_rejected("crash pool", "\"pool\"", "jobs and scan");
        check_rejected("crash scan --fault eio", "\"--fault\"", "--rounds N, --seed S");
        check_rejected("crash jobs --round 5", "\"--round\"", "--rounds N, --seed S, --fault NAME");
        check_rejected("crash jobs --rounds many", "\"many\"", "a whole number");
        check_rejected("crash jobs --seed", "nothing", "a whole number");
        check_rejected("crash jobs --fault fire", "\"fire\"", "none, enospc and eio");
        check_rejected("crash jobs --fault", "wants a name", "none, enospc or eio");
        check_rejected("test --quick", "\"--quick\"", "--fast, --fail-fast");
        check_rejected("test prove", "\"prove\"", "--fast, --fail-fast");
        check_rejected("prove --fast", "\"--fast\"", "--full, --only NAME");
        check_rejected("prove --only", "wants a name", "shuttle, loom or miri");
        check_rejected("prove --only --full", "\"--full\"", "shuttle, loom and miri");
        check_rejected("prove --only tsan", "\"tsan\"", "shuttle, loom and miri");
    }

    #[test]
    fn help_fits_a_terminal() {
        for line in [HELP, TEST_HELP, PROVE_HELP, CRASH_HELP, BENCH_HELP].iter().flat_map(|text| text.lines())
        {
            assert!(line.chars().count() <= 100, "too wide: {line}");
        }
    }
}
