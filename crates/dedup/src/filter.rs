//! Decides which files and folders a scan includes.
//!
//! Owns the limits of size and time, hidden files and `.gitignore` rules; the syntax of patterns is in `pattern`. An
//! excluded folder excludes everything below it.

mod pattern;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::GlobSet;
use gristmill_store::catalog::Stat;
use gristmill_store::display_path;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::Serialize;

use crate::error::{Error, Result};

/// Filters as requested by the user. The default includes everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filter {
    /// Patterns of which a file must match one. An empty list includes all files.
    pub include: Vec<String>,
    /// Patterns of files and folders that are excluded.
    pub exclude: Vec<String>,
    /// Whether patterns ignore upper and lower case.
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
        patterns.filter_map(|pattern| Some((pattern.clone(), pattern::cannot_match(pattern, roots)?))).collect()
    }
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
        let Filter { min_size, max_size, newer_than, older_than, .. } = filter;
        if min_size.zip(*max_size).is_some_and(|(min, max)| min > max) {
            return Err(Error::Invalid("--min-size is larger than --max-size; no file can match".into()));
        }
        if newer_than.zip(*older_than).is_some_and(|(newer, older)| newer >= older) {
            return Err(Error::Invalid("--newer-than is not before --older-than; no file can match".into()));
        }
        Ok(compiled)
    }

    /// Whether a folder is walked. `path` is relative to the root.
    pub(crate) fn matches_folder(&self, path: &Path, name: &OsStr, rules: Option<&IgnoreRules>) -> bool {
        self.matches_name(path, name, rules, true)
    }

    /// Whether the name and path of a file match.
    pub(crate) fn matches_file(&self, path: &Path, name: &OsStr, rules: Option<&IgnoreRules>) -> bool {
        self.matches_name(path, name, rules, false) && (self.filter.include.is_empty() || self.include.is_match(path))
    }

    fn matches_name(&self, path: &Path, name: &OsStr, rules: Option<&IgnoreRules>, is_folder: bool) -> bool {
        let Filter { skip_hidden, gitignore, .. } = self.filter;
        let hidden = || name.as_encoded_bytes().starts_with(b".");
        !(skip_hidden && hidden()
            || gitignore && is_folder && name == ".git"
            || !self.exclude.is_empty() && self.exclude.is_match(path)
            || rules.is_some_and(|rules| rules.ignores(path, is_folder)))
    }

    /// Whether any name can be excluded. Most scans include everything.
    pub(crate) fn tests_names(&self) -> bool {
        let Filter { skip_hidden, gitignore, .. } = self.filter;
        skip_hidden || gitignore || !self.exclude.is_empty() || !self.filter.include.is_empty()
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
    pub(crate) fn nested(parent: Option<Arc<Self>>, folder: &Path, text: &str) -> Option<Arc<Self>> {
        let mut builder = GitignoreBuilder::new(folder);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(filter: &Filter, path: &str, expected: bool) {
        let path = Path::new(path);
        let compiled = CompiledFilter::new(filter, Path::new("/r"), &[PathBuf::from("/r")]).unwrap();
        let found = compiled.matches_file(path, path.file_name().unwrap(), None);
        assert_eq!(found, expected, "{filter:?} {path:?}");
    }

    #[test]
    fn patterns_match_names_and_paths() {
        let exclude = |pattern: &str| Filter { exclude: vec![pattern.to_owned()], ..Filter::default() };
        let include = |pattern: &str| Filter { include: vec![pattern.to_owned()], ..Filter::default() };
        for (filter, path, expected) in [
            (exclude("*.tmp"), "a/b.tmp", false),
            (exclude("*.tmp"), "b.tmp", false),
            (exclude("*.tmp"), "a/b.txt", true),
            (exclude("node_modules"), "x/node_modules", false),
            (exclude("node_modules/"), "x/node_modules", false),
            (exclude("/top"), "top", false),
            (exclude("/top"), "a/top", true),
            (exclude("a/*.c"), "a/x.c", false),
            (exclude("a/*.c"), "a/b/x.c", true),
            (exclude("a/**/*.c"), "a/b/c/x.c", false),
            (exclude("{x,y}?"), "d/x1", false),
            (include("*.jpg"), "d/x.jpg", true),
            (include("*.jpg"), "d/x.png", false),
            (include("[ab]"), "a", true),
            (Filter { skip_hidden: true, ..Filter::default() }, "a/.b", false),
            (Filter { skip_hidden: true, ..Filter::default() }, "a/b", true),
        ] {
            check(&filter, path, expected);
        }
        let error = exclude("a[").check().unwrap_err().to_string();
        assert!(error.contains("a[") && error.contains("*.tmp"), "{error}");
        for pattern in ["", "/", ".", "./", "././"] {
            assert!(exclude(pattern).check().is_err(), "{pattern:?}");
        }
    }

    #[test]
    fn absolute_and_dot_slash_patterns_match_from_the_root() {
        let roots = ["/r", "/r/inner", "/other"].map(PathBuf::from);
        for (pattern, root, path, matched) in [
            ("./top", "/r", "top", true),
            ("./top", "/r", "a/top", false),
            ("././a/*.c", "/r", "a/x.c", true),
            ("./*.c", "/r", "a/x.c", false),
            ("/r/a/*.c", "/r", "a/x.c", true),
            ("/r/a/*.c", "/other", "r/a/x.c", false),
            ("/r/a/*.c", "/other", "a/x.c", false),
            // Only the innermost root that contains the path matches.
            ("/r/inner/x", "/r/inner", "x", true),
            ("/r/inner/x", "/r", "inner/x", false),
            ("/top", "/r", "top", true),
        ] {
            let exclude = Filter { exclude: vec![pattern.to_owned()], ..Filter::default() };
            let include = Filter { include: vec![pattern.to_owned()], ..Filter::default() };
            let path = Path::new(path);
            for (filter, expected) in [(exclude, !matched), (include, matched)] {
                let compiled = CompiledFilter::new(&filter, Path::new(root), &roots).unwrap();
                let found = compiled.matches_file(path, path.file_name().unwrap(), None);
                assert_eq!(found, expected, "{filter:?} {root} {path:?}");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn absolute_pattern_through_a_link_is_inside_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let real = std::fs::canonicalize(folder.path()).unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let exclude = vec![format!("{}/sub/*.c", link.display())];
        let filter = Filter { exclude, ..Filter::default() };
        let compiled = CompiledFilter::new(&filter, &real, std::slice::from_ref(&real)).unwrap();
        assert!(!compiled.matches_file(Path::new("sub/x.c"), OsStr::new("x.c"), None));
        assert_eq!(filter.unmatchable(&[real]), []);
    }

    #[test]
    fn case_is_ignored_on_request() {
        let filter = |ignore_case| Filter { exclude: vec!["*.JPG".into()], ignore_case, ..Filter::default() };
        check(&filter(false), "a/x.jpg", true);
        check(&filter(true), "a/x.jpg", false);
        check(&filter(true), "a/x.JpG", false);
    }

    #[test]
    fn pattern_that_cannot_match_has_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir(root.join("there")).unwrap();
        let inside = format!("{}/a*", root.display());
        let root_path = root.display().to_string();
        for (pattern, reason) in [
            ("*.tmp", None),
            ("./a/b", None),
            ("/there/x", None),
            ("/*/x", None),
            ("a..b/..c", None),
            (inside.as_str(), None),
            (root_path.as_str(), Some("names the scanned folder")),
            ("/no-such-folder/x", Some("outside of every scanned folder")),
            ("../x", Some("leads out of the scanned folder")),
            ("a/../b", Some("leads out of the scanned folder")),
            ("a//b", Some("single slash")),
            ("a/./b", Some("remove the dot")),
            ("~/x", Some("home folder")),
        ] {
            let filter = Filter { include: vec![pattern.to_owned()], ..Filter::default() };
            let found = filter.unmatchable(std::slice::from_ref(&root));
            let found = found.first().map(|(_, reason)| reason.as_str());
            match reason {
                None => assert_eq!(found, None, "{pattern}"),
                Some(reason) => {
                    assert!(found.is_some_and(|found| found.contains(reason)), "{pattern}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn size_and_time_limits_include_their_bounds_except_older_than() {
        let stat = |size, mtime_ns| Stat { size, mtime_ns, ..Stat::default() };
        let filter = Filter {
            min_size: Some(10),
            max_size: Some(20),
            newer_than: Some(5),
            older_than: Some(9),
            ..Filter::default()
        };
        let compiled = CompiledFilter::new(&filter, Path::new(""), &[]).unwrap();
        for (size, time, expected) in
            [(10, 5, true), (20, 8, true), (9, 5, false), (21, 5, false), (10, 4, false), (10, 9, false)]
        {
            assert_eq!(compiled.matches_stat(&stat(size, time)), expected, "{size} {time}");
        }
        assert!(Filter { max_size: Some(1), ..filter.clone() }.check().is_err());
        assert!(Filter { older_than: Some(1), ..filter }.check().is_err());
    }

    #[test]
    fn innermost_gitignore_with_a_match_decides() {
        let top = IgnoreRules::nested(None, Path::new(""), "*.o\nbuild/\n!keep.o\n[\n");
        let inner = IgnoreRules::nested(top.clone(), Path::new("a"), "!*.o\n/local\n");
        let (top, inner) = (top.unwrap(), inner.unwrap());
        for (rules, path, is_folder, ignored) in [
            (&top, "x.o", false, true),
            (&top, "d/x.o", false, true),
            (&top, "keep.o", false, false),
            (&top, "build", true, true),
            (&top, "build", false, false),
            (&inner, "a/x.o", false, false),
            (&inner, "a/local", false, true),
            (&inner, "a/b/local", false, false),
            (&inner, "a/build", true, true),
        ] {
            assert_eq!(rules.ignores(Path::new(path), is_folder), ignored, "{path}");
        }
    }
}
