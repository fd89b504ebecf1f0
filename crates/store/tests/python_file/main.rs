//! Files of the Python control plane, of every version and in unusual states: they are migrated, and the control plane
//! can still use them.

mod ddl;

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::catalog::{FolderRef, LinkKind, Listing, ListingStatus, Stat};
use gristmill_store::jobs::{JobFilter, JobKind, JobRow, JobStatus};
use gristmill_store::lease::{HeartbeatResult, Token};
use gristmill_store::scans::{ScanRequest, ScanScope};
use gristmill_store::thumbnails::{
    CAPACITY, MediaType, NewThumbnail, ThumbFormat, ThumbLimits, ThumbOutcome, ThumbStatus,
};
use gristmill_store::wal::{WalMode, WalRequest, WalRequestResult, WalStatus};
use gristmill_store::{Error, Store, UtcTime};
use rusqlite::Connection;
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(300);

struct ControlPlaneFile {
    path: PathBuf,
    _folder: TempDir,
}

impl ControlPlaneFile {
    /// Creates a file and applies `change` before it is opened.
    fn with(change: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dedupfs.sqlite3");
        let conn = ddl::create(&path);
        conn.pragma_update(None, "foreign_keys", false).unwrap();
        conn.execute_batch(change).unwrap();
        drop(conn);
        ControlPlaneFile { path, _folder: folder }
    }

    fn open(&self) -> Store {
        open(&self.path).unwrap()
    }

    fn connection(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    fn texts(&self, sql: &str) -> Vec<String> {
        texts(&self.connection(), sql)
    }
}

fn open(path: &Path) -> Result<Store, Error> {
    let clock = ManualClock::at(UtcTime::parse("2026-01-19 07:08:09.250000").unwrap().micros());
    Store::options().clock(clock).open(path)
}

fn texts(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get::<_, Option<String>>(0)).unwrap();
    rows.map(|text| text.unwrap().unwrap_or_else(|| "NULL".to_owned())).collect()
}

/// Returns an INSERT of a job with the columns that the control plane sets.
fn job(id: &str, kind: &str, status: &str, created: &str) -> String {
    format!(
        "INSERT INTO jobs (id, kind, status, dry_run, progress, processed_items, payload, created_at)
         VALUES ('{id:0>36}', '{kind}', '{status}', 1, 0.0, 0, '{{}}', '{created}');"
    )
}

fn get(store: &Store, id: &str) -> JobRow {
    store.jobs().get(&format!("{id:0>36}")).unwrap()
}

/// Runs every operation that inserts, and every transition of each table.
fn check_every_operation(store: &Store, file_id: i64) {
    let token = Token::named("w");
    let jobs = store.jobs();
    for kind in [JobKind::Scan, JobKind::Hash] {
        let id = jobs.create(kind, "{}", true).unwrap().id;
        assert_eq!(jobs.claim(&token, LEASE).unwrap().unwrap().id, id);
        assert_eq!(jobs.heartbeat(&id, &token, LEASE, 0.5, 1).unwrap(), HeartbeatResult::Kept);
        assert_eq!(jobs.finish(&id, &token, Ok(())).unwrap().status, JobStatus::Completed);
    }
    jobs.create(JobKind::Delete, "{}", true).unwrap();
    jobs.list(JobFilter::default(), None, 200).unwrap();

    let new_thumbnail = NewThumbnail {
        thumb_key: "new".to_owned(),
        file_id,
        group_key: Some("g".to_owned()),
        media_type: MediaType::Image,
        format: ThumbFormat::Webp,
        max_dimension: 256,
        version: 2,
        source_size_bytes: 1,
        source_mtime_ns: 2,
        output_relpath: "a/b/new.webp".to_owned(),
    };
    let id = store.thumbnails().request(new_thumbnail, CAPACITY).unwrap().id;
    assert_eq!(store.thumbnails().claim(&token, LEASE, ThumbLimits::default()).unwrap().unwrap().id, id);
    assert_eq!(store.thumbnails().heartbeat(id, &token, LEASE).unwrap(), HeartbeatResult::Kept);
    let ready = ThumbOutcome::Ready { width: 1, height: 1, bytes_size: 1 };
    assert_eq!(store.thumbnails().finish(id, &token, ready).unwrap().status, ThumbStatus::Ready);

    let cleanup = store.cleanups().schedule("g", store.now()).unwrap().id;
    assert_eq!(store.cleanups().claim(&token, LEASE).unwrap().unwrap().id, cleanup);
    assert_eq!(store.cleanups().remove_finished_thumbnails(cleanup, &token).unwrap(), ["a/b/new.webp"]);
    store.cleanups().finish(cleanup, &token, Ok(())).unwrap();

    let wal = WalRequest { mode: WalMode::Passive, requested_by: "api".into(), reason: None, min_interval: None };
    assert!(matches!(store.wal().enqueue(wal).unwrap(), WalRequestResult::Queued(_)));
    let claimed = store.wal().claim(&token, LEASE).unwrap().unwrap();
    assert_eq!(store.wal().run(&claimed, &token).unwrap().status, WalStatus::Completed);

    store.rate_limits().reserve("new", 10, 1).unwrap();
    assert_eq!(store.rate_limits().reserve("new", 10, 1).unwrap(), Duration::from_secs(10));
    store.tasks().enqueue(gristmill_store::tasks::NewTask::new("k", "{}")).unwrap();
    store.processed_ids().record("q", vec!["m".to_owned()]).unwrap();
    assert_eq!(store.processed_ids().contains("q", &["m".to_owned()], LEASE).unwrap(), [true]);
}

