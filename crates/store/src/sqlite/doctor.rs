//! Examines a database file, reports problems, and makes safe repairs.
//!
//! Examining changes nothing, not even the schema of an old file, and works on a file that is too damaged to be opened
//! as a store: unreadable data is a finding. Repairs never lose data; a damaged file is not repaired by guessing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::lease::{self, sortable_time};
use crate::paths::with_suffix;
use crate::sqlite::db::{Access, Db, DbFile};
use crate::sqlite::writer::WriteKind;
use crate::sqlite::{migrations, read_only};
use crate::{Store, StoreOptions, checkpoints, damage};

/// Maximum number of lines that `integrity_check` returns.
const MAX_INTEGRITY_LINES: usize = 100;

/// WAL length, 64 MiB, to which SQLite truncates on reset. A longer WAL was not reset for some time.
const MAX_WAL_BYTES: u64 = 64 << 20;

/// Maximum difference between the clocks of several machines that is not reported.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Minimum age of orphaned checkpoints that a repair deletes: one day.
const ORPHAN_RETENTION: Duration = Duration::from_secs(86_400);

/// Tables with the columns `status` and `created_at`.
const STATUS_TABLES: &[&str] = &["tasks", "jobs", "thumbnails", "thumbnail_cleanup_jobs", "wal_maintenance_jobs"];

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For information; nothing needs to be done.
    Note,
    /// The user should act.
    Warning,
    /// The file is damaged.
    Damage,
}

/// A problem and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity of the problem.
    pub severity: Severity,
    /// Description of the problem.
    pub what: String,
    /// Recommended next step for the user.
    pub next: String,
}

/// Number of leases in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LeaseCount {
    /// Name of the table.
    pub table: &'static str,
    /// Rows that a worker has claimed.
    pub leased: u64,
    /// Of these, rows whose lease has expired or whose worker died.
    pub stale: u64,
    /// Of these, rows whose lease ends later than any lease could.
    pub far_ahead: u64,
}

/// Result of examining a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checkup {
    /// Version of the SQLite library.
    pub sqlite_version: String,
    /// Latest applied migration of Gristmill.
    pub schema_version: Option<i64>,
    /// Journal mode of the file: `wal` once Gristmill has opened it.
    pub journal_mode: Option<String>,
    /// Durability of commits, `full` or `normal`. A setting of the program, not of the file.
    pub synchronous: &'static str,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Size of the WAL in bytes.
    pub wal_bytes: u64,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Number of pages in the file.
    pub pages: u64,
    /// Number of unused pages.
    pub free_pages: u64,
    /// Number of rows for each table and status.
    pub counts: BTreeMap<&'static str, BTreeMap<String, u64>>,
    /// Leases of each table.
    pub leases: Vec<LeaseCount>,
    /// Number of dead letters.
    pub dead_letters: u64,
    /// Checkpoints of tasks that are finished or deleted.
    pub orphaned_checkpoints: u64,
    /// Indexes that do not match their table and can be rebuilt.
    pub broken_indexes: Vec<String>,
    /// Findings, most severe first.
    pub findings: Vec<Finding>,
}

