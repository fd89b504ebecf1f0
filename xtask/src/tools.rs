//! Tools that the tests and benchmarks need beyond a Rust toolchain, and how missing ones are installed.
//!
//! Owns the tables of tools. The folder for tools and the download of RabbitMQ are in `gristmill_broker`. An installed
//! tool is used in any version. Only tools that a run uses are installed. Packages of the system are installed only by
//! root with apt-get; without them, the steps that need them are reported as not done.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gristmill_broker::Installation;

use crate::error::Error;
use crate::fuzz;
use crate::step::Outcome;
use crate::workspace::{Workspace, display, run_captured, run_program, runs};

struct Tool {
    name: &'static str,
    is_available: fn(&Workspace) -> bool,
    source: Source,
}

/// How a missing tool is installed.
enum Source {
    /// By this function. If it fails, the run fails.
    Custom(fn(&Workspace) -> Result<(), Error>),
    /// From this Debian package. If it cannot be installed, a step is not done.
    Debian(&'static str),
    /// From the crate of this name and version. If it cannot be installed, a step is not done.
    Crate(&'static str, &'static str),
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "cargo-deny",
        is_available: |workspace| cargo_deny(workspace).is_some(),
        source: Source::Custom(install_cargo_deny),
    },
    Tool {
        name: "strace",
        is_available: |workspace| runs(&mut workspace.program("strace", ["-V"])),
        source: Source::Debian("strace"),
    },
    CARGO_FUZZ,
    Tool { name: "RabbitMQ", is_available: |_| Installation::find().is_ok(), source: Source::Custom(install_rabbitmq) },
];

const CARGO_FUZZ: Tool = Tool {
    name: "cargo-fuzz",
    // Needed only with a nightly toolchain.
    is_available: |workspace| cargo_fuzz(workspace).is_some() || !fuzz::has_nightly(workspace),
    source: Source::Crate("cargo-fuzz", "0.13.2"),
};

/// The version that `deny.toml` is written for.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// The step `set-up`: installs all missing tools, and names those that cannot be installed.
pub(crate) fn set_up(workspace: &Workspace) -> Result<Outcome, Error> {
    install_all(workspace, TOOLS)
}

pub(crate) fn set_up_fuzz(workspace: &Workspace) -> Result<Outcome, Error> {
    install_all(workspace, &[CARGO_FUZZ])
}

fn install_all(workspace: &Workspace, tools: &[Tool]) -> Result<Outcome, Error> {
    let mut missing = Vec::new();
    for tool in tools {
        if (tool.is_available)(workspace) {
            println!("{}: installed", tool.name);
            continue;
        }
        println!("{}: missing, installing it", tool.name);
        let installed = match tool.source {
            Source::Custom(install) => {
                install(workspace)?;
                Ok(())
            }
            Source::Debian(package) => install_package(workspace, package),
            Source::Crate(name, version) => match install_crate(workspace, name, version)? {
                true => Ok(()),
                false => Err("cargo could not install it; see its output above".to_owned()),
            },
        };
        if let Err(why) = installed {
            println!("{}: {why}", tool.name);
            missing.push(format!("without {}: {why}", tool.name));
        }
    }
    Ok(if missing.is_empty() { Outcome::Passed } else { Outcome::PassedBut(missing.join("; ")) })
}

/// Installs a Debian package. The error is the reason why it cannot be installed here.
fn install_package(workspace: &Workspace, package: &str) -> Result<(), String> {
    let root = run_captured(&mut workspace.program("id", ["-u"])).is_ok_and(|output| output.stdout == b"0\n");
    if !root {
        return Err(format!("only root can install the package {package}"));
    }
    if !runs(&mut workspace.program("apt-get", ["--version"])) {
        return Err(format!("apt-get is missing, so the package {package} cannot be installed"));
    }
    // Tries the existing package lists first, which is fast if they are current.
    let apt_get = |args: &[&str]| {
        let mut command = workspace.program("apt-get", args);
        println!("{}", display(&command));
        run_program(command.env("DEBIAN_FRONTEND", "noninteractive")).unwrap_or(false)
    };
    let install = || apt_get(&["install", "--yes", "--no-install-recommends", package]);
    if install() || (apt_get(&["update"]) && install()) {
        return Ok(());
    }
    Err(format!("apt-get could not install the package {package}; see its output above"))
}

pub(crate) fn cargo_deny(workspace: &Workspace) -> Option<PathBuf> {
    find_program(workspace, "cargo-deny")
}

pub(crate) fn cargo_fuzz(workspace: &Workspace) -> Option<PathBuf> {
    find_program(workspace, "cargo-fuzz")
}

/// Finds a program on the PATH, or else in the folder for tools.
fn find_program(workspace: &Workspace, name: &str) -> Option<PathBuf> {
    let installed = tools_folder().ok().map(|tools| tools.join("bin").join(name));
    let candidates = std::iter::once(PathBuf::from(name)).chain(installed);
    candidates.into_iter().find(|path| runs(&mut workspace.program(path, ["--version"])))
}

fn install_cargo_deny(workspace: &Workspace) -> Result<(), Error> {
    if install_crate(workspace, "cargo-deny", CARGO_DENY_VERSION)? {
        return Ok(());
    }
    Err(Error::System(
        "cannot install cargo-deny; see the output of cargo above, or put any version of it on the PATH".to_owned(),
    ))
}

/// Downloads RabbitMQ into the folder for tools, without installing or starting it.
fn install_rabbitmq(_workspace: &Workspace) -> Result<(), Error> {
    Installation::install().map(drop).map_err(|error| Error::System(error.to_string()))
}

