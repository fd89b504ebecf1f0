//! One table in the database: made, filled, finished.
//!
//! Owns the SQL. While rows come, columns have no type: what was seen decides, when all of it was. Values lie in
//! the file the same way under either, but for text, and then the file is loaded again with what is known.

mod rows;

use rusqlite::{Connection, ErrorCode};

pub(crate) use self::rows::Bound;
use self::rows::has_twice;
use super::column::Column;
use super::gathered;
use super::key::{Plan, Required, Watch, cell_of};
use super::layout::Layout;
use super::names::quoted;
use super::retype;
use crate::fault::ParseErrorKind;
use crate::kinds::Type;
use crate::rows::{Cell, Line, Rows};

/// How rows get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Insert,
    Upsert,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) plan: Plan,
    pub(crate) watch: Watch,
    pub(crate) way: Way,
    /// Columns that the table would make up a key for, or leave null.
    pub(crate) required: Vec<Required>,
    /// Its definition may have a conflict clause, which must not decide what becomes of a row: a row that it ignores, or that
    /// it replaces with a later one, would be lost.
    pub(crate) has_conflict_clause: bool,
    /// All rows are in the block that is written next, so types and key are known before the first one is.
    pub(crate) is_whole: bool,
    /// It was there before us.
    pub(crate) is_old: bool,
    /// Its types are known from the start; else they are declared when all rows are there.
    pub(crate) is_typed: bool,
    is_made: bool,
    insert: String,
}

/// What became of a block.
#[derive(Debug, Default)]
pub(crate) struct Inserted {
    pub(crate) rows: u64,
    pub(crate) refused: Vec<(Line, ParseErrorKind)>,
    /// The plan does not hold, seen after so many rows of the block; rows are missing.
    pub(crate) broken_after: Option<usize>,
}

/// Why a table could not be finished as planned.
#[derive(Debug)]
pub(crate) enum Unfinished {
    /// Some rows break the key that the user asked for: they have to be refused, one by one.
    KeyBroken,
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Unfinished {
    fn from(error: rusqlite::Error) -> Self {
        Unfinished::Sqlite(error)
    }
}

type Sql<T> = rusqlite::Result<T>;

impl Table {
    pub(crate) fn new(name: String, layout: Layout, plan: Plan, watch: Watch, is_old: bool) -> Self {
        let is_update = watch.upserts && matches!(plan, Plan::Enforced(_) | Plan::Kept(_));
        let way = if is_update { Way::Upsert } else { Way::Insert };
        Table {
            name,
            layout,
            plan,
            watch,
            way,
            required: Vec::new(),
            has_conflict_clause: false,
            is_whole: false,
            is_old,
            is_typed: is_old,
            is_made: is_old,
            insert: String::new(),
        }
    }

    /// Looks at a block without writing it, or at the rows of it that come after the first `seen`.
    pub(crate) fn watch(&mut self, rows: &Rows, map: &[u32], seen: usize) {
        let mut begin =
            seen.checked_sub(1).and_then(|last| rows.rows.get(last)).map_or(0, |row| row.end as usize);
        for row in &rows.rows[seen..] {
            let cells = &rows.cells[begin..row.end as usize];
            begin = row.end as usize;
            self.watch.see(cells, map, &self.layout);
        }
    }

    /// Writes a block.
    pub(crate) fn write(&mut self, conn: &Connection, rows: &Rows, map: &[u32]) -> Sql<Inserted> {
        if self.is_whole && !self.is_old && self.keeps_types(rows) {
            self.decide(rows, map);
        } else if self.plan == Plan::Open {
            self.open(rows, map);
        }
        self.prepare(conn)?;
        match self.way {
            Way::Insert if !self.is_old => self.insert(conn, rows, map),
            _ => self.add(conn, rows, map),
        }
    }

    /// Decides on the key with the first row that there is.
    fn open(&mut self, rows: &Rows, map: &[u32]) {
        let Some(first) = rows.rows.first() else { return };
        let mut watch = self.watch.clone();
        let cells = &rows.cells[..first.end as usize];
        watch.see(cells, map, &self.layout);
        let is_rowid = |index: usize| {
            matches!(cell_of(cells, map, index), Some(Cell::Int(_)))
                && self.layout.columns[index].kind() == Type::Integer
        };
        self.plan = match watch.columns[..] {
            [index] if is_rowid(index) => Plan::Rowid(index),
            _ => Plan::None,
        };
    }

