//! Finds equal files by comparing all bytes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::fixture::GroupSet;

/// Every file below a folder, by relative path: its inode and its bytes.
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, Vec<u8>)> {
    let mut files = BTreeMap::new();
    let mut next = vec![folder.to_path_buf()];
    while let Some(folder_path) = next.pop() {
        for entry in fs::read_dir(folder_path).expect("a folder") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("its metadata");
            if metadata.is_dir() {
                next.push(path);
            } else if metadata.is_file() {
                let bytes = fs::read(&path).expect("its bytes");
                let inside = path.strip_prefix(folder).expect("inside").to_path_buf();
                files.insert(inside, (metadata.ino(), bytes));
            }
        }
    }
    files
}

/// Groups of non-empty files with equal bytes that are not all one inode.
pub(crate) fn groups(folder: &Path) -> GroupSet {
    let files = files(folder);
    let mut alike: BTreeMap<&[u8], Vec<(&PathBuf, u64)>> = BTreeMap::new();
    for (path, (inode, bytes)) in files.iter().filter(|(_, (_, bytes))| !bytes.is_empty()) {
        alike.entry(bytes).or_default().push((path, *inode));
    }
    let has_several_inodes = |group: &Vec<(&PathBuf, u64)>| group.iter().any(|(_, inode)| *inode != group[0].1);
    alike
        .into_values()
        .filter(has_several_inodes)
        .map(|group| group.into_iter().map(|(path, _)| path.clone()).collect())
        .collect()
}
