//! What the catalog says, asked through the library.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gristmill_store::catalog::{Algorithm, FolderRef, Group, GroupQuery};
use gristmill_store::roots::Root;
use gristmill_store::{Durability, Result, Store};

pub(crate) fn open(path: &Path) -> Store {
    Store::options().durability(Durability::Normal).open(path).expect("a store")
}

/// A row of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRow {
    pub(crate) size: u64,
    pub(crate) missing: bool,
    /// Left out by filters.
    pub(crate) excluded: bool,
}

/// The rows of a root, by their paths in it.
pub(crate) type Rows = BTreeMap<PathBuf, FileRow>;

pub(crate) fn rows(store: &Store, root: i64) -> Result<Rows> {
    let catalog = store.catalog();
    let mut next = vec![catalog.root_folder(root)?];
    let mut rows = Rows::new();
    while let Some(place) = next.pop() {
        let known = catalog.known_entries(&place, true)?;
        for (name, file) in known.files {
            let (size, missing, excluded) = (file.stat.size, file.missing, file.excluded);
            rows.insert(place.path.join(name), FileRow { size, missing, excluded });
        }
        let below = |(name, folder): (_, gristmill_store::catalog::KnownFolder)| FolderRef {
            root,
            id: Some(folder.id),
            path: place.path.join::<std::ffi::OsString>(name),
        };
        next.extend(known.folders.into_iter().map(below));
    }
    Ok(rows)
}

/// Whether the root's own folder has a row of something that is there.
pub(crate) fn had_any(store: &Store, root: i64) -> Result<bool> {
    let known = store.catalog().known_entries(&store.catalog().root_folder(root)?, true)?;
    Ok(known.files.iter().any(|(_, file)| !file.missing)
        || known.folders.iter().any(|(_, folder)| !folder.removed))
}

/// The files whose contents are known, by their full paths, and by which algorithm.
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

/// A group, its members by their full paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedGroup {
    pub(crate) members: BTreeSet<PathBuf>,
    pub(crate) group: Group,
}

/// All groups of some roots; of all roots without any.
pub(crate) fn groups(store: &Store, roots: &[Root], only: &[i64]) -> Result<Vec<ListedGroup>> {
    // Empty files, too.
    let query = GroupQuery { roots: only.to_vec(), min_size: 0, ..GroupQuery::default() };
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
