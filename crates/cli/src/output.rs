//! What a command says: a table for people, one JSON object for programs.
//!
//! Owns standard output, the shape of tables and what may reach a terminal. What is worth saying is each
//! command's own affair.

use std::io::{self, ErrorKind, IsTerminal, Write};

use gristmill_store::{UtcTime, display_path, is_invisible};
use serde::Serialize;

use crate::error::{Error, Outcome};

/// How this run speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    /// The terminal's, when standard output is one.
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

    /// Says it: `value` to a program, `text` to a person.
    pub(crate) fn print(
        &self,
        value: &impl Serialize,
        text: impl FnOnce(&Self) -> String,
    ) -> Result<(), Error> {
        let mut said = if self.json {
            serde_json::to_string_pretty(value).map_err(|error| Error::System(error.to_string()))?
        } else {
            text(self)
        };
        if !said.is_empty() && !said.ends_with('\n') {
            said.push('\n');
        }
        ignore_broken_pipe(io::stdout().write_all(said.as_bytes()).and_then(|()| io::stdout().flush()))
    }

    /// Says how a command ended that did something. With `--quiet` only JSON is printed, and on standard error the text
    /// of a run that did not succeed.
    pub(crate) fn summary(
        &self,
        value: &impl Serialize,
        outcome: Outcome,
        text: impl FnOnce(&Self) -> String,
    ) -> Result<(), Error> {
        match outcome {
            _ if self.json || !self.quiet => self.print(value, text),
            Outcome::Done | Outcome::Interrupted => Ok(()),
            Outcome::UserError | Outcome::Failed | Outcome::Busy => {
                // A warning that cannot be printed does not change the exit status.
                let _ = writeln!(io::stderr(), "{}", text(self).trim_end());
                Ok(())
            }
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Says bytes as they are, for programs that take them so. On a terminal they are shown as all else is.
    pub(crate) fn print_bytes(&self, bytes: &[u8]) -> Result<(), Error> {
        let mut stdout = io::stdout().lock();
        let told = if stdout.is_terminal() {
            stdout.write_all(sanitize_bytes(bytes).as_bytes())
        } else {
            stdout.write_all(bytes)
        };
        ignore_broken_pipe(told.and_then(|()| stdout.flush()))
    }

    /// Columns below their headers, cut to the terminal when it is one.
    pub(crate) fn table(&self, headers: &[&str], rows: &[Vec<String>]) -> String {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
        let mut widths: Vec<usize> = headers.iter().map(|header| header.chars().count()).collect();
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let headers: Vec<String> = headers.iter().map(|header| (*header).to_owned()).collect();
        let mut text = String::new();
        for row in std::iter::once(&headers).chain(&rows) {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            text.push_str(&truncate(line.trim_end(), self.width));
            text.push('\n');
        }
        text
    }

    /// Names and values, one below the other. What spans lines goes on below its name.
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

/// To the second: a person does not read further.
pub(crate) fn time(time: UtcTime) -> String {
    time.to_string().chars().take(19).collect()
}

/// A noun with its number.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    format!("{count} {}", noun_for(count, noun))
}

/// The same, for numbers that may be large.
pub(crate) fn count_of(count: u64, noun: &str) -> String {
    format!("{} {}", thousands(count), noun_for(count, noun))
}

fn noun_for(count: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if count == 1 => noun.to_owned(),
        Some(stem) if !stem.ends_with(['a', 'e', 'o']) => format!("{stem}ies"),
        _ => format!("{noun}s"),
    }
}

/// A number of bytes, for a glance.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1_024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1_024.0;
    let mut unit = 0;
    // So that rounding never makes 1024.0 of it.
    while value >= 1_023.95 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS.get(unit).unwrap_or(&"EiB"))
}

/// Formats a duration with tenths of a second below a minute: `3.2 s`, `4:05 min`, `2:10 h`.
pub(crate) fn format_duration(seconds: f64) -> String {
    if seconds < 60.0 { format!("{seconds:.1} s") } else { format_seconds(seconds as u64) }
}

