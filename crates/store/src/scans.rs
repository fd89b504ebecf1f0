//! Scans of roots: one at a time for each.
//!
//! Owns the table `scan_sessions`, and when everything in the catalog has been compared: a scan that ends so is marked as
//! settled, and every later change of a file's row clears the mark. A scan is held by a process, which renews a
//! heartbeat. A scan whose holder has exited is resumed by the same request; another request marks it as failed.

use std::time::Duration;

use rusqlite::{Row, params};

use crate::Store;
use crate::db::{Db, required_time, time};
use crate::error::{Error, Result};
use crate::time::UtcTime;
use crate::writer::WriteKind;

/// A holder that nobody can ask about is taken for dead when it has said nothing for so long.
pub const LEASE: Duration = Duration::from_secs(60);

/// Who holds a scan: told from what it wrote, whether the process lives. `None`: cannot be told from here.
pub type LivenessCheck = fn(&str) -> Option<bool>;

/// A scan to be done.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    /// Of which root.
    pub root: i64,
    /// Who wants it, in words that [`Alive`] understands.
    pub holder: String,
    /// What was asked for: only the same request goes on with a scan.
    pub settings: String,
    /// Begin anew, whatever was done.
    pub restart: bool,
    /// How to tell whether another holder lives.
    pub is_alive: LivenessCheck,
}

/// A scan that was begun, or gone on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Its number.
    pub id: i64,
    /// Its root.
    pub root: i64,
    /// When it was begun first.
    pub started_at: UtcTime,
    /// Whether somebody began it before.
    pub resumed: bool,
}

/// What a scan has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanTotals {
    /// Folders, the root included.
    pub folders: u64,
    /// Files.
    pub files: u64,
    /// Their size together.
    pub bytes: u64,
    /// Folders and files that could not be read.
    pub errors: u64,
}

/// The duplicates there were when a scan ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duplicates {
    /// Groups.
    pub groups: u64,
    /// Files in them.
    pub files: u64,
    /// What could be had back.
    pub reclaimable: u64,
}

/// The scans of a store.
#[derive(Clone, Copy, Debug)]
pub struct Scans<'a>(pub(crate) &'a Store);

impl Scans<'_> {
    /// Begins a scan, or goes on with one. [`Error::Conflict`] names whoever holds it.
    pub fn begin(self, request: ScanRequest) -> Result<Scan> {
        self.0.write(WriteKind::Compound, move |db| begin(db, &request))
    }

    /// Says that the holder of these scans is alive.
    pub fn heartbeat(self, ids: Vec<i64>, holder: &str) -> Result<()> {
        let holder = holder.to_owned();
        self.0.write(WriteKind::Compound, move |db| {
            for id in &ids {
                let sql = "UPDATE scan_sessions SET heartbeat_at = ?3
                    WHERE id = ?1 AND status = 'running' AND holder = ?2";
                if db.execute(sql, (id, &holder, db.now()))? == 0 {
                    return Err(Error::Conflict(format!("scan {id} was taken over by another process")));
                }
            }
            Ok(())
        })
    }

    /// Records that the walk of a scan is complete.
    pub fn mark_walked(self, id: i64) -> Result<()> {
        self.0.write(WriteKind::Statement, move |db| {
            let sql = "UPDATE scan_sessions SET walked_at = ?2 WHERE id = ?1 AND status = 'running'";
            db.execute(sql, (id, db.now())).map(drop)
        })
    }

    /// Leaves a scan to whoever wants to go on with it.
    pub fn release(self, id: i64) -> Result<()> {
        self.0.write(WriteKind::Statement, move |db| {
            let sql = "UPDATE scan_sessions SET holder = NULL WHERE id = ?1 AND status = 'running'";
            db.execute(sql, [id]).map(drop)
        })
    }

    /// The duplicates found by the scan that settled the catalog last, if it read everything in this manner, nothing has
    /// changed since, and no scan but `own` is unfinished: then a scan that finds nothing changed has nothing to read.
    pub fn last_full_comparison(self, method: &str, own: &[i64]) -> Result<Option<Duplicates>> {
        let sql = "SELECT duplicate_groups, duplicate_files, reclaimable_bytes FROM scan_sessions WHERE settled = ?1";
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        self.0.read(|db| {
            if has_other_running(db, own)? {
                return Ok(None);
            }
            db.first(sql, [method], |row| {
                let (groups, files, reclaimable) =
                    (number(row.get(0)?), number(row.get(1)?), number(row.get(2)?));
                Ok(Duplicates { groups, files, reclaimable })
            })
        })
    }

    /// Whether every file that can be a duplicate has been compared, and no scan but `own` is unfinished.
    pub fn is_fully_compared(self, own: &[i64]) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM scan_sessions WHERE settled IS NOT NULL)";
        self.0.read(|db| Ok(db.number(sql, [])? > 0 && !has_other_running(db, own)?))
    }

    /// Roots that have a scan which has not finished, or none that ever did.
    pub fn unfinished(self) -> Result<Vec<i64>> {
        let sql = "SELECT id FROM library_roots WHERE last_scanned_at IS NULL OR EXISTS (SELECT 1 FROM scan_sessions s
            WHERE s.library_id = library_roots.id AND s.status = 'running') ORDER BY root_path";
        self.0.read(|db| db.rows(sql, [], |row| row.get(0)))
    }

    /// Scans are complete, all in one transaction. Each root remembers what was seen. `settled`: everything in the
    /// catalog that can be a duplicate was compared, in this manner, and these are the duplicates. That does not
    /// hold while another scan is unfinished.
    pub fn finish(self, finished: Vec<FinishedScan>, settled: Option<(&str, Duplicates)>) -> Result<()> {
        let settled = settled.map(|(method, duplicates)| (method.to_owned(), duplicates));
        self.0.write(WriteKind::Compound, move |db| {
            clear_settled(db)?;
            let own: Vec<i64> = finished.iter().map(|scan| scan.id).collect();
            let settled = if has_other_running(db, &own)? { None } else { settled.as_ref() };
            finished.iter().try_for_each(|scan| finish(db, scan, settled))
        })
    }
}

