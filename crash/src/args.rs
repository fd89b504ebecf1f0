//! What the program is told: by a person (`run`, `scan`, `import`, `consume`), or by its own referee (`worker`, `customer`).

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Kills real workers at random and looks at what is left.
#[derive(Debug, Parser)]
#[command(name = "gristmill-crash", version, about)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The referee: so many rounds, then the verdict. Exit codes: 0 all is well, 1 findings, 2 the system failed, 3
    /// not possible on this machine
    Run(Settings),
    /// Scans: so many rounds, each killed and gone on with. Exit codes as above
    Scan(ProgramSettings),
    /// Imports: so many rounds, each killed or interrupted and gone on with. Exit codes as above
    Import(ProgramSettings),
    /// Consumers of RabbitMQ: so many rounds, they and the broker killed in them. Exit codes as above
    Consume(ProgramSettings),
    /// A worker, started by the referee; ends when its standard input does
    Worker(Member),
    /// Somebody who enqueues tasks, started by the referee; ends when its standard input does
    Customer(Member),
}

/// How much, and under which conditions.
#[derive(Clone, Debug, Args)]
pub(crate) struct Settings {
    /// How often something is killed, stopped or filled up
    #[arg(long, default_value_t = 50)]
    pub(crate) rounds: u32,
    /// Makes the same choices again (moments still vary with the machine); a new one each time without it
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// What is wrong with the disk
    #[arg(long, value_enum, default_value_t = Fault::None)]
    pub(crate) fault: Fault,
    /// How long leases are
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub(crate) lease_ms: u64,
    /// Keeps the files of the run, which a run with findings does anyway
    #[arg(long)]
    pub(crate) keep: bool,
}

/// How many rounds, and of which program.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProgramSettings {
    /// How many rounds: in each something is killed and gone on with
    #[arg(long, default_value_t = 50)]
    pub(crate) rounds: u32,
    /// Makes the same files and choices again (moments still vary with the machine); new ones without it
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// The program `gristmill`; the one beside this program without it
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Keeps the files of the run, which a run with findings does anyway
    #[arg(long)]
    pub(crate) keep: bool,
}

/// What is wrong with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// Nothing
    None,
    /// It is full, now and then (a small tmpfs; needs the right to mount)
    Enospc,
    /// Writes and syncs fail, now and then (needs strace)
    Eio,
}

impl Settings {
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// One process of the crew.
#[derive(Clone, Debug, Args)]
pub(crate) struct Member {
    /// The folder of the run
    pub(crate) site: PathBuf,
    /// A name that no other process of the run has
    pub(crate) name: String,
    /// What its choices are made from
    pub(crate) seed: u64,
    /// How long leases are
    pub(crate) lease_ms: u64,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn settings(line: &str) -> Result<Settings, clap::Error> {
        let words = ["gristmill-crash", "run"].into_iter().chain(line.split_whitespace());
        Arguments::try_parse_from(words).map(|arguments| match arguments.command {
            Command::Run(settings) => settings,
            other => panic!("not a run: {other:?}"),
        })
    }

    #[test]
    fn the_grammar_holds_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_run_is_fifty_rounds_on_a_sound_disk_unless_told_otherwise() {
        let plain = settings("").unwrap();
        assert_eq!((plain.rounds, plain.seed, plain.fault, plain.lease_ms), (50, None, Fault::None, 500));
        let told = settings("--rounds 3 --seed 7 --fault eio --lease-ms 800").unwrap();
        assert_eq!((told.rounds, told.seed, told.fault, told.lease_ms), (3, Some(7), Fault::Eio, 800));
    }

    #[test]
    fn lines_that_are_not_understood() {
        for line in ["--fault fire", "--rounds many", "--lease-ms 5", "--seed -1"] {
            assert!(settings(line).is_err(), "{line}");
        }
    }
}
