//! Duplicate groups as text, JSON, CSV and in the format of fdupes.

use gristmill_store::catalog::{Group, GroupState, Groups, LinkKind, Member};
use serde_json::{Value, json};

use crate::commands::completeness::Completeness;
use crate::commands::paging::Slice;
use crate::commands::root_paths::{RootPaths, bytes as path_bytes, path_text, with_path};
use crate::hints::Hints;
use crate::output::path;
use crate::units::{bytes, count_of, file_time};

pub(super) struct DupesView {
    pub(super) groups: Groups,
    pub(super) root_paths: RootPaths,
    pub(super) slice: Slice,
    /// Whether filters were given, so that there may be other groups.
    pub(super) is_filtered: bool,
    /// Whether the ignored groups are listed instead of the others.
    pub(super) only_ignored: bool,
    pub(super) completeness: Completeness,
    pub(super) hints: Hints,
}

impl DupesView {
    pub(super) fn text(&self) -> String {
        let Groups { groups, total, files, reclaimable, redundant, ignored, state } = &self.groups;
        let remarks = self.hints.ignored_groups(*ignored).into_iter().chain(state_remark(state));
        let remarks: String = remarks.map(|remark| format!("{remark}\n")).collect();
        if *total == 0 {
            return format!("{}\n{remarks}{}", self.empty_text(), self.completeness.text());
        }
        let mut text = String::new();
        for group in groups {
            text.push_str(&self.group(group));
            text.push('\n');
        }
        if let Some(range) = self.slice.describe("groups", groups.len(), *total) {
            text.push_str(&format!("{range}\n"));
        }
        text.push_str(&format!(
            "{}, {}: {} reclaimable ({} of file contents)\n",
            count_of(*total, "duplicate group"),
            count_of(*files, "file"),
            bytes(*reclaimable),
            bytes(*redundant)
        ));
        text + &remarks + &self.completeness.text()
    }

    fn empty_text(&self) -> String {
        let all = |args: &str| format!("match the filters; `{}` lists all", self.hints.command(args));
        match () {
            () if self.root_paths.is_empty() => self.hints.nothing_scanned(),
            () if self.only_ignored && self.is_filtered => format!("no ignored groups {}", all("dupes --ignored")),
            () if self.only_ignored => "no ignored groups".to_owned(),
            () if self.is_filtered && self.groups.ignored > 0 => {
                format!("no duplicates {} that are not ignored", all("dupes"))
            }
            () if self.is_filtered => format!("no duplicates {}", all("dupes")),
            () if !self.completeness.is_complete() => "no duplicates so far".to_owned(),
            () => "no duplicates".to_owned(),
        }
    }

    fn group(&self, group: &Group) -> String {
        let mut text = format!(
            "{} of {} ({} reclaimable){}\n",
            count_of(group.copies, "copy"),
            bytes(group.size),
            bytes(group.reclaimable),
            if group.ignored { ", ignored" } else { "" }
        );
        let kept = group.kept.iter().map(|member| ("kept: ", member));
        for (label, member) in group.members.iter().map(|member| ("", member)).chain(kept) {
            let path = path(self.root_paths.absolute(member.root, &member.path));
            let mark = if member.linked { '=' } else { ' ' };
            let mut notes: Vec<&str> = member.link().into_iter().collect();
            if !self.completeness.is_reachable(member.root) {
                notes.push("possible copy: its root cannot be reached now");
            }
            let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
            text.push_str(&format!("  {mark} {label}{path}{notes}\n"));
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let file = |member: &Member| {
            let mut file = with_path(&self.root_paths.absolute(member.root, &member.path));
            self.root_paths.insert_root(&mut file, member.root);
            // True for every other path to the file listed before it, so that scripts do not delete the last copy.
            file.insert("hard_link".to_owned(), json!(member.linked));
            file.insert("symbolic_link".to_owned(), json!(is_via_symlink(member)));
            file.insert("allocated_bytes".to_owned(), json!(member.stat.allocated));
            file.insert("reachable".to_owned(), json!(self.completeness.is_reachable(member.root)));
            file.insert("mtime".to_owned(), json!(file_time(member.stat.mtime_ns)));
            Value::Object(file)
        };
        let group = |group: &Group| {
            json!({
                "group_key": group.key.to_string(),
                "size": group.size,
                "copies": group.copies,
                "reclaimable_bytes": group.reclaimable,
                "redundant_bytes": group.redundant,
                "ignored": group.ignored,
                "files": group.members.iter().map(file).collect::<Vec<_>>(),
                "kept": group.kept.iter().map(file).collect::<Vec<_>>(),
            })
        };
        let Groups { groups, total, files, reclaimable, redundant, ignored, state } = &self.groups;
        self.completeness.extend_json(json!({
            "items": groups.iter().map(group).collect::<Vec<_>>(),
            "total_groups": total,
            "total_files": files,
            "reclaimable_bytes": reclaimable,
            "redundant_bytes": redundant,
            "ignored_groups": ignored,
            "next_cursor": self.slice.next_cursor(*total),
            "current": state.is_current,
        }))
    }

    pub(super) fn csv(&self) -> String {
        let mut text = "group,group_key,size,copies,reclaimable_bytes,path,path_bytes,root,hard_link,mtime,reachable,\
             symbolic_link,allocated_bytes,kept\n"
            .to_owned();
        for (number, group) in (self.slice.offset + 1..).zip(&self.groups.groups) {
            let kept = group.kept.first().map(|kept| path_text(&self.root_paths.absolute(kept.root, &kept.path)));
            for member in &group.members {
                let absolute = self.root_paths.absolute(member.root, &member.path);
                let row = [
                    number.to_string(),
                    group.key.to_string(),
                    group.size.to_string(),
                    group.copies.to_string(),
                    group.reclaimable.to_string(),
                    path_text(&absolute),
                    path_bytes(&absolute).unwrap_or_default(),
                    self.root_paths.root(member.root),
                    member.linked.to_string(),
                    file_time(member.stat.mtime_ns).rfc3339(),
                    self.completeness.is_reachable(member.root).to_string(),
                    is_via_symlink(member).to_string(),
                    member.stat.allocated.to_string(),
                    kept.clone().unwrap_or_default(),
                ];
                text.push_str(&row.map(|cell| csv_cell(&cell)).join(","));
                text.push('\n');
            }
        }
        text
    }

    /// Returns the paths, unchanged, each followed by `end`.
    pub(super) fn fdupes(&self, end: u8, hard_links: bool) -> Vec<u8> {
        let mut all = Vec::new();
        for (number, group) in self.groups.groups.iter().enumerate() {
            if number > 0 {
                all.push(end);
            }
            for member in group.members.iter().filter(|member| hard_links || !member.linked) {
                let absolute = self.root_paths.absolute(member.root, &member.path);
                all.extend_from_slice(absolute.as_os_str().as_encoded_bytes());
                all.push(end);
            }
        }
        all
    }
}

/// States that the groups are older than the files. Otherwise returns none.
pub(super) fn state_remark(state: &GroupState) -> Option<String> {
    let since = match state.refreshed_at {
        Some(time) => format!("the groups of {} UTC are listed", time.to_string().get(..19).unwrap_or_default()),
        None => "no group is listed".to_owned(),
    };
    let reason = "files have changed since, and the database is read-only or another process writes it";
    (!state.is_current).then(|| format!("not up to date: {since}; {reason}"))
}

fn is_via_symlink(member: &Member) -> bool {
    member.stat.links == LinkKind::ViaSymlink
}

/// Quotes a cell as in RFC 4180.
fn csv_cell(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}
