//! The command line that all commands share.
//!
//! Owns the global options, the list of commands and the groups of the top-level help. Each command declares its own
//! arguments in its own file. Nothing is resolved here: `settings` does that.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::builder::Styles;
use clap::{ArgAction, Parser, Subcommand};

use crate::commands;
use crate::settings::{Flags, keys};

const LONG_ABOUT: &str = "\
Find duplicate files, load JSONL into SQLite, and run tasks and messages durably.

Scan a folder and list its duplicates:
  gristmill scan ~/Pictures
  gristmill dupes

A scan reads only files that can be duplicates, and changes none of them. It stores what it finds in a catalog, in one \
database file. If a scan is stopped or killed, the same command resumes it; later scans read only files that have \
changed. `dupes`, `folders`, `unique` and `roots` read only the catalog.

Queue a command and run it:
  gristmill enqueue exec -- echo hello
  gristmill worker --once

Tasks are stored in the same database file. A task that fails is retried; after its last attempt it becomes a dead \
letter. If a worker dies, even by kill -9 or a power cut, another worker takes over its tasks.

Handle messages from RabbitMQ:
  gristmill consume orders --exec ./ship-order

A message is acknowledged after it has been handled. Every message is handled or moved to the queue QUEUE.dead.";

const AFTER_HELP: &str = "\
Run `gristmill COMMAND --help` for the options and examples of a command.

Exit status:
  0    success
  1    user error: a wrong argument or setting, or an item that was refused or could not be read
  2    system failure: a full disk, a damaged file
  3    import and export: another program kept the database locked for more than 10 seconds
  130  interrupted; all state is saved

Environment:
  GRISTMILL_DB        Database file; --db overrides it
  GRISTMILL_CONFIG    Settings file; --config overrides it
  GRISTMILL_AMQP_URI  URI of RabbitMQ; --uri overrides it
  GRISTMILL_LOG       Log filter; --verbose and --quiet override it. One of off, error, warn, info,
                      debug and trace, or levels of modules such as warn,gristmill=debug. Without
                      it, warnings are printed as plain lines and nothing else is logged
  Every setting has a variable: `gristmill config show` lists all settings and their origins.";

const GLOBAL_OPTIONS: &str = "Global options";

/// The commands in the order of the top-level help, under their headings.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Find duplicates",
        &[
            "scan", "dupes", "ignore", "folders", "copies", "unique", "list", "report", "refresh", "roots", "purge",
            "verify",
        ],
    ),
    ("Load data", &["import", "export"]),
    ("Messages", &["consume", "publish", "queues"]),
    ("Durable work", &["enqueue", "worker", "jobs", "dead"]),
    ("Server", &["serve"]),
    ("Maintenance", &["backup", "doctor", "config", "completions", "man"]),
];

#[derive(Debug, Parser)]
#[command(
    name = "gristmill",
    version,
    about = "Find duplicate files, load JSONL into SQLite, and run tasks and messages durably",
    long_about = LONG_ABOUT,
    after_help = AFTER_HELP,
    help_template = help_template(),
    max_term_width = 100
)]
pub(crate) struct Args {
    /// Database file [default: gristmill/gristmill.db in the user's data folder]
    #[arg(long, value_name = "FILE", global = true, help_heading = GLOBAL_OPTIONS)]
    pub(crate) db: Option<PathBuf>,

    /// Settings file [default: gristmill/config.toml in the user's configuration folder]
    #[arg(long, value_name = "FILE", global = true, help_heading = GLOBAL_OPTIONS)]
    pub(crate) config: Option<PathBuf>,

    /// Print JSON
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS)]
    pub(crate) json: bool,

    /// Log more: -v for info, -vv for debug, -vvv for trace
    #[arg(short, long, action = ArgAction::Count, global = true, help_heading = GLOBAL_OPTIONS)]
    pub(crate) verbose: u8,

    /// Print errors, lists and JSON only, no summaries and warnings
    #[arg(short, long, conflicts_with = "verbose", global = true, help_heading = GLOBAL_OPTIONS)]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Scan folders and find duplicate files
    Scan(commands::scan::Args),
    /// List duplicate files
    Dupes(commands::dupes::Args),
    /// Hide groups of duplicates in lists, or show them again
    Ignore(commands::ignore::Args),
    /// List identical, similar or contained folders
    Folders(commands::folders::Args),
    /// List the copies of given files
    Copies(commands::copies::Args),
    /// List files without a copy elsewhere, such as those not backed up
    Unique(commands::unique::Args),
    /// List empty files, empty folders or broken links
    List(commands::list::Args),
    /// Write an HTML report about duplicates
    Report(commands::report::Args),
    /// Find known files that vanished or changed, without reading them
    Refresh(commands::refresh::Args),
    /// List or remove scanned folders
    Roots(commands::roots::Args),
    /// Delete catalog records of files missing since before a date
    Purge(commands::purge::Args),
    /// Check the duplicate catalog, and repair it
    Verify(commands::verify::Args),
    /// Load JSONL files into SQLite tables
    Import(commands::import::Args),
    /// Write a SQLite table as JSONL
    Export(commands::export::Args),
    /// Consume RabbitMQ queues and run an action for each message
    Consume(Box<commands::consume::Args>),
    /// Publish lines or files to RabbitMQ
    Publish(commands::publish::Args),
    /// List RabbitMQ queues; move, show or delete their messages
    Queues(commands::queues::Args),
    /// Queue a task
    Enqueue(commands::enqueue::Args),
    /// Run queued tasks until stopped
    Worker(commands::worker::Args),
    /// Serve the HTTP API, and run queued tasks
    Serve(commands::serve::Args),
    /// List, show, cancel and retry tasks and jobs
    #[command(subcommand, after_help = commands::jobs::EXAMPLES)]
    Jobs(commands::jobs::Command),
    /// List, show, retry and discard dead letters
    #[command(subcommand, after_help = commands::dead::EXAMPLES)]
    Dead(commands::dead::Command),
    /// Copy the database to a file while it is in use
    Backup(commands::backup::Args),
    /// Check the database file, and repair it
    Doctor(commands::doctor::Args),
    /// Show settings and their origins, or write a settings file
    #[command(subcommand, after_help = commands::config::EXAMPLES)]
    Config(commands::config::Command),
    /// Print a completion script for a shell
    #[command(after_help = commands::completions::COMPLETIONS)]
    Completions {
        /// Shell to complete for
        shell: clap_complete::Shell,
    },
    /// Print or write the manual pages
    Man(commands::completions::ManArgs),
}

/// Template of the top-level help: clap has no headings for subcommands, so the list of commands is part of the
/// template. It is built from the commands' own descriptions.
fn help_template() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("gristmill"));
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
    let mut text = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (heading, names) in GROUPS {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{header}{heading}:{header:#}");
        for command in names.iter().filter_map(|name| commands.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{:<width$}{literal:#}  {about}", command.get_name());
        }
        text.push('\n');
    }
    let _ = write!(text, "{header}{GLOBAL_OPTIONS}:{header:#}\n{{options}}{{after-help}}");
    text
}

impl Args {
    /// Returns the settings that global options give.
    pub(crate) fn flags(&self) -> Flags {
        let mut flags = Flags { config: self.config.clone(), ..Flags::default() };
        flags.add(&keys::DATABASE, "--db", self.db.as_ref().map(|path| path.as_os_str()));
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_arguments_are_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
