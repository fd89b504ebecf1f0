//! Checks folders that are listed as identical entry by entry.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use gristmill_dedup::folders::{FolderOptions, find_identical};

use crate::round::{Check, Failure, Known, Round, fail};

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Folder,
    File(Vec<u8>),
    Link(PathBuf),
    Pipe,
}

/// Returns everything below a folder, regardless of filters.
fn entries(top: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut entries = BTreeMap::new();
    let mut next = vec![PathBuf::new()];
    while let Some(folder) = next.pop() {
        for entry in fs::read_dir(top.join(&folder)).into_iter().flatten().flatten() {
            let path = folder.join(entry.file_name());
            let kind = entry.file_type().expect("its type");
            let found = if kind.is_dir() {
                next.push(path.clone());
                Entry::Folder
            } else if kind.is_symlink() {
                Entry::Link(fs::read_link(entry.path()).expect("its target"))
            } else if kind.is_fifo() {
                Entry::Pipe
            } else {
                Entry::File(fs::read(entry.path()).expect("its bytes"))
            };
            entries.insert(path, found);
        }
    }
    entries
}

fn sorted<K, V: Clone + Ord>(map: &BTreeMap<K, V>) -> Vec<V> {
    let mut values: Vec<V> = map.values().cloned().collect();
    values.sort();
    values
}

impl Round {
    /// Checks, after a scan of all roots, that folders listed as identical have the same entries, and that other listed
    /// folders have the same scanned files.
    pub(crate) fn listed_folders_are_equal(&self) -> Check {
        let roots: BTreeMap<i64, PathBuf> = self.roots()?.into_iter().map(|root| (root.id, root.path)).collect();
        let mut scanned = BTreeMap::new();
        for (root, registered) in &self.registered {
            // The target of a link counts as a file of the link's folder.
            let (Known::Exactly(files), false) = (&registered.known, registered.follow) else {
                return Ok(());
            };
            scanned.extend(files.iter().map(|(path, file)| (root.join(path), file.bytes.clone())));
        }
        for match_names in [false, true] {
            let options = options!(FolderOptions { match_names });
            let listed = find_identical(self.store(), &options)
                .map_err(|error| Failure { kind: "folders cannot be compared", text: error.to_string() })?;
            for group in listed {
                let folders = group.folders.iter().map(|folder| roots[&folder.root].join(&folder.path));
                let folders: Vec<PathBuf> = folders.collect();
                let is_same = |a: &PathBuf, b: &PathBuf| {
                    let (all_a, all_b) = (entries(a), entries(b));
                    let files = |top: &PathBuf| -> BTreeMap<PathBuf, _> {
                        let inside =
                            scanned.iter().filter_map(|(path, bytes)| Some((path.strip_prefix(top).ok()?, bytes)));
                        inside.map(|(path, bytes)| (path.to_path_buf(), bytes.clone())).collect()
                    };
                    match (group.identical, match_names) {
                        (true, true) => all_a == all_b,
                        (true, false) => sorted(&all_a) == sorted(&all_b),
                        (false, true) => files(a) == files(b),
                        (false, false) => sorted(&files(a)) == sorted(&files(b)),
                    }
                };
                if !folders.windows(2).all(|pair| is_same(&pair[0], &pair[1])) {
                    let text = format!("{folders:?}, names count: {match_names}, {group:?}");
                    return fail("listed folders differ", text);
                }
            }
        }
        Ok(())
    }
}
