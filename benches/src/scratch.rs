//! A temporary folder for databases, caches and results, on the measured disk.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

static CREATED: AtomicU32 = AtomicU32::new(0);

/// A new folder that is removed on drop.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(parent: &Path) -> Result<Self, String> {
        let name = format!("gristmill-bench-{}-{}", std::process::id(), CREATED.fetch_add(1, Relaxed));
        let path = parent.join(name);
        // `create_dir_all` would accept an existing folder, which must not be removed on drop.
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Scratch(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}
