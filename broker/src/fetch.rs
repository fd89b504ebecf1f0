//! Downloads RabbitMQ without installing it: Debian's packages, unpacked into a folder.
//!
//! Owns that folder. It is filled under a temporary name and renamed at the end, so neither a failed download nor two
//! concurrent runs leave an incomplete folder. Packages that the system has are not downloaded.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, IoContext};
use crate::files;

/// The broker, and for benchmarks a consumer in C with one connection and no framework.
const PACKAGES: [&str; 2] = ["rabbitmq-server", "amqp-tools"];

/// Name of the file that is written last.
const MARKER: &str = "complete";

/// Root of the unpacked packages in a folder, if that is complete.
pub(crate) fn complete(folder: &Path) -> Option<PathBuf> {
    folder.join(MARKER).is_file().then(|| folder.join("root"))
}

/// Downloads and unpacks the packages into a folder. Returns the root of the unpacked packages.
pub(crate) fn fetch(folder: &Path) -> Result<PathBuf, Error> {
    let staging = folder.with_file_name(format!("rabbitmq.{}", files::random_word()?));
    std::fs::create_dir_all(&staging).context_at("create", &staging)?;
    let result = fill(&staging).and_then(|()| move_into_place(&staging, folder));
    // A failed download, or one that another run has completed first, is deleted.
    let _ = std::fs::remove_dir_all(&staging);
    result
}

fn fill(folder: &Path) -> Result<(), Error> {
    let packages = folder.join("packages");
    download(&packages)?;
    let root = folder.join("root");
    for package in files_in(&packages.join("archives"))? {
        if package.extension().is_some_and(|extension| extension == "deb") {
            unpack(&package, &root)?;
        }
    }
    std::fs::remove_dir_all(&packages).context_at("remove", &packages)?;
    let marker = folder.join(MARKER);
    std::fs::write(&marker, PACKAGES.join("\n")).context_at("write", &marker)
}

/// Tries the system's package lists first, which is fast if they are current. The second attempt updates its own lists,
/// so that it changes nothing of the system and needs no root.
fn download(into: &Path) -> Result<(), Error> {
    for part in ["archives/partial", "lists/partial"] {
        let part = into.join(part);
        std::fs::create_dir_all(&part).context_at("create", &part)?;
    }
    let own_lists = format!("Dir::State::lists={}", into.join("lists").display());
    let install = ["install", "--yes", "--no-install-recommends", "--download-only"];
    let install = [&install[..], &PACKAGES].concat();
    let with_own_lists = |args: &[&str]| apt_get(into, &[args, &["-o", &own_lists]].concat());
    if apt_get(into, &install)? || (with_own_lists(&["update"])? && with_own_lists(&install)?) {
        return Ok(());
    }
    Err(Error::DownloadFailed("apt-get could not download it; see its output above".to_owned()))
}

fn apt_get(into: &Path, args: &[&str]) -> Result<bool, Error> {
    let mut command = Command::new("apt-get");
    command.args(args).arg("-o").arg(format!("Dir::Cache={}", into.display()));
    // Only root may lock, and the locks protect folders that are not written here.
    command.args(["-o", "Debug::NoLocking=1"]).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let status = command.status().map_err(|error| Error::DownloadFailed(format!("cannot start apt-get: {error}")))?;
    Ok(status.success())
}

fn unpack(package: &Path, root: &Path) -> Result<(), Error> {
    let status = Command::new("dpkg-deb").arg("--extract").args([package, root]).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::DownloadFailed(format!("dpkg-deb of {}: {status}", package.display()))),
        Err(error) => Err(Error::DownloadFailed(format!("cannot start dpkg-deb: {error}"))),
    }
}

fn move_into_place(staging: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let rename = || std::fs::rename(staging, folder);
    let mut renamed = rename();
    if renamed.is_err() && complete(folder).is_none() {
        // Removes an incomplete folder, which a rename does not replace.
        let _ = std::fs::remove_dir_all(folder);
        renamed = rename();
    }
    match complete(folder) {
        Some(root) => Ok(root),
        None => renamed.context_at("move RabbitMQ into", folder).map(|()| folder.join("root")),
    }
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).context_at("list", folder)?;
    entries.map(|entry| Ok(entry.context_at("list", folder)?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gristmill-fetch-{}", files::random_word().unwrap()));
        std::fs::create_dir_all(folder.join("staging/root")).unwrap();
        std::fs::write(folder.join("staging").join(MARKER), "").unwrap();
        folder
    }

    #[test]
    fn incomplete_folder_is_replaced() {
        let folder = folder();
        let target = folder.join("rabbitmq");
        std::fs::create_dir_all(target.join("root/half")).unwrap();
        assert_eq!(complete(&target), None);
        let root = move_into_place(&folder.join("staging"), &target).unwrap();
        assert_eq!(complete(&target), Some(root.clone()));
        assert!(!root.join("half").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn complete_folder_of_a_concurrent_run_is_kept() {
        let folder = folder();
        let target = folder.join("rabbitmq");
        std::fs::create_dir_all(target.join("root/first")).unwrap();
        std::fs::write(target.join(MARKER), "").unwrap();
        let root = move_into_place(&folder.join("staging"), &target).unwrap();
        assert!(root.join("first").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
