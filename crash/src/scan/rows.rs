//! Two catalogs side by side: what differs, and what one has done of the other.
//!
//! Owns what "row for row" means: everything but the numbers of rows and moments. Plain SQL on a connection of its
//! own, so that the store does not testify for itself.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, Row};
use serde_json::Value;

use crate::{OrTrouble, Trouble};

const LOOK: &str = "cannot look into the catalogs";

/// Rows by a name that is the same in both, and what they say. `{db}` is a catalog, `{n}` is `null` where numbers of
/// scans cannot be compared, else nothing.
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

/// What the undisturbed catalog says of a file that is there, beside what the other one says of it.
const BESIDE: &str = "undisturbed.library_files e JOIN undisturbed.library_roots er ON er.id = e.library_id
    LEFT JOIN other.library_roots r ON r.root_path = er.root_path
    LEFT JOIN other.library_files f ON f.library_id = r.id AND f.relative_path = e.relative_path
        AND (f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode) IS (e.size_bytes, e.mtime_ns, e.ctime_ns, e.inode)
    WHERE e.is_missing = 0";

/// Its content is known, and was not.
const UNREAD: &str = "coalesce(e.read_hash, e.content_hash) IS NOT NULL
    AND (coalesce(e.read_algorithm, e.hash_algorithm), coalesce(e.read_hash, e.content_hash))
        IS NOT (coalesce(f.read_algorithm, f.hash_algorithm), coalesce(f.read_hash, f.content_hash))";

/// Its edges are known, and were not.
const UNPROBED: &str = "e.edges IS NOT NULL AND e.edges IS NOT f.edges";

/// Where a scan had come when it was killed, by what it had committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Start,
    Walk,
    Edges,
    Contents,
    Share,
    Finish,
    Done,
}

impl Phase {
    pub(crate) const ALL: [Phase; 7] =
        [Phase::Start, Phase::Walk, Phase::Edges, Phase::Contents, Phase::Share, Phase::Finish, Phase::Done];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Phase::Start => "start",
            Phase::Walk => "walk",
            Phase::Edges => "plan and edges",
            Phase::Contents => "contents",
            Phase::Share => "share",
            Phase::Finish => "finish",
            Phase::Done => "done",
        }
    }
}

/// What is left to do until a catalog is as the undisturbed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) phase: Phase,
    /// Scans that were begun and have not ended.
    pub(crate) running: i64,
    /// Scans that have ended, of those that were asked for.
    pub(crate) ended: i64,
    /// All walks are complete.
    pub(crate) walked: bool,
    /// Folders to be walked.
    pub(crate) folders: i64,
    /// Files to be read through; names of one inode are one.
    pub(crate) reads: i64,
    /// Names of these.
    pub(crate) names: i64,
    /// Files of which edges are to be read.
    pub(crate) probes: i64,
    /// Files that cannot be read.
    pub(crate) unreadable: i64,
}

/// An undisturbed catalog, and another.
pub(crate) struct Beside(Connection);

impl Beside {
    pub(crate) fn open(undisturbed: &Path, other: &Path) -> Result<Self, Trouble> {
        let open = || -> rusqlite::Result<Connection> {
            let conn = Connection::open_in_memory()?;
            for (path, name) in [(undisturbed, "undisturbed"), (other, "other")] {
                conn.execute(&format!("ATTACH ?1 AS {name}"), [path.to_string_lossy()])?;
            }
            Ok(conn)
        };
        open().map(Beside).or_trouble(LOOK)
    }

    /// What SQLite has to say against the other.
    pub(crate) fn damage(&self) -> Result<Vec<String>, Trouble> {
        let mut damage = self.all("PRAGMA other.integrity_check", |row| row.get::<_, String>(0))?;
        damage.retain(|line| line != "ok");
        let broken = self.all("PRAGMA other.foreign_key_check", |row| row.get::<_, String>(0))?;
        damage.extend(broken.iter().map(|table| format!("a row of {table} refers to one that is not there")));
        Ok(damage)
    }

