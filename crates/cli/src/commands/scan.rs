//! `gristmill scan`: walks folders, hashes files that can be duplicates, and stores both in the catalog.
//!
//! Owns the options of a scan. `inputs` reads which folders and files to scan, `progress` shows the running scan and
//! `summary` its result; `gristmill_dedup` scans.

mod inputs;
mod progress;
mod summary;

use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gristmill_dedup::{Filter, ScanHandle, ScanMode, ScanOptions, ScanSummary, scan};
use gristmill_store::Store;
use gristmill_store::catalog::GroupQuery;
use gristmill_store::roots::Root;
use jiff::Timestamp;

use self::inputs::Inputs;
use self::summary::ScanSummaryView;
use super::completeness::Completeness;
use super::confirm::confirm;
use super::value_parsers::{nanoseconds, size, timestamp};
use crate::context::{Context, open_or_create, store_options};
use crate::error::{Error, Outcome};
use crate::output::{note, path};
use crate::settings::keys;
use crate::supervisor::with_progress;
use crate::units::count_of;

const HELP: &str = "\
The first scan of a folder registers it as a root: the folder with everything below it.

A file can be named instead of a folder, also in a list (--files-from). Only the named files of its root are examined \
then, and duplicates are searched among them and all files scanned before. A root of which only named files were \
scanned is reported as not scanned completely. A file in no root registers its folder as a root, and later scans \
without arguments scan all of that folder. --follow-links applies to the whole root of a named file, also in later \
scans. Names are relative to the current folder; a name without a file is an error, unless the catalog has the file, \
which is then marked missing. A list with a NUL byte has NUL bytes between its names (find -print0), any other list \
has line ends.

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
Patterns are case-sensitive unless --ignore-case is given, which applies to .gitignore files too. An excluded folder \
is excluded with everything below it. Filters apply to this scan only: a later scan without them includes the files \
again. Files of an earlier scan that no longer match are no longer listed; their hashes are kept. A pattern that \
cannot match anything is reported as a warning.

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
  gristmill scan photo.jpg video.mp4
  find ~/Pictures -newer stamp -type f -print0 | gristmill scan --files-from -
  gristmill scan --json | jq .reclaimable_bytes";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Folders or files to scan [default: all roots]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Scan the files that FILE lists, or standard input for -
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,

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

    /// Scan only files at most N levels deep: 1 for files directly in a root
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Filters")]
    max_depth: Option<u32>,

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
    let mut inputs = Inputs::read(&args.paths, args.files_from.as_deref())?;
    if args.mode == ScanMode::Hash && inputs.named.is_some() {
        let text = "--mode hash reads all files that were recorded before, so it cannot be used with named files; \
            omit it, or the files";
        return Err(Error::Setting(text.to_owned()));
    }
    let store = match settings.database.try_exists() {
        Ok(false) => None,
        _ => Some(store_options(&settings).open(&settings.database)?),
    };
    inputs.take_known_files(store.as_ref())?;
    let known = store.as_ref().map_or_else(|| Ok(Vec::new()), |store| store.roots().list())?;
    let new = inputs.new_roots(&known)?;
    if !confirm_registration(&new, &inputs.folders, args.yes)? {
        note("nothing was registered or scanned");
        return Ok(Outcome::UserError);
    }
    let store = store.map_or_else(|| open_or_create(&settings), Ok)?;
    for folder in &new {
        store.roots().register(folder)?;
        if !context.quiet {
            note(&format!("registered {}", path(folder)));
        }
    }
    let all = store.roots().list()?;
    let named = inputs.named.as_ref().map(|named| named.roots(&all)).unwrap_or_default();
    let is_whole = |root: &Root| inputs.is_all_roots || inputs.folders.contains(&root.path);
    if args.follow_links || args.no_follow_links {
        for root in all.iter().filter(|root| is_whole(root) || named.contains(&root.id)) {
            store.roots().follow_links(root.id, args.follow_links)?;
        }
    }
    let roots: Vec<Root> = all.iter().filter(|root| is_whole(root)).cloned().collect();
    let scanned = all.iter().filter(|root| is_whole(root) || named.contains(&root.id));
    let paths: Vec<_> = scanned.map(|root| root.path.clone()).collect();
    options.named = inputs.named;
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
    // Other scans do not bring the groups up to date.
    let counts_groups = !summary.interrupted && matches!(options.mode, ScanMode::All | ScanMode::Hash);
    let ignored_groups = match counts_groups {
        true => store.catalog().groups(&GroupQuery::default().limit(0))?.ignored,
        false => 0,
    };
    let view = ScanSummaryView {
        summary: &summary,
        roots: &store.roots().list()?,
        mode: options.mode,
        hints: &context.hints,
        completeness: completeness.as_ref(),
        ignored_groups,
    };
    context.output.summary(&view.json()?, outcome, |output| match output.is_quiet() {
        true => format!("error: {}", view.unreadable().join("\n")),
        false => view.text(),
    })
}

/// Number of duplicate groups shown at the end of a scan.
const MAX_SHOWN_GROUPS: usize = 5;

fn filter(args: &Args) -> Result<Filter, Error> {
    let mut filter = Filter::default();
    filter.include = args.include.clone();
    filter.exclude = args.exclude.clone();
    filter.ignore_case = args.ignore_case;
    filter.min_size = args.min_size;
    filter.max_size = args.max_size;
    filter.newer_than = args.newer_than.map(nanoseconds).transpose()?;
    filter.older_than = args.older_than.map(nanoseconds).transpose()?;
    filter.max_depth = args.max_depth;
    filter.skip_hidden = args.skip_hidden;
    filter.gitignore = args.gitignore;
    Ok(filter)
}

/// Asks whether to register new folders. Asks before the database is created, so that "no" leaves no file behind.
/// Without a terminal, naming the folders or files is consent. Folders that are not named contain named files.
fn confirm_registration(new: &[PathBuf], named: &[PathBuf], yes: bool) -> Result<bool, Error> {
    if yes || new.is_empty() {
        return Ok(true);
    }
    let (whole, of_files): (Vec<_>, Vec<_>) = new.iter().partition(|folder| named.contains(folder));
    let names = |folders: &[&PathBuf]| {
        let mut shown: Vec<String> = folders.iter().take(MAX_SHOWN_FOLDERS).map(path).collect();
        if let more @ 1.. = folders.len() - shown.len() {
            shown.push(count_of(more as u64, "more folder"));
        }
        shown.join(", ")
    };
    let whole = (!whole.is_empty()).then(|| format!("{} and scan", names(&whole)));
    let of_files = (!of_files.is_empty()).then(|| format!("{} and scan only the named files now", names(&of_files)));
    let parts = whole.into_iter().chain(of_files).collect::<Vec<_>>();
    Ok(confirm(&format!("Register {}? No file is changed.", parts.join(", and ")), true)?.unwrap_or(true))
}

/// Number of new folders that are named in the question whether to register them.
const MAX_SHOWN_FOLDERS: usize = 5;
