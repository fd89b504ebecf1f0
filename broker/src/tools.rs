//! Where this house keeps the tools that it gets for itself.
//!
//! Owns the rule. `cargo xtask` keeps its programs by the same one.

use std::path::{Path, PathBuf};

use crate::Error;

/// Our folder for tools, outside the checkout so that a `cargo clean` does not cost a long build or a download.
pub fn tools() -> Result<PathBuf, Error> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    tools_under(variable("XDG_CACHE_HOME").as_deref(), variable("HOME").as_deref())
}

fn tools_under(cache_home: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, Error> {
    // The XDG rules: a relative folder is invalid and to be ignored.
    let cache_home = cache_home.filter(|path| path.is_absolute()).map(Path::to_path_buf);
    let home = home.filter(|path| path.is_absolute()).map(|home| home.join(".cache"));
    let cache = cache_home.or(home).ok_or(Error::NoFolderForTools)?;
    Ok(cache.join("gristmill").join("tools"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cache_home: Option<&str>, home: Option<&str>, expected: Option<&str>) {
        let found = tools_under(cache_home.map(Path::new), home.map(Path::new));
        assert_eq!(found.ok().as_deref(), expected.map(Path::new), "{cache_home:?} {home:?}");
    }

    #[test]
    fn where_tools_are_kept() {
        check(Some("/cache"), Some("/home/miller"), Some("/cache/gristmill/tools"));
        check(None, Some("/home/miller"), Some("/home/miller/.cache/gristmill/tools"));
        check(Some("cache"), Some("/home/miller"), Some("/home/miller/.cache/gristmill/tools"));
        check(Some(""), Some("/home/miller"), Some("/home/miller/.cache/gristmill/tools"));
        check(Some("cache"), None, None);
        check(None, Some(""), None);
    }
}
