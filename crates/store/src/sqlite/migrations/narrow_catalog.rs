//! Migrates the catalog to rows of less than half the size.
//!
//! In files that Gristmill created, the table is built again: it has no index of all paths, and columns that are NULL
//! in most rows come last, where they take no space. A table that another program created keeps its columns, its
//! constraint and its indexes.

use rusqlite::functions::FunctionFlags;

use super::is_own_catalog;
use crate::catalog::prefix;
use crate::error::Result;
use crate::sqlite::db::Db;
use crate::sqlite::schema;

/// Earlier versions hashed files up to 64 KiB as a whole and kept each hash. Now `edges` identifies their content, and
/// a hash is kept only if several files share it.
const KEEP_SAMPLES: &str = "
    UPDATE library_files SET edges = hash_prefix(read_hash)
        WHERE edges IS NULL AND size_bytes BETWEEN 1 AND 65536 AND content_hash IS NULL
            AND read_algorithm = 'blake3' AND length(read_hash) = 32;
    UPDATE library_files SET edges = hash_prefix(content_hash)
        WHERE edges IS NULL AND size_bytes BETWEEN 1 AND 65536 AND hash_algorithm = 'blake3'
            AND length(content_hash) = 32 AND needs_hash = 0 AND hashed_size_bytes IS size_bytes
            AND hashed_mtime_ns IS mtime_ns;
    UPDATE library_files SET read_algorithm = NULL, read_hash = NULL
        WHERE edges IS NOT NULL AND size_bytes BETWEEN 1 AND 65536 AND read_hash IS NOT NULL;
    UPDATE library_files SET allocated_bytes = NULL
        WHERE link_kind IS NOT NULL AND allocated_bytes = (size_bytes + 4095) & -4096;
";

pub(super) fn run(db: &Db<'_>) -> Result<()> {
    // Its condition has changed, and the updates would maintain it.
    db.batch("DROP INDEX IF EXISTS ix_library_files_unusual")?;
    db.with_conn(|conn| {
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        conn.create_scalar_function(
            "hash_prefix",
            1,
            flags,
            |call| Ok(prefix(call.get_raw(0).as_blob()?).cast_signed()),
        )
    })?;
    db.batch(KEEP_SAMPLES)?;
    db.with_conn(|conn| conn.remove_function("hash_prefix", 1))?;
    if is_own_catalog(db)? {
        rebuild(db)?;
        db.batch(schema::ONE_ROW_PER_PATH)?;
    }
    db.batch(schema::EXCEPTION_INDEXES)
}

/// Copies the rows to a new table. Indexes and triggers that the file has beyond Gristmill's are created again.
fn rebuild(db: &Db<'_>) -> Result<()> {
    let is_unique = "SELECT count(*) FROM sqlite_schema WHERE name = 'library_files'
        AND sql LIKE '%UNIQUE (library_id, relative_path)%'";
    if db.number(is_unique, [])? == 0 {
        return Ok(());
    }
    let others = "SELECT sql FROM sqlite_schema WHERE tbl_name = 'library_files' AND type IN ('index', 'trigger')
        AND sql IS NOT NULL AND name <> 'ix_library_files_dedup_group'";
    let others: Vec<String> = db.rows(others, [], |row| row.get(0))?;
    let create = schema::SHARED_TABLES.iter().find(|table| table.name == "library_files").map(|table| table.create);
    db.batch(&create.unwrap_or_default().replacen("library_files", "new_library_files", 1))?;
    add_foreign_columns(db)?;
    let columns: Vec<String> =
        db.rows("SELECT '\"' || name || '\"' FROM pragma_table_info('new_library_files')", [], |row| row.get(0))?;
    let into = columns.join(", ");
    let from = into.replace("\"updated_at\"", "nullif(updated_at, created_at)");
    db.batch(&format!(
        "INSERT INTO new_library_files ({into}) SELECT {from} FROM library_files ORDER BY id;
        DROP TABLE library_files;
        ALTER TABLE new_library_files RENAME TO library_files;"
    ))?;
    others.iter().try_for_each(|sql| db.batch(sql))?;
    db.batch(schema::SHARED_INDEXES)
}

/// Adds the columns that another program has added to the table.
fn add_foreign_columns(db: &Db<'_>) -> Result<()> {
    let sql = "SELECT 'ALTER TABLE new_library_files ADD COLUMN \"' || name || '\" ' || type
            || iif(\"notnull\", ' NOT NULL', '') || iif(dflt_value IS NULL, '', ' DEFAULT ' || dflt_value)
        FROM pragma_table_info('library_files')
        WHERE name NOT IN (SELECT name FROM pragma_table_info('new_library_files'))";
    let statements: Vec<String> = db.rows(sql, [], |row| row.get(0))?;
    statements.iter().try_for_each(|sql| db.batch(sql))
}
