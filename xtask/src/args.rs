//! What was typed after `cargo xtask`.
//!
//! Owns the grammar of the commands. It looks at nothing but its arguments: no file, no environment.

mod help;

use std::ffi::OsString;
use std::str::FromStr;

use self::help::{BENCH_HELP, CHECK_HELP, CRASH_HELP, FUZZ_HELP, HELP, PROVE_HELP, TEST_HELP};
use crate::check::{self, CHECKERS, Checker};
use crate::fault::Fault;
use crate::proofs::Proof;

/// One chore, understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help(&'static str),
    Test(TestOptions),
    Prove(ProveOptions),
    Check(CheckOptions),
    Crash(CrashOptions),
    Fuzz(FuzzOptions),
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

/// Which randomised checker to run, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckOptions {
    pub(crate) checker: &'static Checker,
    /// The checker's own number without it.
    pub(crate) rounds: Option<u64>,
    /// A random one without it.
    pub(crate) seed: Option<u64>,
}

/// Which crash run is wanted. What is not said is the crash run's own choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CrashOptions {
    pub(crate) victim: Victim,
    pub(crate) disk: Disk,
    pub(crate) rounds: Option<u32>,
    pub(crate) seed: Option<u64>,
}

/// How long is fuzzed: the full run, unless something else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FuzzOptions {
    pub(crate) short: bool,
    pub(crate) executions: Option<u64>,
}

/// Who is killed in a crash run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Victim {
    #[default]
    Jobs,
    Scan,
    Import,
    Consume,
}

impl Victim {
    /// As `crash` and what is typed after it.
    fn command(self) -> &'static str {
        match self {
            Victim::Jobs => "crash",
            Victim::Scan => "crash scan",
            Victim::Import => "crash import",
            Victim::Consume => "crash consume",
        }
    }
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
        Some("check") => parse_check(rest),
        Some("crash") => parse_crash(rest),
        Some("fuzz") => parse_fuzz(rest),
        Some("bench") => Ok(parse_bench(rest)),
        _ => Err(Fault::User(format!(
            "no command {name:?}; there are test, prove, check, crash, fuzz, bench and help (see `cargo xtask --help`)"
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

fn parse_check(words: &[OsString]) -> Result<Command, Fault> {
    let mut words = words.iter();
    let Some(name) = words.next() else {
        return Err(Fault::User(format!("check: no checker named; there are: {}", check::names())));
    };
    if name == "--help" || name == "-h" {
        return Ok(Command::Help(CHECK_HELP));
    }
    let Some(checker) = CHECKERS.iter().find(|checker| name == checker.name) else {
        return Err(Fault::User(format!("check: no checker {name:?}; there are: {}", check::names())));
    };
    let mut options = CheckOptions { checker, rounds: None, seed: None };
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--rounds") => options.rounds = Some(number("check: --rounds", words.next())?),
            Some("--seed") => options.seed = Some(number("check: --seed", words.next())?),
            Some("--help" | "-h") => return Ok(Command::Help(CHECK_HELP)),
            _ => return Err(unknown("check", word, "--rounds N, --seed S and --help")),
        }
    }
    Ok(Command::Check(options))
}

fn parse_crash(words: &[OsString]) -> Result<Command, Fault> {
    let mut words = words.iter();
    let victim = match words.next().map(|word| (word, word.to_str())) {
        Some((_, Some("jobs"))) => Victim::Jobs,
        Some((_, Some("scan"))) => Victim::Scan,
        Some((_, Some("import"))) => Victim::Import,
        Some((_, Some("consume"))) => Victim::Consume,
        Some((_, Some("--help" | "-h"))) => return Ok(Command::Help(CRASH_HELP)),
        Some((word, _)) => {
            let text =
                format!("crash: nothing called {word:?} to crash; there are jobs, scan, import and consume");
            return Err(Fault::User(text));
        }
        None => {
            let text = "crash: say what to crash; there are jobs, scan, import and consume";
            return Err(Fault::User(text.to_owned()));
        }
    };
    let mut options = CrashOptions { victim, ..CrashOptions::default() };
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--rounds") => options.rounds = Some(number("crash: --rounds", words.next())?),
            Some("--seed") => options.seed = Some(number("crash: --seed", words.next())?),
            Some("--fault") if victim == Victim::Jobs => options.disk = disk(words.next())?,
            Some("--help" | "-h") => return Ok(Command::Help(CRASH_HELP)),
            _ if victim != Victim::Jobs => {
                return Err(unknown(victim.command(), word, "--rounds N, --seed S and --help"));
            }
            _ => {
                return Err(unknown(victim.command(), word, "--rounds N, --seed S, --fault NAME and --help"));
            }
        }
    }
    Ok(Command::Crash(options))
}

