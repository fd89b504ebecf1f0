//! Tools that the tests and benchmarks need beyond a Rust toolchain, and how missing ones are installed.
//!
//! Owns the tables of tools. The folder for tools and the download of RabbitMQ are in `gristmill_broker`. An installed
//! tool is used in any version, a Python package only in the version of its table. Only tools that a run uses are
//! installed. Packages of the system are installed only by root with apt-get; without them, the steps that need them
//! are reported as not done.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

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
    /// From PyPI, in the given versions, into a virtual environment of its own.
    Python(&'static [&'static str]),
}

const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", source: Source::Crate("0.13.2"), required: false };

/// It generates requests with hypothesis, so both versions determine what a seed means.
const SCHEMATHESIS: Tool = Tool {
    name: "schemathesis",
    source: Source::Python(&["schemathesis==4.32.5", "hypothesis==6.170.15"]),
    required: false,
};

const TOOLS: [Tool; 5] = [
    // The version that `deny.toml` is written for.
    Tool { name: "cargo-deny", source: Source::Crate("0.20.2"), required: true },
    Tool { name: "strace", source: Source::Debian("strace"), required: false },
    CARGO_FUZZ,
    SCHEMATHESIS,
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

pub(crate) fn set_up_api(workspace: &Workspace) -> Result<Outcome, Error> {
    install_all(workspace, &[SCHEMATHESIS])
}

/// Returns the path of schemathesis if it is installed.
pub(crate) fn schemathesis(workspace: &Workspace) -> Result<Option<PathBuf>, Error> {
    let program = environment(SCHEMATHESIS.name)?.join("bin").join(SCHEMATHESIS.name);
    Ok(SCHEMATHESIS.is_available(workspace).then_some(program))
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
            Source::Python(packages) => has_python_packages(workspace, self.name, packages),
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
            Source::Python(packages) => {
                let environment = environment(self.name).map_err(|error| error.to_string())?;
                install_python_packages(workspace, &environment, packages)
            }
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
    install_python_peers(workspace, IMPORT_PACKAGES)
}

const AMQP_PACKAGES: &[&str] = &["pika==1.4.4"];

/// Installs the Python peers of the benchmark `amqp`, which builds its Rust peers. `amqp-consume` comes with RabbitMQ.
pub(crate) fn set_up_amqp_peers(workspace: &Workspace) -> Result<(), Error> {
    install_python_peers(workspace, AMQP_PACKAGES)
}

pub(crate) fn set_up_broker() -> Result<(), Error> {
    Installation::install().map(drop).map_err(|error| Error::System(error.to_string()))
}

/// Installs Python packages for a benchmark. It runs without those that cannot be installed.
fn install_python_peers(workspace: &Workspace, packages: &[&str]) -> Result<(), Error> {
    if let Err(why) = install_python_packages(workspace, &python()?, packages) {
        println!("peers in Python: {why}");
    }
    Ok(())
}

/// Installs packages into a virtual environment, which is created if it does not exist. The error is the reason why
/// they cannot be installed here.
fn install_python_packages(workspace: &Workspace, environment: &Path, packages: &[&str]) -> Result<(), String> {
    create_environment(workspace, environment)?;
    // pip does not use the network for packages that are installed in these versions.
    let mut install = pip(workspace, environment, &["--disable-pip-version-check", "install", "--quiet"]);
    install.args(packages);
    println!("{}", display(&install));
    match run_program(&mut install) {
        Ok(true) => Ok(()),
        _ => Err("pip could not install all packages; see its output above".to_owned()),
    }
}

/// Whether the tool's virtual environment has exactly these versions.
fn has_python_packages(workspace: &Workspace, tool: &str, packages: &[&str]) -> bool {
    let Ok(environment) = environment(tool) else { return false };
    let mut freeze = pip(workspace, &environment, &["--disable-pip-version-check", "freeze"]);
    let Ok(output) = run_captured(&mut freeze) else { return false };
    let installed = String::from_utf8_lossy(&output.stdout);
    packages.iter().all(|package| installed.lines().any(|line| line == *package))
}

fn pip(workspace: &Workspace, environment: &Path, args: &[&str]) -> Command {
    let mut command = workspace.program(environment.join("bin").join("python3"), ["-m", "pip"]);
    command.args(args);
    command
}

/// Creates a virtual environment, unless it exists. The error is the reason why it cannot be created here.
fn create_environment(workspace: &Workspace, folder: &Path) -> Result<(), String> {
    let is_available = || runs(&mut pip(workspace, folder, &["--version"]));
    let create = || runs(workspace.program("python3", ["-m", "venv"]).arg(folder)) && is_available();
    if is_available() || create() {
        return Ok(());
    }
    // Debian has venv in a separate package.
    install_package(workspace, "python3-venv")?;
    match create() {
        true => Ok(()),
        false => Err("python3 -m venv fails".to_owned()),
    }
}

/// Folder of the virtual environment of the benchmarks.
fn python() -> Result<PathBuf, Error> {
    environment("python")
}

/// Folder of a virtual environment. Each tool has its own, because their dependencies may need different versions.
fn environment(name: &str) -> Result<PathBuf, Error> {
    Ok(tools_folder()?.join(name))
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
