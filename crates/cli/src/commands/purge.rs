//! `gristmill purge`: forgets what has been gone for long.

use gristmill_store::UtcTime;
use jiff::Timestamp;

use super::value_parsers::timestamp;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{count_of, time};

const EXAMPLES: &str = "\
A file or folder that a scan does not find any more stays in the catalog, marked as gone: it may come back, with a \
disk that is mounted again, and is not read anew then. This forgets those that have been gone since before a date. \
No file is touched.

Examples:
  gristmill purge all --before 90d
  gristmill purge files --before 2026-01-31";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to forget of what is gone
    #[arg(value_enum)]
    what: What,

    /// Gone since before: a date such as 2026-01-31, or 90d for ninety days ago
    #[arg(long, value_name = "DATE", value_parser = timestamp)]
    before: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    Files,
    Folders,
    All,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let (store, _) = context.open_catalog()?;
    let before = UtcTime::from_micros(args.before.as_microsecond());
    let purged = store.catalog().purge(args.what != What::Folders, args.what != What::Files, before)?;
    context.output.summary(&purged, Outcome::Done, |_| {
        let (files, folders) = (purged.files as u64, purged.folders as u64);
        let what = match args.what {
            What::Files => count_of(files, "file"),
            What::Folders => count_of(folders, "folder"),
            What::All => format!("{} and {}", count_of(files, "file"), count_of(folders, "folder")),
        };
        let before = time(before);
        format!("forgot {what} gone since before {before} UTC. No file was touched")
    })?;
    Ok(Outcome::Done)
}
