//! The log on standard error.
//!
//! Owns `GRISTMILL_LOG`, the tracing subscriber of the process, and the format of warnings: plain lines such as
//! `gristmill: warning: …` unless a log was requested.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::Args;
use crate::error::Error;
use crate::output::{CLEAR_LINE, sanitize};

const VARIABLE: &str = "GRISTMILL_LOG";

/// Installs the subscriber. Called once, before all other work.
pub(crate) fn start(args: &Args) -> Result<(), Error> {
    let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let filter = filter(args, variable.as_deref())?;
    let terminal = io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(terminal);
    match args.verbose > 0 || (variable.is_some() && !args.quiet) {
        true => log.init(),
        false => log.event_format(PlainFormat { terminal }).init(),
    }
    Ok(())
}

/// Formats events as messages for people, without time and target.
struct PlainFormat {
    /// Whether a progress line may have to be cleared.
    terminal: bool,
}

impl<S, N> FormatEvent<S, N> for PlainFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "note",
        };
        let mut message = Message::default();
        event.record(&mut message);
        if self.terminal {
            writer.write_str(CLEAR_LINE)?;
        }
        writeln!(writer, "gristmill: {level}: {}", sanitize(&message.into_text()))
    }
}

#[derive(Default)]
struct Message {
    text: String,
    values: String,
}

impl Message {
    fn into_text(self) -> String {
        match self.values.is_empty() {
            true => self.text,
            false => format!("{} ({})", self.text, self.values),
        }
    }
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            name => {
                let comma = if self.values.is_empty() { "" } else { ", " };
                write!(self.values, "{comma}{name}: {value:?}")
            }
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Chooses the filter: flags override the variable, which overrides the default.
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
    let text = value.to_str().filter(|text| !has_bare_name(text));
    text.and_then(|text| EnvFilter::builder().parse(text).ok()).ok_or_else(|| {
        Error::Setting(format!(
            "{VARIABLE} is {value:?}, which is not a log filter\n\n\
             expected: off, error, warn, info, debug or trace; or levels of modules, MODULE=LEVEL separated\n\
             by commas, such as warn,gristmill=debug"
        ))
    })
}

/// Returns true if a filter has a name without a level. `EnvFilter` reads it as the name of a module, so that a
/// misspelled level would silence the log. Spans, in brackets, contain commas and are not checked.
fn has_bare_name(text: &str) -> bool {
    let is_bare = |word: &str| !word.contains('=') && word.trim().parse::<LevelFilter>().is_err();
    !text.contains('[') && text.split(',').any(is_bare)
}
