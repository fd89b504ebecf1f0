//! Group commit: acknowledged writes are in the file, a refused write does not affect others, and a failed transaction
//! is reported to all its callers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use gristmill_store::lease::WorkerId;
use gristmill_store::tasks::{ClaimRequest, Disposition, NewTask, TaskFilter, TaskStatus, TaskUpdate, UpdateResult};
use gristmill_store::{Error, Store};
use rusqlite::{Connection, OpenFlags};

const KIND: &str = "convert";

/// Opens a connection as another program does.
fn open_connection(path: &Path) -> Connection {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

fn payload(conn: &Connection, id: i64) -> String {
    conn.query_row("SELECT payload FROM tasks WHERE id = ?1", [id], |row| row.get(0)).unwrap()
}

fn count(conn: &Connection) -> i64 {
    conn.query_row("SELECT count(*) FROM tasks", [], |row| row.get(0)).unwrap()
}

/// Begins a write transaction of another program.
fn hold_write_lock(path: &Path) -> Connection {
    let conn = Connection::open(path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    conn
}

fn claim(store: &Store, limit: usize) -> Vec<TaskUpdate> {
    let request = ClaimRequest {
        queue: "default".to_owned(),
        kind: KIND.to_owned(),
        limit,
        max_running: None,
        max_crashed_once: usize::MAX,
        max_crashed_often: usize::MAX,
        lease: Duration::from_secs(60),
        token: WorkerId::new("worker").token(),
    };
    let claimed = store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed;
    let done = |task: gristmill_store::tasks::ClaimedTask| TaskUpdate {
        id: task.id,
        token: task.token,
        disposition: Disposition::Completed(None),
        checkpointed: false,
    };
    claimed.into_iter().map(done).collect()
}

#[test]
fn acknowledged_write_is_visible_to_other_connections() {
    const CALLERS: usize = 64;
    const EACH: usize = 25;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    let store = Store::open(&path).unwrap();
    let start = Barrier::new(CALLERS);
    let acknowledged: BTreeMap<i64, String> = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (store, path, start) = (&store, &path, &start);
                scope.spawn(move || {
                    let other = open_connection(path);
                    start.wait();
                    let written = (0..EACH).map(|nth| {
                        let text = format!("[{caller}, {nth}]");
                        let id = store.tasks().enqueue(NewTask::new(KIND, text.clone())).unwrap().id;
                        assert_eq!(payload(&other, id), text);
                        (id, text)
                    });
                    written.collect::<Vec<_>>()
                })
            })
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(acknowledged.len(), CALLERS * EACH);
    let new = open_connection(&path);
    assert_eq!(count(&new), (CALLERS * EACH) as i64);
    for (id, text) in acknowledged {
        assert_eq!(payload(&new, id), text);
    }
}

#[test]
fn refused_write_does_not_affect_others_in_its_group() {
    const ROUNDS: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    let store = Store::open(&path).unwrap();
    let finished = store.tasks().enqueue(NewTask::new("other", "{}")).unwrap().id;
    store.tasks().cancel(finished).unwrap();
    let refuse: [&(dyn Fn() -> bool + Sync); 4] = [
        &|| matches!(store.tasks().cancel(finished), Err(Error::Conflict(_))),
        &|| matches!(store.tasks().run_now(777), Err(Error::NotFound(_))),
        &|| matches!(store.dead_letters().retry(777, NewTask::new("other", "{}")), Err(Error::NotFound(_))),
        &|| {
            let token = WorkerId::new("stranger").token();
            matches!(store.checkpoints().save(finished, &token, "a", "1"), Err(Error::Conflict(_)))
        },
    ];
    let mut ids = BTreeSet::new();
    for _ in 0..ROUNDS {
        // All writes arrive while another program holds the lock, so that one group contains them.
        let lock = hold_write_lock(&path);
        let (arrived, arrivals) = mpsc::channel();
        thread::scope(|scope| {
            let accepted: Vec<_> = (0..12)
                .map(|nth| {
                    let (store, arrived) = (&store, arrived.clone());
                    scope.spawn(move || {
                        let key = (nth % 2 == 0).then(|| format!("{:?}", thread::current().id()));
                        let task = NewTask { unique_key: key, ..NewTask::new(KIND, "{}") };
                        arrived.send(()).unwrap();
                        store.tasks().enqueue(task).unwrap().id
                    })
                })
                .collect();
            let refused: Vec<_> = refuse
                .iter()
                .cycle()
                .take(12)
                .map(|refuse| {
                    let arrived = arrived.clone();
                    scope.spawn(move || {
                        arrived.send(()).unwrap();
                        refuse()
                    })
                })
                .collect();
            assert_eq!(arrivals.iter().take(24).count(), 24);
            lock.execute_batch("COMMIT").unwrap();
            assert!(refused.into_iter().all(|caller| caller.join().unwrap()));
            ids.extend(accepted.into_iter().map(|caller| caller.join().unwrap()));
        });
    }
    assert_eq!(ids.len(), ROUNDS * 12);
    let filter = TaskFilter::default().kind(Some(KIND.to_owned()));
    let rows = store.tasks().list(&filter, None, 10_000).unwrap().items;
    assert_eq!(rows.iter().map(|row| row.id).collect::<BTreeSet<_>>(), ids);
    assert_eq!(count(&open_connection(&path)), ids.len() as i64 + 1);
    assert_eq!(store.tasks().get(finished).unwrap().status, TaskStatus::Cancelled);
}

