//! Real trees: packages downloaded by name and version, and the `/usr` of the system.
//!
//! Owns the lists of packages and the calls of npm, pip and cargo, which are found on the PATH and download from where
//! the user has configured. Packages that a named package depends on have the versions of the day of the download;
//! for npm, those of a fixed day. `cache` keeps the trees; `reference` finds their equal files.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::ValueEnum;

use super::{
    reference::Reference,
    tree::{self, SIGNATURE, Tree},
};
use crate::{cache, options::value_name, program};

/// Changes when the same packages give another tree.
const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RealTree {
    /// An npm project with its node_modules: 65,000 files.
    Node,
    /// Three sets of unpacked Python packages, mostly the same packages in other versions: 110,000 files.
    Wheels,
    /// Sources of Rust crates, many of them in two or three versions: 45,000 files.
    Crates,
    /// The system's /usr, which is only read.
    Usr,
}

/// Packages of one npm project.
const NODE_PACKAGES: &[(&str, &str)] = &[
    ("@babel/preset-env", "7.25.8"),
    ("@mui/material", "6.1.3"),
    ("@storybook/react-webpack5", "8.3.5"),
    ("antd", "5.21.4"),
    ("aws-sdk", "2.1691.0"),
    ("core-js", "3.38.1"),
    ("date-fns", "4.1.0"),
    ("date-fns-3", "npm:date-fns@3.6.0"),
    ("eslint", "8.57.1"),
    ("jest", "29.7.0"),
    ("lodash", "4.17.21"),
    ("lodash-es", "4.17.21"),
    ("next", "14.2.15"),
    ("react", "18.3.1"),
    ("react-dom", "18.3.1"),
    ("rxjs", "7.8.1"),
    ("rxjs-7-5", "npm:rxjs@7.5.7"),
    ("storybook", "8.3.5"),
    ("typescript", "5.6.3"),
    ("typescript-5-5", "npm:typescript@5.5.4"),
    ("webpack", "5.95.0"),
];

/// npm resolves dependencies as of this day.
const NODE_DAY: &str = "2026-06-01";

/// Folders of Python packages, each like the `site-packages` of a project.
const WHEEL_SETS: &[(&str, &[&str])] = &[
    (
        "first",
        &[
            "ansible==9.1.0",
            "babel==2.13.1",
            "botocore==1.33.6",
            "django==4.2.7",
            "matplotlib==3.8.2",
            "networkx==3.2.1",
            "numpy==1.26.2",
            "pandas==2.1.3",
            "plotly==5.18.0",
            "scikit-learn==1.3.2",
            "scipy==1.11.4",
            "setuptools==69.0.2",
            "sqlalchemy==2.0.23",
            "sympy==1.12",
            "tzdata==2023.3",
        ],
    ),
    (
        "second",
        &[
            "ansible==10.5.0",
            "babel==2.16.0",
            "botocore==1.35.36",
            "django==5.1.2",
            "matplotlib==3.9.2",
            "networkx==3.3",
            "numpy==2.1.2",
            "pandas==2.2.3",
            "plotly==5.24.1",
            "scikit-learn==1.5.2",
            "scipy==1.14.1",
            "setuptools==75.1.0",
            "sqlalchemy==2.0.35",
            "sympy==1.13.3",
            "tzdata==2024.2",
        ],
    ),
    (
        "third",
        &[
            "babel==2.16.0",
            "botocore==1.36.2",
            "django==5.1.5",
            "matplotlib==3.10.0",
            "networkx==3.4.2",
            "numpy==2.2.2",
            "pandas==2.2.3",
            "scikit-learn==1.6.1",
            "scipy==1.15.1",
            "setuptools==75.8.0",
            "sqlalchemy==2.0.37",
            "sympy==1.13.3",
            "tzdata==2024.2",
        ],
    ),
];