/// Asserts that the control plane's statements still work.
fn check_control_plane_statements(conn: &Connection) {
    conn.pragma_update(None, "foreign_keys", true).unwrap();
    for sql in ddl::CONTROL_PLANE_STATEMENTS {
        let mut statement = conn.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        let mut rows = statement.query([]).unwrap();
        while rows.next().unwrap_or_else(|error| panic!("{sql}: {error}")).is_some() {}
    }
}

fn insert_library_file(conn: &Connection) -> i64 {
    conn.execute_batch(
        "INSERT INTO library_roots (id, name, root_path) VALUES (90, 'l', '/libraries/l');
         INSERT INTO library_files (id, library_id, relative_path, size_bytes, mtime_ns, is_missing, needs_hash,
            hash_error_count) VALUES (900, 90, 'x.jpg', 1, 2, 0, 1, 0);",
    )
    .unwrap();
    900
}

/// Every variant of a file behaves like a new one afterwards.
#[test]
fn every_variant_of_a_control_plane_file_works_for_both_programs() {
    let mutex = "ix_jobs_single_active_scan_hash";
    let variants = [
        ("new", String::new()),
        (
            "an older mutex",
            format!(
                "DROP INDEX {mutex};
             CREATE UNIQUE INDEX {mutex} ON jobs (status) WHERE status = 'running' AND kind IN ('scan', 'hash');"
            ),
        ),
        ("no mutex", format!("DROP INDEX {mutex}")),
        (
            "before leases",
            format!(
                "DROP INDEX {mutex}; DROP INDEX ix_jobs_running_lease; ALTER TABLE jobs DROP COLUMN worker_id;
             ALTER TABLE jobs DROP COLUMN worker_heartbeat_at; ALTER TABLE jobs DROP COLUMN lease_expires_at;
             ALTER TABLE jobs DROP COLUMN error_code; DELETE FROM schema_migrations WHERE version > 4"
            ),
        ),
        (
            "before thumbnails",
            "DROP TABLE thumbnails; DROP TABLE thumbnail_cleanup_jobs; DROP TABLE io_rate_limits;
             DROP TABLE wal_maintenance_jobs; DELETE FROM schema_migrations WHERE version > 7"
                .to_owned(),
        ),
        (
            "before hash claims",
            "ALTER TABLE library_files DROP COLUMN hash_last_error;
             ALTER TABLE library_files DROP COLUMN hash_last_error_at;
             ALTER TABLE library_files DROP COLUMN hash_retry_after;
             ALTER TABLE library_files DROP COLUMN hash_claim_token;
             ALTER TABLE library_files DROP COLUMN hash_claimed_at;
             ALTER TABLE library_files DROP COLUMN hash_error_count;
             ALTER TABLE scan_sessions DROP COLUMN error_count;
             DELETE FROM schema_migrations WHERE version > 1"
                .to_owned(),
        ),
        (
            "an older wal table",
            "DROP INDEX ix_wal_jobs_status_execute;
             ALTER TABLE wal_maintenance_jobs DROP COLUMN requested_by;
             ALTER TABLE wal_maintenance_jobs DROP COLUMN reason;
             ALTER TABLE wal_maintenance_jobs DROP COLUMN retry_count;
             ALTER TABLE wal_maintenance_jobs DROP COLUMN retry_after;
             ALTER TABLE wal_maintenance_jobs DROP COLUMN checkpoint_busy;
             ALTER TABLE wal_maintenance_jobs DROP COLUMN started_at;
             DELETE FROM schema_migrations WHERE version = 12"
                .to_owned(),
        ),
        (
            "tables without their recorded migration",
            "DELETE FROM schema_migrations WHERE version IN (8, 10, 12)".to_owned(),
        ),
        ("no recorded migration", "DELETE FROM schema_migrations".to_owned()),
        ("no migration table", "DROP TABLE schema_migrations".to_owned()),
        ("no dedup index", "DROP INDEX ix_library_files_dedup_group".to_owned()),
    ];
    for (variant, change) in variants {
        println!("{variant}");
        let file = ControlPlaneFile::with(&change);
        let store = file.open();
        let conn = file.connection();
        check_every_operation(&store, insert_library_file(&conn));
        check_control_plane_statements(&conn);
        conn.execute_batch(&job("a", "scan", "pending", "2026-01-19 07:00:00")).unwrap();
        let second = conn.execute_batch(&job("b", "hash", "pending", "2026-01-19 07:00:00"));
        assert!(second.is_err(), "{variant}: two active jobs");
        // Rows of the control plane are read, too.
        let job = store.jobs().get("11111111-1111-4111-8111-111111111111").unwrap();
        assert_eq!(job.lease_expires_at, UtcTime::parse("2026-01-19 07:08:09.500000"));
        assert_eq!(store.thumbnails().get("py").unwrap().status, ThumbStatus::Pending);
        assert_eq!(store.cleanups().get("py").unwrap().execute_after.to_string(), "2026-01-19 07:08:09.123456");
        // Opening again changes nothing.
        let migrations = file.texts("SELECT version || name || applied_at FROM schema_migrations ORDER BY version");
        let schema = file.texts("SELECT sql FROM sqlite_schema ORDER BY name");
        store.close();
        drop(store);
        drop(file.open());
        let again = file.texts("SELECT version || name || applied_at FROM schema_migrations ORDER BY version");
        assert_eq!((again, file.texts("SELECT sql FROM sqlite_schema ORDER BY name")), (migrations, schema));
    }
}