/// A trigger refuses the second of two tasks: the first is rolled back, too, and other writes are not affected.
#[test]
fn partly_refused_write_is_rolled_back_alone() {
    const ROUNDS: usize = 8;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    let store = Store::open(&path).unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch(
            "CREATE TRIGGER no_broken BEFORE INSERT ON tasks WHEN NEW.payload = '\"broken\"'
                BEGIN SELECT RAISE(ABORT, 'refused by a trigger'); END",
        )
        .unwrap();
    let (half, broken) = (NewTask::new("half", "{}"), NewTask::new("half", "\"broken\""));
    for _ in 0..ROUNDS {
        let lock = hold_write_lock(&path);
        let (arrived, arrivals) = mpsc::channel();
        thread::scope(|scope| {
            for nth in 0..8 {
                let (store, arrived, half, broken) = (&store, arrived.clone(), &half, &broken);
                scope.spawn(move || {
                    arrived.send(()).unwrap();
                    let refused = match nth {
                        0 => store.tasks().enqueue_many(vec![half.clone(), broken.clone()]).unwrap_err(),
                        4 => store.tasks().enqueue(broken.clone()).unwrap_err(),
                        _ => {
                            store.tasks().enqueue(NewTask::new(KIND, "{}")).unwrap();
                            return;
                        }
                    };
                    assert!(matches!(refused, Error::Conflict(_)), "{refused:?}");
                    assert!(refused.to_string().contains("refused by a trigger"), "{refused}");
                });
            }
            assert_eq!(arrivals.iter().take(8).count(), 8);
            lock.execute_batch("COMMIT").unwrap();
        });
    }
    let filter = TaskFilter::default().kind(Some("half".to_owned()));
    assert_eq!(store.tasks().list(&filter, None, 10).unwrap().items, []);
    assert_eq!(count(&other), ROUNDS as i64 * 6);
    // Also outside a group.
    store.tasks().enqueue_many(vec![half, broken]).unwrap_err();
    assert_eq!(count(&other), ROUNDS as i64 * 6);
}

#[test]
fn retry_of_a_foreign_dead_letter_reports_its_invalid_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    let store = Store::open(&path).unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch(
            "INSERT INTO dead_letter_queue (task_id, task_type, document_id, failure_reason, attempt_count,
                first_failure, last_failure, checkpoint) VALUES ('x', 'convert', '', 'r', 1,
                '2026-01-19 12:00:00', '2026-01-19 12:00:00', 'not json')",
        )
        .unwrap();
    let dead_letter = other.last_insert_rowid();
    let error = store.dead_letters().retry(dead_letter, NewTask::new(KIND, "{}")).unwrap_err();
    assert!(!matches!(error, Error::Internal(_)), "not an internal error: {error}");
    assert!(error.to_string().contains("checkpoint"), "{error}");
    assert_eq!(
        (count(&other), store.dead_letters().count()),
        (0, Ok(1)),
        "the dead letter is kept, and no task is inserted"
    );
}

