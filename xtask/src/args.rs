//! Parses the arguments of `cargo xtask`.
//!
//! Owns the grammar of the commands. It reads only its arguments, no files or environment variables.

mod help;

use std::ffi::OsString;
use std::str::FromStr;

use self::help::{BENCH_HELP, CHECK_HELP, CRASH_HELP, FUZZ_HELP, HELP, PROVE_HELP, TEST_HELP};
use crate::check::{self, CHECKERS, Checker};
use crate::error::Error;
use crate::model_check::ModelCheck;

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    pub(crate) fast: bool,
    pub(crate) fail_fast: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProveOptions {
    pub(crate) full: bool,
    pub(crate) only: Option<ModelCheck>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckOptions {
    pub(crate) checker: &'static Checker,
    /// Number of rounds; default: the checker's.
    pub(crate) rounds: Option<u64>,
    /// Seed of the first round; default: random.
    pub(crate) seed: Option<u64>,
}

/// Options of `cargo xtask crash`. An option that is not set is chosen by the crash run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CrashOptions {
    pub(crate) target: CrashTarget,
    pub(crate) disk: Disk,
    pub(crate) rounds: Option<u32>,
    pub(crate) seed: Option<u64>,
}

/// Options of `cargo xtask fuzz`; default: the full run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FuzzOptions {
    pub(crate) short: bool,
    pub(crate) executions: Option<u64>,
}

/// The program that a crash run kills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CrashTarget {
    #[default]
    Jobs,
    Scan,
    Import,
    Consume,
}

impl CrashTarget {
    /// The command and its first argument, as they are typed.
    fn command(self) -> &'static str {
        match self {
            CrashTarget::Jobs => "crash",
            CrashTarget::Scan => "crash scan",
            CrashTarget::Import => "crash import",
            CrashTarget::Consume => "crash consume",
        }
    }
}

/// The fault of the disk in a crash run of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Disk {
    #[default]
    Healthy,
    Full,
    Failing,
}

impl Disk {
    const ALL: [Disk; 3] = [Disk::Healthy, Disk::Full, Disk::Failing];

    /// The name, as it is typed after `--fault`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Disk::Healthy => "none",
            Disk::Full => "enospc",
            Disk::Failing => "eio",
        }
    }
}

pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, Error> {
    let args: Vec<OsString> = args.collect();
    let Some((name, rest)) = args.split_first() else {
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
        _ => Err(Error::User(format!(
            "no command {name:?}; expected: test, prove, check, crash, fuzz, bench or help (see `cargo xtask --help`)"
        ))),
    }
}

fn parse_test(args: &[OsString]) -> Result<Command, Error> {
    let mut options = TestOptions::default();
    for arg in args {
        match arg.to_str() {
            Some("--fast") => options.fast = true,
            Some("--fail-fast") => options.fail_fast = true,
            Some("--help" | "-h") => return Ok(Command::Help(TEST_HELP)),
            _ => return Err(unknown("test", arg, "--fast, --fail-fast or --help")),
        }
    }
    Ok(Command::Test(options))
}

fn parse_prove(args: &[OsString]) -> Result<Command, Error> {
    let mut options = ProveOptions::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--full") => options.full = true,
            Some("--only") => options.only = Some(parse_model_check(args.next())?),
            Some("--help" | "-h") => return Ok(Command::Help(PROVE_HELP)),
            _ => return Err(unknown("prove", arg, "--full, --only NAME or --help")),
        }
    }
    Ok(Command::Prove(options))
}

fn parse_check(args: &[OsString]) -> Result<Command, Error> {
    let mut args = args.iter();
    let Some(name) = args.next() else {
        return Err(Error::User(format!("check: no checker given; expected: {}", check::names())));
    };
    if name == "--help" || name == "-h" {
        return Ok(Command::Help(CHECK_HELP));
    }
    let Some(checker) = CHECKERS.iter().find(|checker| name == checker.name) else {
        return Err(Error::User(format!("check: no checker {name:?}; expected: {}", check::names())));
    };
    let mut options = CheckOptions { checker, rounds: None, seed: None };
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--rounds") => options.rounds = Some(parse_number("check: --rounds", args.next())?),
            Some("--seed") => options.seed = Some(parse_number("check: --seed", args.next())?),
            Some("--help" | "-h") => return Ok(Command::Help(CHECK_HELP)),
            _ => return Err(unknown("check", arg, "--rounds N, --seed S or --help")),
        }
    }
    Ok(Command::Check(options))
}