#[test]
fn control_plane_statements_work_on_a_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    let store = open(&path).unwrap();
    let conn = Connection::open(&path).unwrap();
    check_every_operation(&store, insert_library_file(&conn));
    check_control_plane_statements(&conn);
    let versions = texts(&conn, "SELECT CAST(version AS TEXT) FROM schema_migrations ORDER BY version");
    assert_eq!(versions[..12], (1..=12).map(|version| version.to_string()).collect::<Vec<_>>());
    assert_eq!(versions[12], "1001");
}

/// The control plane's table has a unique index of all paths. A scan takes a row over that it finds there.
#[test]
fn row_that_another_program_moved_is_taken_over_by_a_scan() {
    let file = ControlPlaneFile::with("");
    let store = file.open();
    let root = store.roots().register(Path::new("/r")).unwrap().id;
    let stat =
        |inode| Stat { size: 5, mtime_ns: 1, ctime_ns: 1, inode, device: 1, links: LinkKind::Single, allocated: 4096 };
    let request = ScanRequest {
        root,
        scope: ScanScope::Root,
        holder: "test".into(),
        settings: "all".into(),
        restart: false,
        is_alive: |_| Some(true),
    };
    let scan = store.scans().begin(request).unwrap().id;
    let record = |path: &str, names: &[&str]| {
        let new_files = names.iter().enumerate().map(|(n, name)| (name.into(), stat(n as u64 + 1))).collect();
        let folder = FolderRef { root, id: None, path: path.into() };
        let listing = Listing { new_files, status: ListingStatus::Whole, ..Listing::new(scan, folder) };
        store.catalog().record(vec![listing]).unwrap();
    };
    record("", &["a"]);
    file.connection()
        .execute_batch("UPDATE library_files SET relative_path = 'f/b' WHERE relative_path = 'a'")
        .unwrap();
    let names: Vec<String> = ('a'..='z').map(String::from).collect();
    record("f", &names.iter().map(String::as_str).collect::<Vec<_>>());
    let rows =
        "SELECT relative_path || ' ' || (SELECT relative_path FROM folders WHERE id = folder_id) FROM library_files
        ORDER BY relative_path";
    assert_eq!(file.texts(rows), names.iter().map(|name| format!("f/{name} f")).collect::<Vec<_>>());
}

