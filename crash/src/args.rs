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
    Run(Settings),
    /// Kill scans and resume them. Exit statuses as for run
    Scan(ProgramSettings),
    /// Kill or interrupt imports and resume them. Exit statuses as for run
    Import(ProgramSettings),
    /// Kill consumers of RabbitMQ and the broker. Exit statuses as for run
    Consume(ProgramSettings),
    /// Run tasks until standard input ends (started by the harness)
    Worker(ProcessArgs),
    /// Enqueue tasks until standard input ends (started by the harness)
    Producer(ProcessArgs),
}

/// Settings of a run that kills task workers.
#[derive(Clone, Debug, Args)]
pub(crate) struct Settings {
    /// Number of rounds; each kills or suspends workers, or fills the disk
    #[arg(long, default_value_t = 50)]
    pub(crate) rounds: u32,
    /// Repeat the choices of an earlier run (timing still varies with the machine) [default: random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Kind of disk fault
    #[arg(long, value_enum, default_value_t = DiskFault::None)]
    pub(crate) fault: DiskFault,
    /// Duration of a task's lease
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub(crate) lease_ms: u64,
    /// Keep the files of the run; a run with violations always keeps them
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Settings of a run that kills `gristmill` commands.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProgramSettings {
    /// Number of rounds; each kills commands and resumes their work
    #[arg(long, default_value_t = 50)]
    pub(crate) rounds: u32,
    /// Repeat the files and choices of an earlier run (timing still varies with the machine) [default: random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Path of `gristmill` [default: in the folder of this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Keep the files of the run; a run with violations always keeps them
    #[arg(long)]
    pub(crate) keep: bool,
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

impl Settings {
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
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

    fn settings(line: &str) -> Result<Settings, clap::Error> {
        let args = ["gristmill-crash", "run"].into_iter().chain(line.split_whitespace());
        Arguments::try_parse_from(args).map(|arguments| match arguments.command {
            Command::Run(settings) => settings,
            other => panic!("not a run: {other:?}"),
        })
    }

    #[test]
    fn command_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn run_defaults_to_fifty_rounds_without_disk_fault() {
        let plain = settings("").unwrap();
        assert_eq!((plain.rounds, plain.seed, plain.fault, plain.lease_ms), (50, None, DiskFault::None, 500));
        let given = settings("--rounds 3 --seed 7 --fault eio --lease-ms 800").unwrap();
        assert_eq!((given.rounds, given.seed, given.fault, given.lease_ms), (3, Some(7), DiskFault::Eio, 800));
    }

    #[test]
    fn invalid_values_are_rejected() {
        for line in ["--fault fire", "--rounds many", "--lease-ms 5", "--seed -1"] {
            assert!(settings(line).is_err(), "{line}");
        }
    }
}
