//! Pages of the entries of a folder, and locations of files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gristmill_store::catalog::{EntryType, FolderEntry};
use gristmill_store::{Durability, Error, Store};
use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;

struct Fixture {
    store: Store,
    conn: Connection,
    _folder: TempDir,
}

impl Fixture {
    /// A store with the roots 1, `/r`, and 2, `/s`; the folder of a root has its id.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.db");
        let store = Store::options().durability(Durability::Normal).open(&path).unwrap();
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch(
            "INSERT INTO library_roots (id, name, root_path) VALUES (1, 'r', '/r'), (2, 's', '/s');
            INSERT INTO folders (id, library_id, relative_path) VALUES (1, 1, ''), (2, 2, '');",
        )
        .unwrap();
        Fixture { store, conn, _folder: folder }
    }

    fn sql(&self, sql: &str) {
        self.conn.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn folder(&self, id: i64, root: i64, parent: Option<i64>, path: &str) {
        let sql = "INSERT INTO folders (id, library_id, parent_id, relative_path) VALUES (?1, ?2, ?3, ?4)";
        self.conn.execute(sql, (id, root, parent, path)).unwrap();
    }

    /// Inserts a file; equal contents are a group. Without a folder it is one of another program.
    fn file(&self, id: i64, root: i64, folder: Option<i64>, path: &str, content: u8) {
        let sql = "INSERT INTO library_files (id, library_id, folder_id, relative_path, size_bytes, mtime_ns, inode,
                device, link_kind, is_missing, needs_hash, hash_error_count, hash_algorithm, content_hash)
            VALUES (?1, ?2, ?3, ?4, 10, ?1 * 1000000001, ?1, 7, 0, 0, 0, 0, 'blake3', ?5)";
        self.conn.execute(sql, (id, root, folder, path, [content; 32])).unwrap();
    }

    /// Returns all entries, page by page.
    fn entries(&self, root: i64, path: impl AsRef<Path>, limit: usize) -> Vec<FolderEntry> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.catalog().folder_page(root, path.as_ref(), after.as_deref(), limit).unwrap();
            assert!(page.items.len() <= limit);
            all.extend(page.items);
            match page.next_cursor {
                Some(cursor) => after = Some(cursor),
                None => return all,
            }
        }
    }

    fn names(&self, root: i64, path: &str) -> Vec<String> {
        let entries = self.entries(root, path, 2);
        let slash = |entry: &FolderEntry| if entry.entry_type == EntryType::Folder { "/" } else { "" };
        entries.iter().map(|entry| format!("{}{}", entry.name, slash(entry))).collect()
    }
}

