//! `gristmill backup`: copies the database to one file while it is in use.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use gristmill_store::backup::ExistingFile;
use serde_json::json;

use super::root_paths::with_path;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::path;
use crate::settings::absolute;
use crate::units::bytes;

const HELP: &str = "\
The copy is the database at the moment the command started, in one file without a WAL. It is checked and on disk \
before it gets its name. Workers continue meanwhile.

To restore a copy: stop all workers, move the database and its -wal and -shm files away, and put the copy in its place.

Examples:
  gristmill backup /media/usb/gristmill.db
  gristmill backup --force nightly.db";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// File to write
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let store = context.open_store()?;
    let target = absolute(&args.file)?;
    let existing = if args.force { ExistingFile::Replace } else { ExistingFile::Keep };
    let mut progress = ProgressBar::new(context.quiet);
    let report = store.backup(&target, existing, |done, total| progress.show(done, total));
    progress.clear();
    let report = report.map_err(|error| match error {
        gristmill_store::Error::Conflict(text) if !args.force && target.exists() => {
            Error::Setting(format!("{text}; replace it with --force"))
        }
        other => other.into(),
    })?;
    let mut value = with_path(&target);
    value.insert("pages".to_owned(), json!(report.pages));
    value.insert("bytes".to_owned(), json!(report.bytes));
    context.output.summary(&value, Outcome::Done, |_| format!("wrote {} ({})", path(&target), bytes(report.bytes)))?;
    Ok(Outcome::Done)
}

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
            let _ = write!(io::stderr(), "\rcopying {percent:3} % of {total} pages");
        }
    }

    fn clear(&self) {
        if self.is_drawn {
            let _ = write!(io::stderr(), "\r{:40}\r", "");
        }
    }
}
