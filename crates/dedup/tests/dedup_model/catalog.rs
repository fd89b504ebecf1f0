//! Queries the catalog through the library.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gristmill_store::catalog::{Algorithm, FolderRef, Group, GroupQuery};
use gristmill_store::roots::Root;
use gristmill_store::{Durability, Result, Store};

pub(crate) fn open(path: &Path) -> Store {
    Store::options().durability(Durability::Normal).open(path).expect("a store")
}

/// State of a file row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRow {
    pub(crate) size: u64,
    pub(crate) missing: bool,
    /// Whether the filters exclude the file.
    pub(crate) excluded: bool,
}

/// The file rows of a root, by path relative to it.
pub(crate) type Rows = BTreeMap<PathBuf, FileRow>;

pub(crate) fn rows(store: &Store, root: i64) -> Result<Rows> {
    let catalog = store.catalog();
    let mut next = vec![catalog.root_folder(root)?];
    let mut rows = Rows::new();
    while let Some(parent) = next.pop() {
        let known = catalog.known_entries(&parent, true)?;
        for (name, file) in known.files {
            let (size, missing, excluded) = (file.stat.size, file.missing, file.excluded);
            rows.insert(parent.path.join(name), FileRow { size, missing, excluded });
        }
        let below = |(name, folder): (_, gristmill_store::catalog::KnownFolder)| FolderRef {
            root,
            id: Some(folder.id),
            path: parent.path.join::<std::ffi::OsString>(name),
        };
        next.extend(known.folders.into_iter().map(below));
    }
    Ok(rows)
}

/// Whether the folder of the root has a row of an entry that is not missing.
pub(crate) fn has_entries(store: &Store, root: i64) -> Result<bool> {
    let known = store.catalog().known_entries(&store.catalog().root_folder(root)?, true)?;
    Ok(known.files.iter().any(|(_, file)| !file.missing) || known.folders.iter().any(|(_, folder)| !folder.removed))
}

/// Files with a known hash, by absolute path, with the algorithm.
pub(crate) fn hashed(store: &Store, roots: &[Root]) -> Result<BTreeMap<PathBuf, Algorithm>> {
    let mut ids = BTreeMap::new();
    store.catalog().for_each_file(|row| {
        if let Some(algorithm) = row.algorithm {
            ids.insert(row.id, algorithm);
        }
        ControlFlow::Continue(())
    })?;
    let mut hashed = BTreeMap::new();
    for file in store.catalog().files_at(&ids.keys().copied().collect::<Vec<_>>())? {
        if let Some(root) = roots.iter().find(|root| root.id == file.root) {
            hashed.insert(root.path.join(file.path), ids[&file.id]);
        }
    }
    Ok(hashed)
}

/// A group with the absolute paths of its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedGroup {
    pub(crate) members: BTreeSet<PathBuf>,
    pub(crate) group: Group,
}

/// All groups of the roots `only`, or of all roots if it is empty.
pub(crate) fn groups(store: &Store, roots: &[Root], only: &[i64]) -> Result<Vec<ListedGroup>> {
    // Includes empty files.
    let query = GroupQuery::default().roots(only.to_vec()).min_size(0);
    let found = store.catalog().groups(&query)?;
    let path = |root: i64, path: &Path| {
        let root = roots.iter().find(|known| known.id == root);
        root.map_or_else(|| Path::new("of no root").join(path), |root| root.path.join(path))
    };
    let listed = found.groups.into_iter().map(|group| ListedGroup {
        members: group.members.iter().map(|member| path(member.root, &member.path)).collect(),
        group,
    });
    Ok(listed.collect())
}
