//! Paths in answers, as they are serialised.
//!
//! Owns the JSON of a path that is not UTF-8: escaped text, and its bytes in hexadecimal.

use std::path::{Path, PathBuf};

use gristmill_store::display_path;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// An absolute path, with the root that it belongs to. Serialised as `path` and `root`, and for each that is not UTF-8
/// also as `path_bytes` and `root_bytes`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Location {
    /// Absolute path.
    pub path: PathBuf,
    /// Path of its root; `None` if it belongs to no root.
    pub root: Option<PathBuf>,
}

impl Location {
    pub(crate) fn new(path: PathBuf, root: Option<PathBuf>) -> Self {
        Location { path, root }
    }
}

impl Serialize for Location {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (names, path) in [(("path", "path_bytes"), Some(&self.path)), (("root", "root_bytes"), self.root.as_ref())]
        {
            let Some(path) = path else { continue };
            map.serialize_entry(names.0, &text(path))?;
            if path.to_str().is_none() {
                let bytes = path.as_os_str().as_encoded_bytes();
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                map.serialize_entry(names.1, &hex)?;
            }
        }
        map.end()
    }
}

fn text(path: &Path) -> String {
    path.to_str().map_or_else(|| display_path(path), str::to_owned)
}

/// Serialises a list of paths as text.
pub(crate) fn paths_of<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| text(path)))
}

/// Serialises an optional path as text.
pub(crate) fn optional_path<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(text).serialize(serializer)
}
