//! Paths of files and folders in the catalog.
//!
//! Owns how paths become absolute, how a path that is not UTF-8 is written in JSON, and how users select roots.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use gristmill_store::roots::Root;
use gristmill_store::{Store, display_path};
use serde_json::{Map, Value, json};

use crate::error::Error;

/// The roots of a store, by id.
pub(super) struct RootPaths(HashMap<i64, Root>);

impl RootPaths {
    pub(super) fn new(store: &Store) -> Result<Self, Error> {
        Ok(RootPaths(store.roots().list()?.into_iter().map(|root| (root.id, root)).collect()))
    }

    /// Returns the absolute path of an entry of a root. The entry of the root itself has an empty path.
    pub(super) fn absolute(&self, root: i64, path: &Path) -> PathBuf {
        match self.0.get(&root) {
            Some(root) if path.as_os_str().is_empty() => root.path.clone(),
            Some(root) => root.path.join(path),
            // The root was removed meanwhile.
            None => path.to_path_buf(),
        }
    }

    pub(super) fn root(&self, root: i64) -> String {
        self.0.get(&root).map(|root| path_text(&root.path)).unwrap_or_default()
    }

    /// Adds the path of a root to an object, as [`with_path`] does.
    pub(super) fn insert_root(&self, object: &mut Map<String, Value>, root: i64) {
        object.insert("root".to_owned(), json!(self.root(root)));
        if let Some(bytes) = self.0.get(&root).and_then(|root| bytes(&root.path)) {
            object.insert("root_bytes".to_owned(), json!(bytes));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the roots with these paths or names, and the roots inside them. Returns none if nothing is named.
pub(super) fn select_roots(store: &Store, names: &[PathBuf]) -> Result<Vec<Root>, Error> {
    let selected: Vec<Root> =
        names.iter().map(|name| gristmill_dedup::roots::named(store, name)).collect::<Result<_, _>>()?;
    let within = |root: &Root| selected.iter().any(|outer| root.path.starts_with(&outer.path));
    Ok(store.roots().list()?.into_iter().filter(within).collect())
}

/// Formats a path for JSON and CSV: unchanged if it is UTF-8, otherwise escaped as for people.
pub(super) fn path_text(path: &Path) -> String {
    path.to_str().map_or_else(|| display_path(path), str::to_owned)
}

/// Returns an object with a path: as text, and as bytes too if it is not UTF-8.
pub(super) fn with_path(path: &Path) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("path".to_owned(), json!(path_text(path)));
    if let Some(bytes) = bytes(path) {
        object.insert("path_bytes".to_owned(), json!(bytes));
    }
    object
}

/// Returns the bytes of a path that is not UTF-8, in hexadecimal.
pub(super) fn bytes(path: &Path) -> Option<String> {
    path.to_str().is_none().then(|| hex(path.as_os_str().as_encoded_bytes()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
