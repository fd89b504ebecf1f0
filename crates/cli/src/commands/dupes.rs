//! `gristmill dupes`: lists groups of files with the same content, from the catalog.
//!
//! Owns the query. `formats` writes the result in four formats.

mod formats;

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gristmill_store::Store;
use gristmill_store::catalog::{GroupQuery, SortBy};

use self::formats::DupesView;
use super::completeness::Completeness;
use super::paging::{Offset, Paging};
use super::root_paths::{RootPaths, select_roots};
use super::value_parsers::size;
use crate::context::Context;
use crate::error::{Error, Outcome};

const HELP: &str = "\
Files are duplicates if all their bytes are equal. The list comes from the catalog: scanned folders are not read and \
nothing is changed. A root is a folder you have scanned.

Several hard links to one file count as one copy. Deleting a hard link frees no space. Deleting a path that leads to \
the same file through a bind mount or a followed link deletes the file. Text, JSON and CSV mark such paths.

--fdupes prints what fdupes and jdupes print: names unchanged byte for byte, only one of several hard links unless \
--hard-links is given, and no mark at paths that lead through symbolic links. Use -0 if names may contain line ends.

The cursor of --after is the number of groups already shown.

Examples:
  gristmill dupes
  gristmill dupes --sort count --min-size 1MiB --limit 50 --after 50
  gristmill dupes --root ~/Pictures --root nas --across-roots
  gristmill dupes --json | jq -r '.items[].files[1:][] | select(.hard_link | not).path'
  gristmill dupes --csv > duplicates.csv";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Sort by reclaimable space, number of copies, file size, or path
    #[arg(long, value_name = "ORDER", value_parser = sort(), default_value = "reclaimable")]
    sort: SortBy,

    /// List only groups with at least N copies
    #[arg(long, value_name = "N", default_value = "2", value_parser = count)]
    min_count: u64,

    /// List only files of at least this size
    #[arg(long, value_name = "SIZE", default_value = "1B", value_parser = size)]
    min_size: u64,

    /// List only files of this root and of roots inside it, by path or name; repeatable
    #[arg(long, value_name = "ROOT")]
    root: Vec<PathBuf>,

    /// List only groups with files in several roots
    #[arg(long)]
    across_roots: bool,

    #[command(flatten)]
    paging: Paging<Offset>,

    /// Print CSV, one row per file, with the number of its group
    #[arg(long, conflicts_with_all = ["fdupes", "json"], help_heading = "Formats")]
    csv: bool,

    /// Print like fdupes: one path per line, an empty line between groups
    #[arg(long, conflicts_with = "json", help_heading = "Formats")]
    fdupes: bool,

    /// With --fdupes: end each path with a NUL byte instead of a line end
    #[arg(short = '0', long, requires = "fdupes", help_heading = "Formats")]
    print0: bool,

    /// With --fdupes: list all hard links of a file
    #[arg(long, requires = "fdupes", help_heading = "Formats")]
    hard_links: bool,
}

fn sort() -> impl TypedValueParser<Value = SortBy> {
    PossibleValuesParser::new(["reclaimable", "count", "size", "path"]).map(|order| match order.as_str() {
        "count" => SortBy::Count,
        "size" => SortBy::Size,
        "path" => SortBy::Path,
        _ => SortBy::Reclaimable,
    })
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let for_programs = args.csv || args.fdupes || context.output.is_json();
    let slice = args.paging.slice(for_programs);
    let (store, _) = context.open_catalog()?;
    let query = GroupQuery::default()
        .sort(args.sort)
        .min_count(args.min_count)
        .min_size(args.min_size)
        .roots(roots(&store, &args.root)?)
        .across_roots(args.across_roots)
        .limit(slice.limit)
        .offset(slice.offset);
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
    if !args.csv && !args.fdupes {
        return context.output.print(&view.json(), |_| view.text());
    }
    view.completeness.warn();
    let end = if args.print0 { 0 } else { b'\n' };
    let bytes = if args.csv { view.csv().into_bytes() } else { view.fdupes(end, args.hard_links) };
    context.output.print_bytes(&bytes)?;
    Ok(Outcome::Done)
}

fn roots(store: &Store, names: &[PathBuf]) -> Result<Vec<i64>, Error> {
    Ok(select_roots(store, names)?.iter().map(|root| root.id).collect())
}

fn count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count >= 2);
    count.ok_or_else(|| "expected: a whole number of at least 2".to_owned())
}
