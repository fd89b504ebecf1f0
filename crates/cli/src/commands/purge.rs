//! `gristmill purge`: deletes catalog records of files and folders that have been missing for long.

use gristmill_store::UtcTime;
use jiff::Timestamp;

use super::value_parsers::timestamp;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::units::{count_of, utc};

const HELP: &str = "\
A file or folder that a scan no longer finds stays in the catalog, marked as missing, with its hash: if it comes back, \
for example with a disk that is mounted again, it is not read again. This command deletes the records of those that \
have been missing since before a date. No file is changed.

Examples:
  gristmill purge all --before 90d
  gristmill purge files --before 2026-01-31";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Records to delete
    #[arg(value_enum)]
    what: What,

    /// Delete records missing since before: a date such as 2026-01-31, or a time ago such as 90d
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
        format!("deleted records of {what} missing since before {}. No file was changed", utc(before))
    })
}
