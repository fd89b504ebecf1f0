//! Result of an import as text.

use std::path::Path;

use gristmill_jsonl::import::options::Target;
use gristmill_jsonl::import::summary::{FileOutcome, FileSummary, ImportSummary};

use crate::output::{Output, path, sanitize};
use crate::units::{bytes, count_of, in_seconds, thousands};

pub(super) struct ImportSummaryView<'a> {
    pub(super) summary: &'a ImportSummary,
    pub(super) target: &'a Target,
    pub(super) resume: bool,
    pub(super) rejects: Option<&'a Path>,
}

impl ImportSummaryView<'_> {
    pub(super) fn text(&self, output: &Output) -> String {
        let mut lines = Vec::new();
        let summary = self.summary;
        if matches!(self.target, Target::Schema | Target::Preview(_)) {
            let schemas = summary.files.iter().filter_map(|file| file.sql.as_ref());
            lines.extend(schemas.map(|sql| format!("{};", crate::output::sanitize_lines(sql))));
            lines.push(String::new());
        }
        if !summary.files.is_empty() {
            lines.push(self.table(output));
        }
        for file in &summary.files {
            lines.extend(file.notes.iter().map(|note| format!("{}: {}", sanitize(&file.table), sanitize(note))));
            if let FileOutcome::Failed(why) = &file.outcome {
                lines.push(format!("cannot load {}: {}", sanitize(&file.source), sanitize(why)));
            }
        }
        lines.extend(self.rejected());
        let unmatched = self.summary.unmatched.iter();
        lines.extend(unmatched.map(|name| format!("no table has a column {:?}", sanitize(name))));
        lines.push(self.last_line());
        lines.join("\n")
    }

    /// Returns a table with one row per file, or per table if several files were loaded into one.
    fn table(&self, output: &Output) -> String {
        let mut tables: Vec<Vec<&FileSummary>> = Vec::new();
        for file in &self.summary.files {
            match tables.last_mut() {
                Some(table) if !file.table.is_empty() && table[0].table == file.table => table.push(file),
                _ => tables.push(vec![file]),
            }
        }
        let has_many = tables.iter().any(|table| table.len() > 1);
        let mut headers = vec!["TABLE", "ROWS", "REJECTED", "COLUMNS", "SIZE", "KEY", "OUTCOME"];
        if has_many {
            headers.insert(1, "FILES");
        }
        output.table(&headers, tables.iter().map(|table| row(table, self.target, has_many)))
    }

    fn rejected(&self) -> Vec<String> {
        let ImportSummary { rejected, examples, .. } = self.summary;
        if *rejected == 0 && examples.is_empty() {
            return Vec::new();
        }
        let were = |count: u64| match count {
            1 => "1 line was rejected".to_owned(),
            count => format!("{} lines were rejected", thousands(count)),
        };
        let unchanged = self.summary.files.iter().filter(|file| file.outcome == FileOutcome::Unchanged);
        let earlier: u64 = unchanged.map(|file| file.rejected).sum();
        let count = rejected.saturating_sub(earlier).max(examples.len() as u64);
        let mut lines = Vec::new();
        if earlier > 0 {
            let files = if earlier == 1 { "its file was" } else { "their files were" };
            lines.push(format!("{} when {files} loaded earlier", were(earlier)));
        }
        if count == 0 {
            return lines;
        }
        lines.push(format!("{}:", were(count)));
        lines.extend(
            examples
                .iter()
                .map(|bad| format!("  {}:{}:{}: {}", sanitize(&bad.file), bad.line, bad.column, sanitize(&bad.reason))),
        );
        lines.push(match self.rejects {
            Some(file) => format!("  All rejected lines: {}", path(file)),
            None if count > examples.len() as u64 => {
                let more = thousands(count - examples.len() as u64);
                format!("  {more} more; write all of them to a file with --rejects FILE")
            }
            None => return lines,
        });
        lines
    }

    /// Returns the last line: what was loaded into which database.
    fn last_line(&self) -> String {
        let ImportSummary { rows, bytes: size, seconds, interrupted, stopped_by, is_published, files, .. } =
            self.summary;
        let is_table = |file: &&FileSummary| {
            matches!(file.outcome, FileOutcome::Loaded | FileOutcome::Checked)
                && (*self.target == Target::ValidateOnly || !file.columns.is_empty())
        };
        let mut tables: Vec<&str> = files.iter().filter(is_table).map(|file| file.table.as_str()).collect();
        if *self.target != Target::ValidateOnly {
            tables.dedup();
        }
        let tables = tables.len() as u64;
        let done = format!(
            "{}, {} from {} {}",
            count_of(tables, if *self.target == Target::ValidateOnly { "file" } else { "table" }),
            count_of(*rows, "row"),
            bytes(*size),
            in_seconds(*size, *seconds, bytes)
        );
        let done = if tables == 0 && *rows == 0 { "nothing".to_owned() } else { done };
        let Target::Database(database) = self.target else {
            if let (Target::Preview(database), false, None) = (self.target, interrupted, stopped_by) {
                return format!("would load {done} into {}; nothing was written", path(database));
            }
            let what = if *self.target == Target::ValidateOnly { "checked" } else { "found" };
            return match (interrupted, stopped_by) {
                (false, None) => format!("{what} {done}; nothing was written"),
                _ => format!("stopped; {what} {done}"),
            };
        };
        let database = path(database);
        let kept = if *is_published {
            format!("{database} contains the files that were complete")
        } else {
            format!("{database} was not created")
        };
        if *interrupted {
            let next = if self.resume { "; the same command resumes the import" } else { "" };
            return format!("stopped; {kept}{next}");
        }
        if let Some(bad) = stopped_by {
            return format!("stopped at line {} of {}; {kept}", thousands(bad.line), sanitize(&bad.file));
        }
        if !*is_published {
            return format!("nothing loaded; {kept}");
        }
        let unchanged = files.iter().filter(|file| file.outcome == FileOutcome::Unchanged).count() as u64;
        let unchanged =
            if unchanged > 0 { format!("; {} unchanged", count_of(unchanged, "file")) } else { String::new() };
        let done = if done == "nothing" { "nothing loaded".to_owned() } else { done };
        format!("{database}: {done}{unchanged}")
    }
}

