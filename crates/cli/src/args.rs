//! What the user typed.
//!
//! Owns the grammar that all commands share, and their order in the help; each command has its own words in its own
//! file. It resolves nothing: `settings` does.

use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand};

use crate::commands;
use crate::settings::{Flags, Raw, keys};

const EXPLANATION: &str = "\
Gristmill finds duplicate files and folders. It also runs commands durably, and loses none.

Begin with a folder, then see what was found:
  gristmill scan ~/Pictures
  gristmill dupes

A scan reads only files that can be duplicates, changes none, and keeps what it found in one database file. Stopped or \
killed at any instant, the same command goes on where it was; the next one reads only what has changed. What is in the \
catalog then, `dupes`, `folders` and `roots` tell without reading a disk.

Commands are queued in the same file and done by workers, tried again when they fail, and kept \
as dead letters when they cannot be done. A worker that dies, even by kill -9 or a power cut, loses nothing: others \
take over.

Queue one, and have it done:
  gristmill enqueue exec -- echo hello
  gristmill worker --once

Messages of RabbitMQ are taken in the same way: acknowledged when they are done, tried again, never lost:
  gristmill consume orders --exec ./ship-order";

const AFTER_HELP: &str = "\
Exit codes:
  0    done
  1    something for you to put right: a wrong argument or setting, an item that was refused or
       could not be read
  2    the system failed: a full disk, a damaged file
  3    import and export: another program kept the database locked for more than 10 seconds
  130  interrupted, with all state saved

Environment:
  GRISTMILL_DB        the database, unless --db is given
  GRISTMILL_CONFIG    the settings file, unless --config is given
  GRISTMILL_AMQP_URI  where RabbitMQ is, unless --uri is given
  GRISTMILL_LOG       what to log, unless --verbose or --quiet is given: off, error, warn,
                      info, debug or trace; or part by part, such as warn,gristmill=debug.
                      Without it warnings are printed as plain lines, and nothing is logged
  Every setting has a variable: `gristmill config show` tells what is in force, and why.";

/// The command line as it was given.
#[derive(Debug, Parser)]
#[command(
    name = "gristmill",
    version,
    about = "Finds duplicate files and folders; runs much work on few workers and loses none of it",
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

    /// Print errors only; what a command lists, and JSON, is printed all the same
    #[arg(short, long, conflicts_with = "verbose", global = true, help_heading = "For every command")]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Find duplicate files: walk folders, read what can be a duplicate, remember it
    Scan(commands::scan::Args),
    /// List duplicate files
    Dupes(commands::dupes::Args),
    /// List folders that are the same, or have much in common
    Folders(commands::folders::Args),
    /// Write a page about what was found
    Report(commands::report::Args),
    /// Look whether what is known is still there, without reading
    Refresh(commands::refresh::Args),
    /// List the folders that are scanned
    #[command(after_help = commands::roots::LIST)]
    Roots,
    /// Forget a folder that is scanned; no file is touched
    #[command(subcommand)]
    Root(commands::roots::Command),
    /// Forget what has been gone for long
    Purge(commands::purge::Args),
    /// Check what is known of files and folders, and repair it
    Verify(commands::verify::Args),
    /// Load folders of JSONL into tables of SQLite
    Import(commands::import::Args),
    /// Write a table of SQLite as JSONL
    Export(commands::export::Args),
    /// Take messages from RabbitMQ's queues, and do something with each
    Consume(Box<commands::consume::Args>),
    /// Send messages to RabbitMQ: lines, or files
    Publish(commands::publish::Args),
    /// See how many messages wait in RabbitMQ's queues
    Queues(commands::queues::Args),
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
    /// Write a script for a shell that completes commands and options
    #[command(after_help = commands::completions::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    Man(commands::completions::ManArgs),
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
