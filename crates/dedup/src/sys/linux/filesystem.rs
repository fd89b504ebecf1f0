//! Identifies the filesystem that a folder is on.
//!
//! Owns the identity: it does not depend on when and where a filesystem is mounted, and differs for a clone that is
//! mounted together with the original.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use gristmill_store::catalog::UNSTABLE_INODES;
use rustix::fs;

use super::super::CLONE_DEVICE_SUFFIX;

/// XFS, FAT, exFAT, NTFS, ISO 9660, UDF, squashfs, EROFS: their identifier is the device number.
const FSID_IS_DEVICE: [u32; 8] =
    [0x5846_5342, 0x4d44, 0x2011_bab0, 0x7366_746e, 0x9660, 0x1501_3346, 0x7371_7368, 0xe0f5_e1e2];

/// FAT, exFAT and FUSE, whose inode numbers change with each mount, and overlayfs, whose inode numbers are those of its
/// layers.
const UNSTABLE_INODE_TYPES: [u32; 4] = [0x4d44, 0x2011_bab0, 0x6573_5546, 0x794c_7630];

/// Returns the UUID of the folder's device, else the identifier that the filesystem reports. `None` if that only
/// repeats the device number. A btrfs subvolume has its own identifier and inode numbers.
pub(super) fn identity(folder: impl AsFd) -> Option<String> {
    let device = fs::fstat(&folder).ok()?.st_dev;
    let kind = fs::fstatfs(&folder).ok()?.f_type as u32;
    let id = fs::fstatvfs(&folder).ok()?.f_fsid;
    let uuid = uuid_of(device).map(|uuid| format!("uuid {uuid}"));
    let fsid = || (id != 0 && !FSID_IS_DEVICE.contains(&kind)).then(|| format!("fsid {kind:x} {id:x}"));
    let mut identity = uuid.or_else(fsid)?;
    if UNSTABLE_INODE_TYPES.contains(&kind) {
        identity.insert_str(0, UNSTABLE_INODES);
    }
    if is_clone(device, id) {
        identity.push_str(&format!("{CLONE_DEVICE_SUFFIX}{}:{}", fs::major(device), fs::minor(device)));
    }
    Some(identity)
}

/// Returns the UUID of the filesystem on a block device, if `/dev/disk/by-uuid` lists it.
fn uuid_of(device: u64) -> Option<String> {
    let named = std::fs::read_dir("/dev/disk/by-uuid").ok()?.flatten();
    let is_device =
        |entry: &std::fs::DirEntry| std::fs::metadata(entry.path()).is_ok_and(|found| found.rdev() == device);
    named.into_iter().find(is_device).map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Whether another block device with the same identifier was mounted before this one. The order of mounts decides, so
/// that the identity of a disk does not change when its clone is mounted.
fn is_clone(device: u64, id: u64) -> bool {
    if id == 0 || fs::major(device) == 0 {
        return false;
    }
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
    let mounts: Vec<Mount<'_>> = table.lines().filter_map(Mount::parse).collect();
    let Some(at) = mounts.iter().position(|mount| mount.device == device) else { return false };
    let (before, own) = mounts.split_at(at);
    let is_same_type =
        |mount: &&Mount<'_>| own.first().is_some_and(|own| own.kind == mount.kind) && fs::major(mount.device) != 0;
    before.iter().filter(is_same_type).any(|mount| mount.has_identifier(id))
}

#[derive(Debug, PartialEq, Eq)]
struct Mount<'a> {
    device: u64,
    /// Mount point with octal escapes.
    path: &'a str,
    kind: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let (major, minor) = fields.next()?.split_once(':')?;
        let device = fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        Some(Mount { device, path: fields.nth(1)?, kind: filesystem.split(' ').next()? })
    }

    /// Whether the mount point is accessible and its filesystem reports this identifier.
    fn has_identifier(&self, id: u64) -> bool {
        let path = unescape(self.path);
        let is_accessible = fs::stat(&path).is_ok_and(|found| found.st_dev == self.device);
        is_accessible && fs::statvfs(&path).is_ok_and(|found| found.f_fsid == id)
    }
}

/// Decodes spaces, tabs, line feeds and backslashes, which are written as three octal digits.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, others)) = rest.split_first() {
        let digits = others.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| byte == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &others[3..];
            }
            None => {
                bytes.push(byte);
                rest = others;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_line_is_parsed_and_unescaped() {
        let line = r"30 27 8:17 /sub /mnt/a\040b\134c rw,relatime shared:1 master:2 - ext4 /dev/sdb1 rw";
        let mount = Mount::parse(line).expect("a mount");
        assert_eq!(mount, Mount { device: fs::makedev(8, 17), path: r"/mnt/a\040b\134c", kind: "ext4" });
        assert_eq!(unescape(mount.path), b"/mnt/a b\\c");
        assert_eq!(unescape(r"/x\04"), b"/x\\04");
        for broken in ["", "30 27", "30 27 8:x / /mnt rw - ext4 /dev/sdb1 rw", "30 27 8:1 / /mnt rw"] {
            assert_eq!(Mount::parse(broken), None, "{broken}");
        }
    }
}
