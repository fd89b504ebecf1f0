//! `gristmill scan`: finds duplicates.
//!
//! Owns what was asked for. How far it has come is shown by `progress`, how it ended by `told`; what is done until
//! then is the scanner's affair.

mod progress;
mod summary;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
use crate::settings::{Raw, keys};
use crate::signals::Listener;

const EXAMPLES: &str = "\
A folder that is scanned for the first time is registered as a root; then and later all below it belongs to it. \
Only files that can be duplicates are read: those that share their size with another file of any root, then \
their first and last blocks, then all of it. No file is ever changed.

Killed or stopped at any instant, the same command goes on where it was. A later scan reads only what has \
changed. Without a folder all roots are scanned.

Patterns are matched against the path inside the scanned folder:
  *.tmp, cache     names at any depth
  build/*.o        a path from the scanned folder on
  ./cache, /cache  cache at the top of the scanned folder, not below
  /mnt/nas/tmp     an absolute path inside a scanned folder
  a/**/b           ** stands for any number of folders; * and ? for no slash
  {jpg,png} [ab]   alternatives, characters; \\* is a star itself
Upper and lower case differ unless --ignore-case is given. A folder that is left out is left out with all below it. \
Files of an earlier scan that no longer match are not listed any more; their hashes are kept. A pattern that cannot match is warned about.

Sizes are numbers of bytes, or have a unit: K, M, G, T, P and KiB, MiB, … are powers of 1024, kB, MB, … powers of 1000; \
1.5G and \"10 MB\" are sizes, too.

Ctrl-C: what was found is saved within five seconds, and a second one ends it at once.

Exit codes:
  0    done
  1    folders or files could not be read: they are listed, the rest is done, the next scan tries
       again; or a wrong argument, a folder that is not there, a root that another process scans
  2    the system failed: a full disk, a damaged database
  130  interrupted, with what was found saved

Examples:
  gristmill scan ~/Pictures
  gristmill scan /mnt/nas ~/Downloads --exclude '*.part' --min-size 1MiB
  gristmill scan folders /mnt/nas          look what is there, read nothing
  gristmill scan --json | jq .reclaimable_bytes";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = "gristmill scan [OPTIONS] [all|folders|files] [FOLDER]...")]
pub(crate) struct Args {
    /// What to do, then the folders: `all` (walk and read; the default), `folders` (walk only) or `files` (read
    /// what was walked before). A folder of one of these names is written ./all
    #[arg(value_name = "FOLDER")]
    words: Vec<OsString>,

    /// Register new folders without asking
    #[arg(short, long)]
    yes: bool,

    /// Begin anew instead of going on with a scan that was stopped
    #[arg(long)]
    restart: bool,

    /// Hash all files, not only those that can be duplicates
    #[arg(long)]
    every_file: bool,

    /// How contents are hashed: blake3, sha256, sha512 or sha3-256 [default: the setting scan.hash]
    #[arg(long, value_name = "ALGORITHM")]
    hash: Option<String>,

    /// How many workers walk and read [default: the setting scan.workers]
    #[arg(long, value_name = "NUMBER")]
    workers: Option<String>,

    /// Read at most so much in a second, such as 200MiB/s
    #[arg(long, value_name = "SIZE")]
    io_limit: Option<String>,

    /// Follow links below these roots, now and in later scans; --no-follow-links ends it
    #[arg(long, overrides_with = "no_follow_links")]
    follow_links: bool,

    #[arg(long, hide = true)]
    no_follow_links: bool,

    /// Do not leave the root's file system
    #[arg(long)]
    one_file_system: bool,

    /// Accept that a root that had files is empty now, or that its disk is no longer mounted
    #[arg(long)]
    allow_empty: bool,

    /// Only files that match; may be given several times
    #[arg(long, value_name = "PATTERN", help_heading = "Which files")]
    include: Vec<String>,

    /// No files and folders that match; may be given several times
    #[arg(long, value_name = "PATTERN", help_heading = "Which files")]
    exclude: Vec<String>,

    /// Upper and lower case are the same in these patterns
    #[arg(long, help_heading = "Which files")]
    ignore_case: bool,

    /// Only files of at least this size
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Which files")]
    min_size: Option<u64>,

    /// Only files of at most this size
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Which files")]
    max_size: Option<u64>,

    /// Only files changed since: a date such as 2026-01-31, or 30d for the last thirty days
    #[arg(long, value_name = "WHEN", value_parser = timestamp, help_heading = "Which files")]
    newer_than: Option<Timestamp>,

    /// Only files not changed since
    #[arg(long, value_name = "WHEN", value_parser = timestamp, help_heading = "Which files")]
    older_than: Option<Timestamp>,

    /// No names that begin with a dot
    #[arg(long, help_heading = "Which files")]
    skip_hidden: bool,

