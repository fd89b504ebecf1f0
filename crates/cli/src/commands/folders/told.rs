//! Folders that are alike, written down: for people, and as JSON.

use std::path::{Path, PathBuf};

use gristmill_dedup::folders::{Differing, Entry, Identical, Listed, Partial, Side};
use gristmill_store::Time;
use serde_json::{Map, Value, json};

use crate::commands::paging::Page;
use crate::commands::places::{Places, with_path};
use crate::output::{bytes, counted, path, time};

/// Identical folders.
pub(super) struct Same<'a> {
    pub(super) groups: &'a [&'a Identical],
    pub(super) total: u64,
    pub(super) places: Places,
    pub(super) page: Page,
    pub(super) narrowed: bool,
}

/// Similar ones.
pub(super) struct Similar<'a> {
    pub(super) pairs: &'a [Partial],
    pub(super) total: u64,
    pub(super) places: Places,
    pub(super) page: Page,
    pub(super) narrowed: bool,
}

impl Same<'_> {
    pub(super) fn json(&self) -> Value {
        let folder = |(root, path): &(i64, PathBuf)| located(&self.places, *root, path);
        let group = |group: &&Identical| {
            json!({
                "folders": group.folders.iter().map(folder).collect::<Vec<_>>(),
                "files": group.files,
                "bytes": group.bytes,
                "reclaimable_bytes": group.reclaimable,
            })
        };
        json!({
            "items": self.groups.iter().map(group).collect::<Vec<_>>(),
            "total_groups": self.total,
            "page": self.page.number,
            "next_page": self.page.next(self.total),
        })
    }

    pub(super) fn text(&self) -> String {
        if self.total == 0 {
            return nothing(&self.places, self.narrowed, "no identical folders");
        }
        let mut text = String::new();
        for group in self.groups {
            text.push_str(&format!(
                "{:>10}  {} of {}, {}\n",
                bytes(group.reclaimable),
                counted(group.folders.len() as u64, "folder"),
                counted(group.files, "file"),
                bytes(group.bytes)
            ));
            for (root, folder) in &group.folders {
                text.push_str(&format!("            {}\n", path(&self.places.absolute(*root, folder))));
            }
            text.push('\n');
        }
        if let Some(told) = self.page.told("groups", self.groups.len(), self.total) {
            text.push_str(&format!("{told}\n"));
        }
        text.push_str(&format!("{} of identical folders\n", counted(self.total, "group")));
        text
    }
}

impl Similar<'_> {
    pub(super) fn json(&self) -> Value {
        let pair = |pair: &Partial| {
            json!({
                "a": side(&self.places, &pair.a),
                "b": side(&self.places, &pair.b),
                "similarity": (pair.similarity * 10.0).round() / 10.0,
                "matching_files": pair.matching_files,
                "matching_bytes": pair.matching_bytes,
                "only_in_a": listed(&pair.only_in_a, |file| entry(file).into()),
                "only_in_b": listed(&pair.only_in_b, |file| entry(file).into()),
                "differing": listed(&pair.differing, |both| {
                    json!({"a": entry(&both.a), "b": entry(&both.b), "known": both.known})
                }),
            })
        };
        json!({
            "items": self.pairs.iter().map(pair).collect::<Vec<_>>(),
            "total_pairs": self.total,
            "page": self.page.number,
            "next_page": self.page.next(self.total),
        })
    }

    pub(super) fn text(&self) -> String {
        if self.total == 0 {
            return nothing(&self.places, self.narrowed, "no similar folders");
        }
        let mut text = String::new();
        for pair in self.pairs {
            text.push_str(&self.pair(pair));
            text.push('\n');
        }
        if let Some(told) = self.page.told("pairs", self.pairs.len(), self.total) {
            text.push_str(&format!("{told}\n"));
        }
        text.push_str(&format!("{} of similar folders\n", counted(self.total, "pair")));
        text
    }

    fn pair(&self, pair: &Partial) -> String {
        let mut text = format!(
            "{:>8.1} %  {} in common, {}\n",
            pair.similarity,
            counted(pair.matching_files, "file"),
            bytes(pair.matching_bytes)
        );
        for (letter, side) in [("A", &pair.a), ("B", &pair.b)] {
            let partly = if side.whole { "" } else { "; not all of it could be read" };
            text.push_str(&format!(
                "         {letter}  {}  ({}, {}{partly})\n",
                path(&self.places.absolute(side.root, &side.path)),
                counted(side.files, "file"),
                bytes(side.bytes)
            ));
        }
        for (letter, only) in [("A", &pair.only_in_a), ("B", &pair.only_in_b)] {
            list(&mut text, &format!("only in {letter}"), only, |file| {
                format!("{}  ({}, {})", path(&file.path), bytes(file.size), changed(file))
            });
        }
        list(&mut text, "different in A and B", &pair.differing, differing);
        text
    }
}

fn differing(Differing { a, b, known }: &Differing) -> String {
    let unread = if *known { "" } else { "; could not be read" };
    let side = |file: &Entry| format!("{}, {}", bytes(file.size), changed(file));
    format!("{}  (A {}; B {}{unread})", path(&a.path), side(a), side(b))
}

fn list<T>(text: &mut String, what: &str, listed: &Listed<T>, line: impl Fn(&T) -> String) {
    if listed.total == 0 {
        return;
    }
    text.push_str(&format!("            {what}: {}\n", counted(listed.total, "file")));
    for item in &listed.items {
        text.push_str(&format!("              {}\n", line(item)));
    }
    let more = listed.total.saturating_sub(listed.items.len() as u64);
    if more > 0 && !listed.items.is_empty() {
        text.push_str(&format!("              and {} more (--list)\n", counted(more, "file")));
    }
}

fn nothing(places: &Places, narrowed: bool, none: &str) -> String {
    match () {
        () if places.is_empty() => "nothing was scanned yet: gristmill scan FOLDER".to_owned(),
        () if narrowed => format!("{none} match. `gristmill folders` without filters shows those there are"),
        () => none.to_owned(),
    }
}

fn located(places: &Places, root: i64, path: &Path) -> Map<String, Value> {
    let mut object = with_path(&places.absolute(root, path));
    object.insert("root".to_owned(), json!(places.root(root)));
    object
}

fn side(places: &Places, side: &Side) -> Value {
    let mut object = located(places, side.root, &side.path);
    object.insert("files".to_owned(), json!(side.files));
    object.insert("bytes".to_owned(), json!(side.bytes));
    object.insert("whole".to_owned(), json!(side.whole));
    object.into()
}

fn entry(file: &Entry) -> Map<String, Value> {
    let mut object = with_path(&file.path);
    object.insert("size".to_owned(), json!(file.size));
    object.insert("mtime".to_owned(), json!(moment(file)));
    object
}

fn listed<T>(listed: &Listed<T>, item: impl Fn(&T) -> Value) -> Value {
    json!({"items": listed.items.iter().map(item).collect::<Vec<_>>(), "total": listed.total})
}

fn moment(file: &Entry) -> Time {
    Time::from_micros(file.mtime_ns.div_euclid(1_000))
}

fn changed(file: &Entry) -> String {
    time(moment(file))
}
