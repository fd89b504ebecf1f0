//! Completeness of lists from the catalog.
//!
//! Owns how missing data is reported in every output format. `gristmill_dedup` finds what is missing.

use std::path::PathBuf;

use gristmill_dedup::{Coverage, coverage};
use gristmill_store::{Store, display_path};
use serde_json::{Map, Value, json};

use super::root_paths::path_text;
use crate::error::Error;
use crate::hints::Hints;

/// Returns one line for each root whose last scan had filters, for questions about files that no scan has found.
pub(super) fn filter_notes(roots: &[PathBuf]) -> String {
    let line = |root: &PathBuf| format!("files that the filters of {} exclude are not known\n", display_path(root));
    roots.iter().map(line).collect()
}

/// What the catalog lacks, and how to complete it.
pub(super) struct Completeness {
    coverage: Coverage,
    /// Another reason why the answer is incomplete.
    reason: Option<String>,
    hints: Hints,
}

impl Completeness {
    /// Checks the given roots, or all roots if none is given.
    pub(super) fn new(store: &Store, roots: &[i64], hints: &Hints) -> Result<Self, Error> {
        Ok(Completeness::of(coverage(store, roots)?, hints))
    }

    /// Reports what another question has found.
    pub(super) fn of(coverage: Coverage, hints: &Hints) -> Self {
        Completeness { coverage, reason: None, hints: hints.clone() }
    }

    /// Adds a reason why the answer is incomplete, if there is one.
    pub(super) fn with_reason(mut self, reason: Option<String>) -> Self {
        self.coverage.complete &= reason.is_none();
        self.reason = reason;
        self
    }

    pub(super) fn is_complete(&self) -> bool {
        self.coverage.complete
    }

    /// Returns true if the folder of a root exists now.
    pub(super) fn is_reachable(&self, root: i64) -> bool {
        !self.coverage.absent_ids.contains(&root)
    }

    pub(super) fn insert_into(&self, object: &mut Map<String, Value>) {
        let Coverage { complete, unread_files, unreadable_files, unreachable_files, .. } = &self.coverage;
        let Coverage { unreadable_folders, unscanned_folders, unfinished_roots, absent_roots, .. } = &self.coverage;
        let paths = |paths: &[PathBuf]| paths.iter().map(|path| path_text(path)).collect::<Vec<_>>();
        let fields = [
            ("complete", json!(complete)),
            ("unread_files", json!(unread_files)),
            ("unreadable_files", json!(unreadable_files)),
            ("unreachable_files", json!(unreachable_files)),
            ("unreadable_folders", json!(unreadable_folders)),
            ("unscanned_folders", json!(paths(unscanned_folders))),
            ("unfinished_roots", json!(paths(unfinished_roots))),
            ("absent_roots", json!(paths(absent_roots))),
        ];
        object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    }

    pub(super) fn extend_json(&self, mut answer: Value) -> Value {
        if let Value::Object(object) = &mut answer {
            self.insert_into(object);
        }
        answer
    }

    /// Returns one line for each thing that is missing, or an empty string.
    pub(super) fn text(&self) -> String {
        let mut lines: Vec<String> = self.reasons().collect();
        if !self.is_complete() {
            for line in &mut lines {
                line.insert_str(0, "incomplete: ");
            }
            lines.push(format!("Complete it with `{}`", self.hints.command("scan")));
            if self.coverage.unreachable_files > 0 {
                let command = self.hints.command("scan --every-file");
                lines.push(format!(
                    "If these disks are never connected together, `{command}` also hashes files of unique size"
                ));
            }
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    fn reasons(&self) -> impl Iterator<Item = String> {
        self.reason.iter().cloned().chain(self.coverage.reasons())
    }

    /// Prints the same as warnings, for formats that cannot contain it.
    pub(super) fn warn(&self) {
        for reason in self.reasons() {
            match self.is_complete() {
                true => tracing::warn!("{reason}"),
                false => tracing::warn!("the list is incomplete: {reason}"),
            }
        }
    }
}
