//! The files that a user names, to be scanned alone.
//!
//! Owns what a name means: its folder is made absolute and its symbolic links are resolved, so that all names of a file
//! lead to one root, the innermost one that contains it. What the entry itself is, the walk decides
//! (`scan/walk/named`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gristmill_store::roots::Root;

/// Names in one folder.
pub(crate) type Names = Arc<BTreeSet<OsString>>;

/// Names of a root, by folder relative to the root.
pub(crate) type NamesOfRoot = BTreeMap<PathBuf, Names>;

/// Files that the user named.
#[derive(Clone, Debug, Default)]
pub struct NamedFiles {
    /// Names by absolute folder.
    folders: BTreeMap<PathBuf, Names>,
    /// Folders as they were named, resolved.
    resolved: HashMap<PathBuf, Result<PathBuf, String>>,
    /// Names that lead to no file, with the reason.
    refused: BTreeMap<PathBuf, String>,
}

/// The names of a scan by root.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assigned {
    pub(crate) by_root: HashMap<i64, NamesOfRoot>,
    /// Names without a root, with the reason.
    pub(crate) refused: Vec<(PathBuf, String)>,
}

impl NamedFiles {
    /// Adds a name, relative to the current folder or absolute. A name that was added before counts once. One whose
    /// folder does not exist is reported by the scan.
    pub fn add(&mut self, path: &Path) {
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            self.refused.insert(path.to_path_buf(), IS_FOLDER.to_owned());
            return;
        };
        if !self.resolved.contains_key(parent) {
            self.resolved.insert(parent.to_path_buf(), resolve(parent));
        }
        match self.resolved.get(parent) {
            Some(Ok(folder)) => insert(&mut self.folders, folder, name),
            Some(Err(reason)) => drop(self.refused.insert(path.to_path_buf(), reason.clone())),
            None => {}
        }
    }

    /// Returns the number of different files, and of names that lead to no file.
    pub fn count(&self) -> u64 {
        self.folders.values().map(|names| names.len() as u64).sum::<u64>() + self.refused.len() as u64
    }

    /// Returns the folders of the files that are in none of `roots`, without those inside another one of them, and
    /// refuses the names in folders where none leads to a regular file: a misspelled name registers no folder.
    pub fn folders_outside(&mut self, roots: &[PathBuf]) -> Vec<PathBuf> {
        let mut inside: BTreeSet<PathBuf> = roots.iter().cloned().collect();
        let mut outside = Vec::new();
        // A folder comes before those inside it.
        for (folder, names) in &mut self.folders {
            if folder.ancestors().any(|above| inside.contains(above)) {
                continue;
            }
            let refused = no_files(folder, names);
            if refused.len() < names.len() {
                inside.insert(folder.clone());
                outside.push(folder.clone());
            } else {
                self.refused.extend(refused.into_iter().map(|(name, reason)| (folder.join(name), reason)));
                *names = Names::default();
            }
        }
        self.folders.retain(|_, names| !names.is_empty());
        outside
    }

    /// Returns the ids of the roots that contain named files.
    pub fn roots(&self, roots: &[Root]) -> BTreeSet<i64> {
        let by_path = by_path(roots);
        self.folders.keys().filter_map(|folder| Some(innermost(&by_path, folder)?.id)).collect()
    }

    /// Distributes the names to the innermost roots that contain them. A symbolic link in a root that follows links is
    /// replaced by its target if that is in a root, because the target is a file of that root.
    pub(crate) fn assign(&self, roots: &[Root]) -> Assigned {
        let by_path = by_path(roots);
        let refused = self.refused.iter().map(|(path, reason)| (path.clone(), reason.clone())).collect();
        let mut assigned = Assigned { by_root: HashMap::new(), refused };
        for (folder, names) in &self.folders {
            let Some(root) = innermost(&by_path, folder) else {
                let no_root = names.iter().map(|name| (folder.join(name), "no root contains it".to_owned()));
                assigned.refused.extend(no_root);
                continue;
            };
            let targets = if root.follow_links { targets(&by_path, folder, names) } else { Vec::new() };
            let mut own = names.clone();
            for (link, (target_root, target)) in &targets {
                Arc::make_mut(&mut own).remove(link);
                if let (Some(parent), Some(name)) = (target.parent(), target.file_name()) {
                    insert(assigned.by_root.entry(*target_root).or_default(), parent, name);
                }
            }
            let Ok(inside) = folder.strip_prefix(&root.path) else { continue };
            let known = assigned.by_root.entry(root.id).or_default();
            match known.get_mut(inside) {
                Some(known) => Arc::make_mut(known).extend(own.iter().cloned()),
                None => drop(known.insert(inside.to_path_buf(), own)),
            }
        }
        for names in assigned.by_root.values_mut() {
            names.retain(|_, names| !names.is_empty());
        }
        assigned.by_root.retain(|_, names| !names.is_empty());
        assigned
    }
}

