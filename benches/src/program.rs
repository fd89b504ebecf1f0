//! Finds the programs and the data folders of the benchmarks, and builds gristmill and the peers in Rust.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Returns the path of a program that is on the PATH.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Returns the chosen `gristmill` program, or builds one in release mode.
pub(crate) fn gristmill_program(chosen: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(program) = chosen {
        return std::path::absolute(program).map_err(|error| format!("{}: {error}", program.display()));
    }
    let root = workspace_root()?;
    let target = target_dir()?;
    let status = cargo_build(&["-p", "gristmill", "--bin", "gristmill"], &target).current_dir(root).status();
    if !status.map_err(|error| format!("cannot run cargo: {error}"))?.success() {
        return Err("cannot build gristmill; see the output of cargo".into());
    }
    Ok(target.join("release").join(format!("gristmill{}", std::env::consts::EXE_SUFFIX)))
}

/// Builds the program in `peers/NAME`, a separate workspace, with the versions of its lock file.
pub(crate) fn build_peer(name: &str) -> Result<PathBuf, String> {
    let manifest = workspace_root()?.join("benches").join("peers").join(name).join("Cargo.toml");
    let status = cargo_build(&["--locked", "--manifest-path"], &peers_target()?).arg(&manifest).status();
    if !status.map_err(|error| format!("cannot run cargo: {error}"))?.success() {
        return Err(format!("cannot build {}; see the output of cargo", manifest.display()));
    }
    peer_path(name)
}

/// Returns the path of a built peer.
pub(crate) fn peer_path(name: &str) -> Result<PathBuf, String> {
    let program = format!("peer-{name}{}", std::env::consts::EXE_SUFFIX);
    Ok(peers_target()?.join("release").join(program))
}

/// Separate from `release/`: the peers are other workspaces with other lock files.
fn peers_target() -> Result<PathBuf, String> {
    Ok(target_dir()?.join("peers"))
}

fn cargo_build(args: &[&str], target: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--target-dir"]).arg(target).args(args);
    command
}

/// Returns the root folder of the workspace.
pub(crate) fn workspace_root() -> Result<PathBuf, String> {
    // Cargo sets this variable at run time; the path from build time is the fallback.
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&manifest_dir).parent().ok_or("the manifest of the benchmarks has no parent folder")?;
    Ok(root.to_path_buf())
}

/// Returns the absolute data folder: the chosen one, or `bench-data` in the target folder.
pub(crate) fn data_dir(chosen: Option<&Path>) -> Result<PathBuf, String> {
    let chosen = match chosen {
        Some(data) => data.to_path_buf(),
        None => target_dir()?.join("bench-data"),
    };
    std::path::absolute(&chosen).map_err(|error| format!("{}: {error}", chosen.display()))
}

/// Returns the target folder that contains this program.
fn target_dir() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = program.parent().and_then(Path::parent).ok_or("the program is not in a target folder")?;
    Ok(target.to_path_buf())
}
