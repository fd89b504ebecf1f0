//! Decides which files and folders a scan includes.
//!
//! Owns the limits of size, time and depth, hidden files and `.gitignore` rules; the syntax of patterns is in
//! `pattern`. An excluded folder excludes everything below it.

mod pattern;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::GlobSet;
use gristmill_store::catalog::{PathTest, Stat};
use gristmill_store::display_path;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::Serialize;

use crate::error::{Error, Result};

/// Filters as requested by the user. The default includes everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Filter {
    /// Patterns of which a file must match one. An empty list includes all files.
    pub include: Vec<String>,
    /// Patterns of files and folders that are excluded.
    pub exclude: Vec<String>,
    /// Whether patterns, also those of `.gitignore` files, ignore upper and lower case.
    pub ignore_case: bool,
    /// Minimum size of a file in bytes.
    pub min_size: Option<u64>,
    /// Maximum size of a file in bytes.
    pub max_size: Option<u64>,
    /// Earliest modification time of a file, in nanoseconds since 1970.
    pub newer_than: Option<i64>,
    /// Files modified at this time or later are excluded, in nanoseconds since 1970.
    pub older_than: Option<i64>,
    /// Whether files and folders whose names begin with a dot are excluded.
    pub skip_hidden: bool,
    /// Maximum depth of a file: 1 for files directly in a root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u32>,
    /// Whether files that the `.gitignore` files in the root ignore, and folders named `.git`, are excluded.
    pub gitignore: bool,
}

impl Filter {
    /// Checks the patterns and limits without scanning.
    pub fn check(&self) -> Result<()> {
        CompiledFilter::new(self, Path::new(""), &[]).map(drop)
    }

    /// Returns the patterns that cannot match in any of these roots, each with the reason.
    pub fn unmatchable(&self, roots: &[PathBuf]) -> Vec<(String, String)> {
        let patterns = self.include.iter().chain(&self.exclude);
        patterns
            .filter_map(|pattern| Some((pattern.clone(), pattern::cannot_match(pattern, self.ignore_case, roots)?)))
            .collect()
    }
}

/// Returns a test whether an absolute path in one of the roots matches one of the patterns, as in [`Filter::include`].
pub fn path_test(patterns: &[String], ignore_case: bool, mut roots: Vec<PathBuf>) -> Result<PathTest> {
    // The innermost root of a path comes first.
    roots.sort_by_key(|root| std::cmp::Reverse(root.as_os_str().len()));
    let compile = |root: &PathBuf| Ok((root.clone(), pattern::compile(patterns, ignore_case, root, &roots)?));
    let globs = roots.iter().map(compile).collect::<Result<Vec<_>>>()?;
    let name = format!("{patterns:?} {ignore_case}");
    Ok(PathTest::new(name, move |path| {
        let root = globs.iter().find_map(|(root, glob)| Some((path.strip_prefix(root).ok()?, glob)));
        root.is_some_and(|(inside, glob)| glob.is_match(inside))
    }))
}

#[derive(Debug)]
pub(crate) struct CompiledFilter {
    filter: Filter,
    include: GlobSet,
    exclude: GlobSet,
}

impl CompiledFilter {
    /// Compiles a filter for `root`, one of the `roots` of a scan. An absolute pattern applies only to the root that
    /// contains it.
    pub(crate) fn new(filter: &Filter, root: &Path, roots: &[PathBuf]) -> Result<Self> {
        let globs = |patterns| pattern::compile(patterns, filter.ignore_case, root, roots);
        let compiled = CompiledFilter {
            include: globs(&filter.include)?,
            exclude: globs(&filter.exclude)?,
            filter: filter.clone(),
        };
        let Filter { min_size, max_size, newer_than, older_than, max_depth, .. } = filter;
        if *max_depth == Some(0) {
            return Err(Error::Invalid("--max-depth is 0; files in the scanned folder itself have depth 1".into()));
        }
        if min_size.zip(*max_size).is_some_and(|(min, max)| min > max) {
            return Err(Error::Invalid("--min-size is larger than --max-size; no file can match".into()));
        }
        if newer_than.zip(*older_than).is_some_and(|(newer, older)| newer >= older) {
            return Err(Error::Invalid("--newer-than is not before --older-than; no file can match".into()));
        }
        Ok(compiled)
    }