/// Whether a file is among the names. `path` is relative to the root.
pub(crate) fn contains(names: &NamesOfRoot, path: &Path) -> bool {
    let folder = path.parent().and_then(|folder| names.get(folder));
    folder.is_some_and(|names| path.file_name().is_some_and(|name| names.contains(name)))
}

/// Identifies the names of a scan: only a scan of the same names resumes it.
pub(crate) fn digest(names: &NamesOfRoot) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut update = |name: &OsStr| {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_encoded_bytes());
    };
    for (folder, names) in names {
        update(folder.as_os_str());
        names.iter().for_each(|name| update(name));
        // No entry has an empty name.
        update(OsStr::new(""));
    }
    hasher.finalize().to_hex().to_string()
}

/// Reason why a named file cannot be scanned.
pub(crate) const NO_SUCH_FILE: &str = "no such file";

/// Reason why a folder is not scanned although it is named.
pub(crate) const IS_FOLDER: &str = "is a folder; pass it as an argument to scan everything below it";

fn resolve(parent: &Path) -> Result<PathBuf, String> {
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    std::fs::canonicalize(parent).map_err(|error| match error.kind() {
        ErrorKind::NotFound => "no such file: its folder does not exist".to_owned(),
        ErrorKind::NotADirectory => "no such file: a file is named as a folder".to_owned(),
        _ => format!("cannot reach its folder: {error}"),
    })
}

/// Returns the names that lead to no regular file, with the reason.
fn no_files(folder: &Path, names: &Names) -> Vec<(OsString, String)> {
    let reason = |name: &OsString| match std::fs::symlink_metadata(folder.join(name)) {
        Ok(found) if found.is_file() => None,
        Ok(found) if found.is_dir() => Some(IS_FOLDER.to_owned()),
        Ok(found) if found.is_symlink() => Some("a symbolic link in no root; name its target".to_owned()),
        Ok(_) => Some("a pipe, socket or device".to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(NO_SUCH_FILE.to_owned()),
        Err(error) => Some(error.to_string()),
    };
    names.iter().filter_map(|name| Some((name.clone(), reason(name)?))).collect()
}

fn insert(folders: &mut BTreeMap<PathBuf, Names>, folder: &Path, name: &OsStr) {
    match folders.get_mut(folder) {
        Some(names) => drop(Arc::make_mut(names).insert(name.to_owned())),
        None => drop(folders.insert(folder.to_path_buf(), Arc::new(BTreeSet::from([name.to_owned()])))),
    }
}

fn by_path(roots: &[Root]) -> HashMap<&Path, &Root> {
    roots.iter().map(|root| (root.path.as_path(), root)).collect()
}

fn innermost<'a>(roots: &HashMap<&Path, &'a Root>, folder: &Path) -> Option<&'a Root> {
    folder.ancestors().find_map(|path| roots.get(path).copied())
}

/// Returns the links among the names whose target is a file in a root, with that root and the path in it.
fn targets(roots: &HashMap<&Path, &Root>, folder: &Path, names: &Names) -> Vec<(OsString, (i64, PathBuf))> {
    let target_of = |name: &OsString| {
        let path = folder.join(name);
        if !std::fs::symlink_metadata(&path).ok()?.is_symlink() {
            return None;
        }
        let target = std::fs::canonicalize(&path).ok().filter(|target| !target.is_dir())?;
        let root = innermost(roots, target.parent()?)?;
        Some((name.clone(), (root.id, target.strip_prefix(&root.path).ok()?.to_path_buf())))
    };
    names.iter().filter_map(target_of).collect()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn folders_outside_of_roots_are_the_outermost_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let base = std::fs::canonicalize(folder.path()).expect("its path");
        for path in ["root/in", "a/b/c", "a b", "d", "e/f"] {
            std::fs::create_dir_all(base.join(path)).expect("a folder");
        }
        for path in ["a/b/c/y", "a/z", "a b/w", "d/v", "e/f/t"] {
            std::fs::write(base.join(path), "").expect("a file");
        }
        std::os::unix::fs::symlink("f/t", base.join("e/link")).expect("a link");
        let mut named = NamedFiles::default();
        for name in [
            "root/in/x",
            "a/b/c/y",
            "a/z",
            "a/../a/z",
            "a b/w",
            "d/v",
            "d/./v",
            "nowhere/u",
            "/",
            "e/no",
            "e/f",
            "e/link",
            "e/f/t",
            "a/no",
        ] {
            named.add(&base.join(name));
        }
        let outside = named.folders_outside(&[base.join("root")]);
        assert_eq!(outside, ["a", "a b", "d", "e/f"].map(|path| base.join(path)));
        // `a/no` is left to the walk of the new root.
        assert_eq!((named.count(), named.refused.len()), (12, 5), "{named:?}");
    }
}
