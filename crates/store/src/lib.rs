//! Stores all durable state in one SQLite file: jobs, tasks, leases, checkpoints, dead letters, the catalog of files.
//!
//! A [`Store`] is opened once and shared. One writer thread commits the writes of all callers in groups; when a method
//! returns, its write is on disk. Reads use separate connections. The schema is a public contract: programs in other
//! languages may use the file at the same time.
//!
//! ```
//! use gristmill_store::{Store, lease::WorkerId, tasks::{ClaimRequest, Disposition, NewTask, TaskUpdate}};
//! use std::time::Duration;
//!
//! # let folder = tempfile::tempdir()?;
//! let store = Store::open(folder.path().join("work.db"))?;
//! let added = store.tasks().enqueue(NewTask::new("greet", r#"{"name": "Ada"}"#))?;
//!
//! // A worker claims a task, runs it and reports the result.
//! let worker = WorkerId::new("docs");
//! let request = ClaimRequest {
//!     queue: "default".into(),
//!     kind: "greet".into(),
//!     limit: 10,
//!     max_running: None,
//!     max_crashed_once: 10,
//!     max_crashed_often: 10,
//!     lease: Duration::from_secs(300),
//!     token: worker.token(),
//! };
//! let batch = store.tasks().settle_and_claim(vec![], vec![request])?;
//! let task = &batch.claimed[0];
//! assert_eq!(task.id, added.id);
//! let done = TaskUpdate {
//!     id: task.id,
//!     token: task.token.clone(),
//!     disposition: Disposition::Completed(None),
//!     checkpointed: false,
//! };
//! store.tasks().settle_and_claim(vec![done], vec![])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod catalog;
mod error;
mod json;
mod messages;
#[cfg(feature = "openapi")]
mod openapi;
mod options;
mod paths;
pub mod process;
mod protocol;
mod queue;
mod rows;
pub mod sqlite;
pub mod text;
pub mod time;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gristmill_pool::clock::Clock;
use serde::Serialize;

pub use crate::catalog::{roots, scans};
pub use crate::error::{Error, Result};
pub use crate::json::{JsonRow, NestedJson};
pub use crate::messages::{message_runs, positions, processed};
pub use crate::paths::{display_path, is_invisible, resolve_last_link};
pub use crate::protocol::{cleanup, jobs, rate_limits, thumbnails, wal};
pub use crate::queue::{checkpoints, dead_letters, failures, lease, start_log, tasks, workers};
pub use crate::sqlite::{ChangeWatcher, Durability, WriteHandle, backup, damage, doctor, private};
pub use crate::time::UtcTime;

use crate::sqlite::change_watcher::Notifier;
use crate::sqlite::db::{Db, DbFile};
use crate::sqlite::opened_files::OpenedFiles;
use crate::sqlite::reader_pool::ReaderPool;
use crate::sqlite::writer::{WriteKind, Writer};
use crate::sqlite::{migrations, read_only};

/// An open database. Clones share the same connections and writer thread.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    // Dropped in this order: the writer last, so that SQLite removes the WAL when its connection closes.
    readers: ReaderPool,
    /// `None` if the file cannot be written.
    writer: Option<Writer>,
    notifier: Arc<Notifier>,
    file: Arc<DbFile>,
    opened_files: Arc<OpenedFiles>,
    marks: catalog::MarksCache,
}

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    durability: Durability,
    busy_timeout: Duration,
    clock: Clock,
    read_only: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            durability: Durability::Full,
            busy_timeout: Duration::from_secs(10),
            clock: Clock::system(),
            read_only: false,
        }
    }
}

impl StoreOptions {
    /// Sets whether acknowledged writes survive a power cut. Default: [`Durability::Full`], they do.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets how long to wait for the write lock of another process. Default: 10 seconds.
    #[must_use]
    pub fn busy_timeout(mut self, limit: Duration) -> Self {
        self.busy_timeout = limit;
        self
    }

    /// Replaces the system clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Allows a file that cannot be written: it is opened for reading, and every write fails with [`Error::ReadOnly`].
    #[must_use]
    pub fn allow_read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Opens or creates the file and migrates it to the current schema. Its folder must exist.
    pub fn open(self, path: impl Into<PathBuf>) -> Result<Store> {
        let file = self.file(&path.into());
        match Self::open_writable(&file) {
            Err(error) if read_only::may_be_read_only(&error, &file.path) => {
                let (file, conn) = file.retry_while_busy(|| read_only::open(&file))?;
                if !self.read_only {
                    return Err(Error::ReadOnly(file.path));
                }
                read_only::check_version(&file, &conn)?;
                let file = Arc::new(file);
                let (notifier, opened_files) = (Arc::default(), Arc::new(OpenedFiles::record(&file.path, false)));
                let readers = ReaderPool::new(file.clone());
                Ok(Store(Arc::new(Inner {
                    readers,
                    writer: None,
                    notifier,
                    file,
                    opened_files,
                    marks: Default::default(),
                })))
            }
            result => result,
        }
    }

