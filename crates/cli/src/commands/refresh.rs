//! `gristmill refresh`: finds known files that vanished or changed, without reading them.

use std::path::PathBuf;

use gristmill_dedup::{ScanMode, ScanOptions};

use super::root_paths::select_roots;
use super::scan::scan_and_report;
use crate::context::Context;
use crate::error::{Error, Outcome};

const HELP: &str = "\
Marks files and folders that vanished as missing, and files that changed so that the next scan reads them. New files \
are not looked for and no content is read, so this is faster than a scan.

The exit status is that of `gristmill scan`.

Examples:
  gristmill refresh
  gristmill refresh ~/Pictures nas";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Roots to refresh, by path or name [default: all]
    #[arg(value_name = "ROOT")]
    roots: Vec<PathBuf>,

    /// Accept that a folder that had files is now empty, or that its disk is no longer mounted
    #[arg(long)]
    allow_empty: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let (store, settings) = context.open_catalog()?;
    let roots = if args.roots.is_empty() { store.roots().list()? } else { select_roots(&store, &args.roots)? };
    if roots.is_empty() {
        let text = "no folder has been scanned yet; scan one: `gristmill scan FOLDER`";
        return Err(Error::Setting(text.to_owned()));
    }
    let mut options = ScanOptions::default();
    options.mode = ScanMode::Refresh;
    options.allow_empty = args.allow_empty;
    options.workers = settings.scan.workers;
    scan_and_report(&store, &roots, &options, context)
}
