//! Maintenance of the catalog: purging old records, and checking the consistency of rows.
//!
//! Owns the consistency rules. It does not read the disk; scans do.

use super::{Catalog, groups};
use crate::error::Result;
use crate::lease::sortable_time;
use crate::sqlite::{Db, WriteKind};
use crate::tasks;
use crate::time::UtcTime;

/// Number of purged rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Purged {
    /// Number of deleted file rows.
    pub files: usize,
    /// Number of deleted folder rows.
    pub folders: usize,
}

/// A consistency rule and the number of rows that violate it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// Description of the rule.
    pub name: &'static str,
    /// Number of rows that violate the rule.
    pub broken: i64,
    /// Number of rows that were repaired.
    pub repaired: i64,
    /// Description of the repair.
    pub repair: &'static str,
}

struct Rule {
    name: &'static str,
    repair: &'static str,
    table: &'static str,
    /// Condition of rows that violate the rule.
    broken: &'static str,
    /// Assignments that repair a row; empty if it is deleted. ?1 is the current time.
    sets: &'static str,
}

/// Query for the numbers of folders and files of a root, and the total size of its files. A file with several names
/// counts once for the size.
pub(super) const ROOT_TOTALS: &str =
    "(SELECT (SELECT count(*) FROM folders WHERE library_id = library_roots.id AND removed_at IS NULL
            AND excluded_at IS NULL),
        (SELECT count(*) FROM library_files WHERE library_id = library_roots.id AND is_missing = 0
            AND excluded_at IS NULL),
        (SELECT coalesce(sum(bytes), 0) FROM (
            SELECT size_bytes AS bytes FROM library_files WHERE library_id = library_roots.id
                AND is_missing = 0 AND excluded_at IS NULL AND coalesce(link_kind, 0) = 0
            UNION ALL SELECT max(size_bytes) FROM library_files WHERE library_id = library_roots.id
                AND is_missing = 0 AND excluded_at IS NULL AND link_kind > 0 GROUP BY device, inode)))";

/// Query for the id of the folder in a row's path. The two `rtrim`s cut off the last name of the path.
const FOLDER_IN_PATH: &str = "(SELECT p.id FROM folders p WHERE p.library_id = {table}.library_id AND p.relative_path =
    rtrim(rtrim({table}.relative_path, replace({table}.relative_path, '/', '')), '/'))";

/// Consistency rules. `{folder}` stands for [`FOLDER_IN_PATH`], and `{totals}` for [`ROOT_TOTALS`].
const RULES: &[Rule] = &[
    Rule {
        name: "a hash is complete and matches the size and mtime of its file",
        repair: "the next scan hashes the file again",
        table: "library_files",
        broken: "needs_hash = 0 AND is_missing = 0 AND size_bytes > 0 AND (content_hash IS NULL
            OR hash_algorithm IS NULL
            OR length(content_hash) <> CASE hash_algorithm WHEN 'sha512' THEN 64 ELSE 32 END
            OR hashed_size_bytes IS NOT size_bytes OR hashed_mtime_ns IS NOT mtime_ns)",
        sets: "needs_hash = 1, hash_algorithm = NULL, content_hash = NULL,
            hashed_size_bytes = NULL, hashed_mtime_ns = NULL, hashed_at = NULL, updated_at = ?1",
    },
    // Before the next rule, which could otherwise break a unique index.
    Rule {
        name: "a path has one row",
        repair: "all but the oldest present one are deleted",
        table: "library_files",
        broken: "id NOT IN (SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY library_id, relative_path
            ORDER BY is_missing, id) AS number FROM library_files) WHERE number = 1)",
        sets: "",
    },
    Rule {
        name: "a file belongs to the folder in its path",
        repair: "the file is assigned to that folder",
        table: "library_files",
        broken: "is_missing = 0 AND folder_id IS NOT {folder}",
        sets: "updated_at = ?1, folder_id = {folder}",
    },
    Rule {
        name: "no present file is in a removed folder",
        repair: "the file is marked as missing until a scan sees it",
        table: "library_files",
        broken: "is_missing = 0 AND folder_id IN (SELECT id FROM folders WHERE removed_at IS NOT NULL)",
        sets: "is_missing = 1, needs_hash = 0, removed_at = ?1, updated_at = ?1",
    },
    Rule {
        name: "a missing file has the time of its removal",
        repair: "the last change of the row is used",
        table: "library_files",
        broken: "is_missing = 1 AND removed_at IS NULL",
        sets: "removed_at = coalesce(updated_at, ?1)",
    },
    Rule {
        name: "a folder belongs to the parent in its path",
        repair: "the folder is assigned to that parent",
        table: "folders",
        broken: "relative_path <> '' AND parent_id IS NOT {folder}",
        sets: "parent_id = {folder}",
    },
    Rule {
        name: "the totals of a root match its rows",
        repair: "they are counted again",
        table: "library_roots",
        broken: "last_scanned_at IS NOT NULL AND file_count IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM scan_sessions s WHERE s.library_id = library_roots.id
                AND s.status = 'running')
            AND (folder_count, file_count, total_size) IS NOT {totals}",
        sets: "updated_at = ?1, (folder_count, file_count, total_size) = {totals}",
    },
    Rule {
        name: "an excluded file is in no group",
        repair: "its hash is set aside until a scan includes it again",
        table: "library_files",
        broken: "excluded_at IS NOT NULL AND is_missing = 0 AND content_hash IS NOT NULL",
        sets: "updated_at = ?1, needs_hash = 1, read_algorithm = hash_algorithm, read_hash = content_hash,
            hash_algorithm = NULL, content_hash = NULL, hashed_size_bytes = NULL, hashed_mtime_ns = NULL,
            hashed_at = NULL",
    },
];