impl Checkup {
    /// Returns the highest severity, if there are findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    fn report(&mut self, severity: Severity, what: impl Into<String>, next: impl Into<String>) {
        self.findings.push(Finding { severity, what: what.into(), next: next.into() });
    }

    /// Records unreadable data as damage and returns false. Other errors end the examination.
    fn record_damage(&mut self, result: Result<()>) -> Result<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(Error::Corrupt(_, detail)) => {
                self.report(Severity::Damage, format!("a part cannot be read: {detail}"), ADVICE_PENDING);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Placeholder for the advice about damage until the whole file is examined.
const ADVICE_PENDING: &str = "";

impl StoreOptions {
    /// Examines a file without changing it. `lease`: the longest lease that workers use. Fails if there is nothing to
    /// examine: no file, a database of another program, or a file that cannot be read at all.
    pub fn examine(&self, path: &Path, lease: Duration) -> Result<Checkup> {
        let file = self.file(path);
        let cannot_open = |detail: String| Error::CannotOpen(file.path.clone(), detail);
        let found = fs::metadata(path).map_err(|error| cannot_open(error.to_string()))?;
        if !found.is_file() {
            return Err(cannot_open("it is not a regular file".to_owned()));
        }
        let mut checkup = Checkup {
            sqlite_version: rusqlite::version().to_owned(),
            synchronous: self.durability.as_str(),
            file_bytes: found.len(),
            wal_bytes: fs::metadata(with_suffix(path, "-wal")).map_or(0, |wal| wal.len()),
            ..Checkup::default()
        };
        let mut file = file;
        let inspected = match migrations::inspect(&file) {
            Err(error) if read_only::may_be_read_only(&error, path) => read_only::open(&file).map(|(found, _)| {
                file = found;
                let what = "the file or its folder is read-only";
                checkup.report(Severity::Note, what, "nothing, if that is intended");
            }),
            inspected => inspected.map(drop),
        };
        if checkup.record_damage(inspected)? {
            let conn = file.open_reader()?;
            Examination { db: file.db(&conn), lease, checkup: &mut checkup }.run()?;
        }
        if checkup.findings.iter().any(|finding| finding.next == ADVICE_PENDING) {
            let advice = damage::advice(path);
            let damaged = checkup.findings.iter_mut().filter(|finding| finding.next == ADVICE_PENDING);
            damaged.for_each(|finding| finding.next.clone_from(&advice));
        }
        checkup.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(checkup)
    }

    /// Makes the safe repairs for `found` and returns their descriptions. A task whose worker died `max_crashes` times
    /// becomes a dead letter when its lease is freed, as it would with a worker.
    pub fn repair(&self, path: &Path, found: &Checkup, max_crashes: u32) -> Result<Vec<String>> {
        let mut done = Vec::new();
        // Damage of indexes is one finding and can be repaired.
        let is_damage = |finding: &&Finding| finding.severity == Severity::Damage;
        if found.findings.iter().filter(is_damage).count() > usize::from(!found.broken_indexes.is_empty()) {
            return Ok(done);
        }
        let file = self.file(path);
        if !found.broken_indexes.is_empty() {
            reindex(&file, &found.broken_indexes, &mut done)?;
        }
        let store = self.clone().open(path)?;
        free_leases(&store, max_crashes, &mut done)?;
        let deleted = store.checkpoints().delete_orphans(store.now().minus(ORPHAN_RETENTION))?;
        if deleted > 0 {
            done.push(format!("deleted {}", plural(deleted, "orphaned checkpoint")));
        }
        drop(store);
        truncate_wal_and_optimize(&file, &mut done)?;
        Ok(done)
    }

    pub(crate) fn file(&self, path: &Path) -> DbFile {
        let StoreOptions { durability, busy_timeout, clock, .. } = self.clone();
        DbFile { path: path.to_path_buf(), durability, busy_timeout, clock, access: Access::ReadWrite }
    }
}

struct Examination<'a> {
    db: Db<'a>,
    lease: Duration,
    checkup: &'a mut Checkup,
}

