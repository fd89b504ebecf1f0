//! A table in the database: creates it, writes its rows, and declares its types and key.
//!
//! Owns the SQL. While rows are written, columns have no type; types are declared after the last row. Values have the
//! same format in the file with and without a type, except in text columns: then the file is loaded again.

mod insert;

use rusqlite::{Connection, ErrorCode};

pub(crate) use self::insert::BoundCell;
use self::insert::has_duplicates;
use super::column::Column;
use super::existing::TableShape;
use super::key::{KeyPlan, KeyTracker, Required, cell_of};
use super::layout::Layout;
use super::overflow_merge;
use super::retype;
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{Cell, Line, ParsedBlock};
use crate::sql::{Sql, quoted, quoted_names, reload_schema, replace_definition, values};
use crate::types::Type;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    Insert,
    Upsert,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) plan: KeyPlan,
    pub(crate) tracker: KeyTracker,
    pub(crate) mode: WriteMode,
    /// Key columns that rows may not leave out, because SQLite would assign a value or leave null.
    pub(crate) required: Vec<Required>,
    /// Its definition may have an `ON CONFLICT` clause, which is overridden, because it could discard rows.
    pub(crate) has_conflict_clause: bool,
    /// Whether the next block has all rows, so that types and key are known before the first insert.
    pub(crate) is_whole: bool,
    /// Whether the table existed before this import.
    pub(crate) is_old: bool,
    /// Whether its types are declared when it is created, not after all rows.
    pub(crate) is_typed: bool,
    is_made: bool,
    insert: String,
}

#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) rows: u64,
    pub(crate) refused: Vec<(Line, ParseErrorKind)>,
    /// Set if writing stopped early, because the key plan failed or no row has a column: the number of rows of the block
    /// observed until then. The rest was not written.
    pub(crate) stopped_after: Option<usize>,
}

/// Whether a table could be finished as planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Done,
    /// Some rows violate the requested key and have to be rejected one by one.
    KeyBroken,
}

impl Table {
    pub(crate) fn new(name: String, shape: TableShape, tracker: KeyTracker) -> Self {
        let TableShape { layout, plan, is_old, required, has_conflict_clause } = shape;
        let is_update = tracker.upserts && matches!(plan, KeyPlan::IndexFromStart(_) | KeyPlan::Existing(_));
        let mode = if is_update { WriteMode::Upsert } else { WriteMode::Insert };
        Table {
            name,
            layout,
            plan,
            tracker,
            mode,
            required,
            has_conflict_clause,
            is_whole: false,
            is_old,
            is_typed: is_old,
            is_made: is_old,
            insert: String::new(),
        }
    }

    /// Observes the keys of a block, after its first `seen` rows, without writing it.
    pub(crate) fn observe_keys(&mut self, block: &ParsedBlock, map: &[u32], seen: usize) {
        for (_, cells) in block.each_row().skip(seen) {
            self.tracker.observe(cells, map, &self.layout);
        }
    }

    pub(crate) fn write(&mut self, conn: &Connection, block: &ParsedBlock, map: &[u32]) -> Sql<Written> {
        if self.is_whole && !self.is_old && self.keeps_types(block) {
            self.plan_from_all_rows(block, map);
        } else if self.plan == KeyPlan::Undecided {
            self.plan_from_first_row(block, map);
        }
        self.prepare(conn)?;
        match self.mode {
            WriteMode::Insert if !self.is_old => self.insert(conn, block, map),
            _ => self.add(conn, block, map),
        }
    }

    fn plan_from_first_row(&mut self, block: &ParsedBlock, map: &[u32]) {
        let Some((_, cells)) = block.each_row().next() else { return };
        let mut tracker = self.tracker.clone();
        tracker.observe(cells, map, &self.layout);
        let is_rowid = |index: usize| {
            matches!(cell_of(cells, map, index), Some(Cell::Int(_)))
                && self.layout.columns[index].column_type() == Type::Integer
        };
        self.plan = match tracker.columns[..] {
            [index] if is_rowid(index) => KeyPlan::Rowid(index),
            _ => KeyPlan::None,
        };
    }