#[test]
fn upper_case_enum_values_become_lower_case() {
    let file = ControlPlaneFile::with(&format!(
        "{}{}{}
         INSERT INTO library_roots (id, name, root_path) VALUES (1, 'a', '/a');
         INSERT INTO scan_sessions (id, status, files_seen, directories_seen, bytes_seen, error_count)
         VALUES (1, 'SUCCEEDED', 0, 0, 0, 0);
         INSERT INTO library_files (id, library_id, relative_path, size_bytes, mtime_ns, is_missing, needs_hash,
            hash_error_count, hash_algorithm) VALUES (1, 1, 'X', 1, 2, 0, 1, 0, 'SHA256');
         INSERT INTO thumbnails (thumb_key, file_id, status, media_type, format, max_dimension, version,
            source_size_bytes, source_mtime_ns, error_count, group_key)
         VALUES ('T', 1, 'READY', 'VIDEO', 'WEBP', 256, 2, 1, 2, 0, 'G');
         INSERT INTO thumbnail_cleanup_jobs (group_key, status) VALUES ('G', 'PENDING');
         INSERT INTO wal_maintenance_jobs (requested_mode, status, retry_count) VALUES ('TRUNCATE', 'FAILED', 0);",
        job("1", "SCAN", "COMPLETED", "2026-01-19 07:00:00"),
        job("2", "DELETE", "Pending", "2026-01-19 07:00:00"),
        job("3", "HASH", "RUNNING", "2026-01-19 07:00:00"),
    ));
    let store = file.open();
    assert_eq!((get(&store, "1").kind, get(&store, "1").status), (JobKind::Scan, JobStatus::Completed));
    assert_eq!((get(&store, "2").kind, get(&store, "2").status), (JobKind::Delete, JobStatus::Pending));
    assert_eq!((get(&store, "3").kind, get(&store, "3").status), (JobKind::Hash, JobStatus::Running));
    let thumb = store.thumbnails().get("T").unwrap();
    assert_eq!(
        (thumb.status, thumb.media_type, thumb.format),
        (ThumbStatus::Ready, MediaType::Video, ThumbFormat::Webp)
    );
    assert_eq!(store.cleanups().get("G").unwrap().status.as_str(), "pending");
    let wal = store.wal().latest().unwrap().unwrap();
    assert_eq!((wal.requested_mode, wal.status), (WalMode::Truncate, WalStatus::Failed));
    assert_eq!(file.texts("SELECT status FROM scan_sessions"), ["succeeded"]);
    assert_eq!(file.texts("SELECT hash_algorithm FROM library_files"), ["sha256"]);
    // Other texts are unchanged.
    assert_eq!(file.texts("SELECT relative_path FROM library_files"), ["X"]);
}

/// Takes jobs as (id, kind, status, created), the one that stays active, and the error codes of the rest.
#[track_caller]
fn check_winner(jobs: &[(&str, &str, &str, &str)], extra: &str, winner: (&str, JobStatus), codes: &[(&str, &str)]) {
    let inserts: String = jobs.iter().map(|(id, kind, status, created)| job(id, kind, status, created)).collect();
    let file = ControlPlaneFile::with(&format!("DROP INDEX ix_jobs_single_active_scan_hash; {inserts} {extra}"));
    let store = file.open();
    assert_eq!(get(&store, winner.0).status, winner.1);
    for (id, code) in codes {
        let row = get(&store, id);
        assert_eq!((row.status, row.error_code.as_deref()), (JobStatus::Retryable, Some(*code)), "{id}");
        assert!(row.finished_at.is_some() && row.error_message.is_some(), "{id}");
        assert_eq!((row.worker_id, row.worker_heartbeat_at, row.lease_expires_at), (None, None, None), "{id}");
    }
    assert_eq!(codes.len() + 1, jobs.len(), "a case has the code of every other job");
    let unique = file.connection().execute_batch(&job("f", "hash", "pending", "2026-01-19 07:00:00"));
    assert!(unique.is_err(), "the unique index refuses a second active job");
}