impl Examination<'_> {
    fn run(mut self) -> Result<()> {
        let checks: [fn(&mut Self) -> Result<()>; 7] = [
            Self::size,
            Self::integrity,
            Self::references,
            Self::schema,
            Self::statuses,
            Self::leases,
            Self::leftovers,
        ];
        for check in checks {
            let result = check(&mut self);
            self.checkup.record_damage(result)?;
        }
        Ok(())
    }

    fn pragma(&self, name: &str) -> Result<u64> {
        self.db.count(&format!("PRAGMA {name}"), [])
    }

    fn size(&mut self) -> Result<()> {
        // SQLite does not report the mode of an immutable file.
        if self.db.file.access != Access::Immutable {
            self.checkup.journal_mode = self.db.first("PRAGMA journal_mode", [], |row| row.get(0))?;
        }
        self.checkup.page_bytes = self.pragma("page_size")?;
        self.checkup.pages = self.pragma("page_count")?;
        self.checkup.free_pages = self.pragma("freelist_count")?;
        if self.checkup.wal_bytes > MAX_WAL_BYTES {
            let what = format!("the WAL has grown to {} MiB", self.checkup.wal_bytes >> 20);
            self.checkup.report(
                Severity::Warning,
                what,
                "`gristmill doctor --repair` truncates it; if it stays long, a process holds a read transaction open",
            );
        }
        Ok(())
    }

    fn integrity(&mut self) -> Result<()> {
        let sql = format!("PRAGMA integrity_check({MAX_INTEGRITY_LINES})");
        let lines: Vec<String> = self.db.rows(&sql, [], |row| row.get(0))?;
        let mut index_lines = 0;
        let mut others = Vec::new();
        // Problems of one b-tree are several lines in one row.
        for line in lines.iter().flat_map(|row| row.lines()).filter(|line| *line != "ok") {
            match repairable_index(line) {
                Some(index) => {
                    index_lines += 1;
                    if !self.checkup.broken_indexes.iter().any(|known| known == index) {
                        self.checkup.broken_indexes.push(index.to_owned());
                    }
                }
                None => others.push(line),
            }
        }
        if index_lines > 0 {
            let names = self.checkup.broken_indexes.join(", ");
            let what = format!("indexes do not match their tables ({index_lines} places): {names}");
            self.checkup.report(Severity::Damage, what, "`gristmill doctor --repair` rebuilds them");
        }
        for line in others {
            let is_constraint_violation =
                line.starts_with("NULL value in ") || line.starts_with("CHECK constraint failed in ");
            if is_constraint_violation {
                let next = "another program wrote it; correct the row there";
                self.checkup.report(Severity::Warning, format!("a row violates a constraint: {line}"), next);
            } else {
                self.checkup.report(Severity::Damage, format!("the file is damaged: {line}"), ADVICE_PENDING);
            }
        }
        Ok(())
    }

    fn references(&mut self) -> Result<()> {
        let sql = "SELECT \"table\", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2";
        let broken: Vec<(String, String, i64)> =
            self.db.rows(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        for (table, parent, count) in broken {
            self.checkup.report(
                Severity::Warning,
                format!("{count} rows of {table} refer to missing rows of {parent}"),
                "another program wrote without foreign keys; correct the rows there",
            );
        }
        Ok(())
    }

    fn schema(&mut self) -> Result<()> {
        if self.db.has_table("schema_migrations")? {
            let sql = "SELECT max(version) FROM schema_migrations WHERE version > 1000";
            self.checkup.schema_version = self.db.first(sql, [], |row| row.get(0))?.flatten();
        }
        let latest = migrations::latest();
        if self.checkup.schema_version != Some(latest) {
            let what = match self.checkup.schema_version {
                Some(version) => format!("the schema version is {version}; the latest is {latest}"),
                None => "this program has never opened the file".to_owned(),
            };
            self.checkup.report(Severity::Note, what, "nothing: the next worker or command migrates it");
        }
        Ok(())
    }

    fn statuses(&mut self) -> Result<()> {
        for &table in STATUS_TABLES {
            if !self.db.has_table(table)? {
                continue;
            }
            self.checkup.counts.insert(table, self.db.count_by_status(table)?.into_iter().collect());
            self.future_rows(table)?;
        }
        Ok(())
    }

    /// Reports rows that were created in the future: the clock was set back.
    fn future_rows(&mut self, table: &str) -> Result<()> {
        let sql = format!("SELECT count(*) FROM {table} WHERE {} > ?1", sortable_time("created_at"));
        let count = self.db.count(&sql, [self.db.now.plus(MAX_CLOCK_SKEW).to_string()])?;
        let next = format!("compare the clocks of all machines; here it is {} UTC", self.db.now);
        self.report_count(count, "row", &format!(" of {table}"), "created in the future", next);
        Ok(())
    }

    /// Warns if there are rows with a problem.
    fn report_count(&mut self, count: u64, noun: &str, suffix: &str, what: &str, next: impl Into<String>) {
        if count > 0 {
            self.checkup.report(Severity::Warning, count_phrase(count, noun, suffix, what), next);
        }
    }

    fn leases(&mut self) -> Result<()> {
        let far = self.db.now.plus(self.lease.saturating_mul(2)).plus(MAX_CLOCK_SKEW).to_string();
        for rules in lease::leased_tables() {
            let table = rules.table;
            if !self.db.has_table(table)? {
                continue;
            }
            let (leased, stale) = rules.leased_and_stale(&self.db)?;
            let ends = sortable_time("lease_expires_at");
            let sql =
                format!("SELECT count(*) FROM {table} WHERE status = 'running' AND {ends} > ?1{}", rules.row_filter);
            let far_ahead = self.db.count(&sql, [&far])?;
            self.checkup.leases.push(LeaseCount { table, leased, stale, far_ahead });
            let of_table = format!(" of {table}");
            let what = "held by a worker that has exited or stopped renewing its lease";
            let next = "`gristmill jobs recover` frees them; so does any worker that starts";
            self.report_count(stale, "row", &of_table, what, next);
            let what = "leased for much longer than the configured lease";
            let next = "if the clock was set back, their workers keep them until then; if those are dead, \
                `gristmill jobs cancel` ends them";
            self.report_count(far_ahead, "row", &of_table, what, next);
        }
        Ok(())
    }

    fn leftovers(&mut self) -> Result<()> {
        if self.db.has_table("task_checkpoints")? {
            let orphans = checkpoints::count_orphans(&self.db)?;
            self.checkup.orphaned_checkpoints = orphans;
            let next = "`gristmill doctor --repair` deletes those older than a day";
            self.report_count(orphans, "checkpoint", "", "left by finished tasks", next);
        }
        if self.db.has_table("dead_letter_queue")? {
            let dead_letters = self.db.count("SELECT count(*) FROM dead_letter_queue", [])?;
            self.checkup.dead_letters = dead_letters;
            if dead_letters > 0 {
                let what = count_phrase(dead_letters, "dead letter", "", "stored");
                let next = "`gristmill dead list` lists dead letters; `gristmill dead retry` retries tasks";
                self.checkup.report(Severity::Note, what, next);
            }
        }
        Ok(())
    }
}

