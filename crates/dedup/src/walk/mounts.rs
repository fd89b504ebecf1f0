//! Folders that are not on the filesystem that they were on when they were last walked.
//!
//! Owns whether the disk of such a folder is away or another one is mounted in its place.

use std::path::Path;

use gristmill_store::display_path;

use super::Walk;
use crate::sys::Folder;

/// Why a folder is not walked whose disk is not mounted.
pub(super) const UNMOUNTED: &str = "it is not on the disk that it was on when it was last scanned, and no disk is \
    mounted on it. Is its disk mounted? Nothing counts as gone; --allow-empty if what is there now is all there is";

impl Walk {
    /// Whether a folder on another filesystem than before is to be left alone, because its disk is not mounted. Warns if
    /// another disk is mounted there. The filesystems are that of its parent, if it was a mount point, and its own.
    pub(super) fn is_unmounted(
        &self,
        path: &Path,
        device: u64,
        (mounted_on, filesystem): (Option<i64>, Option<i64>),
    ) -> bool {
        let is_mounted = match mounted_on {
            Some(_) => mounted_on != filesystem,
            None if path.as_os_str().is_empty() => is_mount_point(&self.job.root.path, device),
            // It was no mount point.
            None => return false,
        };
        if is_mounted {
            let root = &self.job.root.path;
            let path = if path.as_os_str().is_empty() { root.clone() } else { root.join(path) };
            tracing::warn!(
                "another disk is mounted at {} than at the last scan; files that it does not have count as gone",
                display_path(&path)
            );
        }
        !is_mounted && !self.job.manner.allow_empty
    }
}

/// Whether a filesystem is mounted on a folder, which is on this device: its parent folder is on another one.
fn is_mount_point(path: &Path, device: u64) -> bool {
    let parent = path.parent().and_then(|parent| Folder::open(parent).ok());
    parent.and_then(|parent| parent.own().ok()).is_none_or(|parent| parent.device != device)
}
