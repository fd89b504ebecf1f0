//! Expands file patterns that the shell has not expanded: `logs/*.jsonl`, `logs/**/2024-*.gz`.

use std::path::{Component, Path, PathBuf};

use ignore::WalkBuilder;
use ignore::overrides::{Override, OverrideBuilder};

use super::entries::Entries;
use super::path_text::path_text;
use crate::error::{Error, Result};

fn has_wildcard(part: &str) -> bool {
    part.contains(['*', '?', '['])
}

/// Whether a path has wildcards. A file with that exact name takes precedence.
pub(crate) fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(has_wildcard)
}

/// Returns the files that a pattern matches, sorted by name. Like a shell, it skips hidden files.
pub(crate) fn expand(path: &Path) -> Result<Entries> {
    let is_plain = |part: &Component<'_>| part.as_os_str().to_str().is_none_or(|part| !has_wildcard(part));
    let folder: PathBuf = path.components().take_while(is_plain).collect();
    let pattern: PathBuf = path.components().skip_while(is_plain).collect();
    let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
    let matcher = |pattern: &Path| {
        let mut builder = OverrideBuilder::new(&folder);
        // The leading slash anchors the pattern at the folder.
        let built = builder.add(&format!("/{}", pattern.display())).and_then(|builder| builder.build());
        built.map_err(|error| Error::path(path, format!("is not a valid pattern: {error}")))
    };
    let is_fixed = |part: &Component<'_>| part.as_os_str().to_str().is_none_or(|part| !part.contains("**"));
    let fixed: Vec<Component<'_>> = pattern.components().take_while(is_fixed).collect();
    let has_any_depth = fixed.len() < pattern.components().count();
    // Patterns for the parent folders of a file, by depth; only matching folders are listed.
    let parents = if has_any_depth { fixed.len() } else { fixed.len().saturating_sub(1) };
    let parents: Result<Vec<Override>> =
        (1..=parents).map(|depth| matcher(&fixed[..depth].iter().collect::<PathBuf>())).collect();
    let parents = parents?;
    let of_file = matcher(&pattern)?;
    let walker = WalkBuilder::new(&folder)
        .standard_filters(false)
        .hidden(true)
        .max_depth((!has_any_depth).then_some(fixed.len()))
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .filter_entry(move |entry| {
            let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
            let parent = entry.depth().checked_sub(1).and_then(|depth| parents.get(depth));
            !is_folder || parent.is_none_or(|parent| parent.matched(entry.path(), true).is_whitelist())
        })
        .build();
    let mut entries = Entries::default();
    for entry in walker {
        match entry {
            Ok(entry) if of_file.matched(entry.path(), false).is_whitelist() => {
                let file = entry.into_path();
                entries.add(file.strip_prefix(".").map(Path::to_owned).unwrap_or(file));
            }
            Ok(_) => {}
            Err(error) => entries.add_error(&folder, error),
        }
    }
    if entries.files.is_empty() && entries.unreadable.is_empty() {
        let why = entries.unlisted.first();
        let why = why.map(|(folder, why)| format!(" ({}: {why})", path_text(folder))).unwrap_or_default();
        return Err(Error::NoInput(format!("no file matches {}{why}", path.display())));
    }
    Ok(entries)
}
