//! The folders and files that a scan is asked for.
//!
//! Owns what an argument is, the format of a list of files, and which new roots are needed. `gristmill_dedup` resolves
//! the names.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

use gristmill_dedup::NamedFiles;
use gristmill_dedup::roots::{has_file, resolve};
use gristmill_store::Store;
use gristmill_store::roots::Root;

use crate::error::Error;
use crate::output::path;
use crate::units::thousands;

/// Maximum number of folders that named files register. Each would be a root of its own.
const MAX_NEW_ROOTS: usize = 100;

pub(super) struct Inputs {
    /// Whether nothing is named, so that all roots are scanned.
    pub(super) is_all_roots: bool,
    /// Folders to scan with everything below them, resolved.
    pub(super) folders: Vec<PathBuf>,
    /// Files to scan; none if no file and no list is named.
    pub(super) named: Option<NamedFiles>,
    /// Arguments that do not exist.
    missing: Vec<PathBuf>,
}

impl Inputs {
    pub(super) fn read(arguments: &[PathBuf], list: Option<&Path>) -> Result<Self, Error> {
        let is_all_roots = arguments.is_empty() && list.is_none();
        let mut inputs = Inputs { is_all_roots, folders: Vec::new(), named: None, missing: Vec::new() };
        for argument in arguments {
            match (std::fs::metadata(argument), std::fs::symlink_metadata(argument)) {
                (Ok(found), _) if found.is_dir() => inputs.folders.push(resolve(argument)?),
                (_, Ok(_)) => inputs.named.get_or_insert_default().add(argument),
                // Reports errors such as a denied access.
                (_, Err(error)) if error.kind() != std::io::ErrorKind::NotFound => drop(resolve(argument)?),
                _ => inputs.missing.push(argument.clone()),
            }
        }
        if let Some(argument) = inputs.missing.first().filter(|argument| arguments.first() == Some(argument)) {
            refuse_former_mode(argument)?;
        }
        if let Some(list) = list {
            let named = inputs.named.get_or_insert_default();
            entries(&read(list)?).for_each(|name| named.add(Path::new(name)));
        }
        Ok(inputs)
    }

    /// Accepts an argument that does not exist if the catalog has a file there, which is then missing.
    pub(super) fn take_known_files(&mut self, store: Option<&Store>) -> Result<(), Error> {
        for argument in std::mem::take(&mut self.missing) {
            match store {
                Some(store) if has_file(store, &argument)? => self.named.get_or_insert_default().add(&argument),
                _ => {
                    let reason = "no such file or folder".to_owned();
                    return Err(gristmill_dedup::Error::Root(argument, reason).into());
                }
            }
        }
        Ok(())
    }

    /// Returns the folders that must be registered: those named, and the folders of files that no root contains.
    pub(super) fn new_roots(&mut self, known: &[Root]) -> Result<Vec<PathBuf>, Error> {
        if self.is_all_roots && known.is_empty() {
            let text = "no folder has been scanned yet; name one: `gristmill scan FOLDER`";
            return Err(Error::Setting(text.to_owned()));
        }
        let is_known = |folder: &PathBuf| known.iter().any(|root| root.path == *folder);
        let mut new: Vec<PathBuf> = Vec::new();
        for folder in self.folders.iter().filter(|folder| !is_known(folder)) {
            if !new.contains(folder) {
                new.push(folder.clone());
            }
        }
        let roots: Vec<PathBuf> = known.iter().map(|root| root.path.clone()).chain(new.iter().cloned()).collect();
        let of_files = self.named.as_mut().map(|named| named.folders_outside(&roots)).unwrap_or_default();
        if of_files.len() > MAX_NEW_ROOTS {
            let count = thousands(of_files.len() as u64);
            let example = common_folder(&of_files).map_or_else(
                || "`gristmill scan FOLDER --mode walk`".to_owned(),
                |folder| format!("`gristmill scan {} --mode walk`", crate::hints::shell_word(&folder)),
            );
            return Err(Error::Setting(format!(
                "the named files are in {count} folders that no root contains, and each would become a root; at most \
                 {MAX_NEW_ROOTS} can. First register a folder that contains them: {example}"
            )));
        }
        new.extend(of_files);
        Ok(new)
    }
}

/// Returns the innermost folder that contains all folders, unless it is the root of the file system.
fn common_folder(folders: &[PathBuf]) -> Option<PathBuf> {
    let mut ancestors = folders.first()?.ancestors();
    let common = ancestors.find(|above| folders.iter().all(|folder| folder.starts_with(above)))?;
    common.parent().map(|_| common.to_path_buf())
}

/// Refuses a missing folder whose name was a mode of earlier versions.
fn refuse_former_mode(argument: &Path) -> Result<(), Error> {
    let mode = match argument.to_str() {
        Some("all") => "all",
        Some("folders") => "walk",
        Some("files") => "hash",
        _ => return Ok(()),
    };
    let folder = path(argument);
    Err(Error::Setting(format!("there is no folder {folder}; for a mode, write `gristmill scan --mode {mode}`")))
}

fn read(list: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = match list == Path::new("-") {
        true => std::io::stdin().read_to_end(&mut bytes),
        false => std::fs::File::open(list).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => {
            let name = if list == Path::new("-") { "standard input".to_owned() } else { path(list) };
            Err(Error::Setting(format!("cannot read the list of files {name} (--files-from): {error}")))
        }
    }
}

/// Returns the names in a list. Empty ones are ignored.
fn entries(list: &[u8]) -> impl Iterator<Item = &OsStr> {
    let end = if list.contains(&0) { 0 } else { b'\n' };
    list.split(move |byte| *byte == end).filter(|name| !name.is_empty()).filter_map(name)
}

#[cfg(unix)]
fn name(bytes: &[u8]) -> Option<&OsStr> {
    Some(std::os::unix::ffi::OsStrExt::from_bytes(bytes))
}

/// A list of another encoding cannot be read here.
#[cfg(not(unix))]
fn name(bytes: &[u8]) -> Option<&OsStr> {
    std::str::from_utf8(bytes).ok().map(|name| OsStr::new(name.trim_end_matches('\r')))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_nul_bytes_if_there_is_one() {
        let cases: [(&[u8], &[&str]); 6] = [
            (b"", &[]),
            (b"a", &["a"]),
            (b"a\nb c\n\n d\r\n", &["a", "b c", " d\r"]),
            (b"a\nb\0c\0\0", &["a\nb", "c"]),
            (b"\0", &[]),
            (b"a\0b\n", &["a", "b\n"]),
        ];
        for (list, expected) in cases {
            assert_eq!(entries(list).collect::<Vec<_>>(), expected, "{list:?}");
        }
    }

    #[test]
    fn common_folder_is_the_innermost_one() {
        let common = |folders: &[&str]| common_folder(&folders.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(common(&["/a/b/c", "/a/b/d", "/a/b"]), Some("/a/b".into()));
        assert_eq!(common(&["/a/b", "/c"]), None);
    }
}
