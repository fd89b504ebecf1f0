//! Patterns that name files, for those that the shell has not expanded: `logs/*.jsonl`, `logs/**/2024-*.gz`.

use std::path::{Component, Path, PathBuf};

use ignore::WalkBuilder;
use ignore::overrides::OverrideBuilder;

use crate::error::{Error, Result};

fn has_wildcard(part: &str) -> bool {
    part.contains(['*', '?', '['])
}

/// Whether a path is a pattern, if there is no file of that name.
pub(crate) fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(has_wildcard)
}

/// The files that a pattern matches, by name. Hidden ones are left out, as a shell does.
pub(crate) fn expand(path: &Path) -> Result<Vec<PathBuf>> {
    let invalid = |why: String| Error::Invalid(format!("{} is no pattern: {why}", path.display()));
    let is_plain = |part: &Component<'_>| part.as_os_str().to_str().is_none_or(|part| !has_wildcard(part));
    let folder: PathBuf = path.components().take_while(is_plain).collect();
    let pattern: PathBuf = path.components().skip_while(is_plain).collect();
    let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
    let mut builder = OverrideBuilder::new(&folder);
    // A slash in front: it is matched from the folder on, and not at any depth.
    builder.add(&format!("/{}", pattern.display())).map_err(|error| invalid(error.to_string()))?;
    let matcher = builder.build().map_err(|error| invalid(error.to_string()))?;
    let depth = pattern.to_str().filter(|text| !text.contains("**")).map(|_| pattern.components().count());
    let walker = WalkBuilder::new(&folder)
        .standard_filters(false)
        .hidden(true)
        .max_depth(depth)
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .build();
    let is_file = |path: &Path| std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let files: Vec<PathBuf> = walker
        .filter_map(std::result::Result::ok)
        .map(ignore::DirEntry::into_path)
        .filter(|file| matcher.matched(file, false).is_whitelist() && is_file(file))
        .map(|file| file.strip_prefix(".").map(Path::to_owned).unwrap_or(file))
        .collect();
    if files.is_empty() {
        return Err(Error::Invalid(format!("no file matches {}", path.display())));
    }
    Ok(files)
}