/// Returns a row of the table, for one file or for all files of a table.
fn row(files: &[&FileSummary], target: &Target, has_many: bool) -> Vec<String> {
    let word = |outcome: &FileOutcome, action: Option<&str>| match outcome {
        FileOutcome::Loaded => "loaded".to_owned(),
        FileOutcome::Checked if matches!(target, Target::Preview(_)) => {
            format!("would {}", action.unwrap_or("create"))
        }
        FileOutcome::Checked => "checked".to_owned(),
        FileOutcome::Unchanged => "unchanged".to_owned(),
        FileOutcome::Waiting => "not loaded".to_owned(),
        FileOutcome::Failed(_) => "failed".to_owned(),
    };
    let mut outcomes: Vec<(String, u64)> = Vec::new();
    for file in files {
        // Files after the first one are added to the table that it created.
        let word = word(&file.outcome, files[0].action);
        match outcomes.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => outcomes.push((word, 1)),
        }
    }
    let outcome = match &outcomes[..] {
        [(word, _)] => word.clone(),
        several => {
            let several = several.iter().map(|(word, count)| format!("{} {word}", thousands(*count)));
            several.collect::<Vec<_>>().join(", ")
        }
    };
    let sum = |count: fn(&FileSummary) -> u64| files.iter().map(|file| count(file)).sum::<u64>();
    let widest = files.iter().max_by_key(|file| file.columns.len()).copied();
    let mut row = vec![
        files[0].table.clone(),
        thousands(sum(|file| file.rows)),
        thousands(sum(|file| file.rejected)),
        widest.map_or(0, |file| file.columns.len()).to_string(),
        bytes(sum(|file| file.bytes)),
        widest.and_then(|file| file.primary_key.clone()).unwrap_or_default(),
        outcome,
    ];
    if has_many {
        row.insert(1, thousands(files.len() as u64));
    }
    row
}
