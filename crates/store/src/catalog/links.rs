//! Which paths lead to one inode.
//!
//! Owns when two rows are names of one file. A device number alone does not tell: disks that take turns are given the same
//! one. An inode is shared only if its link count is above 1 or a symbolic link led to it, and only within one
//! filesystem.

use super::Stat;

/// Whether other paths may lead to a file's inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// Not known: another program, or an earlier version, recorded the file.
    #[default]
    Unknown,
    /// Its link count is 1.
    Single,
    /// Its link count is above 1.
    HardLinked,
    /// It was reached through a symbolic link.
    ViaSymlink,
}

impl LinkKind {
    /// As the database stores it.
    pub(super) fn code(self) -> Option<i64> {
        match self {
            LinkKind::Unknown => None,
            LinkKind::Single => Some(0),
            LinkKind::HardLinked => Some(1),
            LinkKind::ViaSymlink => Some(2),
        }
    }

    pub(super) fn from_code(code: Option<i64>) -> Self {
        match code {
            Some(0) => LinkKind::Single,
            Some(1) => LinkKind::HardLinked,
            Some(2) => LinkKind::ViaSymlink,
            _ => LinkKind::Unknown,
        }
    }
}

/// Equal for names of one file, and for nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// No other path leads to it.
    Row(i64),
    /// An inode of a filesystem.
    Inode(i64, u64),
    /// An inode of a device, where the filesystem is not known.
    OnDevice(u64, u64),
}

/// Which file a row is a name of.
pub(super) fn identity(id: i64, stat: &Stat, filesystem: Option<i64>) -> Identity {
    match (stat.links, filesystem) {
        (LinkKind::Single, _) => Identity::Row(id),
        // Another program recorded it without an inode.
        _ if stat.inode == 0 => Identity::Row(id),
        (LinkKind::HardLinked | LinkKind::ViaSymlink, Some(filesystem)) => {
            Identity::Inode(filesystem, stat.inode)
        }
        _ => Identity::OnDevice(stat.device, stat.inode),
    }
}
