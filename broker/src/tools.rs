//! The folder for downloaded and built tools, which `cargo xtask` uses, too.

use std::path::{Path, PathBuf};

use crate::Error;

/// Returns the folder for tools. It is outside of the checkout, so that `cargo clean` does not delete them.
pub fn tools() -> Result<PathBuf, Error> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    tools_folder(variable("XDG_CACHE_HOME").as_deref(), variable("HOME").as_deref())
}

fn tools_folder(cache_home: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, Error> {
    // As XDG requires, a relative path is ignored.
    let cache_home = cache_home.filter(|path| path.is_absolute()).map(Path::to_path_buf);
    let home = home.filter(|path| path.is_absolute()).map(|home| home.join(".cache"));
    let cache = cache_home.or(home).ok_or(Error::NoToolsFolder)?;
    Ok(cache.join("gristmill").join("tools"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cache_home: Option<&str>, home: Option<&str>, expected: Option<&str>) {
        let found = tools_folder(cache_home.map(Path::new), home.map(Path::new));
        assert_eq!(found.ok().as_deref(), expected.map(Path::new), "{cache_home:?} {home:?}");
    }

    #[test]
    fn absolute_cache_home_is_used_before_home() {
        check(Some("/cache"), Some("/home/ada"), Some("/cache/gristmill/tools"));
        check(None, Some("/home/ada"), Some("/home/ada/.cache/gristmill/tools"));
        check(Some("cache"), Some("/home/ada"), Some("/home/ada/.cache/gristmill/tools"));
        check(Some(""), Some("/home/ada"), Some("/home/ada/.cache/gristmill/tools"));
        check(Some("cache"), None, None);
        check(None, Some(""), None);
    }
}