#[test]
fn busy_timeout_fails_every_waiting_write_and_later_writes_succeed() {
    const CALLERS: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    let store = Store::options().busy_timeout(Duration::from_millis(20)).open(&path).unwrap();
    let before = store.tasks().enqueue(NewTask::new(KIND, "{}")).unwrap().id;
    let held = claim(&store, 1);
    for _ in 0..2 {
        let lock = hold_write_lock(&path);
        let start = Barrier::new(CALLERS);
        thread::scope(|scope| {
            for nth in 0..CALLERS {
                let (store, held, start, path) = (&store, &held, &start, &path);
                scope.spawn(move || {
                    start.wait();
                    let error = match nth % 4 {
                        0 => store.tasks().enqueue(NewTask::new(KIND, "{}")).unwrap_err(),
                        1 => store.tasks().enqueue_many(vec![NewTask::new(KIND, "{}"); 2]).unwrap_err(),
                        2 => store.tasks().settle_and_claim(held.clone(), vec![]).unwrap_err(),
                        _ => store.tasks().cancel(before).unwrap_err(),
                    };
                    assert_eq!(error, Error::Busy(path.clone()));
                    assert!(error.is_transient());
                    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
                    assert!(error.to_string().contains("Try again"), "{error}");
                });
            }
        });
        // Readers do not wait, and see none of the writes.
        assert_eq!(store.tasks().counts().unwrap(), [(TaskStatus::Running, 1)]);
        lock.execute_batch("ROLLBACK").unwrap();
        assert_eq!(store.tasks().get(before).unwrap().status, TaskStatus::Running);
    }
    assert_eq!(store.tasks().settle_and_claim(held, vec![]).unwrap().results, [UpdateResult::Done]);
    let after = store.tasks().enqueue(NewTask::new(KIND, "[7]")).unwrap().id;
    let new = open_connection(&path);
    assert_eq!((count(&new), payload(&new, after)), (2, "[7]".to_owned()));
}

#[test]
fn close_finishes_queued_writes() {
    const CALLERS: usize = 16;
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.db");
        let store = Store::open(&path).unwrap();
        let (wrote, writes) = mpsc::channel();
        let acknowledged: BTreeSet<i64> = thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| {
                    let (store, wrote) = (&store, wrote.clone());
                    scope.spawn(move || {
                        let mut ids = Vec::new();
                        loop {
                            match store.tasks().enqueue(NewTask::new(KIND, "{}")) {
                                Ok(enqueued) => ids.push(enqueued.id),
                                Err(error) => {
                                    assert_eq!(error, Error::Closed);
                                    return ids;
                                }
                            }
                            // The receiver is dropped once the store closes.
                            let _ = wrote.send(());
                        }
                    })
                })
                .collect();
            assert_eq!(writes.iter().take(3 * CALLERS).count(), 3 * CALLERS);
            store.close();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        let mut stored = BTreeSet::new();
        let conn = open_connection(&path);
        let mut statement = conn.prepare("SELECT id FROM tasks").unwrap();
        for id in statement.query_map([], |row| row.get::<_, i64>(0)).unwrap() {
            stored.insert(id.unwrap());
        }
        assert_eq!(stored, acknowledged, "exactly the acknowledged writes");
    }
}

/// The writer checkpoints after it has replied to the callers. Writes four times the maximum length of the WAL, which
/// is reset each time it is fully checkpointed.
#[test]
fn wal_stays_bounded_while_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let store = Store::open(&path).unwrap();
    let payload = format!("\"{}\"", "x".repeat(1 << 20));
    for _ in 0..32 {
        let tasks = (0..8).map(|_| NewTask::new(KIND, payload.clone())).collect();
        store.tasks().enqueue_many(tasks).unwrap();
    }
    let wal_bytes = std::fs::metadata(folder.path().join("x.db-wal")).unwrap().len();
    assert!(wal_bytes < 100 << 20, "{wal_bytes}");
    assert_eq!(count(&open_connection(&path)), 256);
}
