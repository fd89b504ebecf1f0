//! Damaged, foreign, read-only and full files and disks: the kind of error, that its text names the file and the next
//! step, and that nothing is lost or changed.
//!
//! Small and read-only disks are mounted in a private mount namespace, which any user may create: the test starts
//! itself again in one.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use gristmill_store::dead_letters::DeadLetterFilter;
use gristmill_store::tasks::{NewTask, TaskFilter};
use gristmill_store::{Error, Store};
use rusqlite::Connection;
use tempfile::TempDir;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    (folder, path)
}

/// Asserts that opening fails with `expected` for the path, and that the text contains the path and `parts`.
#[track_caller]
fn assert_open_refused(path: &Path, expected: fn(PathBuf) -> Error, parts: &[&str]) {
    check(&Store::open(path).expect_err("should be refused"), &expected(path.to_path_buf()), path, parts);
}

/// Asserts the kind of error and its file; the text names the file and the next step.
#[track_caller]
fn check(error: &Error, expected: &Error, path: &Path, parts: &[&str]) {
    match (error, expected) {
        // SQLite's own detail is not compared.
        (Error::Corrupt(a, _), Error::Corrupt(b, _)) | (Error::CannotOpen(a, _), Error::CannotOpen(b, _)) => {
            assert_eq!(a, b);
        }
        _ => assert_eq!(error, expected),
    }
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()), "the file is not in: {text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Returns every file of a folder with its bytes. Ignores the empty WAL and the WAL index that opening may leave.
fn bytes(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_relevant = |(path, bytes): &(PathBuf, Vec<u8>)| {
        let name = path.to_string_lossy();
        let is_index = name.ends_with("-shm");
        let is_empty_wal = name.ends_with("-wal") && bytes.is_empty();
        !is_index && !is_empty_wal
    };
    files.map(|path| (path.clone(), fs::read(path).unwrap())).filter(is_relevant).collect()
}

fn corrupt(path: PathBuf) -> Error {
    Error::Corrupt(path, String::new())
}

fn cannot_open(path: PathBuf) -> Error {
    Error::CannotOpen(path, String::new())
}

/// Creates a database with some tasks, and closes it.
fn filled(path: &Path, tasks: usize) {
    let store = Store::open(path).unwrap();
    let payload = format!("\"{}\"", "x".repeat(2_000));
    store.tasks().enqueue_many(vec![NewTask::new("convert", payload); tasks]).unwrap();
}

#[test]
fn text_file_is_refused_and_unchanged() {
    let long = "all work and no play\n".repeat(10_000);
    for text in ["x", "no", "hello, world\n", "SQLite format 2\0 and so on", &long] {
        let (folder, path) = folder();
        fs::write(&path, text).unwrap();
        assert_open_refused(
            &path,
            Error::NotADatabase,
            &["not a database", "a SQLite file that Gristmill created, or no file"],
        );
        assert!(bytes(folder.path()) == BTreeMap::from([(path, text.as_bytes().to_vec())]));
    }
}

#[test]
fn empty_file_is_opened_as_a_new_database() {
    let (_folder, path) = folder();
    fs::write(&path, "").unwrap();
    let store = Store::open(&path).unwrap();
    store.tasks().enqueue(NewTask::new("convert", "{}")).unwrap();
    assert!(fs::read(&path).unwrap().starts_with(b"SQLite format 3\0"));
}

#[test]
fn foreign_database_is_refused_and_unchanged() {
    for schema in [
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, text); INSERT INTO notes VALUES (1, 'mine')",
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY)",
        "CREATE TABLE tasks (id INTEGER PRIMARY KEY, queue, kind, status, payload)",
        // Table of Rails.
        "CREATE TABLE schema_migrations (version VARCHAR NOT NULL PRIMARY KEY);
         CREATE TABLE ar_internal_metadata (key VARCHAR PRIMARY KEY, value VARCHAR);
         CREATE TABLE jobs (id INTEGER PRIMARY KEY);
         CREATE TABLE library_roots (id INTEGER PRIMARY KEY);
         INSERT INTO schema_migrations VALUES ('20260119120000')",
        "CREATE TABLE schema_migrations (version VARCHAR NOT NULL PRIMARY KEY)",
        // Table of golang-migrate.
        "CREATE TABLE schema_migrations (version BIGINT NOT NULL PRIMARY KEY, dirty BOOLEAN NOT NULL);
         CREATE TABLE users (id INTEGER PRIMARY KEY); INSERT INTO schema_migrations VALUES (3, 0)",
    ] {
        for journal in ["delete", "wal"] {
            let (folder, path) = folder();
            let conn = Connection::open(&path).unwrap();
            conn.pragma_update(None, "journal_mode", journal).unwrap();
            conn.execute_batch(schema).unwrap();
            drop(conn);
            let before = bytes(folder.path());
            assert_open_refused(&path, Error::Foreign, &["another program", "it was not changed", "Choose a file"]);
            assert!(bytes(folder.path()) == before, "{schema}");
        }
    }
}

