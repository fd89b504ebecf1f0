//! Folders of JSONL into SQLite: parsed in parallel, written by one writer. And JSONL without SQLite.
//!
//! [`import`](import::import) makes a table of each file. Large files are cut into blocks at line ends; workers parse
//! them, and one writer takes the rows in the file's order, so one big file uses all cores and memory does not grow with
//! its size. Columns and types are found out from all lines, not from a sample. A new database is built beside its
//! place and moved there when it is complete.
//!
//! ```
//! use gristmill_jsonl::import::{handle::ImportHandle, import, options::{ImportOptions, Target}};
//! # let folder = tempfile::tempdir()?;
//! # let (lines, database) = (folder.path().join("ores.jsonl"), folder.path().join("ores.db"));
//!
//! std::fs::write(&lines, "{\"_key\":34,\"name\":\"Tritanium\"}\n{\"_key\":35,\"volume\":0.01}\n")?;
//! let summary = import(&[lines], &Target::Database(database), &ImportOptions::default(), &ImportHandle::default().into())?;
//! assert_eq!(summary.rows, 2);
//! assert_eq!(summary.files[0].primary_key.as_deref(), Some("_key"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`export`](export::export) writes a table back as JSONL. A [`Reader`] gives rows one after the other, dynamic or of a type of the caller's. A [`Sink`] takes objects that come
//! one at a time, such as messages, into a table.

#[doc(hidden)]
pub mod __fuzz;
mod block;
mod document;
mod error;
pub mod export;
pub(crate) mod file_identity;
pub mod import;
mod keys;
mod languages;
mod lexer;
mod number;
mod parse;
mod parse_error;
mod parsed_block;
mod publish;
mod reader;
mod sink;
mod source;
mod text;
mod types;

pub use error::{Error, Result};
pub use file_identity::FileIdentity;
pub use parse_error::ParseErrorKind;
pub use reader::{BadLine, ReadError, Reader, Row, TypedRows, Value};
pub use sink::{AppendResult, RejectedObject, Sink, WithId};
pub use types::Type;
