//! `gristmill roots` and `gristmill root`: the folders that are scanned.

use std::path::PathBuf;

use gristmill_store::roots::Root;
use gristmill_store::{Store, UtcTime};
use serde_json::{Value, json};

use super::confirm::confirm;
use super::root_paths::with_path;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::output::{Output, bytes, count_of, note, path, sanitize, thousands, time};

pub(crate) const LIST: &str = "\
A root is a folder that was given to `gristmill scan`, with everything below it. A root in another one has its files \
to itself: none is counted twice. Numbers and filters are those of the last scan that finished; an inode with several \
names counts once in the size.

Examples:
  gristmill roots
  gristmill roots --json | jq -r '.items[] | select(.last_scanned_at == null) | .path'";

const REMOVE: &str = "\
What scans have found there is forgotten. No file is touched; to have the root back, scan the folder again.

Examples:
  gristmill root remove ~/Pictures
  gristmill root remove nas --yes";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Forget a root and what was found in it; no file is touched
    #[command(after_help = REMOVE)]
    Remove {
        /// The root, by its path or its name
        #[arg(value_name = "ROOT")]
        root: PathBuf,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn list(context: &Context) -> Result<Outcome, Error> {
    let (store, _) = context.open_catalog()?;
    let roots = store.roots().list()?;
    let unreadable = roots.iter().map(|root| unreadable(&store, root)).collect::<Result<Vec<_>, _>>()?;
    let items: Vec<Value> =
        roots.iter().zip(&unreadable).map(|(root, unreadable)| as_value(root, unreadable)).collect();
    context.output.print(&json!({"items": items, "next_cursor": null}), |output| {
        table(output, &context.hints, &roots) + &unread_text(&unreadable)
    })?;
    Ok(Outcome::Done)
}

/// Folders of a root that could not be read.
struct Unreadable {
    count: u64,
    /// The first of them, with their reasons.
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

fn unread_text(unreadable: &[Unreadable]) -> String {
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

/// The filters of the last scan, as they were recorded.
fn filters(root: &Root) -> Option<Value> {
    serde_json::from_str(root.filters.as_deref()?).ok()
}

/// The filters of the last scan, as flags of `scan`.
fn filter_flags(root: &Root) -> String {
    let Some(Value::Object(filters)) = filters(root) else { return "-".to_owned() };
    let moment = |value: &Value| value.as_i64().map(|at| time(UtcTime::from_micros(at.div_euclid(1_000))));
    let flags = filters.iter().flat_map(|(name, value)| {
        let flag = format!("--{}", name.replace('_', "-"));
        match (name.as_str(), value) {
            (_, Value::Bool(true)) => vec![flag],
            (_, Value::Array(patterns)) => patterns
                .iter()
                .filter_map(Value::as_str)
                .map(|pattern| format!("{flag} '{pattern}'"))
                .collect(),
            ("min_size" | "max_size", value) => {
                value.as_u64().map(|size| format!("{flag} {size}")).into_iter().collect()
            }
            (_, value) => moment(value).map(|at| format!("{flag} '{at}'")).into_iter().collect(),
        }
    });
    flags.collect::<Vec<_>>().join(" ")
}

fn table(output: &Output, hints: &Hints, roots: &[Root]) -> String {
    if roots.is_empty() {
        return format!("no folder is registered yet: {}", hints.command("scan FOLDER"));
    }
    let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let row = |root: &Root| {
        vec![
            root.name.clone(),
            or_dash(number(root.folders).map(thousands)),
            or_dash(number(root.files).map(thousands)),
            or_dash(number(root.bytes).map(bytes)),
            root.last_scanned_at.map_or_else(|| "not to its end yet".to_owned(), time),
            (if root.follow_links { "followed" } else { "not followed" }).to_owned(),
            filter_flags(root),
            path(&root.path),
        ]
    };
    let headers = ["NAME", "FOLDERS", "FILES", "SIZE", "LAST SCAN (UTC)", "SYMLINKS", "FILTERS", "PATH"];
    output.table(&headers, &roots.iter().map(row).collect::<Vec<_>>())
}

pub(crate) fn run(command: &Command, context: &Context) -> Result<Outcome, Error> {
    let Command::Remove { root, yes } = command;
    let (store, _) = context.open_catalog()?;
    let root = gristmill_dedup::roots::named(&store, root)?;
    let shown = path(&root.path);
    if !yes {
        match confirm(&format!("Forget {shown} and what was found in it? No file is touched."), false)? {
            Some(true) => {}
            Some(false) => {
                note("nothing was forgotten");
                return Ok(Outcome::UserError);
            }
            None => {
                let text = format!("what was found in {shown} would be forgotten; with --yes it is");
                return Err(Error::Setting(text));
            }
        }
    }
    let forgotten = store.roots().remove(root.id)?;
    let mut object = with_path(&root.path);
    object.insert("name".to_owned(), json!(root.name));
    object.insert("folders".to_owned(), json!(forgotten.folders));
    object.insert("files".to_owned(), json!(forgotten.files));
    context.output.summary(&object, Outcome::Done, |_| {
        format!(
            "{shown} is no root any more: {} and {} forgotten. No file was touched",
            count_of(forgotten.folders as u64, "folder"),
            count_of(forgotten.files as u64, "file")
        )
    })?;
    Ok(Outcome::Done)
}
