//! Compares a database with the files it was imported from.
//!
//! Owns the reading of databases. Every table, row, column and value of every candidate is compared. `digest` defines
//! which differences between values are allowed; column types and the order of rows and columns are not compared.

use std::{collections::HashSet, path::Path};

use rayon::prelude::*;
use rusqlite::{Connection, OpenFlags, types::ValueRef};

use super::{
    dataset::FILES,
    digest::{self, NestedComparison},
    expected::{Digest, Expected},
    field::ColumnType,
    file::File,
};

/// Gristmill's table of imports, which is ignored.
const IMPORT_LOG: &str = "_imports";

/// Maximum number of reported mistakes.
const MAX_REPORTED: usize = 3;

/// Describes the mistakes in a database. Returns None if there are none.
pub(super) fn mistakes(database: &Path, expected: &Expected) -> Result<Option<String>, String> {
    let context = |error: rusqlite::Error| format!("{}: {error}", database.display());
    let open = || Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let mut wrong = unknown(&open().map_err(context)?).map_err(context)?;
    let check = |file: &File| -> rusqlite::Result<Option<String>> {
        let connection = open()?;
        let expected = &expected.tables[file.name];
        // Candidates that keep the text of nested values need only this faster comparison.
        if read(&connection, file, NestedComparison::Text)? == expected.by_text {
            return Ok(None);
        }
        let by_value = read(&connection, file, NestedComparison::Value)?;
        Ok(by_value.mistake(&expected.by_value).map(|mistake| format!("{}: {mistake}", file.name)))
    };
    let checked: Vec<_> = FILES.par_iter().with_max_len(1).map(|file| check(file).map_err(context)).collect();
    for mistake in checked {
        match mistake {
            Ok(mistake) => wrong.extend(mistake),
            Err(error) => wrong.push(error),
        }
    }
    let more = wrong.len().saturating_sub(MAX_REPORTED);
    wrong.truncate(MAX_REPORTED);
    let text = wrong.join("; ");
    Ok((!wrong.is_empty()).then(|| if more > 0 { format!("{text}; and {more} more") } else { text }))
}

/// Returns the tables that belong to no file.
fn unknown(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let known: HashSet<&str> = FILES.iter().map(|file| file.name).chain([IMPORT_LOG]).collect();
    let mut names = connection
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")?;
    let names = names.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(names
        .into_iter()
        .filter(|name| !known.contains(name.as_str()))
        .map(|name| format!("unexpected table {name}"))
        .collect())
}

fn read(connection: &Connection, file: &File, comparison: NestedComparison) -> rusqlite::Result<Digest> {
    let mut select = connection.prepare(&format!("SELECT * FROM \"{}\"", file.name))?;
    let nested: HashSet<&str> = file
        .columns()
        .iter()
        .filter(|column| column.column_type == ColumnType::Nested)
        .map(|column| column.name)
        .collect();
    let columns: Vec<(String, bool)> =
        select.column_names().map(|name| (name.to_owned(), nested.contains(name))).collect();
    let key_column = columns.iter().position(|(name, _)| name == "_key");
    let mut digest = Digest::default();
    let mut rows = select.query([])?;
    let mut values = Vec::new();
    while let Some(row) = rows.next()? {
        let key = match key_column {
            Some(nth) => row.get_ref(nth)?,
            None => ValueRef::Null,
        };
        values.clear();
        for (nth, (name, nested)) in columns.iter().enumerate() {
            if let Some(value) = value(row.get_ref(nth)?, *nested, comparison) {
                values.push((name.as_str(), value));
            }
        }
        let integer_key = if let ValueRef::Integer(number) = key { Some(number) } else { None };
        digest.row(value(key, false, comparison).unwrap_or(0), integer_key, values.iter().copied());
    }
    Ok(digest)
}

/// Returns the digest of a value, or None for null.
fn value(value: ValueRef<'_>, nested: bool, comparison: NestedComparison) -> Option<u64> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(digest::of_integer(number)),
        ValueRef::Real(number) => Some(digest::of_real(number)),
        ValueRef::Text(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            Some(if nested { digest::of_nested(&text, comparison) } else { digest::of_text(&text) })
        }
        // No JSON value is imported as a blob.
        ValueRef::Blob(bytes) => Some(digest::of_text(&format!("a blob of {} bytes", bytes.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{import::folder::Folder, scratch::Scratch};
    use std::fs;

    /// Creates a database with SQLite's JSON functions.
    fn imported(folder: &Folder, database: &Path) -> Connection {
        let connection = Connection::open(database).unwrap();
        connection.execute_batch("PRAGMA synchronous = OFF; BEGIN").unwrap();
        for file in FILES.iter() {
            let columns = file.columns();
            let definition: Vec<String> = columns.iter().map(|column| column.definition()).collect();
            let values: Vec<String> = columns.iter().map(|column| format!("?1 ->> '{}'", column.name)).collect();
            let name = file.name;
            connection.execute_batch(&format!("CREATE TABLE \"{name}\" ({})", definition.join(", "))).unwrap();
            let insert = format!("INSERT INTO \"{name}\" SELECT {}", values.join(", "));
            let lines = fs::read_to_string(folder.root.join(format!("{name}.jsonl"))).unwrap();
            let mut insert = connection.prepare(&insert).unwrap();
            for line in lines.lines() {
                insert.execute([line]).unwrap();
            }
        }
        connection.execute_batch("COMMIT").unwrap();
        connection
    }

    #[test]
    fn mistakes_name_the_table_and_column_of_a_wrong_value() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let folder = Folder::get(0.001, 5, scratch.path()).unwrap();
        let database = scratch.path().join("import.db");
        let connection = imported(&folder, &database);
        let describe = || mistakes(&database, &folder.expected).unwrap().unwrap_or_default();
        assert_eq!(describe(), "");
        let negated = "UPDATE races SET _key = -_key";
        let reversed = "UPDATE agentTypes SET _key = 112 - _key; UPDATE agentTypes SET _key = _key - 100";
        // A change, the statement that reverts it, and the expected message.
        for (change, back, expected) in [
            ("UPDATE types SET name = json(name || ' ')", "", ""),
            ("CREATE TABLE _imports (file)", "", ""),
            ("CREATE TABLE more (x)", "DROP TABLE more", "unexpected table more"),
            (
                "UPDATE races SET name = 'x' || name",
                "UPDATE races SET name = substr(name, 2)",
                "races: other values in name",
            ),
            (negated, negated, "races: keys add up to -55 instead of 55"),
            // All keys and values are present, but assigned to each other wrongly.
            (reversed, reversed, "agentTypes: other values in name"),
            ("DELETE FROM icons WHERE _key = 3", "", "icons: 24 rows instead of 25"),
            ("DROP TABLE icons", "", &format!("{}: no such table: icons", database.display())),
        ] {
            connection.execute_batch(change).unwrap();
            let message = describe();
            assert!(message.starts_with(expected) && message.is_empty() == expected.is_empty(), "{change}: {message}");
            connection.execute_batch(back).unwrap();
        }
    }
}
