//! `gristmill roots`: lists and removes roots, the folders that scans have registered.

use std::path::{Path, PathBuf};

use gristmill_store::Store;
use gristmill_store::roots::Root;
use serde_json::{Map, Value, json};

use super::confirm::confirm;
use super::paging;
use super::root_paths::with_path;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::output::{Output, note, path, sanitize};
use crate::units::{bytes, count_of, file_time, thousands, time};

const HELP: &str = "\
A root is a folder you have scanned, with everything below it. Without a subcommand, the roots are listed.

Examples:
  gristmill roots
  gristmill roots --json | jq -r '.items[] | select(.last_scanned_at == null) | .path'
  gristmill roots remove ~/Pictures";

const LIST: &str = "\
Counts and filters are those of the last scan that finished; a scan of named files changes only the counts. If a root \
is inside another root, its files are counted only there. A file with several hard links counts once in the size.

Examples:
  gristmill roots list
  gristmill roots list --json | jq -r '.items[] | select(.last_scanned_at == null) | .path'";

const REMOVE: &str = "\
Deletes the catalog records of the root. No file is changed; scan the folder again to add it back.

Examples:
  gristmill roots remove ~/Pictures
  gristmill roots remove nas --yes";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the roots with their counts, filters and last scan
    #[command(after_help = LIST)]
    List,
    /// Remove a root from the catalog; no file is changed
    #[command(after_help = REMOVE)]
    Remove {
        /// Path or name of the root
        #[arg(value_name = "ROOT")]
        root: PathBuf,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    match &args.command {
        None | Some(Command::List) => list(context),
        Some(Command::Remove { root, yes }) => remove(context, root, *yes),
    }
}

fn list(context: &Context) -> Result<Outcome, Error> {
    let (store, _) = context.open_catalog()?;
    let roots = store.roots().list()?;
    let unreadable = roots.iter().map(|root| unreadable(&store, root)).collect::<Result<Vec<_>, _>>()?;
    let items: Vec<Value> =
        roots.iter().zip(&unreadable).map(|(root, unreadable)| as_value(root, unreadable)).collect();
    context.output.print(&paging::whole(&items), |output| {
        table(output, &context.hints, &roots) + &scan_options_text(output, &roots) + &unreadable_text(&unreadable)
    })
}

/// Folders of a root that could not be read.
struct Unreadable {
    count: u64,
    /// The first of them, each with its reason.
    samples: Vec<String>,
}

fn unreadable(store: &Store, root: &Root) -> Result<Unreadable, Error> {
    const MAX_SAMPLES: usize = 5;
    let count = store.catalog().count_unreadable(root.id)?;
    let samples = if count > 0 { store.catalog().unreadable(root.id, MAX_SAMPLES)? } else { Vec::new() };
    let line = |(folder, reason): (PathBuf, String)| {
        let folder = if folder.as_os_str().is_empty() { root.path.clone() } else { root.path.join(folder) };
        format!("{}: {}", path(&folder), sanitize(&reason))
    };
    let count = u64::try_from(count).unwrap_or(0);
    Ok(Unreadable { count, samples: samples.into_iter().map(line).collect() })
}

fn unreadable_text(unreadable: &[Unreadable]) -> String {
    let count: u64 = unreadable.iter().map(|root| root.count).sum();
    if count == 0 {
        return String::new();
    }
    let samples = unreadable.iter().flat_map(|root| &root.samples);
    let lines: String = samples.map(|sample| format!("  {sample}\n")).collect();
    format!("\n{} could not be read:\n{lines}", count_of(count, "folder"))
}

fn as_value(root: &Root, unreadable: &Unreadable) -> Value {
    let mut object = with_path(&root.path);
    let more = [
        ("id", json!(root.id)),
        ("name", json!(root.name)),
        ("follow_links", json!(root.follow_links)),
        ("created_at", json!(root.created_at)),
        ("last_scanned_at", json!(root.last_scanned_at)),
        ("folders", json!(root.folders)),
        ("files", json!(root.files)),
        ("bytes", json!(root.bytes)),
        ("filters", filters(root).unwrap_or_default()),
        ("unreadable_folders", json!(unreadable.count)),
    ];
    object.extend(more.map(|(name, value)| (name.to_owned(), value)));
    object.into()
}

