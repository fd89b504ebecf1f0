//! `gristmill dupes`: lists groups of files with the same content, from the catalog.
//!
//! Owns the query. `filters` has the options that select groups, and `formats` writes the result in four formats.

mod filters;
mod formats;

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gristmill_store::Store;
use gristmill_store::catalog::{GroupQuery, SortBy};
use gristmill_store::roots::Root;

use self::filters::Filters;
use self::formats::DupesView;
use super::completeness::Completeness;
use super::paging::{Offset, Paging};
use super::root_paths::RootPaths;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::progress::while_showing;

const HELP: &str = "\
Files are duplicates if all their bytes are equal. The list comes from the catalog: scanned folders are not read and \
nothing is changed. A root is a folder you have scanned.

Several hard links to one file count as one copy. Deleting a hard link frees no space. Deleting a path that leads to \
the same file through a bind mount or a followed link deletes the file. Text, JSON and CSV mark such paths.

--fdupes prints what fdupes and jdupes print: names unchanged byte for byte, only one of several hard links unless \
--hard-links is given, and no mark at paths that lead through symbolic links. Use -0 if names may contain line ends.

Filters combine: a group is listed if one of its files has all of the given path, pattern, extension, type and time. \
With --root, --reference or --match-names, the copies and the reclaimable space are those among the files that count.

With --reference, the copies in these folders are kept: they count for --min-count and --across-roots, whichever \
--root is given, and not as copies or reclaimable. Text and JSON name them (kept), CSV the first of each group, \
--fdupes none.

The cursor of --after is the number of groups already shown.

Examples:
  gristmill dupes
  gristmill dupes --type image --contains holiday
  gristmill dupes --reference /mnt/archive --json      # what can go, because the archive has it
  gristmill dupes --sort count --min-size 1MiB --limit 50 --after 50
  gristmill dupes --root ~/Pictures --root nas --across-roots
  gristmill dupes --json | jq -r '.items[].files[1:][] | select(.hard_link | not).path'
  gristmill dupes --csv > duplicates.csv";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Sort by reclaimable space, number of files, file size, or path
    #[arg(long, value_name = "ORDER", value_parser = sort(), default_value = "reclaimable")]
    sort: SortBy,

    #[command(flatten)]
    paging: Paging<Offset>,

    #[command(flatten)]
    filters: Filters,

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
    let query = GroupQuery::default().sort(args.sort).limit(slice.limit).offset(slice.offset);
    let query = args.filters.apply(&store, query)?;
    let groups = while_showing(context.quiet, "reading the catalog", || store.catalog().groups(&query))?;
    let view = DupesView {
        groups,
        root_paths: RootPaths::new(&store)?,
        slice,
        is_filtered: args.filters.are_given(),
        only_ignored: args.filters.only_ignored(),
        completeness: Completeness::new(&store, &roots_that_count(&store, &query)?, &context.hints)?,
        hints: context.hints.clone(),
    };
    args.filters.warn(&store, &view.completeness)?;
    if !args.csv && !args.fdupes {
        return context.output.print(&view.json(), |_| view.text());
    }
    view.completeness.warn();
    if let Some(remark) = formats::state_remark(&view.groups.state) {
        tracing::warn!("{remark}");
    }
    let end = if args.print0 { 0 } else { b'\n' };
    let bytes = if args.csv { view.csv().into_bytes() } else { view.fdupes(end, args.hard_links) };
    context.output.print_bytes(&bytes)?;
    Ok(Outcome::Done)
}

/// Returns the roots with files that count as copies; none for all roots.
fn roots_that_count(store: &Store, query: &GroupQuery) -> Result<Vec<i64>, Error> {
    if query.roots.is_empty() {
        return Ok(Vec::new());
    }
    let touches = |folder: &PathBuf, root: &Root| folder.starts_with(&root.path) || root.path.starts_with(folder);
    let is_reference = |root: &&Root| query.reference.iter().any(|folder| touches(folder, root));
    let reference = store.roots().list()?;
    Ok(query.roots.iter().copied().chain(reference.iter().filter(is_reference).map(|root| root.id)).collect())
}
