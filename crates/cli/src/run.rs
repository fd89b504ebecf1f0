//! One run of the program, from the words typed to the result.
//!
//! Owns the order: understand the words, start the log, do what was asked. Workloads live in crates of
//! their own.

use std::ffi::OsString;

use clap::{CommandFactory, Parser};

use crate::args::{Args, Command};
use crate::commands;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::logging;
use crate::output::{Output, written};

pub(crate) fn run(words: impl Iterator<Item = OsString>) -> Result<Outcome, Error> {
    let args = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(asked) if !asked.use_stderr() => return written(asked.print()).map(|()| Outcome::Done),
        Err(error) => return Err(Error::Usage(error)),
    };
    logging::start(&args)?;
    tracing::debug!(version = env!("CARGO_PKG_VERSION"), "started");
    let mut context = Context {
        flags: args.flags(),
        output: Output::new(args.json),
        quiet: args.quiet,
        verbose: args.verbose > 0,
    };
    match args.command {
        None => written(Args::command().print_long_help()).map(|()| Outcome::Done),
        Some(Command::Scan(args)) => commands::scan::run(&args, &mut context),
        Some(Command::Refresh(args)) => commands::refresh::run(&args, &context),
        Some(Command::Dupes(args)) => commands::dupes::run(&args, &context),
        Some(Command::Folders(args)) => commands::folders::run(&args, &context),
        Some(Command::Report(args)) => commands::report::run(&args, &context),
        Some(Command::Roots) => commands::roots::list(&context),
        Some(Command::Root(command)) => commands::roots::run(&command, &context),
        Some(Command::Purge(args)) => commands::purge::run(&args, &context),
        Some(Command::Verify(args)) => commands::verify::run(&args, &context),
        Some(Command::Import(args)) => commands::import::run(&args, &mut context),
        Some(Command::Consume(args)) => commands::consume::run(&args, &mut context),
        Some(Command::Publish(args)) => commands::publish::run(&args, &mut context),
        Some(Command::Queues(args)) => commands::queues::run(&args, &mut context),
        Some(Command::Worker(args)) => commands::worker::run(args, &mut context),
        Some(Command::Enqueue(args)) => commands::enqueue::run(&args, &context),
        Some(Command::Jobs(command)) => commands::jobs::run(command, &context),
        Some(Command::Dead(command)) => commands::dead::run(command, &context),
        Some(Command::Backup(args)) => commands::backup::run(&args, &context),
        Some(Command::Doctor(args)) => commands::doctor::run(&args, &context),
        Some(Command::Config(command)) => commands::config::run(&command, &context),
        Some(Command::Completions { shell }) => commands::manual::completions(shell, &context),
        Some(Command::Man(pages)) => commands::manual::man(&pages, &context),
    }
}
