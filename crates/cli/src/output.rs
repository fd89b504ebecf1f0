//! Output of commands: text for people, one JSON object for programs.
//!
//! Owns standard output, the layout of tables, and the escaping of characters that could control a terminal. `units`
//! formats numbers, sizes and times; each command decides what it prints.

use std::io::{self, ErrorKind, IsTerminal, Write};

/// Formats a path as text: bytes that are not UTF-8 and characters that could control a terminal are escaped.
pub(crate) use gristmill_store::display_path as path;
use gristmill_store::is_invisible;
use serde::Serialize;

use crate::error::{Error, Outcome};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    /// Columns of the terminal, if standard output is one.
    width: Option<usize>,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let stdout = io::stdout();
        let size = || terminal_size::terminal_size_of(&stdout).map(|(width, _)| usize::from(width.0));
        let width = if stdout.is_terminal() { size() } else { None };
        Output { json, quiet, width }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints `value` with `--json`, and `text` without.
    pub(crate) fn print(&self, value: &impl Serialize, text: impl FnOnce(&Self) -> String) -> Result<Outcome, Error> {
        let mut printed = if self.json {
            serde_json::to_string_pretty(value).map_err(|error| Error::System(error.to_string()))?
        } else {
            text(self)
        };
        if !printed.is_empty() && !printed.ends_with('\n') {
            printed.push('\n');
        }
        ignore_broken_pipe(io::stdout().write_all(printed.as_bytes()).and_then(|()| io::stdout().flush()))?;
        Ok(Outcome::Done)
    }

    /// Prints the result of a command that changed something, and returns its outcome. With `--quiet`, only JSON is printed, and on standard
    /// error the text of a run that failed.
    pub(crate) fn summary(
        &self,
        value: &impl Serialize,
        outcome: Outcome,
        text: impl FnOnce(&Self) -> String,
    ) -> Result<Outcome, Error> {
        if self.json || !self.quiet {
            self.print(value, text)?;
        } else if !matches!(outcome, Outcome::Done | Outcome::Interrupted) {
            // A warning that cannot be printed does not change the exit status.
            let _ = writeln!(io::stderr(), "{}", text(self).trim_end());
        }
        Ok(outcome)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints bytes unchanged, for other programs. On a terminal they are escaped like all other output.
    pub(crate) fn print_bytes(&self, bytes: &[u8]) -> Result<(), Error> {
        let mut stdout = io::stdout().lock();
        let result = if stdout.is_terminal() {
            stdout.write_all(sanitize_bytes(bytes).as_bytes())
        } else {
            stdout.write_all(bytes)
        };
        ignore_broken_pipe(result.and_then(|()| stdout.flush()))
    }

    /// Returns a table whose lines fit the terminal, if standard output is one: the widest columns are truncated first.
    /// The first column identifies the row and is not truncated while another one can be.
    pub(crate) fn table(&self, headers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
        columns(headers, rows, self.width)
    }

    /// Returns a table with complete cells, however wide the terminal is: for paths and values that must be readable.
    pub(crate) fn uncut_table(&self, headers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
        columns(headers, rows, None)
    }

    /// Returns names and values, one pair per line. Further lines of a value are indented below its first.
    pub(crate) fn fields(&self, fields: &[(&str, Option<String>)]) -> String {
        let present = || fields.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let widest = present().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, value) in present() {
            let mut lines = value.lines().map(sanitize);
            let first = lines.next().unwrap_or_default();
            text.push_str(format!("{name:<widest$}  {first}").trim_end());
            text.push('\n');
            for line in lines {
                text.push_str(format!("{:<widest$}  {line}", "").trim_end());
                text.push('\n');
            }
        }
        text
    }
}

/// Columns are not made narrower than this, in characters: a time fits.
const MIN_COLUMN_WIDTH: usize = 19;

fn columns(headers: &[&str], rows: impl IntoIterator<Item = Vec<String>>, terminal: Option<usize>) -> String {
    const GAP: &str = "  ";
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let mut widths: Vec<usize> = headers.iter().map(|header| header.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let gaps = GAP.len() * widths.len().saturating_sub(1);
    while terminal.is_some_and(|terminal| widths.iter().sum::<usize>() + gaps > terminal) {
        let others = widths.iter_mut().skip(1);
        let Some(widest) = others.filter(|width| **width > MIN_COLUMN_WIDTH).max() else { break };
        *widest -= 1;
    }
    let headers: Vec<String> = headers.iter().map(|header| (*header).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&headers).chain(&rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:<width$}", truncate(cell, Some(*width))));
        let line = cells.collect::<Vec<_>>().join(GAP);
        text.push_str(&truncate(line.trim_end(), terminal));
        text.push('\n');
    }
    text
}