/// The same wheels on every system.
const WHEEL_PLATFORM: [&str; 6] =
    ["--implementation", "cp", "--python-version", "3.11", "--platform", "manylinux2014_x86_64"];

/// Crates of two projects, vendored together with those of this workspace. A project holds only one of several
/// compatible versions.
const CRATE_SETS: &[(&str, &[(&str, &str)])] = &[
    (
        "earlier",
        &[
            ("aws-lc-sys", "0.20.0"),
            ("bevy_reflect", "0.14.0"),
            ("clap", "4.5.4"),
            ("libc", "0.2.150"),
            ("librocksdb-sys", "0.16.0"),
            ("openssl-src", "300.3.0"),
            ("regex", "1.10.4"),
            ("syn", "2.0.60"),
            ("tokio", "1.38.0"),
            ("web-sys", "0.3.70"),
            ("wgpu", "22.1.0"),
            ("windows", "0.58.0"),
            ("windows-sys", "0.52.0"),
        ],
    ),
    (
        "later",
        &[
            ("aws-lc-sys", "0.25.0"),
            ("bevy_reflect", "0.15.0"),
            ("clap", "4.5.27"),
            ("libc", "0.2.169"),
            ("librocksdb-sys", "0.17.1"),
            ("openssl-src", "300.4.1"),
            ("regex", "1.11.1"),
            ("syn", "2.0.96"),
            ("tokio", "1.43.0"),
            ("web-sys", "0.3.77"),
            ("wgpu", "24.0.0"),
            ("windows", "0.61.1"),
            ("windows-sys", "0.59.0"),
        ],
    ),
];

const USR: &str = "/usr";

impl RealTree {
    /// Returns the tree, downloaded into `data` if it is missing there. The error is the reason why it cannot be
    /// measured here.
    pub(super) fn get(self, data: &Path) -> Result<Tree, String> {
        if self == RealTree::Usr {
            return usr(data);
        }
        let root = data.join(value_name(&self));
        let title = format!("{SIGNATURE}, real {VERSION}: {}, {}", value_name(&self), self.packages());
        let (files, bytes, expected) = cache::get_or_make(&root, SIGNATURE, &title, tree::read, |root| {
            self.download(root)?;
            Ok(Reference::of(root)?.metadata())
        })?;
        Ok(Tree { root, files, bytes, expected, in_place: false })
    }

    /// Returns all names and versions in one line.
    fn packages(self) -> String {
        let pinned = |packages: &[(&str, &str)]| {
            packages.iter().map(|(name, version)| format!("{name}={version}")).collect::<Vec<_>>().join(" ")
        };
        match self {
            RealTree::Node => format!("{NODE_DAY} {}", pinned(NODE_PACKAGES)),
            RealTree::Wheels => WHEEL_SETS.iter().map(|(_, wheels)| wheels.join(" ")).collect::<Vec<_>>().join(", "),
            RealTree::Crates => CRATE_SETS.iter().map(|(_, crates)| pinned(crates)).collect::<Vec<_>>().join(", "),
            RealTree::Usr => USR.to_owned(),
        }
    }

    fn download(self, root: &Path) -> io::Result<()> {
        match self {
            RealTree::Node => node(root),
            RealTree::Wheels => wheels(root),
            RealTree::Crates => crates(root),
            RealTree::Usr => Ok(()),
        }
    }
}

/// Returns the system's /usr as it is. Its equal files are found again in each run, because it changes.
fn usr(data: &Path) -> Result<Tree, String> {
    let root = PathBuf::from(USR);
    if !cfg!(unix) || !root.is_dir() {
        return Err(format!("this system has no {USR}"));
    }
    if data.starts_with(&root) {
        return Err(format!("the data folder {} is in it; choose another with --data", data.display()));
    }
    eprintln!("reading {USR}");
    let reference = Reference::of(&root).map_err(|error| format!("{USR}: {error}"))?;
    let Reference { files, bytes, expected } = reference;
    Ok(Tree { root, files, bytes, expected, in_place: true })
}

