//! Resolves paths and names typed by the user to roots.
//!
//! Owns the meaning of a path: it is made absolute and its symbolic links are resolved, so that all paths of a folder
//! name one root. Also decides whether a root's folder can be reached.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gristmill_store::catalog::FolderRef;
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
        Ok(_) => Err(Error::Root(path.to_path_buf(), "not a folder".to_owned())),
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

pub(crate) fn is_empty(folder: &Folder) -> bool {
    let mut empty = true;
    let listed = folder.list(|_, _| {
        empty = false;
        ControlFlow::Break(())
    });
    listed.is_ok() && empty
}

/// Returns the innermost root that contains a path.
pub fn innermost<'a>(roots: &'a [Root], path: &Path) -> Option<&'a Root> {
    let around = roots.iter().filter(|root| path.starts_with(&root.path));
    around.max_by_key(|root| root.path.as_os_str().len())
}

/// Whether the catalog has a file at a path, whose folder must exist.
pub fn has_file(store: &Store, path: &Path) -> Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let Ok(parent) = std::fs::canonicalize(parent) else { return Ok(false) };
    let roots = store.roots().list()?;
    let Some(root) = innermost(&roots, &parent) else { return Ok(false) };
    let Ok(inside) = parent.strip_prefix(&root.path) else { return Ok(false) };
    let Some(folder) = store.catalog().folder(root.id, inside)? else { return Ok(false) };
    let folder = FolderRef { root: root.id, id: Some(folder.id), path: inside.to_path_buf() };
    Ok(store.catalog().known_files(&folder, true)?.iter().any(|(known, _)| known == name))
}

/// Finds a root by path or name, whether or not its folder exists.
pub fn named(store: &Store, name_or_path: &Path) -> Result<Root> {
    let roots = store.roots().list()?;
    find(&roots, name_or_path)
        .cloned()
        .ok_or_else(|| Error::Root(name_or_path.to_path_buf(), format!("not a root ({})", registered(&roots))))
}

/// Returns the absolute path of a root, by path or name, or of a folder inside a root, by path. The folder need not
/// exist now, but its last scan must have found it.
pub fn folder(store: &Store, name_or_path: &Path) -> Result<PathBuf> {
    let roots = store.roots().list()?;
    if let Some(root) = find(&roots, name_or_path) {
        return Ok(root.path.clone());
    }
    let refused = |reason: String| Err(Error::Root(name_or_path.to_path_buf(), reason));
    let mut enclosing = None;
    for path in paths_of(name_or_path) {
        let Some(root) = innermost(&roots, &path) else { continue };
        let inside = path.strip_prefix(&root.path).unwrap_or(&path);
        // Filters may exclude a folder that contains another root.
        let has_root = roots.iter().any(|root| root.path.starts_with(&path));
        if has_root || store.catalog().has_folder(root.id, inside)? {
            return Ok(path);
        }
        enclosing = Some(root);
    }
    match enclosing {
        Some(_) if name_or_path.is_file() => {
            refused("a file; `gristmill copies FILE` lists the copies of a file".to_owned())
        }
        Some(root) => refused(format!(
            "the last scan of {} found no such folder; `gristmill scan` updates the catalog",
            display_path(&root.path)
        )),
        None => refused(format!("not a root, and not inside one ({})", registered(&roots))),
    }
}

fn find<'a>(roots: &'a [Root], name_or_path: &Path) -> Option<&'a Root> {
    let paths = paths_of(name_or_path);
    let path = |root: &&Root| paths.contains(&root.path);
    let name = |root: &&Root| root.name.as_str() == name_or_path.as_os_str();
    roots.iter().find(path).or_else(|| roots.iter().find(name))
}

/// Returns the absolute paths that a path can mean: with its symbolic links resolved if it exists, and as it is.
fn paths_of(path: &Path) -> Vec<PathBuf> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    std::fs::canonicalize(path).ok().into_iter().chain([absolute]).collect()
}

fn registered(roots: &[Root]) -> String {
    match roots.iter().map(|root| display_path(&root.path)).collect::<Vec<_>>().as_slice() {
        [] => "no root is registered; `gristmill scan FOLDER` registers one".to_owned(),
        known => format!("registered: {}", known.join(", ")),
    }
}
