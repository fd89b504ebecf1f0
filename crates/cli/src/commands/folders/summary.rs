//! Identical and similar folders as text and JSON.

use std::path::Path;

use gristmill_dedup::folders::{
    CappedList, Difference, Differing, Entry, FolderGroup, GroupedFolder, Side, SimilarPair,
};
use serde_json::{Map, Value, json};

use crate::commands::paging::Slice;
use crate::commands::root_paths::{RootPaths, with_path};
use crate::hints::Hints;
use crate::output::path;
use crate::units::{bytes, count_of, file_time, thousands, utc};

/// The part of a list that is shown, and what is needed to describe it.
pub(super) struct ListView<'a> {
    pub(super) total: u64,
    pub(super) root_paths: RootPaths,
    pub(super) slice: Slice,
    pub(super) is_filtered: bool,
    pub(super) hints: &'a Hints,
}

/// Groups of folders that are identical, or identical apart from entries that were not scanned.
pub(super) struct IdenticalView<'a> {
    pub(super) groups: &'a [&'a FolderGroup],
    pub(super) identical: u64,
    pub(super) list: ListView<'a>,
}

pub(super) struct SimilarView<'a> {
    pub(super) pairs: &'a [SimilarPair],
    pub(super) list: ListView<'a>,
}

impl ListView<'_> {
    /// Joins the texts of the shown items, and says which of them are shown.
    pub(super) fn text(&self, nouns: &str, items: impl ExactSizeIterator<Item = String>) -> String {
        let range = self.slice.describe(nouns, items.len(), self.total).map(|range| format!("{range}\n"));
        items.map(|item| item + "\n").chain(range).collect()
    }

    pub(super) fn empty_text(&self, none: &str, command: &str) -> String {
        match () {
            () if self.root_paths.is_empty() => self.hints.nothing_scanned(),
            () if self.is_filtered => {
                format!("{none} match the filters; `{}` lists all", self.hints.command(command))
            }
            () => none.to_owned(),
        }
    }

    fn folder_object(&self, root: i64, path: &Path) -> Map<String, Value> {
        let mut object = with_path(&self.root_paths.absolute(root, path));
        self.root_paths.insert_root(&mut object, root);
        object
    }

    fn side(&self, side: &Side) -> Value {
        let mut object = self.folder_object(side.root, &side.path);
        object.insert("files".to_owned(), json!(side.files));
        object.insert("bytes".to_owned(), json!(side.bytes));
        object.insert("complete".to_owned(), json!(side.whole));
        object.insert("unscanned_entries".to_owned(), json!(side.unscanned));
        object.insert("identical_folders".to_owned(), json!(side.identical));
        object.into()
    }
}

impl IdenticalView<'_> {
    pub(super) fn json(&self) -> Value {
        let folder = |folder: &GroupedFolder| {
            let mut object = self.list.folder_object(folder.root, &folder.path);
            object.insert("unscanned_entries".to_owned(), json!(folder.unscanned));
            object
        };
        let group = |group: &&FolderGroup| {
            json!({
                "identical": group.identical,
                "unscanned_entries": group.unscanned(),
                "folders": group.folders.iter().map(folder).collect::<Vec<_>>(),
                "files": group.files,
                "bytes": group.bytes,
                "reclaimable_bytes": group.reclaimable,
                "redundant_bytes": group.redundant,
            })
        };
        json!({
            "items": self.groups.iter().map(group).collect::<Vec<_>>(),
            "total_groups": self.list.total,
            "identical_groups": self.identical,
            "next_cursor": self.list.slice.next_cursor(self.list.total),
        })
    }

    pub(super) fn text(&self) -> String {
        if self.list.total == 0 {
            return self.list.empty_text("no identical folders", "folders");
        }
        let mut text = self.list.text("groups", self.groups.iter().map(|group| self.group(group)));
        text.push_str(&format!("{} of identical folders", count_of(self.identical, "group")));
        match self.list.total - self.identical {
            0 => text.push('\n'),
            others => {
                text.push_str(&format!("; {} identical apart from entries not scanned\n", count_of(others, "group")));
            }
        }
        text
    }

    fn group(&self, group: &FolderGroup) -> String {
        let mut text = format!(
            "{} of {}, {}{}\n",
            count_of(group.folders.len() as u64, "folder"),
            count_of(group.files, "file"),
            bytes(group.bytes),
            match group.identical {
                true => format!(" ({} reclaimable)", bytes(group.reclaimable)),
                false => unscanned_suffix(group.unscanned()),
            }
        );
        for folder in &group.folders {
            let unscanned = match folder.unscanned {
                Some(0) => String::new(),
                _ if group.identical => String::new(),
                entries => format!("  ({})", unscanned(entries)),
            };
            let folder = path(self.list.root_paths.absolute(folder.root, &folder.path));
            text.push_str(&format!("    {folder}{unscanned}\n"));
        }
        text
    }
}

