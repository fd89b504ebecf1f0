//! Queued writes: what happens to the write and to its result in every state of the caller, the store and the queue.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once, mpsc};
use std::thread;
use std::time::Duration;

use super::queue::QUEUE_CAPACITY;
use super::{Db, Error, Result, WriteHandle, WriteKind};
use crate::catalog::Batch;
use crate::tasks::{self, NewTask};
use crate::{Durability, Store};

/// Longer than any test runs.
const FOREVER: Duration = Duration::from_secs(3_600);

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

fn open() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::options().durability(Durability::Normal).open(folder.path().join("work.db")).unwrap();
    (folder, store)
}

fn queue<T: Send + 'static>(
    store: &Store,
    linger: Duration,
    body: impl FnMut(&Db<'_>) -> Result<T> + Send + 'static,
) -> Result<WriteHandle<T>> {
    store.writer()?.queue(WriteKind::Compound, false, linger, body, |result| result)
}

/// Blocks the writer thread until the returned sender is used or dropped.
fn hold_writer(store: &Store) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (started, is_started) = mpsc::channel();
    let hold = move |_: &Db<'_>| {
        started.send(()).unwrap();
        let _ = released.recv();
        Ok(())
    };
    drop(queue(store, Duration::ZERO, hold).unwrap());
    is_started.recv().unwrap();
    release
}

fn wait_for_queued(store: &Store, count: usize) {
    while store.writer().unwrap().queue.count.load(Ordering::Relaxed) != count {
        thread::yield_now();
    }
}

fn is_closed(store: &Store) -> bool {
    matches!(queue(store, FOREVER, |_| Ok(())), Err(Error::Closed))
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
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| tracing::subscriber::set_global_default(FailureCounter).unwrap());
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
    let (_folder, store) = open();
    let logged = LOGGED_FAILURES.load(Ordering::SeqCst);
    let release = hold_writer(&store);
    if is_full {
        (0..QUEUE_CAPACITY).for_each(|_| drop(queue(&store, Duration::ZERO, |_| Ok(())).unwrap()));
    }
    let close = || {
        let closing = thread::spawn({
            let store = store.clone();
            move || store.close()
        });
        while !is_closed(&store) {
            thread::yield_now();
        }
        closing
    };
    // A full queue is probed only after the store was closed: the probe itself would wait for room.
    let mut closer = (closing == Closing::Before && !is_full).then(close);
    if closing != Closing::Never && is_full {
        closer = Some(thread::spawn({
            let store = store.clone();
            move || store.close()
        }));
    }
    let write = move |db: &Db<'_>| {
        tasks::insert(db, &NewTask::new("test", "{}"))?;
        match body {
            Body::Succeeds => Ok(7),
            Body::Fails => Err(Error::Conflict("refused".to_owned())),
            Body::Panics => panic!("a write that panics"),
        }
    };
    let (sent, received) = mpsc::channel();
    let queueing = thread::spawn({
        let store = store.clone();
        move || sent.send(queue(&store, Duration::ZERO, write)).unwrap()
    });
    if closing == Closing::During && !is_full {
        wait_for_queued(&store, 1);
        closer = Some(close());
    }
    if closing == Closing::Never || !is_full {
        drop(release);
    } else {
        // The queue stays full, so the caller leaves only because the store is closed.
        queueing.join().unwrap();
        drop(release);
    }
    let queued = received.recv().unwrap();
    let is_refused = closing == Closing::Before || (closing == Closing::During && is_full);
    assert_eq!(queued.is_err(), is_refused, "{case}");
    match (queued, caller) {
        (Err(error), _) => assert_eq!(error, Error::Closed, "{case}"),
        (Ok(handle), Caller::Drops) => drop(handle),
        (Ok(handle), Caller::Waits) => match (handle.wait(), body) {
            (Ok(7), Body::Succeeds) | (Err(Error::Conflict(_)), Body::Fails) => {}
            (Err(Error::Internal(text)), Body::Panics) => assert_eq!(text, "a write panicked", "{case}"),
            (result, _) => panic!("{case}: {result:?}"),
        },
    }
    closer.into_iter().for_each(|closer| closer.join().unwrap());
    store.close();
    let rows = store.tasks().counts().unwrap().iter().map(|(_, count)| count).sum::<u64>();
    let is_written = !is_refused && body == Body::Succeeds;
    assert_eq!(rows, u64::from(is_written), "{case}");
    let is_logged = !is_refused && caller == Caller::Drops && body != Body::Succeeds;
    assert_eq!(LOGGED_FAILURES.load(Ordering::SeqCst) - logged, usize::from(is_logged), "{case}");
}

#[test]
fn lingering_write_starts_with_every_event_that_ends_its_wait() {
    type Event = fn(&Store, WriteHandle<i32>) -> Option<WriteHandle<i32>>;
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
            store.write(WriteKind::Statement, |_| Ok(())).unwrap();
            assert!(handle.is_done(), "one transaction contains both");
            Some(handle)
        }),
        ("joined by one that lingers less", |store, handle| {
            let shorter = queue(store, Duration::from_millis(1), |_| Ok(())).unwrap();
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
        let (_folder, store) = open();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = runs.clone();
        let handle = queue(&store, FOREVER, move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(1)
        });
        let handle = handle.unwrap();
        assert!(!handle.is_done());
        if let Some(handle) = end(&store, handle) {
            assert_eq!(handle.wait(), Ok(1), "{event}");
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{event}");
    }
}

#[test]
fn batch_is_taken_once_when_its_transaction_begins_even_if_that_is_repeated() {
    let (_folder, store) = open();
    let release = hold_writer(&store);
    let (taken, takes) = mpsc::channel();
    let batch = move || {
        taken.send(()).unwrap();
        Batch::default()
    };
    let handle =
        store.catalog().queue(Duration::ZERO, batch, |written| written.map(|written| written.missing)).unwrap();
    // The group fails, and each of its writes is repeated alone.
    let ending = queue(&store, Duration::ZERO, |db| db.batch("ROLLBACK")).unwrap();
    assert!(takes.try_recv().is_err(), "the transaction has not begun");
    drop(release);
    assert_eq!(handle.wait(), Ok(0));
    assert!(ending.wait().is_err());
    assert_eq!(takes.iter().count(), 1);
}

#[test]
fn panicking_callback_fails_its_own_write_only() {
    let (_folder, store) = open();
    let release = hold_writer(&store);
    let then = |_: Result<()>| -> Result<()> { panic!("a callback that panics") };
    let writer = store.writer().unwrap();
    let first = writer.queue(WriteKind::Statement, false, Duration::ZERO, |_| Ok(()), then).unwrap();
    let second = queue(&store, Duration::ZERO, |_| Ok(2)).unwrap();
    drop(release);
    assert_eq!(first.wait(), Err(Error::Internal("the callback of a write panicked".to_owned())));
    assert_eq!(second.wait(), Ok(2));
}

#[test]
fn callback_may_drop_the_last_store() {
    let (folder, store) = open();
    let release = hold_writer(&store);
    let owned = store.clone();
    let then = move |result: Result<()>| {
        drop(owned);
        result
    };
    let handle = store.writer().unwrap().queue(WriteKind::Statement, false, Duration::ZERO, |_| Ok(()), then).unwrap();
    drop(store);
    drop(release);
    assert_eq!(handle.wait(), Ok(()));
    Store::open(folder.path().join("work.db")).unwrap();
}
