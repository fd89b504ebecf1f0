//! `gristmill scan`: walks folders, hashes files that can be duplicates, and stores both in the catalog.
//!
//! Owns the options of a scan. `progress` shows the running scan and `summary` its result; `gristmill_dedup` scans.

mod progress;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gristmill_dedup::{Filter, ScanHandle, ScanMode, ScanOptions, ScanSummary, scan};
use gristmill_store::Store;
use gristmill_store::roots::Root;
use jiff::Timestamp;

use self::summary::ScanSummaryView;
use super::completeness::Completeness;
use super::confirm::confirm;
use super::value_parsers::{size, timestamp};
use crate::context::{Context, open_or_create, store_options};
use crate::error::{Error, Outcome};
use crate::output::{note, path};
use crate::settings::keys;
use crate::supervisor::with_progress;

const HELP: &str = "\
The first scan of a folder registers it as a root: the folder with everything below it.

Only files that can be duplicates are read: those with the same size as another file of any root. Of large files, the \
first and last blocks are compared before all of the content is read. No file is changed. If a scan is stopped or \
killed, the same command resumes it. A later scan reads only files that have changed.

Patterns match the path inside the scanned folder:
  *.tmp, cache     names at any depth
  build/*.o        a path from the scanned folder on
  ./cache, /cache  cache at the top of the scanned folder only
  /mnt/nas/tmp     an absolute path inside a scanned folder
  a/**/b           ** is any number of folders; * and ? do not match a slash
  {jpg,png} [ab]   alternatives, characters; \\* is a literal star
Patterns are case-sensitive unless --ignore-case is given. An excluded folder is excluded with everything below it. \
Filters apply to this scan only: a later scan without them includes the files again. Files of an earlier scan that no \
longer match are no longer listed; their hashes are kept. A pattern that cannot match anything is reported as a warning.

Sizes are numbers of bytes or have a unit: K, M, G, T, P and KiB, MiB, … are powers of 1024; kB, MB, … are powers of \
1000. 1.5G and \"10 MB\" are valid sizes.

Ctrl-C stops the scan and saves what was found within five seconds; a second Ctrl-C ends it at once.

Exit status:
  0    success
  1    folders or files could not be read (they are listed; the next scan tries them again), or a
       wrong argument, a missing folder, or a root that another process is scanning
  2    system failure: a full disk, a damaged database
  130  interrupted; what was found is saved

Examples:
  gristmill scan ~/Pictures
  gristmill scan /mnt/nas ~/Downloads --exclude '*.part' --min-size 1MiB
  gristmill scan /mnt/nas --mode walk
  gristmill scan --json | jq .reclaimable_bytes";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Folders to scan [default: all roots]
    #[arg(value_name = "FOLDER")]
    folders: Vec<PathBuf>,

    /// What to do: walk and hash (all), record files without reading them (walk), or hash files recorded before (hash)
    #[arg(long, value_parser = mode(), default_value = "all", hide_possible_values = true)]
    mode: ScanMode,

    /// Register new folders without asking
    #[arg(short, long)]
    yes: bool,

    /// Start over instead of resuming a stopped scan
    #[arg(long)]
    restart: bool,

    /// Hash all files, not only those that can be duplicates
    #[arg(long)]
    every_file: bool,

    /// Follow symbolic links below these roots, in this and later scans; --no-follow-links turns it off
    #[arg(long, overrides_with = "no_follow_links")]
    follow_links: bool,

    #[arg(long, hide = true)]
    no_follow_links: bool,

    /// Stay on the file system of the root
    #[arg(long)]
    one_file_system: bool,

    /// Accept that a folder that had files is now empty, or that its disk is no longer mounted
    #[arg(long)]
    allow_empty: bool,

    /// Scan only files that match; repeatable
    #[arg(long, value_name = "PATTERN", help_heading = "Filters")]
    include: Vec<String>,

    /// Skip files and folders that match; repeatable
    #[arg(long, value_name = "PATTERN", help_heading = "Filters")]
    exclude: Vec<String>,

    /// Match patterns without regard to case
    #[arg(long, help_heading = "Filters")]
    ignore_case: bool,

    /// Scan only files of at least this size
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Filters")]
    min_size: Option<u64>,

    /// Scan only files of at most this size
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Filters")]
    max_size: Option<u64>,

    /// Scan only files modified since: a date such as 2026-01-31, or a time ago such as 30d
    #[arg(long, value_name = "WHEN", value_parser = timestamp, help_heading = "Filters")]
    newer_than: Option<Timestamp>,

    /// Scan only files not modified since
    #[arg(long, value_name = "WHEN", value_parser = timestamp, help_heading = "Filters")]
    older_than: Option<Timestamp>,

    /// Skip names that begin with a dot
    #[arg(long, help_heading = "Filters")]
    skip_hidden: bool,

    /// Skip what .gitignore files exclude
    #[arg(long, help_heading = "Filters")]
    gitignore: bool,

    /// Hash algorithm: blake3, sha256, sha512 or sha3-256 [default: setting scan.hash, blake3]
    #[arg(long, value_name = "ALGORITHM", help_heading = "Performance")]
    hash: Option<String>,

    /// Number of workers that walk and read [default: setting scan.workers, auto]
    #[arg(long, value_name = "N", help_heading = "Performance")]
    workers: Option<String>,

    /// Maximum read rate per second, such as 200MiB/s [default: setting scan.io_limit, none]
    #[arg(long, value_name = "SIZE", help_heading = "Performance")]
    io_limit: Option<String>,
}

