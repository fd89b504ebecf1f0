//! Reads the existing tables of a database.
//!
//! Answers which tables exist and what they look like; the callers decide what to do with them.

use std::collections::HashMap;
use std::path::Path;

use gristmill_store::sqlite::is_store;
use rusqlite::{Connection, OptionalExtension};

use super::column::Column;
use super::key::{KeyPlan, Required};
use super::layout::Layout;
use super::{import_log, names, retype};
use crate::error::{Error, Failure, Result};
use crate::keys::ColumnRule;
use crate::sql::{Sql, column_names, primary_key, table_columns};
use crate::types::Type;

/// Fails if no rows may be written to a database.
pub(crate) fn check(conn: &Connection, target: &Path) -> Result<(), Failure> {
    if is_store(conn)? {
        let problem = "is Gristmill's own database; name another file for the tables";
        return Err(Error::path(target, problem).into());
    }
    let columns = column_names(conn, names::IMPORT_LOG)?;
    let has = |name: &&str| columns.iter().any(|column| column == name);
    if !columns.is_empty() && !["blake3", "renamed", "options"].iter().all(has) {
        let problem = format!(
            "has a table {} that no import created; rename it, because imports need this name",
            names::IMPORT_LOG
        );
        return Err(Error::path(target, problem).into());
    }
    Ok(())
}

pub(crate) struct ExistingObject {
    is_view: bool,
    /// Name as the database spells it.
    pub(crate) name: String,
    sql: String,
}

impl ExistingObject {
    /// Returns itself, or an error if it is a view.
    pub(crate) fn as_table(&self, target: &Path) -> Result<&ExistingObject> {
        if self.is_view {
            let (name, target) = (&self.name, target.display());
            return Err(Error::table(name, format!("{name:?} is a view in {target}; give the table another name")));
        }
        Ok(self)
    }

    fn read(row: &rusqlite::Row<'_>) -> Sql<ExistingObject> {
        let is_view = row.get::<_, String>(0)? == "view";
        let sql = row.get::<_, Option<String>>(2)?.unwrap_or_default();
        Ok(ExistingObject { is_view, name: row.get(1)?, sql })
    }
}

pub(crate) fn find_object(conn: &Connection, name: &str) -> Sql<Option<ExistingObject>> {
    let sql = "SELECT type, name, sql FROM sqlite_schema WHERE lower(name) = lower(?1) AND type IN ('table', 'view')";
    conn.query_row(sql, [name], ExistingObject::read).optional()
}

/// Returns all tables and views by their names in lower case, because SQLite has no index on the names.
pub(crate) fn all_objects(conn: &Connection) -> Sql<HashMap<String, ExistingObject>> {
    let mut statement = conn.prepare("SELECT type, name, sql FROM sqlite_schema WHERE type IN ('table', 'view')")?;
    let objects = statement.query_map([], ExistingObject::read)?;
    objects.map(|object| object.map(|object| (names::folded(&object.name), object))).collect()
}

/// Whether columns that an import created may be widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Widening {
    Allowed,
    Refused,
}

/// What is known about a table before rows are written to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableShape {
    pub(crate) layout: Layout,
    pub(crate) plan: KeyPlan,
    /// Whether the table exists and gets more rows.
    pub(crate) is_old: bool,
    /// Columns of its key that rows may not leave out, because SQLite would assign a value or leave null.
    pub(crate) required: Vec<Required>,
    /// Its definition may have an `ON CONFLICT` clause, which is overridden, because it could discard rows.
    pub(crate) has_conflict_clause: bool,
}

pub(crate) fn table_shape(conn: &Connection, object: &ExistingObject, widening: Widening) -> Sql<TableShape> {
    let ExistingObject { name, sql, .. } = object;
    let (hidden, columns): (Vec<_>, Vec<_>) =
        table_columns(conn, name)?.into_iter().partition(|column| column.is_hidden);
    let is_imported = import_log::is_imported(conn, name)?;
    let mut recorded = import_log::columns(conn, name)?;
    let any_case = !is_imported || recorded.is_some();
    let whole = import_log::columns_with_whole_numbers(conn, name)?;
    let is_strict = is_strict(conn, name)?;
    let typed = columns.iter().map(|column| {
        let is_untyped = is_strict && column.kind.eq_ignore_ascii_case("ANY");
        let declared = if is_untyped { Some(Type::Any) } else { Type::declared(&column.kind) };
        let kind = declared.unwrap_or(Type::Any);
        let can_widen = widening == Widening::Allowed && is_imported && retype::can_widen(sql, &column.name, kind);
        let path = recorded.as_mut().and_then(|recorded| recorded.remove(&column.name));
        Column {
            any_case: any_case && path.is_none(),
            path,
            rule: match declared {
                _ if can_widen => ColumnRule::Inferred,
                Some(kind) => ColumnRule::Fixed(kind),
                None => ColumnRule::NumericAffinity,
            },
            existed_before_import: true,
            widened_type: can_widen.then_some(kind),
            current_type: can_widen.then_some(kind),
            exists_in_table: true,
            has_whole_numbers: match kind {
                Type::Real => whole.as_ref().is_none_or(|whole| whole.contains(&column.name)),
                Type::Integer | Type::Numeric | Type::Boolean => true,
                Type::Text | Type::Any => false,
            },
            name: column.name.clone(),
            ..Column::default()
        }
    });
    let layout = Layout::of_existing(typed.collect(), &hidden);
    let keys = primary_key(&columns);
    // An AUTOINCREMENT table assigns missing keys.
    let definition = sql.to_ascii_uppercase();
    let is_numbered = definition.contains("AUTOINCREMENT");
    let required = keys.iter().filter(|_| !is_numbered);
    let required = required.map(|column| Required { column: *column, has_default: columns[*column].has_default });
    let (required, has_conflict_clause) = (required.collect(), definition.contains("CONFLICT"));
    Ok(TableShape { layout, plan: KeyPlan::Existing(keys), is_old: true, required, has_conflict_clause })
}

fn is_strict(conn: &Connection, table: &str) -> Sql<bool> {
    let sql = "SELECT 1 FROM pragma_table_list(?1) WHERE schema = 'main' AND strict";
    conn.prepare_cached(sql)?.exists([table])
}
