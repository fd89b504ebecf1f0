//! How an import ended, for people.

use std::path::Path;

use gristmill_jsonl::import::options::Target;
use gristmill_jsonl::import::summary::{FileSummary, Outcome, Summary};

use crate::output::{Output, bytes, counted, grouped, path, took, visible};

/// What an import did, and what is needed to tell it.
pub(super) struct Told<'a> {
    pub(super) summary: &'a Summary,
    pub(super) target: &'a Target,
    pub(super) resume: bool,
    pub(super) rejects: Option<&'a Path>,
}

impl Told<'_> {
    pub(super) fn text(&self, output: &Output) -> String {
        let mut lines = Vec::new();
        let summary = self.summary;
        if *self.target == Target::Schema {
            let schemas = summary.files.iter().filter_map(|file| file.sql.as_ref());
            lines.extend(schemas.map(|sql| format!("{};", crate::output::lines_visible(sql))));
            lines.push(String::new());
        }
        if !summary.files.is_empty() {
            lines.push(self.table(output));
        }
        for file in &summary.files {
            lines
                .extend(file.notes.iter().map(|note| format!("{}: {}", visible(&file.table), visible(note))));
            if let Outcome::Failed(why) = &file.outcome {
                lines.push(format!("{} could not be loaded: {}", visible(&file.source), visible(why)));
            }
        }
        lines.extend(self.rejected());
        let unmatched = self.summary.unmatched.iter();
        lines.extend(
            unmatched.map(|name| format!("no table has a column {:?} for a key or an index", visible(name))),
        );
        lines.push(self.end());
        lines.join("\n")
    }

    fn table(&self, output: &Output) -> String {
        let done = if matches!(self.target, Target::Database(_)) { "loaded" } else { "checked" };
        let rows: Vec<Vec<String>> = self.summary.files.iter().map(|file| row(file, done)).collect();
        let headers = ["TABLE", "ROWS", "REJECTED", "COLUMNS", "SIZE", "KEY", "OUTCOME"];
        output.table(&headers, &rows)
    }

    fn rejected(&self) -> Vec<String> {
        let Summary { rejected, examples, .. } = self.summary;
        if *rejected == 0 && examples.is_empty() {
            return Vec::new();
        }
        let count = (*rejected).max(examples.len() as u64);
        let mut lines = vec![format!(
            "{}:",
            if count == 1 {
                "1 line was rejected".to_owned()
            } else {
                format!("{} lines were rejected", grouped(count))
            }
        )];
        lines.extend(examples.iter().map(|bad| {
            format!("  {}:{}:{}: {}", visible(&bad.file), bad.line, bad.column, visible(&bad.reason))
        }));
        lines.push(match self.rejects {
            Some(file) => format!("  All of them: {}", path(file)),
            None if count > examples.len() as u64 => {
                let more = grouped(count - examples.len() as u64);
                format!("  and {more} more; --rejects FILE writes all of them to a file")
            }
            None => return lines,
        });
        lines
    }

    /// What there is now.
    fn end(&self) -> String {
        let Summary { rows, bytes: size, seconds, interrupted, stopped_by, is_published, files, .. } =
            self.summary;
        let rate = if *seconds > 0.0 { (*size as f64 / seconds) as u64 } else { 0 };
        let is_table = |file: &&FileSummary| {
            file.outcome == Outcome::Loaded && (*self.target == Target::Nothing || !file.columns.is_empty())
        };
        let tables = files.iter().filter(is_table).count() as u64;
        let done = format!(
            "{}, {} from {} in {} ({}/s)",
            counted(tables, if *self.target == Target::Nothing { "file" } else { "table" }),
            counted(*rows, "row"),
            bytes(*size),
            took(*seconds),
            bytes(rate)
        );
        let Target::Database(database) = self.target else {
            let what = if *self.target == Target::Nothing { "checked" } else { "found" };
            return match (interrupted, stopped_by) {
                (false, None) => format!("{what} {done}; nothing was written"),
                _ => format!("stopped; {what} {done}"),
            };
        };
        let database = path(database);
        let kept = if *is_published {
            format!("{database} has the files that were complete")
        } else {
            format!("there is no {database}")
        };
        if *interrupted {
            let next = if self.resume { "; the same command goes on from here" } else { "" };
            return format!("stopped; {kept}{next}");
        }
        if let Some(bad) = stopped_by {
            return format!("stopped at line {} of {}; {kept}", grouped(bad.line), visible(&bad.file));
        }
        if !*is_published {
            return format!("nothing could be loaded; {kept}");
        }
        let unchanged = files.iter().filter(|file| file.outcome == Outcome::Unchanged).count() as u64;
        let unchanged =
            if unchanged > 0 { format!("; {} unchanged", counted(unchanged, "file")) } else { String::new() };
        format!("{database}: {done}{unchanged}")
    }
}

fn row(file: &FileSummary, done: &str) -> Vec<String> {
    let outcome = match &file.outcome {
        Outcome::Loaded => done,
        Outcome::Unchanged => "unchanged",
        Outcome::Waiting => "not loaded",
        Outcome::Failed(_) => "failed",
    };
    vec![
        file.table.clone(),
        grouped(file.rows),
        grouped(file.rejected),
        file.columns.len().to_string(),
        bytes(file.bytes),
        file.primary_key.clone().unwrap_or_default(),
        outcome.to_owned(),
    ]
}