#[test]
fn page_has_folders_first_then_files_by_name() {
    let fixture = Fixture::new();
    fixture.folder(10, 1, Some(1), "b");
    fixture.folder(11, 1, Some(1), "a");
    fixture.folder(12, 1, Some(11), "a/x");
    fixture.folder(13, 2, Some(2), "other");
    fixture.file(1, 1, Some(1), "zz", 1);
    fixture.file(2, 1, Some(1), "a!", 2);
    fixture.file(3, 1, Some(11), "a/f", 1);
    fixture.file(4, 1, Some(12), "a/x/g", 3);
    fixture.store.catalog().refresh_groups().unwrap();
    assert_eq!(fixture.names(1, ""), ["a/", "b/", "a!", "zz"]);
    assert_eq!(fixture.names(1, "a"), ["x/", "f"]);
    assert_eq!(fixture.names(1, "a/x"), ["g"]);
    assert_eq!(fixture.names(1, "b"), [] as [&str; 0]);
    assert_eq!(fixture.names(2, ""), ["other/"]);
    let entries = fixture.entries(1, "a", 9);
    let key = format!("blake3:{}", "01".repeat(32));
    let file = r#"{"id":3,"entry_type":"file","name":"f","relative_path":"a/f","size_bytes":10,"#.to_owned()
        + &format!(r#""modified_at":"1970-01-01T00:00:03.000000Z","mtime_ns":3000000003,"group_key":"{key}"}}"#);
    assert_eq!(serde_json::to_string(&entries[1]).unwrap(), file);
    let folder = r#"{"id":12,"entry_type":"folder","name":"x","relative_path":"a/x","size_bytes":null,"#.to_owned()
        + r#""modified_at":null,"mtime_ns":null,"group_key":null}"#;
    assert_eq!(serde_json::to_string(&entries[0]).unwrap(), folder);
    assert_eq!(fixture.entries(1, "a/x", 9)[0].group_key, None, "no other file has its content");
}

#[test]
fn missing_and_excluded_entries_are_left_out() {
    let fixture = Fixture::new();
    fixture.folder(10, 1, Some(1), "removed");
    fixture.folder(11, 1, Some(1), "excluded");
    (1..5).for_each(|id| fixture.file(id, 1, Some(1), &format!("f{id}"), 1));
    fixture.file(5, 1, Some(10), "removed/f", 1);
    fixture.sql(
        "UPDATE folders SET removed_at = '2026-01-01 00:00:00' WHERE id = 10;
        UPDATE folders SET excluded_at = '2026-01-01 00:00:00' WHERE id = 11;
        UPDATE library_files SET is_missing = 1 WHERE id = 1;
        UPDATE library_files SET excluded_at = '2026-01-01 00:00:00' WHERE id = 2;
        UPDATE library_files SET needs_hash = 1 WHERE id = 3;",
    );
    fixture.file(6, 1, Some(1), "f6", 1);
    fixture.file(7, 2, Some(2), "f", 1);
    fixture.sql("UPDATE library_files SET size_bytes = 0 WHERE id = 6");
    fixture.store.catalog().refresh_groups().unwrap();
    let keys: Vec<_> =
        fixture.entries(1, "", 9).into_iter().map(|entry| (entry.name, entry.group_key.is_some())).collect();
    assert_eq!(keys, [("f3".to_owned(), false), ("f4".to_owned(), true), ("f6".to_owned(), false)]);
    for (root, path) in [(1, "removed"), (1, "excluded"), (1, "none"), (1, "f4"), (1, "../r"), (9, "")] {
        let result = fixture.store.catalog().folder_page(root, Path::new(path), None, 9);
        let Err(Error::NotFound(text)) = result else { panic!("{path}: {result:?}") };
        assert!(text.contains(path) && text.contains(&root.to_string()), "{text}");
    }
}

#[test]
fn rows_of_another_program_are_listed_by_their_path() {
    let fixture = Fixture::new();
    fixture.folder(10, 1, None, "ä");
    fixture.folder(11, 1, None, "ä/x");
    fixture.folder(12, 1, None, "ä0");
    fixture.file(1, 1, None, "ä/f", 1);
    fixture.file(2, 1, None, "ä/x/g", 1);
    fixture.file(3, 1, None, "h", 1);
    assert_eq!(fixture.names(1, ""), ["ä/", "ä0/", "h"]);
    assert_eq!(fixture.names(1, "ä"), ["x/", "f"]);
    assert_eq!(fixture.names(1, "ä/x"), ["g"]);
}

#[test]
fn invalid_cursor_is_refused() {
    let fixture = Fixture::new();
    for cursor in ["", "?", "e30", "12"] {
        let result = fixture.store.catalog().folder_page(1, Path::new(""), Some(cursor), 9);
        assert!(matches!(&result, Err(Error::Invalid(text)) if text.contains("next_cursor")), "{cursor}: {result:?}");
    }
}

#[test]
fn location_of_a_present_file_is_found() {
    let fixture = Fixture::new();
    fixture.folder(10, 2, Some(2), "d");
    fixture.file(1, 2, Some(10), "d/caf\u{1a}E9", 1);
    fixture.file(2, 1, Some(1), "missing", 1);
    fixture.file(3, 1, Some(1), "excluded", 1);
    fixture.sql("UPDATE library_files SET is_missing = id = 2, excluded_at = iif(id = 3, '2026-01-01 00:00:00', NULL)");
    let (root, path, stat) = fixture.store.catalog().file_location(1).unwrap();
    #[cfg(unix)]
    let name: OsString = std::os::unix::ffi::OsStringExt::from_vec(b"d/caf\xe9".to_vec());
    #[cfg(not(unix))]
    let name = OsString::from("d/caf\u{fffd}");
    assert_eq!((root.path.as_path(), path), (Path::new("/s"), PathBuf::from(name)));
    assert_eq!((stat.size, stat.mtime_ns), (10, 1_000_000_001));
    for id in [2, 3, 4] {
        let missing = Error::NotFound(format!("there is no present file {id}"));
        assert_eq!(fixture.store.catalog().file_location(id).unwrap_err(), missing);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pages_have_every_entry_once(
        names in proptest::collection::btree_set("[a-c/0.é\u{1a}]{1,4}", 0..20), limit in 1..5usize,
    ) {
        let fixture = Fixture::new();
        let names: Vec<String> = names.into_iter().map(|name| name.replace('/', "!")).collect();
        let mut expected = (Vec::new(), Vec::new());
        for (id, name) in (10..).zip(names) {
            let (is_file, is_own) = (id % 2 == 0, id % 3 > 0);
            let list = if is_file { &mut expected.1 } else { &mut expected.0 };
            if list.contains(&name) {
                continue;
            }
            if is_file {
                fixture.file(id, 1, is_own.then_some(1), &name, 1);
            } else {
                fixture.folder(id, 1, is_own.then_some(1), &name);
            }
            list.push(name);
        }
        expected.0.sort();
        expected.1.sort();
        let found: Vec<String> = fixture.entries(1, "", limit).into_iter().map(|entry| entry.name).collect();
        prop_assert_eq!(found, [expected.0, expected.1].concat());
    }
}