    /// Decides on the key with all rows that there are. The table gets its types and its key when it is made.
    fn decide(&mut self, rows: &Rows, map: &[u32]) {
        let watch = self.watch.clone();
        self.watch(rows, map, 0);
        let seen = std::mem::replace(&mut self.watch, watch);
        self.is_typed = true;
        self.plan = match seen.plan(&self.layout) {
            Plan::After(keys) if !seen.is_needed() && has_twice(rows, map, keys[0]) => {
                self.note_no_key(keys[0]);
                Plan::None
            }
            Plan::After(keys) => Plan::Enforced(keys),
            plan => plan,
        };
        if seen.upserts && matches!(self.plan, Plan::Enforced(_)) {
            self.way = Way::Upsert;
        }
    }

    /// Whether the rows come out of the table as they would if it got its types after them. SQLite makes whole numbers of
    /// some doubles when it knows the type: of zero below zero, and of all that can be one in a NUMERIC column.
    fn keeps_types(&self, rows: &Rows) -> bool {
        let is_numeric = |column: &Column| column.kind() == Type::Numeric;
        !self.layout.columns.iter().any(is_numeric)
            && !rows.cells.iter().any(|(_, cell)| cell.is_negative_zero())
    }

    fn note_no_key(&mut self, index: usize) {
        let name = &self.layout.columns[index].name;
        let note = format!("the column {name:?} has values more than once: there is no primary key");
        self.layout.notes.push(note);
    }

    /// The table as it is to be.
    pub(crate) fn sql(&self, typed: bool) -> String {
        let is_after = matches!(self.plan, Plan::After(_));
        let columns = self.layout.columns.iter().enumerate().map(|(index, column)| {
            let name = quoted(&column.name);
            // INTEGER PRIMARY KEY would be the row's number, and its order; INT is not.
            let in_key = |kind: Type| if kind == Type::Integer { "INT" } else { kind.sql() };
            let kind = if typed { column.kind() } else { Type::Any };
            match &self.plan {
                Plan::Rowid(key) if *key == index => format!("{name} INTEGER PRIMARY KEY"),
                Plan::Enforced(keys) | Plan::After(keys) if keys.contains(&index) && (typed || !is_after) => {
                    let alone = if keys.len() == 1 { " PRIMARY KEY" } else { "" };
                    format!("{name} {} NOT NULL{alone}", in_key(column.kind()))
                }
                _ if kind == Type::Any => name,
                _ => format!("{name} {}", kind.sql()),
            }
        });
        let mut columns: Vec<String> = columns.map(|column| format!("  {column}")).collect();
        if let [_, _, ..] = self.plan.columns()
            && (typed || !is_after)
        {
            let keys = self.plan.columns().iter().map(|index| quoted(&self.layout.columns[*index].name));
            columns.push(format!("  PRIMARY KEY ({})", keys.collect::<Vec<_>>().join(", ")));
        }
        format!("CREATE TABLE {} (\n{}\n)", quoted(&self.name), columns.join(",\n"))
    }

    /// Makes the table, or the columns that are new.
    fn prepare(&mut self, conn: &Connection) -> Sql<()> {
        if self.is_old && self.insert.is_empty() {
            retype::widen(conn, &self.name, &mut self.layout.columns)?;
        }
        let new: Vec<usize> =
            (0..self.layout.columns.len()).filter(|index| !self.layout.columns[*index].is_made).collect();
        if !new.is_empty() || !self.is_made {
            if !self.is_made && !self.layout.columns.is_empty() {
                conn.execute_batch(&self.sql(self.is_typed))?;
                self.is_made = true;
            } else if self.is_made {
                for index in &new {
                    let column = &self.layout.columns[*index];
                    let kind = if self.is_typed { column.kind().sql() } else { "" };
                    let (table, name) = (quoted(&self.name), quoted(&column.name));
                    conn.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {name} {kind}"))?;
                }
            }
            self.layout.columns.iter_mut().for_each(|column| column.is_made = true);
            self.insert.clear();
        }
        if self.insert.is_empty() && self.is_made {
            let all: Vec<usize> = (0..self.layout.columns.len()).collect();
            self.insert = self.insert_sql(&all);
            if self.way == Way::Upsert && self.layout.gathered().is_some() {
                gathered::define_merge(conn)?;
            }
        }
        Ok(())
    }

