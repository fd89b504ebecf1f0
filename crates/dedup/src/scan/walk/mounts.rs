//! Detects folders that are on another filesystem than when they were last walked.
//!
//! Owns the test whether a disk is mounted, and the messages about replaced and unmounted disks.

use std::path::Path;

use gristmill_store::display_path;

use super::Walk;
use crate::error::Result;
use crate::sys::{Folder, may_be_one_filesystem};

/// Reason why a folder whose disk is not mounted is not walked.
pub(super) const UNMOUNTED: &str = "not on the disk of its last scan, and no disk is mounted on it. \
    Is its disk mounted? No file is marked missing; use --allow-empty if its files were deleted";

impl Walk {
    /// Whether two catalog numbers of filesystems can be those of one filesystem.
    pub(super) fn may_be_one_filesystem(&self, before: i64, now: i64) -> Result<bool> {
        if before == now {
            return Ok(true);
        }
        let identity = |number| self.store.catalog().filesystem_identity(number);
        let both = identity(before)?.zip(identity(now)?);
        Ok(both.is_some_and(|(before, now)| may_be_one_filesystem(&before, &now)))
    }

    pub(super) fn warn_disk_replaced(&self, path: &Path) {
        tracing::warn!(
            "another disk is mounted at {} than at the last scan; files that it lacks are marked missing",
            display_path(self.absolute(path))
        );
    }
}

/// Whether a filesystem is mounted on a folder, which is the case if its parent is on another device.
pub(super) fn is_mounted(path: &Path, device: u64) -> bool {
    let parent = path.parent().and_then(|parent| Folder::open(parent).ok());
    parent.and_then(|parent| parent.own_stat().ok()).is_none_or(|parent| parent.device != device)
}