/// Escapes control characters, so that text from any source cannot control the terminal.
pub(crate) fn sanitize(text: &str) -> String {
    escaped(text, &['\t'])
}

pub(crate) fn sanitize_lines(text: &str) -> String {
    escaped(text, &['\t', '\n'])
}

/// Escapes control characters and bytes that are not UTF-8.
fn sanitize_bytes(bytes: &[u8]) -> String {
    let shown = |chunk: std::str::Utf8Chunk<'_>| {
        let invalid: String = chunk.invalid().iter().map(|byte| format!("\\x{byte:02X}")).collect();
        sanitize_lines(chunk.valid()) + &invalid
    };
    bytes.utf8_chunks().map(shown).collect()
}

fn escaped(text: &str, kept: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if kept.contains(&c) || !is_invisible(c) => shown.push(c),
            c if c.is_ascii() => shown.push_str(&format!("\\x{:02X}", c as u32)),
            c => shown.push_str(&format!("\\u{{{:x}}}", c as u32)),
        }
    }
    shown
}

/// Replaces line ends by spaces. Repeated spaces stay, because file names contain them.
fn one_line(text: &str) -> String {
    let lines = text.split(['\n', '\r', '\t']).map(str::trim).filter(|line| !line.is_empty());
    if text.contains(['\n', '\r', '\t']) { sanitize(&lines.collect::<Vec<_>>().join(" ")) } else { sanitize(text) }
}

/// Shortens a line to `width` characters, of which the last is then `…`.
pub(crate) fn truncate(line: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if line.chars().count() > width => {
            line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
        }
        _ => line.to_owned(),
    }
}

/// Treats a closed pipe as success, because its reader, such as `head`, has read enough. Other errors, such as a full
/// disk, remain errors.
pub(crate) fn ignore_broken_pipe(result: io::Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::Output(error)),
        _ => Ok(()),
    }
}

/// Clears the line of the cursor on a terminal. A progress line, which this clears, is drawn again later.
pub(crate) const CLEAR_LINE: &str = "\r\u{1b}[K";

/// Prints a message for a person on standard error.
pub(crate) fn note(text: &str) {
    let mut stderr = io::stderr().lock();
    let clear = if stderr.is_terminal() { CLEAR_LINE } else { "" };
    // A message that cannot be printed does not change the exit status.
    let _ = writeln!(stderr, "{clear}{}", sanitize(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(row: &[&str]) -> Vec<String> {
        row.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn closed_pipe_is_no_error() {
        assert!(ignore_broken_pipe(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(ignore_broken_pipe(Err(ErrorKind::StorageFull.into())).is_err());
    }

    #[test]
    fn tables_are_aligned_and_truncated_to_the_terminal() {
        let rows = [cells(&["1", "pending", "a\nlong \u{1b}[31mreason"]), cells(&["200", "x", ""])];
        let plain = Output { json: false, quiet: false, width: None }.table(&["ID", "STATUS", "WHY"], rows.clone());
        assert_eq!(plain, "ID   STATUS   WHY\n1    pending  a long \\x1B[31mreason\n200  x\n");
        let narrow =
            Output { json: false, quiet: false, width: Some(12) }.table(&["ID", "STATUS", "WHY"], rows.clone());
        assert_eq!(narrow, "ID   STATUS…\n1    pendin…\n200  x\n");
        let shrunk = Output { json: false, quiet: false, width: Some(34) }.table(&["ID", "STATUS", "WHY"], rows);
        assert_eq!(shrunk, "ID   STATUS   WHY\n1    pending  a long \\x1B[31mreas…\n200  x\n");
    }

    #[test]
    fn fields_without_a_value_are_omitted() {
        let fields = [("id", Some("1".to_owned())), ("error", None), ("why", Some("a\nb".to_owned()))];
        let text = Output { json: false, quiet: false, width: None }.fields(&fields);
        assert_eq!(text, "id   1\nwhy  a\n     b\n");
    }
}
