//! Checkups and copies, on files with all that can be wrong with them.

use std::path::Path;
use std::time::Duration;

use gristmill_store::backup::ExistingFile;
use gristmill_store::doctor::{Checkup, Severity};
use gristmill_store::lease::WorkerId;
use gristmill_store::tasks::{ClaimRequest, NewTask, TaskStatus};
use gristmill_store::{Error, Store, StoreOptions, UtcTime, WallClock};

const LEASE: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(86_400);

fn at(seconds: i64) -> UtcTime {
    UtcTime::from_micros(1_800_000_000_000_000 + seconds * 1_000_000)
}

struct Patient {
    folder: tempfile::TempDir,
    clock: WallClock,
}

impl Patient {
    fn new() -> Self {
        let patient = Patient { folder: tempfile::tempdir().unwrap(), clock: WallClock::manual(at(0)) };
        drop(patient.open());
        patient
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

    /// As another program would, past every rule.
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

    /// The one finding there is.
    #[track_caller]
    fn finds(&self, severity: Severity, what: &str) {
        let findings = self.examine().findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].severity, severity, "{findings:?}");
        assert!(findings[0].what.contains(what), "{findings:?}");
    }
}

fn claim(store: &Store) {
    let token = WorkerId::new("test").token();
    let (queue, kind) = ("default".into(), "k".into());
    let wanted = ClaimRequest {
        queue,
        kind,
        limit: 1,
        max_running: None,
        max_crashed_once: usize::MAX,
        max_crashed_often: usize::MAX,
        lease: LEASE,
        token,
    };
    let claimed = store.tasks().settle_and_claim(vec![], vec![wanted]).unwrap().claimed;
    assert!(store.tasks().start(claimed[0].id, &claimed[0].token).unwrap());
}

#[test]
fn a_new_file_is_healthy_and_looking_changes_nothing() {
    let patient = Patient::new();
    let before = std::fs::read(patient.path("x.db")).unwrap();
    let checkup = patient.examine();
    assert_eq!(checkup.findings, []);
    assert_eq!(checkup.leases.len(), 5, "every table with leases");
    assert_eq!(checkup.worst(), None);
    assert_eq!(std::fs::read(patient.path("x.db")).unwrap(), before);
}

#[test]
fn stale_leases_are_freed_and_their_crashes_counted() {
    let patient = Patient::new();
    let store = patient.open();
    store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    claim(&store);
    drop(store);
    assert_eq!(patient.examine().findings, []);
    patient.clock.set(at(301));
    patient.finds(Severity::Warning, "1 row of tasks is held by a worker that is gone");
    assert_eq!(patient.repair(), ["freed 1 stale lease of tasks"]);
    assert_eq!(patient.examine().findings, []);
    assert_eq!(patient.open().tasks().get(1).unwrap().crashes, 1);
}

#[test]
fn a_clock_that_went_back_is_noticed() {
    let patient = Patient::new();
    let store = patient.open();
    store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    claim(&store);
    drop(store);
    patient.clock.set(at(-3_600));
    let told: Vec<String> = patient.examine().findings.into_iter().map(|finding| finding.what).collect();
    assert_eq!(
        told,
        [
            "1 row of tasks is made in the future",
            "1 row of tasks is leased for much longer than workers here do"
        ]
    );
}

#[test]
fn orphaned_checkpoints_are_forgotten_after_a_day() {
    let patient = Patient::new();
    let store = patient.open();
    store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    drop(store);
    let now = at(0);
    patient.sql(&format!(
        "INSERT INTO task_checkpoints VALUES (1, 's', '1', '{now}', '{now}');
         UPDATE tasks SET status = 'completed', finished_at = '{now}'"
    ));
    patient.finds(Severity::Warning, "1 checkpoint is left behind");
    assert_eq!(patient.repair(), Vec::<String>::new());
    patient.clock.set(at(0).plus(DAY));
    assert_eq!(patient.repair(), ["forgot 1 orphaned checkpoint"]);
    assert_eq!(patient.examine().findings, []);
    assert_eq!(patient.examine().counts["tasks"]["completed"], 1);
}

#[test]
fn references_to_nothing_are_told_and_left() {
    let patient = Patient::new();
    patient.sql("INSERT INTO job_locks VALUES ('k', 'gone', 'x', 'x', 'x')");
    patient.finds(Severity::Warning, "1 rows of job_locks refer to rows of jobs that are not there");
    assert_eq!(patient.repair(), Vec::<String>::new());
    patient.finds(Severity::Warning, "job_locks");
}

