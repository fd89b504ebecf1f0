//! `gristmill folders`: lists identical, similar or contained folders, from the catalog.
//!
//! Owns the query. `summary` and `contained` write the result; `gristmill_dedup::folders` compares folders.

mod contained;
mod summary;

use std::path::PathBuf;

use gristmill_dedup::folders::{
    ContainedOptions, FolderOptions, SimilarOptions, find_contained, find_identical, find_similar,
};
use serde_json::Value;

use self::contained::ContainedView;
use self::summary::{IdenticalView, ListView, SimilarView};
use super::completeness::Completeness;
use super::paging::{Offset, Paging};
use super::root_paths::{RootPaths, select_roots};
use super::value_parsers::size;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::progress::while_showing;

const HELP: &str = "\
Folders are identical if they have the same contents and layout; file names are ignored unless --match-names is given. \
Entries that are not scanned are compared too: symbolic links must have the same target, special files the same type. \
Files and folders that filters excluded are unknown: folders with such entries are listed last, as identical apart \
from entries not scanned, and none of their bytes count as reclaimable. A folder inside an identical one is not listed \
again. Reclaimable is what deleting all folders of a group except one frees: the one that uses most disk space is \
kept, or the first listed of equal ones.

With --partial, pairs of similar folders are listed. Their similarity is the number of matching files divided by the \
number of all files of both. Each pair states its differences: files that only one of the folders has, files with the \
same name that differ, with their modification times (up to --list entries each), a different layout, and entries that \
were not scanned. Of identical folders, only the first by path is compared.

With --contained, folders are listed whose files are all in another folder, which has more: each of their contents \
occurs in that folder or below it at least once, wherever it is and whatever its name; with --match-names, each file \
has the same path in both folders. Below each are the innermost folders that contain it, the smallest first (up to \
--list of them). Folders inside a contained one are not listed again, and identical folders do not count as contained. \
Reclaimable is what deleting the folder frees. Delete one folder and scan again before you delete the next: the other \
lines may rely on it.

The lists come from the catalog: scanned folders are not read and nothing is changed. A root is a folder you have \
scanned. The cursor of --after is the number of groups, pairs or folders already shown.

Examples:
  gristmill folders
  gristmill folders --match-names --min-size 100MiB
  gristmill folders --contained --min-files 10
  gristmill folders --partial --min-similarity 80 --root ~/Pictures
  gristmill folders --partial --json | jq '.items[] | [.similarity, .a.path, .b.path]'";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Compare names of files and subfolders too; the name of the folder itself may differ
    #[arg(long, conflicts_with = "partial")]
    match_names: bool,

    /// List similar folders that are not identical
    #[arg(long, group = "kind")]
    partial: bool,

    /// List folders whose files are all in another folder, which has more
    #[arg(long, group = "kind")]
    contained: bool,

    /// With --partial: minimum similarity in percent [default: 50]
    #[arg(long, value_name = "PERCENT", requires = "partial", conflicts_with = "contained")]
    #[arg(value_parser = percent)]
    min_similarity: Option<u8>,

    /// With --partial: list at most N files for each difference; with --contained: at most N folders around each
    /// [default: 10]
    #[arg(long, value_name = "N", requires = "kind")]
    list: Option<usize>,

    /// List only folders with at least this size; with --partial, in common
    #[arg(long, value_name = "SIZE", default_value = "1B", value_parser = size)]
    min_size: u64,

    /// List only folders with at least N files in and below them
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_files: u64,

    /// List only folders of this root and of roots inside it, by path or name; repeatable
    #[arg(long, value_name = "ROOT")]
    root: Vec<PathBuf>,

    #[command(flatten)]
    paging: Paging<Offset>,
}

/// Shown while the catalog is read.
const COMPARING: &str = "comparing folders";

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let slice = args.paging.slice(context.output.is_json());
    let (store, _) = context.open_catalog()?;
    let roots: Vec<i64> = select_roots(&store, &args.root)?.iter().map(|root| root.id).collect();
    let completeness = Completeness::new(&store, &roots, &context.hints)?;
    let is_filtered = args.match_names || args.min_size > 1 || args.min_files > 1 || !args.root.is_empty();
    let root_paths = RootPaths::new(&store)?;
    let list = |total: usize| ListView { total: total as u64, root_paths, slice, is_filtered, hints: &context.hints };
    let Args { match_names, min_size, min_files, .. } = *args;
    let print = |json: Value, text: &dyn Fn() -> String| {
        context
            .output
            .print(&completeness.extend_json(json), |_| format!("{}\n{}", text().trim_end(), completeness.text()))
    };
    if args.partial {
        let mut options = SimilarOptions::default();
        options.min_similarity = args.min_similarity.unwrap_or(50);
        options.min_files = min_files;
        options.min_size = min_size;
        options.roots = roots;
        options.limit = slice.offset.saturating_add(slice.limit);
        options.list = args.list.unwrap_or(10);
        let found = while_showing(context.quiet, COMPARING, || find_similar(&store, &options))?;
        let pairs = found.pairs.get(slice.offset..).unwrap_or_default();
        let view = SimilarView { pairs, list: list(found.total) };
        print(view.json(), &|| view.text())?;
    } else if args.contained {
        let mut options = ContainedOptions::default();
        (options.match_names, options.min_size) = (match_names, min_size);
        (options.min_files, options.roots) = (min_files, roots);
        options.list = args.list.unwrap_or(10);
        let found = while_showing(context.quiet, COMPARING, || find_contained(&store, &options))?;
        let wholly = found.iter().filter(|folder| folder.wholly).count() as u64;
        let end = slice.offset.saturating_add(slice.limit).min(found.len());
        let folders = found.get(slice.offset..end).unwrap_or_default();
        let view = ContainedView { folders, wholly, list: list(found.len()) };
        print(view.json(), &|| view.text())?;
    } else {
        let mut options = FolderOptions::default();
        (options.match_names, options.min_size) = (match_names, min_size);
        (options.min_files, options.roots) = (min_files, roots);
        let found = while_showing(context.quiet, COMPARING, || find_identical(&store, &options))?;
        let groups: Vec<_> = found.iter().skip(slice.offset).take(slice.limit).collect();
        let identical = found.iter().filter(|group| group.identical).count() as u64;
        let view = IdenticalView { groups: &groups, identical, list: list(found.len()) };
        print(view.json(), &|| view.text())?;
    }
    Ok(Outcome::Done)
}

fn percent(text: &str) -> Result<u8, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok().filter(|percent| (1..=100).contains(percent));
    percent.ok_or_else(|| "expected: a whole number from 1 to 100".to_owned())
}
