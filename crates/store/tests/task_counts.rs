//! The table `task_counts` follows the tasks, whichever program changes them.

use std::collections::BTreeMap;
use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::catalog::Check;
use gristmill_store::lease::{Token, WorkerId};
use gristmill_store::tasks::{
    ClaimRequest, Disposition, NewTask, TaskCount, TaskFailure, TaskFilter, TaskStatus, TaskUpdate,
};
use gristmill_store::{Durability, Store, UtcTime};
use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(60);

struct Fixture {
    store: Store,
    clock: ManualClock,
    worker: WorkerId,
    claimed: Vec<(i64, Token)>,
    other: Connection,
    _folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.db");
        let clock = ManualClock::at(UtcTime::parse("2026-01-19 07:08:09").unwrap().micros());
        let store = Store::options().clock(clock.clone()).durability(Durability::Normal).open(&path).unwrap();
        let other = Connection::open(&path).unwrap();
        Fixture { store, clock, worker: WorkerId::new("w"), claimed: Vec::new(), other, _folder: folder }
    }

    fn sql(&self, sql: &str) {
        self.other.execute_batch(sql).unwrap();
    }

    fn task(&self, number: u8) -> NewTask {
        let mut task = NewTask::new(["a", "b"][usize::from(number % 2)], "{}");
        task.queue = ["q", "r", "s"][usize::from(number % 3)].to_owned();
        task.run_after = number.is_multiple_of(5).then(|| self.store.now().plus(LEASE));
        task.unique_key = number.is_multiple_of(7).then(|| "k".to_owned());
        task
    }

    fn claim(&mut self, number: u8) {
        let task = self.task(number);
        let request = ClaimRequest {
            queue: task.queue,
            kind: task.kind,
            limit: usize::from(number % 4) + 1,
            max_running: None,
            max_crashed_once: 10,
            max_crashed_often: 10,
            lease: LEASE,
            token: self.worker.token(),
        };
        let claimed = self.store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed;
        self.claimed.extend(claimed.into_iter().map(|task| (task.id, task.token)));
    }

    /// Settles claimed tasks, of which the worker may have lost some.
    fn settle(&mut self, number: u8) {
        let count = usize::from(number % 5);
        let at = self.store.now().plus(LEASE);
        let failure = || TaskFailure { reason: "failed".to_owned(), ..TaskFailure::default() };
        let disposition = |nth: usize| match (usize::from(number) + nth) % 7 {
            0 => Disposition::Completed(Some("1".to_owned())),
            1 => Disposition::Retry(at, failure()),
            2 => Disposition::DeadLettered(failure()),
            3 => Disposition::Released,
            4 => Disposition::Postponed(at),
            _ => Disposition::Completed(None),
        };
        let taken: Vec<_> = self.claimed.drain(..count.min(self.claimed.len())).enumerate().collect();
        let updates: Vec<TaskUpdate> = taken
            .into_iter()
            .map(|(nth, (id, token))| TaskUpdate { id, token, disposition: disposition(nth), checkpointed: false })
            .collect();
        self.store.tasks().settle_and_claim(updates, vec![]).unwrap();
    }

    /// An id that probably exists.
    fn id(&self, number: u8) -> i64 {
        let ids = self.store.tasks().list(&TaskFilter::default(), None, 20).unwrap().items;
        ids.get(usize::from(number) % ids.len().max(1)).map_or(1, |task| task.id)
    }

    fn run(&mut self, operation: (u8, u8)) {
        let (kind, number) = operation;
        let tasks = self.store.tasks();
        let id = self.id(number);
        match kind {
            0 => drop(tasks.enqueue(self.task(number)).unwrap()),
            1 => drop(tasks.enqueue_many((0..number % 8).map(|nth| self.task(number + nth)).collect()).unwrap()),
            2 => self.claim(number),
            3 => self.settle(number),
            4 => drop(tasks.cancel(id)),
            5 => drop(tasks.run_now(id)),
            6 => drop(tasks.recover(2).unwrap()),
            7 => self.clock.advance(LEASE),
            8 => drop(tasks.prune(self.store.now(), usize::from(number)).unwrap()),
            // A write of the catalog turns triggers on, for the next ones too.
            9 => drop(self.store.catalog().refresh_groups().unwrap()),
            10 => {
                let kind = number % 2;
                self.sql(&format!("INSERT INTO tasks (queue, kind, status) VALUES ('q', 'c{kind}', 'failed')"));
            }
            11 => self.sql(&format!("DELETE FROM tasks WHERE id = {id}")),
            12 => self
                .sql(&format!("UPDATE tasks SET queue = 'moved', kind = 'a' WHERE id = {id} AND unique_key IS NULL")),
            13 => self.sql(&format!("UPDATE tasks SET status = 'completed' WHERE id % 3 = {}", number % 3)),
            14 => self.sql(&format!(
                "INSERT OR IGNORE INTO tasks (id, queue, kind) VALUES ({id}, 'q', 'ignored'), (NULL, 'q', 'a');
                UPDATE OR REPLACE tasks SET status = 'scheduled', run_after = '2026-01-19 07:08:10'
                    WHERE id = {id} AND unique_key IS NULL;
                BEGIN; DELETE FROM tasks; ROLLBACK"
            )),
            // The second task is refused, and with it the first.
            15 => {
                self.sql(
                    "CREATE TRIGGER refuse BEFORE INSERT ON tasks WHEN NEW.kind = 'b'
                    BEGIN SELECT raise(ABORT, 'refused'); END",
                );
                let refused: Vec<_> = [0, 1].map(|number| self.task(number)).into();
                let _ = tasks.enqueue_many(refused);
                self.sql("DROP TRIGGER refuse");
            }
            _ => drop(self.store.workers().heartbeat(&self.worker, LEASE)),
        }
    }

    fn check(&self, operation: (u8, u8)) {
        let sql = "SELECT queue, kind, status, count(*) FROM tasks GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";
        let mut statement = self.other.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| {
            let status = TaskStatus::parse(&row.get::<_, String>(2)?).unwrap();
            Ok(TaskCount { queue: row.get(0)?, kind: row.get(1)?, status, count: row.get::<_, u32>(3)?.into() })
        });
        let expected: Vec<TaskCount> = rows.unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(self.store.tasks().counts_by_kind().unwrap(), expected, "after {operation:?}");
        let mut by_status = BTreeMap::new();
        for TaskCount { status, count, .. } in expected {
            *by_status.entry(status.as_str()).or_insert(0) += count;
        }
        let counts = self.store.tasks().counts().unwrap();
        assert_eq!(
            counts.iter().map(|(status, n)| (status.as_str(), *n)).collect::<Vec<_>>(),
            Vec::from_iter(by_status)
        );
    }
}

