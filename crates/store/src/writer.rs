//! The one that writes: a thread with the only writing connection, and group commit.
//!
//! Owns every transaction. Callers hand over what they want written and wait; while one transaction is on its
//! way to the disk, all that arrives is gathered, and goes into the next one together. Each caller gets its own
//! result, and only after the commit that holds it. What one caller's write failed on is undone by itself; if
//! the transaction breaks (full disk, failed sync), each write is tried again in one of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use crate::db::{CHECKPOINT_PAGES, Db, DbFile};
use crate::error::{Error, Result};
use crate::notify::Notifier;
use crate::opened_files::OpenedFiles;

/// So many writes may wait; whoever comes then waits for room. That is the backpressure.
const QUEUE_CAPACITY: usize = 4_096;

/// So often the writer lets others run first, if it expects more writes. Some ten microseconds when there is nobody.
const MAX_GATHER_YIELDS: u32 = 32;

/// What kind of write it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// One statement, which SQLite itself undoes when it fails.
    Statement,
    /// Several statements that hold together.
    Compound,
}

pub(crate) struct Writer {
    queue: Arc<WriteQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct WriteQueue {
    state: Mutex<QueueState>,
    /// How many wait, for a glance without the lock.
    count: AtomicUsize,
    /// Told when something was put into an empty line.
    not_empty: Condvar,
    /// Told when a full line was emptied.
    not_full: Condvar,
}

struct QueueState {
    writes: Group,
    latch: Arc<Latch>,
    closed: bool,
}

/// Writes that are committed together.
type Group = Vec<Box<dyn PendingWrite>>;

/// Opened once for all writes of a group: one wake-up call for however many callers wait.
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
        // In the place of SQLite's own, which would have whoever waits for a commit wait for the checkpoint, too.
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
        let thread = thread.map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
        Ok(Writer { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Has `body` run in a transaction and waits until that is on disk. `rings`: workers should look for work.
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

    /// Takes no more, finishes what waits, closes the connection.
    pub(crate) fn close(&self) {
        lock(&self.queue.state).closed = true;
        self.queue.not_empty.notify_all();
        self.queue.not_full.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "the writer's thread catches what its writes throw");
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

    /// Everything that waits, and the gate its callers wait at; nothing when the line is closed and empty. Gives as
    /// many as were there `last` time a moment to come back: of 64 callers that wake at once, the first would else
    /// have a commit for itself, and the others wait for it.
    fn take(&self, last: usize) -> Option<(Group, Arc<Latch>)> {
        let mut state = lock(&self.state);
        while state.writes.is_empty() {
            if state.closed {
                return None;
            }
            state = self.not_empty.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.writes.len() < last {
            drop(state);
            for _ in 0..MAX_GATHER_YIELDS {
                std::thread::yield_now();
                if self.count.load(Ordering::Relaxed) >= last {
                    break;
                }
            }
            state = lock(&self.state);
        }
        let was_full = state.writes.len() >= QUEUE_CAPACITY;
        // Room for as many again: a line that grows does so under the lock that everybody wants.
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

/// The thread's own things.
struct WriterThread {
    file: Arc<DbFile>,
    opened_files: Arc<OpenedFiles>,
    conn: Connection,
    notifier: Arc<Notifier>,
    /// How long the log was after the last commit.
    wal_pages: Arc<AtomicI32>,
}

impl WriterThread {
    fn run_loop(self, queue: &WriteQueue) {
        let mut last = 1;
        while let Some((mut group, latch)) = queue.take(last) {
            last = group.len();
            self.commit(&mut group);
            if group.iter().any(|write| write.notifies()) {
                self.notifier.notify();
            }
            drop(group);
            // Results lie in their places; whoever waits may read them now.
            let _ = latch.set(());
            if self.wal_pages.swap(0, Ordering::Relaxed) >= CHECKPOINT_PAGES {
                self.checkpoint();
            }
        }
        self.opened_files.before_close(&self.conn);
    }

    /// Writes what is in the log to its place. What fails now is tried again after the next commit.
    fn checkpoint(&self) {
        if self.opened_files.check_all().is_err() {
            return;
        }
        let checkpoint = self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = checkpoint {
            tracing::debug!(%error, "the log could not be brought home");
        }
    }

    /// Each write has its result afterwards, and those that succeeded are on disk.
    fn commit(&self, group: &mut [Box<dyn PendingWrite>]) {
        if let Err(error) = self.begin() {
            // The process that holds the lock has been waited for once; not again for each write.
            group.iter_mut().for_each(|write| write.fail(&error));
            return;
        }
        let Err(error) = self.commit_group(group) else { return };
        match group {
            [alone] => alone.fail(&error),
            many => {
                tracing::debug!(%error, writes = many.len(), "a group failed; trying its writes one by one");
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

    /// All in the transaction that was begun, and its end. After an error none of it is to be seen; only when the
    /// disk itself failed at the commit, a power cut right then may bring it back.
    fn commit_group(&self, group: &mut [Box<dyn PendingWrite>]) -> Result<()> {
        let result = self.run_writes(group).and_then(|()| self.execute("COMMIT"));
        // The file may have been deleted since the transaction began: then what was committed is in no file.
        let result = result.and_then(|()| self.opened_files.check());
        if result.is_err() && !self.conn.is_autocommit() {
            // What a failed rollback leaves open, the next BEGIN would trip over; SQLite rolls back by
            // itself on the errors that could make this one fail.
            if let Err(error) = self.execute("ROLLBACK") {
                tracing::error!(%error, "a transaction could not be rolled back");
            }
        }
        result
    }

    fn run_writes(&self, group: &mut [Box<dyn PendingWrite>]) -> Result<()> {
        let alone = group.len() == 1;
        // All writes of a group have the same time.
        let db = self.file.db(&self.conn);
        for write in group {
            let in_savepoint = !alone && write.kind() == WriteKind::Compound;
            if in_savepoint {
                self.execute("SAVEPOINT one")?;
            }
            // A write that panics must not take the writer, and with it everybody's store, along.
            let refused = catch_unwind(AssertUnwindSafe(|| write.run(&db)))
                .unwrap_or_else(|_| Some(Error::Internal("a write panicked".to_owned())));
            match refused {
                // A trigger of somebody else's may have rolled everything back: what comes after must not run
                // outside of a transaction.
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

/// Something to be written, with a place for its result.
trait PendingWrite: Send {
    fn kind(&self) -> WriteKind;
    fn notifies(&self) -> bool;
    /// Does it in the open transaction and keeps the result. Says why, when it was refused. Can be called
    /// again.
    fn run(&mut self, db: &Db<'_>) -> Option<Error>;
    /// The transaction did not happen.
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
        let refused = result.as_ref().err().cloned();
        *lock(&self.reply) = Some(result);
        refused
    }

    fn fail(&mut self, error: &Error) {
        *lock(&self.reply) = Some(Err(error.clone()));
    }
}

/// Nothing is left half-done under these locks, so a panic elsewhere is no reason to stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::Store;

    #[test]
    fn a_write_that_is_committed_to_a_file_deleted_meanwhile_is_not_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.db");
        let store = Store::open(&path).unwrap();
        let file = path.clone();
        let written = store.write(WriteKind::Compound, move |_| {
            // A group that failed is tried again.
            let _ = std::fs::remove_file(&file);
            Ok(1)
        });
        assert_eq!(written, Err(Error::Deleted(path)));
    }

    #[test]
    fn writes_of_a_group_whose_transaction_a_write_has_ended_are_each_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("work.db")).unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let queue = &store.0.writer.as_ref().unwrap().queue;
        let state = |count| while queue.count.load(Ordering::Relaxed) != count {};
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
                    // As SQLite does after some errors.
                    let _ = db.execute("ROLLBACK", []);
                    Ok(())
                })
            });
            state(1);
            let enqueued = scope.spawn(|| store.tasks().enqueue(crate::tasks::NewTask::new("a", "{}")));
            state(2);
            release.send(()).unwrap();
            first.join().unwrap().unwrap();
            assert!(ending.join().unwrap().is_err());
            enqueued.join().unwrap().unwrap();
        });
        let tasks: u64 = store.tasks().counts().unwrap().iter().map(|(_, count)| count).sum();
        assert_eq!(tasks, 1);
    }
}
