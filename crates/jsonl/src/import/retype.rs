//! Widens the types of columns in tables that an import created.
//!
//! Owns the change of a table's definition. Between numeric types only the definition is written, because the rows have
//! the same format in the file. If a column becomes text, or is part of the key, the table is copied, because its
//! values and those in its indexes change.

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{Value, ValueRef};

use super::column::Column;
use super::table::dependents;
use crate::keys::ColumnRule;
use crate::number::MAX_EXACT_INT;
use crate::sql::{Sql, increase_schema_version, quoted, reload_schema, replace_definition};
use crate::types::Type;

/// Name of the old table while its rows are copied.
const OLD_TABLE: &str = "gristmill_import_old";

/// Name of the SQL function that formats a number as JSON. With a true second argument it formats doubles that are
/// whole numbers without a fraction.
const TEXT_FUNCTION: &str = "gristmill_import_text";

/// Returns the definition of a table with another type for a column, and whether only the definition has to change.
/// `None` unless the definition has the column exactly once, in the form that imports write.
fn retyped(sql: &str, name: &str, before: Type, after: Type) -> Option<(String, bool)> {
    let name = quoted(name);
    let in_key = |kind: Type| if kind == Type::Integer { "INT" } else { kind.sql() };
    let replaced = |old: String, new: String| {
        let ends = |end: usize| matches!(sql[end..].trim_start().chars().next(), Some(',' | ')'));
        let mut found = sql.match_indices(&old).map(|(at, _)| at).filter(|at| ends(at + old.len()));
        let at = found.next().filter(|_| found.next().is_none())?;
        Some(format!("{}{new}{}", &sql[..at], &sql[at + old.len()..]))
    };
    let plain_column = |kind: Type| format!("{name} {}", kind.sql()).trim_end().to_owned();
    if let Some(sql) = replaced(plain_column(before), plain_column(after)) {
        return Some((sql, after != Type::Text));
    }
    let as_rowid = (before == Type::Integer).then(|| format!("{name} INTEGER PRIMARY KEY"));
    let key_column = |kind: Type, rest: &str| format!("{name} {} NOT NULL{rest}", in_key(kind));
    as_rowid
        .and_then(|old| replaced(old, key_column(after, " PRIMARY KEY")))
        .or_else(|| replaced(key_column(before, " PRIMARY KEY"), key_column(after, " PRIMARY KEY")))
        .or_else(|| replaced(key_column(before, ""), key_column(after, "")))
        .map(|sql| (sql, false))
}

pub(crate) fn can_widen(sql: &str, name: &str, kind: Type) -> bool {
    kind != Type::Text && retyped(sql, name, kind, Type::Text).is_some()
}

/// Chooses wider types for existing columns whose type does not hold the values found. Returns whether any changed: then
/// the file has to be read again. Without a connection, for a dry run, the values of the table are not considered.
pub(crate) fn choose_types(conn: Option<&Connection>, table: &str, columns: &mut [Column]) -> Sql<bool> {
    let table = quoted(table);
    let holds = |column: &str, condition: &str| match conn {
        Some(conn) => conn.prepare(&format!("SELECT 1 FROM {table} WHERE {column} {condition}"))?.exists([]),
        None => Ok(false),
    };
    let is_large = format!("NOT BETWEEN -{MAX_EXACT_INT} AND {MAX_EXACT_INT}");
    let mut any = false;
    for column in columns {
        let Some(mut wide) = column.wider() else { continue };
        let name = quoted(&column.name);
        if column.widened_type == Some(Type::Any) && holds(&name, "IS NOT NULL")? {
            // A column without a type that has values keeps them as they are.
            (column.widened_type, column.current_type) = (None, None);
            column.rule = ColumnRule::Fixed(Type::Any);
            continue;
        }
        // A double would round whole numbers beyond 2^53.
        if wide == Type::Real && column.current_type == Some(Type::Integer) && holds(&name, &is_large)? {
            wide = Type::Numeric;
        }
        column.widened_type = Some(wide);
        if wide == Type::Text {
            column.rule = ColumnRule::Fixed(Type::Text);
        }
        any = true;
    }
    Ok(any)
}

