//! `gristmill copies`: lists the copies of given files.
//!
//! Owns the output. `gristmill_dedup::copies` finds the copies.

use std::path::PathBuf;

use gristmill_dedup::copies::{Copies, CopiesOptions, CopyState, FileAnswer, FileCopies, FoundCopy, copies};
use serde::Serialize;

use super::completeness::{Completeness, filter_notes};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::output::path;
use crate::progress::while_showing;
use crate::units::{bytes, count_of};

const HELP: &str = "\
Looks up each FILE in the catalog, whether or not it is in a scanned folder itself. What the catalog cannot decide is \
read: FILE if the last scan did not record it as it is now, and files of its size without a hash. Only files with \
equal bytes are copies, and each is examined on the disk: one that has changed since the last scan is listed as \
changed, and one that cannot be compared, such as on a disk that is not mounted, as a possible copy. Files that were \
created since the last scan are not found. No file is changed.

FILE itself is not listed. Its hard links, and other paths that lead to it, are listed as the same file (=). For a \
symbolic link, the copies of its target are listed. All empty files are copies of each other.

In JSON, `complete` is false if the catalog is incomplete, and also if a FILE has no answer: `failed_files` counts \
these.

Exit status:
  0    every FILE was examined, also if it has no copy
  1    a FILE does not exist or cannot be read; the others are answered

Examples:
  gristmill copies ~/Downloads/IMG_1234.jpg
  gristmill copies *.iso --json | jq -r '.items[] | select(.copies == 0) | .path'";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Files whose copies are listed
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    copies: &'a Copies,
    /// Number of given files without an answer.
    failed_files: usize,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let (store, _) = context.open_catalog()?;
    let options = CopiesOptions::default();
    let answer = while_showing(context.quiet, "comparing contents", || copies(&store, &args.files, &options))?;
    let has_roots = !store.roots().list()?.is_empty();
    let mut failed_files = 0;
    for (file, answer) in args.files.iter().zip(&answer.files) {
        if let FileAnswer::Failed(failed) = answer {
            Error::Setting(format!("{}: {}", path(file), failed.error)).complete_commands(&context.hints).report();
            failed_files += 1;
        }
    }
    context.output.print(&Answer { copies: &answer, failed_files }, |_| {
        let given = args.files.iter().zip(&answer.files);
        let found = given.filter_map(|(file, answer)| match answer {
            FileAnswer::Found(found) => Some(text(&path(file), found)),
            FileAnswer::Failed(_) => None,
        });
        let text = found.collect::<Vec<_>>().join("\n");
        if text.is_empty() {
            return text;
        }
        match has_roots {
            true => text + &notes(&answer, &context.hints),
            false => format!("{text}\n{}", context.hints.nothing_scanned()),
        }
    })?;
    Ok(if failed_files == 0 { Outcome::Done } else { Outcome::UserError })
}

fn notes(answer: &Copies, hints: &Hints) -> String {
    let mut coverage = answer.coverage.clone();
    // A scan cannot help if only a given file failed. Of all reasons, only absent roots leave the catalog complete.
    coverage.complete |= coverage.reasons().len() == coverage.absent_roots.len();
    let notes = Completeness::of(coverage, hints).text() + &filter_notes(&answer.filtered_roots);
    if notes.is_empty() { notes } else { format!("\n{notes}") }
}

fn text(given: &str, found: &FileCopies) -> String {
    let target = found.target.as_ref().map(|target| format!(" -> {}", path(target))).unwrap_or_default();
    let size = match found.size {
        0 => "empty".to_owned(),
        size => bytes(size),
    };
    let count = match found.copies {
        0 if found.complete => "no copy".to_owned(),
        0 => "no copy so far".to_owned(),
        copies => count_of(copies, "copy"),
    };
    let mut text = format!("{given}{target} ({size}): {count}\n");
    for file in &found.files {
        text.push_str(&line(file));
    }
    text
}

fn line(file: &FoundCopy) -> String {
    let (mark, note) = match file.state {
        CopyState::Copy => (' ', None),
        CopyState::SameFile => ('=', Some("the same file")),
        CopyState::Possible => ('?', Some("possible copy")),
        CopyState::Changed => ('?', Some("no longer known to be a copy")),
    };
    let notes: Vec<&str> = note.into_iter().chain(file.reason.as_deref()).collect();
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(": ")) };
    format!("  {mark} {}{notes}\n", path(&file.location.path))
}
