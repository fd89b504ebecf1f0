//! `gristmill scan`: finds duplicates.
//!
//! Owns what was asked for, and how the end is told. How far it has come is shown by `progress`; what is done until
//! then is the scanner's affair.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gristmill_dedup::{Control, Filter, Mode, Options, Summary, scan};
use gristmill_store::Store;
use gristmill_store::catalog::{GroupQuery, Groups};
use gristmill_store::roots::Root;
use jiff::Timestamp;

use super::progress::Shown;
use crate::context::{Context, open_or_create};
use crate::error::{Error, Outcome};
use crate::output::{aside, bytes, plural};
use crate::settings::value::{self, DURATIONS};
use crate::settings::{Raw, keys};
use crate::signals::Listener;

const EXAMPLES: &str = "\
A folder that is scanned for the first time is registered as a root; then and later all below it belongs to it. \
Only files that can be duplicates are read: those that share their size with another file of any root, then \
their first and last blocks, then all of it. No file is ever changed.

Killed or stopped at any instant, the same command goes on where it was. A later scan reads only what has \
changed. Without a folder all roots are scanned.

Patterns: *.tmp is for names at any depth, build/*.o for paths from the root on. A folder that is left out is left \
out with all below it. What an earlier scan knew of files that are left out now is forgotten.

Ctrl-C: what was found is saved within five seconds, and a second one ends it at once.

Exit codes:
  0    done; files that could not be read are counted, and tried again by the next scan
  1    a wrong argument, a folder that is not there, a root that another process scans
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

    /// Believe that a root that had files is empty now
    #[arg(long)]
    allow_empty: bool,

    /// Only files that match; may be given several times
    #[arg(long, value_name = "PATTERN", help_heading = "Which files")]
    include: Vec<String>,

    /// No files and folders that match; may be given several times
    #[arg(long, value_name = "PATTERN", help_heading = "Which files")]
    exclude: Vec<String>,

    /// Only files of at least this size
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Which files")]
    min_size: Option<u64>,

    /// Only files of at most this size
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Which files")]
    max_size: Option<u64>,

    /// Only files changed since: a date such as 2026-01-31, or 30d for the last thirty days
    #[arg(long, value_name = "WHEN", value_parser = moment, help_heading = "Which files")]
    newer_than: Option<Timestamp>,

    /// Only files not changed since
    #[arg(long, value_name = "WHEN", value_parser = moment, help_heading = "Which files")]
    older_than: Option<Timestamp>,

    /// No names that begin with a dot
    #[arg(long, help_heading = "Which files")]
    skip_hidden: bool,

    /// Nothing that .gitignore files name
    #[arg(long, help_heading = "Which files")]
    gitignore: bool,
}

pub(crate) fn run(args: Args, context: &mut Context) -> Result<Outcome, Error> {
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
    let options = Options {
        mode,
        algorithm: settings.scan.algorithm,
        every_file: args.every_file,
        restart: args.restart,
        one_file_system: args.one_file_system,
        allow_empty: args.allow_empty,
        filter: filter(&args)?,
        workers: settings.scan.workers,
        io_limit: settings.scan.io_limit.map(|rate| rate as u64),
    };
    // Before a database is made: a mistyped folder leaves nothing behind.
    let folders =
        folders.iter().map(|path| gristmill_dedup::roots::resolve(path)).collect::<Result<Vec<_>, _>>()?;
    let store = open_or_create(&settings)?;
    let Some(roots) = roots(&args, &store, &folders, context)? else {
        aside("nothing was registered, nothing was scanned");
        return Ok(Outcome::ForTheUser);
    };
    scan_and_tell(&store, &roots, &options, context)
}

/// Does it, shows how far it has come, and says what was found. Shared with `refresh`.
pub(crate) fn scan_and_tell(
    store: &Store,
    roots: &[Root],
    options: &Options,
    context: &Context,
) -> Result<Outcome, Error> {
    let control = Arc::new(Control::default());
    let signals = Listener::start(1, {
        let control = control.clone();
        move || control.stop()
    })?;
    let shown = Shown::start(&control, context.quiet);
    let result = scan(store, roots, options, &control);
    shown.end();
    signals.stop();
    let summary = result?;
    let top = match summary.duplicate_groups {
        0 => Groups::default(),
        _ => store.catalog().groups(&GroupQuery { limit: TOP, ..GroupQuery::default() })?,
    };
    context.output.say(&summary, |_| tell(&summary, &top, store, options))?;
    Ok(if summary.interrupted { Outcome::Interrupted } else { Outcome::Done })
}

/// So many groups are shown at the end of a scan.
const TOP: usize = 5;

/// What to do, and where.
fn asked(words: &[OsString]) -> Result<(Mode, Vec<PathBuf>), Error> {
    let mode = match words.first().and_then(|word| word.to_str()) {
        Some("all") => Some(Mode::All),
        Some("folders") => Some(Mode::Folders),
        Some("files") => Some(Mode::Files),
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
    Ok((mode.unwrap_or(Mode::All), rest.iter().map(PathBuf::from).collect()))
}

fn filter(args: &Args) -> Result<Filter, Error> {
    let nanoseconds = |moment: Option<Timestamp>| -> Result<Option<i64>, Error> {
        let range = |_| Error::Setting("the date is beyond what a file can have".to_owned());
        moment.map(|moment| i64::try_from(moment.as_nanosecond()).map_err(range)).transpose()
    };
    Ok(Filter {
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        min_size: args.min_size,
        max_size: args.max_size,
        newer_than: nanoseconds(args.newer_than)?,
        older_than: nanoseconds(args.older_than)?,
        skip_hidden: args.skip_hidden,
        gitignore: args.gitignore,
    })
}

/// The roots to scan, registered. Nothing when the user would not have it.
fn roots(
    args: &Args,
    store: &Store,
    folders: &[PathBuf],
    context: &Context,
) -> Result<Option<Vec<Root>>, Error> {
    let mut roots = Vec::new();
    if folders.is_empty() {
        roots = store.roots().list()?;
        if roots.is_empty() {
            let text = "no folder is registered yet; name one: gristmill scan FOLDER";
            return Err(Error::Setting(text.to_owned()));
        }
    }
    let mut new = Vec::new();
    for folder in folders {
        match store.roots().at(folder)? {
            Some(root) => roots.push(root),
            None => new.push(folder),
        }
    }
    if !new.is_empty() {
        if !(args.yes || ask(&new)?) {
            return Ok(None);
        }
        for folder in new {
            if !context.quiet {
                aside(&format!("{} is registered", folder.display()));
            }
            roots.push(store.roots().register(folder)?);
        }
    }
    if args.follow_links || args.no_follow_links {
        for root in &mut roots {
            store.roots().follow_links(root.id, args.follow_links)?;
            root.follow_links = args.follow_links;
        }
    }
    Ok(Some(roots))
}

/// Asks on a terminal. Where nobody can answer, the command line was answer enough.
fn ask(new: &[&PathBuf]) -> Result<bool, Error> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(true);
    }
    let names = new.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let mut answer = String::new();
    let asked = write!(io::stderr(), "Register {names} and scan? No file is changed. [Y/n] ")
        .and_then(|()| io::stdin().read_line(&mut answer));
    asked.map_err(|error| Error::System(format!("cannot ask: {error}; --yes asks nothing")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "" | "y" | "yes"))
}

fn tell(summary: &Summary, top: &Groups, store: &Store, options: &Options) -> String {
    let mut lines = Vec::new();
    let Summary { folders, files, seconds, .. } = summary;
    if summary.interrupted {
        lines.push("stopped; what was found is saved, and the same command goes on from here".to_owned());
    }
    lines.push(format!(
        "{} in {}, {}; read {} ({}) in {}",
        plural(*files, "file"),
        plural(*folders, "folder"),
        bytes(summary.bytes),
        plural(summary.read_files, "file"),
        bytes(summary.read_bytes),
        took(seconds.total),
    ));
    let changes: Vec<String> = [
        (summary.new_files, "new"),
        (summary.changed_files, "changed"),
        (summary.removed_files, "removed"),
        (summary.returned_files, "back again"),
        (summary.forgotten_files, "left out now"),
        (summary.rehashed_files, "hashed again, because the algorithm was changed"),
    ]
    .iter()
    .filter(|(number, _)| *number > 0)
    .map(|(number, what)| format!("{number} {what}"))
    .collect();
    if !changes.is_empty() {
        lines.push(changes.join(", "));
    }
    if summary.errors > 0 {
        lines.push(format!("{} could not be read:", plural(summary.errors, "item")));
        lines.extend(summary.error_samples.iter().map(|sample| format!("  {sample}")));
        if summary.errors > summary.error_samples.len() as u64 {
            lines.push("  (-v tells of each)".to_owned());
        }
    }
    if matches!(options.mode, Mode::All | Mode::Files) && !summary.interrupted {
        lines.push(String::new());
        lines.push(duplicates(summary, top, store));
    }
    lines.join("\n")
}

fn duplicates(summary: &Summary, top: &Groups, store: &Store) -> String {
    if summary.duplicate_groups == 0 {
        return "no duplicates".to_owned();
    }
    let roots = store.roots().list().unwrap_or_default();
    let mut text = format!(
        "{} of duplicates, {}: {} could be had back",
        plural(summary.duplicate_groups, "group"),
        plural(summary.duplicate_files, "file"),
        bytes(summary.reclaimable_bytes)
    );
    for group in &top.groups {
        let Some(first) = group.members.first() else { continue };
        let root = roots.iter().find(|root| root.id == first.root);
        let path = root.map_or_else(PathBuf::new, |root| root.path.join(&first.path));
        text.push_str(&format!(
            "\n  {:>10}  {} of {}: {}",
            bytes(group.reclaimable),
            plural(group.copies, "copy").replace("copys", "copies"),
            bytes(group.size),
            crate::output::path(&path)
        ));
    }
    text.push_str("\nAll of them: gristmill dupes");
    text
}

fn took(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 60.0 => format!("{seconds:.1} s"),
        seconds => {
            let whole = seconds as u64;
            format!("{}:{:02} min", whole / 60, whole % 60)
        }
    }
}

/// A size on the command line.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let size = value::size(text).map(|size| size as u64).or_else(|| text.parse().ok());
    size.ok_or_else(|| "legal: a size such as 64KiB, 10MiB or 2GiB, or a number of bytes".to_owned())
}

/// A date, a moment, or how long ago.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    let legal = format!(
        "legal: a date such as 2026-01-31 (UTC), a moment such as 2026-01-31T12:00:00Z, or {DURATIONS}, for so long ago"
    );
    if let Some(ago) = value::duration(text) {
        let ago = jiff::SignedDuration::try_from(ago).map_err(|_| legal.clone())?;
        return Timestamp::now().checked_sub(ago).map_err(|_| legal);
    }
    let day = || {
        let date: jiff::civil::Date = text.parse().ok()?;
        Some(date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    text.parse().ok().or_else(day).ok_or(legal)
}
