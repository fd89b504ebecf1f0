//! Runs the commands that read the catalog, and measures the time to their first output.

use std::{
    ffi::OsString,
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
    /// Time to the first byte of standard output, or to the end without output, in ms.
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
            let args = ["--db".into(), database.into()].into_iter().chain(question.args.iter().map(OsString::from));
            let (first, end, bytes) = run(Command::new(gristmill).args(args), scratch)
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

/// Runs a command in `scratch`. Returns the time to its first output and to its end, in ms, and the bytes it printed.
fn run(command: &mut Command, scratch: &Path) -> Result<(f64, f64, usize), String> {
    process::isolate(command, scratch).map_err(|error| error.to_string())?;
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
        let shell = |script: &str| run(Command::new("sh").args(["-c", script]), scratch.path());
        let (first, end, bytes) = shell("printf 12345").unwrap();
        assert!(first <= end && bytes == 5);
        assert_eq!(shell("exit 0").unwrap().2, 0);
        assert_eq!(shell("printf 1; exit 3").unwrap_err(), "exit status: 3");
    }
}
