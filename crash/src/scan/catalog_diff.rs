//! Compares two catalogs: which rows differ, and how much of the work one of them still lacks.
//!
//! Defines equality of rows: all columns except ids and times. Read with plain SQL, independent of the store under
//! test.

use std::collections::BTreeMap;
use std::path::Path;

use clap::ValueEnum;
use rusqlite::Connection;
use serde_json::Value;

use crate::sqlite::Database;
use crate::{Error, ErrorContext};

/// Queries for the rows of a table, by a name that is the same in both catalogs. `{db}` is a catalog; `{n}`
/// is `null AND ` where scan ids cannot be compared, else empty.
const TABLES: [(&str, &str); 4] = [
    (
        "root",
        "SELECT r.root_path AS name, json_object('called', r.name, 'links', r.traverse_links, 'folders', r.folder_count,
            'files', r.file_count, 'bytes', r.total_size, 'scanned', r.last_scanned_at IS NOT NULL) AS row
        FROM {db}.library_roots r",
    ),
    (
        "scan",
        "SELECT r.root_path AS name, json_object('scans', {n}(SELECT count(*) FROM {db}.scan_sessions o
                WHERE o.library_id = r.id), 'status', s.status, 'files_seen', s.files_seen,
            'directories_seen', s.directories_seen, 'bytes_seen', s.bytes_seen, 'error_count', s.error_count,
            'error_message', s.error_message, 'settings', s.settings, 'holder', s.holder,
            'walked', s.walked_at IS NOT NULL, 'finished', s.finished_at IS NOT NULL) AS row
        FROM {db}.scan_sessions s JOIN {db}.library_roots r ON r.id = s.library_id
        WHERE s.id = (SELECT max(o.id) FROM {db}.scan_sessions o WHERE o.library_id = r.id)",
    ),
    (
        "folder",
        "SELECT r.root_path || ' : ' || f.relative_path AS name, json_object('parent', p.relative_path,
            'removed', f.removed_at IS NOT NULL, 'error_status', f.error_status, 'walked_by', {n}(f.walked_scan_id))
            AS row
        FROM {db}.folders f JOIN {db}.library_roots r ON r.id = f.library_id
            LEFT JOIN {db}.folders p ON p.id = f.parent_id",
    ),
    (
        "file",
        "SELECT r.root_path || ' : ' || f.relative_path AS name, json_object('size', f.size_bytes,
            'mtime', f.mtime_ns, 'ctime', f.ctime_ns, 'inode', f.inode, 'device', f.device, 'missing', f.is_missing,
            'removed', f.removed_at IS NOT NULL, 'needs_hash', f.needs_hash, 'algorithm', f.hash_algorithm,
            'content_hash', hex(f.content_hash), 'hashed_size', f.hashed_size_bytes,
            'hashed_mtime', f.hashed_mtime_ns, 'hashed', f.hashed_at IS NOT NULL, 'edges', f.edges,
            'read_algorithm', f.read_algorithm, 'read_hash', hex(f.read_hash), 'errors', f.hash_error_count,
            'last_error', f.hash_last_error, 'erred', f.hash_last_error_at IS NOT NULL,
            'retry', f.hash_retry_after IS NOT NULL, 'claim', f.hash_claim_token, 'folder', p.relative_path,
            'seen_by', {n}(f.last_seen_scan_id)) AS row
        FROM {db}.library_files f JOIN {db}.library_roots r ON r.id = f.library_id
            LEFT JOIN {db}.folders p ON p.id = f.folder_id",
    ),
];

/// Existing files of the undisturbed catalog (`e`), joined with the same files of the other one (`f`).
const JOINED_FILES: &str = "undisturbed.library_files e JOIN undisturbed.library_roots er ON er.id = e.library_id
    LEFT JOIN other.library_roots r ON r.root_path = er.root_path
    LEFT JOIN other.library_files f ON f.library_id = r.id AND f.relative_path = e.relative_path
        AND (f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode) IS (e.size_bytes, e.mtime_ns, e.ctime_ns, e.inode)
    WHERE e.is_missing = 0";

/// Condition: samples are known in the undisturbed catalog, but not in the other one. A small file is read as a whole
/// for them.
const UNSAMPLED: &str = "(e.edges IS NOT NULL AND e.edges IS NOT f.edges)";

