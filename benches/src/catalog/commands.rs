//! Runs the commands that read the catalog on a terminal, and measures the time to their first output.
//!
//! Owns the commands. The terminal is that of the program `script`, as people have one: a command that has no result
//! yet shows what it is doing.

use std::{
    ffi::OsStr,
    io::Read,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use crate::{
    comparison::{maximum, median, print_table},
    process,
};

/// A command and the maximum time to its first output, in ms.
struct Question {
    name: &'static str,
    args: &'static [&'static str],
    limit_ms: Option<f64>,
}

const QUESTIONS: [Question; 6] = [
    Question { name: "dupes", args: &["dupes"], limit_ms: Some(100.0) },
    Question { name: "folders", args: &["folders"], limit_ms: Some(100.0) },
    Question { name: "report, to standard output", args: &["report", "--html", "-"], limit_ms: Some(100.0) },
    // Prints a line at its end; for information.
    Question { name: "report, to a file", args: &["report", "--html", REPORT], limit_ms: None },
    Question { name: "roots", args: &["roots"], limit_ms: Some(100.0) },
    Question { name: "folders --partial", args: &["folders", "--partial"], limit_ms: Some(3_000.0) },
];

/// Name of the report in the folder in which the commands run.
const REPORT: &str = "report.html";

/// Measurements of one command.
pub(super) struct CommandRow {
    pub(super) name: &'static str,
    /// Time to the first byte on the terminal, or to the end without output, in ms.
    pub(super) first_ms: Vec<f64>,
    /// Time to the end, in ms.
    end_ms: Vec<f64>,
    bytes: usize,
    pub(super) limit_ms: Option<f64>,
}

/// Measurements of all commands on one catalog.
pub(super) struct Commands {
    pub(super) files: u64,
    pub(super) rows: Vec<CommandRow>,
}

/// Runs all commands alternately, `reps` times, after one run each that is not measured.
pub(super) fn measure(
    gristmill: &Path,
    database: &Path,
    files: u64,
    reps: usize,
    scratch: &Path,
) -> Result<Commands, String> {
    let mut rows: Vec<CommandRow> = QUESTIONS
        .iter()
        .map(|Question { name, limit_ms, .. }| CommandRow {
            name,
            first_ms: Vec::new(),
            end_ms: Vec::new(),
            bytes: 0,
            limit_ms: *limit_ms,
        })
        .collect();
    for repetition in 0..=reps {
        for (question, row) in QUESTIONS.iter().zip(&mut rows) {
            let words = [gristmill.as_os_str(), "--db".as_ref(), database.as_os_str()];
            let words = words.into_iter().chain(question.args.iter().map(OsStr::new));
            let (first, end, bytes) = run(&command_line(words), scratch)
                .map_err(|error| format!("{} {}: {error}", gristmill.display(), question.args.join(" ")))?;
            if repetition > 0 {
                row.first_ms.push(first);
                row.end_ms.push(end);
            }
            row.bytes = bytes;
        }
    }
    Ok(Commands { files, rows })
}

/// Returns a command line for a shell.
fn command_line<'a>(words: impl Iterator<Item = &'a OsStr>) -> String {
    let quoted = words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''")));
    quoted.collect::<Vec<_>>().join(" ")
}

/// Runs a command in `scratch` on a terminal. Returns the time to its first output and to its end, in ms, and the bytes
/// it printed.
fn run(line: &str, scratch: &Path) -> Result<(f64, f64, usize), String> {
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    process::isolate(&mut command, scratch).map_err(|error| error.to_string())?;
    let start = Instant::now();
    let elapsed_ms = || start.elapsed().as_secs_f64() * 1e3;
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut stdout = child.stdout.take().ok_or("no standard output")?;
    let mut first = [0];
    let read = stdout.read(&mut first).map_err(|error| error.to_string())?;
    let first_ms = elapsed_ms();
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).map_err(|error| error.to_string())?;
    let status = child.wait().map_err(|error| error.to_string())?;
    let end_ms = elapsed_ms();
    if status.success() { Ok((first_ms, end_ms, read + rest.len())) } else { Err(status.to_string()) }
}

impl Commands {
    pub(super) fn print(&self) {
        println!("\nfirst output of commands, ms ({} files)\n", self.files);
        let head = ["", "first output", "maximum", "end", "bytes"];
        let rows = self.rows.iter().map(|row| {
            let ms = |value: f64| format!("{value:.1}");
            let [first, longest, end] = [median(&row.first_ms), maximum(&row.first_ms), median(&row.end_ms)].map(ms);
            vec![row.name.to_owned(), first, longest, end, row.bytes.to_string()]
        });
        print_table(&head, rows);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::scratch::Scratch;

    pub(in crate::catalog) fn row(name: &'static str, first_ms: f64, limit_ms: Option<f64>) -> CommandRow {
        CommandRow { name, first_ms: vec![first_ms], end_ms: vec![first_ms], bytes: 1, limit_ms }
    }

    #[cfg(unix)]
    #[test]
    fn output_is_counted_and_a_failure_is_an_error() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let (first, end, bytes) = run("test -t 1 && printf 12345", scratch.path()).unwrap();
        assert!(first <= end && bytes == 5);
        assert_eq!(run("exit 0", scratch.path()).unwrap().2, 0);
        assert_eq!(run("printf 1; exit 3", scratch.path()).unwrap_err(), "exit status: 3");
        let words = ["printf", "%s", "it's"].map(OsStr::new);
        assert_eq!(run(&command_line(words.into_iter()), scratch.path()).unwrap().2, 4);
    }
}
