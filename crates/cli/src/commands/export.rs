//! `gristmill export`: writes a SQLite table as JSONL.
//!
//! Owns the target of the lines. `gristmill_jsonl::export` converts values to JSON.

use std::io::{self, BufWriter, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gristmill_jsonl::export::{ExportSummary, export, export_to_file};
use gristmill_jsonl::import::handle::{ImportHandle, ImportProgress};
use serde_json::json;

use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::path;
use crate::progress::{ProgressLine, RateMeter};
use crate::supervisor::with_progress;
use crate::units::{bytes, count_of, format_duration, format_seconds};

const HELP: &str = "\
Each row becomes a line, in the order of the rows in the table. Keys are the names of the columns, and each line has \
all of them. Values of BOOLEAN columns become true and false. If all texts of a column are JSON objects or arrays on \
one line, they become JSON. All other values keep their type.

Importing the export of an imported table restores its rows and types, with these limits: a boolean in a column of \
numbers becomes a number, and a column without values has no type. The export of any other table contains its rows but \
not its definition: types follow from the values, a column with numbers and text becomes TEXT, and constraints, \
defaults and indexes are not exported.

The database is read in one snapshot; other programs may write to it meanwhile. The file gets its name only when it is \
complete. A value without a JSON equivalent, such as a BLOB or an infinite number, fails the export. Generated columns \
are omitted.

Exit status:
  0    success
  1    a wrong argument; an existing file; a value without a JSON equivalent
  2    system failure: a full disk, a damaged database
  3    another program kept the database locked for more than 10 seconds
  130  interrupted; no file is left

Examples:
  gristmill export types --from sde.db --output types.jsonl.zst
  gristmill export types --from sde.db | jq -r .name
  gristmill export events --from logs.db | gristmill import - --table events --into copy.db";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Table to export
    #[arg(value_name = "TABLE")]
    table: String,

    /// SQLite database with the table
    #[arg(long, value_name = "DATABASE")]
    from: PathBuf,

    /// File to write, compressed if its name ends in .gz or .zst, or - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let control = Arc::new(ImportHandle::default());
    let is_file = args.output.as_os_str() != "-";
    let cancelled = control.clone();
    // A progress line would be drawn into the rows.
    let shares_terminal = !is_file && io::stdout().is_terminal() && io::stderr().is_terminal();
    let result = with_progress(
        context.quiet || shares_terminal,
        move || cancelled.cancel(),
        progress_lines(&control),
        || match is_file {
            true => export_to_file(&args.from, &args.table, &args.output, args.force, &control),
            false => to_standard_output(args, &control),
        },
    )?;
    match result {
        Ok(exported) if is_file => print_summary(&exported, &args.output, context),
        // The reader of a pipe, such as `head`, has read enough.
        Err(gristmill_jsonl::Error::Cancelled) if !control.is_cancelled() => Ok(Outcome::Done),
        Err(gristmill_jsonl::Error::Cancelled) => Ok(Outcome::Interrupted),
        result => Ok(result.map(|_| Outcome::Done)?),
    }
}

fn progress_lines(control: &Arc<ImportHandle>) -> impl FnMut(Duration) -> ProgressLine + Send + 'static {
    let control = control.clone();
    let mut rate_meter = RateMeter::default();
    move |elapsed| {
        let ImportProgress { rows, bytes_read: written, .. } = control.progress();
        let mut line = ProgressLine::new("exporting");
        line.push_bytes(written, None, &mut rate_meter);
        line.push(4, count_of(rows, "row"));
        line.push(2, format_seconds(elapsed.as_secs()));
        line
    }
}

fn to_standard_output(args: &Args, control: &Arc<ImportHandle>) -> gristmill_jsonl::Result<ExportSummary> {
    let mut output = BufWriter::with_capacity(BUFFER_SIZE, io::stdout().lock());
    let result = export(&args.from, &args.table, &mut output, control);
    // The export has flushed its output. After a failure, the rest of the buffer is discarded.
    drop(output.into_parts());
    result
}

const BUFFER_SIZE: usize = 64 << 10;

fn print_summary(exported: &ExportSummary, file: &Path, context: &Context) -> Result<Outcome, Error> {
    let ExportSummary { table, rows, columns, bytes: size, seconds } = exported;
    let object = json!({
        "table": table, "rows": rows, "columns": columns, "bytes": size, "seconds": seconds,
        "output": file.display().to_string(),
    });
    context.output.summary(&object, Outcome::Done, |_| {
        let rows = count_of(*rows, "row");
        format!("wrote {}: {rows} of {table}, {} of JSONL, in {}", path(file), bytes(*size), format_duration(*seconds))
    })
}
