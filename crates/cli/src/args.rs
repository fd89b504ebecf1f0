//! What the user typed.
//!
//! Owns the grammar that all commands share, and their order in the help; each command has its own words in its own
//! file. It resolves nothing: `settings` does.

use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand};

use crate::commands;
use crate::settings::{Flags, Raw, keys};

const EXPLANATION: &str = "\
Gristmill runs work in bounded worker pools and loses none of it.

Work is queued in one database file and done by workers: processes that take tasks, keep them by leases, try \
again what failed and keep what cannot be done as dead letters. A worker that dies, even by kill -9 or a power \
cut, loses nothing: others take over.

Its built-in task runs a command. In one terminal:  gristmill enqueue exec -- echo hello
in another:                                         gristmill worker";

const AFTER_HELP: &str = "\
Exit codes:
  0    done
  1    something for you to put right: a wrong argument or setting, an item that was refused
  2    the system failed: a full disk, a damaged file
  130  interrupted, with all state saved

Environment:
  GRISTMILL_DB      the database, unless --db is given
  GRISTMILL_CONFIG  the settings file, unless --config is given
  GRISTMILL_LOG     what to log, unless --verbose or --quiet is given: off, error, warn
                    (the default), info, debug or trace; or part by part, such as
                    warn,gristmill=debug
  Every setting has a variable: `gristmill config show` tells what is in force, and why.";

/// The command line as it was given.
#[derive(Debug, Parser)]
#[command(
    name = "gristmill",
    version,
    about = "Runs much work on few workers and loses none of it",
    long_about = EXPLANATION,
    after_help = AFTER_HELP,
    max_term_width = 100
)]
pub(crate) struct Args {
    /// The database file [default: gristmill/gristmill.db in your data folder]
    #[arg(long, value_name = "FILE", global = true, help_heading = "For every command")]
    pub(crate) db: Option<PathBuf>,

    /// The settings file [default: gristmill/config.toml in your configuration folder]
    #[arg(long, value_name = "FILE", global = true, help_heading = "For every command")]
    pub(crate) config: Option<PathBuf>,

    /// Say it as JSON, for programs
    #[arg(long, global = true, help_heading = "For every command")]
    pub(crate) json: bool,

    /// Log more: once for info, twice for debug, three times for trace
    #[arg(short, long, action = ArgAction::Count, global = true, help_heading = "For every command")]
    pub(crate) verbose: u8,

    /// Log errors only
    #[arg(short, long, conflicts_with = "verbose", global = true, help_heading = "For every command")]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Find duplicate files: walk folders, read what can be a duplicate, remember it
    Scan(commands::scan::Args),
    /// Do the work that is queued, until told to stop
    Worker(commands::worker::Args),
    /// Queue work
    Enqueue(commands::enqueue::Args),
    /// See and steer what is queued, runs or has run
    #[command(subcommand)]
    Jobs(commands::jobs::Command),
    /// See what was given up, and try it again or throw it away
    #[command(subcommand)]
    Dead(commands::dead::Command),
    /// Copy the database to a file while others work in it
    Backup(commands::backup::Args),
    /// Check the database, and repair what is safe to repair
    Doctor(commands::doctor::Args),
    /// See the settings in force, and where each comes from
    #[command(subcommand)]
    Config(commands::config::Command),
}

impl Args {
    /// The settings that flags of all commands give.
    pub(crate) fn flags(&self) -> Flags {
        let mut flags = Flags { config: self.config.clone(), ..Flags::default() };
        if let Some(path) = &self.db {
            flags.values.insert(keys::DATABASE.name, ("--db", Raw::One(path.clone().into_os_string())));
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