    /// Nothing that .gitignore files name
    #[arg(long, help_heading = "Which files")]
    gitignore: bool,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    for (key, flag, given) in [
        (&keys::SCAN_HASH, "--hash", &args.hash),
        (&keys::SCAN_WORKERS, "--workers", &args.workers),
        (&keys::SCAN_IO_LIMIT, "--io-limit", &args.io_limit),
    ] {
        if let Some(text) = given {
            context.flags.values.insert(key.name, (flag, Raw::One(text.into())));
        }
    }
    let (mode, folders) = asked(&args.words)?;
    let settings = context.settings()?;
    let options = ScanOptions {
        mode,
        algorithm: settings.scan.algorithm,
        every_file: args.every_file,
        restart: args.restart,
        one_file_system: args.one_file_system,
        allow_empty: args.allow_empty,
        filter: filter(args)?,
        workers: settings.scan.workers,
        io_limit: settings.scan.io_limit,
        top: if context.output.is_json() { 0 } else { MAX_SHOWN_GROUPS },
    };
    options.filter.check()?;
    // Before a database is made: a mistyped folder leaves nothing behind.
    let folders =
        folders.iter().map(|path| gristmill_dedup::roots::resolve(path)).collect::<Result<Vec<_>, _>>()?;
    let store = match settings.database.try_exists() {
        Ok(false) => None,
        _ => Some(store_options(&settings).open(&settings.database)?),
    };
    if !confirm_registration(store.as_ref(), &folders, args.yes)? {
        note("nothing was registered, nothing was scanned");
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

/// Does it, shows how far it has come, and says what was found. Shared with `refresh`.
pub(crate) fn scan_and_report(
    store: &Store,
    roots: &[Root],
    options: &ScanOptions,
    context: &Context,
) -> Result<Outcome, Error> {
    let control = Arc::new(ScanHandle::default());
    let signals = Listener::start(1, {
        let control = control.clone();
        move || control.cancel()
    })?;
    let shown = progress::show(&control, context.quiet);
    let result = scan(store, roots, options, &control);
    shown.end();
    signals.stop();
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
    let told = ScanSummaryView {
        summary: &summary,
        roots: &store.roots().list()?,
        mode: options.mode,
        hints: &context.hints,
        completeness: completeness.as_ref(),
    };
    context.output.summary(&told.json()?, outcome, |output| match output.is_quiet() {
        true => format!("error: {}", told.unreadable().join("\n")),
        false => told.text(),
    })?;
    Ok(outcome)
}

/// So many groups are shown at the end of a scan.
const MAX_SHOWN_GROUPS: usize = 5;

/// What to do, and where.
fn asked(words: &[OsString]) -> Result<(ScanMode, Vec<PathBuf>), Error> {
    let mode = match words.first().and_then(|word| word.to_str()) {
        Some("all") => Some(ScanMode::All),
        Some("folders") => Some(ScanMode::Walk),
        Some("files") => Some(ScanMode::Hash),
        _ => None,
    };
    let rest = &words[usize::from(mode.is_some())..];
    if let (Some(_), [], Some(word)) = (mode, rest, words.first())
        && Path::new(word).is_dir()
    {
        let word = word.display();
        return Err(Error::Setting(format!(
            "is {word} the folder, or what to do? Write `gristmill scan ./{word}` for the folder, \
             `gristmill scan {word} FOLDER` for the other"
        )));
    }
    Ok((mode.unwrap_or(ScanMode::All), rest.iter().map(PathBuf::from).collect()))
}

fn filter(args: &Args) -> Result<Filter, Error> {
    let nanoseconds = |moment: Option<Timestamp>| -> Result<Option<i64>, Error> {
        let range = |_| Error::Setting("the date is beyond what a file can have".to_owned());
        moment.map(|moment| i64::try_from(moment.as_nanosecond()).map_err(range)).transpose()
    };
    Ok(Filter {
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        ignore_case: args.ignore_case,
        min_size: args.min_size,
        max_size: args.max_size,
        newer_than: nanoseconds(args.newer_than)?,
        older_than: nanoseconds(args.older_than)?,
        skip_hidden: args.skip_hidden,
        gitignore: args.gitignore,
    })
}

/// Whether folders that are not registered yet are to be. Asked before a database is made: who says no leaves nothing
/// behind. Where nobody can answer, the command line was answer enough.
fn confirm_registration(store: Option<&Store>, folders: &[PathBuf], yes: bool) -> Result<bool, Error> {
    let known = store.map_or_else(|| Ok(Vec::new()), |store| store.roots().list())?;
    if folders.is_empty() && known.is_empty() {
        let text = "no folder is registered yet; name one: `gristmill scan FOLDER`";
        return Err(Error::Setting(text.to_owned()));
    }
    let is_new = |folder: &&PathBuf| known.iter().all(|root| root.path != **folder);
    let new: Vec<String> = folders.iter().filter(is_new).map(|folder| path(folder)).collect();
    if yes || new.is_empty() {
        return Ok(true);
    }
    let question = format!("Register {} and scan? No file is changed.", new.join(", "));
    Ok(confirm(&question, true)?.unwrap_or(true))
}

/// The roots to scan, registered.
fn roots(args: &Args, store: &Store, folders: &[PathBuf], context: &Context) -> Result<Vec<Root>, Error> {
    let mut roots = if folders.is_empty() { store.roots().list()? } else { Vec::new() };
    for folder in folders {
        if let Some(root) = store.roots().at(folder)? {
            roots.push(root);
            continue;
        }
        roots.push(store.roots().register(folder)?);
        if !context.quiet {
            note(&format!("{} is registered", path(folder)));
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