    /// Whether there is a catalog at all: a scan may be killed while it makes one.
    pub(crate) fn is_made(&self) -> Result<bool, Trouble> {
        let sql = "SELECT count(*) FROM other.sqlite_schema WHERE name IN ('library_files', 'folders', 'scan_sessions',
            'library_roots')";
        let columns =
            "SELECT count(*) FROM pragma_table_info('library_files', 'other') WHERE name = 'read_hash'";
        Ok(self.number(sql)? == 4 && self.number(columns)? == 1)
    }

    /// What differs, a line for each row; up to `most` of each table.
    pub(crate) fn differences(&self, most: usize) -> Result<Vec<String>, Trouble> {
        let scans = |db: &str| self.number(&format!("SELECT count(*) FROM {db}.scan_sessions"));
        let n = if scans("undisturbed")? == scans("other")? { "" } else { "null AND " };
        let mut lines = Vec::new();
        for (table, sql) in TABLES {
            let of = |db: &str| sql.replace("{db}", db).replace("{n}", n);
            let only = |a: &str, b: &str| {
                let sql = format!("SELECT * FROM ({}) EXCEPT SELECT * FROM ({})", of(a), of(b));
                let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
                Ok::<BTreeMap<_, _>, Trouble>(self.all(&sql, read)?.into_iter().collect())
            };
            let (expected, mut found) = (only("undisturbed", "other")?, only("other", "undisturbed")?);
            let count = expected.keys().chain(found.keys()).collect::<std::collections::BTreeSet<_>>().len();
            let mut told: Vec<String> = expected
                .iter()
                .map(|(name, row)| match found.remove(name) {
                    Some(other) => format!("{table} {name:?}: {}", columns(row, &other)),
                    None => format!("{table} {name:?} is not there"),
                })
                .collect();
            told.extend(found.keys().map(|name| format!("{table} {name:?} should not be there")));
            lines.extend(told.into_iter().take(most));
            if count > most {
                lines.push(format!("… and {} more rows of this kind", count - most));
            }
        }
        // One that was gone on with need not say that all was read, and what there was; if it does, it must be so.
        let last = |db: &str| format!("SELECT max(o.id) FROM {db}.scan_sessions o GROUP BY o.library_id");
        let claims = |s: &str| {
            format!("({s}.settled, {s}.duplicate_groups, {s}.duplicate_files, {s}.reclaimable_bytes)")
        };
        let false_claims = self.number(&format!(
            "SELECT count(*) FROM other.scan_sessions f JOIN undisturbed.scan_sessions e ON e.library_id = f.library_id
            WHERE f.id IN ({}) AND e.id IN ({}) AND f.settled IS NOT NULL AND {} IS NOT {}",
            last("other"),
            last("undisturbed"),
            claims("f"),
            claims("e")
        ))?;
        if false_claims > 0 {
            lines.push("the scan says that all was read, or what there was, and it is not so".to_owned());
        }
        Ok(lines)
    }

    /// How many folders are there that the last scan of their root has not marked: who goes on would walk them again.
    pub(crate) fn unmarked(&self) -> Result<i64, Trouble> {
        self.number(
            "SELECT count(*) FROM other.folders f WHERE f.removed_at IS NULL AND f.walked_scan_id IS NOT
                (SELECT max(s.id) FROM other.scan_sessions s WHERE s.library_id = f.library_id)",
        )
    }

    /// What the other has still to do. `since`: the last scan before the one that was killed.
    pub(crate) fn left(&self, since: i64) -> Result<Left, Trouble> {
        // Of each root the last: a root that was complete when another one's scan was killed is scanned anew.
        let last = format!(
            "s.id > {since} AND s.id = (SELECT max(o.id) FROM other.scan_sessions o WHERE o.library_id = s.library_id)"
        );
        let ours = format!("FROM other.scan_sessions s WHERE {last}");
        let running = self.number(&format!("SELECT count(*) {ours} AND s.status = 'running'"))?;
        let ended = self.number(&format!("SELECT count(*) {ours} AND s.status <> 'running'"))?;
        let unwalked = self.number(&format!("SELECT count(*) {ours} AND s.walked_at IS NULL"))?;
        let wanted = self.number(&format!(
            "SELECT count(DISTINCT library_id) FROM undisturbed.scan_sessions WHERE id > {since}"
        ))?;
        let walked = unwalked == 0 && running + ended == wanted;
        let inodes = "count(DISTINCT e.device || ' ' || e.inode)";
        let count =
            |what: &str, when: &str| self.number(&format!("SELECT {what} FROM {BESIDE} AND ({when})"));
        let small = "e.size_bytes <= 65536";
        let edges = count("count(*)", &format!("{UNPROBED} OR ({small} AND {UNREAD})"))?;
        let contents = count("count(*)", UNREAD)?;
        let alone = count("count(*)", "e.content_hash IS NOT NULL AND f.content_hash IS NULL")?;
        let phase = match () {
            () if running + ended == 0 => Phase::Start,
            () if running == 0 && ended == wanted => Phase::Done,
            () if !walked => Phase::Walk,
            () if edges > 0 => Phase::Edges,
            () if contents > 0 => Phase::Contents,
            () if alone > 0 => Phase::Share,
            () => Phase::Finish,
        };
        let folders = self.number(&format!(
            "SELECT count(*) FROM undisturbed.folders e JOIN undisturbed.library_roots er ON er.id = e.library_id
                LEFT JOIN other.library_roots r ON r.root_path = er.root_path
                LEFT JOIN other.folders f ON f.library_id = r.id AND f.relative_path = e.relative_path
                LEFT JOIN other.scan_sessions s ON s.library_id = r.id AND {last}
            WHERE e.removed_at IS NULL AND e.error_status IS NULL AND (s.id IS NULL OR f.walked_scan_id IS NOT s.id)"
        ))?;
        Ok(Left {
            phase,
            running,
            ended,
            walked,
            folders,
            reads: count(inodes, UNREAD)?,
            names: contents,
            probes: count(inodes, UNPROBED)?,
            unreadable: count(inodes, "e.hash_error_count > 0")?,
        })
    }

    fn number(&self, sql: &str) -> Result<i64, Trouble> {
        self.0.query_row(sql, [], |row| row.get(0)).or_trouble(LOOK)
    }

    fn all<T>(
        &self,
        sql: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Trouble> {
        let run = || self.0.prepare(sql)?.query_map([], read)?.collect::<rusqlite::Result<_>>();
        run().or_trouble(LOOK)
    }
}

/// The last scan that a catalog knows.
pub(crate) fn last_scan(database: &Path) -> Result<i64, Trouble> {
    let look = || -> rusqlite::Result<i64> {
        let conn = Connection::open(database)?;
        conn.query_row("SELECT coalesce(max(id), 0) FROM scan_sessions", [], |row| row.get(0))
    };
    look().or_trouble(LOOK)
}

/// Those columns of two rows that differ.
fn columns(expected: &str, found: &str) -> String {
    let read = |text: &str| serde_json::from_str::<BTreeMap<String, Value>>(text).unwrap_or_default();
    let (expected, found) = (read(expected), read(found));
    let differ = expected.iter().filter(|(column, value)| found.get(*column) != Some(value));
    let told = differ.map(|(column, value)| {
        format!("{column} is {}, undisturbed {value}", found.get(column).unwrap_or(&Value::Null))
    });
    told.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