fn count_check(checks: Vec<Check>) -> Check {
    checks.into_iter().find(|check| check.name == "the counts of tasks match the tasks").unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn counts_equal_a_count_of_all_tasks(operations in proptest::collection::vec((0..17u8, 0..200u8), 1..60)) {
        let mut fixture = Fixture::new();
        for operation in operations {
            fixture.run(operation);
            fixture.check(operation);
        }
        prop_assert_eq!(count_check(fixture.store.catalog().verify().unwrap()).broken, 0);
    }
}

#[test]
fn writes_of_many_threads_in_one_group_are_counted() {
    let fixture = Fixture::new();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let fixture = &fixture.store;
            scope.spawn(move || {
                for number in 0..20 {
                    let mut task = NewTask::new(format!("k{}", number % 3), "{}");
                    // Most of these fail or find an existing task, among others that succeed.
                    task.unique_key = (thread % 2 == 0).then(|| "key".to_owned());
                    fixture.tasks().enqueue(task).unwrap();
                    let _ = fixture.tasks().cancel(number);
                }
            });
        }
    });
    fixture.check((0, 0));
}

#[test]
fn wrong_counts_are_found_and_repaired() {
    let fixture = Fixture::new();
    fixture.store.tasks().enqueue_many((0..9).map(|number| fixture.task(number)).collect()).unwrap();
    fixture.sql(
        "UPDATE task_counts SET count = count + 1 WHERE kind = 'a'; DELETE FROM task_counts WHERE kind = 'b';
        INSERT INTO task_counts VALUES ('q', 'gone', 'failed', 3), ('q', 'zero', 'failed', 0)",
    );
    let found = count_check(fixture.store.catalog().verify().unwrap());
    let wrong: i64 =
        fixture.store.tasks().counts_by_kind().unwrap().iter().filter(|count| count.kind == "a").count() as i64;
    assert!(found.broken > wrong + 1, "{found:?}");
    let repaired = count_check(fixture.store.catalog().repair().unwrap());
    assert_eq!((repaired.broken, repaired.repaired), (found.broken, found.broken));
    fixture.check((0, 0));
}