#[test]
fn a_wrong_index_is_made_anew() {
    let patient = Patient::new();
    let store = patient.open();
    store.tasks().enqueue_many((0..20).map(|n| NewTask::new("k", n.to_string())).collect()).unwrap();
    drop(store);
    // An index that forgets rows: its condition is changed behind its back, rows come, and it is changed back.
    let conn = rusqlite::Connection::open(patient.path("x.db")).unwrap();
    let (name, sql): (String, String) = conn
        .query_row(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'jobs' AND name = 'ix_jobs_kind_status'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    let rewrite = |sql: &str| {
        let conn = rusqlite::Connection::open(patient.path("x.db")).unwrap();
        conn.execute_batch("PRAGMA writable_schema = ON").unwrap();
        conn.execute("UPDATE sqlite_schema SET sql = ?2 WHERE name = ?1", (&name, sql)).unwrap();
        conn.execute_batch("PRAGMA writable_schema = RESET").unwrap();
    };
    drop(conn);
    rewrite(&format!("{sql} WHERE kind = 'never'"));
    let now = at(0);
    patient.sql(&format!(
        "INSERT INTO jobs (id, kind, created_at, updated_at)
         VALUES ('0b7a3c52-52fb-4a55-9d5e-6d6f0a3f5c11', 'delete', '{now}', '{now}')"
    ));
    rewrite(&sql);
    patient.finds(Severity::Damage, &name);
    assert_eq!(patient.examine().broken_indexes, std::slice::from_ref(&name));
    assert_eq!(patient.repair(), [format!("made the index {name} anew")]);
    assert_eq!(patient.examine().findings, []);
    assert_eq!(patient.examine().counts["jobs"]["pending"], 1);
}

#[test]
fn a_long_log_is_cut_back() {
    let patient = Patient::new();
    let holder = rusqlite::Connection::open(patient.path("x.db")).unwrap();
    holder.execute_batch("PRAGMA wal_autocheckpoint = 0; CREATE TABLE big (b)").unwrap();
    holder.execute("INSERT INTO big SELECT zeroblob(70 << 20)", []).unwrap();
    patient.finds(Severity::Warning, "the log has grown to");
    let done = patient.repair();
    assert!(done.iter().any(|done| done.starts_with("cut the log back from")), "{done:?}");
    assert_eq!(patient.examine().findings, []);
}

#[test]
fn a_missing_file_is_not_made() {
    let patient = Patient::new();
    let missing = patient.path("none.db");
    assert!(matches!(patient.options().examine(&missing, LEASE), Err(Error::CannotOpen(..))));
    assert!(!missing.exists());
}

/// What lies in a folder besides the database itself.
fn others(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with("x.db"));
    names.sort();
    names
}

#[test]
fn a_copy_is_of_one_moment_while_others_write() {
    let patient = Patient::new();
    let store = patient.open();
    let task = |n: usize| NewTask::new("k", format!("\"{n:0>2000}\""));
    store.tasks().enqueue_many((0..4_000).map(task).collect()).unwrap();
    let mut last = 0;
    let report = store.backup(&patient.path("copy.db"), ExistingFile::Keep, |done, total| {
        assert!(done > last && done <= total, "it began anew: {done} of {total} after {last}");
        last = done;
        store.tasks().enqueue(task(1)).unwrap();
    });
    let report = report.unwrap();
    assert_eq!(report.pages, last);
    assert_eq!(report.bytes, std::fs::metadata(patient.path("copy.db")).unwrap().len());
    assert_eq!(others(patient.folder.path()), ["copy.db"]);
    let copy = Store::open(patient.path("copy.db")).unwrap();
    assert_eq!(copy.tasks().counts().unwrap(), [(TaskStatus::Pending, 4_000)]);
    assert!(store.tasks().counts().unwrap()[0].1 > 4_001, "others wrote between two strides");
}

#[test]
fn what_is_there_stays_until_a_copy_is_complete() {
    let patient = Patient::new();
    let store = patient.open();
    let target = patient.path("copy.db");
    std::fs::write(&target, "mine").unwrap();
    let refused = store.backup(&target, ExistingFile::Keep, |_, _| {});
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");

    // Somebody interrupts it in the middle.
    let interrupted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.backup(&target, ExistingFile::Replace, |_, _| {
            assert_eq!(std::fs::read(&target).unwrap(), b"mine");
            std::panic::resume_unwind(Box::new("enough"));
        })
    }));
    assert!(interrupted.is_err());
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    assert_eq!(others(patient.folder.path()), ["copy.db"]);

    store.backup(&target, ExistingFile::Replace, |_, _| {}).unwrap();
    assert_eq!(others(patient.folder.path()), ["copy.db"]);
    Store::open(&target).unwrap();
}

#[test]
fn a_name_that_appears_meanwhile_is_not_taken_away() {
    let patient = Patient::new();
    let target = patient.path("copy.db");
    let refused = patient.open().backup(&target, ExistingFile::Keep, |_, _| {
        std::fs::write(&target, "mine").unwrap();
    });
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    assert_eq!(others(patient.folder.path()), ["copy.db"]);
}

#[test]
fn a_log_beside_the_target_is_not_played_into_the_copy() {
    let patient = Patient::new();
    let target = patient.path("copy.db");
    let held = Store::open(&target).unwrap();
    held.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    let refused = patient.open().backup(&target, ExistingFile::Replace, |_, _| {});
    assert!(matches!(&refused, Err(Error::Conflict(text)) if text.contains("copy.db-wal")), "{refused:?}");
}
