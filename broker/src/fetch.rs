//! Getting RabbitMQ without installing it: Debian's packages, downloaded and unpacked into a folder.
//!
//! Owns that folder. It appears there whole or not at all: everything is done beside it, under a name of its own,
//! and renamed at the end, so neither a broken download nor two runs at once leave something that passes for a
//! good one. Only what the system lacks is downloaded.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, OrFault};
use crate::files;

/// The broker; and for benchmarks, the client in C that consumes with one connection and no framework.
const PACKAGES: [&str; 2] = ["rabbitmq-server", "amqp-tools"];

/// The last file that is written.
const MARKER: &str = "complete";

/// The root of what was unpacked in a folder, if all of it is there.
pub(crate) fn complete(folder: &Path) -> Option<PathBuf> {
    folder.join(MARKER).is_file().then(|| folder.join("root"))
}

/// Fills the folder. Returns the root of what was unpacked.
pub(crate) fn fetch(folder: &Path) -> Result<PathBuf, Error> {
    let beside = folder.with_file_name(format!("rabbitmq.{}", files::random_word()?));
    std::fs::create_dir_all(&beside).or_fault_at("make", &beside)?;
    let fetched = fill(&beside).and_then(|()| put_in_place(&beside, folder));
    // What failed, or was already fetched by another run, is not needed.
    let _ = std::fs::remove_dir_all(&beside);
    fetched
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
    std::fs::remove_dir_all(&packages).or_fault_at("remove", &packages)?;
    let marker = folder.join(MARKER);
    std::fs::write(&marker, PACKAGES.join("\n")).or_fault_at("write", &marker)
}

/// Lists of packages go out of date; a first attempt without fetching them is quick where they are not. The second
/// has lists of its own, so that it changes nothing of the system and needs no root.
fn download(into: &Path) -> Result<(), Error> {
    for part in ["archives/partial", "lists/partial"] {
        let part = into.join(part);
        std::fs::create_dir_all(&part).or_fault_at("make", &part)?;
    }
    let own_lists = format!("Dir::State::lists={}", into.join("lists").display());
    let install = ["install", "--yes", "--no-install-recommends", "--download-only"];
    let install = [&install[..], &PACKAGES].concat();
    let with_own_lists = |words: &[&str]| apt_get(into, &[words, &["-o", &own_lists]].concat());
    if apt_get(into, &install)? || (with_own_lists(&["update"])? && with_own_lists(&install)?) {
        return Ok(());
    }
    Err(Error::NotGot("apt-get could not download it; its output above says why".to_owned()))
}

fn apt_get(into: &Path, words: &[&str]) -> Result<bool, Error> {
    let mut command = Command::new("apt-get");
    command.args(words).arg("-o").arg(format!("Dir::Cache={}", into.display()));
    // The lock is root's alone, and guards folders that we do not write.
    command.args(["-o", "Debug::NoLocking=1"]).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let status = command.status().map_err(|error| Error::NotGot(format!("cannot start apt-get: {error}")))?;
    Ok(status.success())
}

fn unpack(package: &Path, root: &Path) -> Result<(), Error> {
    let status =
        Command::new("dpkg-deb").arg("--extract").args([package, root]).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::NotGot(format!("dpkg-deb of {}: {status}", package.display()))),
        Err(error) => Err(Error::NotGot(format!("cannot start dpkg-deb: {error}"))),
    }
}

fn put_in_place(beside: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let rename = || std::fs::rename(beside, folder);
    let mut renamed = rename();
    if renamed.is_err() && complete(folder).is_none() {
        // Something lies there that is not whole, which a rename does not replace.
        let _ = std::fs::remove_dir_all(folder);
        renamed = rename();
    }
    match complete(folder) {
        Some(root) => Ok(root),
        None => renamed.or_fault_at("put RabbitMQ into", folder).map(|()| folder.join("root")),
    }
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).or_fault_at("list", folder)?;
    entries.map(|entry| Ok(entry.or_fault_at("list", folder)?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gristmill-fetch-{}", files::random_word().unwrap()));
        std::fs::create_dir_all(folder.join("beside/root")).unwrap();
        std::fs::write(folder.join("beside").join(MARKER), "").unwrap();
        folder
    }

    #[test]
    fn what_is_not_whole_is_replaced() {
        let folder = folder();
        let place = folder.join("rabbitmq");
        std::fs::create_dir_all(place.join("root/half")).unwrap();
        assert_eq!(complete(&place), None);
        let root = put_in_place(&folder.join("beside"), &place).unwrap();
        assert_eq!(complete(&place), Some(root.clone()));
        assert!(!root.join("half").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn who_comes_second_uses_what_the_first_has_put_there() {
        let folder = folder();
        let place = folder.join("rabbitmq");
        std::fs::create_dir_all(place.join("root/first")).unwrap();
        std::fs::write(place.join(MARKER), "").unwrap();
        let root = put_in_place(&folder.join("beside"), &place).unwrap();
        assert!(root.join("first").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