    /// Whether the name and path of a file match, or a folder is walked. `path` is relative to the root.
    pub(crate) fn matches(&self, path: &Path, name: &OsStr, rules: Option<&IgnoreRules>, is_folder: bool) -> bool {
        let Filter { skip_hidden, gitignore, ignore_case, .. } = self.filter;
        let hidden = || name.as_encoded_bytes().starts_with(b".");
        let is_git = || name == ".git" || ignore_case && name.eq_ignore_ascii_case(".git");
        let is_excluded = skip_hidden && hidden()
            || gitignore && is_folder && is_git()
            || !self.exclude.is_empty() && self.exclude.is_match(path)
            || rules.is_some_and(|rules| rules.ignores(path, is_folder));
        !is_excluded && (is_folder || self.filter.include.is_empty() || self.include.is_match(path))
    }

    /// Whether any name can be excluded. Most scans include everything.
    pub(crate) fn tests_names(&self) -> bool {
        let Filter { skip_hidden, gitignore, .. } = self.filter;
        skip_hidden || gitignore || !self.exclude.is_empty() || !self.filter.include.is_empty()
    }

    /// Whether the files in a folder are below the maximum depth. `path` is relative to the root.
    pub(crate) fn is_too_deep(&self, path: &Path) -> bool {
        self.filter.max_depth.is_some_and(|max| path.components().count() >= max as usize)
    }

    pub(crate) fn ignores_case(&self) -> bool {
        self.filter.ignore_case
    }

    pub(crate) fn matches_stat(&self, stat: &Stat) -> bool {
        let Filter { min_size, max_size, newer_than, older_than, .. } = self.filter;
        min_size.is_none_or(|min| stat.size >= min)
            && max_size.is_none_or(|max| stat.size <= max)
            && newer_than.is_none_or(|moment| stat.mtime_ns >= moment)
            && older_than.is_none_or(|moment| stat.mtime_ns < moment)
    }

    pub(crate) fn uses_gitignore(&self) -> bool {
        self.filter.gitignore
    }
}

/// Rules of the `.gitignore` files from the root down to a folder.
#[derive(Debug)]
pub(crate) struct IgnoreRules {
    patterns: Gitignore,
    parent: Option<Arc<IgnoreRules>>,
}

impl IgnoreRules {
    /// Adds the rules of a folder's `.gitignore`, whose content is `text`, to those of its parents. Invalid lines are
    /// ignored, as git does.
    pub(crate) fn nested(parent: Option<Arc<Self>>, folder: &Path, text: &str, ignore_case: bool) -> Option<Arc<Self>> {
        let mut builder = GitignoreBuilder::new(folder);
        // Cannot fail. git does the same with core.ignoreCase.
        let _ = builder.case_insensitive(ignore_case);
        for line in text.lines() {
            if let Err(error) = builder.add_line(None, line) {
                tracing::debug!(folder = %display_path(folder), line, %error, "ignoring invalid line of .gitignore");
            }
        }
        match builder.build() {
            Ok(patterns) if !patterns.is_empty() => Some(Arc::new(IgnoreRules { patterns, parent })),
            _ => parent,
        }
    }

    /// The innermost `.gitignore` file with a matching rule decides.
    fn ignores(&self, path: &Path, is_folder: bool) -> bool {
        match self.patterns.matched(path, is_folder) {
            ignore::Match::Ignore(_) => true,
            ignore::Match::Whitelist(_) => false,
            ignore::Match::None => self.parent.as_ref().is_some_and(|parent| parent.ignores(path, is_folder)),
        }
    }
}
