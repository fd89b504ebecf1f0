//! `gristmill list`: lists empty files, empty folders and broken symbolic links, from the catalog.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use gristmill_dedup::lists::{ListCoverage, broken_links, empty_files, empty_folders, list_coverage};
use gristmill_store::Store;
use serde_json::{Map, Value, json};

use super::completeness::Completeness;
use super::paging::{Offset, Paging, Slice};
use super::root_paths::{RootPaths, bytes as path_bytes, path_text, select_roots, with_path};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::output::{Output, path};
use crate::progress::while_showing;
use crate::units::{count_of, file_time};

const HELP: &str = "\
An empty file is a regular file of 0 bytes. An empty folder contains nothing, or only folders that are empty \
themselves; only the topmost one is listed. A folder with a symbolic link, a pipe, a socket, a device or an entry that \
filters excluded is not empty, and neither is one that could not be read. The folder of a root is not listed. A broken \
link is a symbolic link whose target does not exist, or that leads back to itself.

The list comes from the catalog: scanned folders are not read and nothing is changed. Entries that the filters of the \
last scan excluded are not listed. `gristmill scan` finds new broken links, `gristmill refresh` does not. A root is a \
folder you have scanned. The cursor of --after is the number of entries already shown.

Examples:
  gristmill list empty-folders
  gristmill list broken-links --root ~/Pictures
  gristmill list empty-files --json | jq -r '.items[].path'
  gristmill list empty-files -0 | xargs -0 ls -l";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    EmptyFiles,
    EmptyFolders,
    BrokenLinks,
}

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// What to list
    #[arg(value_name = "KIND")]
    kind: Kind,

    /// List only entries of this root and of roots inside it, by path or name; repeatable
    #[arg(long, value_name = "ROOT")]
    root: Vec<PathBuf>,

    #[command(flatten)]
    paging: Paging<Offset>,

    /// Print only paths, unchanged, one per line
    #[arg(long, conflicts_with = "json", help_heading = "Formats")]
    paths: bool,

    /// Print only paths, unchanged, each with a NUL byte after it
    #[arg(short = '0', long, conflicts_with_all = ["json", "paths"], help_heading = "Formats")]
    print0: bool,
}

/// An entry of a list.
struct Item {
    root: i64,
    path: PathBuf,
    /// Target of a link.
    target: Option<PathBuf>,
    /// Further fields of the JSON object.
    more: Vec<(&'static str, Value)>,
}

struct ListView<'a> {
    kind: Kind,
    /// The entries that are shown.
    items: Vec<Item>,
    total: u64,
    slice: Slice,
    is_filtered: bool,
    root_paths: RootPaths,
    coverage: ListCoverage,
    completeness: Completeness,
    hints: &'a Hints,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let for_programs = args.paths || args.print0 || context.output.is_json();
    let slice = args.paging.slice(for_programs);
    let (store, _) = context.open_catalog()?;
    let roots: Vec<i64> = select_roots(&store, &args.root)?.iter().map(|root| root.id).collect();
    let items = while_showing(context.quiet, "reading the catalog", || args.kind.items(&store, &roots))?;
    let coverage = list_coverage(&store, &roots)?;
    let unlisted = (coverage.unlisted_folders > 0)
        .then(|| format!("{} not listed completely by the last scan", count_of(coverage.unlisted_folders, "folder")));
    let total = items.len() as u64;
    let view = ListView {
        kind: args.kind,
        items: items.into_iter().skip(slice.offset).take(slice.limit).collect(),
        total,
        slice,
        is_filtered: !args.root.is_empty(),
        root_paths: RootPaths::new(&store)?,
        completeness: Completeness::of(coverage.coverage.clone(), &context.hints).with_reason(unlisted),
        coverage,
        hints: &context.hints,
    };
    if !args.paths && !args.print0 {
        return context.output.print(&view.json(), |output| view.text(output));
    }
    view.completeness.warn();
    if let Some(note) = view.filter_note() {
        tracing::warn!("{note}");
    }
    context.output.print_bytes(&view.paths(if args.print0 { 0 } else { b'\n' }))?;
    Ok(Outcome::Done)
}

impl Kind {
    /// Returns the name of one entry, and of several.
    fn nouns(self) -> (&'static str, &'static str) {
        match self {
            Kind::EmptyFiles => ("empty file", "empty files"),
            Kind::EmptyFolders => ("empty folder", "empty folders"),
            Kind::BrokenLinks => ("broken link", "broken links"),
        }
    }

