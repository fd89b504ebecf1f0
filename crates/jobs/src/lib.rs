//! Durable tasks on bounded pools: a task survives the death of the process that runs it.
//!
//! A [`Runner`] claims tasks from a [store](gristmill_store), runs each with the handler of its [`TaskKind`] on a
//! [pool](gristmill_pool), and stores the outcome. It holds a task by a lease that it renews; when a worker dies, its
//! leases expire and other workers claim the tasks. A task is run at least once, and finished once.
//!
//! ```
//! use gristmill_jobs::{Runner, TaskKind};
//! use gristmill_store::{Store, tasks::NewTask};
//! use std::time::Duration;
//!
//! # let folder = tempfile::tempdir()?;
//! let store = Store::open(folder.path().join("work.db"))?;
//! store.tasks().enqueue(NewTask::new("greet", r#"{"name": "Ada"}"#))?;
//!
//! let greet = TaskKind::new("greet", |task| {
//!     #[derive(serde::Deserialize)]
//!     struct Greeting {
//!         name: String,
//!     }
//!     let greeting: Greeting = task.parse()?;
//!     task.set_result(&format!("hello, {}", greeting.name))
//! });
//! let running = Runner::builder(store.clone()).kind(greet).start()?;
//! running.wait_idle()?;
//! let summary = running.stop(Duration::from_secs(5))?;
//! assert_eq!(summary.completed, 1);
//! assert_eq!(store.tasks().get(1)?.result.as_deref(), Some(r#""hello, Ada""#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Outcomes
//! | the handler | the task |
//! |---|---|
//! | returns `Ok` | is completed, with the [result](TaskContext::set_result) |
//! | returns a transient error | is retried later according to its kind's [`Retry`](gristmill_pool::Retry) |
//! | returns a partial error | is retried with its [checkpoints](TaskContext::checkpoint) and the failed step |
//! | panics, fails permanently or for the last time | becomes a dead letter with a [clean-up](TaskKind::on_exhausted) |
//! | is cancelled because the worker stops | is released at once; no attempt is counted |
//! | dies with its process | is released when the lease expires; after the third crash it becomes a dead letter |

mod claim_ahead;
mod claims;
mod cleanup;
pub mod dead_letters;
mod dispatcher;
mod error;
pub mod exec;
mod in_flight;
mod kind;
mod kind_runner;
mod lease_renewal;
mod leased_table;
mod process_groups;
mod runner;
mod shared_tables;
mod signals;
mod source;
mod stats;
mod task_context;
mod task_source;

pub use crate::error::Error;
pub use crate::kind::TaskKind;
pub use crate::leased_table::RowContext;
pub use crate::process_groups::{ProcessGroups, ProcessRecord};
pub use crate::runner::{Runner, RunnerBuilder, RunnerHandle};
pub use crate::shared_tables::ThumbnailInfo;
pub use crate::stats::{RunSummary, RunnerStats, TaskKindStats};
pub use crate::task_context::TaskContext;

// Tested in this crate because the guide's examples use the pool and the store, too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library.md")]
struct LibraryGuide;
