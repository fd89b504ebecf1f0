//! The measured disk: a temporary folder on it, and the duration of a sync.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A new folder that is removed on drop.
pub(super) struct TempFolder(PathBuf);

impl TempFolder {
    pub(super) fn new(parent: &Path) -> Result<Self, String> {
        let path = parent.join(format!("gristmill-bench-{}", std::process::id()));
        // `create_dir_all` would accept an existing folder, which must not be removed on drop.
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(TempFolder(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Returns the median time of 200 appends of 4 KiB with a sync. It describes the kind of disk and its load. It is not a
/// lower bound: commits with FULL were measured below it.
pub(super) fn median_sync_time(parent: &Path) -> Result<Duration, String> {
    let folder = TempFolder::new(parent)?;
    let path = folder.path().join("synced");
    let times = || -> io::Result<Vec<Duration>> {
        let mut file = File::create(&path)?;
        let mut timed = || {
            let start = Instant::now();
            file.write_all(&[7; 4_096])?;
            file.sync_data()?;
            Ok(start.elapsed())
        };
        (0..200).map(|_| timed()).collect()
    };
    let mut times = times().map_err(|error| format!("{}: {error}", path.display()))?;
    times.sort();
    Ok(times[times.len() / 2])
}