    /// Makes what is missing when all rows are there: types, the key, columns that no row had.
    pub(crate) fn finish(&mut self, conn: &Connection) -> Result<(), Unfinished> {
        self.prepare(conn)?;
        if self.is_old || self.is_typed || !self.is_made {
            return Ok(());
        }
        if self.plan == Plan::None {
            self.plan = match self.watch.plan(&self.layout) {
                // It was not one from the start, and cannot become one.
                Plan::Rowid(index) => Plan::After(vec![index]),
                Plan::Enforced(_) => return Err(Unfinished::KeyBroken),
                plan => plan,
            };
        }
        let Plan::After(keys) = &self.plan else { return Ok(self.declare(conn, false)?) };
        let first = keys[0];
        let columns: Vec<String> =
            keys.iter().map(|index| quoted(&self.layout.columns[*index].name)).collect();
        let (table, columns) = (quoted(&self.name), columns.join(","));
        let made = conn.execute_batch(&format!("CREATE UNIQUE INDEX {KEY} ON {table} ({columns})"));
        match made {
            Ok(()) => Ok(self.declare(conn, true)?),
            Err(error) if error.sqlite_error_code() != Some(ErrorCode::ConstraintViolation) => {
                Err(error.into())
            }
            Err(_) if self.watch.is_needed() => Err(Unfinished::KeyBroken),
            Err(_) => {
                self.note_no_key(first);
                self.plan = Plan::None;
                Ok(self.declare(conn, false)?)
            }
        }
    }

    /// Tells the database what the columns are. Rows lie there as they should; only what is said of them changes, so
    /// that is all that is written. The index of the key gets the name that SQLite itself would have given it.
    fn declare(&self, conn: &Connection, has_index: bool) -> Sql<()> {
        conn.pragma_update(None, "writable_schema", true)?;
        conn.execute(
            "UPDATE sqlite_schema SET sql = ?1 WHERE type = 'table' AND name = ?2",
            (self.sql(true), &self.name),
        )?;
        if has_index {
            conn.execute(
                "UPDATE sqlite_schema SET sql = NULL, name = ?1 WHERE type = 'index' AND name = ?2",
                (format!("sqlite_autoindex_{}_1", self.name), KEY),
            )?;
        }
        conn.pragma_update(None, "writable_schema", "RESET")
    }

    /// The column that is the key, for people.
    pub(crate) fn key(&self) -> Option<String> {
        let names: Vec<&str> =
            self.plan.columns().iter().map(|index| self.layout.columns[*index].name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// Makes an index of a column, unless the table has one. Its name is one that nothing else in the database has.
pub(crate) fn make_index(conn: &Connection, table: &str, column: &str) -> Sql<()> {
    let same = "SELECT 1 FROM pragma_index_list(?1) AS list
        WHERE NOT list.partial AND (SELECT count(*) = 1 AND max(key.name = ?2 COLLATE NOCASE AND key.coll = 'BINARY')
            FROM pragma_index_xinfo(list.name) AS key WHERE key.key)";
    if conn.prepare_cached(same)?.exists([table, column])? {
        return Ok(());
    }
    let mut is_taken = conn.prepare_cached("SELECT 1 FROM sqlite_schema WHERE lower(name) = lower(?1)")?;
    let mut name = format!("idx_{table}_{column}");
    let mut number = 1_u64;
    while is_taken.exists([&name])? {
        number += 1;
        name = format!("idx_{table}_{column}_{number}");
    }
    drop(is_taken);
    conn.execute_batch(&format!("CREATE INDEX {} ON {} ({})", quoted(&name), quoted(table), quoted(column)))
}

/// What a table takes with it when it goes, and is to have again.
pub(crate) fn belongings(conn: &Connection, table: &str) -> Sql<Vec<String>> {
    let mut statement = conn.prepare(
        "SELECT sql FROM sqlite_schema WHERE lower(tbl_name) = lower(?1) AND type IN ('index', 'trigger')
         AND sql IS NOT NULL ORDER BY rowid",
    )?;
    let sql = statement.query_map([table], |row| row.get(0))?;
    sql.collect()
}

/// The key's index while it is made.
const KEY: &str = "gristmill_import_key";
