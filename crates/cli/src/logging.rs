//! The log: to standard error, as loud as flags and environment say.
//!
//! Owns `GRISTMILL_LOG` and the subscriber of the process. What is worth logging is each crate's own affair.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::args::Args;
use crate::error::Error;

const VARIABLE: &str = "GRISTMILL_LOG";

/// Starts logging. To be called once, before anything else is done.
pub(crate) fn start(args: &Args) -> Result<(), Error> {
    let filter = filter(args, std::env::var_os(VARIABLE).as_deref())?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    Ok(())
}

/// Flags over environment over the default.
fn filter(args: &Args, variable: Option<&OsStr>) -> Result<EnvFilter, Error> {
    match (args.quiet, args.verbose, variable) {
        (true, _, _) => Ok(EnvFilter::new("error")),
        (_, 1, _) => Ok(EnvFilter::new("info")),
        (_, 2, _) => Ok(EnvFilter::new("debug")),
        (_, 3.., _) => Ok(EnvFilter::new("trace")),
        (_, 0, Some(value)) if !value.is_empty() => from_variable(value),
        _ => Ok(EnvFilter::new("warn")),
    }
}

fn from_variable(value: &OsStr) -> Result<EnvFilter, Error> {
    let text = value.to_str().filter(|text| !has_stray_word(text));
    text.and_then(|text| EnvFilter::builder().parse(text).ok()).ok_or_else(|| {
        Error::Setting(format!(
            "{VARIABLE} is {value:?}, which is not a log filter\n\n\
             legal: off, error, warn, info, debug or trace; or part by part, PART=LEVEL separated by\n\
             commas, such as warn,gristmill=debug"
        ))
    })
}

/// The filter's own grammar takes a lone word for the name of a part, so that a mistyped level would
/// silence the log without a word. Spans, in brackets, have commas of their own and are left alone.
fn has_stray_word(text: &str) -> bool {
    let stray = |word: &str| !word.contains('=') && word.trim().parse::<LevelFilter>().is_err();
    !text.contains('[') && text.split(',').any(stray)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[track_caller]
    fn check(flags: &[&str], variable: Option<&str>, expected: &str) {
        let args = Args::parse_from(std::iter::once(&"gristmill").chain(flags));
        let found = match filter(&args, variable.map(OsStr::new)) {
            Ok(filter) => filter.to_string(),
            Err(Error::Setting(text)) => text,
            Err(other) => panic!("{other:?}"),
        };
        assert!(found.contains(expected), "{flags:?} {variable:?} gave {found}");
    }

    #[test]
    fn flags_over_environment_over_default() {
        check(&[], None, "warn");
        check(&[], Some(""), "warn");
        check(&[], Some("gristmill=trace"), "gristmill=trace");
        check(&["-q"], Some("trace"), "error");
        check(&["-v"], Some("error"), "info");
        check(&["-vv"], None, "debug");
        check(&["-vvvv"], None, "trace");
    }

    #[test]
    fn filters_that_are_understood() {
        check(&[], Some("OFF"), "off");
        check(&[], Some("info,"), "info");
        check(&[], Some("warn,gristmill=debug"), "gristmill=debug,warn");
        check(&[], Some("[task{id=3,kind=walk}]=debug"), "[task{");
    }

    #[test]
    fn filters_that_are_not() {
        for value in ["gristmill=loud", "debgu", "warn,gristmill", "["] {
            check(&[], Some(value), &format!("{value:?}, which is not a log filter"));
        }
    }
}
