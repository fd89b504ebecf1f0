//! Resolves paths and names typed by the user to roots.
//!
//! Owns the meaning of a path: it is made absolute and its symbolic links are resolved, so that all paths of a folder
//! name one root. Also decides whether a root's folder can be reached.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gristmill_store::roots::Root;
use gristmill_store::{Store, display_path};

use crate::error::{Error, Result};
use crate::sys::{Folder, may_be_one_filesystem};

/// Returns the path of a folder as it is registered: absolute, without symbolic links.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    let found = std::fs::canonicalize(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::Root(path.to_path_buf(), "no such folder".to_owned()),
        _ => Error::Root(path.to_path_buf(), error.to_string()),
    })?;
    match std::fs::metadata(&found) {
        Ok(metadata) if metadata.is_dir() => Ok(found),
        Ok(_) => {
            Err(Error::Root(path.to_path_buf(), "not a folder; give the folder that contains this file".to_owned()))
        }
        Err(error) => Err(Error::Root(path.to_path_buf(), error.to_string())),
    }
}

/// Lists the roots that cannot be reached now: their folder is missing, another filesystem is mounted in its place, or
/// it is empty although files were found in it, like the folder of an unmounted disk.
pub fn absent(store: &Store) -> Result<Vec<Root>> {
    Ok(store.roots().list()?.into_iter().filter(|root| open_if_reachable(store, root).is_none()).collect())
}

/// Opens the folder of a root, unless another filesystem is mounted there or the disk is unmounted.
pub(crate) fn open_if_reachable(store: &Store, root: &Root) -> Option<Folder> {
    let folder = Folder::open(&root.path).ok()?;
    let is_same = match &root.filesystem {
        Some(known) => folder.filesystem().is_none_or(|now| may_be_one_filesystem(&now, known)),
        None => true,
    };
    let is_unmounted = is_empty(&folder) && store.catalog().has_present_files(root.id).unwrap_or(true);
    (is_same && !is_unmounted).then_some(folder)
}

fn is_empty(folder: &Folder) -> bool {
    let mut empty = true;
    let listed = folder.list(|_, _| {
        empty = false;
        ControlFlow::Break(())
    });
    listed.is_ok() && empty
}

/// Finds a root by path or name, whether or not its folder exists.
pub fn named(store: &Store, name_or_path: &Path) -> Result<Root> {
    let roots = store.roots().list()?;
    let absolute = std::path::absolute(name_or_path).unwrap_or_else(|_| name_or_path.to_path_buf());
    let canonical = std::fs::canonicalize(name_or_path).ok();
    let path = |root: &&Root| root.path == absolute || canonical.as_ref() == Some(&root.path);
    let name = |root: &&Root| root.name.as_str() == name_or_path.as_os_str();
    roots.iter().find(path).or_else(|| roots.iter().find(name)).cloned().ok_or_else(|| {
        let known = roots.iter().map(|root| display_path(&root.path)).collect::<Vec<_>>();
        let known = match known.as_slice() {
            [] => "no root is registered; `gristmill scan FOLDER` registers one".to_owned(),
            known => format!("registered: {}", known.join(", ")),
        };
        Error::Root(name_or_path.to_path_buf(), format!("not a root ({known})"))
    })
}
