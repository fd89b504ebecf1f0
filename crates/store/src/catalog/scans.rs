//! Scans of roots, one at a time for each root.
//!
//! Owns the table `scan_sessions`, and whether all files of the catalog have been compared: a scan after which they
//! have been is marked as settled, and every later change of a file's row clears the mark. A scan is held by a process,
//! which renews a heartbeat. A scan whose holder has exited is resumed by the same request; another request marks it as
//! failed. A scan of a part of a root neither finishes nor replaces a scan of the whole root.

use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::rows::{Column, invalid_value, string_enum, table_row};
use crate::sqlite::{Db, Row, SqlResult, WriteKind, params};
use crate::time::UtcTime;
use crate::{Page, Store};

/// Time without a heartbeat after which a holder of unknown liveness counts as dead.
pub const LEASE: Duration = Duration::from_secs(60);

/// Returns whether the process that a holder text identifies is alive; `None` if that is unknown.
pub type LivenessCheck = fn(&str) -> Option<bool>;

/// The part of a root that a scan covers. In JSON `root`, `known_files` or `named_files`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScanScope {
    /// The whole root is walked.
    #[default]
    Root,
    /// Only files that the catalog has are examined.
    KnownFiles,
    /// Only files that the user names are examined.
    NamedFiles,
}

impl ScanScope {
    fn code(self) -> Option<i64> {
        match self {
            ScanScope::Root => None,
            ScanScope::KnownFiles => Some(1),
            ScanScope::NamedFiles => Some(2),
        }
    }
}

/// Only Gristmill writes this column.
impl Column for ScanScope {
    fn read(row: &Row<'_>, column: &str) -> SqlResult<Self> {
        let code: Option<i64> = row.get(column)?;
        let scopes = [ScanScope::Root, ScanScope::KnownFiles, ScanScope::NamedFiles];
        let found = scopes.into_iter().find(|scope| scope.code() == code);
        found.ok_or_else(|| invalid_value(row, column, &code.unwrap_or(0).to_string(), "NULL, 1 or 2"))
    }
}

string_enum! {
    "a scan's status",
    /// State of a scan.
    pub enum ScanStatus {
        /// It has not ended: a process runs it, or it was stopped and can be resumed.
        Running = "running",
        /// It ended. Folders and files that could not be read are counted as errors.
        Succeeded = "succeeded",
        /// It was replaced by another scan, or ended with an error.
        Failed = "failed",
    }
}

table_row! {
    /// A row of `scan_sessions`, with the path of its root.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct ScanRow {
        pub id: i64,
        pub library_id: Option<i64>,
        /// Path of the root, encoded as in the database; `None` if the root was removed, or another program scanned.
        pub root_path: Option<String>,
        pub status: ScanStatus,
        pub started_at: UtcTime,
        pub finished_at: Option<UtcTime>,
        pub error_message: Option<String>,
        pub files_seen: i64,
        pub directories_seen: i64,
        pub bytes_seen: i64,
        pub error_count: i64,
        pub duplicate_groups: Option<i64>,
        pub duplicate_files: Option<i64>,
        pub reclaimable_bytes: Option<i64>,
        /// The part of the root that the scan covers.
        pub scope: ScanScope,
    }
}

const ROWS: &str = "SELECT s.*, r.root_path FROM scan_sessions s LEFT JOIN library_roots r ON r.id = s.library_id";

/// A request to scan a root.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    /// Id of the root.
    pub root: i64,
    /// The part of the root that the scan covers.
    pub scope: ScanScope,
    /// Text that identifies the holder, as [`LivenessCheck`] reads it.
    pub holder: String,
    /// Settings of the scan; only a request with the same settings resumes it.
    pub settings: String,
    /// Whether to begin a new scan instead of resuming.
    pub restart: bool,
    /// Checks whether another holder is alive.
    pub is_alive: LivenessCheck,
}

/// A scan that was begun or resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Id of the scan.
    pub id: i64,
    /// Id of its root.
    pub root: i64,
    /// When it was first begun.
    pub started_at: UtcTime,
    /// Whether an earlier scan was resumed.
    pub resumed: bool,
}

/// Totals of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanTotals {
    /// Number of folders, the root included.
    pub folders: u64,
    /// Number of files found.
    pub files: u64,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// Number of folders and files that could not be read.
    pub errors: u64,
}

/// Duplicates at the end of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duplicates {
    /// Number of duplicate groups.
    pub groups: u64,
    /// Number of files in groups.
    pub files: u64,
    /// Number of reclaimable bytes.
    pub reclaimable: u64,
}

/// Scans of a store.
#[derive(Clone, Copy, Debug)]
pub struct Scans<'a>(pub(crate) &'a Store);

