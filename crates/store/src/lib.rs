//! Everything durable, in one SQLite file: jobs, tasks, leases, checkpoints, dead letters.
//!
//! A [`Store`] is opened once and shared. Writes go through one thread that gathers them and commits them in
//! groups; when a method returns, what it wrote is on disk. Reads have connections of their own. The file is
//! a public contract: programs in other languages may work in it at the same time.
//!
//! ```
//! use gristmill_store::{Store, lease::WorkerId, tasks::{NewTask, Settlement, Verdict, Wanted}};
//! use std::time::Duration;
//!
//! # let folder = tempfile::tempdir()?;
//! let store = Store::open(folder.path().join("work.db"))?;
//! let added = store.tasks().enqueue(NewTask::new("greet", r#"{"name": "miller"}"#))?;
//!
//! // A worker's visit: claim a task, do it, settle it.
//! let worker = WorkerId::new("docs");
//! let wanted = Wanted {
//!     queue: "default".into(),
//!     kind: "greet".into(),
//!     limit: 10,
//!     at_most: None,
//!     shaken: 10,
//!     suspect: 10,
//!     lease: Duration::from_secs(300),
//!     token: worker.token(),
//! };
//! let turn = store.tasks().turn(vec![], vec![wanted])?;
//! let task = &turn.claimed[0];
//! assert_eq!(task.id, added.id);
//! let done = Settlement {
//!     id: task.id,
//!     token: task.token.clone(),
//!     verdict: Verdict::Completed(None),
//!     checkpointed: false,
//! };
//! store.tasks().turn(vec![done], vec![])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod backup;
pub mod catalog;
mod change_watcher;
pub mod checkpoints;
pub mod cleanup;
pub mod damage;
mod db;
pub mod dead_letters;
pub mod doctor;
mod error;
pub mod failures;
pub mod jobs;
mod json;
pub mod lease;
pub mod message_runs;
mod migrations;
mod notify;
mod opened_files;
mod paths;
pub mod positions;
pub mod private;
pub mod process;
pub mod processed;
pub mod rate_limits;
mod read_only;
mod reader_pool;
pub mod roots;
pub mod scans;
mod schema;
pub mod start_log;
mod string_enum;
pub mod tasks;
pub mod thumbnails;
pub mod time;
pub mod wal;
pub mod workers;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde::Serialize;

pub use crate::change_watcher::ChangeWatcher;
pub use crate::db::Durability;
pub use crate::error::{Error, Result};
pub use crate::paths::{display_path, is_invisible, resolve_last_link};
pub use crate::time::{UtcTime, WallClock};

use crate::db::{Access, Db, DbFile};
use crate::notify::Notifier;
use crate::opened_files::OpenedFiles;
use crate::reader_pool::ReaderPool;
use crate::writer::{WriteKind, Writer};

/// A database of work, open. Clones are the same store.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    // In the order they are closed: the writer last, so that it is the one to tidy the log up.
    readers: ReaderPool,
    /// None if the file cannot be written.
    writer: Option<Writer>,
    notifier: Arc<Notifier>,
    file: Arc<DbFile>,
    opened_files: Arc<OpenedFiles>,
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    durability: Durability,
    busy_timeout: Duration,
    clock: WallClock,
    read_only: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            durability: Durability::Full,
            busy_timeout: Duration::from_secs(10),
            clock: WallClock::system(),
            read_only: false,
        }
    }
}

impl StoreOptions {
    /// Every acknowledged write survives a power cut, unless this says otherwise.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long to wait for another process that writes; 10 seconds unless this says otherwise.
    #[must_use]
    pub fn busy_timeout(mut self, limit: Duration) -> Self {
        self.busy_timeout = limit;
        self
    }

    /// Another clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: WallClock) -> Self {
        self.clock = clock;
        self
    }

    /// A file that cannot be written is opened nevertheless, for reading: every write is then refused with
    /// [`Error::ReadOnly`].
    #[must_use]
    pub fn allow_read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Opens the file, or creates it, and brings it up to date. Its folder must exist.
    pub fn open(self, path: impl Into<PathBuf>) -> Result<Store> {
        let StoreOptions { durability, busy_timeout, clock, read_only } = self;
        let file = DbFile { path: path.into(), durability, busy_timeout, clock, access: Access::ReadWrite };
        match Self::open_writable(&file) {
            Err(error) if read_only::may_be_read_only(&error, &file.path) => {
                let (file, conn) = retry_while_busy(busy_timeout, || read_only::open(&file))?;
                if !read_only {
                    return Err(Error::ReadOnly(file.path));
                }
                read_only::check_version(&file, &conn)?;
                let file = Arc::new(file);
                let (notifier, opened_files) = (Arc::default(), Arc::new(OpenedFiles::of(&file.path, false)));
                let readers = ReaderPool::new(file.clone());
                Ok(Store(Arc::new(Inner { readers, writer: None, notifier, file, opened_files })))
            }
            result => result,
        }
    }

    fn open_writable(file: &DbFile) -> Result<Store> {
        let (file, busy_timeout) = (Arc::new(file.clone()), file.busy_timeout);
        let reader = retry_while_busy(busy_timeout, || migrations::inspect(&file))?;
        let conn = file.open_writer()?;
        retry_while_busy(busy_timeout, || file.use_wal(&conn))?;
        drop(reader);
        retry_while_busy(busy_timeout, || migrations::run(&file, &conn))?;
        let opened_files = Arc::new(OpenedFiles::of(&file.path, true));
        let notifier = Arc::<Notifier>::default();
        let writer = Some(Writer::start(file.clone(), opened_files.clone(), conn, notifier.clone())?);
        let readers = ReaderPool::new(file.clone());
        Ok(Store(Arc::new(Inner { readers, writer, notifier, file, opened_files })))
    }
}

