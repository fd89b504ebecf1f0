//! Checks which tables a database has.

use rusqlite::Connection;

/// Returns whether the database has a table of this name, in the same case.
pub fn table_exists(conn: &Connection, name: &str) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?.exists([name])
}

/// Returns whether the database is a store: of Gristmill, or of the Python control plane that shares its tables.
pub fn is_store(conn: &Connection) -> rusqlite::Result<bool> {
    Ok(table_exists(conn, "job_locks")? && table_exists(conn, "wal_maintenance_jobs")?)
}
