//! What the tests and the benchmarks need beyond a Rust toolchain, and how to get what is missing.
//!
//! Owns the tables of needs. The private folder for tools is `gristmill_broker`'s, as is getting RabbitMQ. A need
//! that is already there is left alone, whatever its version. Nothing is ever installed for a run that would not
//! use it. Packages of the system are installed only by root and only with apt-get; elsewhere the steps that want
//! them say that they are not done.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gristmill_broker::Installation;

use crate::fault::Fault;
use crate::fuzz;
use crate::step::Outcome;
use crate::workspace::{Workspace, answers, captured, shown, succeeds};

/// Something that is needed, looked for by `there`.
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
    /// A package of the registry and its version. Without it a step is not done.
    Crate(&'static str, &'static str),
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
    CARGO_FUZZ,
    Need { name: "RabbitMQ", there: |_| Installation::find().is_ok(), source: Source::Own(get_rabbitmq) },
];

const CARGO_FUZZ: Need = Need {
    name: "cargo-fuzz",
    // Without a nightly toolchain nothing would use it.
    there: |workspace| cargo_fuzz(workspace).is_some() || !fuzz::has_nightly(workspace),
    source: Source::Crate("cargo-fuzz", "0.13.2"),
};

/// The version whose configuration `deny.toml` is written for.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// The step: everything in the table is there afterwards, or what cannot be had is named.
pub(crate) fn set_up(workspace: &Workspace) -> Result<Outcome, Fault> {
    get_all(workspace, NEEDS)
}

/// The same of what fuzzing needs.
pub(crate) fn set_up_fuzz(workspace: &Workspace) -> Result<Outcome, Fault> {
    get_all(workspace, &[CARGO_FUZZ])
}

