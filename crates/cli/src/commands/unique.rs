//! `gristmill unique`: lists files without a copy elsewhere, from the catalog.
//!
//! Owns the output. `gristmill_dedup::unique` decides which files have a copy.

use std::path::PathBuf;

use gristmill_dedup::unique::{UniqueFile, UniqueFiles, UniqueOptions, UniqueState, UniqueSummary, unique};
use serde::Serialize;

use super::completeness::{Completeness, filter_notes};
use super::paging::{Offset, Paging, Slice};
use super::value_parsers::size;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{Output, path};
use crate::progress::while_showing;
use crate::units::{bytes, count_of};

const HELP: &str = "\
A folder is given by its path, and a root (a folder you have scanned) also by its name. Copies are searched by \
content; names do not matter. The list comes from the catalog: scanned folders are not read and nothing is changed.

Without --not-in, the files listed have no copy in any scanned folder outside the --in folders. With --not-in, only \
copies in those folders count. If one of the folders is inside another, its files belong to the inner one. A hard \
link is the same file, not a copy: damage to one damages both. Each name of a file is listed.

A file is undecided if it may have a copy: a file of the same size was not compared with it. Undecided files are \
listed last and marked; the list is then incomplete until `gristmill scan` has compared them. Disks that are never \
connected together can be compared if they are scanned with --every-file.

--print0 prints the paths of the files without a copy, each followed by a NUL byte, and no undecided files.

The cursor of --after is the number of files already shown.

Examples:
  gristmill unique --in ~/Pictures --not-in /mnt/nas
  gristmill unique --in /mnt/old-disk --min-size 1MiB
  gristmill unique --in ~/Pictures --not-in nas -0 | rsync -a --from0 --files-from=- / nas:/backup";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// List files of this root, or of this folder in a root; repeatable
    #[arg(long = "in", value_name = "FOLDER", required = true)]
    inside: Vec<PathBuf>,

    /// Search copies only in this root, or in this folder in a root; repeatable
    #[arg(long, value_name = "FOLDER")]
    not_in: Vec<PathBuf>,

    /// List only files of at least this size; 0 lists empty files too
    #[arg(long, value_name = "SIZE", default_value = "1B", value_parser = size)]
    min_size: u64,

    #[command(flatten)]
    paging: Paging<Offset>,

    /// Print only paths, each followed by a NUL byte
    #[arg(short = '0', long, conflicts_with = "json", help_heading = "Formats")]
    print0: bool,
}

/// Paths that are fetched and printed together.
const PATHS_PER_BATCH: usize = 8_192;

#[derive(Serialize)]
struct Page<'a> {
    items: &'a [UniqueFile],
    next_cursor: Option<String>,
    #[serde(flatten)]
    summary: &'a UniqueSummary,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let slice = args.paging.slice(args.print0 || context.output.is_json());
    let (store, _) = context.open_catalog()?;
    let mut options = UniqueOptions::default();
    options.inside.clone_from(&args.inside);
    options.not_in.clone_from(&args.not_in);
    options.min_size = args.min_size;
    let found = while_showing(context.quiet, "comparing contents", || unique(&store, &options))?;
    let summary = found.summary();
    let completeness = Completeness::of(summary.coverage.clone(), &context.hints);
    if args.print0 {
        completeness.warn();
        print_paths(&found, slice, &context.output)?;
        return Ok(Outcome::Done);
    }
    let items = found.page(slice.offset, slice.limit)?;
    let next_cursor = slice.next_cursor(found.len() as u64);
    context.output.print(&Page { items: &items, next_cursor, summary }, |output| {
        table(output, &items, slice, found.len() as u64)
            + &totals(args, summary)
            + &completeness.text()
            + &filter_notes(&summary.filtered_roots)
    })
}

/// Prints the paths of the files without a copy, in batches, so that a pipe can begin to work.
fn print_paths(found: &UniqueFiles, slice: Slice, output: &Output) -> Result<(), Error> {
    let unique = usize::try_from(found.summary().unique_files).unwrap_or(usize::MAX);
    let end = slice.offset.saturating_add(slice.limit).min(unique);
    for offset in (slice.offset..end).step_by(PATHS_PER_BATCH) {
        let mut text = Vec::new();
        for file in found.page(offset, PATHS_PER_BATCH.min(end - offset))? {
            text.extend_from_slice(file.location.path.as_os_str().as_encoded_bytes());
            text.push(0);
        }
        output.print_bytes(&text)?;
    }
    Ok(())
}

fn table(output: &Output, items: &[UniqueFile], slice: Slice, total: u64) -> String {
    let row = |file: &UniqueFile| {
        let undecided = (file.state == UniqueState::Undecided).then_some("undecided");
        let hard_link = file.hard_link.then_some("only hard links of it elsewhere");
        let notes: Vec<&str> = undecided.into_iter().chain(hard_link).collect();
        let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
        vec![bytes(file.size), format!("{}{notes}", path(&file.location.path))]
    };
    let mut text = String::new();
    if !items.is_empty() {
        text = output.uncut_table(&["SIZE", "PATH"], items.iter().map(row)) + "\n";
    }
    if let Some(range) = slice.describe("files", items.len(), total) {
        text.push_str(&format!("{range}\n"));
    }
    text
}

fn totals(args: &Args, summary: &UniqueSummary) -> String {
    let elsewhere = if args.not_in.is_empty() { "elsewhere".to_owned() } else { format!("in {}", names(&args.not_in)) };
    let UniqueSummary { unique_files, unique_bytes, undecided_files, undecided_bytes, files, .. } = *summary;
    if files == 0 {
        return format!("no file of at least {} in {}\n", bytes(args.min_size), names(&args.inside));
    }
    let of = format!("of {}, {}", count_of(files, "file"), bytes(summary.bytes));
    let mut text = match unique_files {
        0 if undecided_files == 0 && files == 1 => {
            format!("the only file ({}) has a copy {elsewhere}\n", bytes(summary.bytes))
        }
        0 if undecided_files == 0 => {
            format!("all {} ({}) have a copy {elsewhere}\n", count_of(files, "file"), bytes(summary.bytes))
        }
        0 => format!("no file is known to have no copy {elsewhere} ({of})\n"),
        _ => format!("{} without a copy {elsewhere}, {} ({of})\n", count_of(unique_files, "file"), bytes(unique_bytes)),
    };
    if undecided_files > 0 {
        text.push_str(&format!("{} undecided, {}\n", count_of(undecided_files, "file"), bytes(undecided_bytes)));
    }
    text
}

/// Joins folders that were given, each once.
fn names(folders: &[PathBuf]) -> String {
    let mut once: Vec<&PathBuf> = Vec::new();
    for folder in folders {
        if !once.contains(&folder) {
            once.push(folder);
        }
    }
    once.into_iter().map(path).collect::<Vec<_>>().join(", ")
}