#[test]
fn zeros_are_not_listed_and_are_deleted_when_tasks_are_pruned() {
    let fixture = Fixture::new();
    fixture.sql(
        "INSERT INTO tasks (queue, kind, status, created_at, finished_at) VALUES
        ('q', 'a', 'completed', '2020-01-01 00:00:00', '2020-01-01 00:00:00'),
        ('q', 'b', 'completed', '2020-01-01 00:00:00', '2020-01-01 00:00:00')",
    );
    assert_eq!(fixture.store.tasks().prune(fixture.store.now(), 10).unwrap(), 1);
    fixture.check((0, 0));
    assert_eq!(fixture.store.tasks().prune(fixture.store.now(), 10).unwrap(), 0);
    let rows: i64 = fixture.other.query_row("SELECT count(*) FROM task_counts", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}

#[test]
fn migration_counts_existing_tasks() {
    let Fixture { store, other, _folder, clock, .. } = Fixture::new();
    store.tasks().enqueue_many(vec![NewTask::new("a", "1"), NewTask::new("b", "2"), NewTask::new("a", "3")]).unwrap();
    let (path, before) = (store.path().to_owned(), store.tasks().counts_by_kind().unwrap());
    drop(store);
    other
        .execute_batch(
            "DROP TRIGGER tasks_count_inserted; DROP TRIGGER tasks_count_updated; DROP TRIGGER tasks_count_deleted;
        DROP TABLE task_counts; DELETE FROM schema_migrations WHERE version = 1015",
        )
        .unwrap();
    let store = Store::options().clock(clock).open(path).unwrap();
    assert_eq!(store.tasks().counts_by_kind().unwrap(), before);
    assert_eq!(before.iter().map(|count| count.count).sum::<u64>(), 3);
    other.execute("DELETE FROM tasks", []).unwrap();
    assert_eq!(store.tasks().counts_by_kind().unwrap(), []);
}

#[test]
fn triggers_of_other_programs_run_for_every_write() {
    let fixture = Fixture::new();
    let enqueue = || assert!(fixture.store.tasks().enqueue(NewTask::new("a", "1")).unwrap().created);
    // Triggers are off after some writes.
    (0..20).for_each(|_| enqueue());
    fixture.sql(
        "CREATE TABLE seen (id INTEGER);
        CREATE TRIGGER see AFTER INSERT ON tasks BEGIN INSERT INTO seen VALUES (NEW.id); END",
    );
    (0..20).for_each(|_| enqueue());
    let seen: i64 = fixture.other.query_row("SELECT count(*) FROM seen", [], |row| row.get(0)).unwrap();
    assert_eq!(seen, 20);
    fixture.check((0, 0));
    fixture.sql("DROP TRIGGER see");
    (0..20).for_each(|_| enqueue());
    fixture.check((0, 0));
}
