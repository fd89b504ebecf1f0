//! Migrates a file of any earlier version to the current schema.
//!
//! Owns the table `schema_migrations` and the order of migrations. Each migration is one transaction that also records
//! its version, so an interrupted one leaves no trace; a new file is created in one transaction. Migrations inspect the
//! existing tables instead of relying on recorded versions: a file of the Python control plane may have a table without
//! the version that creates it.

mod narrow_catalog;

use std::collections::BTreeSet;

use rusqlite::Connection;

use crate::error::{Error, Result};
use crate::paths::display_path;
use crate::sqlite::db::{Db, DbFile};
use crate::sqlite::schema;

use self::Step::{Call, Columns, Sql};

/// Migrations 1 to 12 belong to the Python control plane. A new file contains their tables and records their versions.
const CONTROL_PLANE_MIGRATIONS: &[(i64, &str)] = &[
    (1, "baseline"),
    (2, "scan_sessions_error_count"),
    (3, "hash_retry_and_claim_columns"),
    (4, "legacy_job_execution_backend_marker"),
    (5, "remove_job_execution_backend"),
    (6, "jobs_lease_protocol"),
    (7, "normalize_enum_storage_for_rust_protocol"),
    (8, "thumbnail_protocol_tables"),
    (9, "scan_hash_admission_mutex"),
    (10, "global_io_rate_limit_table"),
    (11, "duplicate_group_query_indexes"),
    (12, "wal_maintenance_jobs"),
];

