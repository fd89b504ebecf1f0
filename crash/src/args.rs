//! Command-line arguments: `run`, `scan`, `import` and `consume` for people, `worker` and `producer` for the harness.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Kill real processes at random and check what they leave
#[derive(Debug, Parser)]
#[command(name = "gristmill-crash", version, about)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Kill task workers in each round, then check the database. Exit statuses: 0 no violations, 1 violations, 2 the
    /// system failed, 3 not possible on this machine
    Run(JobsArgs),
    /// Kill scans and resume them. Exit statuses as for run
    Scan(ProgramArgs),
    /// Kill or interrupt imports and resume them. Exit statuses as for run
    Import(ProgramArgs),
    /// Kill consumers of RabbitMQ and the broker. Exit statuses as for run
    Consume(ProgramArgs),
    /// Run tasks until standard input ends (started by the harness)
    Worker(ProcessArgs),
    /// Enqueue tasks until standard input ends (started by the harness)
    Producer(ProcessArgs),
}

/// Arguments of every run.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Number of rounds; each kills, suspends or disturbs processes
    #[arg(long, default_value_t = 50)]
    pub(crate) rounds: u32,
    /// Repeat the files and choices of an earlier run (timing still varies with the machine) [default: random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Keep the files of the run; a run with violations always keeps them
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Arguments of a run that kills task workers.
#[derive(Clone, Debug, Args)]
pub(crate) struct JobsArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Kind of disk fault
    #[arg(long, value_enum, default_value_t = DiskFault::None)]
    pub(crate) fault: DiskFault,
    /// Duration of a task's lease
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub(crate) lease_ms: u64,
}

impl JobsArgs {
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// Arguments of a run that kills `gristmill` commands.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProgramArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Path of `gristmill` [default: in the folder of this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
}

/// Disk fault that a run injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskFault {
    /// No fault
    None,
    /// The disk is full at times (a small tmpfs; needs the right to mount)
    Enospc,
    /// Writes and syncs fail at times (needs strace)
    Eio,
}

/// Arguments of a worker or producer process.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProcessArgs {
    /// Folder of the run
    pub(crate) folder: PathBuf,
    /// Name, unique in the run
    pub(crate) name: String,
    /// Seed of the random choices
    pub(crate) seed: u64,
    /// Duration of a task's lease, in milliseconds
    pub(crate) lease_ms: u64,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn jobs_args(line: &str) -> Result<JobsArgs, clap::Error> {
        let args = ["gristmill-crash", "run"].into_iter().chain(line.split_whitespace());
        Arguments::try_parse_from(args).map(|arguments| match arguments.command {
            Command::Run(args) => args,
            other => panic!("not a run: {other:?}"),
        })
    }

    #[test]
    fn command_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn run_defaults_to_fifty_rounds_without_disk_fault() {
        let plain = jobs_args("").unwrap();
        assert_eq!((plain.run.rounds, plain.run.seed, plain.fault, plain.lease_ms), (50, None, DiskFault::None, 500));
        let given = jobs_args("--rounds 3 --seed 7 --fault eio --lease-ms 800").unwrap();
        assert_eq!((given.run.rounds, given.run.seed, given.fault, given.lease_ms), (3, Some(7), DiskFault::Eio, 800));
    }

    #[test]
    fn invalid_values_are_rejected() {
        for line in ["--fault fire", "--rounds many", "--lease-ms 5", "--seed -1"] {
            assert!(jobs_args(line).is_err(), "{line}");
        }
    }
}
