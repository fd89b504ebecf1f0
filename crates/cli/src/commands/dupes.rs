//! `gristmill dupes`: groups of files with the same content, from the catalog.
//!
//! Owns what is asked for. How it is written, in each of four forms, is in `formats`.

mod formats;

use std::path::PathBuf;

use gristmill_store::Store;
use gristmill_store::catalog::{GroupQuery, SortBy};

use self::formats::DupesView;
use super::completeness::Completeness;
use super::paging::{Offset, Paging};
use super::root_paths::{RootPaths, select_roots};
use super::value_parsers::size;
use crate::context::Context;
use crate::error::{Error, Outcome};

const EXAMPLES: &str = "\
Files are duplicates when all their bytes are the same. What is listed is what scans have found; no disk is read, and \
nothing is changed. Several names of one file are one copy: deleting a hard link gives nothing back, and deleting a path \
that leads to the same file through a bind mount or a followed link deletes the file.

--csv has one row a file, with the number of its group. --fdupes is what the programs fdupes and jdupes write, for \
scripts made for those: one path a line, an empty line between groups, names as they are, byte for byte. As with them, \
of several names of one file one is listed, unless --hard-links is given. Where names may have line ends in them, use -0. \
It has no mark for paths that symbolic links lead to; the other forms mark them.

Examples:
  gristmill dupes
  gristmill dupes --sort count --min-size 1MiB --limit 50 --page 2
  gristmill dupes --root ~/Pictures --root nas --across-roots
  gristmill dupes --json | jq -r '.items[].files[1:][] | select(.hard_link | not).path'
  gristmill dupes --csv > duplicates.csv";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Which groups come first: most space back, most copies, largest files, or by path
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = Sort::Reclaimable)]
    sort: Sort,

    /// Only groups of at least so many copies
    #[arg(long, value_name = "N", default_value = "2", value_parser = count)]
    min_count: u64,

    /// Only files of at least this size
    #[arg(long, value_name = "SIZE", default_value = "1B", value_parser = size)]
    min_size: u64,

    /// Only files of this root and of roots in it, by path or name; may be given several times
    #[arg(long, value_name = "ROOT")]
    root: Vec<PathBuf>,

    /// Only groups with files in several roots
    #[arg(long)]
    across_roots: bool,

    #[command(flatten)]
    paging: Paging<Offset>,

    /// Say it as CSV, a row a file
    #[arg(long, conflicts_with_all = ["fdupes", "json"], help_heading = "Forms")]
    csv: bool,

    /// Say it as fdupes does: a path a line, an empty line between groups
    #[arg(long, conflicts_with = "json", help_heading = "Forms")]
    fdupes: bool,

    /// With --fdupes: end each path with a zero byte instead of a line end
    #[arg(short = '0', long, requires = "fdupes", help_heading = "Forms")]
    print0: bool,

    /// With --fdupes: list all names of a file
    #[arg(long, requires = "fdupes", help_heading = "Forms")]
    hard_links: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Sort {
    Reclaimable,
    Count,
    Size,
    Path,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let for_programs = args.csv || args.fdupes || context.output.is_json();
    let slice = if for_programs { args.paging.slice_for_programs() } else { args.paging.slice_for_text() };
    let (store, _) = context.open_catalog()?;
    let query = GroupQuery {
        sort: match args.sort {
            Sort::Reclaimable => SortBy::Reclaimable,
            Sort::Count => SortBy::Count,
            Sort::Size => SortBy::Size,
            Sort::Path => SortBy::Path,
        },
        min_count: args.min_count,
        min_size: args.min_size,
        roots: roots(&store, &args.root)?,
        across_roots: args.across_roots,
        limit: slice.limit,
        offset: slice.offset,
    };
    let groups = store.catalog().groups(&query)?;
    let is_filtered = args.min_count > 2 || args.min_size > 1 || !args.root.is_empty() || args.across_roots;
    let view = DupesView {
        groups,
        root_paths: RootPaths::new(&store)?,
        slice,
        is_filtered,
        completeness: Completeness::new(&store, &query.roots, &context.hints)?,
        hints: context.hints.clone(),
    };
    match args {
        Args { csv: true, .. } => {
            view.completeness.warn();
            context.output.print_bytes(view.csv().as_bytes())?;
        }
        Args { fdupes: true, print0, hard_links, .. } => {
            view.completeness.warn();
            context.output.print_bytes(&view.fdupes(if *print0 { 0 } else { b'\n' }, *hard_links))?;
        }
        _ => context.output.print(&view.json(), |_| view.text())?,
    }
    Ok(Outcome::Done)
}

fn roots(store: &Store, words: &[PathBuf]) -> Result<Vec<i64>, Error> {
    Ok(select_roots(store, words)?.iter().map(|root| root.id).collect())
}

fn count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count >= 2);
    count.ok_or_else(|| "legal: a whole number from 2 on".to_owned())
}