    /// The table is created with its types and its key.
    fn plan_from_all_rows(&mut self, block: &ParsedBlock, map: &[u32]) {
        let tracker = self.tracker.clone();
        self.observe_keys(block, map, 0);
        let seen = std::mem::replace(&mut self.tracker, tracker);
        self.is_typed = true;
        self.plan = match seen.plan(&self.layout) {
            KeyPlan::IndexAtEnd(keys) if !seen.is_needed() && has_duplicates(block, map, keys[0]) => {
                self.note_no_key(keys[0]);
                KeyPlan::None
            }
            KeyPlan::IndexAtEnd(keys) => KeyPlan::IndexFromStart(keys),
            plan => plan,
        };
        if seen.upserts && matches!(self.plan, KeyPlan::IndexFromStart(_)) {
            self.mode = WriteMode::Upsert;
        }
    }

    /// Whether rows are stored the same with types declared before as after them. With a declared type SQLite converts
    /// some doubles to integers: negative zero, and all whole values in a NUMERIC column.
    fn keeps_types(&self, block: &ParsedBlock) -> bool {
        let is_numeric = |column: &Column| column.column_type() == Type::Numeric;
        !self.layout.columns.iter().any(is_numeric) && !block.cells.iter().any(|(_, cell)| cell.is_negative_zero())
    }

    fn note_no_key(&mut self, index: usize) {
        let name = &self.layout.columns[index].name;
        let note = format!("the column {name:?} has duplicate values: there is no primary key");
        self.layout.notes.push(note);
    }

    /// Returns the `CREATE TABLE` statement.
    pub(crate) fn sql(&self, typed: bool) -> String {
        let is_after = matches!(self.plan, KeyPlan::IndexAtEnd(_));
        let columns = self.layout.columns.iter().enumerate().map(|(index, column)| {
            let name = quoted(&column.name);
            // INTEGER PRIMARY KEY would be the rowid and order the rows; INT PRIMARY KEY is not.
            let in_key = |kind: Type| if kind == Type::Integer { "INT" } else { kind.sql() };
            let kind = if typed { column.column_type() } else { Type::Any };
            match &self.plan {
                KeyPlan::Rowid(key) if *key == index => format!("{name} INTEGER PRIMARY KEY"),
                KeyPlan::IndexFromStart(keys) | KeyPlan::IndexAtEnd(keys)
                    if keys.contains(&index) && (typed || !is_after) =>
                {
                    let alone = if keys.len() == 1 { " PRIMARY KEY" } else { "" };
                    format!("{name} {} NOT NULL{alone}", in_key(column.column_type()))
                }
                _ if kind == Type::Any => name,
                _ => format!("{name} {}", kind.sql()),
            }
        });
        let mut columns: Vec<String> = columns.map(|column| format!("  {column}")).collect();
        if let [_, _, ..] = self.plan.columns()
            && (typed || !is_after)
        {
            columns.push(format!("  PRIMARY KEY ({})", quoted_names(self.layout.names(self.plan.columns()))));
        }
        format!("CREATE TABLE {} (\n{}\n)", quoted(&self.name), columns.join(",\n"))
    }

    /// Creates the table, or adds its new columns.
    fn prepare(&mut self, conn: &Connection) -> Sql<()> {
        if self.is_old && self.insert.is_empty() {
            retype::widen(conn, &self.name, &mut self.layout.columns)?;
        }
        let new: Vec<usize> =
            (0..self.layout.columns.len()).filter(|index| !self.layout.columns[*index].exists_in_table).collect();
        if !new.is_empty() || !self.is_made {
            if !self.is_made && !self.layout.columns.is_empty() {
                conn.execute_batch(&self.sql(self.is_typed))?;
                self.is_made = true;
            } else if self.is_made {
                for index in &new {
                    let column = &self.layout.columns[*index];
                    let kind = if self.is_typed { column.column_type().sql() } else { "" };
                    let (table, name) = (quoted(&self.name), quoted(&column.name));
                    conn.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {name} {kind}"))?;
                }
            }
            self.layout.columns.iter_mut().for_each(|column| column.exists_in_table = true);
            self.insert.clear();
        }
        if self.insert.is_empty() && self.is_made {
            let all: Vec<usize> = (0..self.layout.columns.len()).collect();
            self.insert = self.insert_sql(&all);
            if self.mode == WriteMode::Upsert && self.layout.overflow_column().is_some() {
                overflow_merge::define_merge_function(conn)?;
            }
        }
        Ok(())
    }

