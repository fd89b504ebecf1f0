//! Whether an answer from the catalog is complete, for people and for programs.
//!
//! Owns how that is written in every form of an answer. What is missing is found out by the library.

use gristmill_dedup::{Coverage, coverage};
use gristmill_store::Store;
use serde_json::{Map, Value, json};

use super::root_paths::path_text;
use crate::error::Error;
use crate::hints::Hints;

/// How complete the answers are, and how to get the rest.
pub(super) struct Completeness {
    coverage: Coverage,
    hints: Hints,
}

impl Completeness {
    /// Of answers about some roots; about all of them if none is named.
    pub(super) fn new(store: &Store, roots: &[i64], hints: &Hints) -> Result<Self, Error> {
        Ok(Completeness { coverage: coverage(store, roots)?, hints: hints.clone() })
    }

    pub(super) fn is_complete(&self) -> bool {
        self.coverage.complete
    }

    /// Whether the folder of a root can be reached now.
    pub(super) fn is_reachable(&self, root: i64) -> bool {
        !self.coverage.absent_ids.contains(&root)
    }

    /// The fields of a JSON answer.
    pub(super) fn insert_into(&self, object: &mut Map<String, Value>) {
        let Coverage { complete, unread_files, unreadable_files, unreachable_files, .. } = &self.coverage;
        let Coverage { unreadable_folders, unscanned_folders, unfinished_roots, absent_roots, .. } =
            &self.coverage;
        let paths =
            |paths: &[std::path::PathBuf]| paths.iter().map(|path| path_text(path)).collect::<Vec<_>>();
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

    /// A JSON answer with these fields.
    pub(super) fn extend_json(&self, mut answer: Value) -> Value {
        if let Value::Object(object) = &mut answer {
            self.insert_into(object);
        }
        answer
    }

    /// What a person should know, a line each, each with its end. Nothing if there is nothing to know.
    pub(super) fn text(&self) -> String {
        let mut lines: Vec<String> = self.coverage.reasons();
        if !self.is_complete() {
            for line in &mut lines {
                line.insert_str(0, "not complete: ");
            }
            lines.push(format!("`{}` completes it, as far as it can be read", self.hints.command("scan")));
            if self.coverage.unreachable_files > 0 {
                let command = self.hints.command("scan --every-file");
                lines.push(format!("For disks that take turns, `{command}` reads files of unique size, too"));
            }
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The same on standard error, for forms that have no place for it.
    pub(super) fn warn(&self) {
        for reason in self.coverage.reasons() {
            match self.is_complete() {
                true => tracing::warn!("{reason}"),
                false => tracing::warn!("the list is not complete: {reason}"),
            }
        }
    }
}