/// The migration table of another program has the same columns, with text versions.
#[test]
fn migration_table_with_text_versions_is_refused_as_foreign() {
    let (folder, path) = folder();
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch(
        "CREATE TABLE schema_migrations (version TEXT PRIMARY KEY, name TEXT, applied_at TEXT);
         CREATE TABLE users (id INTEGER PRIMARY KEY);
         INSERT INTO schema_migrations VALUES ('2026_01_19_users', 'users', '2026-01-19')",
    )
    .unwrap();
    drop(conn);
    let before = bytes(folder.path());
    assert_open_refused(&path, Error::Foreign, &["another program"]);
    assert!(bytes(folder.path()) == before);
}

/// A crashed program left its commits in its WAL and must find them there.
#[test]
fn wal_of_a_foreign_database_is_not_applied() {
    let (folder, path) = folder();
    let original = folder.path().join("original.db");
    let conn = Connection::open(&original).unwrap();
    conn.pragma_update(None, "journal_mode", "wal").unwrap();
    conn.execute_batch("CREATE TABLE notes (id INTEGER PRIMARY KEY, text); INSERT INTO notes VALUES (1, 'mine')")
        .unwrap();
    // Copies the files while they are in use.
    let wal = folder.path().join("work.db-wal");
    fs::copy(&original, &path).unwrap();
    fs::copy(folder.path().join("original.db-wal"), &wal).unwrap();
    drop(conn);
    let before = (fs::read(&path).unwrap(), fs::read(&wal).unwrap());
    assert_open_refused(&path, Error::Foreign, &["it was not changed"]);
    assert!((fs::read(&path).unwrap(), fs::read(&wal).unwrap_or_default()) == before);
}

#[test]
fn database_of_a_newer_version_is_refused_and_unchanged() {
    for version in [13, 999, 9_001] {
        let (folder, path) = folder();
        filled(&path, 1);
        let conn = Connection::open(&path).unwrap();
        let sql = "INSERT INTO schema_migrations (version, name, applied_at) VALUES (?1, 'x', '2026-01-19 12:00:00')";
        conn.execute(sql, [version]).unwrap();
        drop(conn);
        let before = bytes(folder.path());
        let error = Store::open(&path).unwrap_err();
        let expected = Error::Newer { path: path.clone(), version };
        check(&error, &expected, &path, &[&version.to_string(), "newer version", "Use that version, or another file"]);
        assert!(bytes(folder.path()) == before);
    }
}

#[test]
fn truncated_database_is_reported_as_damaged() {
    let (_folder, path) = folder();
    filled(&path, 100);
    let whole = fs::read(&path).unwrap();
    for length in [1_000, 4_096, 4_097, 10 * 4_096, whole.len() / 2, whole.len() - 4_096] {
        fs::write(&path, &whole[..length]).unwrap();
        assert_open_refused(&path, corrupt, &["damaged", "gristmill doctor", "backup"]);
        assert!(fs::read(&path).unwrap() == whole[..length], "{length}");
    }
    // Restored, the file opens again: the failed attempts left no trace.
    fs::write(&path, &whole).unwrap();
    assert_eq!(Store::open(&path).unwrap().tasks().get(100).unwrap().id, 100);
}

