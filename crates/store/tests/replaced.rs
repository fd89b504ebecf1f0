//! A database file that is deleted, moved or replaced while a store has it open: the store detects it, writes nothing
//! more, and neither file is damaged.

#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gristmill_store::tasks::{NewTask, TaskFilter};
use gristmill_store::{Error, Store};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    (folder, path)
}

fn enqueue(store: &Store, kind: &str) {
    store.tasks().enqueue(NewTask::new(kind, "1")).unwrap();
}

/// Returns the kinds of all tasks in a file, latest first.
fn kinds(path: &Path) -> Vec<String> {
    let tasks = Store::open(path).unwrap().tasks().list(&TaskFilter::default(), None, 100).unwrap();
    tasks.items.into_iter().map(|task| task.kind).collect()
}

fn sidecar(path: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}{ending}", path.display()))
}

/// Asserts that every operation of the store fails with this error.
#[track_caller]
fn assert_refused(store: &Store, expected: &Error, word: &str) {
    let refused = [
        store.tasks().enqueue(NewTask::new("late", "1")).map(drop),
        store.tasks().heartbeat(vec![], LONG).map(drop),
        store.tasks().get(1).map(drop),
        store.watch().and_then(|mut watcher| watcher.wait(LONG)).map(drop),
    ];
    for found in refused {
        assert_eq!(found.as_ref(), Err(expected));
    }
    let text = expected.to_string();
    assert!(text.contains(word) && text.contains("work.db") && text.contains("start"), "{text}");
    assert!(!expected.is_user_error() && !expected.is_transient(), "{expected:?}");
}

#[test]
fn deleted_database_is_refused() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    enqueue(&store, "a");
    fs::remove_file(&path).unwrap();
    assert_refused(&store, &Error::Deleted(path.clone()), "deleted");
    drop(store);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0, "no sidecar file is left");
    assert_eq!(kinds(&path), [""; 0], "a new database is empty");
}

#[test]
fn waiting_watcher_fails_when_the_database_is_deleted() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let mut watcher = store.watch().unwrap();
    let waiting = std::thread::spawn(move || watcher.wait(LONG));
    fs::remove_file(&path).unwrap();
    assert_eq!(waiting.join().unwrap(), Err(Error::Deleted(path)));
}

#[test]
fn replaced_database_receives_no_writes_of_the_old_one() {
    let (folder, path) = folder();
    let other = folder.path().join("other.db");
    enqueue(&Store::open(&other).unwrap(), "new");
    let store = Store::open(&path).unwrap();
    enqueue(&store, "old");
    fs::rename(&other, &path).unwrap();
    assert_refused(&store, &Error::Replaced(path.clone()), "replaced");
    drop(store);
    assert_eq!(kinds(&path), ["new"], "the WAL of the old file is not applied to the new one");
    assert!(sidecar(&path, "-wal.replaced").exists(), "the old WAL is kept");
}

#[test]
fn close_keeps_the_wal_of_the_replacing_database() {
    let (_folder, path) = folder();
    let old = Store::open(&path).unwrap();
    enqueue(&old, "old");
    for ending in ["", "-wal", "-shm"] {
        fs::remove_file(sidecar(&path, ending)).unwrap();
    }
    let new = Store::open(&path).unwrap();
    enqueue(&new, "new");
    let wal_bytes = fs::metadata(sidecar(&path, "-wal")).unwrap().len();
    drop(old);
    assert_eq!(fs::metadata(sidecar(&path, "-wal")).unwrap().len(), wal_bytes);
    enqueue(&new, "newer");
    assert_eq!(kinds(&path), ["newer", "new"]);
}

#[test]
fn moved_database_keeps_acknowledged_writes() {
    let (folder, path) = folder();
    let elsewhere = folder.path().join("elsewhere.db");
    let store = Store::open(&path).unwrap();
    enqueue(&store, "a");
    fs::rename(&path, &elsewhere).unwrap();
    assert_refused(&store, &Error::Deleted(path), "deleted");
    drop(store);
    assert_eq!(kinds(&elsewhere), ["a"]);
}

#[test]
fn wal_is_kept_when_only_the_symlink_is_retargeted() {
    let (folder, path) = folder();
    let (link, other) = (folder.path().join("link.db"), folder.path().join("other.db"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let (by_link, by_name) = (Store::open(&link).unwrap(), Store::open(&path).unwrap());
    enqueue(&by_link, "a");
    drop(Store::open(&other).unwrap());
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&other, &link).unwrap();
    let refused = by_link.tasks().enqueue(NewTask::new("late", "1")).unwrap_err();
    assert_eq!(refused, Error::Replaced(link));
    drop(by_link);
    enqueue(&by_name, "b");
    drop(by_name);
    assert_eq!(kinds(&path), ["b", "a"]);
    assert_eq!(kinds(&other), [""; 0]);
}

/// Deletes the WAL or the WAL index of an open database, as another program could.
fn delete(path: &Path, endings: &[&str]) {
    endings.iter().for_each(|ending| fs::remove_file(sidecar(path, ending)).unwrap());
}

#[test]
fn deleted_wal_or_shm_is_refused_and_acknowledged_writes_survive() {
    for endings in [&["-wal"][..], &["-shm"], &["-wal", "-shm"]] {
        let (_folder, path) = folder();
        let store = Store::open(&path).unwrap();
        enqueue(&store, "a");
        delete(&path, endings);
        let refused = store.tasks().enqueue(NewTask::new("late", "1")).unwrap_err();
        assert_eq!(refused, Error::Deleted(sidecar(&path, endings[0])));
        let waited = store.watch().and_then(|mut watcher| watcher.wait(LONG));
        assert_eq!(waited, Err(refused));
        drop(store);
        assert_eq!(kinds(&path), ["a"], "{endings:?}");
    }
}

#[test]
fn tasks_of_another_process_survive_deleted_wal_and_shm() {
    for endings in [&["-shm"][..], &["-wal", "-shm"]] {
        let (_folder, path) = folder();
        let store = Store::open(&path).unwrap();
        enqueue(&store, "a");
        delete(&path, endings);
        // A separate process, because SQLite shares the deleted WAL index within one process.
        let name = "another_process_enqueues_a_task";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--include-ignored"])
            .env(DATABASE, &path)
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        let refused = store.tasks().enqueue(NewTask::new("late", "1")).unwrap_err();
        assert!(matches!(refused, Error::Replaced(_)), "{refused:?}");
        drop(store);
        assert!(kinds(&path).contains(&"other".to_owned()), "{endings:?}: {:?}", kinds(&path));
    }
}

const DATABASE: &str = "GRISTMILL_TEST_DATABASE";

#[test]
#[ignore = "run by another test in a separate process"]
fn another_process_enqueues_a_task() {
    let path = std::env::var_os(DATABASE).map(PathBuf::from);
    if let Some(path) = path {
        enqueue(&Store::open(&path).unwrap(), "other");
    }
}
