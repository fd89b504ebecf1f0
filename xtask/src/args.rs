//! What was typed after `cargo xtask`, and the help that explains it.
//!
//! Owns the grammar of the commands. It looks at nothing but its arguments: no file, no environment.

use std::ffi::OsString;

use crate::fault::Fault;
use crate::proofs::Proof;

/// One chore, understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help(&'static str),
    Test(TestOptions),
    Prove(ProveOptions),
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

pub(crate) const HELP: &str = "\
The house's own chores.

Usage: cargo xtask COMMAND [OPTIONS]

Commands:
  test    the whole test run: format, lints, tests, docs, proofs, dependencies
  prove   the concurrency proofs of crates/pool
  bench   benchmarks against named peers
  help    this text; `cargo xtask COMMAND --help` for one command

Examples:
  cargo xtask test                   everything, as continuous integration runs it
  cargo xtask test --fast            what to run before each commit
  cargo xtask prove --full           many more schedules, takes long
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
  set-up        gets what the tests need and is not there: cargo-deny
  format        cargo fmt --check
  lints         cargo clippy, warnings are errors
  tests         cargo nextest run (cargo test where it is not installed), ignored tests as well
  doc tests     cargo test --doc
  docs          cargo doc, warnings are errors
  shuttle, loom, miri   as in `cargo xtask prove`
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
        Some("bench") => Ok(parse_bench(rest)),
        _ => Err(Fault::User(format!(
            "no command {name:?}; there are test, prove, bench and help (see `cargo xtask --help`)"
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
        check("bench", &bench(&[]));
        check("bench --help", &Command::Help(BENCH_HELP));
        check("bench submit --help --fast", &bench(&["submit", "--help", "--fast"]));
    }

    #[test]
    fn lines_that_are_not() {
        check_rejected("tests", "\"tests\"", "test, prove, bench");
        check_rejected("test --quick", "\"--quick\"", "--fast, --fail-fast");
        check_rejected("test prove", "\"prove\"", "--fast, --fail-fast");
        check_rejected("prove --fast", "\"--fast\"", "--full, --only NAME");
        check_rejected("prove --only", "wants a name", "shuttle, loom or miri");
        check_rejected("prove --only --full", "\"--full\"", "shuttle, loom and miri");
        check_rejected("prove --only tsan", "\"tsan\"", "shuttle, loom and miri");
    }

    #[test]
    fn help_fits_a_terminal() {
        for line in [HELP, TEST_HELP, PROVE_HELP, BENCH_HELP].iter().flat_map(|text| text.lines()) {
            assert!(line.chars().count() <= 100, "too wide: {line}");
        }
    }
}
