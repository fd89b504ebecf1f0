//! `gristmill report`: writes an HTML page about the catalog.
//!
//! Owns the target file, and that no other file is overwritten. `gristmill_dedup::report` writes the page.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gristmill_dedup::report::{ReportOptions, html};
use gristmill_pool::clock::Clock;
use gristmill_store::UtcTime;
use serde_json::json;

use super::completeness::Completeness;
use super::root_paths::with_path;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::files;
use crate::output::path;
use crate::progress::while_showing;
use crate::units::bytes;

const HELP: &str = "\
The report is one file that runs no script and loads nothing, so it can be mailed and archived. An earlier report is \
replaced; any other existing file is replaced only with --force. Only the database is read.

Examples:
  gristmill report --html duplicates.html
  gristmill report --html - | ssh nas 'cat > /srv/www/duplicates.html'";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// File to write, or - for standard output
    #[arg(long, value_name = "FILE")]
    html: PathBuf,

    /// Replace an existing file that is not a report
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let to_stdout = args.html.as_os_str() == "-";
    let target = if to_stdout { None } else { Some(target(&args.html, args.force)?) };
    let (store, _) = context.open_catalog()?;
    let options = ReportOptions::new(UtcTime::of(Clock::system()));
    let page = while_showing(context.quiet, "reading the catalog", || html(&store, &options))?;
    let Some(target) = target else {
        return context.output.print(&json!({"html": page}), |_| page.clone());
    };
    files::replace(&target, page.as_bytes())
        .map_err(|error| Error::cannot_write(&target, &error, "choose another file with --html"))?;
    let mut object = with_path(&target);
    Completeness::new(&store, &[], &context.hints)?.insert_into(&mut object);
    object.insert("bytes".to_owned(), json!(page.len()));
    context
        .output
        .summary(&object, Outcome::Done, |_| format!("wrote {} ({})", path(&target), bytes(page.len() as u64)))
}

/// Returns the file to write: the target of a link, not the link. Refuses an existing file that is not a report.
fn target(file: &Path, force: bool) -> Result<PathBuf, Error> {
    let refused = |why: &str| Err(Error::Setting(format!("{} {why}", path(file))));
    let found = match std::fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return crate::settings::absolute(file),
        Err(error) => return refused(&format!("cannot be written: {error}")),
        Ok(found) => found,
    };
    match () {
        () if found.is_dir() => refused("is a folder; name a file in it"),
        () if !found.is_file() => refused("is not a regular file; `--html -` writes to standard output"),
        () if !force && !is_report(file).unwrap_or(false) => {
            refused("exists and is not a Gristmill report; replace it with --force")
        }
        () => Ok(std::fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf())),
    }
}

/// Returns true if a file is a report, which ends with [`REPORT_END`].
fn is_report(file: &Path) -> io::Result<bool> {
    let mut file = File::open(file)?;
    let length = file.metadata()?.len();
    let mut start = [0; REPORT_START.len()];
    file.read_exact(&mut start)?;
    file.seek(SeekFrom::Start(length.saturating_sub(1_024)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    Ok(&start == REPORT_START && String::from_utf8_lossy(&end).contains(REPORT_END))
}

const REPORT_START: &[u8; 15] = b"<!DOCTYPE html>";
const REPORT_END: &str = "Made by Gristmill.";
