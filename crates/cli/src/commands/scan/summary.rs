//! Result of a scan as text and JSON.

use gristmill_dedup::{ScanMode, ScanSummary};
use gristmill_store::catalog::Group;
use gristmill_store::roots::Root;
use serde_json::{Value, json};

use crate::commands::completeness::Completeness;
use crate::commands::root_paths::{bytes as non_utf8_bytes, path_text};
use crate::error::Error;
use crate::hints::Hints;
use crate::output::{path, sanitize};
use crate::units::{bytes, count_of, format_duration, thousands, utc};

pub(super) struct ScanSummaryView<'a> {
    pub(super) summary: &'a ScanSummary,
    /// All registered roots, also those that were not scanned.
    pub(super) roots: &'a [Root],
    pub(super) mode: ScanMode,
    pub(super) hints: &'a Hints,
    /// None for an interrupted scan, whose result is incomplete.
    pub(super) completeness: Option<&'a Completeness>,
    /// Groups that the totals leave out because the user ignores them.
    pub(super) ignored_groups: u64,
}

impl ScanSummaryView<'_> {
    pub(super) fn json(&self) -> Result<Value, Error> {
        // serde refuses a path that is not UTF-8.
        let roots: Vec<_> = self.summary.roots.iter().map(|root| path_text(root)).collect();
        let path_bytes: Vec<_> = self.summary.roots.iter().map(|root| non_utf8_bytes(root)).collect();
        let summary = ScanSummary { roots: Vec::new(), ..self.summary.clone() };
        let mut value = serde_json::to_value(&summary).map_err(|error| Error::System(error.to_string()))?;
        value["roots"] = json!(roots);
        if path_bytes.iter().any(Option::is_some) {
            value["roots_bytes"] = json!(path_bytes);
        }
        if !self.reads() {
            // A scan that hashes nothing does not know.
            for key in ["duplicate_groups", "duplicate_files", "reclaimable_bytes"] {
                value[key] = Value::Null;
            }
        }
        match self.completeness {
            Some(completeness) => Ok(completeness.extend_json(value)),
            None => {
                value["complete"] = json!(false);
                Ok(value)
            }
        }
    }

    pub(super) fn text(&self) -> String {
        let summary = self.summary;
        let mut lines = Vec::new();
        if summary.interrupted {
            lines.push("stopped; what was found is saved, and the same command resumes the scan".to_owned());
        }
        if let Some(start) = summary.resumed_from {
            lines.push(format!("resumed the stopped scan of {} (--restart starts over)", utc(start)));
        }
        lines.push(self.totals());
        lines.extend(self.changes());
        lines.extend(self.links());
        lines.extend(self.skipped());
        lines.extend(self.unreadable());
        if self.reads() && !summary.interrupted {
            lines.push(String::new());
            lines.extend(self.duplicates());
            lines.extend(self.hints.ignored_groups(self.ignored_groups));
        }
        lines.extend(self.completeness.map(|completeness| completeness.text().trim_end().to_owned()));
        lines.join("\n")
    }

    fn reads(&self) -> bool {
        matches!(self.mode, ScanMode::All | ScanMode::Hash)
    }

    fn totals(&self) -> String {
        let ScanSummary { folders, files, bytes: size, read_files, read_bytes, seconds, .. } = self.summary;
        let seen = format!("{} in {}, {}", count_of(*files, "file"), count_of(*folders, "folder"), bytes(*size));
        let read = format!("read {}, {}", count_of(*read_files, "file"), bytes(*read_bytes));
        let parts = match self.mode {
            ScanMode::All => vec![seen, read],
            ScanMode::Hash => vec![read],
            ScanMode::Walk | ScanMode::Refresh => vec![seen],
        };
        format!("{}; took {}", parts.join("; "), format_duration(seconds.total))
    }

    fn changes(&self) -> Option<String> {
        let summary = self.summary;
        let changes: Vec<String> = [
            (summary.new_files, "new"),
            (summary.changed_files, "changed"),
            (summary.removed_files, "missing"),
            (summary.returned_files, "found again"),
            (summary.excluded_files, "no longer match the filters"),
            (summary.included_files, "match the filters again"),
            (summary.rehashed_files, "hashed again because the algorithm changed"),
        ]
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{} {what}", thousands(*number)))
        .collect();
        (!changes.is_empty()).then(|| format!("files: {}", changes.join(", ")))
    }

    pub(super) fn unreadable(&self) -> Vec<String> {
        let ScanSummary { errors, error_samples, named_files, .. } = self.summary;
        let verb = if *named_files > 0 { "scanned" } else { "read" };
        let what = format!("{} could not be {verb}:", count_of(*errors, "item"));
        count_with_samples(what, *errors, error_samples)
    }

    fn skipped(&self) -> Vec<String> {
        let ScanSummary { skipped_files, skipped_samples, .. } = self.summary;
        let what = format!("{} skipped:", count_of(*skipped_files, "named file"));
        count_with_samples(what, *skipped_files, skipped_samples)
    }

    /// Returns the counts of broken links and of links not followed, with examples.
    fn links(&self) -> Vec<String> {
        let ScanSummary { broken_links, repeated_links, link_samples, .. } = self.summary;
        let what: Vec<String> = [
            (*broken_links, count_of(*broken_links, "broken link")),
            (*repeated_links, format!("{} not followed", count_of(*repeated_links, "link"))),
        ]
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(_, what)| what)
        .collect();
        count_with_samples(format!("{}:", what.join(", ")), broken_links + repeated_links, link_samples)
    }

    fn duplicates(&self) -> Vec<String> {
        let ScanSummary { duplicate_groups, duplicate_files, reclaimable_bytes, roots, .. } = self.summary;
        // Duplicates are counted over all roots, not only those of this scan.
        let wide = if self.roots.len() > roots.len() { " in all roots" } else { "" };
        if *duplicate_groups == 0 {
            return vec![format!("no duplicates{}", if wide.is_empty() { "" } else { " in any root" })];
        }
        let mut lines = vec![format!(
            "{}{wide}, {}: {} reclaimable",
            count_of(*duplicate_groups, "duplicate group"),
            count_of(*duplicate_files, "file"),
            bytes(*reclaimable_bytes)
        )];
        lines.extend(self.summary.top.iter().map(|group| self.group(group)));
        let more = duplicate_groups.saturating_sub(self.summary.top.len() as u64);
        lines.push(match more {
            0 => format!("List all copies: {}", self.hints.command("dupes")),
            more => {
                let command = self.hints.command("dupes");
                format!("{}. List all copies: {command}", count_of(more, "more group"))
            }
        });
        lines
    }

    fn group(&self, group: &Group) -> String {
        let first = group.members.first().map(|first| {
            let root = self.roots.iter().find(|root| root.id == first.root);
            root.map_or_else(|| first.path.clone(), |root| root.path.join(&first.path))
        });
        format!(
            "  {:>10}  {} of {}: {}",
            bytes(group.reclaimable),
            count_of(group.copies, "copy"),
            bytes(group.size),
            path(first.unwrap_or_default())
        )
    }
}

/// Returns a count with examples, or nothing if the count is 0.
fn count_with_samples(what: String, count: u64, samples: &[String]) -> Vec<String> {
    if count == 0 {
        return Vec::new();
    }
    let mut lines = vec![what];
    lines.extend(samples.iter().map(|sample| format!("  {}", sanitize(sample))));
    if count > samples.len() as u64 {
        lines.push("  (-v logs all of them)".to_owned());
    }
    lines
}
