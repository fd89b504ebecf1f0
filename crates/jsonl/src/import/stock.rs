//! What a database has already: whose it is, and what its tables look like.
//!
//! Owns the questions; what may be done with a table, those who ask decide.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};

use super::layout::{Layout, OldColumn};
use super::{ledger, names, table};
use crate::error::{Error, Result};
use crate::keys::Fate;
use crate::kinds::Type;

type Sql<T> = rusqlite::Result<T>;

/// Why nothing of ours goes into a database, if so.
pub(crate) fn refusal(conn: &Connection, target: &Path) -> Sql<Option<Error>> {
    let ours =
        "SELECT 1 FROM sqlite_schema WHERE name IN ('job_locks', 'wal_maintenance_jobs') LIMIT 1 OFFSET 1";
    if conn.prepare(ours)?.exists([])? {
        return Ok(Some(Error::Invalid(format!(
            "{} is Gristmill's own database; name another file for the tables",
            target.display()
        ))));
    }
    not_our_ledger(conn, target)
}

/// The name may be somebody else's already.
fn not_our_ledger(conn: &Connection, target: &Path) -> Sql<Option<Error>> {
    let columns: Vec<String> = {
        let mut statement = conn.prepare("SELECT name FROM pragma_table_info(?1)")?;
        let names = statement.query_map([names::LEDGER], |row| row.get(0))?;
        names.collect::<Sql<_>>()?
    };
    let is_ours = columns.is_empty()
        || ["blake3", "renamed", "options"].iter().all(|name| columns.iter().any(|column| column == name));
    Ok((!is_ours).then(|| {
        let (target, ledger) = (target.display(), names::LEDGER);
        Error::Invalid(format!(
            "{target} has a table {ledger} that is not ours, and we need one of that name; rename it"
        ))
    }))
}

/// Something that has the name of a table.
pub(crate) struct There {
    is_view: bool,
    /// As the database spells it.
    name: String,
}

impl There {
    /// Its name, if it is a table.
    pub(crate) fn table(self, target: &Path) -> Result<String> {
        if self.is_view {
            let (name, target) = (self.name, target.display());
            let text = format!("{name:?} is a view in {target}; give the table another name");
            return Err(Error::Invalid(text));
        }
        Ok(self.name)
    }
}

/// What has this name.
pub(crate) fn find(conn: &Connection, name: &str) -> Sql<Option<There>> {
    let sql =
        "SELECT type, name FROM sqlite_schema WHERE lower(name) = lower(?1) AND type IN ('table', 'view')";
    let read = |row: &rusqlite::Row<'_>| {
        Ok(There { is_view: row.get::<_, String>(0)? == "view", name: row.get(1)? })
    };
    conn.query_row(sql, [name], read).optional()
}

/// Whether columns of numbers that we made ourselves may become wider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Widening {
    Allowed,
    Refused,
}

/// What a table looks like.
pub(crate) struct Shape {
    pub(crate) layout: Layout,
    /// The columns of its key, in order.
    pub(crate) keys: Vec<usize>,
}

struct Column {
    name: String,
    kind: String,
    key: i64,
    is_hidden: bool,
}

pub(crate) fn shape(conn: &Connection, name: &str, widening: Widening) -> Sql<Shape> {
    let mut statement = conn.prepare("SELECT name, type, pk, hidden FROM pragma_table_xinfo(?1)")?;
    let columns = statement.query_map([name], |row| {
        let is_hidden = row.get::<_, i64>(3)? != 0;
        Ok(Column { name: row.get(0)?, kind: row.get(1)?, key: row.get(2)?, is_hidden })
    })?;
    let columns: Vec<Column> = columns.collect::<Sql<_>>()?;
    let (hidden, columns): (Vec<_>, Vec<_>) = columns.into_iter().partition(|column| column.is_hidden);
    let hidden: Vec<String> = hidden.into_iter().map(|column| column.name).collect();
    let widens = widening == Widening::Allowed && ledger::is_ours(conn, name)?;
    let sql: String =
        conn.query_row("SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1", [name], |row| {
            row.get(0)
        })?;
    let typed = columns.iter().map(|column| {
        let declared = Type::declared(&column.kind);
        let fate = declared.map_or(Fate::Loose, Fate::Fixed);
        let kind = declared.unwrap_or(Type::Any);
        let is_number = matches!(kind, Type::Integer | Type::Real | Type::Boolean);
        let can_widen =
            widens && is_number && column.key == 0 && table::definition(&sql, &column.name, kind).is_some();
        OldColumn { name: column.name.clone(), fate, kind, can_widen }
    });
    let layout = Layout::of_table(typed.collect(), &hidden, &ledger::renamed(conn, name)?);
    let mut keys: Vec<(i64, usize)> = columns
        .iter()
        .enumerate()
        .filter(|(_, column)| column.key > 0)
        .map(|(index, column)| (column.key, index))
        .collect();
    keys.sort_unstable();
    Ok(Shape { layout, keys: keys.into_iter().map(|(_, index)| index).collect() })
}