const MUTEX: &str = "MIGRATION_MUTEX_RECOVERY";
const ACTIVE: &str = "MIGRATION_ACTIVE_RECOVERY";

#[test]
fn oldest_running_job_stays_active() {
    check_winner(
        &[
            ("1", "scan", "pending", "2026-01-19 06:00:00"),
            ("2", "hash", "running", "2026-01-19 07:00:01"),
            ("3", "SCAN", "RUNNING", "2026-01-19 07:00:00.999999"),
            ("4", "hash", "Pending", "2026-01-19 06:30:00"),
        ],
        "UPDATE jobs SET worker_id = 'w', lease_expires_at = '2020-01-01 00:00:00', error_code = 'OLD'
         WHERE lower(status) = 'running'",
        ("3", JobStatus::Running),
        &[("1", ACTIVE), ("2", MUTEX), ("4", ACTIVE)],
    );
}

#[test]
fn job_with_the_smaller_id_stays_active_at_equal_times() {
    check_winner(
        &[
            ("2", "scan", "running", "2026-01-19 07:00:00"),
            ("1", "scan", "running", "2026-01-19 07:00:00.000000"),
            ("3", "scan", "running", "2026-01-19 07:00:00+00:00"),
        ],
        "",
        ("1", JobStatus::Running),
        &[("2", MUTEX), ("3", MUTEX)],
    );
}

#[test]
fn oldest_pending_job_stays_active_when_none_runs() {
    check_winner(
        &[
            ("1", "scan", "pending", "2026-01-19 07:00:01"),
            ("2", "hash", "pending", "2026-01-19 07:00:00"),
            ("3", "hash", "pending", "2026-01-19 07:00:02"),
        ],
        "UPDATE jobs SET error_code = 'KEPT', error_message = 'kept' WHERE id LIKE '%3';
         UPDATE jobs SET error_code = '  ', error_message = ' ' WHERE id LIKE '%1'",
        ("2", JobStatus::Pending),
        &[("1", ACTIVE), ("3", "KEPT")],
    );
}

#[test]
fn older_unique_index_does_not_stop_the_migration() {
    // Two running jobs in upper case did not violate the old index; in lower case they do.
    check_winner(
        &[("1", "SCAN", "RUNNING", "2026-01-19 07:00:01"), ("2", "SCAN", "RUNNING", "2026-01-19 07:00:00")],
        "CREATE UNIQUE INDEX ix_jobs_single_active_scan_hash ON jobs (status)
            WHERE status = 'running' AND kind IN ('scan', 'hash')",
        ("2", JobStatus::Running),
        &[("1", MUTEX)],
    );
}

#[test]
fn other_kinds_and_finished_jobs_are_unchanged() {
    let jobs = [
        job("1", "delete", "running", "2026-01-19 07:00:00"),
        job("2", "delete", "running", "2026-01-19 07:00:00"),
        job("3", "scan", "failed", "2026-01-19 07:00:00"),
        job("4", "scan", "retryable", "2026-01-19 07:00:00"),
    ];
    let file = ControlPlaneFile::with(&jobs.concat());
    let before = file.texts("SELECT id || status || updated_at || coalesce(error_code, '') FROM jobs ORDER BY id");
    let _store = file.open();
    let after = file.texts("SELECT id || status || updated_at || coalesce(error_code, '') FROM jobs ORDER BY id");
    assert_eq!(before, after);
}

#[test]
fn lease_times_of_the_control_plane_are_read() {
    let file = ControlPlaneFile::with(&format!(
        "{} UPDATE jobs SET worker_id = 'py', lease_expires_at = '2026-01-19 07:08:09.300000+00:00'",
        job("1", "scan", "running", "2026-01-19 07:00:00")
    ));
    let store = file.open();
    assert_eq!(store.jobs().recover().unwrap(), 0);
    file.connection().execute_batch("UPDATE jobs SET lease_expires_at = '2026-01-19 07:08:09+00:00'").unwrap();
    assert_eq!(store.jobs().recover().unwrap(), 1);
    assert_eq!(get(&store, "1").error_code.as_deref(), Some("LEASE_EXPIRED"));
}