impl SimilarView<'_> {
    pub(super) fn json(&self) -> Value {
        let pair = |pair: &SimilarPair| {
            json!({
                "a": self.list.side(&pair.a),
                "b": self.list.side(&pair.b),
                "similarity": (pair.similarity * 10.0).round() / 10.0,
                "differences": pair.differences.iter().map(|one| one.as_str()).collect::<Vec<_>>(),
                "matching_files": pair.matching_files,
                "matching_bytes": pair.matching_bytes,
                "only_in_a": listed(&pair.only_in_a, |file| entry(file).into()),
                "only_in_b": listed(&pair.only_in_b, |file| entry(file).into()),
                "differing": listed(&pair.differing, |both| {
                    json!({"a": entry(&both.a), "b": entry(&both.b), "compared": both.known})
                }),
            })
        };
        json!({
            "items": self.pairs.iter().map(pair).collect::<Vec<_>>(),
            "total_pairs": self.list.total,
            "next_cursor": self.list.slice.next_cursor(self.list.total),
        })
    }

    pub(super) fn text(&self) -> String {
        if self.list.total == 0 {
            return self.list.empty_text("no similar folders", "folders --partial");
        }
        let text = self.list.text("pairs", self.pairs.iter().map(|pair| self.pair(pair)));
        text + &format!("{} of similar folders\n", count_of(self.list.total, "pair"))
    }

    fn pair(&self, pair: &SimilarPair) -> String {
        let mut text = format!(
            "{:.1} % similar: {} in common, {}\n",
            pair.similarity,
            count_of(pair.matching_files, "file"),
            bytes(pair.matching_bytes)
        );
        for (name, side) in [("A", &pair.a), ("B", &pair.b)] {
            let partly = if side.whole { "" } else { "; partly unreadable" };
            let others = match side.identical {
                0 => String::new(),
                others => format!("; {} elsewhere", count_of(others, "identical folder")),
            };
            text.push_str(&format!(
                "  {name} {}  ({}, {}{partly}{others})\n",
                path(self.list.root_paths.absolute(side.root, &side.path)),
                count_of(side.files, "file"),
                bytes(side.bytes)
            ));
        }
        if pair.differences.contains(&Difference::Layout) {
            text.push_str("    the same files are in different folders\n");
        }
        if pair.differences.contains(&Difference::UnscannedEntries) {
            let of = |side: &Side, name| match side.unscanned {
                Some(entries) => format!("{} of {name}", count_of(entries, "entry")),
                None => format!("unknown of {name} until the next scan"),
            };
            text.push_str(&format!("    not scanned: {}, {}\n", of(&pair.a, "A"), of(&pair.b, "B")));
        }
        for (name, only) in [("A", &pair.only_in_a), ("B", &pair.only_in_b)] {
            list(&mut text, &format!("only in {name}"), only, |file| {
                format!("{}  ({}, {})", path(&file.path), bytes(file.size), modified(file))
            });
        }
        list(&mut text, "different in A and B", &pair.differing, differing);
        text
    }
}

fn differing(Differing { a, b, known }: &Differing) -> String {
    let unread = if *known { "" } else { "; not compared, may be equal" };
    let side = |file: &Entry| format!("{}, {}", bytes(file.size), modified(file));
    format!("{}  (A {}; B {}{unread})", path(&a.path), side(a), side(b))
}

/// Describes the unknown entries of folders that are identical as far as they were scanned.
fn unscanned_suffix(entries: Option<u64>) -> String {
    match entries {
        Some(_) => format!(", identical apart from {}", unscanned(entries)),
        None => ", identical apart from entries not scanned; scan again to compare them".to_owned(),
    }
}

pub(super) fn unscanned(entries: Option<u64>) -> String {
    match entries {
        Some(entries) => format!("{} not scanned", count_of(entries, "entry")),
        None => "entries not scanned: not recorded".to_owned(),
    }
}

fn list<T>(text: &mut String, what: &str, listed: &CappedList<T>, line: impl Fn(&T) -> String) {
    if listed.total == 0 {
        return;
    }
    text.push_str(&format!("    {what}: {}\n", count_of(listed.total, "file")));
    for item in &listed.items {
        text.push_str(&format!("      {}\n", line(item)));
    }
    let more = listed.total.saturating_sub(listed.items.len() as u64);
    if more > 0 && !listed.items.is_empty() {
        text.push_str(&format!("      {} more (--list {})\n", thousands(more), listed.total));
    }
}

fn entry(file: &Entry) -> Map<String, Value> {
    let mut object = with_path(&file.path);
    object.insert("size".to_owned(), json!(file.size));
    object.insert("mtime".to_owned(), json!(file_time(file.mtime_ns)));
    object
}

fn listed<T>(listed: &CappedList<T>, item: impl Fn(&T) -> Value) -> Value {
    json!({"items": listed.items.iter().map(item).collect::<Vec<_>>(), "total": listed.total})
}

fn modified(file: &Entry) -> String {
    utc(file_time(file.mtime_ns))
}
