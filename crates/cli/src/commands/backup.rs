//! `gristmill backup`: copies the database to one file while it is in use.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gristmill_store::backup::ExistingFile;
use serde_json::json;

use super::root_paths::with_path;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::path;
use crate::progress::{ProgressLine, ProgressReporter};
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
    let pages = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let progress = ProgressReporter::start(context.quiet, {
        let pages = Arc::clone(&pages);
        move |_| progress_line(pages.0.load(Relaxed), pages.1.load(Relaxed))
    });
    let report = store.backup(&target, existing, |done, all| {
        pages.0.store(done, Relaxed);
        pages.1.store(all, Relaxed);
    });
    drop(progress);
    let report = report.map_err(|error| match error {
        gristmill_store::Error::Conflict(text) if !args.force && target.exists() => {
            Error::Setting(format!("{text}; replace it with --force"))
        }
        other => other.into(),
    })?;
    let mut value = with_path(&target);
    value.insert("pages".to_owned(), json!(report.pages));
    value.insert("bytes".to_owned(), json!(report.bytes));
    context.output.summary(&value, Outcome::Done, |_| format!("wrote {} ({})", path(&target), bytes(report.bytes)))
}

fn progress_line(done: u64, all: u64) -> ProgressLine {
    let done = done * 100 / all.max(1);
    let mut line = ProgressLine::new(format!("copying {done:3} % of {all} pages"));
    line.bar = Some(done);
    line
}
