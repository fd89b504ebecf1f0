//! Where files and folders are, for people and for programs.
//!
//! Owns how the paths of the catalog become absolute, how one that is no text is written in JSON, and which roots a
//! person means.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use gristmill_store::roots::Root;
use gristmill_store::{Store, display_path};
use serde_json::{Map, Value, json};

use crate::error::Error;

/// The roots of a store, by number.
pub(super) struct RootPaths(HashMap<i64, Root>);

impl RootPaths {
    pub(super) fn new(store: &Store) -> Result<Self, Error> {
        Ok(RootPaths(store.roots().list()?.into_iter().map(|root| (root.id, root)).collect()))
    }

    /// The path of something in a root. A root's own path there is empty.
    pub(super) fn absolute(&self, root: i64, path: &Path) -> PathBuf {
        match self.0.get(&root) {
            Some(root) if path.as_os_str().is_empty() => root.path.clone(),
            Some(root) => root.path.join(path),
            // Removed a moment ago.
            None => path.to_path_buf(),
        }
    }

    /// A root's path, as text.
    pub(super) fn root(&self, root: i64) -> String {
        self.0.get(&root).map(|root| path_text(&root.path)).unwrap_or_default()
    }

    /// Puts a root's path into an object, as [`with_path`] does.
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

/// The roots that words mean, and those inside them. Nothing for no words.
pub(super) fn select_roots(store: &Store, words: &[PathBuf]) -> Result<Vec<Root>, Error> {
    let wanted: Vec<Root> =
        words.iter().map(|word| gristmill_dedup::roots::named(store, word)).collect::<Result<_, _>>()?;
    let within = |root: &Root| wanted.iter().any(|wanted| root.path.starts_with(&wanted.path));
    Ok(store.roots().list()?.into_iter().filter(within).collect())
}

/// A path as JSON and CSV have it: as it is if it is text, escaped as for people if it is not.
pub(super) fn path_text(path: &Path) -> String {
    path.to_str().map_or_else(|| display_path(path), str::to_owned)
}

/// An object with a path in it: as text, and if it is no text, as bytes too.
pub(super) fn with_path(path: &Path) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("path".to_owned(), json!(path_text(path)));
    if let Some(bytes) = bytes(path) {
        object.insert("path_bytes".to_owned(), json!(bytes));
    }
    object
}

/// The bytes of a path that is no text, in hexadecimal.
pub(super) fn bytes(path: &Path) -> Option<String> {
    path.to_str().is_none().then(|| hex(path.as_os_str().as_encoded_bytes()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