/// Condition: the hash of the content is stored in the undisturbed catalog, but not in the other one; or it is a small
/// file without samples. The hash of a small file is stored only if the file has a duplicate, so a scan that was killed
/// before it found that reads the file again.
const UNREAD: &str = "(coalesce(e.read_hash, e.content_hash) IS NOT NULL
    AND (coalesce(e.read_algorithm, e.hash_algorithm), coalesce(e.read_hash, e.content_hash))
        IS NOT (coalesce(f.read_algorithm, f.hash_algorithm), coalesce(f.read_hash, f.content_hash))
    OR e.size_bytes <= 65536 AND e.edges IS NOT NULL AND e.edges IS NOT f.edges)";

/// Phase in which a scan was killed, according to what it had committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Phase {
    Start,
    Walk,
    #[value(name = "plan and samples")]
    Samples,
    Contents,
    #[value(name = "mark shared")]
    MarkShared,
    Finish,
    Done,
}

/// Work that remains until a catalog equals the undisturbed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemainingWork {
    pub(crate) phase: Phase,
    /// Scans that have not ended.
    pub(crate) running: i64,
    /// Requested scans that have ended.
    pub(crate) ended: i64,
    /// Whether all walks are complete.
    pub(crate) walked: bool,
    /// Number of folders to walk.
    pub(crate) folders: i64,
    /// Number of files to read completely; all names of an inode count as one.
    pub(crate) reads: i64,
    /// Number of names of the files to read.
    pub(crate) names: i64,
    /// Number of files to sample.
    pub(crate) samples: i64,
    /// Number of files that cannot be read.
    pub(crate) unreadable: i64,
}

/// An undisturbed catalog and another one, attached to one connection.
pub(crate) struct CatalogPair(pub(crate) Database);

impl CatalogPair {
    pub(crate) fn open(undisturbed: &Path, other: &Path) -> Result<Self, Error> {
        let open = || -> rusqlite::Result<Connection> {
            let conn = Connection::open_in_memory()?;
            for (path, name) in [(undisturbed, "undisturbed"), (other, "other")] {
                conn.execute(&format!("ATTACH ?1 AS {name}"), [path.to_string_lossy()])?;
            }
            Ok(conn)
        };
        open().map(|conn| CatalogPair(Database(conn))).context("cannot open the catalogs")
    }

