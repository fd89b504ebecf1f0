//! Imports JSONL files into SQLite tables, exports tables as JSONL, and reads JSONL without a database.
//!
//! [`import`](import::import) creates one table per file. Large files are cut into blocks at line ends. Workers parse
//! the blocks, and one writer inserts the rows in file order, so one large file uses all cores and memory does not grow
//! with its size. Columns and types are inferred from all lines, not from a sample. A new database is built in a hidden
//! file in the same folder and renamed when it is complete.
//!
//! ```
//! use gristmill_jsonl::import::{handle::ImportHandle, import, options::{ImportOptions, Target}};
//! # let folder = tempfile::tempdir()?;
//! # let (lines, database) = (folder.path().join("ores.jsonl"), folder.path().join("ores.db"));
//!
//! std::fs::write(&lines, "{\"_key\":34,\"name\":\"Tritanium\"}\n{\"_key\":35,\"volume\":0.01}\n")?;
//! let target = Target::Database(database);
//! let summary = import(&[lines], &target, &ImportOptions::default(), &ImportHandle::default().into())?;
//! assert_eq!(summary.rows, 2);
//! assert_eq!(summary.files[0].primary_key.as_deref(), Some("_key"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`export`](export::export) writes a table as JSONL. A [`Reader`] returns rows one by one, either dynamic or of a
//! type that the caller defines. A [`Sink`] appends objects that arrive one at a time, such as messages, to a table.

#[doc(hidden)]
pub mod __fuzz;
mod block;
mod database;
mod document;
mod error;
pub mod export;
pub mod import;
mod keys;
mod languages;
mod lexer;
mod number;
mod parse;
mod parse_error;
mod parsed_block;
mod reader;
mod sink;
mod source;
mod sql;
mod text;
mod types;

pub use database::FileIdentity;
pub use error::{Error, Result};
pub use parse_error::{BadLine, ParseErrorKind};
pub use reader::{ReadError, Reader, Row, TypedRows, Value};
pub use sink::{AppendResult, RejectedObject, Sink, WithId};
pub use types::Type;
