//! The writer thread: owns the only connection that changes rows, and commits the writes of all callers in groups.
//!
//! Callers queue a write, and wait or keep a [`WriteHandle`]. While one transaction is being committed, new writes gather
//! in the queue; the next transaction contains all of them. Each caller receives its own result after the commit. A
//! write that fails is rolled back alone. If the transaction itself fails (full disk, failed sync), each write is
//! repeated in its own transaction.

mod queue;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use crate::error::{Error, Result};
use crate::sqlite::change_watcher::Notifier;
use crate::sqlite::db::{CHECKPOINT_PAGES, Db, DbFile, enable_triggers};
use crate::sqlite::opened_files::OpenedFiles;
use crate::sqlite::schema::has_foreign_triggers;
use crate::tasks::TaskCounter;

pub use self::queue::WriteHandle;
pub(crate) use self::queue::lock;
use self::queue::{PendingWrite, Request, Slot, WriteQueue};

/// Number of statements in a write, which decides how it is rolled back, and whether it needs triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// One statement, which SQLite rolls back itself when it fails.
    Statement,
    /// Several statements that succeed or fail together; run inside a savepoint.
    Compound,
    /// A statement that changes no row of the catalog, so that it needs no trigger.
    TaskStatement,
    /// Several statements that change no row of the catalog.
    TaskCompound,
}

impl WriteKind {
    fn is_compound(self) -> bool {
        matches!(self, WriteKind::Compound | WriteKind::TaskCompound)
    }

    fn needs_triggers(self) -> bool {
        matches!(self, WriteKind::Statement | WriteKind::Compound)
    }
}

/// Number of consecutive transactions without a write that needs triggers, after which they are turned off. Turning
/// them on or off makes SQLite prepare every statement again, so it is not done for each of alternating writes.
const TRIGGER_LINGER: u32 = 8;

pub(crate) struct Writer {
    queue: Arc<WriteQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    thread_id: ThreadId,
}

impl Writer {
    pub(crate) fn start(
        file: Arc<DbFile>,
        opened_files: Arc<OpenedFiles>,
        mut conn: Connection,
        notifier: Arc<Notifier>,
    ) -> Result<Self> {
        let wal_pages = Arc::<AtomicI32>::default();
        let record_pages = {
            let wal_pages = wal_pages.clone();
            move |_: &mut Wal, count| {
                wal_pages.store(count, Ordering::Relaxed);
                Ok(())
            }
        };
        // Replaces SQLite's automatic checkpoint, for which the callers of a commit would have to wait.
        conn.wal_hook(Some(record_pages)).map_err(|error| file.error(&error))?;
        let queue = Arc::<WriteQueue>::default();
        let task_counter = TaskCounter::default();
        task_counter.add_function(&conn).map_err(|error| file.error(&error))?;
        let triggers = Cell::new(Triggers { are_on: true, unneeded: TRIGGER_LINGER, foreign: None });
        let writer = WriterThread { file, opened_files, conn, notifier, wal_pages, task_counter, triggers };
        let thread = std::thread::Builder::new().name("store-writer".to_owned()).spawn({
            let queue = queue.clone();
            move || writer.run_loop(&queue)
        });
        let thread = thread.map_err(|error| Error::Internal(format!("cannot start the writer thread: {error}")))?;
        Ok(Writer { queue, thread_id: thread.thread().id(), thread: Mutex::new(Some(thread)) })
    }

    /// Runs `body` in a transaction and returns after the commit. `notifies`: wake the watchers of this store.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        kind: WriteKind,
        notifies: bool,
        body: impl FnMut(&Db<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let handle = self.queue(kind, notifies, Duration::ZERO, body, |result| result)?;
        handle.latch.wait();
        handle.slot.take()
    }