impl Scans<'_> {
    /// Begins or resumes a scan. [`Error::Conflict`] names the process that holds it.
    pub fn begin(self, request: ScanRequest) -> Result<Scan> {
        self.0.write(WriteKind::Compound, move |db| begin(db, &request))
    }

    /// Lists scans of one root or of all, newest first. `after`: the last id of the previous page.
    pub fn list(self, root: Option<i64>, after: Option<i64>, limit: usize) -> Result<Page<ScanRow>> {
        let sql = format!("{ROWS} WHERE s.id < ?1 AND (?2 IS NULL OR s.library_id = ?2) ORDER BY s.id DESC LIMIT ?3");
        let params = (after.unwrap_or(i64::MAX), root, crate::limit_plus_one(limit));
        let rows = self.0.read(|db| db.rows(&sql, params, ScanRow::read))?;
        Ok(Page::from_rows(rows, limit, |scan| scan.id.to_string()))
    }

    /// Returns the scan with this id.
    pub fn get(self, id: i64) -> Result<ScanRow> {
        let found = self.0.read(|db| db.first(&format!("{ROWS} WHERE s.id = ?1"), [id], ScanRow::read))?;
        found.ok_or_else(|| Error::not_found("scan", id))
    }

    /// Renews the heartbeat of scans. Fails if another process has taken one of them over.
    pub fn heartbeat(self, ids: Vec<i64>, holder: &str) -> Result<()> {
        let holder = holder.to_owned();
        self.0.write(WriteKind::Compound, move |db| {
            for id in &ids {
                check_held(db, *id, &holder)?;
                db.execute("UPDATE scan_sessions SET heartbeat_at = ?2 WHERE id = ?1", (id, db.now()))?;
            }
            Ok(())
        })
    }

    /// Records that the walk of a scan is complete, unless another process has taken the scan over.
    pub fn mark_walked(self, id: i64, holder: &str) -> Result<()> {
        let holder = holder.to_owned();
        self.0.write(WriteKind::Statement, move |db| {
            let sql = "UPDATE scan_sessions SET walked_at = ?3 WHERE id = ?1 AND status = 'running' AND holder = ?2";
            db.execute(sql, (id, &holder, db.now())).map(drop)
        })
    }

    /// Releases a scan, so that any process can resume it, unless another process has taken it over.
    pub fn release(self, id: i64, holder: &str) -> Result<()> {
        let holder = holder.to_owned();
        self.0.write(WriteKind::Statement, move |db| {
            let sql = "UPDATE scan_sessions SET holder = NULL WHERE id = ?1 AND status = 'running' AND holder = ?2";
            db.execute(sql, (id, &holder)).map(drop)
        })
    }

    /// Returns whether the last settled scan compared with this method, nothing has changed since, and no scan except
    /// `own` is unfinished. Then a scan that finds no changes has nothing to read.
    pub fn is_compared_with(self, method: &str, own: &[i64]) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM scan_sessions WHERE settled = ?1)";
        self.0.read(|db| Ok(db.number(sql, [method])? > 0 && !has_other_running(db, own)?))
    }

    /// Returns whether every possible duplicate has been compared, and no scan except `own` is unfinished.
    pub fn is_fully_compared(self, own: &[i64]) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM scan_sessions WHERE settled IS NOT NULL)";
        self.0.read(|db| Ok(db.number(sql, [])? > 0 && !has_other_running(db, own)?))
    }

    /// Returns the roots with an unfinished scan, or without a finished one that covered the whole root.
    pub fn unfinished(self) -> Result<Vec<i64>> {
        let sql = "SELECT id FROM library_roots WHERE last_scanned_at IS NULL OR EXISTS (SELECT 1 FROM scan_sessions s
            WHERE s.library_id = library_roots.id AND s.status = 'running') ORDER BY root_path";
        self.0.read(|db| db.rows(sql, [], |row| row.get(0)))
    }

    /// Returns the roots of which only named files were scanned, with the number of files in the catalog. A root with
    /// an unfinished scan is not included.
    pub fn partly_scanned(self) -> Result<Vec<(i64, u64)>> {
        let sql = "SELECT id, file_count FROM library_roots WHERE last_scanned_at IS NULL AND file_count IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM scan_sessions s
                WHERE s.library_id = library_roots.id AND s.status = 'running') ORDER BY root_path";
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        self.0.read(|db| db.rows(sql, [], |row| Ok((row.get(0)?, number(row.get(1)?)))))
    }

    /// Completes scans in one transaction and stores their totals in the roots. `settled`: the method with which every
    /// possible duplicate in the catalog was compared, and the duplicates; ignored if another scan is unfinished or has
    /// finished since these began, because it may have added files that were not compared. Fails if another process has
    /// taken one of the scans over.
    pub fn finish(self, finished: Vec<FinishedScan>, holder: &str, settled: Option<(&str, Duplicates)>) -> Result<()> {
        let holder = holder.to_owned();
        let settled = settled.map(|(method, duplicates)| (method.to_owned(), duplicates));
        self.0.write(WriteKind::Compound, move |db| {
            clear_settled(db)?;
            let own: Vec<i64> = finished.iter().map(|scan| scan.id).collect();
            let is_concurrent = has_other_running(db, &own)? || has_finished_since_start(db, &own)?;
            let settled = settled.as_ref().filter(|_| !is_concurrent);
            finished.iter().try_for_each(|scan| finish(db, scan, &holder, settled))
        })
    }
}

