//! One run of the program, from the command line to its outcome.
//!
//! Owns the order: parse the arguments, start the log, run the command.

use std::cell::Cell;
use std::ffi::OsString;

use clap::{CommandFactory, Parser};

use crate::args::{Args, Command};
use crate::commands;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::logging;
use crate::output::{Output, ignore_broken_pipe};

pub(crate) fn run(args: impl Iterator<Item = OsString>) -> Result<Outcome, Error> {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(help) if !help.use_stderr() => {
            return ignore_broken_pipe(help.print()).map(|()| Outcome::Done);
        }
        Err(error) => return Err(Error::Usage(error)),
    };
    logging::start(&args)?;
    tracing::debug!(version = env!("CARGO_PKG_VERSION"), "started");
    let mut context = Context {
        flags: args.flags(),
        output: Output::new(args.json, args.quiet),
        hints: Hints::new(&args),
        quiet: args.quiet,
        verbose: args.verbose > 0,
        has_warned: Cell::new(false),
    };
    let result = match args.command {
        None => ignore_broken_pipe(Args::command().print_long_help()).map(|()| Outcome::Done),
        Some(command) => dispatch(command, &mut context),
    };
    result.map_err(|error| error.complete_commands(&context.hints))
}

fn dispatch(command: Command, context: &mut Context) -> Result<Outcome, Error> {
    match command {
        Command::Scan(args) => commands::scan::run(&args, context),
        Command::Refresh(args) => commands::refresh::run(&args, context),
        Command::Dupes(args) => commands::dupes::run(&args, context),
        Command::Ignore(args) => commands::ignore::run(&args, context),
        Command::Folders(args) => commands::folders::run(&args, context),
        Command::Copies(args) => commands::copies::run(&args, context),
        Command::Unique(args) => commands::unique::run(&args, context),
        Command::List(args) => commands::list::run(&args, context),
        Command::Report(args) => commands::report::run(&args, context),
        Command::Roots(args) => commands::roots::run(&args, context),
        Command::Purge(args) => commands::purge::run(&args, context),
        Command::Verify(args) => commands::verify::run(&args, context),
        Command::Import(args) => commands::import::run(&args, context),
        Command::Export(args) => commands::export::run(&args, context),
        Command::Consume(args) => commands::consume::run(&args, context),
        Command::Publish(args) => commands::publish::run(&args, context),
        Command::Queues(args) => commands::queues::run(&args, context),
        Command::Worker(args) => commands::worker::run(&args, context),
        Command::Serve(args) => commands::serve::run(&args, context),
        Command::Enqueue(args) => commands::enqueue::run(&args, context),
        Command::Jobs(command) => commands::jobs::run(command, context),
        Command::Dead(command) => commands::dead::run(command, context),
        Command::Backup(args) => commands::backup::run(&args, context),
        Command::Doctor(args) => commands::doctor::run(&args, context),
        Command::Config(command) => commands::config::run(&command, context),
        Command::Completions { shell } => commands::completions::completions(shell, context),
        Command::Man(args) => commands::completions::man(&args, context),
    }
}
