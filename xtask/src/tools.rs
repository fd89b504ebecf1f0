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
    /// Name of its program.
    name: &'static str,
    source: Source,
    /// Whether the run fails without it. Otherwise, the steps that need it are not done.
    required: bool,
}

/// How a missing tool is installed.
enum Source {
    /// Downloaded into the folder for tools, without installing or starting it.
    RabbitMq,
    /// From this Debian package.
    Debian(&'static str),
    /// From the crate of the same name, in this version.
    Crate(&'static str),
}

const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", source: Source::Crate("0.13.2"), required: false };

const TOOLS: [Tool; 4] = [
    // The version that `deny.toml` is written for.
    Tool { name: "cargo-deny", source: Source::Crate("0.20.2"), required: true },
    Tool { name: "strace", source: Source::Debian("strace"), required: false },
    CARGO_FUZZ,
    Tool { name: "RabbitMQ", source: Source::RabbitMq, required: true },
];

/// Programs that `bench dedup` measures. Building czkawka takes many minutes, the others together a few.
const DEDUP_PEERS: [Tool; 7] = [
    Tool { name: "b3sum", source: Source::Crate("1.8.7"), required: false },
    Tool { name: "fclones", source: Source::Crate("0.35.0"), required: false },
    Tool { name: "yadf", source: Source::Crate("1.5.2"), required: false },
    Tool { name: "jdupes", source: Source::Debian("jdupes"), required: false },
    Tool { name: "rmlint", source: Source::Debian("rmlint"), required: false },
    Tool { name: "rdfind", source: Source::Debian("rdfind"), required: false },
    Tool { name: "czkawka_cli", source: Source::Crate("12.0.2"), required: false },
];

/// The step `set-up`: installs all missing tools, and names those that cannot be installed.
pub(crate) fn set_up(workspace: &Workspace) -> Result<Outcome, Error> {
    install_all(workspace, &TOOLS)
}

pub(crate) fn set_up_fuzz(workspace: &Workspace) -> Result<Outcome, Error> {
    install_all(workspace, &[CARGO_FUZZ])
}

/// Installs the peers of the benchmark `dedup`. The run continues without those that cannot be installed.
pub(crate) fn set_up_dedup_peers(workspace: &Workspace) -> Result<(), Error> {
    install_all(workspace, &DEDUP_PEERS).map(drop)
}

fn install_all(workspace: &Workspace, tools: &[Tool]) -> Result<Outcome, Error> {
    let mut missing = Vec::new();
    for tool in tools {
        if tool.is_available(workspace) {
            println!("{}: installed", tool.name);
            continue;
        }
        println!("{}: missing, installing it", tool.name);
        if let Err(why) = tool.install(workspace) {
            let why = format!("without {}: {why}", tool.name);
            println!("{why}");
            if tool.required {
                return Err(Error::System(why));
            }
            missing.push(why);
        }
    }
    Ok(if missing.is_empty() { Outcome::Passed } else { Outcome::PassedBut(missing.join("; ")) })
}

impl Tool {
    fn is_available(&self, workspace: &Workspace) -> bool {
        match self.source {
            Source::RabbitMq => Installation::find().is_ok(),
            // cargo-fuzz is needed only with a nightly toolchain.
            _ => find_program(self.name).is_some() || (self.name == CARGO_FUZZ.name && !fuzz::has_nightly(workspace)),
        }
    }

    /// Installs the tool. The error is the reason why it cannot be installed here.
    fn install(&self, workspace: &Workspace) -> Result<(), String> {
        match self.source {
            Source::RabbitMq => Installation::install().map(drop).map_err(|error| error.to_string()),
            Source::Debian(package) => install_package(workspace, package),
            Source::Crate(version) => install_crate(workspace, self.name, version),
        }
    }
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

/// Finds a program on the PATH, or else in the folder for tools.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = path_with_tools().ok()?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Installs a crate's program into the folder for tools.
fn install_crate(workspace: &Workspace, name: &str, version: &str) -> Result<(), String> {
    let mut install = workspace.cargo(["install", "--locked", name, "--version", version]);
    install.arg("--root").arg(tools_folder().map_err(|error| error.to_string())?);
    install.arg("--target-dir").arg(workspace.target.join("tools"));
    println!("{}", display(&install));
    match run_program(&mut install) {
        Ok(true) => Ok(()),
        _ => Err("cargo could not install it; see its output above, or put any version of it on the PATH".to_owned()),
    }
}

/// Python packages for the peers of `bench import`. The extension writes SQLite and must match the version of DuckDB.
const IMPORT_PACKAGES: &[&str] =
    &["duckdb==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5", "sqlite-utils==4.2.1", "orjson==3.13.0"];

/// Installs the peers of the benchmark `import`. The run continues without those that cannot be installed.
pub(crate) fn set_up_import_peers(workspace: &Workspace) -> Result<(), Error> {
    install_all(workspace, &[Tool { name: "sqlite3", source: Source::Debian("sqlite3"), required: false }])?;
    install_python_packages(workspace, IMPORT_PACKAGES)
}

const AMQP_PACKAGES: &[&str] = &["pika==1.4.4"];

/// Installs the Python peers of the benchmark `amqp`, which builds its Rust peers. `amqp-consume` comes with RabbitMQ.
pub(crate) fn set_up_amqp_peers(workspace: &Workspace) -> Result<(), Error> {
    install_python_packages(workspace, AMQP_PACKAGES)
}

pub(crate) fn set_up_broker() -> Result<(), Error> {
    Installation::install().map(drop).map_err(|error| Error::System(error.to_string()))
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
    path_with(Some(python()?.join("bin")), None)
}

/// The caller's PATH before the folder for tools, so that the user's programs are preferred.
pub(crate) fn path_with_tools() -> Result<OsString, Error> {
    path_with(None, Some(tools_folder()?.join("bin")))
}

fn path_with(before: Option<PathBuf>, after: Option<PathBuf>) -> Result<OsString, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = before.into_iter().chain(std::env::split_paths(&path)).chain(after);
    std::env::join_paths(folders).map_err(|error| Error::User(format!("PATH: {error}")))
}

fn tools_folder() -> Result<PathBuf, Error> {
    gristmill_broker::tools().map_err(|error| Error::User(format!("{error}, or put cargo-deny on the PATH")))
}