/// Formats whole seconds: `42 s`, `4:05 min`, `2:10 h`.
pub(crate) fn format_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3_600, seconds / 60 % 60),
    }
}

/// A number with its thousands apart.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A path for a person: what is no text, and what could steer a terminal, is escaped.
pub(crate) fn path(path: &std::path::Path) -> String {
    display_path(path)
}

/// Escapes control characters, so that text from any source cannot steer the terminal.
pub(crate) fn sanitize(text: &str) -> String {
    escaped(text, &['\t'])
}

/// The same for a text of several lines.
pub(crate) fn sanitize_lines(text: &str) -> String {
    escaped(text, &['\t', '\n'])
}

/// The same for bytes, of which some may be no text.
fn sanitize_bytes(bytes: &[u8]) -> String {
    let shown = |chunk: std::str::Utf8Chunk<'_>| {
        let odd: String = chunk.invalid().iter().map(|byte| format!("\\x{byte:02X}")).collect();
        sanitize_lines(chunk.valid()) + &odd
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

/// Line ends become spaces. Spaces stay as they are: names of files have them.
fn one_line(text: &str) -> String {
    let lines = text.split(['\n', '\r', '\t']).map(str::trim).filter(|line| !line.is_empty());
    if text.contains(['\n', '\r', '\t']) {
        sanitize(&lines.collect::<Vec<_>>().join(" "))
    } else {
        sanitize(text)
    }
}

fn truncate(line: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if line.chars().count() > width => {
            line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
        }
        _ => line.to_owned(),
    }
}

/// A reader that has read enough, such as `head`, is content; a full disk is not.
pub(crate) fn ignore_broken_pipe(result: io::Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::Output(error)),
        _ => Ok(()),
    }
}

/// A word to a person, on standard error, beside what the command says.
pub(crate) fn note(text: &str) {
    // Nobody listens: nothing to be done.
    let _ = writeln!(io::stderr(), "{}", sanitize(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(row: &[&str]) -> Vec<String> {
        row.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn nouns() {
        for (count, noun, expected) in [
            (0, "copy", "0 copies"),
            (1, "copy", "1 copy"),
            (2, "day", "2 days"),
            (1_234, "file", "1,234 files"),
        ] {
            assert_eq!(count_of(count, noun), expected);
        }
    }

    #[test]
    fn times() {
        for (seconds, expected) in [
            (0.04, "0.0 s"),
            (59.9, "59.9 s"),
            (60.0, "1:00 min"),
            (3_599.0, "59:59 min"),
            (7_260.0, "2:01 h"),
        ] {
            assert_eq!(format_duration(seconds), expected);
        }
    }

    #[test]
    fn a_reader_may_leave_early() {
        assert!(ignore_broken_pipe(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(ignore_broken_pipe(Err(ErrorKind::StorageFull.into())).is_err());
    }

    #[test]
    fn tables_are_aligned_and_cut() {
        let rows = [cells(&["1", "pending", "a\nlong \u{1b}[31mreason"]), cells(&["200", "x", ""])];
        let plain = Output { json: false, quiet: false, width: None }.table(&["ID", "STATUS", "WHY"], &rows);
        assert_eq!(plain, "ID   STATUS   WHY\n1    pending  a long \\x1B[31mreason\n200  x\n");
        let narrow =
            Output { json: false, quiet: false, width: Some(12) }.table(&["ID", "STATUS", "WHY"], &rows);
        assert_eq!(narrow, "ID   STATUS…\n1    pendin…\n200  x\n");
    }

    #[test]
    fn fields_without_a_value_are_left_out() {
        let fields = [("id", Some("1".to_owned())), ("error", None), ("why", Some("a\nb".to_owned()))];
        let text = Output { json: false, quiet: false, width: None }.fields(&fields);
        assert_eq!(text, "id   1\nwhy  a\n     b\n");
    }
}