fn mode() -> impl TypedValueParser<Value = ScanMode> {
    PossibleValuesParser::new(["all", "walk", "hash"]).map(|mode| match mode.as_str() {
        "walk" => ScanMode::Walk,
        "hash" => ScanMode::Hash,
        _ => ScanMode::All,
    })
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    context.flags.add(&keys::SCAN_HASH, "--hash", args.hash.as_ref());
    context.flags.add(&keys::SCAN_WORKERS, "--workers", args.workers.as_ref());
    context.flags.add(&keys::SCAN_IO_LIMIT, "--io-limit", args.io_limit.as_ref());
    let settings = context.settings()?;
    let mut options = ScanOptions::default();
    options.mode = args.mode;
    options.algorithm = settings.scan.algorithm;
    options.every_file = args.every_file;
    options.restart = args.restart;
    options.one_file_system = args.one_file_system;
    options.allow_empty = args.allow_empty;
    options.filter = filter(args)?;
    options.workers = settings.scan.workers;
    options.io_limit = settings.scan.io_limit;
    options.top = if context.output.is_json() { 0 } else { MAX_SHOWN_GROUPS };
    options.filter.check()?;
    // Checked before the database is created, so that a misspelled folder leaves no file behind.
    let folders = resolve(&args.folders)?;
    let store = match settings.database.try_exists() {
        Ok(false) => None,
        _ => Some(store_options(&settings).open(&settings.database)?),
    };
    if !confirm_registration(store.as_ref(), &folders, args.yes)? {
        note("nothing was registered or scanned");
        return Ok(Outcome::UserError);
    }
    let store = store.map_or_else(|| open_or_create(&settings), Ok)?;
    let roots = roots(args, &store, &folders, context)?;
    let paths: Vec<_> = roots.iter().map(|root| root.path.clone()).collect();
    for (pattern, reason) in options.filter.unmatchable(&paths) {
        tracing::warn!("the pattern {pattern:?} matches nothing: {reason}");
    }
    scan_and_report(&store, &roots, &options, context)
}

