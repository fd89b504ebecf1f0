//! `gristmill backup`: the whole database in one file, while others work.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use gristmill_store::backup::ExistingFile;
use serde_json::json;

use super::root_paths::with_path;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{path, plural};
use crate::settings::absolute;

const EXAMPLES: &str = "\
The copy is the database as it was at the moment the command began, in one file without a log beside it,
checked and on disk before it gets its name. Workers go on meanwhile. To restore it: stop all workers, move
the database and its -wal and -shm files away, and put the copy in its place.

Examples:
  gristmill backup /media/usb/gristmill.db
  gristmill backup --force nightly.db";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file to make
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Replace the file if it is there already
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let store = context.open_store()?;
    let target = absolute(&args.file)?;
    let existing = if args.force { ExistingFile::Replace } else { ExistingFile::Keep };
    let mut bar = ProgressBar::new(context.quiet);
    let report = store.backup(&target, existing, |done, total| bar.show(done, total));
    bar.clear();
    let report = report.map_err(|error| match error {
        gristmill_store::Error::Conflict(text) if !args.force && target.exists() => {
            Error::Setting(format!("{text}; --force replaces it"))
        }
        other => other.into(),
    })?;
    let mut value = with_path(&target);
    value.insert("pages".to_owned(), json!(report.pages));
    value.insert("bytes".to_owned(), json!(report.bytes));
    context.output.summary(&value, Outcome::Done, |_| {
        format!(
            "copied {} ({}) to {}",
            plural(report.pages, "page"),
            plural(report.bytes, "byte"),
            path(&target)
        )
    })?;
    Ok(Outcome::Done)
}

/// How far it is, on a terminal.
struct ProgressBar {
    is_drawn: bool,
    is_enabled: bool,
}

impl ProgressBar {
    fn new(quiet: bool) -> Self {
        ProgressBar { is_drawn: false, is_enabled: !quiet && io::stderr().is_terminal() }
    }

    fn show(&mut self, done: u64, total: u64) {
        if self.is_enabled {
            self.is_drawn = true;
            let percent = done * 100 / total.max(1);
            let _ = write!(io::stderr(), "\r{percent:3} % of {total} pages");
        }
    }

    fn clear(&self) {
        if self.is_drawn {
            let _ = write!(io::stderr(), "\r{:40}\r", "");
        }
    }
}
