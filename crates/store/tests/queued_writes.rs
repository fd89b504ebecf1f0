//! Queued writes: what happens to the write and to its result in every state of the caller, the store and the queue.

use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use gristmill_store::catalog::{Batch, Listing, Stat};
use gristmill_store::scans::{ScanRequest, ScanScope};
use gristmill_store::tasks::NewTask;
use gristmill_store::{Durability, Error, Result, Store, WriteHandle};

/// Longer than any test runs.
const FOREVER: Duration = Duration::from_secs(3_600);

/// Maximum number of queued writes.
const QUEUE_CAPACITY: usize = 4_096;

static LOGGED_FAILURES: AtomicUsize = AtomicUsize::new(0);

/// Counts the log lines about failed writes whose handle was dropped.
struct FailureCounter;

impl tracing::Subscriber for FailureCounter {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR && metadata.target().ends_with("writer::queue")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        LOGGED_FAILURES.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// A store with a root and a scan, in a temporary folder.
struct Fixture {
    store: Store,
    root: i64,
    scan: i64,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::options().durability(Durability::Normal).open(folder.path().join("work.db")).unwrap();
        let root = store.roots().register(folder.path()).unwrap().id;
        let request = ScanRequest {
            root,
            scope: ScanScope::Root,
            holder: "test".to_owned(),
            settings: String::new(),
            restart: false,
            is_alive: |_| None,
        };
        let scan = store.scans().begin(request).unwrap().id;
        Fixture { store, root, scan, folder }
    }

    /// Returns a batch that inserts a file, or fails because there is no such root.
    fn batch(&self, body: Body) -> impl FnOnce() -> Batch + Send + 'static {
        let (root, scan) = (self.store.catalog().root_folder(self.root).unwrap(), self.scan);
        move || {
            let mut listing = Listing::new(scan, root);
            listing.new_files.push((OsString::from("file"), Stat::default()));
            match body {
                Body::Succeeds => {}
                Body::Fails => listing.folder.root = 999,
                Body::Panics => panic!("a write that panics"),
            }
            Batch { listings: vec![(1, listing)], ..Batch::default() }
        }
    }

    /// Blocks the writer thread until the returned sender is dropped.
    fn hold_writer(&self) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel::<()>();
        let (started, is_started) = mpsc::channel();
        let hold = move || {
            started.send(()).unwrap();
            let _ = released.recv();
            Batch::default()
        };
        drop(queue(&self.store, Duration::ZERO, hold).unwrap());
        is_started.recv().unwrap();
        release
    }

    fn close(&self) -> thread::JoinHandle<()> {
        let store = self.store.clone();
        thread::spawn(move || store.close())
    }
}

