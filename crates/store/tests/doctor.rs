//! Examining, repairing and copying files with every kind of problem.

use std::path::Path;
use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::backup::ExistingFile;
use gristmill_store::doctor::{Checkup, Severity};
use gristmill_store::lease::WorkerId;
use gristmill_store::tasks::{ClaimRequest, NewTask, TaskStatus};
use gristmill_store::{Error, Store, StoreOptions, UtcTime};

const LEASE: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(86_400);

fn at(seconds: i64) -> UtcTime {
    UtcTime::from_micros(1_800_000_000_000_000 + seconds * 1_000_000)
}

struct Fixture {
    folder: tempfile::TempDir,
    clock: ManualClock,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Fixture { folder: tempfile::tempdir().unwrap(), clock: ManualClock::at(at(0).micros()) };
        drop(fixture.open());
        fixture
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self) -> StoreOptions {
        Store::options().clock(self.clock.clone())
    }

    fn open(&self) -> Store {
        self.options().open(self.path("x.db")).unwrap()
    }

    /// Runs SQL as another program would, without foreign keys.
    fn sql(&self, sql: &str) {
        let conn = rusqlite::Connection::open(self.path("x.db")).unwrap();
        conn.execute_batch(&format!("PRAGMA foreign_keys = OFF; {sql}")).unwrap();
    }

    fn examine(&self) -> Checkup {
        self.options().examine(&self.path("x.db"), LEASE).unwrap()
    }

    fn repair(&self) -> Vec<String> {
        self.options().repair(&self.path("x.db"), &self.examine(), 3).unwrap()
    }

    /// Asserts that there is one finding.
    #[track_caller]
    fn assert_finding(&self, severity: Severity, what: &str) {
        let findings = self.examine().findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].severity, severity, "{findings:?}");
        assert!(findings[0].what.contains(what), "{findings:?}");
    }
}

fn claim(store: &Store) {
    let token = WorkerId::new("test").token();
    let (queue, kind) = ("default".into(), "k".into());
    let request = ClaimRequest {
        queue,
        kind,
        limit: 1,
        max_running: None,
        max_crashed_once: usize::MAX,
        max_crashed_often: usize::MAX,
        lease: LEASE,
        token,
    };
    let claimed = store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed;
    assert!(store.tasks().start(claimed[0].id, &claimed[0].token).unwrap());
}

#[test]
fn new_file_has_no_findings_and_is_unchanged() {
    let fixture = Fixture::new();
    let before = std::fs::read(fixture.path("x.db")).unwrap();
    let checkup = fixture.examine();
    assert_eq!(checkup.findings, []);
    assert_eq!(checkup.leases.len(), 5, "every table with leases");
    assert_eq!(checkup.worst(), None);
    assert_eq!(std::fs::read(fixture.path("x.db")).unwrap(), before);
}

#[test]
fn repair_frees_stale_leases_and_counts_crashes() {
    let fixture = Fixture::new();
    let store = fixture.open();
    store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    claim(&store);
    drop(store);
    assert_eq!(fixture.examine().findings, []);
    fixture.clock.set_unix_micros(at(301).micros());
    fixture.assert_finding(
        Severity::Warning,
        "1 row of tasks is held by a worker that has exited or stopped renewing its lease",
    );
    assert_eq!(fixture.repair(), ["freed 1 stale lease of tasks"]);
    assert_eq!(fixture.examine().findings, []);
    assert_eq!(fixture.open().tasks().get(1).unwrap().crashes, 1);
}

#[test]
fn clock_set_back_is_reported() {
    let fixture = Fixture::new();
    let store = fixture.open();
    store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    claim(&store);
    drop(store);
    fixture.clock.set_unix_micros(at(-3_600).micros());
    let findings: Vec<String> = fixture.examine().findings.into_iter().map(|finding| finding.what).collect();
    assert_eq!(
        findings,
        [
            "1 row of tasks is created in the future",
            "1 row of tasks is leased for much longer than the configured lease"
        ]
    );
}

#[test]
fn repair_deletes_orphaned_checkpoints_after_a_day() {
    let fixture = Fixture::new();
    let store = fixture.open();
    store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    drop(store);
    let now = at(0);
    fixture.sql(&format!(
        "INSERT INTO task_checkpoints VALUES (1, 's', '1', '{now}', '{now}');
         UPDATE tasks SET status = 'completed', finished_at = '{now}'"
    ));
    fixture.assert_finding(Severity::Warning, "1 checkpoint is left by finished tasks");
    assert_eq!(fixture.repair(), Vec::<String>::new());
    fixture.clock.set_unix_micros(at(0).plus(DAY).micros());
    assert_eq!(fixture.repair(), ["deleted 1 orphaned checkpoint"]);
    assert_eq!(fixture.examine().findings, []);
    assert_eq!(fixture.examine().counts["tasks"]["completed"], 1);
}

#[test]
fn broken_foreign_keys_are_reported_and_not_repaired() {
    let fixture = Fixture::new();
    fixture.sql("INSERT INTO job_locks VALUES ('k', 'gone', 'x', 'x', 'x')");
    fixture.assert_finding(Severity::Warning, "1 rows of job_locks refer to missing rows of jobs");
    assert_eq!(fixture.repair(), Vec::<String>::new());
    fixture.assert_finding(Severity::Warning, "job_locks");
}

