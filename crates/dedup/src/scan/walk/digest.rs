//! Digests of listings.
//!
//! Owns what the digest of a folder covers: all that the catalog records of its entries, and its own row. While the
//! digest is equal to that of the last listing, the rows of the folder and its entries are up to date.

use std::ffi::OsString;

use gristmill_store::catalog::{LinkKind, Listing, ListingDigest, Skipped, Stat};

use super::visit::Entry;

/// Returns the digest of a folder. `entries` are sorted by name. `None` if one could not be examined: whether its row
/// is up to date is not known.
pub(super) fn of(listing: &Listing, skipped: &Skipped, entries: &[Entry]) -> Option<ListingDigest> {
    let mut bytes = Vec::with_capacity(128 + entries.len() * 96);
    let Listing { filesystem, mount_point, via_link, .. } = listing;
    let Skipped { entries: skipped_entries, unknown, named, unnamed } = skipped;
    push(&mut bytes, &[filesystem.unwrap_or(0).cast_unsigned(), u64::from(*mount_point), u64::from(*via_link)]);
    push(&mut bytes, &[*skipped_entries, *unknown]);
    bytes.extend(named.to_le_bytes());
    bytes.extend(unnamed.to_le_bytes());
    for entry in entries {
        // Excluded entries are among the skipped ones.
        match entry {
            Entry::File { name, stat, is_excluded: false } => {
                push_name(&mut bytes, b'f', name);
                let Stat { size, allocated, mtime_ns, ctime_ns, inode, device, links } = *stat;
                let links = match links {
                    LinkKind::Single => 0,
                    LinkKind::HardLinked => 1,
                    LinkKind::ViaSymlink => 2,
                    LinkKind::Unknown => 3,
                };
                let times = [mtime_ns.cast_unsigned(), ctime_ns.cast_unsigned()];
                push(&mut bytes, &[size, allocated, times[0], times[1], inode, device, links]);
            }
            Entry::Folder { name, is_excluded: false } => push_name(&mut bytes, b'd', name),
            Entry::File { .. } | Entry::Folder { .. } => {}
            Entry::Unreadable { .. } => return None,
        }
    }
    blake3::hash(&bytes).as_bytes().first_chunk().copied()
}

fn push(bytes: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
}

/// The length separates a name from what follows.
fn push_name(bytes: &mut Vec<u8>, kind: u8, name: &OsString) {
    let name = name.as_encoded_bytes();
    bytes.push(kind);
    push(bytes, &[name.len() as u64]);
    bytes.extend(name);
}