    /// Adds types, the key and columns that no row had, after all rows are written.
    pub(crate) fn finish(&mut self, conn: &Connection) -> Sql<Finish> {
        self.prepare(conn)?;
        if self.is_old || self.is_typed || !self.is_made {
            return Ok(Finish::Done);
        }
        if self.plan == KeyPlan::None {
            self.plan = match self.tracker.plan(&self.layout) {
                // A column cannot become the rowid later.
                KeyPlan::Rowid(index) => KeyPlan::IndexAtEnd(vec![index]),
                KeyPlan::IndexFromStart(_) => return Ok(Finish::KeyBroken),
                plan => plan,
            };
        }
        let KeyPlan::IndexAtEnd(keys) = &self.plan else { return self.declare(conn, false) };
        let first = keys[0];
        let (table, columns) = (quoted(&self.name), quoted_names(self.layout.names(keys)));
        let made = conn.execute_batch(&format!("CREATE UNIQUE INDEX {KEY_INDEX} ON {table} ({columns})"));
        match made {
            Ok(()) => self.declare(conn, true),
            Err(error) if error.sqlite_error_code() != Some(ErrorCode::ConstraintViolation) => Err(error),
            Err(_) if self.tracker.is_needed() => Ok(Finish::KeyBroken),
            Err(_) => {
                self.note_no_key(first);
                self.plan = KeyPlan::None;
                self.declare(conn, false)
            }
        }
    }

    /// Declares the types of the columns. The stored rows do not change, so only the schema is written. The index of
    /// the key gets the name that SQLite would have given it.
    fn declare(&self, conn: &Connection, has_index: bool) -> Sql<Finish> {
        replace_definition(conn, &self.name, &self.sql(true))?;
        if has_index {
            conn.execute(
                "UPDATE sqlite_schema SET sql = NULL, name = ?1 WHERE type = 'index' AND name = ?2",
                (format!("sqlite_autoindex_{}_1", self.name), KEY_INDEX),
            )?;
        }
        reload_schema(conn).map(|()| Finish::Done)
    }

    /// Columns of the key, for the summary.
    pub(crate) fn key(&self) -> Option<String> {
        let names: Vec<&str> = self.layout.names(self.plan.columns()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// Creates an index on a column unless the table has one. The name is unique in the database.
pub(crate) fn make_index(conn: &Connection, table: &str, column: &str) -> Sql<()> {
    let same = "SELECT 1 FROM pragma_index_list(?1) AS list
        WHERE NOT list.partial AND (SELECT count(*) = 1 AND max(key.name = ?2 COLLATE NOCASE AND key.coll = 'BINARY')
            FROM pragma_index_xinfo(list.name) AS key WHERE key.key)";
    if conn.prepare_cached(same)?.exists([table, column])? {
        return Ok(());
    }
    let mut in_use = conn.prepare_cached("SELECT 1 FROM sqlite_schema WHERE lower(name) = lower(?1)")?;
    let mut name = format!("idx_{table}_{column}");
    let mut number = 1_u64;
    while in_use.exists([&name])? {
        number += 1;
        name = format!("idx_{table}_{column}_{number}");
    }
    drop(in_use);
    conn.execute_batch(&format!("CREATE INDEX {} ON {} ({})", quoted(&name), quoted(table), quoted(column)))
}

/// Returns the SQL of the indexes and triggers that are dropped with a table, to create them again.
pub(crate) fn dependents(conn: &Connection, table: &str) -> Sql<Vec<String>> {
    let sql = "SELECT sql FROM sqlite_schema WHERE lower(tbl_name) = lower(?1) AND type IN ('index', 'trigger')
        AND sql IS NOT NULL ORDER BY rowid";
    values(conn, sql, [table])
}

/// Name of the key's index while it is created.
const KEY_INDEX: &str = "gristmill_import_key";