#[test]
fn overwritten_page_is_reported_by_the_operation_that_reads_it() {
    let (_folder, path) = folder();
    filled(&path, 100);
    let whole = fs::read(&path).unwrap();
    let conn = Connection::open(&path).unwrap();
    let root = |name: &str| -> usize {
        let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
        conn.query_row(sql, [name], |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap()
    };
    let overwrite = |pages: &[usize]| {
        let mut bytes = whole.clone();
        for page in pages {
            bytes[(page - 1) * 4_096..page * 4_096].fill(0xa5);
        }
        bytes
    };
    let (tasks, migrations) = (root("tasks"), root("schema_migrations"));
    let pages = whole.len() / 4_096;
    drop(conn);
    // Pages of `tasks`: the file opens, and operations that do not read them work.
    fs::write(&path, overwrite(&[tasks])).unwrap();
    let store = Store::open(&path).unwrap();
    let parts = ["damaged", "gristmill doctor", "backup"];
    let path = path.as_path();
    for _ in 0..2 {
        check(&store.tasks().get(1).unwrap_err(), &corrupt(path.into()), path, &parts);
        let many = vec![NewTask::new("convert", "{}"); 2];
        check(&store.tasks().enqueue_many(many).unwrap_err(), &corrupt(path.into()), path, &parts);
        check(&store.tasks().enqueue(NewTask::new("convert", "{}")).unwrap_err(), &corrupt(path.into()), path, &parts);
        assert_eq!(store.dead_letters().list(&DeadLetterFilter::default(), None, 10).unwrap().items, []);
    }
    drop(store);
    // The page of the migration table, or all except the first: the file does not open.
    fs::write(path, overwrite(&[migrations])).unwrap();
    assert_open_refused(path, corrupt, &parts);
    fs::write(path, overwrite(&(2..=pages).collect::<Vec<_>>())).unwrap();
    assert_open_refused(path, corrupt, &parts);
    // Any page: an error or success, but never a panic.
    for page in 2..=pages {
        fs::write(path, overwrite(&[page])).unwrap();
        let used = Store::open(path).and_then(|store| {
            store.tasks().list(&TaskFilter::default(), None, 1_000)?;
            store.tasks().recover(1)?;
            store.tasks().enqueue(NewTask::new("convert", "{}"))
        });
        if let Err(error) = used {
            check(&error, &corrupt(path.into()), path, &parts);
        }
    }
}

#[test]
fn folder_is_refused_as_a_database() {
    let folder = tempfile::tempdir().unwrap();
    assert_open_refused(folder.path(), cannot_open, &["must not be a folder"]);
    let missing = folder.path().join("missing").join("work.db");
    assert_open_refused(&missing, cannot_open, &["The folder must exist"]);
    assert!(!missing.parent().unwrap().exists());
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    assert_open_refused(&file.join("work.db"), cannot_open, &["The folder must exist"]);
}

#[test]
fn path_that_looks_like_a_uri_is_a_file_name() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["file:work.db?mode=memory", ":memory:", "größe 石 🌾.db", " ", "a%20b?c#d"] {
        let path = folder.path().join(name);
        let store = Store::open(&path).unwrap();
        store.tasks().enqueue(NewTask::new("convert", "{}")).unwrap();
        assert!(path.is_file(), "{name:?}");
        assert_eq!(store.path(), path);
    }
}

/// Runs the body of the test `name` in a private mount namespace. Prints the reason if that is not permitted.
fn with_mounts(name: &str, body: impl FnOnce()) {
    const INSIDE: &str = "GRISTMILL_TEST_MOUNTS";
    if std::env::var_os(INSIDE).is_some() {
        body();
        return;
    }
    // As root of a user namespace, or as root.
    let ways: [&[&str]; 2] = [&["--map-root-user", "--mount"], &["--mount"]];
    let probe = |way: &&[&str]| {
        let script = ["sh", "-c", "mount -t tmpfs -o size=1m none /tmp"];
        Command::new("unshare").args(*way).args(script).output().is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.into_iter().find(|way| probe(way)) else {
        eprintln!("SKIPPED {name}: `unshare --mount` may not mount a tmpfs here, neither as this user nor as root");
        return;
    };
    let this = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(way)
        .arg(this)
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output_text.contains("1 passed"), "{output_text}");
}

/// Mounts a tmpfs; only inside [`with_mounts`].
fn mount(folder: &Path, options: &str) {
    let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(folder).status().unwrap();
    assert!(status.success());
}

