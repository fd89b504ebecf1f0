//! Describes entries that a walk skips.
//!
//! Owns the digest by which they are compared: two folders are identical only if their skipped entries are known and
//! equal. A symbolic link is known by its target, a special file by its type. The content of a file or folder that is
//! excluded or cannot be read is unknown.

use std::ffi::OsStr;

use gristmill_store::catalog::Skipped;

use crate::sys::EntryKind;

/// Describes a symbolic link that is not followed. Without a target it counts as unknown.
pub(super) fn link(name: &OsStr, target: Option<&[u8]>) -> Skipped {
    match target {
        Some(target) => entry(name, b'l', target),
        None => unknown(name, EntryKind::Link),
    }
}

pub(super) fn special(name: &OsStr) -> Skipped {
    entry(name, b's', &[])
}

/// Describes an entry whose content is not known.
pub(super) fn unknown(name: &OsStr, kind: EntryKind) -> Skipped {
    let kind = match kind {
        EntryKind::Folder => b'd',
        EntryKind::Link => b'u',
        _ => b'f',
    };
    Skipped { unknown: 1, ..entry(name, kind, &[]) }
}

fn entry(name: &OsStr, kind: u8, target: &[u8]) -> Skipped {
    let name = name.as_encoded_bytes();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind]).update(target);
    let unnamed = digest_128(&hasher);
    // The length of the name separates it from the target.
    hasher.update(name).update(&(name.len() as u64).to_le_bytes());
    Skipped { entries: 1, unknown: 0, named: digest_128(&hasher), unnamed }
}

fn digest_128(hasher: &blake3::Hasher) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    u128::from_le_bytes(bytes)
}
