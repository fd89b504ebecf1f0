//! Contained folders as text and JSON.

use gristmill_dedup::folders::ContainedFolder;
use serde_json::{Value, json};

use super::summary::{ListView, unscanned};
use crate::output::path;
use crate::units::{bytes, count_of, thousands};

/// Folders that are contained in others, wholly or apart from entries that were not scanned.
pub(super) struct ContainedView<'a> {
    pub(super) folders: &'a [ContainedFolder],
    pub(super) wholly: u64,
    pub(super) list: ListView<'a>,
}

impl ContainedView<'_> {
    pub(super) fn json(&self) -> Value {
        json!({
            "items": self.folders,
            "total_folders": self.list.total,
            "wholly_contained_folders": self.wholly,
            "next_cursor": self.list.slice.next_cursor(self.list.total),
        })
    }

    pub(super) fn text(&self) -> String {
        if self.list.total == 0 {
            return self.list.empty_text("no contained folders", "folders --contained");
        }
        let mut text = self.list.text("folders", self.folders.iter().map(folder));
        text.push_str(&format!("{} contained in another one", count_of(self.list.total, "folder")));
        match self.list.total - self.wholly {
            0 => {}
            _ if self.wholly == 0 => text.push_str(", apart from entries not scanned"),
            others => text.push_str(&format!(", {} of them apart from entries not scanned", thousands(others))),
        }
        text + "\n"
    }
}

fn folder(folder: &ContainedFolder) -> String {
    let mut text = format!(
        "{}\n    {}, {}{}\n",
        path(&folder.location.path),
        count_of(folder.files, "file"),
        bytes(folder.bytes),
        match folder.wholly {
            true => format!(" ({} reclaimable)", bytes(folder.reclaimable)),
            false => format!(", contained apart from {}", unscanned(folder.unscanned)),
        }
    );
    for container in &folder.containers.items {
        let (files, size) = (count_of(container.files, "file"), bytes(container.bytes));
        text.push_str(&format!("    in {}  ({files}, {size})\n", path(&container.location.path)));
    }
    let more = folder.containers.total.saturating_sub(folder.containers.items.len() as u64);
    if more > 0 {
        text.push_str(&format!("    and in {} more (--list {})\n", thousands(more), folder.containers.total));
    }
    text
}