fn get_all(workspace: &Workspace, needs: &[Need]) -> Result<Outcome, Fault> {
    let mut without = Vec::new();
    for need in needs {
        if (need.there)(workspace) {
            println!("{}: there", need.name);
            continue;
        }
        println!("{}: not there, getting it", need.name);
        let got = match need.source {
            Source::Own(get) => {
                get(workspace)?;
                Ok(())
            }
            Source::Debian(package) => get_package(workspace, package),
            Source::Crate(name, version) => match get_crate(workspace, name, version)? {
                true => Ok(()),
                false => Err("cargo could not install it; the output above says why".to_owned()),
            },
        };
        if let Err(why) = got {
            println!("{}: {why}", need.name);
            without.push(format!("without {}: {why}", need.name));
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
    own_or_ours(workspace, "cargo-deny")
}

/// The program cargo-fuzz, likewise.
pub(crate) fn cargo_fuzz(workspace: &Workspace) -> Option<PathBuf> {
    own_or_ours(workspace, "cargo-fuzz")
}

fn own_or_ours(workspace: &Workspace, name: &str) -> Option<PathBuf> {
    let ours = tools().ok().map(|tools| tools.join("bin").join(name));
    let candidates = std::iter::once(PathBuf::from(name)).chain(ours);
    candidates.into_iter().find(|path| answers(&mut workspace.program(path, ["--version"])))
}

fn get_cargo_deny(workspace: &Workspace) -> Result<(), Fault> {
    if get_crate(workspace, "cargo-deny", CARGO_DENY_VERSION)? {
        return Ok(());
    }
    Err(Fault::System(
        "cargo-deny could not be installed; the output above says why. \
         Any cargo-deny on the PATH is used as it is"
            .to_owned(),
    ))
}

/// Downloads it and unpacks it into our folder; installs and starts nothing.
fn get_rabbitmq(_workspace: &Workspace) -> Result<(), Fault> {
    Installation::install().map(drop).map_err(|fault| Fault::System(fault.to_string()))
}

/// Installs a program of the registry into our folder. Whether that worked; the output says why not.
fn get_crate(workspace: &Workspace, name: &str, version: &str) -> Result<bool, Fault> {
    let mut install = workspace.cargo(["install", "--locked", name, "--version", version]);
    install.arg("--root").arg(tools()?).arg("--target-dir").arg(workspace.target().join("tools"));
    println!("{}", shown(&install));
    succeeds(&mut install)
}

/// A program that `bench dedup` measures: its name, and where it comes from.
struct Peer {
    program: &'static str,
    source: PeerSource,
}

enum PeerSource {
    /// A package of the registry and its version.
    Crate(&'static str, &'static str),
    /// A package of Debian.
    Debian(&'static str),
}

/// Building czkawka takes many minutes, all others together few.
const PEERS: &[Peer] = &[
    Peer { program: "b3sum", source: PeerSource::Crate("b3sum", "1.8.7") },
    Peer { program: "fclones", source: PeerSource::Crate("fclones", "0.35.0") },
    Peer { program: "yadf", source: PeerSource::Crate("yadf", "1.5.2") },
    Peer { program: "jdupes", source: PeerSource::Debian("jdupes") },
    Peer { program: "rmlint", source: PeerSource::Debian("rmlint") },
    Peer { program: "rdfind", source: PeerSource::Debian("rdfind") },
    Peer { program: "czkawka_cli", source: PeerSource::Crate("czkawka_cli", "12.0.2") },
];

/// Gets the peers of the benchmark `dedup`. One that cannot be had is named, and the run goes on without it.
pub(crate) fn set_up_peers(workspace: &Workspace) -> Result<(), Fault> {
    let path = path_with_tools()?;
    let there = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    for Peer { program, source } in PEERS.iter().filter(|peer| !there(peer.program)) {
        println!("{program}: not there, getting it");
        let got = match source {
            PeerSource::Crate(name, version) => match get_crate(workspace, name, version)? {
                true => Ok(()),
                false => Err("cargo could not install it; the output above says why".to_owned()),
            },
            PeerSource::Debian(package) => get_package(workspace, package),
        };
        if let Err(why) = got {
            println!("{program}: {why}");
        }
    }
    Ok(())
}

/// What the peers of `bench import` that are Python's are, with their versions. DuckDB's extension is the one that
/// writes SQLite; it comes for one version of DuckDB.
const IMPORT_PACKAGES: &[&str] =
    &["duckdb==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5", "sqlite-utils==4.2.1", "orjson==3.13.0"];

/// Gets the peers of the benchmark `import`. What cannot be had is named, and the run goes on without it.
pub(crate) fn set_up_import_peers(workspace: &Workspace) -> Result<(), Fault> {
    if !answers(&mut workspace.program("sqlite3", ["-version"]))
        && let Err(why) = get_package(workspace, "sqlite3")
    {
        println!("sqlite3: {why}");
    }
    get_python_packages(workspace, IMPORT_PACKAGES)
}

/// What `bench amqp` needs of Python's.
const AMQP_PACKAGES: &[&str] = &["pika==1.4.4"];

/// Gets the peers of the benchmark `amqp`, likewise. Those in Rust it builds itself, and `amqp-consume` comes with
/// RabbitMQ.
pub(crate) fn set_up_amqp_peers(workspace: &Workspace) -> Result<(), Fault> {
    get_python_packages(workspace, AMQP_PACKAGES)
}

/// RabbitMQ is there afterwards.
pub(crate) fn set_up_broker(workspace: &Workspace) -> Result<(), Fault> {
    get_rabbitmq(workspace)
}

fn get_python_packages(workspace: &Workspace, packages: &[&str]) -> Result<(), Fault> {
    let python = python()?;
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet"];
    if make_python(workspace, &python) {
        // Packages that are there in these versions are left alone, and nothing is asked of the network.
        let mut install = workspace.program(python.join("bin").join("python3"), pip);
        install.args(packages);
        println!("{}", shown(&install));
        if !succeeds(&mut install)? {
            println!("peers in Python: pip could not install all of them; the output above says why");
        }
    }
    Ok(())
}

/// Makes a Python of our own, with packages of its own, unless it is there. Whether it is.
fn make_python(workspace: &Workspace, folder: &Path) -> bool {
    let there =
        || answers(&mut workspace.program(folder.join("bin").join("python3"), ["-m", "pip", "--version"]));
    let make = || answers(workspace.program("python3", ["-m", "venv"]).arg(folder)) && there();
    if there() || make() {
        return true;
    }
    // Debian has this part of Python in a package of its own.
    let made = get_package(workspace, "python3-venv").and_then(|()| match make() {
        true => Ok(()),
        false => Err("python3 -m venv fails".to_owned()),
    });
    if let Err(why) = &made {
        println!("peers in Python: {why}");
    }
    made.is_ok()
}

/// The folder of that Python.
fn python() -> Result<PathBuf, Fault> {
    Ok(tools()?.join("python"))
}

/// Our Python, then the caller's PATH: peers must be found with the packages that they need.
pub(crate) fn path_with_python() -> Result<OsString, Fault> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(python()?.join("bin")).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).map_err(|error| Fault::User(format!("PATH: {error}")))
}

/// The caller's PATH, and our folder for tools behind it: the user's own programs go first.
pub(crate) fn path_with_tools() -> Result<OsString, Fault> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([tools()?.join("bin")]);
    std::env::join_paths(folders).map_err(|error| Fault::User(format!("PATH: {error}")))
}

/// Our folder for tools.
fn tools() -> Result<PathBuf, Fault> {
    gristmill_broker::tools().map_err(|fault| Fault::User(format!("{fault}, or put cargo-deny on the PATH")))
}
