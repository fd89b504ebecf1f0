//! What the tests need beyond a Rust toolchain, and how to get what is missing.
//!
//! Owns the table of needs and the private folder for tools. A need that is already there is left alone,
//! whatever its version. Nothing is ever installed for a run that would not use it. Packages of the system are
//! installed only by root and only with apt-get; elsewhere the steps that want them say that they are not done.

use std::path::{Path, PathBuf};

use crate::fault::Fault;
use crate::step::Outcome;
use crate::workspace::{Workspace, answers, captured, shown, succeeds};

/// Something tests need, looked for by `there`.
struct Need {
    name: &'static str,
    there: fn(&Workspace) -> bool,
    source: Source,
}

/// Where a need comes from when it is not there.
enum Source {
    /// We make it ourselves. Without it the run is broken.
    Own(fn(&Workspace) -> Result<(), Fault>),
    /// A package of Debian. Without it a step is not done.
    Debian(&'static str),
}

const NEEDS: &[Need] = &[
    Need {
        name: "cargo-deny",
        there: |workspace| cargo_deny(workspace).is_some(),
        source: Source::Own(get_cargo_deny),
    },
    Need {
        name: "strace",
        there: |workspace| answers(&mut workspace.program("strace", ["-V"])),
        source: Source::Debian("strace"),
    },
];

/// The version whose configuration `deny.toml` is written for.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// The step: everything in the table is there afterwards, or what cannot be had is named.
pub(crate) fn set_up(workspace: &Workspace) -> Result<Outcome, Fault> {
    let mut without = Vec::new();
    for need in NEEDS {
        if (need.there)(workspace) {
            println!("{}: there", need.name);
            continue;
        }
        println!("{}: not there, getting it", need.name);
        match need.source {
            Source::Own(get) => get(workspace)?,
            Source::Debian(package) => {
                if let Err(why) = get_package(workspace, package) {
                    println!("{}: {why}", need.name);
                    without.push(format!("without {}: {why}", need.name));
                }
            }
        }
    }
    Ok(if without.is_empty() { Outcome::Passed } else { Outcome::PassedBut(without.join("; ")) })
}

/// Installs a package. Says why not, when it cannot be had here.
fn get_package(workspace: &Workspace, package: &str) -> Result<(), String> {
    let root = captured(&mut workspace.program("id", ["-u"])).is_ok_and(|output| output.stdout == b"0\n");
    if !root {
        return Err(format!("only root can install the package {package}"));
    }
    if !answers(&mut workspace.program("apt-get", ["--version"])) {
        return Err(format!("there is no apt-get to install the package {package} with"));
    }
    // Lists of packages go out of date; a first attempt without fetching them is quick where they are not.
    let apt_get = |words: &[&str]| {
        let mut command = workspace.program("apt-get", words);
        println!("{}", shown(&command));
        succeeds(command.env("DEBIAN_FRONTEND", "noninteractive")).unwrap_or(false)
    };
    let install = || apt_get(&["install", "--yes", "--no-install-recommends", package]);
    if install() || (apt_get(&["update"]) && install()) {
        return Ok(());
    }
    Err(format!("apt-get could not install the package {package}; the output above says why"))
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