/// A scan that has come to its end.
#[derive(Clone, Debug)]
pub struct FinishedScan {
    /// The scan.
    pub id: i64,
    /// Its root.
    pub root: i64,
    /// What is there now.
    pub totals: ScanTotals,
    /// What the root remembers of the walk; nothing if the scan did not look at the whole root.
    pub walk: Option<WalkRecord>,
}

/// How a root was walked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalkRecord {
    /// The filters, as JSON; none for all files.
    pub filters: Option<String>,
    /// The identity of the filesystem of the root's own folder.
    pub filesystem: Option<String>,
}

fn finish(db: &Db<'_>, scan: &FinishedScan, settled: Option<&(String, Duplicates)>) -> Result<()> {
    let FinishedScan { id, root, totals, walk } = scan;
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let [folders, files, bytes, errors] =
        [totals.folders, totals.files, totals.bytes, totals.errors].map(signed);
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
        WHERE id = ?1 AND status = 'running'";
    let numbers =
        params![id, db.now(), folders, files, bytes, errors, method, groups, duplicates, reclaimable];
    if db.execute(sql, numbers)? == 0 {
        return Err(Error::Conflict(format!("scan {id} is not running any more")));
    }
    let sql = "UPDATE library_roots SET last_scanned_at = ?2, updated_at = ?2, folder_count = ?3,
        file_count = ?4, total_size = ?5 WHERE id = ?1";
    db.execute(sql, (root, db.now(), folders, files, bytes))?;
    let Some(WalkRecord { filters, filesystem }) = walk else { return Ok(()) };
    let sql = "UPDATE library_roots SET filters = ?2, filesystem = ?3 WHERE id = ?1";
    db.execute(sql, (root, filters, filesystem)).map(drop)
}

/// Whether a scan other than these has not finished.
fn has_other_running(db: &Db<'_>, own: &[i64]) -> Result<bool> {
    let running: Vec<i64> =
        db.rows("SELECT id FROM scan_sessions WHERE status = 'running'", [], |row| row.get(0))?;
    Ok(running.iter().any(|id| !own.contains(id)))
}

/// Clears the mark of the scan that settled the catalog: a file's row changes.
pub(crate) fn clear_settled(db: &Db<'_>) -> Result<()> {
    db.execute("UPDATE scan_sessions SET settled = NULL WHERE settled IS NOT NULL", []).map(drop)
}

/// Refuses while a root is scanned, or was until a moment ago by somebody who is silent since.
pub(crate) fn check_not_scanning(db: &Db<'_>, root: i64) -> Result<()> {
    let sql = "SELECT count(*) FROM scan_sessions WHERE library_id = ?1 AND status = 'running'
        AND holder IS NOT NULL AND heartbeat_at > ?2";
    if db.number(sql, (root, db.now.minus(LEASE).to_string()))? == 0 {
        return Ok(());
    }
    let text = "the root is being scanned, or its scan was killed less than a minute ago; try again then";
    Err(Error::Conflict(text.to_owned()))
}

struct RunningScan {
    scan: Scan,
    holder: Option<String>,
    heartbeat_at: Option<UtcTime>,
    settings: Option<String>,
}

fn begin(db: &Db<'_>, request: &ScanRequest) -> Result<Scan> {
    let sql = "SELECT id, library_id, started_at, holder, heartbeat_at, settings FROM scan_sessions
        WHERE library_id = ?1 AND status = 'running' ORDER BY id DESC LIMIT 1";
    if let Some(found) = db.first(sql, [request.root], running)? {
        check_not_held(db, request, &found)?;
        if !request.restart && found.settings.as_ref() == Some(&request.settings) {
            let sql = "UPDATE scan_sessions SET holder = ?2, heartbeat_at = ?3 WHERE id = ?1";
            db.execute(sql, (found.scan.id, &request.holder, db.now()))?;
            return Ok(found.scan);
        }
        let sql = "UPDATE scan_sessions SET status = 'failed', holder = NULL, finished_at = ?2,
            error_message = 'begun anew' WHERE library_id = ?1 AND status = 'running'";
        db.execute(sql, (request.root, db.now()))?;
    }
    let sql = "INSERT INTO scan_sessions (status, started_at, files_seen, directories_seen, bytes_seen,
            error_count, library_id, settings, holder, heartbeat_at)
        VALUES ('running', ?1, 0, 0, 0, 0, ?2, ?3, ?4, ?1)";
    db.execute(sql, (db.now(), request.root, &request.settings, &request.holder))?;
    let id = db.conn.last_insert_rowid();
    Ok(Scan { id, root: request.root, started_at: db.now, resumed: false })
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
    let since = found.scan.started_at;
    // The rest is for the comparison.
    let holder = holder.split(" (").next().unwrap_or(holder);
    Err(Error::Conflict(format!("it is being scanned already, since {since} UTC, by {holder}")))
}

fn running(row: &Row<'_>) -> rusqlite::Result<RunningScan> {
    Ok(RunningScan {
        scan: Scan {
            id: row.get("id")?,
            root: row.get("library_id")?,
            started_at: required_time(row, "started_at")?,
            resumed: true,
        },
        holder: row.get("holder")?,
        heartbeat_at: time(row, "heartbeat_at")?,
        settings: row.get("settings")?,
    })
}