/// Installs a crate's program into the folder for tools. Returns whether it succeeded; cargo prints the reason if not.
fn install_crate(workspace: &Workspace, name: &str, version: &str) -> Result<bool, Error> {
    let mut install = workspace.cargo(["install", "--locked", name, "--version", version]);
    install.arg("--root").arg(tools_folder()?).arg("--target-dir").arg(workspace.target().join("tools"));
    println!("{}", display(&install));
    run_program(&mut install)
}

/// A program that `bench dedup` measures, and where it comes from.
struct Peer {
    program: &'static str,
    source: PeerSource,
}

enum PeerSource {
    /// A crate and its version.
    Crate(&'static str, &'static str),
    Debian(&'static str),
}

/// Building czkawka takes many minutes, the others together a few.
const PEERS: &[Peer] = &[
    Peer { program: "b3sum", source: PeerSource::Crate("b3sum", "1.8.7") },
    Peer { program: "fclones", source: PeerSource::Crate("fclones", "0.35.0") },
    Peer { program: "yadf", source: PeerSource::Crate("yadf", "1.5.2") },
    Peer { program: "jdupes", source: PeerSource::Debian("jdupes") },
    Peer { program: "rmlint", source: PeerSource::Debian("rmlint") },
    Peer { program: "rdfind", source: PeerSource::Debian("rdfind") },
    Peer { program: "czkawka_cli", source: PeerSource::Crate("czkawka_cli", "12.0.2") },
];

/// Installs the peers of the benchmark `dedup`. The run continues without those that cannot be installed.
pub(crate) fn set_up_dedup_peers(workspace: &Workspace) -> Result<(), Error> {
    let path = path_with_tools()?;
    let is_available = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    for Peer { program, source } in PEERS.iter().filter(|peer| !is_available(peer.program)) {
        println!("{program}: missing, installing it");
        let installed = match source {
            PeerSource::Crate(name, version) => match install_crate(workspace, name, version)? {
                true => Ok(()),
                false => Err("cargo could not install it; see its output above".to_owned()),
            },
            PeerSource::Debian(package) => install_package(workspace, package),
        };
        if let Err(why) = installed {
            println!("{program}: {why}");
        }
    }
    Ok(())
}

/// Python packages for the peers of `bench import`. The extension writes SQLite and must match the version of DuckDB.
const IMPORT_PACKAGES: &[&str] =
    &["duckdb==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5", "sqlite-utils==4.2.1", "orjson==3.13.0"];

/// Installs the peers of the benchmark `import`. The run continues without those that cannot be installed.
pub(crate) fn set_up_import_peers(workspace: &Workspace) -> Result<(), Error> {
    if !runs(&mut workspace.program("sqlite3", ["-version"]))
        && let Err(why) = install_package(workspace, "sqlite3")
    {
        println!("sqlite3: {why}");
    }
    install_python_packages(workspace, IMPORT_PACKAGES)
}

const AMQP_PACKAGES: &[&str] = &["pika==1.4.4"];

/// Installs the Python peers of the benchmark `amqp`, which builds its Rust peers. `amqp-consume` comes with RabbitMQ.
pub(crate) fn set_up_amqp_peers(workspace: &Workspace) -> Result<(), Error> {
    install_python_packages(workspace, AMQP_PACKAGES)
}

pub(crate) fn set_up_broker(workspace: &Workspace) -> Result<(), Error> {
    install_rabbitmq(workspace)
}

fn install_python_packages(workspace: &Workspace, packages: &[&str]) -> Result<(), Error> {
    let python = python()?;
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet"];
    if create_python(workspace, &python) {
        // pip does not use the network for packages that are installed in these versions.
        let mut install = workspace.program(python.join("bin").join("python3"), pip);
        install.args(packages);
        println!("{}", display(&install));
        if !run_program(&mut install)? {
            println!("peers in Python: pip could not install all of them; see its output above");
        }
    }
    Ok(())
}

/// Creates a virtual environment, unless it exists. Returns whether it exists afterwards.
fn create_python(workspace: &Workspace, folder: &Path) -> bool {
    let is_available = || runs(&mut workspace.program(folder.join("bin").join("python3"), ["-m", "pip", "--version"]));
    let create = || runs(workspace.program("python3", ["-m", "venv"]).arg(folder)) && is_available();
    if is_available() || create() {
        return true;
    }
    // Debian has venv in a separate package.
    let created = install_package(workspace, "python3-venv").and_then(|()| match create() {
        true => Ok(()),
        false => Err("python3 -m venv fails".to_owned()),
    });
    if let Err(why) = &created {
        println!("peers in Python: {why}");
    }
    created.is_ok()
}

/// Folder of the virtual environment.
fn python() -> Result<PathBuf, Error> {
    Ok(tools_folder()?.join("python"))
}

/// The virtual environment before the caller's PATH, so that peers are found with their packages.
pub(crate) fn path_with_python() -> Result<OsString, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(python()?.join("bin")).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).map_err(|error| Error::User(format!("PATH: {error}")))
}

/// The caller's PATH before the folder for tools, so that the user's programs are preferred.
pub(crate) fn path_with_tools() -> Result<OsString, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([tools_folder()?.join("bin")]);
    std::env::join_paths(folders).map_err(|error| Error::User(format!("PATH: {error}")))
}

fn tools_folder() -> Result<PathBuf, Error> {
    gristmill_broker::tools().map_err(|error| Error::User(format!("{error}, or put cargo-deny on the PATH")))
}
