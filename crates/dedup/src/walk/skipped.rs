//! Entries of a folder that a walk passes over.
//!
//! Owns what is kept of them: two folders are identical only if nothing unknown lies in them, and what was passed over is
//! the same. A symbolic link is known by its target, a special file by its type; of a file or folder that filters leave
//! out, or that cannot be read, only its name and type are known.

use std::ffi::OsStr;

use gristmill_store::catalog::Skipped;

use crate::sys::Kind;

/// How much of the digest is for names, and how much for the rest.
const HALF: usize = 16;

/// Entries that were passed over so far.
#[derive(Debug, Default)]
pub(super) struct SkippedEntries {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    unknown: u64,
}

impl SkippedEntries {
    /// A symbolic link that is not followed, with its target.
    pub(super) fn link(&mut self, name: &OsStr, target: &[u8]) {
        self.add(name, b'l', target);
    }

    /// A pipe, a socket or a device.
    pub(super) fn special(&mut self, name: &OsStr) {
        self.add(name, b's', &[]);
    }

    /// A file or folder whose contents are not known.
    pub(super) fn unknown(&mut self, name: &OsStr, kind: Kind) {
        self.unknown += 1;
        self.add(name, if kind == Kind::Folder { b'd' } else { b'f' }, &[]);
    }

    fn add(&mut self, name: &OsStr, kind: u8, target: &[u8]) {
        let mut fact = Vec::with_capacity(target.len() + 1);
        fact.push(kind);
        fact.extend_from_slice(target);
        self.entries.push((name.as_encoded_bytes().to_vec(), fact));
    }

    /// What the catalog keeps.
    pub(super) fn summary(&mut self) -> Skipped {
        if self.entries.is_empty() {
            return Skipped::default();
        }
        self.entries.sort_unstable();
        let named = digest(self.entries.iter().flat_map(|(name, fact)| [name.as_slice(), fact.as_slice()]));
        self.entries.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
        let unnamed = digest(self.entries.iter().map(|(_, fact)| fact.as_slice()));
        let digest = [named, unnamed].iter().flat_map(|hash| hash.as_bytes()[..HALF].to_vec()).collect();
        Skipped { entries: self.entries.len() as u64, unknown: self.unknown, digest }
    }
}

fn digest<'a>(parts: impl Iterator<Item = &'a [u8]>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(entries: &[(&str, &str)]) -> Skipped {
        let mut skipped = SkippedEntries::default();
        for (name, target) in entries {
            skipped.link(OsStr::new(name), target.as_bytes());
        }
        skipped.summary()
    }

    #[test]
    fn digest_does_not_depend_on_the_order_of_entries() {
        assert_eq!(summary(&[("a", "x"), ("b", "y")]), summary(&[("b", "y"), ("a", "x")]));
        assert_ne!(summary(&[("a", "x"), ("b", "y")]).digest, summary(&[("a", "y"), ("b", "x")]).digest);
        assert_ne!(summary(&[("a", "xb")]).digest, summary(&[("ax", "b")]).digest);
    }

    #[test]
    fn second_half_of_the_digest_ignores_names() {
        let (one, other) = (summary(&[("a", "x")]), summary(&[("b", "x")]));
        assert_ne!(one.digest[..HALF], other.digest[..HALF]);
        assert_eq!(one.digest[HALF..], other.digest[HALF..]);
        assert_ne!(one.digest[HALF..], summary(&[("a", "y")]).digest[HALF..]);
    }

    #[test]
    fn unknown_entries_are_counted_apart() {
        let mut skipped = SkippedEntries::default();
        skipped.special(OsStr::new("pipe"));
        skipped.unknown(OsStr::new("notes"), Kind::File);
        let Skipped { entries, unknown, digest } = skipped.summary();
        assert_eq!((entries, unknown, digest.len()), (2, 1, 2 * HALF));
        assert_eq!(SkippedEntries::default().summary(), Skipped::default());
    }
}