#[test]
fn repair_rebuilds_a_wrong_index() {
    let fixture = Fixture::new();
    let store = fixture.open();
    store.tasks().enqueue_many((0..20).map(|n| NewTask::new("k", n.to_string())).collect()).unwrap();
    drop(store);
    // Makes an index that lacks rows: its condition is changed in the schema, rows are inserted, and it is changed
    // back.
    let conn = rusqlite::Connection::open(fixture.path("x.db")).unwrap();
    let (name, sql): (String, String) = conn
        .query_row(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'jobs' AND name = 'ix_jobs_kind_status'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    let rewrite = |sql: &str| {
        let conn = rusqlite::Connection::open(fixture.path("x.db")).unwrap();
        conn.execute_batch("PRAGMA writable_schema = ON").unwrap();
        conn.execute("UPDATE sqlite_schema SET sql = ?2 WHERE name = ?1", (&name, sql)).unwrap();
        conn.execute_batch("PRAGMA writable_schema = RESET").unwrap();
    };
    drop(conn);
    rewrite(&format!("{sql} WHERE kind = 'never'"));
    let now = at(0);
    fixture.sql(&format!(
        "INSERT INTO jobs (id, kind, created_at, updated_at)
         VALUES ('0b7a3c52-52fb-4a55-9d5e-6d6f0a3f5c11', 'delete', '{now}', '{now}')"
    ));
    rewrite(&sql);
    fixture.assert_finding(Severity::Damage, &name);
    assert_eq!(fixture.examine().broken_indexes, std::slice::from_ref(&name));
    assert_eq!(fixture.repair(), [format!("rebuilt the index {name}")]);
    assert_eq!(fixture.examine().findings, []);
    assert_eq!(fixture.examine().counts["jobs"]["pending"], 1);
}

#[test]
fn repair_truncates_a_long_wal() {
    let fixture = Fixture::new();
    let holder = rusqlite::Connection::open(fixture.path("x.db")).unwrap();
    holder.execute_batch("PRAGMA wal_autocheckpoint = 0; CREATE TABLE big (b)").unwrap();
    holder.execute("INSERT INTO big SELECT zeroblob(70 << 20)", []).unwrap();
    fixture.assert_finding(Severity::Warning, "the WAL has grown to");
    let done = fixture.repair();
    assert!(done.iter().any(|done| done.starts_with("truncated the WAL from")), "{done:?}");
    assert_eq!(fixture.examine().findings, []);
}

#[test]
fn examine_does_not_create_a_missing_file() {
    let fixture = Fixture::new();
    let missing = fixture.path("none.db");
    assert!(matches!(fixture.options().examine(&missing, LEASE), Err(Error::CannotOpen(..))));
    assert!(!missing.exists());
}

/// Returns the files of a folder except the database.
fn other_files(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with("x.db"));
    names.sort();
    names
}

#[test]
fn backup_is_a_snapshot_while_others_write() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let task = |n: usize| NewTask::new("k", format!("\"{n:0>2000}\""));
    store.tasks().enqueue_many((0..4_000).map(task).collect()).unwrap();
    let mut last = 0;
    let report = store.backup(&fixture.path("copy.db"), ExistingFile::Keep, |done, total| {
        assert!(done > last && done <= total, "it restarted: {done} of {total} after {last}");
        last = done;
        store.tasks().enqueue(task(1)).unwrap();
    });
    let report = report.unwrap();
    assert_eq!(report.pages, last);
    assert_eq!(report.bytes, std::fs::metadata(fixture.path("copy.db")).unwrap().len());
    assert_eq!(other_files(fixture.folder.path()), ["copy.db"]);
    let copy = Store::open(fixture.path("copy.db")).unwrap();
    assert_eq!(copy.tasks().counts().unwrap(), [(TaskStatus::Pending, 4_000)]);
    assert!(store.tasks().counts().unwrap()[0].1 > 4_001, "others wrote between two steps");
}

#[test]
fn existing_target_stays_until_the_backup_is_complete() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let target = fixture.path("copy.db");
    std::fs::write(&target, "mine").unwrap();
    let refused = store.backup(&target, ExistingFile::Keep, |_, _| {});
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");

    // The copy is interrupted by a panic.
    let interrupted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.backup(&target, ExistingFile::Replace, |_, _| {
            assert_eq!(std::fs::read(&target).unwrap(), b"mine");
            std::panic::resume_unwind(Box::new("enough"));
        })
    }));
    assert!(interrupted.is_err());
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    assert_eq!(other_files(fixture.folder.path()), ["copy.db"]);

    store.backup(&target, ExistingFile::Replace, |_, _| {}).unwrap();
    assert_eq!(other_files(fixture.folder.path()), ["copy.db"]);
    Store::open(&target).unwrap();
}

#[test]
fn backup_does_not_replace_a_target_created_meanwhile() {
    let fixture = Fixture::new();
    let target = fixture.path("copy.db");
    let refused = fixture.open().backup(&target, ExistingFile::Keep, |_, _| {
        std::fs::write(&target, "mine").unwrap();
    });
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    assert_eq!(other_files(fixture.folder.path()), ["copy.db"]);
}

#[test]
fn backup_is_refused_when_the_target_has_a_wal() {
    let fixture = Fixture::new();
    let target = fixture.path("copy.db");
    let held = Store::open(&target).unwrap();
    held.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    let refused = fixture.open().backup(&target, ExistingFile::Replace, |_, _| {});
    assert!(matches!(&refused, Err(Error::Conflict(text)) if text.contains("copy.db-wal")), "{refused:?}");
}