    fn open_writable(file: &DbFile) -> Result<Store> {
        let file = Arc::new(file.clone());
        let reader = file.retry_while_busy(|| migrations::inspect(&file))?;
        let conn = file.open_writer()?;
        file.retry_while_busy(|| file.use_wal(&conn))?;
        drop(reader);
        file.retry_while_busy(|| migrations::run(&file, &conn))?;
        let opened_files = Arc::new(OpenedFiles::record(&file.path, true));
        let notifier = Arc::<Notifier>::default();
        let writer = Some(Writer::start(file.clone(), opened_files.clone(), conn, notifier.clone())?);
        let readers = ReaderPool::new(file.clone());
        Ok(Store(Arc::new(Inner { readers, writer, notifier, file, opened_files, marks: Default::default() })))
    }
}

impl Store {
    /// Opens or creates the file with default options.
    pub fn open(path: impl Into<PathBuf>) -> Result<Store> {
        StoreOptions::default().open(path)
    }

    /// Returns options to open a store with.
    pub fn options() -> StoreOptions {
        StoreOptions::default()
    }

    /// Returns the path of the database file.
    pub fn path(&self) -> &Path {
        &self.0.file.path
    }

    /// Returns the current time of this store's clock.
    pub fn now(&self) -> UtcTime {
        self.0.file.now()
    }

    /// Returns a watcher that waits for changes of the file.
    pub fn watch(&self) -> Result<ChangeWatcher> {
        ChangeWatcher::new(self)
    }

    /// Refuses further writes and waits for queued ones.
    pub fn close(&self) {
        if let Some(writer) = &self.0.writer {
            writer.close();
        }
    }

    /// Fails if the file was deleted, moved or replaced since it was opened. Every read and write also checks this.
    pub fn check_in_place(&self) -> Result<()> {
        self.0.opened_files.check()
    }

    pub(crate) fn marks(&self) -> &catalog::MarksCache {
        &self.0.marks
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.0.writer.is_none()
    }

    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.0.writer.as_ref().ok_or_else(|| Error::ReadOnly(self.0.file.path.clone()))
    }

    pub(crate) fn write<T: Send + 'static>(
        &self,
        kind: WriteKind,
        body: impl FnMut(&Db<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer()?.write(kind, false, body)
    }

    /// Like [`write`](Self::write), and wakes watchers of this store after the commit.
    pub(crate) fn write_and_notify<T: Send + 'static>(
        &self,
        kind: WriteKind,
        body: impl FnMut(&Db<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer()?.write(kind, true, body)
    }

    pub(crate) fn read<T>(&self, body: impl FnOnce(&Db<'_>) -> Result<T>) -> Result<T> {
        self.0.opened_files.check()?;
        self.read_unchecked(body)
    }

    /// Reads without a check that the file is in place. For many short reads, between which there are writes: a check
    /// costs as much as a short read.
    pub(crate) fn read_unchecked<T>(&self, body: impl FnOnce(&Db<'_>) -> Result<T>) -> Result<T> {
        self.0.readers.with(|conn| body(&self.0.file.db(conn)))
    }
}

/// Declares the methods that return a part of the store.
macro_rules! parts {
    ($($(#[$doc:meta])+ $name:ident: $module:ident::$part:ident,)+) => {
        impl Store {
            $($(#[$doc])+ pub fn $name(&self) -> $module::$part<'_> { $module::$part(self) })+
        }
    };
}

parts! {
    /// Returns the jobs that a control plane orders.
    jobs: jobs::Jobs,
    /// Returns the durable tasks.
    tasks: tasks::Tasks,
    /// Returns the workers that may hold leases.
    workers: workers::Workers,
    /// Returns the checkpoints of tasks.
    checkpoints: checkpoints::Checkpoints,
    /// Returns the failed attempts of tasks.
    failures: failures::Failures,
    /// Returns the dead letters of tasks and messages.
    dead_letters: dead_letters::DeadLetters,
    /// Returns the requested thumbnails.
    thumbnails: thumbnails::Thumbnails,
    /// Returns the scheduled clean-ups of thumbnail groups.
    cleanups: cleanup::Cleanups,
    /// Returns the checkpoints of the write-ahead log.
    wal: wal::Wal,
    /// Returns the I/O rate limits that all workers share.
    rate_limits: rate_limits::RateLimits,
    /// Returns the offsets at which stream consumers continue.
    positions: positions::Positions,
    /// Returns the ids of processed messages.
    processed_ids: processed::ProcessedIds,
    /// Returns the message runs that have not ended.
    message_runs: message_runs::MessageRuns,
    /// Returns the scanned folders.
    roots: roots::Roots,
    /// Returns the scans of roots.
    scans: scans::Scans,
    /// Returns the folders and files that scans have recorded.
    catalog: catalog::Catalog,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.0.file.path).finish_non_exhaustive()
    }
}

/// One page of rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// Rows of this page, at most the requested limit.
    pub items: Vec<T>,
    /// Cursor for the next page, or `None` on the last page.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// Returns the page with each row converted, for example to [`NestedJson`].
    pub fn map<U>(self, convert: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(convert).collect(), next_cursor: self.next_cursor }
    }

    /// Makes a page from up to `limit` + 1 rows; the extra row shows that there is a next page.
    fn from_rows(mut items: Vec<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let next_cursor = items.last().filter(|_| more).map(cursor);
        Page { items, next_cursor }
    }
}

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn limit_plus_one(limit: usize) -> i64 {
    sql_limit(limit).saturating_add(1)
}
