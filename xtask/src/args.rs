//! Arguments of `cargo xtask`: each command is declared once, with its options and its help.

use std::ffi::OsString;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::check::{CHECKERS, Checker};
use crate::model_check::ModelCheck;

const EXAMPLES: &str = "\
Examples:
  cargo xtask test                   Run everything, as continuous integration does
  cargo xtask test --fast            Run the steps to pass before each commit
  cargo xtask prove --full           Check many more schedules; takes long
  cargo xtask check import           Run thousands of random sequences of imports
  cargo xtask check dedup            Run thousands of random trees, edits and scans
  cargo xtask crash jobs             Kill workers 50 times and check the database
  cargo xtask crash scan             Kill scans and compare the result with an undisturbed one
  cargo xtask crash import           Kill imports; each table must be the old or the new one
  cargo xtask crash consume          Kill consumers and RabbitMQ, and check that no message is lost
  cargo xtask fuzz                   Run 20 million inputs
  cargo xtask api                    Send generated requests to a real server
  cargo xtask bench                  List the benchmarks

Exit statuses: 0 success, 1 a failed test or a user error, 2 a system error";

/// Development commands of Gristmill
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", max_term_width = 100)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum Command {
    /// Run all tests and checks: format, lints, tests, docs, model checks, crashes, API, dependencies
    Test(TestOptions),
    /// Check the concurrency of crates/pool with shuttle, loom and miri
    Prove(ProveOptions),
    /// Compare random operations with a model in memory
    Check(CheckOptions),
    /// Kill real workers, scans, imports and consumers at random, on healthy and faulty disks
    #[command(subcommand, after_help = CRASH_NOTES)]
    Crash(Crash),
    /// Fuzz the parsers and type inference
    Fuzz(FuzzOptions),
    /// Compare the HTTP API with its OpenAPI document
    Api(ApiOptions),
    /// Run benchmarks against named peers, in a release build
    #[command(after_help = BENCH_EXAMPLES)]
    Bench {
        /// Name of a benchmark and its options; without a name, the benchmarks are listed
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "NAME [ARGS]")]
        args: Vec<OsString>,
    },
}

const TEST_STEPS: &str = "\
Steps:
  set-up        Install missing tools: cargo-deny, strace, cargo-fuzz, schemathesis, RabbitMQ
  format        cargo fmt --check
  lints         cargo clippy, warnings are errors
  tests         cargo test, ignored tests included
  doc tests     cargo test --doc
  docs          cargo doc, warnings are errors
  shuttle, loom, miri   as in `cargo xtask prove`
  crash jobs, enospc, eio   as in `cargo xtask crash jobs`, 50, 5 and 10 rounds
  crash scan    as in `cargo xtask crash scan`, 50 rounds
  crash import  as in `cargo xtask crash import`, 36 rounds
  crash consume   as in `cargo xtask crash consume`, 6 rounds
  fuzz          as in `cargo xtask fuzz --short`
  api           as in `cargo xtask api`
  dependencies  cargo deny: licences, duplicates, sources
  advisories    cargo deny: known vulnerabilities; NOT CHECKED if their database is unreachable

Examples:
  cargo xtask test
  cargo xtask test --fast --fail-fast";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = TEST_STEPS)]
pub(crate) struct TestOptions {
    /// Run only format, lints, tests and doc tests
    #[arg(long)]
    pub(crate) fast: bool,
    /// Stop at the first step that fails, instead of running the later ones
    #[arg(long)]
    pub(crate) fail_fast: bool,
}

const PROVE_EXAMPLES: &str = "\
Examples:
  cargo xtask prove
  cargo xtask prove --full --only shuttle";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = PROVE_EXAMPLES)]
pub(crate) struct ProveOptions {
    /// Run 20000 schedules per shuttle test instead of 200
    #[arg(long)]
    pub(crate) full: bool,
    /// Run one model checker
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<ModelCheck>,
}

const CHECKER_NOTES: &str = "\
Checkers:
  import   Random sequences of create, append, upsert, replace and resume, with missing keys, values
           of changing types and names of changing case, compared with the tables that a model in
           memory expects
  dedup    Random trees, edits, links, roots, and stopped or killed scans, compared with a naive
           walk that compares all bytes. As root, it also mounts and unmounts disks
  runner   Tasks of random kinds and priorities in several processes that are killed and stopped,
           checked against rules: no task runs twice at once, a crash had a start, no task is lost

`cargo test` runs a few rounds of each with fixed seeds. A round that fails prints its seed and its
operations, reduced as far as the failure remains. Repeat it with --rounds 1 --seed S.