/// A part of a migration.
enum Step {
    /// Runs statements, each of which may be repeated.
    Sql(&'static str),
    /// Adds the columns that tables lack.
    Columns(&'static [(&'static str, &'static [(&'static str, &'static str)])]),
    /// Calls a function.
    Call(fn(&Db<'_>) -> Result<()>),
}

/// Migrations of Gristmill, in order.
const MIGRATIONS: &[(i64, &str, &[Step])] = &[
    (1001, "protocol", &[Call(protocol)]),
    (1002, "tasks", &[Sql(schema::TASKS), Columns(&[("dead_letter_queue", schema::DEAD_LETTER_COLUMNS)])]),
    (1003, "catalog", &[Columns(schema::CATALOG_COLUMNS), Sql(schema::CATALOG_INDEXES), Call(drop_unused_indexes)]),
    (1004, "messages", &[Sql(schema::SEEN_MESSAGES)]),
    // Clears settled marks that were kept too long.
    (
        1005,
        "catalog_identity",
        &[Sql(schema::FILESYSTEMS), Columns(schema::IDENTITY_COLUMNS), Call(crate::scans::clear_settled)],
    ),
    (1006, "catalog_exceptions", &[Sql(schema::UNREADABLE_FOLDERS)]),
    (1007, "mount_points", &[Columns(&[("folders", schema::MOUNT_COLUMNS)])]),
    (
        1008,
        "task_starts",
        &[
            Columns(&[("tasks", schema::START_COLUMNS)]),
            Sql(schema::SUSPICIOUS_INDEX),
            Sql(schema::WORKERS),
            // In earlier versions each failed attempt and each crash was a start.
            Sql("UPDATE tasks SET starts = attempts + crashes WHERE attempts + crashes > starts"),
        ],
    ),
    (1009, "task_failures", &[Columns(&[("tasks", schema::CANCEL_COLUMNS)]), Sql(schema::TASK_FAILURES)]),
    (1010, "message_runs", &[Sql(schema::MESSAGE_RUNS)]),
    (1011, "message_claims", &[Sql(schema::MESSAGE_CLAIMS)]),
    (1012, "stream_positions", &[Sql(schema::STREAM_POSITIONS)]),
    (1013, "narrow_catalog", &[Call(narrow_catalog::run)]),
    (
        1014,
        "catalog_questions",
        &[
            Sql(schema::DUPLICATE_GROUPS),
            Sql(schema::GROUP_INDEXES),
            Call(group_triggers),
            Sql(schema::BROKEN_LINKS),
            Columns(schema::LIST_COLUMNS),
            Sql(schema::LISTING_TRIGGERS),
        ],
    ),
    (1015, "task_counts", &[Sql(schema::TASK_COUNTS)]),
];

impl Step {
    fn run(&self, db: &Db<'_>) -> Result<()> {
        match *self {
            Sql(sql) => db.batch(sql),
            Columns(tables) => tables.iter().try_for_each(|(table, columns)| add_columns(db, table, columns)),
            Call(function) => function(db),
        }
    }
}

/// Returns the version of the last migration.
pub(crate) fn latest() -> i64 {
    MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0)
}

/// Checks a file before anything in it is changed. Uses a read-only connection, so the WAL of a foreign database is not
/// applied. Returns the connection: closing the only one would discard state that the next connection needs.
pub(crate) fn inspect(file: &DbFile) -> Result<Option<Connection>> {
    match std::fs::metadata(&file.path) {
        // The file does not exist yet, or opening it reports the error.
        Err(_) => Ok(None),
        Ok(found) if found.is_dir() => Err(Error::CannotOpen(file.path.clone(), "it is a folder".to_owned())),
        Ok(found) if found.len() == 0 => Ok(None),
        // SQLite treats a file of one byte as empty.
        Ok(found) if found.is_file() && found.len() < 512 => Err(Error::NotADatabase(file.path.clone())),
        Ok(_) => {
            file.roll_back_journal()?;
            let conn = file.open_reader()?;
            check_compatible(file, &conn)?;
            Ok(Some(conn))
        }
    }
}

/// Refuses databases of other programs and of newer versions.
pub(crate) fn check_compatible(file: &DbFile, conn: &Connection) -> Result<()> {
    let db = file.db(conn);
    let names: BTreeSet<String> =
        db.rows("SELECT name FROM sqlite_schema WHERE type = 'table'", [], |row| row.get(0))?.into_iter().collect();
    if names.is_empty() {
        return Ok(());
    }
    // Other programs have a table of this name with a version only.
    let migration_columns = columns(&db, "schema_migrations")?;
    let is_gristmill = ["version", "name", "applied_at"].iter().all(|column| migration_columns.contains(*column));
    let is_interrupted = migration_columns.is_empty() && names.contains("jobs") && names.contains("library_roots");
    if !is_gristmill && !is_interrupted {
        return Err(Error::Foreign(file.path.clone()));
    }
    if !is_gristmill {
        return Ok(());
    }
    if db.number("SELECT count(*) FROM schema_migrations WHERE typeof(version) <> 'integer'", [])? > 0 {
        return Err(Error::Foreign(file.path.clone()));
    }
    refuse_newer(&db, &applied(&db)?)
}

/// Returns whether all migrations are applied.
pub(crate) fn is_current(file: &DbFile, conn: &Connection) -> Result<bool> {
    let db = file.db(conn);
    if !columns(&db, "schema_migrations")?.contains("version") {
        return Ok(false);
    }
    let applied = applied(&db)?;
    Ok(MIGRATIONS.iter().all(|(version, ..)| applied.contains(version)))
}

/// Applies the missing migrations. Several processes may call this at the same time; each migration runs once.
pub(crate) fn run(file: &DbFile, conn: &Connection) -> Result<()> {
    if is_current(file, conn)? {
        return Ok(());
    }
    let db = file.db(conn);
    // Dropping a table would otherwise delete the rows that refer to it, and renaming one change the views of others.
    // Neither setting can be changed in a transaction.
    db.batch("PRAGMA foreign_keys = OFF; PRAGMA legacy_alter_table = ON")?;
    let is_new_file = db.number("SELECT count(*) FROM sqlite_schema", [])? == 0;
    // For a new file one transaction: syncing each would be half of the time of a small scan.
    let transactions = if is_new_file { MIGRATIONS.len() } else { 1 };
    let result = MIGRATIONS.chunks(transactions).try_for_each(|migrations| {
        db.batch("BEGIN IMMEDIATE")?;
        let applied = migrations.iter().try_for_each(|(version, name, steps)| apply(&db, *version, name, steps));
        let result = applied.and_then(|()| db.batch("COMMIT"));
        if result.is_err() && !conn.is_autocommit() {
            db.batch("ROLLBACK")?;
        }
        result
    });
    result.and(db.batch("PRAGMA legacy_alter_table = OFF; PRAGMA foreign_keys = ON"))
}

fn apply(db: &Db<'_>, version: i64, name: &str, migration: &[Step]) -> Result<()> {
    let is_new_file = db.number("SELECT count(*) FROM sqlite_schema WHERE type = 'table'", [])? == 0;
    db.batch(schema::CREATE_MIGRATIONS_TABLE)?;
    let applied = applied(db)?;
    refuse_newer(db, &applied)?;
    if applied.contains(&version) {
        return Ok(());
    }
    tracing::info!(version, name, path = %display_path(db.path()), "migrating");
    migration.iter().try_for_each(|step| step.run(db))?;
    if is_new_file {
        CONTROL_PLANE_MIGRATIONS.iter().try_for_each(|(version, name)| record(db, *version, name))?;
    }
    record(db, version, name)
}

fn record(db: &Db<'_>, version: i64, name: &str) -> Result<()> {
    let sql = "INSERT INTO schema_migrations (version, name, applied_at) VALUES (?1, ?2, ?3)";
    db.execute(sql, (version, name, db.now())).map(drop)
}

fn applied(db: &Db<'_>) -> Result<BTreeSet<i64>> {
    Ok(db.rows("SELECT version FROM schema_migrations", [], |row| row.get(0))?.into_iter().collect())
}

/// Refuses unknown migrations: they may have changed the meaning of columns.
fn refuse_newer(db: &Db<'_>, applied: &BTreeSet<i64>) -> Result<()> {
    let known = |version: &i64| {
        CONTROL_PLANE_MIGRATIONS.iter().any(|(number, _)| number == version)
            || MIGRATIONS.iter().any(|(number, ..)| number == version)
    };
    match applied.iter().find(|version| !known(version)) {
        Some(&version) => Err(Error::Newer { path: db.path().to_path_buf(), version }),
        None => Ok(()),
    }
}

/// Returns the columns of a table; empty if there is no such table.
fn columns(db: &Db<'_>, table: &str) -> Result<BTreeSet<String>> {
    let names = db.rows("SELECT name FROM pragma_table_info(?1)", [table], |row| row.get(0))?;
    Ok(names.into_iter().collect())
}

/// Creates or completes the shared tables.
fn protocol(db: &Db<'_>) -> Result<()> {
    for table in schema::SHARED_TABLES {
        if columns(db, table.name)?.is_empty() {
            db.batch(table.create)?;
        } else {
            add_columns(db, table.name, table.added_columns)?;
        }
    }
    db.batch("DROP INDEX IF EXISTS ix_jobs_single_active_scan_hash")?;
    for (table, column) in schema::ENUM_COLUMNS {
        db.batch(&format!("UPDATE {table} SET {column} = lower({column}) WHERE {column} <> lower({column})"))?;
    }
    keep_one_active(db)?;
    db.batch(schema::SHARED_INDEXES)?;
    db.batch(schema::SINGLE_ACTIVE_INDEX)
}

/// Drops indexes that no query needs, unless another program created the file.
fn drop_unused_indexes(db: &Db<'_>) -> Result<()> {
    if is_own_catalog(db)? { db.batch(schema::UNUSED_INDEXES) } else { Ok(()) }
}

/// Creates the triggers that note changed groups, and an index of empty files.
fn group_triggers(db: &Db<'_>) -> Result<()> {
    db.batch(schema::EMPTY_FILES)?;
    db.batch(&schema::group_triggers())
}

/// Returns whether Gristmill created the table of files.
fn is_own_catalog(db: &Db<'_>) -> Result<bool> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'library_files'
        AND sql LIKE '%CHECK (size_bytes >= 0)%'";
    Ok(db.number(sql, [])? > 0)
}

fn add_columns(db: &Db<'_>, table: &str, columns_to_add: &[(&str, &str)]) -> Result<()> {
    let existing = columns(db, table)?;
    for (column, definition) in columns_to_add.iter().filter(|(column, _)| !existing.contains(*column)) {
        db.batch(&format!("ALTER TABLE {table} ADD COLUMN {column} {definition}"))?;
    }
    Ok(())
}

/// Leaves one scan or hash job active: the oldest running one, otherwise the oldest pending one. The choice depends
/// only on the rows, so the control plane makes the same one.
fn keep_one_active(db: &Db<'_>) -> Result<()> {
    let mark_retryable = |states: &str, rank: &str, code: &str, what: &str| {
        let created = crate::lease::sortable_time("created_at");
        let message = format!("Reclassified during migration to satisfy single {what} scan/hash invariant");
        let sql = format!(
            "UPDATE jobs SET status = 'retryable', worker_id = NULL, worker_heartbeat_at = NULL,
                lease_expires_at = NULL, error_code = {code},
                error_message = coalesce(nullif(trim(error_message), ''), ?1),
                finished_at = coalesce(finished_at, ?2), updated_at = ?2
             WHERE id IN (SELECT id FROM jobs WHERE kind IN ('scan', 'hash') AND status IN ({states})
                ORDER BY {rank} {created}, id LIMIT -1 OFFSET 1)"
        );
        db.execute(&sql, (message, db.now())).map(drop)
    };
    mark_retryable("'running'", "", "'MIGRATION_MUTEX_RECOVERY'", "running")?;
    mark_retryable(
        "'running', 'pending'",
        "status = 'running' DESC,",
        "coalesce(nullif(trim(error_code), ''), 'MIGRATION_ACTIVE_RECOVERY')",
        "pending/running",
    )
}
