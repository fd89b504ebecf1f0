//! The writer thread: owns the only connection that changes rows, and commits the writes of all callers in groups.
//!
//! Callers queue a write and wait. While one transaction is being committed, new writes gather in the queue; the next
//! transaction contains all of them. Each caller receives its own result after the commit. A write that fails is rolled
//! back alone. If the transaction itself fails (full disk, failed sync), each write is repeated in its own transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use crate::error::{Error, Result};
use crate::sqlite::db::{CHECKPOINT_PAGES, Db, DbFile};
use crate::sqlite::notify::Notifier;
use crate::sqlite::opened_files::OpenedFiles;

/// Maximum number of queued writes. Callers block while the queue is full, which is the backpressure.
const QUEUE_CAPACITY: usize = 4_096;

/// Maximum number of times the writer yields for further writes; about ten microseconds when no other thread runs.
const MAX_GATHER_YIELDS: u32 = 32;

/// Number of statements in a write, which decides how it is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// One statement, which SQLite rolls back itself when it fails.
    Statement,
    /// Several statements that succeed or fail together; run inside a savepoint.
    Compound,
}

pub(crate) struct Writer {
    queue: Arc<WriteQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct WriteQueue {
    state: Mutex<QueueState>,
    /// Number of queued writes, readable without the lock.
    count: AtomicUsize,
    /// Signalled when the first write enters an empty queue.
    not_empty: Condvar,
    /// Signalled when a full queue was emptied.
    not_full: Condvar,
}

struct QueueState {
    writes: Group,
    latch: Arc<Latch>,
    closed: bool,
}

/// Writes of one transaction.
type Group = Vec<Box<dyn PendingWrite>>;

/// Set once for all writes of a group, so that one call wakes every caller.
type Latch = OnceLock<()>;

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
        let state = QueueState { writes: Vec::new(), latch: Arc::default(), closed: false };
        let queue = Arc::new(WriteQueue {
            state: Mutex::new(state),
            count: AtomicUsize::new(0),
            not_empty: Condvar::new(),
            not_full: Condvar::new(),
        });
        let writer = WriterThread { file, opened_files, conn, notifier, wal_pages };
        let thread = std::thread::Builder::new().name("store-writer".to_owned()).spawn({
            let queue = queue.clone();
            move || writer.run_loop(&queue)
        });
        let thread = thread.map_err(|error| Error::Internal(format!("cannot start the writer thread: {error}")))?;
        Ok(Writer { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `body` in a transaction and returns after the commit. `notifies`: wake the watchers of this store.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        kind: WriteKind,
        notifies: bool,
        body: impl FnMut(&Db<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let reply = Arc::new(Mutex::new(None));
        let request = Request { body, reply: reply.clone(), kind, notifies };
        let latch = self.queue.push(Box::new(request))?;
        latch.wait();
        let result = lock(&reply).take();
        result.unwrap_or(Err(Error::Closed))
    }

    /// Refuses further writes, finishes queued ones and closes the connection.
    pub(crate) fn close(&self) {
        lock(&self.queue.state).closed = true;
        self.queue.not_empty.notify_all();
        self.queue.not_full.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
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

impl WriteQueue {
    fn push(&self, write: Box<dyn PendingWrite>) -> Result<Arc<Latch>> {
        let mut state = lock(&self.state);
        while state.writes.len() >= QUEUE_CAPACITY && !state.closed {
            state = self.not_full.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Err(Error::Closed);
        }
        state.writes.push(write);
        self.count.store(state.writes.len(), Ordering::Relaxed);
        if state.writes.len() == 1 {
            self.not_empty.notify_one();
        }
        Ok(state.latch.clone())
    }

    /// Takes all queued writes and their latch; `None` when the queue is closed and empty. If fewer than `last` writes
    /// are queued, yields so that the callers of the previous group can return: of 64 callers that wake at the same
    /// time, the first would otherwise get a separate commit while the others wait for it.
    fn take(&self, previous_len: usize) -> Option<(Group, Arc<Latch>)> {
        let mut state = lock(&self.state);
        while state.writes.is_empty() {
            if state.closed {
                return None;
            }
            state = self.not_empty.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.writes.len() < previous_len {
            drop(state);
            for _ in 0..MAX_GATHER_YIELDS {
                std::thread::yield_now();
                if self.count.load(Ordering::Relaxed) >= previous_len {
                    break;
                }
            }
            state = lock(&self.state);
        }
        let was_full = state.writes.len() >= QUEUE_CAPACITY;
        // Reserves the same capacity, because a queue that grows does so under the contended lock.
        let next = Vec::with_capacity(state.writes.len());
        let group = std::mem::replace(&mut state.writes, next);
        self.count.store(0, Ordering::Relaxed);
        let latch = std::mem::take(&mut state.latch);
        drop(state);
        if was_full {
            self.not_full.notify_all();
        }
        Some((group, latch))
    }
}

struct WriterThread {
    file: Arc<DbFile>,
    opened_files: Arc<OpenedFiles>,
    conn: Connection,
    notifier: Arc<Notifier>,
    /// WAL length in pages after the last commit.
    wal_pages: Arc<AtomicI32>,
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
            drop(group);
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
        let db = self.file.db(&self.conn);
        for write in group {
            let in_savepoint = !alone && write.kind() == WriteKind::Compound;
            if in_savepoint {
                self.execute("SAVEPOINT one")?;
            }
            // A panic in one write must not end the writer thread that all callers share.
            let error = catch_unwind(AssertUnwindSafe(|| write.run(&db)))
                .unwrap_or_else(|_| Some(Error::Internal("a write panicked".to_owned())));
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
        Ok(())
    }

    fn execute(&self, sql: &str) -> Result<()> {
        let run = || self.conn.prepare_cached(sql)?.execute([]);
        run().map(drop).map_err(|error| self.file.error(&error))
    }
}

/// A queued write and the slot for its result.
trait PendingWrite: Send {
    fn kind(&self) -> WriteKind;
    fn notifies(&self) -> bool;
    /// Runs the write in the open transaction and stores its result. Returns the error, if any. May be called again.
    fn run(&mut self, db: &Db<'_>) -> Option<Error>;
    /// Stores `error` as the result, because the transaction failed.
    fn fail(&mut self, error: &Error);
}

struct Request<T, F> {
    body: F,
    reply: Arc<Mutex<Option<Result<T>>>>,
    kind: WriteKind,
    notifies: bool,
}

impl<T: Send, F: FnMut(&Db<'_>) -> Result<T> + Send> PendingWrite for Request<T, F> {
    fn kind(&self) -> WriteKind {
        self.kind
    }

    fn notifies(&self) -> bool {
        self.notifies
    }

    fn run(&mut self, db: &Db<'_>) -> Option<Error> {
        let result = (self.body)(db);
        let error = result.as_ref().err().cloned();
        *lock(&self.reply) = Some(result);
        error
    }

    fn fail(&mut self, error: &Error) {
        *lock(&self.reply) = Some(Err(error.clone()));
    }
}

/// Ignores poisoning: no data under these locks is left half-changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::Store;

    #[test]
    fn write_is_not_acknowledged_when_the_file_is_deleted_before_commit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.db");
        let store = Store::open(&path).unwrap();
        let file = path.clone();
        let written = store.write(WriteKind::Compound, move |_| {
            // A failed group is retried, so the file may already be removed.
            let _ = std::fs::remove_file(&file);
            Ok(1)
        });
        assert_eq!(written, Err(Error::Deleted(path)));
    }

    #[test]
    fn each_write_of_a_group_runs_once_when_one_ends_the_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("work.db")).unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let queue = &store.0.writer.as_ref().unwrap().queue;
        let wait_for_queued = |count| while queue.count.load(Ordering::Relaxed) != count {};
        std::thread::scope(|scope| {
            let (started, is_started) = std::sync::mpsc::channel();
            let write = move |_: &Db<'_>| {
                started.send(()).unwrap();
                released.recv().map_err(|_| Error::Closed)
            };
            let first = scope.spawn(|| store.write(WriteKind::Statement, write));
            is_started.recv().unwrap();
            let ending = scope.spawn(|| {
                store.write(WriteKind::Statement, |db| {
                    // SQLite itself rolls back after some errors.
                    let _ = db.execute("ROLLBACK", []);
                    Ok(())
                })
            });
            wait_for_queued(1);
            let enqueued = scope.spawn(|| store.tasks().enqueue(crate::tasks::NewTask::new("a", "{}")));
            wait_for_queued(2);
            release.send(()).unwrap();
            first.join().unwrap().unwrap();
            assert!(ending.join().unwrap().is_err());
            enqueued.join().unwrap().unwrap();
        });
        let tasks: u64 = store.tasks().counts().unwrap().iter().map(|(_, count)| count).sum();
        assert_eq!(tasks, 1);
    }
}