    fn items(self, store: &Store, roots: &[i64]) -> Result<Vec<Item>, Error> {
        Ok(match self {
            Kind::EmptyFiles => {
                let files = empty_files(store, roots)?.into_iter().map(|file| {
                    let symbolic_link = ("symbolic_link", json!(file.via_symlink));
                    let more = vec![symbolic_link, ("mtime", json!(file_time(file.mtime_ns)))];
                    Item { root: file.root, path: file.path, target: None, more }
                });
                files.collect()
            }
            Kind::EmptyFolders => {
                let folders = empty_folders(store, roots)?.into_iter().map(|folder| {
                    let more = vec![("folders", json!(folder.folders))];
                    Item { root: folder.root, path: folder.path, target: None, more }
                });
                folders.collect()
            }
            Kind::BrokenLinks => {
                let links = broken_links(store, roots)?.into_iter().map(|link| {
                    let target = Some(link.target);
                    Item { root: link.root, path: link.path, target, more: Vec::new() }
                });
                links.collect()
            }
        })
    }
}

impl ListView<'_> {
    fn absolute(&self, item: &Item) -> PathBuf {
        self.root_paths.absolute(item.root, &item.path)
    }

    fn json(&self) -> Value {
        let ListCoverage { complete, unlisted_folders, filtered_roots, coverage } = &self.coverage;
        let item = |item: &Item| {
            let mut object = with_path(&self.absolute(item));
            self.root_paths.insert_root(&mut object, item.root);
            if let Some(target) = &item.target {
                insert_target(&mut object, target);
            }
            object.extend(item.more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
            Value::Object(object)
        };
        let paths = |paths: &[PathBuf]| paths.iter().map(|path| path_text(path)).collect::<Vec<_>>();
        json!({
            "items": self.items.iter().map(item).collect::<Vec<_>>(),
            "next_cursor": self.slice.next_cursor(self.total),
            "total": self.total,
            "complete": complete,
            "unlisted_folders": unlisted_folders,
            "unreadable_folders": coverage.unreadable_folders,
            "unscanned_folders": paths(&coverage.unscanned_folders),
            "unfinished_roots": paths(&coverage.unfinished_roots),
            "absent_roots": paths(&coverage.absent_roots),
            "filtered_roots": paths(filtered_roots),
        })
    }

    fn text(&self, output: &Output) -> String {
        let (noun, nouns) = self.kind.nouns();
        let mut text = String::new();
        if !self.items.is_empty() {
            let row = |item: &Item| {
                let target = item.target.as_ref().map(path);
                std::iter::once(path(self.absolute(item))).chain(target).collect::<Vec<_>>()
            };
            let headers = if self.kind == Kind::BrokenLinks { &["PATH", "TARGET"][..] } else { &["PATH"] };
            text = output.uncut_table(headers, self.items.iter().map(row));
        }
        let range = self.slice.describe(nouns, self.items.len(), self.total);
        text.push_str(&match self.total {
            0 => self.empty_text(nouns),
            total => range.unwrap_or_else(|| count_of(total, noun)),
        });
        text.push('\n');
        text.push_str(&self.completeness.text());
        text.extend(self.filter_note().map(|note| note + "\n"));
        text
    }

    fn empty_text(&self, nouns: &str) -> String {
        match () {
            () if self.root_paths.is_empty() => self.hints.nothing_scanned(),
            () if self.is_filtered => format!("no {nouns} in these roots"),
            () => format!("no {nouns}"),
        }
    }

    /// Names the command that shows the filters, if a root has some.
    fn filter_note(&self) -> Option<String> {
        let command = self.hints.command("roots");
        (!self.coverage.filtered_roots.is_empty()).then(|| {
            format!("entries that the filters of the last scan excluded are not listed; `{command}` shows them")
        })
    }

    fn paths(&self, end: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        for item in &self.items {
            bytes.extend(self.absolute(item).as_os_str().as_encoded_bytes());
            bytes.push(end);
        }
        bytes
    }
}

/// Inserts the target of a link: as text, and as bytes too if it is not UTF-8.
fn insert_target(object: &mut Map<String, Value>, target: &Path) {
    object.insert("target".to_owned(), json!(path_text(target)));
    if let Some(bytes) = path_bytes(target) {
        object.insert("target_bytes".to_owned(), json!(bytes));
    }
}
