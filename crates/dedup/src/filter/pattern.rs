//! Compiles the patterns of `--include` and `--exclude` for a root.
//!
//! Owns the syntax and the warnings about patterns that match nothing. A pattern without a slash matches names at any
//! depth. A pattern with a slash, including one that begins with `./` or `/`, matches paths relative to the root. An
//! absolute path inside a scanned root is taken relative to that root.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use gristmill_store::display_path;

use crate::error::{Error, Result};

/// Compiles the patterns for one root. `roots` are all roots of the scan.
pub(super) fn compile(patterns: &[String], ignore_case: bool, root: &Path, roots: &[PathBuf]) -> Result<GlobSet> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let Some(glob_text) = glob_in_root(pattern, ignore_case, root, roots)? else { continue };
        let mut glob = GlobBuilder::new(&glob_text);
        glob.literal_separator(true).backslash_escape(true).case_insensitive(ignore_case);
        let glob = glob.build().map_err(|error| {
            Error::Invalid(format!("invalid pattern {pattern:?}: {}; example: '*.tmp'", error.kind()))
        })?;
        set.add(glob);
    }
    set.build()
        .map_err(|error| Error::Invalid(format!("cannot compile the patterns: {error}; use fewer or shorter ones")))
}

/// Returns the glob for paths in `root`, or `None` if the pattern applies to another root.
fn glob_in_root(pattern: &str, ignore_case: bool, root: &Path, roots: &[PathBuf]) -> Result<Option<String>> {
    let plain = pattern.trim_end_matches('/');
    let after_dot = plain.strip_prefix("./").map(|rest| rest.trim_start_matches("./"));
    if plain.is_empty() || plain == "." || after_dot.is_some_and(|rest| rest.is_empty() || rest == ".") {
        return Err(Error::Invalid(format!("pattern {pattern:?} matches nothing; example: '*.tmp'")));
    }
    if let Some(rest) = after_dot {
        return Ok(Some(rest.to_owned()));
    }
    let Some(from_root) = plain.strip_prefix('/') else {
        return Ok(Some(if plain.contains('/') { plain.to_owned() } else { format!("**/{plain}") }));
    };
    Ok(match containing_root(plain, ignore_case, roots) {
        // As in .gitignore, a leading slash means the root.
        None => Some(from_root.to_owned()),
        Some((containing, inside)) => (containing == root).then_some(inside),
    })
}

/// Returns the innermost root that contains an absolute pattern, and the part of the pattern below that root. A root
/// that contains it only if case is ignored is returned only if no other root contains it.
fn containing_root<'a>(pattern: &str, ignore_case: bool, roots: &'a [PathBuf]) -> Option<(&'a Path, String)> {
    let by_text = |text: &str| {
        let below =
            |root: &&PathBuf| Some(without_prefix(text, root.to_str()?, ignore_case)?.strip_prefix('/')?.to_owned());
        roots
            .iter()
            .filter_map(|root| Some((root.as_path(), below(&root)?)))
            .max_by_key(|(root, _)| (Path::new(text).starts_with(root), root.as_os_str().len()))
    };
    by_text(pattern).or_else(|| by_text(&resolve_links(pattern)?))
}

fn without_prefix<'a>(text: &'a str, prefix: &str, ignore_case: bool) -> Option<&'a str> {
    if !ignore_case {
        return text.strip_prefix(prefix);
    }
    let mut rest = text.chars();
    let is_same = |a: char, b: char| a == b || a.to_lowercase().eq(b.to_lowercase());
    let is_prefix = prefix.chars().all(|c| rest.next().is_some_and(|other| is_same(c, other)));
    is_prefix.then_some(rest.as_str())
}

/// Resolves the symbolic links in the leading folders of a pattern, because the paths of roots are resolved too.
fn resolve_links(pattern: &str) -> Option<String> {
    let wild = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    let mut end = pattern.len();
    loop {
        end = pattern.get(..end)?.rfind('/').filter(|end| *end > 0)?;
        if end <= wild
            && let Ok(found) = std::fs::canonicalize(pattern.get(..end)?)
        {
            return Some(format!("{}{}", found.to_str()?, pattern.get(end..)?));
        }
    }
}

/// Returns the reason why a pattern matches nothing in any of the roots, or `None` if it can match.
pub(super) fn cannot_match(pattern: &str, ignore_case: bool, roots: &[PathBuf]) -> Option<String> {
    const SYNTAX: &str = "patterns are matched against the path inside the scanned folder";
    let plain = pattern.trim_end_matches('/');
    let relative = plain.trim_start_matches("./");
    let parts = || relative.trim_start_matches('/').split('/');
    if parts().any(|part| part == "..") {
        return Some(format!("it leads out of the scanned folder by \"..\"; {SYNTAX}"));
    }
    if relative.contains("//") {
        return Some("no path contains \"//\"; use a single slash".to_owned());
    }
    if parts().any(|part| part == ".") {
        return Some("no path contains \"/./\"; remove the dot".to_owned());
    }
    if relative.starts_with("~/") {
        return Some(format!("\"~\" is not replaced by your home folder; {SYNTAX}"));
    }
    if !plain.starts_with('/') || containing_root(plain, ignore_case, roots).is_some() {
        return None;
    }
    if let Some(root) = roots.iter().find(|root| root.as_os_str() == plain) {
        return Some(format!("it names the scanned folder {} itself", display_path(root)));
    }
    let first = parts().next().unwrap_or_default();
    let is_first = |name: &OsStr| name.to_str().is_some_and(|name| name.to_lowercase() == first.to_lowercase());
    let exists = |root: &PathBuf| match ignore_case {
        false => std::fs::symlink_metadata(root.join(first)).is_ok(),
        true => std::fs::read_dir(root).into_iter().flatten().flatten().any(|entry| is_first(&entry.file_name())),
    };
    let may_match = first.contains(['*', '?', '[', '{', '\\']) || roots.iter().any(exists);
    (!may_match).then(|| format!("it is outside of every scanned folder; {SYNTAX}, or are absolute paths in it"))
}