    /// Returns whether the other catalog exists: a scan may be killed while it creates it.
    pub(crate) fn has_catalog(&self) -> Result<bool, Error> {
        let sql = "SELECT count(*) FROM other.sqlite_schema WHERE name IN ('library_files', 'folders', 'scan_sessions',
            'library_roots')";
        let columns = "SELECT count(*) FROM pragma_table_info('library_files', 'other') WHERE name = 'read_hash'";
        Ok(self.query_count(sql)? == 4 && self.query_count(columns)? == 1)
    }

    /// Returns a line for each row that differs, up to `max` for each table.
    pub(crate) fn differences(&self, max: usize) -> Result<Vec<String>, Error> {
        let scans = |db: &str| self.query_count(&format!("SELECT count(*) FROM {db}.scan_sessions"));
        let null_prefix = if scans("undisturbed")? == scans("other")? { "" } else { "null AND " };
        let mut lines = Vec::new();
        for (table, sql) in TABLES {
            let of = |db: &str| sql.replace("{db}", db).replace("{n}", null_prefix);
            let only = |a: &str, b: &str| {
                let sql = format!("SELECT * FROM ({}) EXCEPT SELECT * FROM ({})", of(a), of(b));
                let rows: Vec<(String, String)> = self.0.query(&sql, [], |row| row.try_into())?;
                Ok::<BTreeMap<_, _>, Error>(rows.into_iter().collect())
            };
            let (expected, mut found) = (only("undisturbed", "other")?, only("other", "undisturbed")?);
            let count = expected.keys().chain(found.keys()).collect::<std::collections::BTreeSet<_>>().len();
            let mut differing: Vec<String> = expected
                .iter()
                .map(|(name, row)| match found.remove(name) {
                    Some(other) => format!("{table} {name:?}: {}", describe_columns(row, &other)),
                    None => format!("{table} {name:?} is missing"),
                })
                .collect();
            differing.extend(found.keys().map(|name| format!("{table} {name:?} should not exist")));
            lines.extend(differing.into_iter().take(max));
            if count > max {
                lines.push(format!("… and {} more rows of this kind", count - max));
            }
        }
        // A resumed scan need not report its totals, but if it does, they must be right.
        let last = |db: &str| format!("SELECT max(o.id) FROM {db}.scan_sessions o GROUP BY o.library_id");
        let claims =
            |s: &str| format!("({s}.settled, {s}.duplicate_groups, {s}.duplicate_files, {s}.reclaimable_bytes)");
        let false_claims = self.query_count(&format!(
            "SELECT count(*) FROM other.scan_sessions f JOIN undisturbed.scan_sessions e ON e.library_id = f.library_id
            WHERE f.id IN ({}) AND e.id IN ({}) AND f.settled IS NOT NULL AND {} IS NOT {}",
            last("other"),
            last("undisturbed"),
            claims("f"),
            claims("e")
        ))?;
        if false_claims > 0 {
            lines.push("the scan reports wrong totals, or that all files were read".to_owned());
        }
        Ok(lines)
    }

    /// Counts the folders that the last scan of their root has not marked; a resumed scan would walk them again.
    pub(crate) fn unmarked_folders(&self) -> Result<i64, Error> {
        self.query_count(
            "SELECT count(*) FROM other.folders f WHERE f.removed_at IS NULL AND f.walked_scan_id IS NOT
                (SELECT max(s.id) FROM other.scan_sessions s WHERE s.library_id = f.library_id)",
        )
    }

    /// Returns the work that the other catalog lacks. `since` is the last scan before the one that was killed.
    pub(crate) fn remaining(&self, since: i64) -> Result<RemainingWork, Error> {
        // Only the last scan of each root: a root that was complete when the scan of another was killed is scanned
        // again.
        let last = format!(
            "s.id > {since} AND s.id = (SELECT max(o.id) FROM other.scan_sessions o WHERE o.library_id = s.library_id)"
        );
        let scans = format!("FROM other.scan_sessions s WHERE {last}");
        let running = self.query_count(&format!("SELECT count(*) {scans} AND s.status = 'running'"))?;
        let ended = self.query_count(&format!("SELECT count(*) {scans} AND s.status <> 'running'"))?;
        let unwalked = self.query_count(&format!("SELECT count(*) {scans} AND s.walked_at IS NULL"))?;
        let requested = self.query_count(&format!(
            "SELECT count(DISTINCT library_id) FROM undisturbed.scan_sessions WHERE id > {since}"
        ))?;
        let walked = unwalked == 0 && running + ended == requested;
        let inodes = "count(DISTINCT e.device || ' ' || e.inode)";
        let count =
            |what: &str, when: &str| self.query_count(&format!("SELECT {what} FROM {JOINED_FILES} AND ({when})"));
        let unsampled = count("count(*)", UNSAMPLED)?;
        let contents = count("count(*)", UNREAD)?;
        let unshared = count("count(*)", "e.content_hash IS NOT NULL AND f.content_hash IS NULL")?;
        let phase = match () {
            () if running + ended == 0 => Phase::Start,
            () if running == 0 && ended == requested => Phase::Done,
            () if !walked => Phase::Walk,
            () if unsampled > 0 => Phase::Samples,
            () if contents > 0 => Phase::Contents,
            () if unshared > 0 => Phase::MarkShared,
            () => Phase::Finish,
        };
        let folders = self.query_count(&format!(
            "SELECT count(*) FROM undisturbed.folders e JOIN undisturbed.library_roots er ON er.id = e.library_id
                LEFT JOIN other.library_roots r ON r.root_path = er.root_path
                LEFT JOIN other.folders f ON f.library_id = r.id AND f.relative_path = e.relative_path
                LEFT JOIN other.scan_sessions s ON s.library_id = r.id AND {last}
            WHERE e.removed_at IS NULL AND e.error_status IS NULL AND (s.id IS NULL OR f.walked_scan_id IS NOT s.id)"
        ))?;
        Ok(RemainingWork {
            phase,
            running,
            ended,
            walked,
            folders,
            reads: count(inodes, UNREAD)?,
            names: contents,
            samples: count(inodes, &format!("e.size_bytes > 65536 AND {UNSAMPLED}"))?,
            unreadable: count(inodes, "e.hash_error_count > 0")?,
        })
    }

    fn query_count(&self, sql: &str) -> Result<i64, Error> {
        self.0.count(sql, [])
    }
}

/// Describes the columns in which two rows differ.
fn describe_columns(expected: &str, found: &str) -> String {
    let read = |text: &str| serde_json::from_str::<BTreeMap<String, Value>>(text).unwrap_or_default();
    let (expected, found) = (read(expected), read(found));
    let differ = expected.iter().filter(|(column, value)| found.get(*column) != Some(value));
    let differing = differ.map(|(column, value)| {
        format!("{column} is {}, undisturbed {value}", found.get(column).unwrap_or(&Value::Null))
    });
    differing.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