fn node(root: &Path) -> io::Result<()> {
    let dependencies: serde_json::Map<String, serde_json::Value> =
        NODE_PACKAGES.iter().map(|(name, version)| ((*name).to_owned(), (*version).into())).collect();
    let manifest = serde_json::json!({ "private": true, "dependencies": dependencies });
    fs::write(root.join("package.json"), manifest.to_string())?;
    let mut install = client("npm", root)?;
    install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--before", NODE_DAY]);
    run(&mut install)
}

fn wheels(root: &Path) -> io::Result<()> {
    for (folder, wheels) in WHEEL_SETS {
        let mut install = client("python3", root)?;
        install.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile"]);
        install.arg("--only-binary=:all:").args(WHEEL_PLATFORM).args(["--target", folder]).args(*wheels);
        run(&mut install)?;
    }
    Ok(())
}

fn crates(root: &Path) -> io::Result<()> {
    let workspace = program::workspace_root().map_err(io::Error::other)?;
    let mut vendor = client("cargo", root)?;
    vendor.args(["vendor", "--quiet", "--locked", "--versioned-dirs", "--sync"]).arg(workspace.join("Cargo.toml"));
    for (nth, (name, crates)) in CRATE_SETS.iter().enumerate() {
        let folder = root.join(name);
        fs::create_dir_all(folder.join("src"))?;
        fs::write(folder.join("src").join("lib.rs"), "")?;
        let manifest = folder.join("Cargo.toml");
        fs::write(&manifest, crate_manifest(name, crates))?;
        run(client("cargo", root)?.args(["generate-lockfile", "--quiet", "--manifest-path"]).arg(&manifest))?;
        vendor.arg(if nth == 0 { "--manifest-path" } else { "--sync" }).arg(manifest);
    }
    run(vendor.arg("vendor"))
}

fn crate_manifest(name: &str, crates: &[(&str, &str)]) -> String {
    let crates = crates.iter().map(|(name, version)| format!("{name} = \"={version}\"\n")).collect::<String>();
    format!("[package]\nname = \"{name}\"\nedition = \"2021\"\n\n[workspace]\n\n[dependencies]\n{crates}")
}

/// Returns the command of a program on the PATH, which runs in `folder`.
fn client(name: &str, folder: &Path) -> io::Result<Command> {
    let program = program::find_program(name).ok_or_else(|| io::Error::other(format!("{name} is not on the PATH")))?;
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

/// Runs a client. The error ends with the last line that it printed.
fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stderr(Stdio::piped()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let reason = stderr.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let program = Path::new(command.get_program()).display().to_string();
    Err(io::Error::other(format!("{program} failed ({}): {reason}", output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn every_package_is_pinned_and_the_title_has_one_line() {
        for tree in [RealTree::Node, RealTree::Wheels, RealTree::Crates] {
            let packages = tree.packages();
            assert!(packages.len() > 300 && !packages.contains('\n'), "{packages}");
        }
        for (folder, wheels) in WHEEL_SETS {
            assert!(wheels.iter().all(|wheel| wheel.contains("==")), "{folder}");
        }
        assert!(crate_manifest("later", &[("libc", "0.2.1")]).ends_with("[dependencies]\nlibc = \"=0.2.1\"\n"));
    }

    #[test]
    fn failed_client_is_the_reason_and_a_missing_one_too() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let error = client("no-such-client", scratch.path()).err().unwrap().to_string();
        assert_eq!(error, "no-such-client is not on the PATH");
        let error = run(client("cargo", scratch.path()).unwrap().arg("--no-such-option")).unwrap_err().to_string();
        assert!(error.contains("failed (exit status: "), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn usr_is_not_measured_if_the_data_folder_is_in_it() {
        let error = RealTree::Usr.get(Path::new("/usr/data")).err().unwrap();
        assert!(error.contains("--data") || error.contains("no /usr"), "{error}");
    }
}