Examples:
  cargo xtask check import
  cargo xtask check import --rounds 100000
  cargo xtask check import --rounds 1 --seed 4711
  cargo xtask check dedup --rounds 20000";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
#[command(after_help = CHECKER_NOTES)]
pub(crate) struct CheckOptions {
    /// Name of the checker
    #[arg(value_name = "NAME", value_parser = checker())]
    pub(crate) checker: &'static Checker,
    /// Number of rounds [default: 5000 for import, 3000 for dedup, 150 for runner]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u64>,
    /// Seed of the first round; each later round has the next one [default: random]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
}

fn checker() -> impl TypedValueParser<Value = &'static Checker> {
    let names = PossibleValuesParser::new(CHECKERS.iter().map(|checker| checker.name));
    names.try_map(|name| CHECKERS.iter().find(|checker| checker.name == name).ok_or("no such checker"))
}

const CRASH_NOTES: &str = "\
If the machine does not support a fault, the run is NOT DONE, with the reason. The files of a run
that fails are kept, and their folder is printed. RabbitMQ is downloaded if it is missing.

Examples:
  cargo xtask crash jobs
  cargo xtask crash jobs --rounds 1000
  cargo xtask crash jobs --fault enospc --rounds 5
  cargo xtask crash jobs --rounds 10 --seed 4711
  cargo xtask crash scan --rounds 500
  cargo xtask crash import --rounds 500
  cargo xtask crash consume --rounds 500";

/// The programs that a crash run kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum Crash {
    /// Kill workers on one database, or suspend them until their leases have expired
    ///
    /// Afterwards every acknowledged task is finished, with one effect per key; no task was finished twice or by a
    /// worker that had lost it; the database is sound; and tasks of dead workers were claimed within two lease lengths.
    Jobs {
        #[command(flatten)]
        options: CrashOptions,
        /// Fault of the disk
        #[arg(long, value_enum, default_value_t)]
        fault: Disk,
    },
    /// Kill scans of generated trees, first scans and later ones, up to four times each, and resume them
    ///
    /// Afterwards the catalog equals that of an undisturbed scan, row for row, and no file that was read before a
    /// kill is read again.
    Scan(CrashOptions),
    /// Kill and interrupt imports, let calls fail and disks fill up, run imports concurrently, and resume them
    ///
    /// At any moment each table is the old or the new one, row for row, as `_imports` records, and no file is loaded
    /// twice; a new database is complete or does not exist; no other file is left.
    Import(CrashOptions),
    /// Kill or stop consumers of RabbitMQ's queues, several at a time, while messages arrive, and the broker
    ///
    /// Afterwards every message that the broker confirmed was handled or, if it is a bad one, is a dead letter with the
    /// reason; no message was handled that was not sent, none was repeated more often than necessary, and none is left.
    Consume(CrashOptions),
}

/// Options of a crash run. One that is not set is chosen by the crash run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct CrashOptions {
    /// Number of kills, stops or disk faults [default: 50]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u32>,
    /// Repeat the choices of an earlier run, which printed its seed; times still vary
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
}

/// The fault of the disk in a crash run of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Disk {
    /// A healthy disk
    #[default]
    None,
    /// Full at times: a small tmpfs; needs the right to mount one
    Enospc,
    /// Reads, writes and syncs fail at times; needs strace
    Eio,
}

const FUZZ_NOTES: &str = "\
Targets:
  cut         files cut into blocks: no byte is lost; a line that is too long affects no other
  parse       lines into rows: no panic, and the same values as serde_json
  infer       rows into tables: each value is read from the database as it was written
  frames      a broker's frames: the result does not depend on the pieces; a handshake ends
  methods     a broker's methods: parsed or refused
  properties  properties of messages: encoded as they were decoded, also through JSON
  tables      header tables: encoded as they were decoded, type by type, also through JSON
  uris        a broker's URIs: parsed or refused, and no error contains a password

Of 20 million executions the first three have 3, 6.8 and 0.2 million, the others 4, 1, 2, 2
and 1 million.

An input that fails is kept under fuzz/artifacts, and its path is printed. Fuzzing needs a nightly
toolchain; without one it is NOT RUN. cargo-fuzz (libFuzzer) is installed if it is missing.

Examples:
  cargo xtask fuzz
  cargo xtask fuzz --executions 100000000
  cargo +nightly fuzz run parse fuzz/artifacts/parse/crash-…      repeat one input";

/// Options of `cargo xtask fuzz`; default: the full run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = FUZZ_NOTES)]
pub(crate) struct FuzzOptions {
    /// Run 800000 executions of all targets together, about a minute
    #[arg(long, conflicts_with = "executions")]
    pub(crate) short: bool,
    /// Run N executions of all targets together [default: 20 million]
    #[arg(long, value_name = "N")]
    pub(crate) executions: Option<u64>,
}