/// Two processes that open a new file at one moment meet locks that SQLite does not wait for by itself.
fn retry_while_busy<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(Error::Busy(_)) if start.elapsed() < limit => {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

impl Store {
    /// Opens the file, or creates it, with the defaults.
    pub fn open(path: impl Into<PathBuf>) -> Result<Store> {
        StoreOptions::default().open(path)
    }

    /// How to open one otherwise.
    pub fn options() -> StoreOptions {
        StoreOptions::default()
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.0.file.path
    }

    /// What time it is for this store.
    pub fn now(&self) -> UtcTime {
        self.0.file.clock.now()
    }

    /// Jobs of the protocol.
    pub fn jobs(&self) -> jobs::Jobs<'_> {
        jobs::Jobs(self)
    }

    /// Durable tasks.
    pub fn tasks(&self) -> tasks::Tasks<'_> {
        tasks::Tasks(self)
    }

    /// Workers that hold leases.
    pub fn workers(&self) -> workers::Workers<'_> {
        workers::Workers(self)
    }

    /// Checkpoints of tasks.
    pub fn checkpoints(&self) -> checkpoints::Checkpoints<'_> {
        checkpoints::Checkpoints(self)
    }

    /// Failed attempts of tasks.
    pub fn failures(&self) -> failures::Failures<'_> {
        failures::Failures(self)
    }

    /// Tasks and messages that were given up.
    pub fn dead_letters(&self) -> dead_letters::DeadLetters<'_> {
        dead_letters::DeadLetters(self)
    }

    /// Thumbnails that were asked for.
    pub fn thumbnails(&self) -> thumbnails::Thumbnails<'_> {
        thumbnails::Thumbnails(self)
    }

    /// Groups whose thumbnails are to be thrown away.
    pub fn cleanups(&self) -> cleanup::Cleanups<'_> {
        cleanup::Cleanups(self)
    }

    /// Checkpoints of the write-ahead log.
    pub fn wal(&self) -> wal::Wal<'_> {
        wal::Wal(self)
    }

    /// How fast all workers together may read.
    pub fn rate_limits(&self) -> rate_limits::RateLimits<'_> {
        rate_limits::RateLimits(self)
    }

    /// Where consumers of streams continue.
    pub fn positions(&self) -> positions::Positions<'_> {
        positions::Positions(self)
    }

    /// Messages that were seen before.
    pub fn processed_ids(&self) -> processed::ProcessedIds<'_> {
        processed::ProcessedIds(self)
    }

    /// Messages that were started and have not ended.
    pub fn message_runs(&self) -> message_runs::MessageRuns<'_> {
        message_runs::MessageRuns(self)
    }

    /// Folders that are scanned.
    pub fn roots(&self) -> roots::Roots<'_> {
        roots::Roots(self)
    }

    /// Scans of roots.
    pub fn scans(&self) -> scans::Scans<'_> {
        scans::Scans(self)
    }

    /// Folders and files that scans have seen.
    pub fn catalog(&self) -> catalog::Catalog<'_> {
        catalog::Catalog(self)
    }

    /// Something to wait with until there may be work.
    pub fn watch(&self) -> Result<ChangeWatcher> {
        ChangeWatcher::new(self)
    }

    /// Takes no more writes and waits for those under way. Every later write is refused.
    pub fn close(&self) {
        if let Some(writer) = &self.0.writer {
            writer.close();
        }
    }

    /// Fails when the file was deleted, moved or replaced since it was opened. Every read and write checks this, too.
    pub fn check_in_place(&self) -> Result<()> {
        self.0.opened_files.check()
    }

    fn writer(&self) -> Result<&Writer> {
        self.0.writer.as_ref().ok_or_else(|| Error::ReadOnly(self.0.file.path.clone()))
    }

    pub(crate) fn write<T: Send + 'static>(
        &self,
        kind: WriteKind,
        body: impl FnMut(&Db<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer()?.write(kind, false, body)
    }

    /// A write after which workers should look for work.
    pub(crate) fn write_and_notify<T: Send + 'static>(
        &self,
        kind: WriteKind,
        body: impl FnMut(&Db<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer()?.write(kind, true, body)
    }

    pub(crate) fn read<T>(&self, body: impl FnOnce(&Db<'_>) -> Result<T>) -> Result<T> {
        self.with_reader(|conn| body(&self.0.file.db(conn)))
    }

    pub(crate) fn with_reader<T>(&self, body: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.0.opened_files.check()?;
        self.0.readers.with(body)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.0.file.path).finish_non_exhaustive()
    }
}

/// Some rows, and where the next ones begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// What to give for the next page; nothing when this is the last one.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// From one row more than was asked for, which tells whether there is a next page.
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
