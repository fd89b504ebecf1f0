//! The SQLite file: connections, the writer thread, the schema, and everything else that depends on SQLite.
//!
//! Also offers tools for SQLite files that other crates write: [`publish`] and [`Draft`], [`remove_database`],
//! [`nonempty_log`], [`retry_while_busy`], [`OpenedFiles`], [`table_exists`], [`is_store`].
//!
//! Owns every use of the SQLite library. The other modules of the crate write SQL through the types that this module
//! re-exports, so that another database can stand beside this one behind the same methods.

pub mod backup;
mod busy;
pub(crate) mod change_watcher;
pub mod damage;
pub(crate) mod db;
pub mod doctor;
mod error;
pub(crate) mod migrations;
pub(crate) mod opened_files;
pub mod private;
mod publish;
pub(crate) mod read_only;
pub(crate) mod reader_pool;
pub(crate) mod schema;
mod tables;
pub(crate) mod writer;

pub use self::busy::retry_while_busy;
pub use self::change_watcher::ChangeWatcher;
pub(crate) use self::db::{Db, enable_triggers};
pub use self::db::{Durability, nonempty_log};
pub use self::opened_files::{FileState, OpenedFiles};
pub use self::publish::{Draft, ExistingFile, PublishError, folder_of, publish, remove_database};
pub use self::tables::{is_store, table_exists};
pub use self::writer::WriteHandle;
pub(crate) use self::writer::{WriteKind, lock};
pub use crate::paths::with_suffix;

pub(crate) use rusqlite::params;
pub(crate) use rusqlite::types::{ToSqlOutput, Type, ValueRef};
/// What the SQL of the other modules needs from the SQLite library.
pub(crate) use rusqlite::{
    CachedStatement, Connection, Error as SqlError, ErrorCode, Params, Result as SqlResult, Row, ToSql,
};
