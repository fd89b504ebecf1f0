//! Entries of a folder that walks skipped.
//!
//! Owns how they are counted and compared: the digests are sums over the entries, so entries can be added later and in
//! any order. The walk decides what is hashed for an entry.

use super::signed;
use crate::error::Result;
use crate::sqlite::{Db, Row, SqlResult};

/// Entries of a folder that a walk skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Number of skipped entries.
    pub entries: u64,
    /// Number of those with unknown content: excluded files and folders, or unreadable ones.
    pub unknown: u64,
    /// Sum of their hashes, each over name, type and target.
    pub named: u128,
    /// Sum of their hashes, each over type and target.
    pub unnamed: u128,
}

impl std::ops::AddAssign for Skipped {
    fn add_assign(&mut self, other: Skipped) {
        self.entries += other.entries;
        self.unknown += other.unknown;
        self.named = self.named.wrapping_add(other.named);
        self.unnamed = self.unnamed.wrapping_add(other.unnamed);
    }
}

impl Skipped {
    /// Returns the stored columns: two counts, and both sums in one blob.
    pub(super) fn columns(&self) -> (i64, i64, Option<Vec<u8>>) {
        let digest = || [self.named.to_le_bytes(), self.unnamed.to_le_bytes()].concat();
        (signed(self.entries), signed(self.unknown), (self.entries > 0).then(digest))
    }
}

/// Reads the three columns; `None` if no walk has recorded them.
pub(super) fn read(row: &Row<'_>, first: usize) -> SqlResult<Option<Skipped>> {
    let counts: (Option<i64>, Option<i64>) = (row.get(first)?, row.get(first + 1)?);
    let (Some(entries), Some(unknown)) = counts else { return Ok(None) };
    let digest = row.get_ref(first + 2)?.as_blob_or_null()?.unwrap_or_default();
    let sum = |from: usize| {
        let bytes = digest.get(from..from + 16).and_then(|half| half.try_into().ok());
        bytes.map_or(0, u128::from_le_bytes)
    };
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    Ok(Some(Skipped { entries: count(entries), unknown: count(unknown), named: sum(0), unnamed: sum(16) }))
}

/// Adds entries that were found after the folder was listed. Does nothing for a folder that was not walked.
pub(super) fn add(db: &Db<'_>, folder: i64, more: &Skipped) -> Result<()> {
    if more.entries == 0 {
        return Ok(());
    }
    let sql = "SELECT skipped_entries, skipped_unknown, skipped_digest FROM folders WHERE id = ?1";
    if let Some(mut sum) = db.first(sql, [folder], |row| read(row, 0))?.flatten() {
        sum += *more;
        let (entries, unknown, digest) = sum.columns();
        let sql = "UPDATE folders SET skipped_entries = ?2, skipped_unknown = ?3, skipped_digest = ?4 WHERE id = ?1";
        db.execute(sql, (folder, entries, unknown, digest))?;
    }
    Ok(())
}
