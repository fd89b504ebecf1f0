//! What a database holds, and whether that is the old, the new, or something between.
//!
//! Owns what "the same" means: the schema, and all rows in their order with their numbers. Plain SQL on a connection of
//! its own, so that the importer does not testify for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::{OrTrouble, Trouble};

const LOOK: &str = "cannot look into a database";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    tables: BTreeMap<String, Table>,
    /// What `_imports` says, by table: all but numbers of rows and moments.
    ledger: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Table {
    /// Its SQL, and that of its indexes.
    made: Vec<String>,
    /// A number for each row that says what is in it.
    rows: Vec<u64>,
}

/// What became of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Tables whose file is in.
    pub(crate) loaded: BTreeSet<String>,
    pub(crate) findings: Vec<String>,
}

impl State {
    /// Reads a database that nobody else has open; also what SQLite has to say against it.
    pub(crate) fn read(database: &Path) -> Result<(State, Vec<String>), Trouble> {
        let read = || -> rusqlite::Result<(State, Vec<String>)> {
            let conn = Connection::open(database)?;
            let mut damage = strings(&conn, "PRAGMA integrity_check", [])?;
            damage.retain(|line| line != "ok");
            let mut state = State::default();
            let names = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
            for name in strings(&conn, names, [])? {
                if name == "_imports" {
                    state.ledger = ledger(&conn)?;
                } else {
                    let table = Table::read(&conn, &name)?;
                    state.tables.insert(name, table);
                }
            }
            Ok((state, damage))
        };
        read().or_trouble(LOOK)
    }

    /// Tables whose file an import loads that leads from `old` to here.
    pub(crate) fn since(&self, old: &State) -> BTreeSet<String> {
        self.ledger
            .iter()
            .filter(|(name, rows)| old.notes(name) != rows.as_slice())
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Each table must be as before or as after, and `_imports` say which.
    pub(crate) fn between(&self, old: &State, new: &State) -> Judgement {
        let mut judgement = Judgement::default();
        let tables =
            [old, new, self].into_iter().flat_map(|state| state.tables.keys().chain(state.ledger.keys()));
        for name in tables.collect::<BTreeSet<_>>() {
            let (before, after, found) = (old.tables.get(name), new.tables.get(name), self.tables.get(name));
            if found != before && found != after {
                let (before, after, found) = (told(before), told(after), told(found));
                judgement
                    .findings
                    .push(format!("the table {name} is {found}; it was {before}, and was to be {after}"));
            }
            let notes = self.notes(name);
            if notes == new.notes(name) {
                if found != after {
                    judgement.findings.push(format!("_imports says that {name} is loaded, and it is not"));
                }
                if notes != old.notes(name) {
                    judgement.loaded.insert(name.clone());
                }
            } else if notes != old.notes(name) {
                judgement
                    .findings
                    .push(format!("_imports says of {name}: {notes:?}; undisturbed {:?}", new.notes(name)));
            } else if found != before {
                judgement.findings.push(format!("_imports says that {name} is not loaded, and it is"));
            }
        }
        judgement
    }

    fn notes(&self, table: &str) -> &[String] {
        self.ledger.get(table).map_or(&[], Vec::as_slice)
    }
}

impl Table {
    fn read(conn: &Connection, name: &str) -> rusqlite::Result<Table> {
        let made =
            "SELECT type || ' ' || name || ': ' || coalesce(sql, '') FROM sqlite_schema WHERE tbl_name = ?1
            ORDER BY type, name";
        let made = strings(conn, made, [name])?;
        let mut statement = conn.prepare(&format!("SELECT rowid, * FROM \"{name}\" ORDER BY rowid"))?;
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            let mut hasher = DefaultHasher::new();
            for column in 0..columns {
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
        Ok(Table { made, rows: rows.collect::<rusqlite::Result<_>>()? })
    }
}

/// A table in some words, two of them only if it is the same.
fn told(table: Option<&Table>) -> String {
    let Some(table) = table else { return "not there".to_owned() };
    let mut hasher = DefaultHasher::new();
    table.rows.hash(&mut hasher);
    format!("{} rows (print {:08x}) {:?}", table.rows.len(), hasher.finish() as u32, table.made)
}

fn ledger(conn: &Connection) -> rusqlite::Result<BTreeMap<String, Vec<String>>> {
    let mut ledger: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut statement = conn.prepare(
        r#"SELECT "table", json_array("source", "bytes", "modified_ns", "blake3", "mode", "options", "rows", "errors",
            "error", "renamed") FROM "_imports" ORDER BY "id""#,
    )?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for row in rows {
        let (table, note): (String, String) = row?;
        ledger.entry(table).or_default().push(note);
    }
    Ok(ledger)
}

fn strings(conn: &Connection, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<Vec<String>> {
    conn.prepare(sql)?.query_map(values, |row| row.get(0))?.collect()
}

#[cfg(test)]
mod tests;