/// Final data of a scan.
#[derive(Clone, Debug)]
pub struct FinishedScan {
    /// Id of the scan.
    pub id: i64,
    /// Id of its root.
    pub root: i64,
    /// Totals at the end of the scan.
    pub totals: ScanTotals,
    /// How the root was walked; `None` if the scan did not cover the whole root.
    pub walk: Option<WalkRecord>,
}

/// How a root was walked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalkRecord {
    /// Filters as JSON; `None` for all files.
    pub filters: Option<String>,
    /// Identity of the filesystem of the root's folder.
    pub filesystem: Option<String>,
}

/// Fails if another process has taken over a scan.
pub(super) fn check_held(db: &Db<'_>, id: i64, holder: &str) -> Result<()> {
    let sql = "SELECT count(*) FROM scan_sessions WHERE id = ?1 AND status = 'running' AND holder = ?2";
    match db.number(sql, (id, holder))? {
        0 => Err(Error::Conflict(format!("scan {id} was taken over by another process"))),
        _ => Ok(()),
    }
}

fn finish(db: &Db<'_>, scan: &FinishedScan, holder: &str, settled: Option<&(String, Duplicates)>) -> Result<()> {
    let FinishedScan { id, root, totals, walk } = scan;
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let [folders, files, bytes, errors] = [totals.folders, totals.files, totals.bytes, totals.errors].map(signed);
    let method = settled.map(|(method, _)| method);
    let [groups, duplicates, reclaimable] = match settled {
        Some((_, Duplicates { groups, files, reclaimable })) => {
            [groups, files, reclaimable].map(|&number| Some(signed(number)))
        }
        None => [None; 3],
    };
    let sql = "UPDATE scan_sessions SET status = 'succeeded', holder = NULL, finished_at = ?2,
        walked_at = coalesce(walked_at, ?2), directories_seen = ?3, files_seen = ?4, bytes_seen = ?5,
        error_count = ?6, error_message = NULL,
        settled = ?7, duplicate_groups = ?8, duplicate_files = ?9, reclaimable_bytes = ?10
        WHERE id = ?1 AND status = 'running' AND holder = ?11";
    let numbers = params![id, db.now(), folders, files, bytes, errors, method, groups, duplicates, reclaimable, holder];
    if db.execute(sql, numbers)? == 0 {
        return Err(Error::Conflict(format!("scan {id} was taken over by another process, or is no longer running")));
    }
    let scope = db.first("SELECT scope FROM scan_sessions WHERE id = ?1", [id], |row| row.get(0))?.flatten();
    // A scan of a part of a root leaves the root as unfinished as it was.
    let sql = match scope {
        None => {
            "UPDATE library_roots SET last_scanned_at = ?2, updated_at = ?2, folder_count = ?3,
            file_count = ?4, total_size = ?5 WHERE id = ?1"
        }
        Some(scope) if ScanScope::NamedFiles.code() == Some(scope) => {
            "UPDATE library_roots SET updated_at = ?2, folder_count = ?3, file_count = ?4, total_size = ?5
            WHERE id = ?1"
        }
        Some(_) => {
            "UPDATE library_roots SET last_scanned_at = CASE WHEN last_scanned_at IS NOT NULL THEN ?2 END,
            updated_at = ?2, folder_count = ?3, file_count = ?4, total_size = ?5
            WHERE id = ?1 AND (last_scanned_at IS NOT NULL OR file_count IS NOT NULL)"
        }
    };
    db.execute(sql, (root, db.now(), folders, files, bytes))?;
    let Some(WalkRecord { filters, filesystem }) = walk else { return Ok(()) };
    let sql = "UPDATE library_roots SET filters = ?2, filesystem = ?3 WHERE id = ?1";
    db.execute(sql, (root, filters, filesystem)).map(drop)
}

