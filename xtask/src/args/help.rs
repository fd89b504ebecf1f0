//! Help texts of the commands.

pub(crate) const HELP: &str = "\
Development commands of Gristmill.

Usage: cargo xtask COMMAND [OPTIONS]

Commands:
  test    Run all tests and checks: format, lints, tests, docs, model checks, crashes, dependencies
  prove   Check the concurrency of crates/pool with shuttle, loom and miri
  check   Compare random operations with a model in memory
  crash   Kill real workers, scans, imports and consumers at random, on healthy and faulty disks
  fuzz    Fuzz the parsers and type inference
  bench   Run benchmarks against named peers
  help    Print this help; `cargo xtask COMMAND --help` prints the help of a command

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
  cargo xtask bench                  List the benchmarks

Exit statuses: 0 success, 1 a failed test or a user error, 2 a system error
";

pub(crate) const TEST_HELP: &str = "\
Run all tests and checks, and print a table of the steps.

Usage: cargo xtask test [--fast] [--fail-fast]

Options:
  --fast        Run only format, lints, tests and doc tests
  --fail-fast   Stop at the first step that fails, instead of running the later ones
  -h, --help    Print this help

Steps:
  set-up        Install missing tools: cargo-deny, strace, cargo-fuzz, RabbitMQ
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
  dependencies  cargo deny: licences, duplicates, sources
  advisories    cargo deny: known vulnerabilities; NOT CHECKED if their database is unreachable

Examples:
  cargo xtask test
  cargo xtask test --fast --fail-fast
";

pub(crate) const PROVE_HELP: &str = "\
Check the concurrency of crates/pool.

Usage: cargo xtask prove [--full] [--only NAME]

Options:
  --full        Run 20000 schedules per shuttle test instead of 200
  --only NAME   Run one model checker: shuttle, loom or miri
  -h, --help    Print this help

Model checkers:
  shuttle   Run the pool's scenarios under random schedules
  loom      Run its smallest building blocks under every schedule
  miri      Run its unit tests and detect undefined behaviour; needs the component miri

Examples:
  cargo xtask prove
  cargo xtask prove --full --only shuttle
";

pub(crate) const CHECK_HELP: &str = "\
Run a randomised checker for many rounds. `cargo test` runs a few rounds of each with fixed seeds.

Usage: cargo xtask check NAME [--rounds N] [--seed S]

Checkers:
  import   Random sequences of create, append, upsert, replace and resume, with missing keys, values
           of changing types and names of changing case, compared with the tables that a model in
           memory expects
  dedup    Random trees, edits, links, roots, and stopped or killed scans, compared with a naive
           walk that compares all bytes. As root, it also mounts and unmounts disks
  runner   Tasks of random kinds and priorities in several processes that are killed and stopped,
           checked against rules: no task runs twice at once, a crash had a start, no task is lost

Options:
  --rounds N   Number of rounds; default: 5000 for import, 3000 for dedup, 150 for runner
  --seed S     Seed of the first round; each later round has the next one; default: random
  -h, --help   Print this help

A round that fails prints its seed and its operations, reduced as far as the failure remains. Repeat
it with --rounds 1 --seed S.

Examples:
  cargo xtask check import
  cargo xtask check import --rounds 100000
  cargo xtask check import --rounds 1 --seed 4711
  cargo xtask check dedup --rounds 20000
";

pub(crate) const CRASH_HELP: &str = "\
Kill real processes with SIGKILL at random moments, and check the remaining state.

jobs: Kill workers on one database, or suspend them until their leases have expired. Afterwards
every acknowledged task is finished, with one effect per key; no task was finished twice or by a
worker that had lost it; the database is sound; and tasks of dead workers were claimed within two
lease lengths.

scan: Kill scans of generated trees, first scans and later ones, up to four times each, and resume
them. Afterwards the catalog equals that of an undisturbed scan, row for row, and nothing that was
committed before a kill was walked or read again.

import: Kill and interrupt imports into new and existing databases, let calls fail and disks fill
up, run imports concurrently, and resume them. At any moment each table is the old or the new one,
row for row, as `_imports` records, and no file is loaded twice; a new database is complete or does
not exist; no other file is left.

consume: Kill or stop consumers of RabbitMQ's queues (into tables, as tasks, by commands), several
at a time, while messages arrive, and sometimes kill the broker. Afterwards every message that the
broker confirmed was handled or, if it is a bad one, is a dead letter with the reason; no message
was handled that was not sent, none was repeated more often than necessary, and none is left.

Usage: cargo xtask crash jobs [--rounds N] [--seed S] [--fault NAME]
       cargo xtask crash scan [--rounds N] [--seed S]
       cargo xtask crash import [--rounds N] [--seed S]
       cargo xtask crash consume [--rounds N] [--seed S]

Options:
  --rounds N     Number of kills, stops or disk faults; default: 50
  --seed S       Repeat the choices of an earlier run, which printed its seed; times still vary
  --fault NAME   Fault of the disk, for jobs only; default: none
                   none     a healthy disk
                   enospc   full at times: a small tmpfs; needs the right to mount one
                   eio      reads, writes and syncs fail at times; needs strace
  -h, --help     Print this help

If the machine does not support a fault, the run is NOT DONE, with the reason. The files of a run
that fails are kept, and their folder is printed. RabbitMQ is downloaded if it is missing.

Examples:
  cargo xtask crash jobs
  cargo xtask crash jobs --rounds 1000
  cargo xtask crash jobs --fault enospc --rounds 5
  cargo xtask crash jobs --rounds 10 --seed 4711
  cargo xtask crash scan --rounds 500
  cargo xtask crash import --rounds 500
  cargo xtask crash consume --rounds 500
";

pub(crate) const FUZZ_HELP: &str = "\
Fuzz the parsers and type inference with cargo-fuzz (libFuzzer).

Usage: cargo xtask fuzz [--short | --executions N]

Options:
  --short          Run 800000 executions of all targets together, about a minute
  --executions N   Run N executions of all targets together; default: 20 million
  -h, --help       Print this help

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
toolchain; without one it is NOT RUN. cargo-fuzz is installed if it is missing.

Examples:
  cargo xtask fuzz
  cargo xtask fuzz --executions 100000000
  cargo +nightly fuzz run parse fuzz/artifacts/parse/crash-…      repeat one input
";

pub(crate) const BENCH_HELP: &str = "\
Run a benchmark against named peers, in a release build.

Usage: cargo xtask bench [NAME [ARGS...]]

Without NAME the benchmarks are listed. ARGS are passed to the benchmark.

Examples:
  cargo xtask bench
  cargo xtask bench jobs --reps 5
  cargo xtask bench import --help
  cargo xtask bench amqp --peers lapin,amqprs --reps 9
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_at_most_100_columns_wide() {
        for line in [HELP, TEST_HELP, PROVE_HELP, CHECK_HELP, CRASH_HELP, FUZZ_HELP, BENCH_HELP]
            .iter()
            .flat_map(|text| text.lines())
        {
            assert!(line.chars().count() <= 100, "too wide: {line}");
        }
    }
}