/// Changes the columns of a table to their target types.
pub(crate) fn widen(conn: &Connection, table: &str, columns: &mut [Column]) -> Sql<()> {
    if columns.iter().all(|column| column.current_type == column.widened_type) {
        return Ok(());
    }
    let definition = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND lower(name) = lower(?1)";
    let mut sql: String = conn.query_row(definition, [table], |row| row.get(0))?;
    let mut only_sql = true;
    for column in columns.iter() {
        if let (Some(before), Some(after)) = (column.current_type, column.widened_type)
            && before != after
            && let Some((new, is_complete)) = retyped(&sql, &column.name, before, after)
        {
            sql = new;
            only_sql &= is_complete;
        }
    }
    if only_sql {
        replace_definition(conn, table, &sql)?;
        reload_schema(conn)?;
        increase_schema_version(conn)?;
    } else {
        copy(conn, table, &sql, columns)?;
    }
    columns.iter_mut().for_each(|column| column.current_type = column.widened_type);
    Ok(())
}

/// Creates the table again with this definition, and copies its rows in order, its indexes and its triggers.
fn copy(conn: &Connection, table: &str, sql: &str, columns: &[Column]) -> Sql<()> {
    conn.create_scalar_function(TEXT_FUNCTION, 2, FunctionFlags::SQLITE_DETERMINISTIC, |context| {
        let has_whole_numbers: bool = context.get(1)?;
        Ok(match context.get_raw(0) {
            ValueRef::Integer(value) => Value::Text(value.to_string()),
            ValueRef::Real(value) if has_whole_numbers && is_whole(value) => Value::Text((value as i64).to_string()),
            ValueRef::Real(value) => Value::Text(format!("{value:?}")),
            other => Value::try_from(other)?,
        })
    })?;
    let dependents = dependents(conn, table)?;
    let made = columns.iter().filter(|column| column.exists_in_table);
    let (names, values): (Vec<String>, Vec<String>) = made.map(|column| (quoted(&column.name), value(column))).unzip();
    let (names, values, table) = (names.join(","), values.join(","), quoted(table));
    // Views and triggers that name the table must refer to the new one.
    conn.pragma_update(None, "legacy_alter_table", true)?;
    conn.execute_batch(&format!("ALTER TABLE {table} RENAME TO {OLD_TABLE}"))?;
    conn.pragma_update(None, "legacy_alter_table", false)?;
    conn.execute_batch(sql)?;
    conn.execute_batch(&format!("INSERT INTO {table} ({names}) SELECT {values} FROM {OLD_TABLE} NOT INDEXED"))?;
    conn.execute_batch(&format!("DROP TABLE {OLD_TABLE}"))?;
    dependents.iter().try_for_each(|sql| conn.execute_batch(sql))
}

/// Whether the double may come from a number written without a fraction.
fn is_whole(value: f64) -> bool {
    value.fract() == 0.0 && value.abs() <= MAX_EXACT_INT as f64 && !(value == 0.0 && value.is_sign_negative())
}

/// SQL expression for the value of a column in its new type. Text columns have numbers in JSON format. Their original
/// spelling is lost, but in a column of doubles that has whole numbers, a whole value is formatted as one of them, so
/// that it equals the text of the next line with this number.
fn value(column: &Column) -> String {
    let name = quoted(&column.name);
    let text =
        format!("{TEXT_FUNCTION}({name}, {})", column.current_type == Some(Type::Real) && column.has_whole_numbers);
    match (column.current_type, column.widened_type) {
        (before, after) if before == after || after != Some(Type::Text) => name,
        (Some(Type::Boolean), _) => {
            format!("CASE {name} WHEN 0 THEN 'false' WHEN 1 THEN 'true' ELSE {text} END")
        }
        _ => text,
    }
}
