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
A group is named by any of its files, or by its group_key in `dupes --json`. The content is ignored, wherever its files \
are and whatever copies are added later. `gristmill dupes --ignored` lists ignored groups. No file is changed.

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
    let (mut items, mut changed, mut outcome) = (Vec::new(), 0, Outcome::Done);
    for named in &args.groups {
        let mut item = json!({"named": path_text(named)});
        match find(&store, named)? {
            Ok(key) => {
                item["group_key"] = json!(key.to_string());
                let is_changed = store.catalog().ignore_group(key, !args.undo)?;
                item["changed"] = json!(is_changed);
                changed += u64::from(is_changed);
            }
            Err(reason) => {
                item["error"] = json!(reason);
                tracing::error!("{}: {reason}", path(named));
                outcome = Outcome::UserError;
            }
        }
        items.push(item);
    }
    let done = if args.undo { "shown again" } else { "ignored from now on" };
    let unchanged = (args.groups.len() as u64).saturating_sub(changed);
    context.output.summary(&json!({"items": items, "changed": changed}), outcome, |_| {
        let others = if unchanged > 0 { format!(", {unchanged} unchanged") } else { String::new() };
        format!("{} {done}{others}", plural(changed, "group"))
    })
}

/// Finds the group of a key or file. The inner error is the reason why there is none.
fn find(store: &Store, named: &Path) -> Result<Result<GroupKey, String>, Error> {
    if let Some(key) = named.to_str().and_then(|text| text.parse().ok()) {
        return Ok(Ok(key));
    }
    let absolute = std::path::absolute(named).unwrap_or_else(|_| named.to_path_buf());
    let resolved = absolute.parent().and_then(|folder| folder.canonicalize().ok()).zip(absolute.file_name());
    let resolved = resolved.map(|(folder, name)| folder.join(name));
    let roots = store.roots().list()?;
    for file in [Some(absolute), resolved].into_iter().flatten() {
        let around = roots.iter().filter(|root| file.starts_with(&root.path));
        let Some(root) = around.max_by_key(|root| root.path.as_os_str().len()) else { continue };
        let inside = file.strip_prefix(&root.path).unwrap_or(&file);
        if let Some(key) = store.catalog().group_of(root.id, inside)? {
            return Ok(Ok(key));
        }
    }
    Ok(Err("no duplicates of this file are known; give a file that `gristmill dupes` lists, or a group_key".to_owned()))
}