const API_NOTES: &str = "\
It serves a small library and sends requests that schemathesis generates from the document, with the
read token and with the full one. No response may be a 5xx; each must have a status, a type, headers
and a body as in the document. SIGTERM must then end the server with 0. The stream of events, which
does not end, is left out.

A finding is printed with a command for curl. The database and the log of the server are kept under
target/api. schemathesis is installed with pip if it is missing; without it, the step is NOT RUN.

Examples:
  cargo xtask api
  cargo xtask api --examples 500
  cargo xtask api --seed 4711";

/// Options of `cargo xtask api`; default: those of the whole test run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = API_NOTES)]
pub(crate) struct ApiOptions {
    /// Seed of the generated requests [default: 1]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Maximum number of generated requests of one kind to one route [default: 40]
    #[arg(long, value_name = "N")]
    pub(crate) examples: Option<u32>,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  cargo xtask bench
  cargo xtask bench jobs --reps 5
  cargo xtask bench import --help
  cargo xtask bench amqp --peers lapin,amqprs --reps 9";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        let args = std::iter::once("xtask").chain(line.split_whitespace());
        Arguments::try_parse_from(args).map(|arguments| arguments.command).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check(line: &str, expected: &Command) {
        assert_eq!(parse(line).as_ref(), Ok(expected), "cargo xtask {line}");
    }

    #[test]
    fn valid_arguments_are_parsed() {
        let test = |fast, fail_fast| Command::Test(TestOptions { fast, fail_fast });
        let prove = |full, only| Command::Prove(ProveOptions { full, only });
        let options = |rounds, seed| CrashOptions { rounds, seed };
        let jobs = |fault, rounds, seed| Command::Crash(Crash::Jobs { options: options(rounds, seed), fault });
        let fuzz = |short, executions| Command::Fuzz(FuzzOptions { short, executions });
        let check_import = |rounds, seed| Command::Check(CheckOptions { checker: &CHECKERS[0], rounds, seed });
        let api = |seed, examples| Command::Api(ApiOptions { seed, examples });
        let bench = |args: &[&str]| Command::Bench { args: args.iter().map(OsString::from).collect() };

        check("test", &test(false, false));
        check("test --fast", &test(true, false));
        check("test --fail-fast --fast", &test(true, true));
        check("prove", &prove(false, None));
        check("prove --full --only loom", &prove(true, Some(ModelCheck::Loom)));
        check("prove --only miri", &prove(false, Some(ModelCheck::Miri)));
        check("check import", &check_import(None, None));
        check("check import --rounds 9 --seed 4", &check_import(Some(9), Some(4)));
        check("crash jobs", &jobs(Disk::None, None, None));
        check("crash jobs --rounds 1000 --seed 7", &jobs(Disk::None, Some(1000), Some(7)));
        check("crash jobs --fault enospc", &jobs(Disk::Enospc, None, None));
        check("crash scan --seed 4 --rounds 9", &Command::Crash(Crash::Scan(options(Some(9), Some(4)))));
        check("crash import --rounds 9", &Command::Crash(Crash::Import(options(Some(9), None))));
        check("crash consume", &Command::Crash(Crash::Consume(options(None, None))));
        check("fuzz", &fuzz(false, None));
        check("fuzz --short", &fuzz(true, None));
        check("fuzz --executions 5000", &fuzz(false, Some(5_000)));
        check("api", &api(None, None));
        check("api --seed 4 --examples 9", &api(Some(4), Some(9)));
        check("bench", &bench(&[]));
        check("bench amqp --peers lapin", &bench(&["amqp", "--peers", "lapin"]));
        check("bench submit --help --fast", &bench(&["submit", "--help", "--fast"]));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for line in [
            "tests",
            "check",
            "crash",
            "check exports",
            "check import --rounds",
            "crash pool",
            "crash scan --fault eio",
            "crash jobs --rounds many",
            "crash jobs --fault fire",
            "api jobs",
            "api --examples many",
            "fuzz parse",
            "fuzz --short --executions 5",
            "test --quick",
            "prove --only tsan",
        ] {
            assert!(parse(line).is_err(), "cargo xtask {line}");
        }
    }

    #[test]
    fn every_help_has_examples_and_at_most_100_columns() {
        let mut command = Arguments::command();
        command.build();
        for command in std::iter::once(&mut command.clone()).chain(command.get_subcommands_mut()) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:") || command.get_name() == "help", "{help}");
            assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        }
    }
}
