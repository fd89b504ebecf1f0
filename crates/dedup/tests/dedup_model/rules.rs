//! Models the filters of a scan, without using the crate's own code.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gristmill_check::Rng;
use gristmill_dedup::Filter;

/// Length of a day in nanoseconds.
pub(crate) const DAY_NS: i64 = 86_400 * 1_000_000_000;

/// A pattern that is simple enough to be implemented here again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// `*.o`: any name with this ending.
    Ending(&'static str),
    /// `f1`: this name at any depth.
    Name(&'static str),
    /// `/a` or `a/b`: this path relative to the root.
    Path(&'static str),
}

impl Pattern {
    pub(crate) fn pick(rng: &mut Rng) -> Self {
        use Pattern::{Ending, Name, Path};
        *rng.pick(&[Ending(".o"), Name("f1"), Name("in"), Name("a"), Path("a"), Path("a/b"), Path("f0")])
    }

    fn text(self) -> String {
        match self {
            Pattern::Ending(ending) => format!("*{ending}"),
            Pattern::Name(name) => name.to_owned(),
            Pattern::Path(path) => format!("/{path}"),
        }
    }

    fn matches(self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default();
        match self {
            Pattern::Ending(ending) => name.as_encoded_bytes().ends_with(ending.as_bytes()),
            Pattern::Name(expected) => name == expected,
            Pattern::Path(expected) => path == Path::new(expected),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) include: Vec<Pattern>,
    pub(crate) exclude: Vec<Pattern>,
    pub(crate) min_size: Option<u64>,
    pub(crate) max_size: Option<u64>,
    /// Only files modified before this day of 1970.
    pub(crate) older_than_day: Option<i64>,
    pub(crate) max_depth: Option<u32>,
    pub(crate) skip_hidden: bool,
    pub(crate) gitignore: bool,
    pub(crate) one_file_system: bool,
}

impl From<&Rules> for Filter {
    fn from(rules: &Rules) -> Filter {
        let texts = |patterns: &[Pattern]| patterns.iter().map(|pattern| pattern.text()).collect();
        options!(Filter {
            include: texts(&rules.include),
            exclude: texts(&rules.exclude),
            min_size: rules.min_size,
            max_size: rules.max_size,
            newer_than: None,
            older_than: rules.older_than_day.map(|day| day * DAY_NS),
            max_depth: rules.max_depth,
            skip_hidden: rules.skip_hidden,
            gitignore: rules.gitignore,
            ignore_case: false,
        })
    }
}

/// Lines of the `.gitignore` files from a root down to a folder, innermost last, each with its folder.
pub(crate) type Ignores = Vec<(std::path::PathBuf, String)>;

impl Rules {
    /// Whether a folder or link is included. `path` is relative to the root.
    pub(crate) fn matches_folder(&self, path: &Path, ignores: &Ignores) -> bool {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        !(self.skip_hidden && hidden
            || self.exclude.iter().any(|pattern| pattern.matches(path))
            || self.gitignore && is_ignored(path, ignores))
    }

    /// Whether the name and path of a file are included.
    pub(crate) fn matches_file(&self, path: &Path, ignores: &Ignores) -> bool {
        let included = self.include.is_empty() || self.include.iter().any(|pattern| pattern.matches(path));
        included && self.matches_folder(path, ignores)
    }

    /// Whether a folder of a root is excluded, or one above it.
    pub(crate) fn excludes_folder(&self, root: &Path, folder: &Path) -> bool {
        let ignores_in = |folder: &Path| std::fs::read_to_string(root.join(folder).join(".gitignore")).ok();
        let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
        let mut ignores = Ignores::new();
        let mut above: Vec<&Path> = folder.ancestors().collect();
        above.reverse();
        for path in above {
            let is_root = path.as_os_str().is_empty();
            let elsewhere = self.one_file_system && device(&root.join(path)) != device(root);
            if !is_root && (elsewhere || self.is_too_deep(path) || !self.matches_folder(path, &ignores)) {
                return true;
            }
            ignores.extend(ignores_in(path).map(|line| (path.to_path_buf(), line.trim().to_owned())));
        }
        false
    }

    /// Whether the files in a folder are too deep.
    pub(crate) fn is_too_deep(&self, path: &Path) -> bool {
        self.max_depth.is_some_and(|max| path.components().count() + 1 > max as usize)
    }

    pub(crate) fn matches_stat(&self, size: u64, mtime_ns: i64) -> bool {
        self.min_size.is_none_or(|min| size >= min)
            && self.max_size.is_none_or(|max| size <= max)
            && self.older_than_day.is_none_or(|day| mtime_ns < day * DAY_NS)
    }
}

/// The innermost file whose line matches decides. Every file has one line.
fn is_ignored(path: &Path, ignores: &Ignores) -> bool {
    for (folder, line) in ignores.iter().rev() {
        let Ok(inside) = path.strip_prefix(folder) else { continue };
        let (ignore, pattern) = match line.strip_prefix('!') {
            Some(pattern) => (false, pattern),
            None => (true, line.as_str()),
        };
        let name = path.file_name().unwrap_or_default();
        let matches = match (pattern.strip_prefix('*'), pattern.strip_prefix('/')) {
            (Some(ending), _) => name.as_encoded_bytes().ends_with(ending.as_bytes()),
            (_, Some(rooted)) => inside == Path::new(rooted),
            _ => name == pattern,
        };
        if matches {
            return ignore;
        }
    }
    false
}