    /// Queues `body` and returns at once; blocks only while the queue is full. Its transaction waits up to `linger` for
    /// more writes. After the commit `then` turns the result into that of the handle, on the writer thread: it must be
    /// short, and must not wait for a write.
    pub(crate) fn queue<T: Send + 'static, R: Send + 'static>(
        &self,
        kind: WriteKind,
        notifies: bool,
        linger: Duration,
        body: impl FnMut(&Db<'_>) -> Result<T> + Send + 'static,
        then: impl FnOnce(Result<T>) -> Result<R> + Send + 'static,
    ) -> Result<WriteHandle<R>> {
        let slot = Slot::new();
        let reply = slot.clone();
        let deliver = move |result| reply.put(then(result));
        let latch = self.queue.push(Box::new(Request { body, result: None, kind, notifies, deliver }), linger)?;
        Ok(WriteHandle { queue: self.queue.clone(), latch, slot })
    }

    /// Refuses further writes, finishes queued ones and closes the connection.
    pub(crate) fn close(&self) {
        self.queue.close();
        // A callback on the writer thread may drop the last store; the thread then ends by itself.
        if std::thread::current().id() == self.thread_id {
            return;
        }
        // Locked until the thread has ended, so that every caller waits for the queued writes.
        let mut thread = lock(&self.thread);
        if let Some(thread) = thread.take() {
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "the writer thread catches panics of its writes");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

struct WriterThread {
    file: Arc<DbFile>,
    opened_files: Arc<OpenedFiles>,
    conn: Connection,
    notifier: Arc<Notifier>,
    /// WAL length in pages after the last commit.
    wal_pages: Arc<AtomicI32>,
    task_counter: TaskCounter,
    triggers: Cell<Triggers>,
}

/// Whether the triggers of the connection are on.
#[derive(Clone, Copy)]
struct Triggers {
    are_on: bool,
    /// Number of transactions since one needed them.
    unneeded: u32,
    /// Whether another program has added triggers, by the version of the schema for which that was found.
    foreign: Option<(i64, bool)>,
}

impl WriterThread {
    fn run_loop(self, queue: &WriteQueue) {
        let mut previous_len = 1;
        while let Some((mut group, latch)) = queue.take(previous_len) {
            previous_len = group.len();
            self.commit(&mut group);
            if group.iter().any(|write| write.notifies()) {
                self.notifier.notify();
            }
            for write in group {
                // A panic of a callback must not end the thread either.
                if catch_unwind(AssertUnwindSafe(|| write.finish())).is_err() {
                    tracing::error!("the callback of a write panicked");
                }
            }
            // Every result is stored, so callers may read theirs.
            let _ = latch.set(());
            // 0: no checkpoint until a commit reports the length again.
            if self.wal_pages.swap(0, Ordering::Relaxed) >= CHECKPOINT_PAGES {
                self.checkpoint();
            }
        }
        self.opened_files.before_close(&self.conn);
    }

    /// Checkpoints the WAL without blocking other connections. A failure is retried after the next commit.
    fn checkpoint(&self) {
        if self.opened_files.check_all().is_err() {
            return;
        }
        let checkpoint = self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = checkpoint {
            tracing::debug!(%error, "WAL checkpoint failed; retrying after the next commit");
        }
    }

    /// Stores a result for each write; those that succeeded are on disk.
    fn commit(&self, group: &mut [Box<dyn PendingWrite>]) {
        if let Err(error) = self.begin() {
            // `BEGIN` has waited for the lock of another process. Repeating each write would wait again for each.
            group.iter_mut().for_each(|write| write.fail(&error));
            return;
        }
        let Err(error) = self.commit_group(group) else { return };
        match group {
            [alone] => alone.fail(&error),
            many => {
                let writes = many.len();
                tracing::debug!(%error, writes, "group transaction failed; repeating each write in its own transaction");
                for write in many {
                    let alone = std::slice::from_mut(write);
                    if let Err(error) = self.begin().and_then(|()| self.commit_group(alone)) {
                        write.fail(&error);
                    }
                }
            }
        }
    }

    fn begin(&self) -> Result<()> {
        self.opened_files.check_all().and_then(|()| self.execute("BEGIN IMMEDIATE"))
    }

    /// Runs all writes in the open transaction and commits it. After an error none of them is visible. Exception: if
    /// syncing the commit failed, its WAL frames may still reach the disk, and be visible after a power cut.
    fn commit_group(&self, group: &mut [Box<dyn PendingWrite>]) -> Result<()> {
        let result = self.run_writes(group).and_then(|()| self.execute("COMMIT"));
        // The file may have been deleted after the transaction began; then the commit is in no file.
        let result = result.and_then(|()| self.opened_files.check());
        if result.is_err() && !self.conn.is_autocommit() {
            // If ROLLBACK fails, SQLite has already rolled back, so the next BEGIN succeeds.
            if let Err(error) = self.execute("ROLLBACK") {
                tracing::error!(%error, "rollback failed");
            }
        }
        result
    }

    fn run_writes(&self, group: &mut [Box<dyn PendingWrite>]) -> Result<()> {
        let alone = group.len() == 1;
        // All writes of a group have the same timestamp.
        let db = self.file.db(&self.conn).with_task_counter(&self.task_counter);
        let needs_triggers = group.iter().any(|write| write.kind().needs_triggers());
        let is_counting = !self.set_triggers(&db, needs_triggers)?;
        self.task_counter.begin();
        for write in group {
            let in_savepoint = !alone && write.kind().is_compound();
            self.task_counter.begin_write(is_counting);
            if in_savepoint {
                self.execute("SAVEPOINT one")?;
            }
            // A panic in one write must not end the writer thread that all callers share.
            let error = catch_unwind(AssertUnwindSafe(|| write.run(&db)))
                .unwrap_or_else(|_| Some(Error::Internal("a write panicked".to_owned())));
            self.task_counter.end_write(error.is_none());
            match error {
                // A foreign trigger may have rolled back; the remaining writes must not run outside of a transaction.
                Some(error) if error.breaks_transaction() || alone || self.conn.is_autocommit() => {
                    return Err(error);
                }
                Some(_) if in_savepoint => self.execute("ROLLBACK TO one")?,
                None if self.conn.is_autocommit() => {
                    return Err(Error::Internal("a write ended the transaction of its group".to_owned()));
                }
                _ => {}
            }
            if in_savepoint {
                self.execute("RELEASE one")?;
            }
        }
        self.task_counter.write(&db)
    }

    /// Turns triggers on or off for a transaction, and returns whether they are on. Triggers of other programs stay on.
    fn set_triggers(&self, db: &Db<'_>, needed: bool) -> Result<bool> {
        let mut triggers = self.triggers.get();
        triggers.unneeded = if needed { 0 } else { triggers.unneeded.saturating_add(1) };
        let mut turn_on = needed || triggers.are_on && triggers.unneeded < TRIGGER_LINGER;
        if !turn_on {
            let version = db.number("PRAGMA schema_version", [])?;
            let foreign = match triggers.foreign {
                Some((known, foreign)) if known == version => foreign,
                _ => db.number(&has_foreign_triggers(), [])? > 0,
            };
            triggers.foreign = Some((version, foreign));
            turn_on = foreign;
        }
        if turn_on != triggers.are_on {
            db.with_conn(|conn| enable_triggers(conn, turn_on))?;
            triggers.are_on = turn_on;
        }
        self.triggers.set(triggers);
        Ok(turn_on)
    }

    fn execute(&self, sql: &str) -> Result<()> {
        let run = || self.conn.prepare_cached(sql)?.execute([]);
        run().map(drop).map_err(|error| self.file.error(&error))
    }
}