fn parse_crash(args: &[OsString]) -> Result<Command, Error> {
    let mut args = args.iter();
    let target = match args.next().map(|arg| (arg, arg.to_str())) {
        Some((_, Some("jobs"))) => CrashTarget::Jobs,
        Some((_, Some("scan"))) => CrashTarget::Scan,
        Some((_, Some("import"))) => CrashTarget::Import,
        Some((_, Some("consume"))) => CrashTarget::Consume,
        Some((_, Some("--help" | "-h"))) => return Ok(Command::Help(CRASH_HELP)),
        Some((arg, _)) => {
            let text = format!("crash: no crash run {arg:?}; expected: jobs, scan, import or consume");
            return Err(Error::User(text));
        }
        None => {
            let text = "crash: the name of the crash run is missing; expected: jobs, scan, import or consume";
            return Err(Error::User(text.to_owned()));
        }
    };
    let mut options = CrashOptions { target, ..CrashOptions::default() };
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--rounds") => options.rounds = Some(parse_number("crash: --rounds", args.next())?),
            Some("--seed") => options.seed = Some(parse_number("crash: --seed", args.next())?),
            Some("--fault") if target == CrashTarget::Jobs => options.disk = parse_disk(args.next())?,
            Some("--help" | "-h") => return Ok(Command::Help(CRASH_HELP)),
            _ if target != CrashTarget::Jobs => {
                return Err(unknown(target.command(), arg, "--rounds N, --seed S or --help"));
            }
            _ => {
                return Err(unknown(target.command(), arg, "--rounds N, --seed S, --fault NAME or --help"));
            }
        }
    }
    Ok(Command::Crash(options))
}

fn parse_fuzz(args: &[OsString]) -> Result<Command, Error> {
    let mut options = FuzzOptions::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--short") if options.executions.is_none() => options.short = true,
            Some("--executions") if !options.short => {
                options.executions = Some(parse_number("fuzz: --executions", args.next())?);
            }
            Some("--help" | "-h") => return Ok(Command::Help(FUZZ_HELP)),
            _ => return Err(unknown("fuzz", arg, "--short or --executions N, or --help")),
        }
    }
    Ok(Command::Fuzz(options))
}

fn parse_number<T: FromStr>(option: &str, arg: Option<&OsString>) -> Result<T, Error> {
    let number = arg.and_then(|arg| arg.to_str()).and_then(|arg| arg.parse().ok());
    number.ok_or_else(|| {
        let found = arg.map_or_else(|| "without a value".to_owned(), |arg| format!("{arg:?}"));
        Error::User(format!("{option} is {found}; expected: a whole number from 0 on"))
    })
}

fn parse_disk(name: Option<&OsString>) -> Result<Disk, Error> {
    let Some(name) = name else {
        return Err(Error::User("crash: --fault needs a name; expected: none, enospc or eio".to_owned()));
    };
    let known = Disk::ALL.into_iter().find(|disk| name == disk.name());
    known.ok_or_else(|| Error::User(format!("crash: no fault {name:?}; expected: none, enospc or eio")))
}

/// Only a first `--help` is for xtask: after the name, every argument is passed to the benchmark.
fn parse_bench(args: &[OsString]) -> Command {
    match args.first().and_then(|arg| arg.to_str()) {
        Some("--help" | "-h") => Command::Help(BENCH_HELP),
        _ => Command::Bench(args.to_vec()),
    }
}

fn parse_model_check(name: Option<&OsString>) -> Result<ModelCheck, Error> {
    let Some(name) = name else {
        return Err(Error::User("prove: --only needs a name; expected: shuttle, loom or miri".to_owned()));
    };
    let known = ModelCheck::ALL.into_iter().find(|model_check| name == model_check.name());
    known.ok_or_else(|| Error::User(format!("prove: no model checker {name:?}; expected: shuttle, loom or miri")))
}