fn parse_fuzz(words: &[OsString]) -> Result<Command, Fault> {
    let mut options = FuzzOptions::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--short") if options.executions.is_none() => options.short = true,
            Some("--executions") if !options.short => {
                options.executions = Some(number("fuzz: --executions", words.next())?);
            }
            Some("--help" | "-h") => return Ok(Command::Help(FUZZ_HELP)),
            _ => return Err(unknown("fuzz", word, "--short or --executions N, and --help")),
        }
    }
    Ok(Command::Fuzz(options))
}

fn number<T: FromStr>(option: &str, word: Option<&OsString>) -> Result<T, Fault> {
    let read = word.and_then(|word| word.to_str()).and_then(|word| word.parse().ok());
    read.ok_or_else(|| {
        let found = word.map_or_else(|| "nothing".to_owned(), |word| format!("{word:?}"));
        Fault::User(format!("{option} wants a whole number from 0 on, not {found}"))
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
        let import = |rounds, seed| {
            Command::Crash(CrashOptions { victim: Victim::Import, disk: Disk::Sound, rounds, seed })
        };
        let consume = |rounds, seed| {
            Command::Crash(CrashOptions { victim: Victim::Consume, disk: Disk::Sound, rounds, seed })
        };
        let fuzz = |short, executions| Command::Fuzz(FuzzOptions { short, executions });
        let check_import =
            |rounds, seed| Command::Check(CheckOptions { checker: &CHECKERS[0], rounds, seed });
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
        check("check --help", &Command::Help(CHECK_HELP));
        check("check import", &check_import(None, None));
        check("check import --rounds 9 --seed 4", &check_import(Some(9), Some(4)));
        check("check import --seed 4 -h", &Command::Help(CHECK_HELP));
        check("crash --help", &Command::Help(CRASH_HELP));
        check("crash jobs", &crash(Disk::Sound, None, None));
        check("crash jobs --rounds 1000 --seed 7", &crash(Disk::Sound, Some(1000), Some(7)));
        check("crash jobs --fault enospc", &crash(Disk::Full, None, None));
        check("crash jobs --fault eio --rounds 5 -h", &Command::Help(CRASH_HELP));
        check("crash scan", &scan(None, None));
        check("crash scan --seed 4 --rounds 9", &scan(Some(9), Some(4)));
        check("crash scan --help", &Command::Help(CRASH_HELP));
        check("crash import --rounds 9", &import(Some(9), None));
        check("crash consume", &consume(None, None));
        check("crash consume --rounds 9 --seed 4", &consume(Some(9), Some(4)));
        check("fuzz", &fuzz(false, None));
        check("fuzz --short", &fuzz(true, None));
        check("fuzz --executions 5000", &fuzz(false, Some(5_000)));
        check("fuzz --short --help", &Command::Help(FUZZ_HELP));
        check("bench", &bench(&[]));
        check("bench --help", &Command::Help(BENCH_HELP));
        check("bench amqp --peers lapin", &bench(&["amqp", "--peers", "lapin"]));
        check("bench submit --help --fast", &bench(&["submit", "--help", "--fast"]));
    }

    #[test]
    fn lines_that_are_not() {
        check_rejected("tests", "\"tests\"", "test, prove, check, crash, fuzz, bench");
        check_rejected("check", "no checker named", "import");
        check_rejected("check exports", "\"exports\"", "import");
        check_rejected("check import --round 5", "\"--round\"", "--rounds N, --seed S");
        check_rejected("check import --rounds", "check: --rounds", "a whole number");
        check_rejected("crash", "what to crash", "jobs");
        check_rejected("crash pool", "\"pool\"", "jobs, scan, import and consume");
        check_rejected("crash scan --fault eio", "\"--fault\"", "--rounds N, --seed S");
        check_rejected("crash import --fault eio", "crash import: \"--fault\"", "--rounds N, --seed S");
        check_rejected("crash consume --fault eio", "crash consume: \"--fault\"", "--rounds N, --seed S");
        check_rejected("crash jobs --round 5", "\"--round\"", "--rounds N, --seed S, --fault NAME");
        check_rejected("crash jobs --rounds many", "\"many\"", "a whole number");
        check_rejected("crash jobs --seed", "nothing", "a whole number");
        check_rejected("crash jobs --fault fire", "\"fire\"", "none, enospc and eio");
        check_rejected("crash jobs --fault", "wants a name", "none, enospc or eio");
        check_rejected("fuzz parse", "\"parse\"", "--short or --executions N");
        check_rejected("fuzz --short --executions 5", "\"--executions\"", "--short or --executions N");
        check_rejected("fuzz --executions all", "fuzz: --executions", "a whole number");
        check_rejected("test --quick", "\"--quick\"", "--fast, --fail-fast");
        check_rejected("test prove", "\"prove\"", "--fast, --fail-fast");
        check_rejected("prove --fast", "\"--fast\"", "--full, --only NAME");
        check_rejected("prove --only", "wants a name", "shuttle, loom or miri");
        check_rejected("prove --only --full", "\"--full\"", "shuttle, loom and miri");
        check_rejected("prove --only tsan", "\"tsan\"", "shuttle, loom and miri");
    }
}