/// Returns the filters of the last scan as they were recorded.
fn filters(root: &Root) -> Option<Value> {
    serde_json::from_str(root.filters.as_deref()?).ok()
}

/// Returns the options of the last scan of a root that decide which files it sees, as flags of `scan`.
fn scan_options(root: &Root) -> String {
    let filters: Map<_, _> = filters(root).and_then(|filters| serde_json::from_value(filters).ok()).unwrap_or_default();
    let timestamp = |value: &Value| value.as_i64().map(|at| time(file_time(at)));
    let flags = filters.iter().flat_map(|(name, value)| {
        let flag = format!("--{}", name.replace('_', "-"));
        match (name.as_str(), value) {
            (_, Value::Bool(true)) => vec![flag],
            (_, Value::Array(patterns)) => {
                patterns.iter().filter_map(Value::as_str).map(|pattern| format!("{flag} '{pattern}'")).collect()
            }
            ("min_size" | "max_size" | "max_depth", value) => {
                value.as_u64().map(|size| format!("{flag} {size}")).into_iter().collect()
            }
            (_, value) => timestamp(value).map(|at| format!("{flag} '{at}'")).into_iter().collect(),
        }
    });
    let follow = root.follow_links.then(|| "--follow-links".to_owned());
    follow.into_iter().chain(flags).collect::<Vec<_>>().join(" ")
}

fn table(output: &Output, hints: &Hints, roots: &[Root]) -> String {
    if roots.is_empty() {
        return hints.nothing_scanned();
    }
    let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let row = |root: &Root| {
        vec![
            root.name.clone(),
            or_dash(number(root.folders).map(thousands)),
            or_dash(number(root.files).map(thousands)),
            or_dash(number(root.bytes).map(bytes)),
            match root.last_scanned_at {
                Some(at) => time(at),
                None if root.files.is_some() => "only named files".to_owned(),
                None => "not finished".to_owned(),
            },
            path(&root.path),
        ]
    };
    let headers = ["NAME", "FOLDERS", "FILES", "SIZE", "LAST SCAN (UTC)", "PATH"];
    output.uncut_table(&headers, roots.iter().map(row))
}

fn scan_options_text(output: &Output, roots: &[Root]) -> String {
    let rows: Vec<Vec<String>> = roots
        .iter()
        .map(|root| vec![root.name.clone(), scan_options(root)])
        .filter(|row| row.iter().all(|cell| !cell.is_empty()))
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", output.uncut_table(&["NAME", "SCAN OPTIONS"], rows)),
    }
}

fn remove(context: &Context, root: &Path, yes: bool) -> Result<Outcome, Error> {
    let (store, _) = context.open_catalog()?;
    let root = gristmill_dedup::roots::named(&store, root)?;
    let shown = path(&root.path);
    if !yes {
        match confirm(&format!("Remove {shown} from the catalog? No file is changed."), false)? {
            Some(true) => {}
            Some(false) => {
                note("nothing was removed");
                return Ok(Outcome::UserError);
            }
            None => {
                let text = format!("this removes {shown} and its records from the catalog; confirm with --yes");
                return Err(Error::Setting(text));
            }
        }
    }
    let removed = store.roots().remove(root.id)?;
    let mut object = with_path(&root.path);
    object.insert("name".to_owned(), json!(root.name));
    object.insert("folders".to_owned(), json!(removed.folders));
    object.insert("files".to_owned(), json!(removed.files));
    context.output.summary(&object, Outcome::Done, |_| {
        format!(
            "removed {shown} from the catalog: {}, {}. No file was changed",
            count_of(removed.folders as u64, "folder"),
            count_of(removed.files as u64, "file")
        )
    })
}