fn unknown(command: &str, arg: &OsString, expected: &str) -> Error {
    Error::User(format!("{command}: {arg:?} is unknown; expected: {expected} (see `cargo xtask {command} --help`)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Command, Error> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[track_caller]
    fn check(line: &str, expected: &Command) {
        assert_eq!(parse_line(line).as_ref(), Ok(expected), "cargo xtask {line}");
    }

    /// Checks that the error of a rejected line names the wrong argument and the expected ones.
    #[track_caller]
    fn check_rejected(line: &str, wrong: &str, expected: &str) {
        let Err(error) = parse_line(line) else {
            panic!("cargo xtask {line} was accepted");
        };
        let text = error.to_string();
        assert!(text.contains(wrong) && text.contains(expected), "cargo xtask {line}: {text}");
        assert_eq!(error.exit_code(), 1, "cargo xtask {line}");
    }

    #[test]
    fn valid_arguments_are_parsed() {
        let test = |fast, fail_fast| Command::Test(TestOptions { fast, fail_fast });
        let prove = |full, only| Command::Prove(ProveOptions { full, only });
        let crash = |disk, rounds, seed| Command::Crash(CrashOptions { target: CrashTarget::Jobs, disk, rounds, seed });
        let scan = |rounds, seed| {
            Command::Crash(CrashOptions { target: CrashTarget::Scan, disk: Disk::Healthy, rounds, seed })
        };
        let import = |rounds, seed| {
            Command::Crash(CrashOptions { target: CrashTarget::Import, disk: Disk::Healthy, rounds, seed })
        };
        let consume = |rounds, seed| {
            Command::Crash(CrashOptions { target: CrashTarget::Consume, disk: Disk::Healthy, rounds, seed })
        };
        let fuzz = |short, executions| Command::Fuzz(FuzzOptions { short, executions });
        let check_import = |rounds, seed| Command::Check(CheckOptions { checker: &CHECKERS[0], rounds, seed });
        let bench = |args: &[&str]| Command::Bench(args.iter().map(OsString::from).collect());

        check("", &Command::Help(HELP));
        check("--help", &Command::Help(HELP));
        check("test", &test(false, false));
        check("test --fast", &test(true, false));
        check("test --fail-fast --fast", &test(true, true));
        check("test --fast -h", &Command::Help(TEST_HELP));
        check("prove", &prove(false, None));
        check("prove --full --only loom", &prove(true, Some(ModelCheck::Loom)));
        check("prove --only miri", &prove(false, Some(ModelCheck::Miri)));
        check("prove --help", &Command::Help(PROVE_HELP));
        check("check --help", &Command::Help(CHECK_HELP));
        check("check import", &check_import(None, None));
        check("check import --rounds 9 --seed 4", &check_import(Some(9), Some(4)));
        check("check import --seed 4 -h", &Command::Help(CHECK_HELP));
        check("crash --help", &Command::Help(CRASH_HELP));
        check("crash jobs", &crash(Disk::Healthy, None, None));
        check("crash jobs --rounds 1000 --seed 7", &crash(Disk::Healthy, Some(1000), Some(7)));
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
    fn invalid_arguments_are_rejected_with_the_expected_ones() {
        check_rejected("tests", "\"tests\"", "test, prove, check, crash, fuzz, bench");
        check_rejected("check", "no checker given", "import");
        check_rejected("check exports", "\"exports\"", "import");
        check_rejected("check import --round 5", "\"--round\"", "--rounds N, --seed S");
        check_rejected("check import --rounds", "check: --rounds", "a whole number");
        check_rejected("crash", "is missing", "jobs");
        check_rejected("crash pool", "\"pool\"", "jobs, scan, import or consume");
        check_rejected("crash scan --fault eio", "\"--fault\"", "--rounds N, --seed S");
        check_rejected("crash import --fault eio", "crash import: \"--fault\"", "--rounds N, --seed S");
        check_rejected("crash consume --fault eio", "crash consume: \"--fault\"", "--rounds N, --seed S");
        check_rejected("crash jobs --round 5", "\"--round\"", "--rounds N, --seed S, --fault NAME");
        check_rejected("crash jobs --rounds many", "\"many\"", "a whole number");
        check_rejected("crash jobs --seed", "without a value", "a whole number");
        check_rejected("crash jobs --fault fire", "\"fire\"", "none, enospc or eio");
        check_rejected("crash jobs --fault", "needs a name", "none, enospc or eio");
        check_rejected("fuzz parse", "\"parse\"", "--short or --executions N");
        check_rejected("fuzz --short --executions 5", "\"--executions\"", "--short or --executions N");
        check_rejected("fuzz --executions all", "fuzz: --executions", "a whole number");
        check_rejected("test --quick", "\"--quick\"", "--fast, --fail-fast");
        check_rejected("test prove", "\"prove\"", "--fast, --fail-fast");
        check_rejected("prove --fast", "\"--fast\"", "--full, --only NAME");
        check_rejected("prove --only", "needs a name", "shuttle, loom or miri");
        check_rejected("prove --only --full", "\"--full\"", "shuttle, loom or miri");
        check_rejected("prove --only tsan", "\"tsan\"", "shuttle, loom or miri");
    }
}
