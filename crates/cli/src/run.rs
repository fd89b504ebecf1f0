//! One run of the program, from the words typed to the result.
//!
//! Owns the order: understand the words, start the log, do what was asked. Workloads live in crates of
//! their own.

use std::ffi::OsString;
use std::io::{self, ErrorKind};

use clap::{CommandFactory, Parser};

use crate::args::Args;
use crate::error::Error;
use crate::logging;

pub(crate) fn run(words: impl Iterator<Item = OsString>) -> Result<(), Error> {
    let args = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(asked) if !asked.use_stderr() => return written(asked.print()),
        Err(error) => return Err(Error::Usage(error)),
    };
    logging::start(&args)?;
    tracing::debug!(version = env!("CARGO_PKG_VERSION"), "started");
    written(Args::command().print_long_help())
}

/// A reader that has read enough, such as `head`, is content; a full disk is not.
fn written(result: io::Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::Output(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_may_leave_early() {
        assert!(written(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(written(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
