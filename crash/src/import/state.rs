//! Contents of a database, and whether they are the old state, the new state, or something between.
//!
//! Defines equality: the schema, and all rows in order with their rowids. Read with plain SQL, independent of the
//! importer.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use rusqlite::types::ValueRef;

use crate::Error;
use crate::sqlite::Database;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DatabaseState {
    tables: BTreeMap<String, Table>,
    /// Rows of `_imports` by table, without ids and times.
    import_log: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Table {
    /// SQL of the table and its indexes.
    schema: Vec<String>,
    /// Hash of each row.
    rows: Vec<u64>,
}

/// Comparison of a database with the old and the new state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) loaded: BTreeSet<String>,
    pub(crate) violations: Vec<String>,
}

impl DatabaseState {
    /// Reads a database that no process has open, and the result of SQLite's checks.
    pub(crate) fn read(database: &Path) -> Result<(DatabaseState, Vec<String>), Error> {
        let database = Database::open_copy(database)?;
        let mut state = DatabaseState::default();
        for name in strings(&database, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name", [])? {
            if name == "_imports" {
                state.import_log = import_log(&database)?;
            } else {
                let table = Table::read(&database, &name)?;
                state.tables.insert(name, table);
            }
        }
        Ok((state, database.damage("main")?))
    }

    /// Returns the tables that an import from `old` to this state loads.
    pub(crate) fn loaded_since(&self, old: &DatabaseState) -> BTreeSet<String> {
        self.import_log
            .iter()
            .filter(|(name, rows)| old.log_rows(name) != rows.as_slice())
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Checks that each table is in the old or the new state, and that `_imports` says which.
    pub(crate) fn compare(&self, old: &DatabaseState, new: &DatabaseState) -> Comparison {
        let mut comparison = Comparison::default();
        let tables = [old, new, self].into_iter().flat_map(|state| state.tables.keys().chain(state.import_log.keys()));
        for name in tables.collect::<BTreeSet<_>>() {
            let (before, after, found) = (old.tables.get(name), new.tables.get(name), self.tables.get(name));
            if found != before && found != after {
                let (before, after, found) = (describe(before), describe(after), describe(found));
                comparison
                    .violations
                    .push(format!("table {name} is {found}; the old state is {before}, the new one {after}"));
            }
            let log_rows = self.log_rows(name);
            if log_rows == new.log_rows(name) {
                if found != after {
                    comparison.violations.push(format!("_imports lists {name} as loaded, but it is not"));
                }
                if log_rows != old.log_rows(name) {
                    comparison.loaded.insert(name.clone());
                }
            } else if log_rows != old.log_rows(name) {
                comparison
                    .violations
                    .push(format!("_imports has {log_rows:?} for {name}; undisturbed {:?}", new.log_rows(name)));
            } else if found != before {
                comparison.violations.push(format!("_imports does not list {name} as loaded, but it is"));
            }
        }
        comparison
    }

    fn log_rows(&self, table: &str) -> &[String] {
        self.import_log.get(table).map_or(&[], Vec::as_slice)
    }
}

impl Table {
    fn read(database: &Database, name: &str) -> Result<Table, Error> {
        let schema = "SELECT type || ' ' || name || ': ' || coalesce(sql, '') FROM sqlite_schema WHERE tbl_name = ?1
            ORDER BY type, name";
        let schema = strings(database, schema, [name])?;
        let rows = database.query(&format!("SELECT rowid, * FROM \"{name}\" ORDER BY rowid"), [], |row| {
            let mut hasher = DefaultHasher::new();
            for column in 0..row.as_ref().column_count() {
                match row.get_ref(column)? {
                    ValueRef::Null => 0.hash(&mut hasher),
                    ValueRef::Integer(value) => (1, value).hash(&mut hasher),
                    ValueRef::Real(value) => (2, value.to_bits()).hash(&mut hasher),
                    ValueRef::Text(value) => (3, value).hash(&mut hasher),
                    ValueRef::Blob(value) => (4, value).hash(&mut hasher),
                }
            }
            Ok(hasher.finish())
        })?;
        Ok(Table { schema, rows })
    }
}

/// Describes a table for a message; equal tables have equal descriptions.
fn describe(table: Option<&Table>) -> String {
    let Some(table) = table else { return "missing".to_owned() };
    let mut hasher = DefaultHasher::new();
    table.rows.hash(&mut hasher);
    format!("{} rows (hash {:08x}) {:?}", table.rows.len(), hasher.finish() as u32, table.schema)
}

fn import_log(database: &Database) -> Result<BTreeMap<String, Vec<String>>, Error> {
    let mut import_log: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let sql = r#"SELECT "table", json_array("source", "bytes", "modified_ns", "blake3", "mode", "options", "rows",
        "errors", "error", "renamed") FROM "_imports" ORDER BY "id""#;
    for (table, log_row) in database.query(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))? {
        import_log.entry(table).or_default().push(log_row);
    }
    Ok(import_log)
}

fn strings(database: &Database, sql: &str, params: impl rusqlite::Params) -> Result<Vec<String>, Error> {
    database.query(sql, params, |row| row.get(0))
}

#[cfg(test)]
mod tests;
