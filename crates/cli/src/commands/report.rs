//! `gristmill report`: what the catalog knows, as a page to look at.
//!
//! Owns where the page goes, and that nothing of anybody's is overwritten by it. What is on it is the library's affair.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gristmill_dedup::report::{ReportOptions, html};
use gristmill_store::WallClock;
use serde_json::json;

use super::completeness::Completeness;
use super::root_paths::with_path;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::files;
use crate::output::{bytes, path};

const EXAMPLES: &str = "\
One file that needs nothing else: it runs no script and loads nothing, so it can be mailed and kept. An earlier report \
is replaced; any other file that is there is left alone, unless --force is given. No disk is read but for the database.

Examples:
  gristmill report --html duplicates.html
  gristmill report --html - | ssh nas 'cat > /srv/www/duplicates.html'";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file to write, or - for standard output
    #[arg(long, value_name = "FILE")]
    html: PathBuf,

    /// Replace the file whatever it is
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let aside = args.html.as_os_str() == "-";
    let target = if aside { None } else { Some(target(&args.html, args.force)?) };
    let (store, _) = context.open_catalog()?;
    let page = html(&store, &ReportOptions::new(WallClock::system().now()))?;
    match target {
        None => context.output.print(&json!({"html": page}), |_| page.clone())?,
        Some(target) => {
            files::replace(&target, page.as_bytes())
                .map_err(|error| Error::cannot_write(&target, &error, "--html names another file"))?;
            let mut object = with_path(&target);
            Completeness::new(&store, &[], &context.hints)?.insert_into(&mut object);
            object.insert("bytes".to_owned(), json!(page.len()));
            context.output.summary(&object, Outcome::Done, |_| {
                format!("wrote {} ({})", path(&target), bytes(page.len() as u64))
            })?;
        }
    }
    Ok(Outcome::Done)
}

/// Where it goes: what a link points at, not the link. Refused when somebody else's file is there.
fn target(file: &Path, force: bool) -> Result<PathBuf, Error> {
    let refused = |why: &str| Err(Error::Setting(format!("{} {why}", path(file))));
    let found = match std::fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return crate::settings::absolute(file),
        Err(error) => return refused(&format!("cannot be written: {error}")),
        Ok(found) => found,
    };
    match () {
        () if found.is_dir() => refused("is a folder; name a file in it"),
        () if !found.is_file() => refused("is no file; `--html -` writes to standard output"),
        () if !force && !is_report(file).unwrap_or(false) => {
            refused("is there already and is no report of ours; --force replaces it")
        }
        () => Ok(std::fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf())),
    }
}

/// Whether a file is a page that was made here: it ends by saying so.
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