/// Returns the bytes of a closed file, which has no WAL.
fn bytes(path: &Path) -> Vec<u8> {
    let conn = Connection::open(path).unwrap();
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(conn);
    std::fs::read(path).unwrap()
}

#[test]
fn control_plane_file_with_an_unknown_migration_is_refused_and_unchanged() {
    for version in [13, 1000, 1100, 2000] {
        let file = ControlPlaneFile::with(&format!(
            "INSERT INTO schema_migrations (version, name) VALUES ({version}, 'unknown');"
        ));
        let before = bytes(&file.path);
        match open(&file.path) {
            Err(Error::Newer { version: found, .. }) => assert_eq!(found, version),
            other => panic!("{version}: {other:?}"),
        }
        assert!(bytes(&file.path) == before, "{version}: the file changed");
        let counts = ["folders", "tasks"]
            .map(|table| file.texts(&format!("SELECT name FROM sqlite_schema WHERE name = '{table}'")).len());
        assert_eq!(counts, [0, 0]);
    }
}

#[test]
fn new_file_with_an_unknown_migration_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    drop(open(&path).unwrap());
    let conn = Connection::open(&path).unwrap();
    let newest: i64 = conn.query_row("SELECT max(version) FROM schema_migrations", [], |row| row.get(0)).unwrap();
    conn.execute("INSERT INTO schema_migrations (version, name) VALUES (?1, 'unknown')", [newest + 1]).unwrap();
    drop(conn);
    let before = bytes(&path);
    assert!(matches!(open(&path), Err(Error::Newer { version, .. }) if version == newest + 1));
    assert!(bytes(&path) == before);
}

#[test]
fn interrupted_migration_is_resumed() {
    // Tables of later migrations may exist without their version.
    for dropped in [
        "",
        "DROP TABLE task_checkpoints;",
        "DROP TABLE dead_letter_queue; DROP TABLE task_checkpoints; DROP TABLE tasks;",
        "DROP TABLE seen_messages;",
    ] {
        let file = ControlPlaneFile::with("");
        drop(file.open());
        let change = format!("{dropped} DELETE FROM schema_migrations WHERE version > 1001");
        file.connection().execute_batch(&change).unwrap();
        let store = file.open();
        check_every_operation(&store, insert_library_file(&file.connection()));
        let sql = "SELECT name FROM schema_migrations WHERE version = 1002";
        assert_eq!(file.texts(sql), ["tasks"], "{dropped}");
    }
}

#[test]
fn failed_first_migration_is_rolled_back_and_retried() {
    // A trigger makes the migration fail near its end, after tables were created and rows changed.
    let file = ControlPlaneFile::with(&format!(
        "{} CREATE TRIGGER stop BEFORE INSERT ON schema_migrations WHEN new.version = 1001
            BEGIN SELECT raise(ABORT, 'stopped'); END;",
        job("1", "SCAN", "COMPLETED", "2026-01-19 07:00:00")
    ));
    let before = bytes(&file.path);
    assert!(open(&file.path).is_err());
    assert!(bytes(&file.path) == before, "a failed migration changed the file");
    file.connection().execute_batch("DROP TRIGGER stop").unwrap();
    let store = file.open();
    assert_eq!(get(&store, "1").status, JobStatus::Completed);
    check_every_operation(&store, insert_library_file(&file.connection()));
}

#[test]
fn concurrent_opens_migrate_once() {
    for by_control_plane in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.db");
        if by_control_plane {
            drop(ddl::create(&path));
        }
        let start = Barrier::new(8);
        let stores: Vec<Store> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        open(&path).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let conn = Connection::open(&path).unwrap();
        let count: i64 = conn
            .query_row("SELECT count(*) FROM schema_migrations WHERE version = 1001", [], |row| row.get(0))
            .unwrap();
        assert_eq!(count, 1);
        let id = stores[0].jobs().create(JobKind::Scan, "{}", true).unwrap().id;
        assert!(stores.iter().all(|store| store.jobs().get(&id).is_ok()));
    }
}
