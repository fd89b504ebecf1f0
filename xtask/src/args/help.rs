//! The help: a text for each command.

pub(crate) const HELP: &str = "\
The house's own chores.

Usage: cargo xtask COMMAND [OPTIONS]

Commands:
  test    the whole test run: format, lints, tests, docs, proofs, crashes, dependencies
  prove   the concurrency proofs of crates/pool
  check   random operations, compared with a model in memory
  crash   real workers, scans, imports and consumers, killed at random, on sound and on bad disks
  fuzz    parsers and inference, fed with any bytes
  bench   benchmarks against named peers
  help    this text; `cargo xtask COMMAND --help` for one command

Examples:
  cargo xtask test                   everything, as continuous integration runs it
  cargo xtask test --fast            what to run before each commit
  cargo xtask prove --full           many more schedules, takes long
  cargo xtask check import           thousands of random sequences of imports
  cargo xtask check dedup            thousands of random trees, edits and scans
  cargo xtask crash jobs             kills workers 50 times and looks at what is left
  cargo xtask crash scan             kills scans and compares what they come to in the end
  cargo xtask crash import           kills imports: all of the old or all of the new is there
  cargo xtask crash consume          kills consumers of RabbitMQ, and RabbitMQ: no message is lost
  cargo xtask fuzz                   ten million inputs that nobody would think of
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
  set-up        gets what the tests need and is not there: cargo-deny, strace, cargo-fuzz
  format        cargo fmt --check
  lints         cargo clippy, warnings are errors
  tests         cargo test, ignored tests as well
  doc tests     cargo test --doc
  docs          cargo doc, warnings are errors
  shuttle, loom, miri   as in `cargo xtask prove`
  crash jobs, enospc, eio   as in `cargo xtask crash jobs`, 50, 5 and 10 rounds
  crash scan    as in `cargo xtask crash scan`, 50 rounds
  crash import  as in `cargo xtask crash import`, 36 rounds
  crash consume   as in `cargo xtask crash consume`, 6 rounds
  fuzz          as in `cargo xtask fuzz --short`
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

pub(crate) const CHECK_HELP: &str = "\
Run a randomised checker for many rounds. `cargo test` runs a few rounds of each with fixed seeds.

Usage: cargo xtask check NAME [--rounds N] [--seed S]

Checkers:
  import   random sequences of create, append, upsert, replace and resume, with missing keys, values
           of changing types and names of changing case, compared with the tables that a model in
           memory expects
  dedup    random trees, edits, links, roots and disks that come and go, scans that are stopped or
           killed, compared with a naive walk that compares all bytes. Run by root, it mounts disks
  runner   tasks of random kinds and priorities in several processes that are killed and stopped,
           against rules: no task runs beside itself, crashes are starts, nothing is lost

Options:
  --rounds N   number of rounds, instead of the checker's own
  --seed S     seed of the first round; a later round has the next one. Random without it
  -h, --help   this text

A round that fails prints its seed and its operations, reduced as far as the failure remains. Repeat
it with --rounds 1 --seed S.

Examples:
  cargo xtask check import
  cargo xtask check import --rounds 100000
  cargo xtask check import --rounds 1 --seed 4711
  cargo xtask check dedup --rounds 20000
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

import: imports into new databases and into ones that are there are killed, interrupted, cut short
by failing calls and full disks, run into each other, and gone on with. Afterwards, at any moment:
each table is the old one or the new one, row for row, `_imports` says which, and no file is loaded
twice; a new database is complete or not there; nothing else is left.

consume: consumers of RabbitMQ's queues (into tables, as tasks, by commands), several at once, are
killed or told to end while messages come, and now and then the broker is killed. Afterwards: every
message that the broker had confirmed is done, or, if it is a bad one, a dead letter that says why;
nothing was done that nobody had sent, nothing more often than can be helped, and nothing is left.

Usage: cargo xtask crash jobs [--rounds N] [--seed S] [--fault NAME]
       cargo xtask crash scan [--rounds N] [--seed S]
       cargo xtask crash import [--rounds N] [--seed S]
       cargo xtask crash consume [--rounds N] [--seed S]

Options:
  --rounds N     how often somebody is killed or stopped, or the disk is filled; 50 without it
  --seed S       the choices of an earlier run again, as it printed them; moments still vary
  --fault NAME   jobs: what is wrong with the disk:
                   none     nothing, the default
                   enospc   it is full now and then: a small tmpfs; needs the right to mount one
                   eio      reads, writes and syncs fail now and then; needs strace
  -h, --help     this text

Where the machine does not allow a fault, the run is NOT DONE and says why. Files of a run in which
something was found are kept, and their folder is named. RabbitMQ is got if it is not there.

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
What reads strangers' bytes, fed with bytes that nobody would think of, by cargo-fuzz (libFuzzer).

Usage: cargo xtask fuzz [--short | --executions N]

Options:
  --short          800000 executions of all targets together, a minute, instead of 20 million
  --executions N   so many
  -h, --help       this text

Targets:
  cut         files cut into blocks: no byte is lost, a line that is too long costs only itself
  parse       lines into rows: no panic, and serde_json reads the same
  infer       rows into tables: each value comes out of the database as it went in
  frames      a broker's frames: read the same in any pieces; a handshake ends
  methods     a broker's methods: read or refused
  properties  properties of messages: written as they came, also through JSON
  tables      tables of headers: written as they came, type by type, also through JSON
  uris        a broker's addresses: read or refused, and no password is repeated

Of 20 million executions the first three have 3, 6.8 and 0.2 million, the others 4, 1, 2, 2
and 1 million.

An input that fails is kept under fuzz/artifacts, and its path is told. Needs a nightly toolchain;
where there is none, the run is NOT RUN. cargo-fuzz is installed if it is not there.

Examples:
  cargo xtask fuzz
  cargo xtask fuzz --executions 100000000
  cargo +nightly fuzz run parse fuzz/artifacts/parse/crash-…      one input again
";

pub(crate) const BENCH_HELP: &str = "\
Benchmarks against named peers, in a release build.

Usage: cargo xtask bench [NAME [ARGS...]]

Without NAME it lists the names. ARGS go to the benchmark as they are.

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
    fn help_fits_a_terminal() {
        for line in [HELP, TEST_HELP, PROVE_HELP, CHECK_HELP, CRASH_HELP, FUZZ_HELP, BENCH_HELP]
            .iter()
            .flat_map(|text| text.lines())
        {
            assert!(line.chars().count() <= 100, "too wide: {line}");
        }
    }
}