fn queue(
    store: &Store,
    linger: Duration,
    batch: impl FnOnce() -> Batch + Send + 'static,
) -> Result<WriteHandle<usize>> {
    store.catalog().queue(linger, batch, |written| written.map(|written| written.ids.len()))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Caller {
    Waits,
    Drops,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    Succeeds,
    Fails,
    Panics,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Closing {
    Never,
    Before,
    During,
}

#[test]
fn every_state_of_caller_write_store_and_queue_has_its_result() {
    tracing::subscriber::set_global_default(FailureCounter).unwrap();
    for caller in [Caller::Waits, Caller::Drops] {
        for body in [Body::Succeeds, Body::Fails, Body::Panics] {
            for closing in [Closing::Never, Closing::Before, Closing::During] {
                for is_full in [false, true] {
                    check(caller, body, closing, is_full);
                }
            }
        }
    }
}

fn check(caller: Caller, body: Body, closing: Closing, is_full: bool) {
    let case = format!("{caller:?} {body:?} closing {closing:?} full {is_full}");
    let fixture = Fixture::new();
    let store = &fixture.store;
    let logged = LOGGED_FAILURES.load(Ordering::SeqCst);
    let release = fixture.hold_writer();
    if is_full {
        (0..QUEUE_CAPACITY).for_each(|_| drop(queue(store, Duration::ZERO, Batch::default).unwrap()));
    }
    let mut closer = (closing == Closing::Before).then(|| fixture.close());
    // The probe of a full queue would wait for room.
    while closing == Closing::Before && !is_full && queue(store, FOREVER, Batch::default).is_ok() {}
    let (sent, received) = mpsc::channel();
    let queueing = thread::spawn({
        let (store, batch) = (store.clone(), fixture.batch(body));
        move || sent.send(queue(&store, Duration::ZERO, batch)).unwrap()
    });
    let queued = match (closing, is_full) {
        // A full queue has no room before the writer continues.
        (Closing::Never, true) => {
            drop(release);
            received.recv().unwrap()
        }
        // The writer is held, so that a caller of a full queue leaves only because the store is closed.
        (Closing::During, true) => {
            closer = Some(fixture.close());
            let queued = received.recv().unwrap();
            drop(release);
            queued
        }
        _ => {
            let queued = received.recv().unwrap();
            closer = closer.or_else(|| (closing == Closing::During).then(|| fixture.close()));
            drop(release);
            queued
        }
    };
    queueing.join().unwrap();
    let is_refused = closing == Closing::Before || (closing == Closing::During && is_full);
    assert_eq!(queued.is_err(), is_refused, "{case}");
    match (queued, caller) {
        (Err(error), _) => assert_eq!(error, Error::Closed, "{case}"),
        (Ok(handle), Caller::Drops) => drop(handle),
        (Ok(handle), Caller::Waits) => match (handle.wait(), body) {
            (Ok(1), Body::Succeeds) | (Err(Error::Conflict(_)), Body::Fails) => {}
            (Err(Error::Internal(text)), Body::Panics) => assert_eq!(text, "a write panicked", "{case}"),
            (result, _) => panic!("{case}: {result:?}"),
        },
    }
    closer.into_iter().for_each(|closer| closer.join().unwrap());
    store.close();
    let is_written = !is_refused && body == Body::Succeeds;
    assert_eq!(store.catalog().has_files(fixture.root).unwrap(), is_written, "{case}");
    let is_logged = !is_refused && caller == Caller::Drops && body != Body::Succeeds;
    assert_eq!(LOGGED_FAILURES.load(Ordering::SeqCst) - logged, usize::from(is_logged), "{case}");
}

#[test]
fn lingering_write_starts_with_every_event_that_ends_its_wait() {
    type Event = fn(&Store, WriteHandle<usize>) -> Option<WriteHandle<usize>>;
    let events: [(&str, Event); 5] = [
        ("started", |_, handle| {
            handle.start();
            Some(handle)
        }),
        ("waited for", |_, handle| {
            assert_eq!(handle.wait(), Ok(1));
            None
        }),
        ("joined by an urgent write", |store, handle| {
            store.tasks().enqueue(NewTask::new("a", "{}")).unwrap();
            assert!(handle.is_done(), "one transaction contains both");
            Some(handle)
        }),
        ("joined by one that lingers less", |store, handle| {
            let shorter = queue(store, Duration::from_millis(1), Batch::default).unwrap();
            while !shorter.is_done() {
                thread::yield_now();
            }
            assert!(handle.is_done());
            Some(handle)
        }),
        ("closed", |store, handle| {
            store.close();
            assert!(handle.is_done());
            Some(handle)
        }),
    ];
    for (event, end) in events {
        let fixture = Fixture::new();
        let handle = queue(&fixture.store, FOREVER, fixture.batch(Body::Succeeds)).unwrap();
        assert!(!handle.is_done());
        if let Some(handle) = end(&fixture.store, handle) {
            assert_eq!(handle.wait(), Ok(1), "{event}");
        }
    }
}

#[test]
fn batch_is_taken_once_when_its_transaction_begins_even_if_that_is_repeated() {
    let fixture = Fixture::new();
    let release = fixture.hold_writer();
    let (taken, takes) = mpsc::channel();
    let batch = fixture.batch(Body::Succeeds);
    let counted = move || {
        taken.send(()).unwrap();
        batch()
    };
    let handle = queue(&fixture.store, Duration::ZERO, counted).unwrap();
    // The group fails, and each of its writes is repeated alone.
    let failing = queue(&fixture.store, Duration::ZERO, fixture.batch(Body::Panics)).unwrap();
    assert!(takes.try_recv().is_err(), "the transaction has not begun");
    drop(release);
    assert_eq!(handle.wait(), Ok(1));
    assert!(failing.wait().is_err());
    assert_eq!(takes.iter().count(), 1);
}

#[test]
fn panicking_callback_fails_its_own_write_only() {
    let fixture = Fixture::new();
    let release = fixture.hold_writer();
    let then = |_| -> Result<()> { panic!("a callback that panics") };
    let first = fixture.store.catalog().queue(Duration::ZERO, Batch::default, then).unwrap();
    let second = queue(&fixture.store, Duration::ZERO, fixture.batch(Body::Succeeds)).unwrap();
    drop(release);
    assert_eq!(first.wait(), Err(Error::Internal("the callback of a write panicked".to_owned())));
    assert_eq!(second.wait(), Ok(1));
}

#[test]
fn every_caller_of_close_waits_for_the_queued_writes() {
    let fixture = Fixture::new();
    let release = fixture.hold_writer();
    let (ended, is_ended) = mpsc::channel();
    for ended in [ended.clone(), ended] {
        let store = fixture.store.clone();
        thread::spawn(move || {
            store.close();
            ended.send(()).unwrap();
        });
    }
    // Neither returns while the writer is held.
    assert_eq!(is_ended.recv_timeout(Duration::from_millis(20)), Err(RecvTimeoutError::Timeout));
    drop(release);
    assert_eq!(is_ended.iter().count(), 2);
}

#[test]
fn callback_may_drop_the_last_store() {
    let fixture = Fixture::new();
    let release = fixture.hold_writer();
    let Fixture { store, folder, .. } = fixture;
    let owned = store.clone();
    let then = move |_| {
        drop(owned);
        Ok(())
    };
    let handle = store.catalog().queue(Duration::ZERO, Batch::default, then).unwrap();
    drop(store);
    drop(release);
    assert_eq!(handle.wait(), Ok(()));
    Store::open(folder.path().join("work.db")).unwrap();
}

#[cfg(unix)]
#[test]
fn write_is_not_acknowledged_when_the_file_is_deleted_before_commit() {
    let fixture = Fixture::new();
    let path = fixture.store.path().to_path_buf();
    let (file, batch) = (path.clone(), fixture.batch(Body::Succeeds));
    let deleting = move || {
        std::fs::remove_file(&file).unwrap();
        batch()
    };
    assert_eq!(queue(&fixture.store, Duration::ZERO, deleting).unwrap().wait(), Err(Error::Deleted(path)));
}

#[test]
fn each_write_of_a_group_runs_once_when_one_ends_the_transaction() {
    let fixture = Fixture::new();
    // SQLite itself rolls back after some errors, as this trigger does.
    let trigger = "CREATE TRIGGER ends BEFORE INSERT ON tasks WHEN NEW.kind = 'ends'
        BEGIN SELECT RAISE(ROLLBACK, 'the transaction has ended'); END";
    rusqlite::Connection::open(fixture.store.path()).unwrap().execute_batch(trigger).unwrap();
    let tasks = fixture.store.tasks();
    let release = fixture.hold_writer();
    let [first, ending, last] =
        ["a", "ends", "a"].map(|kind| tasks.queue_many(vec![NewTask::new(kind, "{}")]).unwrap());
    drop(release);
    assert!(first.wait().is_ok() && ending.wait().is_err() && last.wait().is_ok());
    let counts: u64 = tasks.counts().unwrap().iter().map(|(_, count)| count).sum();
    assert_eq!(counts, 2);
}
