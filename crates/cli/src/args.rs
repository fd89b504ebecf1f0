//! What the user typed.
//!
//! Owns the grammar and the help text. It resolves nothing: the environment and the defaults come in where
//! a setting is used, flags over environment.

use clap::{ArgAction, Parser};

const EXPLANATION: &str = "\
Gristmill runs work in bounded worker pools.

Today it is a library, gristmill-pool: bounded queues, retries, deadlines, a watch for stalled work and an \
exact report at the end. This program has no jobs of its own yet; they arrive with the next releases.";

const AFTER_HELP: &str = "\
Exit codes:
  0    done
  1    something for you to put right: a wrong argument or setting
  2    the system failed: a full disk, a lost connection
  130  interrupted

Environment:
  GRISTMILL_LOG  what to log, unless --verbose or --quiet is given: off, error, warn
                 (the default), info, debug or trace; or part by part, such as
                 warn,gristmill=debug";

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
    /// Log more: once for info, twice for debug, three times for trace
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Log errors only
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
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
