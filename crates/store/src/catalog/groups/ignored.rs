//! Groups that the user ignores.
//!
//! Owns the table `ignored_groups`. It lists contents: a group stays ignored while its files come and go.

use super::cursor::GroupKey;
use crate::error::Result;
use crate::sqlite::Db;

/// Whether ignored groups are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ignored {
    /// Ignored groups are not listed.
    #[default]
    Hidden,
    /// Only ignored groups are listed.
    Only,
    /// All groups are listed.
    Included,
}

/// Ignores a group, or no longer. Returns whether that changed anything.
pub(super) fn set(db: &Db<'_>, key: &GroupKey, ignored: bool) -> Result<bool> {
    let algorithm = key.algorithm.as_str();
    let changed = match ignored {
        true => {
            let sql = "INSERT INTO ignored_groups (hash_algorithm, content_hash, ignored_at) VALUES (?1, ?2, ?3)
                ON CONFLICT DO NOTHING";
            db.execute(sql, (algorithm, &key.hash, db.now()))?
        }
        false => {
            let sql = "DELETE FROM ignored_groups WHERE hash_algorithm = ?1 AND content_hash = ?2";
            db.execute(sql, (algorithm, &key.hash))?
        }
    };
    if changed > 0 {
        db.execute("UPDATE duplicate_group_state SET version = version + 1", [])?;
    }
    Ok(changed > 0)
}
