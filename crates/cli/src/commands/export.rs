//! `gristmill export`: a table of SQLite back to JSONL.
//!
//! Owns where the lines go. Which JSON a value becomes is decided by the library.

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gristmill_jsonl::export::{ExportSummary, export, export_to_file};
use gristmill_jsonl::import::control::{ImportHandle, ImportProgress};
use serde_json::json;

use super::progress::{ProgressLine, ProgressReporter, RateMeter, Segment};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{bytes, count_of, format_duration, format_seconds, path};
use crate::signals::Listener;

const EXAMPLES: &str = "\
Each row becomes a line, in the order of the rows in the table. Keys are the names of the columns, and each line has \
all of them. BOOLEAN columns are written as true and false, columns whose texts all are JSON objects or arrays on one \
line as such; all other values keep their type.

Loading the export of a table that an import made gives the same rows and types, with these limits: a boolean in a \
column of numbers is a number, and a column without values has no type. The export of another table has its rows, but \
not its definition: types follow from the values, a column with both numbers and text becomes TEXT, and constraints, \
defaults and indexes are not exported.

The database is only read, as it is at one moment; other programs may write to it meanwhile. A file appears under its \
name only when it is complete. A value that JSON does not have, such as a BLOB or an infinite number, fails the \
export. Generated columns are left out.

Exit codes:
  0    done
  1    a wrong argument; a file that exists; a value that JSON does not have
  2    the system failed: a full disk, a damaged database
  3    another program kept the database locked for more than 10 seconds
  130  interrupted; no file is left

Examples:
  gristmill export types --from sde.db --output types.jsonl.zst
  gristmill export types --from sde.db | jq -r .name
  gristmill export events --from logs.db | gristmill import - --table events --into copy.db";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The table
    #[arg(value_name = "TABLE")]
    table: String,

    /// The SQLite database that has it
    #[arg(long, value_name = "DATABASE")]
    from: PathBuf,

    /// The file to write, compressed if its name ends in .gz or .zst; - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "-", hide_default_value = true)]
    output: PathBuf,

    /// Replace a file that exists
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let control = Arc::new(ImportHandle::default());
    let signals = Listener::start(1, {
        let control = control.clone();
        move || control.cancel()
    })?;
    let is_file = args.output.as_os_str() != "-";
    let shown = progress(&control, context.quiet);
    let result = if is_file {
        export_to_file(&args.from, &args.table, &args.output, args.force, &control)
    } else {
        to_standard_output(args, &control)
    };
    shown.end();
    signals.stop();
    match result {
        Ok(exported) if is_file => told(&exported, &args.output, context).map(|()| Outcome::Done),
        // A reader that has read enough, such as `head`, ends it as well.
        Err(gristmill_jsonl::Error::Cancelled) if !control.is_cancelled() => Ok(Outcome::Done),
        Err(gristmill_jsonl::Error::Cancelled) => Ok(Outcome::Interrupted),
        result => Ok(result.map(|_| Outcome::Done)?),
    }
}

/// Shows how far the export has come until it is ended.
fn progress(control: &Arc<ImportHandle>, quiet: bool) -> ProgressReporter {
    let control = control.clone();
    let mut pace = RateMeter::default();
    ProgressReporter::start(quiet, move |elapsed| {
        let ImportProgress { rows, bytes_read: written, .. } = control.progress();
        let parts = vec![
            Segment(9, "exporting".to_owned()),
            Segment(7, bytes(written)),
            Segment(6, format!("{}/s", bytes(pace.rate(written) as u64))),
            Segment(4, count_of(rows, "row")),
            Segment(2, format_seconds(elapsed.as_secs())),
        ];
        ProgressLine { segments: parts, bar: None }
    })
}

fn to_standard_output(args: &Args, control: &Arc<ImportHandle>) -> gristmill_jsonl::Result<ExportSummary> {
    let mut output = BufWriter::with_capacity(BUFFER, io::stdout().lock());
    let result = export(&args.from, &args.table, &mut output, control);
    // The export has flushed what it has written. After a failure the rest is of no use.
    drop(output.into_parts());
    result
}

/// Bytes that are written to standard output at a time.
const BUFFER: usize = 64 << 10;

fn told(exported: &ExportSummary, file: &Path, context: &Context) -> Result<(), Error> {
    let ExportSummary { table, rows, columns, bytes: size, seconds } = exported;
    let object = json!({
        "table": table, "rows": rows, "columns": columns, "bytes": size, "seconds": seconds,
        "output": file.display().to_string(),
    });
    context.output.summary(&object, Outcome::Done, |_| {
        let rows = count_of(*rows, "row");
        format!(
            "{}: {rows} of {table}, {} of JSONL, in {}",
            path(file),
            bytes(*size),
            format_duration(*seconds)
        )
    })
}