/// Scans, shows progress and prints the result. Shared with `refresh`.
pub(crate) fn scan_and_report(
    store: &Store,
    roots: &[Root],
    options: &ScanOptions,
    context: &Context,
) -> Result<Outcome, Error> {
    let control = Arc::new(ScanHandle::default());
    let cancelled = control.clone();
    let result = with_progress(
        context.quiet,
        move || cancelled.cancel(),
        progress::lines(&control),
        || scan(store, roots, options, &control),
    )?;
    let summary = result?;
    let outcome = match summary {
        ScanSummary { interrupted: true, .. } => Outcome::Interrupted,
        ScanSummary { errors: 1.., .. } | ScanSummary { failed_roots: 1.., .. } => Outcome::UserError,
        _ => Outcome::Done,
    };
    let completeness = match summary.interrupted {
        true => None,
        false => Some(Completeness::new(store, &[], &context.hints)?),
    };
    let view = ScanSummaryView {
        summary: &summary,
        roots: &store.roots().list()?,
        mode: options.mode,
        hints: &context.hints,
        completeness: completeness.as_ref(),
    };
    context.output.summary(&view.json()?, outcome, |output| match output.is_quiet() {
        true => format!("error: {}", view.unreadable().join("\n")),
        false => view.text(),
    })
}

/// Number of duplicate groups shown at the end of a scan.
const MAX_SHOWN_GROUPS: usize = 5;

/// Resolves the folders to scan. A missing folder whose name was a mode of earlier versions is reported with `--mode`.
fn resolve(folders: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mode = match folders.first().and_then(|folder| folder.to_str()) {
        Some("all") => "all",
        Some("folders") => "walk",
        Some("files") => "hash",
        _ => "",
    };
    if let Some(folder) = folders.first().filter(|folder| !mode.is_empty() && !Path::exists(folder)) {
        return Err(Error::Setting(format!(
            "there is no folder {}; for a mode, write `gristmill scan --mode {mode}`",
            path(folder)
        )));
    }
    Ok(folders.iter().map(|folder| gristmill_dedup::roots::resolve(folder)).collect::<Result<_, _>>()?)
}

fn filter(args: &Args) -> Result<Filter, Error> {
    let nanoseconds = |time: Option<Timestamp>| -> Result<Option<i64>, Error> {
        let range = |_| Error::Setting("the date is out of the range of file times".to_owned());
        time.map(|time| i64::try_from(time.as_nanosecond()).map_err(range)).transpose()
    };
    let mut filter = Filter::default();
    filter.include = args.include.clone();
    filter.exclude = args.exclude.clone();
    filter.ignore_case = args.ignore_case;
    filter.min_size = args.min_size;
    filter.max_size = args.max_size;
    filter.newer_than = nanoseconds(args.newer_than)?;
    filter.older_than = nanoseconds(args.older_than)?;
    filter.skip_hidden = args.skip_hidden;
    filter.gitignore = args.gitignore;
    Ok(filter)
}

/// Asks whether to register new folders. Asks before the database is created, so that "no" leaves no file behind.
/// Without a terminal, naming the folders on the command line is consent.
fn confirm_registration(store: Option<&Store>, folders: &[PathBuf], yes: bool) -> Result<bool, Error> {
    let known = store.map_or_else(|| Ok(Vec::new()), |store| store.roots().list())?;
    if folders.is_empty() && known.is_empty() {
        let text = "no folder has been scanned yet; name one: `gristmill scan FOLDER`";
        return Err(Error::Setting(text.to_owned()));
    }
    let is_new = |folder: &&PathBuf| known.iter().all(|root| root.path != **folder);
    let new: Vec<String> = folders.iter().filter(is_new).map(path).collect();
    if yes || new.is_empty() {
        return Ok(true);
    }
    let question = format!("Register {} and scan? No file is changed.", new.join(", "));
    Ok(confirm(&question, true)?.unwrap_or(true))
}

/// Returns the roots to scan and registers new ones.
fn roots(args: &Args, store: &Store, folders: &[PathBuf], context: &Context) -> Result<Vec<Root>, Error> {
    let mut roots = if folders.is_empty() { store.roots().list()? } else { Vec::new() };
    for folder in folders {
        if let Some(root) = store.roots().find(folder)? {
            roots.push(root);
            continue;
        }
        roots.push(store.roots().register(folder)?);
        if !context.quiet {
            note(&format!("registered {}", path(folder)));
        }
    }
    if args.follow_links || args.no_follow_links {
        for root in &mut roots {
            store.roots().follow_links(root.id, args.follow_links)?;
            root.follow_links = args.follow_links;
        }
    }
    Ok(roots)
}