/// Returns whether a scan other than these is unfinished.
fn has_other_running(db: &Db<'_>, own: &[i64]) -> Result<bool> {
    let running: Vec<i64> = db.rows("SELECT id FROM scan_sessions WHERE status = 'running'", [], |row| row.get(0))?;
    Ok(running.iter().any(|id| !own.contains(id)))
}

/// Returns whether a scan has finished since the first of these unfinished scans began. A scan that was replaced does
/// not count: its successor does.
fn has_finished_since_start(db: &Db<'_>, unfinished: &[i64]) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM scan_sessions own JOIN scan_sessions other
        ON other.status = 'succeeded' AND (other.id > own.id OR other.finished_at >= own.started_at)
        WHERE own.id = ?1)";
    for id in unfinished {
        if db.number(sql, [id])? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Clears the settled mark, because a file's row changes.
pub(crate) fn clear_settled(db: &Db<'_>) -> Result<()> {
    db.execute("UPDATE scan_sessions SET settled = NULL WHERE settled IS NOT NULL", []).map(drop)
}

/// Fails while a root is scanned, or if its scan stopped less than [`LEASE`] ago without releasing it.
pub(crate) fn check_not_scanning(db: &Db<'_>, root: i64) -> Result<()> {
    let sql = "SELECT count(*) FROM scan_sessions WHERE library_id = ?1 AND status = 'running'
        AND holder IS NOT NULL AND heartbeat_at > ?2";
    if db.number(sql, (root, db.now.minus(LEASE).to_string()))? == 0 {
        return Ok(());
    }
    let text = "the root is being scanned, or its scan was killed less than a minute ago; try again in a minute";
    Err(Error::Conflict(text.to_owned()))
}

table_row! {
    struct RunningScan {
        id: i64,
        started_at: UtcTime,
        holder: Option<String>,
        heartbeat_at: Option<UtcTime>,
        settings: Option<String>,
    }
}

fn begin(db: &Db<'_>, request: &ScanRequest) -> Result<Scan> {
    let ScanRequest { root, scope, settings, holder, .. } = request;
    let sql = "SELECT id, started_at, holder, heartbeat_at, settings FROM scan_sessions
        WHERE library_id = ?1 AND status = 'running' ORDER BY id DESC";
    let running = db.rows(sql, [root], RunningScan::read)?;
    running.iter().try_for_each(|found| check_not_held(db, request, found))?;
    let resumed = running.into_iter().find(|found| !request.restart && found.settings.as_ref() == Some(settings));
    let kept = resumed.as_ref().map_or(0, |found| found.id);
    let sql = "UPDATE scan_sessions SET status = 'failed', holder = NULL, finished_at = ?2,
            error_message = 'replaced by a new scan'
        WHERE library_id = ?1 AND status = 'running' AND id <> ?3 AND (scope IS NOT NULL OR ?4)";
    db.execute(sql, (root, db.now(), kept, *scope == ScanScope::Root))?;
    // A scan of a part does not replace one of the whole root, which stays unfinished until it is resumed.
    let sql = "UPDATE scan_sessions SET holder = NULL WHERE library_id = ?1 AND status = 'running' AND id <> ?2";
    db.execute(sql, (root, kept))?;
    if let Some(found) = resumed {
        let sql = "UPDATE scan_sessions SET holder = ?2, heartbeat_at = ?3 WHERE id = ?1";
        db.execute(sql, (found.id, holder, db.now()))?;
        return Ok(Scan { id: found.id, root: *root, started_at: found.started_at, resumed: true });
    }
    let sql = "INSERT INTO scan_sessions (status, started_at, files_seen, directories_seen, bytes_seen,
            error_count, library_id, settings, holder, heartbeat_at, scope)
        VALUES ('running', ?1, 0, 0, 0, 0, ?2, ?3, ?4, ?1, ?5)";
    db.execute(sql, (db.now(), root, settings, holder, scope.code()))?;
    let id = db.conn.last_insert_rowid();
    Ok(Scan { id, root: *root, started_at: db.now, resumed: false })
}

fn check_not_held(db: &Db<'_>, request: &ScanRequest, found: &RunningScan) -> Result<()> {
    let Some(holder) = found.holder.as_deref() else {
        return Ok(());
    };
    let silent = |heartbeat: UtcTime| heartbeat.plus(LEASE) <= db.now;
    let alive = (request.is_alive)(holder).unwrap_or(!found.heartbeat_at.is_none_or(silent));
    if !alive {
        return Ok(());
    }
    let started = found.started_at.to_string();
    let since = started.get(..19).unwrap_or(&started);
    // The part in parentheses is only for the liveness check.
    let holder = holder.split(" (").next().unwrap_or(holder);
    Err(Error::Conflict(format!("already being scanned since {since} UTC by {holder}")))
}