/// Writes a file until the disk is full. Returns its size.
fn fill(path: &Path) -> u64 {
    let error = std::io::copy(&mut std::io::repeat(7), &mut fs::File::create(path).unwrap()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    fs::metadata(path).unwrap().len()
}

#[test]
fn acknowledged_writes_survive_a_full_disk() {
    with_mounts("acknowledged_writes_survive_a_full_disk", || {
        let (folder, path) = folder();
        mount(folder.path(), "size=4m");
        let ballast = folder.path().join("ballast");
        fs::write(&ballast, vec![7; 1 << 20]).unwrap();
        let store = Store::open(&path).unwrap();
        let acknowledged = Mutex::new(BTreeMap::new());
        let full = |error: &Error| {
            check(
                error,
                &Error::Full(path.clone()),
                &path,
                &["is full", "no acknowledged write is lost", "Free disk space"],
            );
            assert!(error.is_transient());
        };
        let enqueue = |caller: usize, nth: usize| {
            let payload = format!("\"{caller} {nth} {}\"", "x".repeat(5_000));
            let enqueued = store.tasks().enqueue(NewTask::new("convert", payload.clone()))?;
            acknowledged.lock().unwrap().insert(enqueued.id, payload);
            Ok::<_, Error>(())
        };
        let check_acknowledged = || {
            let acknowledged = acknowledged.lock().unwrap();
            let new = Store::open(&path);
            for store in new.iter().chain([&store]) {
                let rows = store.tasks().list(&TaskFilter::default(), None, 100_000).unwrap().items;
                let found: BTreeMap<i64, String> = rows.into_iter().map(|row| (row.id, row.payload)).collect();
                assert!(found == *acknowledged, "{} of {}", found.len(), acknowledged.len());
            }
            acknowledged.len()
        };
        // Many concurrent writes, until each has failed.
        thread::scope(|scope| {
            for caller in 0..8 {
                let enqueue = &enqueue;
                scope.spawn(move || full(&(0..).find_map(|nth| enqueue(caller, nth).err()).unwrap()));
            }
        });
        // Every other write fails the same way; a small one may still succeed.
        full(
            &store
                .tasks()
                .enqueue_many(vec![NewTask::new("convert", format!("\"{}\"", "x".repeat(50_000))); 5])
                .unwrap_err(),
        );
        assert!(check_acknowledged() > 50);
        fs::remove_file(&ballast).unwrap();
        for nth in 0..10 {
            enqueue(99, nth).unwrap();
        }
        check_acknowledged();
        store.close();
        let check: String =
            Connection::open(&path).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
    });
}

#[test]
fn creating_a_database_on_a_full_disk_reports_disk_full() {
    with_mounts("creating_a_database_on_a_full_disk_reports_disk_full", || {
        // Runs out of space at each of the writes that create a file.
        for free_bytes in (0..60).map(|pages| pages * 4_096) {
            let (folder, path) = folder();
            mount(folder.path(), "size=2m");
            let ballast = folder.path().join("ballast");
            let size = fill(&ballast);
            fs::File::options().write(true).open(&ballast).unwrap().set_len(size - free_bytes).unwrap();
            if let Err(error) = Store::open(&path) {
                check(&error, &Error::Full(path.clone()), &path, &["is full", "Free disk space"]);
            } else {
                assert!(free_bytes > 0);
            }
            fs::remove_file(&ballast).unwrap();
            let store = Store::open(&path).unwrap();
            store.tasks().enqueue(NewTask::new("convert", "{}")).unwrap();
            drop(store);
            assert!(Command::new("umount").arg(folder.path()).status().unwrap().success());
        }
    });
}

#[test]
fn read_only_disk_is_reported_as_read_only() {
    with_mounts("read_only_disk_is_reported_as_read_only", || {
        let (folder, path) = folder();
        mount(folder.path(), "size=4m");
        filled(&path, 3);
        let before = bytes(folder.path());
        mount_read_only(folder.path());
        assert_open_refused(&path, Error::ReadOnly, &["read-only"]);
        assert_open_refused(&folder.path().join("new.db"), cannot_open, &["writable"]);
        let store = Store::options().allow_read_only().open(&path).unwrap();
        assert_eq!(store.tasks().list(&TaskFilter::default(), None, 10).unwrap().items.len(), 3);
        let written = store.tasks().enqueue(NewTask::new("convert", "{}"));
        check(&written.unwrap_err(), &Error::ReadOnly(path.clone()), &path, &["read-only"]);
        drop(store);
        assert!(bytes(folder.path()) == before);
    });
}

#[test]
fn read_only_file_is_reported_as_read_only() {
    with_mounts("read_only_file_is_reported_as_read_only", || {
        let (folder, path) = folder();
        mount(folder.path(), "size=4m");
        filled(&path, 3);
        let before = bytes(folder.path());
        // Mounted over itself: the file is read-only, its folder is not.
        assert!(Command::new("mount").arg("--bind").args([&path, &path]).status().unwrap().success());
        assert!(Command::new("mount").args(["-o", "remount,ro,bind"]).arg(&path).status().unwrap().success());
        let opened = Store::open(&path).and_then(|store| store.tasks().enqueue(NewTask::new("convert", "{}")));
        check(&opened.unwrap_err(), &Error::ReadOnly(path.clone()), &path, &["read-only"]);
        assert!(bytes(folder.path())[&path] == before[&path]);
    });
}

fn mount_read_only(folder: &Path) {
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(folder).status().unwrap().success());
}

/// A process that is killed while it creates the file leaves a journal, which the next process rolls back.
#[test]
fn hot_journal_of_a_killed_process_is_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let (path, journal) = (folder.path().join("work.db"), folder.path().join("work.db-journal"));
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA cache_spill = 1; PRAGMA cache_size = 1; CREATE TABLE t (x); BEGIN").unwrap();
    for _ in 0..200 {
        conn.execute("INSERT INTO t VALUES (randomblob(4000))", []).unwrap();
    }
    // Copies the files while the transaction is open; the lock of the killed process is not copied.
    let killed = folder.path().join("killed.db");
    std::fs::copy(&path, &killed).unwrap();
    std::fs::copy(&journal, folder.path().join("killed.db-journal")).unwrap();
    match Store::open(&killed) {
        // It is reported as foreign, not as read-only.
        Err(Error::Foreign(_)) => {}
        other => panic!("{other:?}"),
    }
    assert!(!folder.path().join("killed.db-journal").exists());
}
