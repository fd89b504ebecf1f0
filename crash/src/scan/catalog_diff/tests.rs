//! Each difference is reported, and each phase is derived from what was committed.

use std::path::PathBuf;

use gristmill_store::Store;
use tempfile::TempDir;

use super::*;

/// A catalog after a scan: a root with two files of one content and a large one.
const SCANNED: &str = "
    INSERT INTO library_roots (id, name, root_path, folder_count, file_count, total_size) VALUES (1, 'r', '/r', 1, 3, 9);
    INSERT INTO scan_sessions (id, library_id, status, walked_at) VALUES (1, 1, 'succeeded', 'then');
    INSERT INTO folders (id, library_id, relative_path, walked_scan_id) VALUES (1, 1, '', 1);
    INSERT INTO library_files (library_id, folder_id, relative_path, size_bytes, mtime_ns, ctime_ns, inode, device,
        needs_hash, hash_algorithm, content_hash, edges, last_seen_scan_id)
    VALUES (1, 1, 'a', 3, 1, 1, 1, 1, 0, 'blake3', x'01', 1, 1), (1, 1, 'b', 3, 1, 1, 2, 1, 0, 'blake3', x'01', 1, 1),
        (1, 1, 'large', 70000, 1, 1, 3, 1, 0, 'blake3', x'02', 5, 1), (1, 1, 'other name', 70000, 1, 1, 3, 1, 0, 'blake3',
        x'02', 5, 1);";

struct Catalogs {
    folder: TempDir,
}

impl Catalogs {
    /// Creates two equal catalogs and runs SQL on the second.
    fn new(then: &str) -> Self {
        let catalogs = Catalogs { folder: tempfile::tempdir().unwrap() };
        for (path, sql) in [(catalogs.path("undisturbed"), ""), (catalogs.path("other"), then)] {
            drop(Store::open(&path).unwrap());
            Connection::open(path).unwrap().execute_batch(&format!("{SCANNED}{sql}")).unwrap();
        }
        catalogs
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pair(&self) -> CatalogPair {
        CatalogPair::open(&self.path("undisturbed"), &self.path("other")).unwrap()
    }
}

#[track_caller]
fn check_difference(then: &str, expected: &[&str]) {
    let found = Catalogs::new(then).pair().differences(9).unwrap();
    assert_eq!(found.len(), expected.len(), "{then}: {found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{then}: {found}");
    }
}

#[test]
fn differing_rows_are_reported_except_ids_and_times() {
    check_difference("", &[]);
    check_difference("UPDATE library_files SET id = id + 10, updated_at = 'now', created_at = 'now'", &[]);
    check_difference(
        "UPDATE library_files SET needs_hash = 1 WHERE inode = 1",
        &["file \"/r : a\": needs_hash is 1, undisturbed 0"],
    );
    check_difference("UPDATE library_files SET hash_error_count = 2 WHERE inode = 2", &["errors is 2, undisturbed 0"]);
    check_difference("DELETE FROM library_files WHERE inode = 1", &["file \"/r : a\" is missing"]);
    check_difference(
        "INSERT INTO folders (library_id, parent_id, relative_path) VALUES (1, 1, 'x')",
        &["folder \"/r : x\" should not exist"],
    );
    check_difference("UPDATE folders SET removed_at = 'now'", &["folder \"/r : \": removed is 1"]);
    check_difference("UPDATE library_roots SET file_count = 4", &["root \"/r\": files is 4"]);
    check_difference("UPDATE scan_sessions SET bytes_seen = 4", &["scan \"/r\": bytes_seen is 4"]);
    check_difference(
        "UPDATE library_files SET read_hash = content_hash, content_hash = NULL WHERE inode = 1",
        &["content_hash is \"\", undisturbed \"01\"; read_hash is \"01\", undisturbed \"\""],
    );
}

/// Checks the phase, the folders to walk, and the files to read and to sample after these statements.
#[track_caller]
fn check_remaining(then: &str, expected: (Phase, i64, i64, i64)) {
    let remaining = Catalogs::new(then).pair().remaining(0).unwrap();
    let found = (remaining.phase, remaining.folders, remaining.reads, remaining.samples);
    assert_eq!(found, expected, "{then}: {remaining:?}");
}

#[test]
fn remaining_work_follows_from_what_was_committed() {
    let running = "UPDATE scan_sessions SET status = 'running';";
    check_remaining("", (Phase::Done, 0, 0, 0));
    check_remaining(running, (Phase::Finish, 0, 0, 0));
    let with = |sql: &str| format!("{running}{sql}");
    let unshared = "UPDATE library_files SET read_hash = content_hash, read_algorithm = 'blake3', content_hash = NULL,
        hash_algorithm = NULL WHERE inode = 1;";
    check_remaining(&with(unshared), (Phase::MarkShared, 0, 0, 0));
    let unread = "UPDATE library_files SET content_hash = NULL, hash_algorithm = NULL WHERE inode = 3;";
    // Two names of one inode are one file to read.
    check_remaining(&with(unread), (Phase::Contents, 0, 1, 0));
    let unsampled = format!("{unread} UPDATE library_files SET edges = NULL WHERE inode = 3;");
    check_remaining(&with(&unsampled), (Phase::Samples, 0, 1, 1));
    // A small file has no samples of its own: it is read as a whole for them.
    check_remaining(&with("UPDATE library_files SET edges = NULL WHERE inode = 2;"), (Phase::Samples, 0, 1, 0));
    // A hash of an earlier version of the file does not count.
    check_remaining(&with("UPDATE library_files SET mtime_ns = 0 WHERE inode = 2;"), (Phase::Samples, 0, 1, 0));
    let unwalked = "UPDATE scan_sessions SET walked_at = NULL; UPDATE folders SET walked_scan_id = NULL;";
    check_remaining(&with(unwalked), (Phase::Walk, 1, 0, 0));
    let not_started = "UPDATE library_files SET last_seen_scan_id = NULL; DELETE FROM scan_sessions;";
    check_remaining(not_started, (Phase::Start, 1, 0, 0));
}
