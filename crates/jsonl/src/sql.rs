//! Parts of SQL statements, and short queries about tables.

use rusqlite::types::FromSql;
use rusqlite::{Connection, Params};

/// Result of a statement. The caller adds the path of the database.
pub(crate) type Sql<T> = rusqlite::Result<T>;

pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quoted names, separated by commas.
pub(crate) fn quoted_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(quoted).collect::<Vec<_>>().join(", ")
}

/// A condition that compares each of these columns with a parameter.
pub(crate) fn all_equal<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("{}=?", quoted(name))).collect::<Vec<_>>().join(" AND ")
}

/// One parameter mark for each value.
pub(crate) fn marks(count: usize) -> String {
    vec!["?"; count].join(",")
}

/// Returns the first column of all rows of a query.
pub(crate) fn values<T: FromSql>(conn: &Connection, sql: &str, params: impl Params) -> Sql<Vec<T>> {
    conn.prepare_cached(sql)?.query_map(params, |row| row.get(0))?.collect()
}

/// Returns the names of a table's columns, without hidden and generated ones; empty if there is no such table.
pub(crate) fn column_names(conn: &Connection, table: &str) -> Sql<Vec<String>> {
    values(conn, "SELECT name FROM pragma_table_info(?1)", [table])
}

pub(crate) fn count_rows(conn: &Connection, table: &str) -> Sql<u64> {
    let sql = format!("SELECT count(*) FROM {}", quoted(table));
    conn.query_row(&sql, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}

/// Number that every change of the schema increases.
pub(crate) fn schema_version(conn: &Connection) -> Sql<i64> {
    conn.prepare_cached("PRAGMA schema_version")?.query_row([], |row| row.get(0))
}

/// Makes other connections read the schema again.
pub(crate) fn increase_schema_version(conn: &Connection) -> Sql<()> {
    conn.pragma_update(None, "schema_version", schema_version(conn)? + 1)
}

/// Replaces the definition of a table, whose rows stay as they are. The caller resets `writable_schema` afterwards.
pub(crate) fn replace_definition(conn: &Connection, table: &str, sql: &str) -> Sql<()> {
    conn.pragma_update(None, "writable_schema", true)?;
    let update = "UPDATE sqlite_schema SET sql = ?2 WHERE type = 'table' AND lower(name) = lower(?1)";
    conn.execute(update, [table, sql]).map(drop)
}

/// Ends changes of the schema and reads it again.
pub(crate) fn reload_schema(conn: &Connection) -> Sql<()> {
    conn.pragma_update(None, "writable_schema", "RESET")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted_names(["a\"b", "c"]), "\"a\"\"b\", \"c\"");
        assert_eq!(all_equal(["a\"b", "c"]), "\"a\"\"b\"=? AND \"c\"=?");
    }
}
