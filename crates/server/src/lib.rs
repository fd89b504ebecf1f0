//! The HTTP API of Gristmill: the routes of the shared protocol, questions to the catalog, tasks, live events, metrics.
//!
//! A [`Server`] answers requests with one of its tokens, and requests of browsers that have signed in with a link. `connections` accepts and limits connections, `security` decides
//! who may send which request, `routes` has a module for each subject, `events` the stream of changes.

mod app;
mod channel_body;
mod connections;
mod content;
mod counted_body;
mod events;
mod extract;
mod metrics;
mod options;
mod problem;
mod routes;
mod security;
mod server;

pub(crate) use crate::app::App;
pub use crate::app::openapi;
pub use crate::metrics::write_store_metrics;
pub use crate::options::{ServerOptions, Setting, WorkerStats};
pub use crate::security::credentials::new_secret;
pub use crate::server::{Server, ServerError};
