//! `gristmill refresh`: looks whether what is known is still there.

use std::path::PathBuf;

use gristmill_dedup::{ScanMode, ScanOptions};

use super::root_paths::select_roots;
use super::scan::scan_and_report;
use crate::context::Context;
use crate::error::{Error, Outcome};

const EXAMPLES: &str = "\
Files and folders that are gone are marked as gone, files that have changed are read by the next scan. Nothing new is \
looked for and nothing is read, so it is quick. Without a root all of them are looked at.

Exit codes are those of `gristmill scan`.

Examples:
  gristmill refresh
  gristmill refresh ~/Pictures nas";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Roots, by path or name
    #[arg(value_name = "ROOT")]
    roots: Vec<PathBuf>,

    /// Accept that a root that had files is empty now, or that its disk is no longer mounted
    #[arg(long)]
    allow_empty: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let (store, settings) = context.open_catalog()?;
    let roots =
        if args.roots.is_empty() { store.roots().list()? } else { select_roots(&store, &args.roots)? };
    if roots.is_empty() {
        let text = "no folder has been scanned yet; scan one: `gristmill scan FOLDER`";
        return Err(Error::Setting(text.to_owned()));
    }
    let options = ScanOptions {
        mode: ScanMode::Refresh,
        allow_empty: args.allow_empty,
        workers: settings.scan.workers,
        ..ScanOptions::default()
    };
    scan_and_report(&store, &roots, &options, context)
}