impl Catalog<'_> {
    /// Deletes rows of files and folders that have been missing since before a time.
    pub fn purge(self, files: bool, folders: bool, before: UtcTime) -> Result<Purged> {
        self.0.write(WriteKind::Compound, move |db| purge(db, files, folders, before))
    }

    /// Counts the rows that violate each rule.
    pub fn verify(self) -> Result<Vec<Check>> {
        self.0.read(|db| {
            let mut checks = RULES.iter().map(|rule| rule.check(db)).collect::<Result<Vec<_>>>()?;
            checks.push(tasks::check_counts(db)?);
            checks.push(check_groups(db)?);
            Ok(checks)
        })
    }

    /// Repairs rows that violate a rule.
    pub fn repair(self) -> Result<Vec<Check>> {
        self.0.write(WriteKind::Compound, |db| {
            crate::scans::clear_settled(db)?;
            // The next walk compares all rows.
            db.execute("UPDATE folders SET listing_digest = randomblob(16)", [])?;
            let repair = |rule: &Rule| -> Result<Check> {
                let check = rule.check(db)?;
                let repaired = if check.broken > 0 { rule.repair(db, check.broken)? } else { 0 };
                Ok(Check { repaired, ..check })
            };
            let mut checks = RULES.iter().map(repair).collect::<Result<Vec<_>>>()?;
            checks.push(tasks::repair_counts(db)?);
            let check = check_groups(db)?;
            if check.broken > 0 {
                groups::mark_all_changed(db)?;
                groups::refresh(db)?;
            }
            checks.push(Check { repaired: check.broken - check_groups(db)?.broken, ..check });
            Ok(checks)
        })
    }
}

impl Rule {
    fn sql(&self, text: &str) -> String {
        text.replace("{folder}", FOLDER_IN_PATH).replace("{table}", self.table).replace("{totals}", ROOT_TOTALS)
    }

    fn check(&self, db: &Db<'_>) -> Result<Check> {
        let Rule { name, repair, table, broken, .. } = *self;
        let broken = db.number(&self.sql(&format!("SELECT count(*) FROM {table} WHERE {broken}")), [])?;
        Ok(Check { name, broken, repaired: 0, repair })
    }

    /// Repairs the rows and returns how many no longer violate the rule.
    fn repair(&self, db: &Db<'_>, broken: i64) -> Result<i64> {
        let Rule { table, broken: rows, sets, .. } = *self;
        // A statement must use its parameter, but not every rule needs the time.
        let action =
            if sets.is_empty() { format!("DELETE FROM {table}") } else { format!("UPDATE {table} SET {sets}") };
        let sql = self.sql(&format!("{action} WHERE ({rows}) AND ?1 IS NOT NULL"));
        db.execute(&sql, [db.now()])?;
        Ok(broken - self.check(db)?.broken)
    }
}

fn check_groups(db: &Db<'_>) -> Result<Check> {
    Ok(Check {
        name: "the duplicate groups match the files",
        broken: groups::count_wrong(db)?,
        repaired: 0,
        repair: "all groups are evaluated again",
    })
}

fn purge(db: &Db<'_>, files: bool, folders: bool, before: UtcTime) -> Result<Purged> {
    let before = before.to_string();
    let mut purged = Purged::default();
    if files {
        let missing_since = sortable_time("coalesce(removed_at, updated_at)");
        let sql = format!("DELETE FROM library_files WHERE is_missing = 1 AND {missing_since} < ?1");
        purged.files = db.execute(&sql, [&before])?;
    }
    if folders {
        // Counted before, because the statement does not count rows deleted by a cascade.
        let is_old = "removed_at IS NOT NULL AND removed_at < ?1";
        let count = db.number(&format!("SELECT count(*) FROM folders WHERE {is_old}"), [&before])?;
        purged.folders = usize::try_from(count).unwrap_or(0);
        db.execute(&format!("DELETE FROM folders WHERE {is_old}"), [&before])?;
        // Their files keep their rows, as do those of subfolders that a cascade has deleted.
        let sql = "UPDATE library_files SET folder_id = NULL
            WHERE folder_id IS NOT NULL AND folder_id NOT IN (SELECT id FROM folders)";
        db.execute(sql, [])?;
    }
    Ok(purged)
}
