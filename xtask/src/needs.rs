//! What the tests need beyond a Rust toolchain, and how to get what is missing.
//!
//! Owns the table of needs and the private folder for tools. A need that is already there is left alone,
//! whatever its version. Nothing is ever installed for a run that would not use it.

use std::path::{Path, PathBuf};

use crate::fault::Fault;
use crate::step::Outcome;
use crate::workspace::{Workspace, answers, shown, succeeds};

/// Something tests need. `get` is called only when `there` says no.
struct Need {
    name: &'static str,
    there: fn(&Workspace) -> bool,
    get: fn(&Workspace) -> Result<(), Fault>,
}

const NEEDS: &[Need] =
    &[Need { name: "cargo-deny", there: |workspace| cargo_deny(workspace).is_some(), get: get_cargo_deny }];

/// The version whose configuration `deny.toml` is written for.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// The step: everything in the table is there afterwards, or the first that cannot be had is named.
pub(crate) fn set_up(workspace: &Workspace) -> Result<Outcome, Fault> {
    for need in NEEDS {
        if (need.there)(workspace) {
            println!("{}: there", need.name);
        } else {
            println!("{}: not there, getting it", need.name);
            (need.get)(workspace)?;
        }
    }
    Ok(Outcome::Passed)
}

/// The program cargo-deny: the user's own, else ours.
pub(crate) fn cargo_deny(workspace: &Workspace) -> Option<PathBuf> {
    let ours = tools().ok().map(|tools| tools.join("bin").join("cargo-deny"));
    let candidates = std::iter::once(PathBuf::from("cargo-deny")).chain(ours);
    candidates.into_iter().find(|path| answers(&mut workspace.program(path, ["--version"])))
}

fn get_cargo_deny(workspace: &Workspace) -> Result<(), Fault> {
    let mut install = workspace.cargo(["install", "--locked", "cargo-deny", "--version", CARGO_DENY_VERSION]);
    install.arg("--root").arg(tools()?).arg("--target-dir").arg(workspace.target().join("tools"));
    println!("{}", shown(&install));
    if succeeds(&mut install)? {
        return Ok(());
    }
    Err(Fault::System(
        "cargo-deny could not be installed; the output above says why. \
         Any cargo-deny on the PATH is used as it is"
            .to_owned(),
    ))
}

/// Our folder for tools, outside the checkout so that a `cargo clean` does not cost a long build.
fn tools() -> Result<PathBuf, Fault> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    tools_under(variable("XDG_CACHE_HOME").as_deref(), variable("HOME").as_deref())
}

fn tools_under(cache_home: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, Fault> {
    // The XDG rules: a relative folder is invalid and to be ignored.
    let cache_home = cache_home.filter(|path| path.is_absolute()).map(Path::to_path_buf);
    let home = home.filter(|path| path.is_absolute()).map(|home| home.join(".cache"));
    let cache = cache_home.or(home).ok_or_else(|| {
        Fault::User(
            "no place for tools: set XDG_CACHE_HOME or HOME to an absolute path, \
             or put cargo-deny on the PATH"
                .to_owned(),
        )
    })?;
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
