//! Durable work on bounded pools: tasks that survive whatever dies meanwhile.
//!
//! A [`Runner`] takes tasks from a [store](gristmill_store), runs each with the handler of its [`Kind`] on a
//! [pool](gristmill_pool), and writes down what became of it. It holds a task by a lease that it keeps renewing; when
//! a worker dies, its leases run out, and others take over. So a task is run at least once, and finished once.
//!
//! ```
//! use gristmill_jobs::{Kind, Runner};
//! use gristmill_store::{Store, tasks::NewTask};
//! use std::time::Duration;
//!
//! # let folder = tempfile::tempdir()?;
//! let store = Store::open(folder.path().join("work.db"))?;
//! store.tasks().enqueue(NewTask::new("greet", r#"{"name": "miller"}"#))?;
//!
//! let greet = Kind::new("greet", |work| {
//!     #[derive(serde::Deserialize)]
//!     struct Greeting {
//!         name: String,
//!     }
//!     let greeting: Greeting = work.parse()?;
//!     work.keep(&format!("hello, {}", greeting.name))
//! });
//! let running = Runner::builder(store.clone()).kind(greet).start()?;
//! running.wait_idle()?;
//! let summary = running.stop(Duration::from_secs(5))?;
//! assert_eq!(summary.completed, 1);
//! assert_eq!(store.tasks().get(1)?.result.as_deref(), Some(r#""hello, miller""#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What decides
//! | the handler | the task |
//! |---|---|
//! | returns `Ok` | completed, with what it [kept](Work::keep) |
//! | a transient error | tried again later, as its kind's [`Retry`](gristmill_pool::Retry) says |
//! | a partial error | the same; it finds its [checkpoints](Work::checkpoint) and the failed step |
//! | a permanent error, a panic, the last attempt | a dead letter; the kind's [clean-up](Kind::on_exhausted) is called |
//! | is told to stop | back to the queue, at once, for others; no attempt is counted |
//! | dies with its process | back to the queue when the lease runs out; after the third time a dead letter |

mod bench;
mod claims;
mod clean_ups;
pub mod dead_letters;
mod dispatcher;
mod error;
pub mod exec;
mod flight;
mod hub;
mod kind;
mod line;
mod pace;
mod process_groups;
mod renewal;
mod rows;
mod runner;
mod runway;
mod stats;
mod tables;
mod tasks;
mod work;

pub use crate::error::Error;
pub use crate::kind::TaskKind;
pub use crate::process_groups::{ProcessGroups, ProcessRecord};
pub use crate::rows::RowContext;
pub use crate::runner::{Runner, RunnerBuilder, RunnerHandle};
pub use crate::stats::{RunSummary, RunnerStats, TaskKindStats};
pub use crate::tables::ThumbnailInfo;
pub use crate::work::TaskContext;

// Here, because the README speaks of the pool and the store too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library.md")]
struct Readme;
