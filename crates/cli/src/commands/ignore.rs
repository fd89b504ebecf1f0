//! `gristmill ignore`: hides groups of duplicates in later lists, or shows them again.
//!
//! Owns how a user names a group: by its key, or by any of its files.

use std::path::{Path, PathBuf};

use gristmill_store::Store;
use gristmill_store::catalog::GroupKey;
use serde_json::json;

use super::root_paths::path_text;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::path;
use crate::units::plural;

const HELP: &str = "\
A group is named by any of its files, or by its group_key in `dupes --json`. The content is ignored, wherever its \
files are and whatever copies are added later. `gristmill dupes --ignored` lists ignored groups. The totals of \
`dupes`, `scan` and `report` leave them out. No file is changed.

Exit status:
  0    every group was found, also if nothing had to be changed
  1    a FILE-OR-KEY names no group; the others are changed

Examples:
  gristmill ignore ~/Music/cover.jpg
  gristmill ignore --undo ~/Music/cover.jpg
  gristmill dupes --ignored --json | jq -r '.items[].group_key' | xargs gristmill ignore --undo";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Files or keys of groups
    #[arg(value_name = "FILE-OR-KEY", required = true)]
    groups: Vec<PathBuf>,

    /// Show the groups again
    #[arg(long)]
    undo: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let (store, _) = context.open_catalog()?;
    let (mut items, mut changed, mut failed) = (Vec::new(), 0, 0);
    for named in &args.groups {
        let mut item = json!({"named": path_text(named)});
        match find(&store, named, args.undo)? {
            Ok(key) => {
                item["group_key"] = json!(key.to_string());
                let is_changed = store.catalog().ignore_group(key, !args.undo)?;
                item["changed"] = json!(is_changed);
                changed += u64::from(is_changed);
            }
            Err(reason) => {
                Error::Setting(format!("{}: {reason}", path(named))).complete_commands(&context.hints).report();
                item["error"] = json!(reason);
                failed += 1;
            }
        }
        items.push(item);
    }
    let done = if args.undo { "shown again" } else { "ignored from now on" };
    let outcome = if failed == 0 { Outcome::Done } else { Outcome::UserError };
    let unchanged = (args.groups.len() as u64).saturating_sub(changed + failed);
    let counts = [(unchanged, "unchanged"), (failed, "failed")];
    context.output.summary(&json!({"items": items, "changed": changed}), outcome, |_| {
        let others = counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}"));
        format!("{} {done}{}", plural(changed, "group"), others.collect::<String>())
    })
}

/// Finds the group of a key or file. The inner error is the reason why there is none.
fn find(store: &Store, named: &Path, undo: bool) -> Result<Result<GroupKey, String>, Error> {
    let invalid_key = match named.to_str().map(str::parse::<GroupKey>) {
        Some(Ok(key)) => {
            // A content that has no files any more may be shown again.
            let is_known = undo || !store.catalog().group_files(&key, None, 1)?.items.is_empty();
            return Ok(if is_known { Ok(key) } else { Err(UNKNOWN_KEY.to_owned()) });
        }
        Some(Err(error)) if looks_like_key(named) && named.symlink_metadata().is_err() => Some(error.to_string()),
        _ => None,
    };
    let absolute = std::path::absolute(named).unwrap_or_else(|_| named.to_path_buf());
    let resolved = absolute.parent().and_then(|folder| folder.canonicalize().ok()).zip(absolute.file_name());
    let resolved = resolved.map(|(folder, name)| folder.join(name));
    let roots = store.roots().list()?;
    for file in [Some(absolute), resolved].into_iter().flatten() {
        let Some(root) = gristmill_dedup::roots::innermost(&roots, &file) else { continue };
        let inside = file.strip_prefix(&root.path).unwrap_or(&file);
        if let Some(key) = store.catalog().group_of(root.id, inside)? {
            return Ok(Ok(key));
        }
    }
    Ok(Err(invalid_key.unwrap_or_else(|| UNKNOWN_FILE.to_owned())))
}

const UNKNOWN_FILE: &str =
    "no duplicates of this file are known; give a file that `gristmill dupes` lists, or a group_key";

const UNKNOWN_KEY: &str =
    "no scanned file is known to have this content; `gristmill dupes --json` prints the group_key of each group";

/// Whether a name has the form ALGORITHM:HEX.
fn looks_like_key(name: &Path) -> bool {
    let parts = name.to_str().and_then(|text| text.split_once(':'));
    parts.is_some_and(|(algorithm, hash)| {
        let is_algorithm = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !algorithm.is_empty() && algorithm.chars().all(is_algorithm) && hash.chars().all(|c| c.is_ascii_hexdigit())
    })
}
