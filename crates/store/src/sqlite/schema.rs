//! The tables and indexes of a new file.
//!
//! Owns every CREATE TABLE and CREATE INDEX. Names, values and defaults are a contract with other programs on the same
//! file: writers rely on the defaults of time columns, and readers name indexes in their queries. Files of other
//! programs have fewer constraints and defaults, so Gristmill's INSERTs name every column that is NOT NULL.
//!
//! Sets of values are written as `a = 'x' OR a = 'y' …`: for `a IN (…)` with three or more values SQLite builds a
//! temporary b-tree for every written row. A profile showed it as the largest single cost of a task.

mod catalog;
mod messages;
mod queue;
mod shared;

pub(crate) use self::{catalog::*, messages::*, queue::*, shared::*};

pub(crate) const CREATE_MIGRATIONS_TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)";
