//! Tools for SQLite files that other crates use.

use std::fs;
use std::path::Path;
use std::time::Duration;

use gristmill_pool::CancelToken;
use gristmill_store::Store;
use gristmill_store::sqlite::{
    Draft, ExistingFile, FileState, OpenedFiles, PublishError, folder_of, is_store, retry_while_busy, table_exists,
    with_suffix,
};
use rusqlite::Connection;

#[test]
fn existing_target_is_kept_or_replaced_as_asked() {
    use ExistingFile::{Keep, Replace, ReplaceEmpty};
    for (existing, before, after) in [
        (Keep, None, "new"),
        (Keep, Some(""), ""),
        (Keep, Some("old"), "old"),
        (Replace, None, "new"),
        (Replace, Some(""), "new"),
        (Replace, Some("old"), "new"),
        (ReplaceEmpty, None, "new"),
        (ReplaceEmpty, Some(""), "new"),
        (ReplaceEmpty, Some("old"), "old"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        before.iter().for_each(|content| fs::write(&target, content).unwrap());
        let draft = Draft::beside(&target);
        fs::write(draft.path(), "new").unwrap();
        let published = draft.publish(existing);
        let is_kept = before == Some(after);
        assert_eq!(matches!(published, Err(PublishError::Exists)), is_kept, "{existing:?} {before:?}");
        assert_eq!(fs::read_to_string(&target).unwrap(), after, "{existing:?} {before:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }
}

#[test]
fn dropped_draft_is_deleted_with_the_files_of_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let draft = Draft::beside(&folder.path().join("target"));
    for ending in ["", "-journal", "-wal", "-shm"] {
        fs::write(with_suffix(draft.path(), ending), "").unwrap();
    }
    drop(draft);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn folder_of_a_bare_name_is_the_working_folder() {
    for (file, folder) in [("a", "."), ("a/b", "a"), ("/a", "/"), ("", ".")] {
        assert_eq!(folder_of(Path::new(file)), Path::new(folder));
    }
}

/// Fails `failures` times, as busy or not. Returns the result and the number of attempts.
fn run(failures: u32, is_busy: bool, limit: Duration, stop: &CancelToken) -> (Result<u32, u32>, u32) {
    let mut attempts = 0;
    let attempt = || {
        attempts += 1;
        if attempts <= failures { Err(attempts) } else { Ok(attempts) }
    };
    (retry_while_busy(limit, stop, |_| is_busy, attempt), attempts)
}

#[test]
fn only_busy_errors_are_retried_until_the_limit_or_the_cancellation() {
    let (open, cancelled) = (CancelToken::new(), CancelToken::new());
    cancelled.cancel();
    for (failures, is_busy, limit, stop, result) in [
        (0, true, Duration::ZERO, &cancelled, Ok(1)),
        (2, true, Duration::MAX, &open, Ok(3)),
        (2, false, Duration::MAX, &open, Err(1)),
        (2, true, Duration::ZERO, &open, Err(1)),
        (2, true, Duration::MAX, &cancelled, Err(1)),
    ] {
        let (found, attempts) = run(failures, is_busy, limit, stop);
        assert_eq!(found, result, "{failures} {is_busy} {limit:?}");
        assert_eq!(found.unwrap_or_else(|last| last), attempts);
    }
}

#[test]
fn store_is_told_from_databases_of_other_programs() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (folder.path().join("own.db"), folder.path().join("other.db"));
    drop(Store::open(&own).unwrap());
    let (own, other) = (Connection::open(own).unwrap(), Connection::open(other).unwrap());
    other.execute_batch("CREATE TABLE jobs (id); CREATE VIEW job_locks AS SELECT 1").unwrap();
    assert!(is_store(&own).unwrap() && !is_store(&other).unwrap());
    let tables = ["jobs", "Jobs", "job_locks", "other"].map(|name| table_exists(&other, name).unwrap());
    assert_eq!(tables, [true, false, false, false], "only tables, in the same case");
}

#[test]
fn opened_file_is_unchanged_until_it_is_deleted_or_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    fs::write(&path, "").unwrap();
    let opened = OpenedFiles::record(&path, false);
    assert_eq!((opened.path(), opened.state()), (path.as_path(), FileState::Unchanged));
    fs::rename(&path, folder.path().join("b.db")).unwrap();
    assert_eq!(opened.state(), if cfg!(unix) { FileState::Deleted } else { FileState::Unchanged });
    fs::write(&path, "").unwrap();
    assert_eq!(opened.state(), if cfg!(unix) { FileState::Replaced } else { FileState::Unchanged });
}
