//! Parts of SQL statements, and short queries about tables.

use rusqlite::types::{FromSql, ValueRef};
use rusqlite::{Connection, Params, Row};

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

/// Returns those of the columns of a query of which `keep` accepts every value. Stops reading when no column is left.
pub(crate) fn columns_where_all(
    conn: &Connection,
    sql: &str,
    mut columns: Vec<usize>,
    mut keep: impl FnMut(usize, ValueRef<'_>) -> bool,
) -> Sql<Vec<usize>> {
    let mut statement = conn.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()?
        && !columns.is_empty()
    {
        columns.retain(|index| row.get_ref(*index).is_ok_and(|value| keep(*index, value)));
    }
    Ok(columns)
}

/// A column of an existing table.
pub(crate) struct TableColumn {
    pub(crate) name: String,
    /// Declared type.
    pub(crate) kind: String,
    /// Position in the primary key, from 1; 0 for other columns.
    pub(crate) key: i64,
    /// Whether it cannot be written, such as a generated column.
    pub(crate) is_hidden: bool,
    pub(crate) has_default: bool,
}

/// Returns all columns of a table, in order.
pub(crate) fn table_columns(conn: &Connection, table: &str) -> Sql<Vec<TableColumn>> {
    let sql = "SELECT name, type, pk, hidden <> 0, dflt_value IS NOT NULL FROM pragma_table_xinfo(?1) ORDER BY cid";
    let read = |row: &Row<'_>| {
        let (name, kind, key) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(TableColumn { name, kind, key, is_hidden: row.get(3)?, has_default: row.get(4)? })
    };
    conn.prepare_cached(sql)?.query_map([table], read)?.collect()
}

/// Returns the indexes of the columns of the primary key, in its order.
pub(crate) fn primary_key(columns: &[TableColumn]) -> Vec<usize> {
    let mut keys: Vec<usize> = (0..columns.len()).filter(|index| columns[*index].key > 0).collect();
    keys.sort_unstable_by_key(|index| columns[*index].key);
    keys
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