/// Returns the index that a line of `integrity_check` names, if rebuilding it repairs the problem.
fn repairable_index(line: &str) -> Option<&str> {
    ["missing from index ", "wrong # of entries in index ", "values differ from index "]
        .iter()
        .find_map(|words| line.split_once(words).map(|(_, index)| index.trim()))
}

fn reindex(file: &DbFile, indexes: &[String], done: &mut Vec<String>) -> Result<()> {
    let conn = file.open_writer()?;
    let db = file.db(&conn);
    for index in indexes {
        db.batch(&format!("REINDEX \"{}\"", index.replace('"', "\"\"")))?;
        done.push(format!("rebuilt the index {index}"));
    }
    Ok(())
}

fn free_leases(store: &Store, max_crashes: u32, done: &mut Vec<String>) -> Result<()> {
    let recovered = store.tasks().recover(max_crashes)?;
    if recovered.freed > 0 {
        done.push(format!("freed {} of tasks", plural(recovered.freed, "stale lease")));
    }
    if !recovered.poisoned.is_empty() {
        let count = plural(recovered.poisoned.len(), "task");
        done.push(format!("dead-lettered {count} whose workers kept dying; see `gristmill dead list`"));
    }
    // Leases of tasks were freed above, which also counts crashes.
    for rules in lease::leased_tables().into_iter().filter(|rules| rules.table != "tasks") {
        let freed = store.write(WriteKind::Compound, move |db| rules.recover(db))?;
        if freed > 0 {
            done.push(format!("freed {} of {}", plural(freed, "stale lease"), rules.table));
        }
    }
    Ok(())
}

/// Truncates the WAL and updates the statistics of the query planner.
fn truncate_wal_and_optimize(file: &DbFile, done: &mut Vec<String>) -> Result<()> {
    let length = || fs::metadata(with_suffix(&file.path, "-wal")).map_or(0, |wal| wal.len());
    let before = length();
    let conn: Connection = file.open_writer()?;
    let db = file.db(&conn);
    // The returned counts are not needed: the file's length shows whether the checkpoint was blocked.
    db.rows("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    let after = length();
    if after < before {
        done.push(format!("truncated the WAL from {before} to {after} bytes"));
    }
    db.rows("PRAGMA optimize", [], |_| Ok(())).map(drop)
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats "1 row of tasks is held" or "2 rows of tasks are held".
fn count_phrase(count: u64, noun: &str, suffix: &str, what: &str) -> String {
    let (ending, verb) = if count == 1 { ("", "is") } else { ("s", "are") };
    format!("{count} {noun}{ending}{suffix} {verb} {what}")
}
