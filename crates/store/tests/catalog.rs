//! The catalog: writes of listings and hashes, queries, and consistency rules.

#[path = "python_file/ddl.rs"]
#[allow(dead_code, reason = "only the file is needed here")]
mod ddl;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::catalog::{
    Algorithm, Batch, ChangedFile, Check, Digest, FileHash, FileRef, FolderRef, Group, GroupQuery, KnownFile, LinkKind,
    Listing, ListingStatus, Purged, ReadResult, SharedFile, SortBy, Stat,
};
use gristmill_store::scans::{FinishedScan, Scan, ScanRequest, ScanScope, ScanTotals};
use gristmill_store::{Durability, Store, UtcTime};
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(86_400);

fn day(number: u32) -> UtcTime {
    UtcTime::parse("2026-01-01 00:00:00").expect("a time").plus(DAY * number)
}

/// A store, its clock, and its file.
struct Fixture {
    store: Store,
    clock: ManualClock,
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Fixture::prepared(|_| ())
    }

    /// Opens a file that `prepare` has changed.
    fn prepared(prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("c.db");
        prepare(&path);
        let clock = ManualClock::at(day(0).micros());
        let options = Store::options().durability(Durability::Normal).clock(clock.clone());
        Fixture { store: options.open(path).expect("a store"), clock, folder }
    }

    fn connection(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.folder.path().join("c.db")).expect("a connection")
    }

    /// Runs SQL as another program would, without foreign keys.
    fn sql(&self, sql: &str) {
        self.connection().execute_batch(&format!("PRAGMA foreign_keys = OFF; {sql}")).expect(sql);
    }

    /// Returns rows as text, with columns separated by spaces.
    fn query(&self, sql: &str) -> Vec<String> {
        let conn = self.connection();
        let mut statement = conn.prepare(sql).expect(sql);
        let columns = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            let column = |number| Ok(format!("{:?}", row.get::<_, rusqlite::types::Value>(number)?));
            Ok((0..columns).map(column).collect::<rusqlite::Result<Vec<_>>>()?.join(" "))
        };
        statement.query_map([], row).expect(sql).map(|row| row.expect(sql)).collect()
    }

    /// Returns all rows of the catalog.
    fn all_rows(&self) -> Vec<String> {
        // A digest that was replaced is a random value.
        let columns = "SELECT group_concat(name) FROM pragma_table_info('folders') WHERE name <> 'listing_digest'";
        let columns: String = self.connection().query_row(columns, [], |row| row.get(0)).expect(columns);
        let folders = format!("SELECT {columns} FROM folders ORDER BY id");
        let files = "SELECT * FROM library_files ORDER BY id";
        [folders.as_str(), files].iter().flat_map(|sql| self.query(sql)).collect()
    }

    fn root(&self, path: &str) -> i64 {
        self.store.roots().register(Path::new(path)).expect("a root").id
    }

    fn begin(&self, root: i64) -> Scan {
        let request = ScanRequest {
            root,
            scope: ScanScope::Root,
            holder: "test".into(),
            settings: String::new(),
            restart: true,
            is_alive: |_| Some(false),
        };
        self.store.scans().begin(request).expect("a scan")
    }

    /// Finishes a scan with the totals of the catalog.
    fn finish(&self, scan: &Scan) {
        let (_, files, bytes) = self
            .store
            .catalog()
            .totals()
            .expect("numbers")
            .into_iter()
            .find(|(root, ..)| *root == scan.root)
            .unwrap_or_default();
        let folders = self.store.catalog().count_folders(scan.root).expect("a number");
        let folders = u64::try_from(folders).expect("a number");
        let totals = ScanTotals { folders, files, bytes, errors: 0 };
        let finished = FinishedScan { id: scan.id, root: scan.root, totals, walk: None };
        self.store.scans().finish(vec![finished], "test", None).expect("finished");
    }

    fn record(&self, listings: Vec<Listing>) -> usize {
        self.store.catalog().record(listings).expect("recorded")
    }

    fn folder(&self, root: i64, path: &str) -> FolderRef {
        let ids = self.query(&format!(
            "SELECT id FROM folders WHERE library_id = {root} AND relative_path = '{}'",
            path.replace('\'', "''")
        ));
        let number = |text: &String| text.trim_start_matches("Integer(").trim_end_matches(')').parse().ok();
        FolderRef { root, id: ids.first().and_then(number), path: path.into() }
    }

    /// Returns an empty listing of a whole folder.
    fn whole_listing(&self, scan: &Scan, path: &str) -> Listing {
        Listing { status: ListingStatus::Whole, ..Listing::new(scan.id, self.folder(scan.root, path)) }
    }

    /// Records folders of which nothing is listed yet.
    fn record_folders(&self, scan: &Scan, paths: &[&str]) {
        let part = |path: &&str| Listing { status: ListingStatus::Part, ..self.whole_listing(scan, path) };
        self.record(paths.iter().map(part).collect());
    }

    fn id(&self, path: &str) -> i64 {
        let text = self.query(&format!("SELECT id FROM library_files WHERE relative_path = '{path}'")).remove(0);
        text.trim_start_matches("Integer(").trim_end_matches(')').parse().expect("a number")
    }

    fn groups(&self, query: &GroupQuery) -> Vec<Group> {
        self.store.catalog().groups(query).expect("groups").groups
    }
}

fn stat(size: u64, inode: u64) -> Stat {
    let times = Stat { mtime_ns: 1_000, ctime_ns: 2_000, ..Stat::default() };
    Stat { size, allocated: size, inode, device: 7, ..times }
}

fn changed(id: i64, stat: Stat) -> ChangedFile {
    ChangedFile { id, stat, keeps_hash: true }
}

fn hash(number: u8) -> Vec<u8> {
    vec![number; 32]
}

fn names(names: &[&str]) -> Vec<OsString> {
    names.iter().map(OsString::from).collect()
}

/// Records files with these names, sizes and contents in the folder of a root. The inode number follows the index.
fn fill(fixture: &Fixture, path: &str, files: &[(&str, u64, u8)]) -> i64 {
    let root = fixture.root(path);
    let scan = fixture.begin(root);
    let mut listing = fixture.whole_listing(&scan, "");
    let inode = |index: usize| root.cast_unsigned() * 1_000 + index as u64;
    for (index, (name, size, _)) in files.iter().enumerate() {
        listing.new_files.push((name.into(), stat(*size, inode(index))));
    }
    fixture.record(vec![listing]);
    let folder = fixture.store.catalog().root_folder(root).expect("a root folder");
    let known = fixture.store.catalog().known_entries(&folder, true).expect("its files");
    let hashed = known.files.iter().map(|(known, file)| {
        let content = files.iter().find(|(name, ..)| known == name).expect("its content").2;
        FileHash::of_row(file.id, file.stat, ReadResult::Content(Digest::shared(Algorithm::Blake3, hash(content))))
    });
    fixture.store.catalog().write(Batch { hashes: hashed.collect(), ..Batch::default() }).expect("recorded");
    fixture.finish(&scan);
    root
}

mod walk_records {
    use super::*;

    #[test]
    fn unreadable_folders_are_listed_and_counted() {
        let fixture = Fixture::new();
        let root = fixture.root("/r");
        let scan = fixture.begin(root);
        fixture.record(vec![fixture.whole_listing(&scan, "")]);
        fixture.record_folders(&scan, &["closed", "gone", "here"]);
        fixture.record(vec![
            Listing { status: ListingStatus::Failed("closed".into()), ..fixture.whole_listing(&scan, "closed") },
            fixture.whole_listing(&scan, "here"),
        ]);
        fixture.record(vec![Listing { missing_folders: names(&["gone"]), ..fixture.whole_listing(&scan, "") }]);
        let unreadable = fixture.store.catalog().unreadable(root, 9).expect("a result");
        assert_eq!(unreadable, [("closed".into(), "closed".to_owned())]);
        assert_eq!(fixture.store.catalog().count_folders(root).expect("a number"), 3);
        assert_eq!(fixture.store.catalog().count_unreadable(root).expect("a number"), 1);
    }

    /// Most files are read back without the columns that only unusual ones need.
    #[test]
    fn unusual_files_are_read_back_as_recorded() {
        let usual = Stat { allocated: 8192, links: LinkKind::Single, ..stat(4097, 7) };
        let unusual = [
            ("a sparse file", Stat { allocated: 0, ..usual }),
            ("preallocated blocks", Stat { allocated: 12_288, ..usual }),
            ("hard links", Stat { links: LinkKind::HardLinked, ..usual }),
            ("a symbolic link", Stat { links: LinkKind::ViaSymlink, ..usual }),
            ("an unknown link count", Stat { links: LinkKind::Unknown, ..usual }),
            ("excluded", usual),
            ("racy", usual),
        ];
        for (what, stat) in unusual {
            let fixture = Fixture::new();
            let catalog = fixture.store.catalog();
            let root = fixture.root("/r");
            let folder = || catalog.root_folder(root).expect("a root folder");
            let files = |all: bool| catalog.known_entries(&folder(), all).expect("its files").files;
            let state = |(name, file): &(OsString, KnownFile)| {
                (name.clone(), file.stat, (file.missing, file.excluded, file.racy))
            };
            let states = |all: bool| files(all).iter().map(state).collect::<Vec<_>>();
            let scan = fixture.begin(root);
            let empty = Stat { size: 0, allocated: 0, ..usual };
            let first = vec![("empty".into(), empty), ("usual".into(), usual)];
            fixture.record(vec![Listing { new_files: first, ..fixture.whole_listing(&scan, "") }]);
            assert!(!catalog.has_unusual(root).expect("a result"), "{what}");
            let none = (false, false, false);
            let expected = [("empty".into(), empty, none), ("usual".into(), usual, none)];
            assert_eq!((states(false), states(true)), (expected.to_vec(), expected.to_vec()), "{what}");

            fixture.record(vec![Listing { new_files: vec![("x".into(), stat)], ..fixture.whole_listing(&scan, "") }]);
            let id = fixture.id("x");
            match what {
                "excluded" => {
                    fixture.record(vec![Listing { excluded_files: vec![id], ..fixture.whole_listing(&scan, "") }]);
                }
                "racy" => fixture.sql(&format!("UPDATE library_files SET hash_racy = 1 WHERE id = {id}")),
                _ => {}
            }
            assert!(catalog.has_unusual(root).expect("a result"), "{what}");
            assert!(!catalog.has_unusual(fixture.root("/other")).expect("a result"), "{what}");
            let marks = (false, what == "excluded", what == "racy");
            let expected = [expected.as_slice(), &[("x".into(), stat, marks)]].concat();
            assert_eq!(states(true), expected, "{what}");

            // A file with usual values is no longer unusual.
            let changed = ChangedFile { id, stat: usual, keeps_hash: false };
            fixture.record(vec![Listing { changed_files: vec![changed], ..fixture.whole_listing(&scan, "") }]);
            assert!(!catalog.has_unusual(root).expect("a result"), "{what}");
        }
    }

    /// A killed scan may have written what it writes again after it is resumed.
    #[test]
    fn recording_a_listing_twice_changes_nothing() {
        let fixture = Fixture::new();
        let root = fixture.root("/r");
        let first = fixture.begin(root);
        let digest = |make: fn(Algorithm, Vec<u8>) -> Digest| make(Algorithm::Sha256, hash(1));
        let top = Listing {
            new_files: vec![("a".into(), stat(10, 1)), ("b".into(), stat(10, 2)), ("c".into(), stat(0, 3))],
            contents: vec![(0, digest(Digest::unshared)), (1, digest(Digest::shared))],
            ..fixture.whole_listing(&first, "")
        };
        let below = |path: &str| Listing {
            new_files: vec![("x".into(), stat(30, 4))],
            ..Listing {
                status: ListingStatus::Whole,
                ..Listing::new(first.id, FolderRef { root, id: None, path: path.into() })
            }
        };
        let listings = vec![top, below("f"), below("g"), below("h")];
        assert_eq!(fixture.record(listings.clone()), 0);
        let once = fixture.all_rows();
        assert_eq!(once.len(), 4 + 6);
        // A resumed scan finds the files among the rows of their folders.
        let known = listings.into_iter().map(|listing| Listing { new_files: vec![], contents: vec![], ..listing });
        assert_eq!(fixture.record(known.collect()), 0);
        assert_eq!(fixture.all_rows(), once);
        fixture.finish(&first);

        fixture.clock.set_unix_micros(day(1).micros());
        let second = fixture.begin(root);
        let top = Listing {
            changed_files: vec![changed(fixture.id("a"), stat(11, 1))],
            missing_files: vec![fixture.id("b")],
            excluded_files: vec![fixture.id("c")],
            missing_folders: names(&["f"]),
            excluded_folders: names(&["h"]),
            foreign_folders: names(&["g"]),
            ..fixture.whole_listing(&second, "")
        };
        assert_eq!(fixture.record(vec![top.clone()]), 2, "b and f/x are missing");
        let once = fixture.all_rows();
        assert_eq!(once.len(), 3 + 5, "only the rows of g are deleted");
        assert_eq!(fixture.record(vec![top]), 0, "already missing");
        assert_eq!(fixture.all_rows(), once);
        let returned = Listing {
            returned_folders: vec![fixture.folder(root, "f").id.expect("a row")],
            changed_files: vec![changed(fixture.id("b"), stat(10, 2))],
            ..fixture.whole_listing(&second, "")
        };
        fixture.record(vec![returned.clone()]);
        let once = fixture.all_rows();
        fixture.record(vec![returned]);
        assert_eq!(fixture.all_rows(), once);
    }

    #[test]
    fn listing_without_a_folder_id_finds_or_creates_its_row_and_parents() {
        let fixture = Fixture::new();
        let root = fixture.root("/r");
        let scan = fixture.begin(root);
        let deep = FolderRef { root, id: None, path: "a/b/c".into() };
        for _ in 0..2 {
            fixture.record(vec![Listing { status: ListingStatus::Whole, ..Listing::new(scan.id, deep.clone()) }]);
            assert_eq!(
                fixture.query("SELECT f.relative_path, p.relative_path FROM folders f LEFT JOIN folders p ON p.id = f.parent_id ORDER BY 1"),
                [r#"Text("") Null"#, r#"Text("a") Text("")"#, r#"Text("a/b") Text("a")"#, r#"Text("a/b/c") Text("a/b")"#]
            );
        }
    }
}

mod files {
    use super::*;

    const HISTORY_SQL: &str = "SELECT is_missing, needs_hash, hash_algorithm, created_at, removed_at, last_seen_scan_id
        FROM library_files WHERE relative_path = 'f/a'";

    fn history(fixture: &Fixture) -> String {
        fixture.query(HISTORY_SQL).remove(0).replace(" 00:00:00.000000", "").replace(" 00:00:00", "")
    }

    #[test]
    fn missing_file_keeps_created_at_and_hash() {
        let fixture = Fixture::new();
        let root = fixture.root("/r");
        let first = fixture.begin(root);
        let digest = Digest::shared(Algorithm::Blake3, hash(1));
        fixture.record(vec![fixture.whole_listing(&first, "")]);
        fixture.record(vec![Listing {
            new_files: vec![("a".into(), stat(10, 1))],
            contents: vec![(0, digest)],
            ..fixture.whole_listing(&first, "f")
        }]);
        fixture.finish(&first);
        let present = r#"Integer(0) Integer(0) Text("blake3") Text("2026-01-01") Null Integer(1)"#;
        assert_eq!(history(&fixture), present);

        // A second scan sees the file and writes nothing about it.
        fixture.clock.set_unix_micros(day(1).micros());
        let second = fixture.begin(root);
        fixture.record(vec![fixture.whole_listing(&second, ""), fixture.whole_listing(&second, "f")]);
        fixture.finish(&second);
        assert_eq!(history(&fixture), present);

        fixture.clock.set_unix_micros(day(2).micros());
        let third = fixture.begin(root);
        assert_eq!(
            fixture.record(vec![Listing { missing_folders: names(&["f"]), ..fixture.whole_listing(&third, "") }]),
            1
        );
        let missing = r#"Integer(1) Integer(0) Text("blake3") Text("2026-01-01") Text("2026-01-03") Integer(2)"#;
        assert_eq!(history(&fixture), missing, "last seen by the second scan");
        let folder = "SELECT first_seen_at, removed_at FROM folders WHERE relative_path = 'f'";
        assert_eq!(
            fixture.query(folder)[0].replace(".000000", "").replace(" 00:00:00", ""),
            r#"Text("2026-01-01") Text("2026-01-03")"#
        );
        fixture.finish(&third);

        fixture.clock.set_unix_micros(day(3).micros());
        let fourth = fixture.begin(root);
        let id = fixture.folder(root, "f").id.expect("a row");
        fixture.record(vec![Listing { returned_folders: vec![id], ..fixture.whole_listing(&fourth, "") }]);
        let back = vec![changed(fixture.id("f/a"), stat(10, 1))];
        fixture.record(vec![Listing { changed_files: back, ..fixture.whole_listing(&fourth, "f") }]);
        assert_eq!(history(&fixture), present.replace("Integer(1)", "Integer(4)"));
        assert_eq!(
            fixture.query(folder)[0].replace(".000000", "").replace(" 00:00:00", ""),
            r#"Text("2026-01-01") Null"#
        );

        // A changed file keeps only its creation time.
        let other = vec![changed(fixture.id("f/a"), stat(11, 1))];
        fixture.record(vec![Listing { changed_files: other, ..fixture.whole_listing(&fourth, "f") }]);
        assert_eq!(history(&fixture), r#"Integer(0) Integer(1) Null Text("2026-01-01") Null Integer(4)"#);
    }

    #[test]
    fn hash_is_kept_only_when_the_file_is_unchanged() {
        let same = stat(10, 1);
        for (now, kept) in [
            (same, true),
            (Stat { device: 8, ..same }, true),
            (Stat { size: 11, ..same }, false),
            (Stat { mtime_ns: 1_001, ..same }, false),
            (Stat { ctime_ns: 2_001, ..same }, false),
            (Stat { inode: 2, ..same }, false),
        ] {
            for (read, expected) in
                [(ReadResult::Content(Digest::shared(Algorithm::Sha3, hash(1))), true), (ReadResult::Samples(5), false)]
            {
                let fixture = Fixture::new();
                let scan = fixture.begin(fixture.root("/r"));
                fixture
                    .record(vec![Listing { new_files: vec![("a".into(), same)], ..fixture.whole_listing(&scan, "") }]);
                let id = fixture.id("a");
                fixture
                    .store
                    .catalog()
                    .write(Batch { hashes: vec![FileHash::of_row(id, same, read)], ..Batch::default() })
                    .expect("recorded");
                fixture.record(vec![Listing {
                    changed_files: vec![changed(id, now)],
                    ..fixture.whole_listing(&scan, "")
                }]);
                let mut row = None;
                let keep = |found: &gristmill_store::catalog::FileRow| {
                    row = Some(found.clone());
                    std::ops::ControlFlow::Continue(())
                };
                fixture.store.catalog().for_each_file(keep).expect("rows");
                let row = row.expect("a row");
                assert_eq!(row.stat, now);
                assert_eq!(row.algorithm.is_some(), kept && expected, "{now:?}");
                assert_eq!(row.samples.is_some(), kept && !expected, "{now:?}");
                let columns = "content_hash, hashed_size_bytes, hashed_at, read_hash, edges";
                let known = fixture.query(&format!("SELECT {columns} FROM library_files"));
                assert_eq!(known[0] != "Null Null Null Null Null", kept, "{now:?}");
            }
        }
    }

    #[test]
    fn read_failure_is_kept_until_the_file_is_read() {
        let fixture = Fixture::new();
        let root = fixture.root("/r");
        let scan = fixture.begin(root);
        fixture
            .record(vec![Listing { new_files: vec![("a".into(), stat(10, 1))], ..fixture.whole_listing(&scan, "") }]);
        let (id, stat) = (fixture.id("a"), stat(10, 1));
        let record = |result| {
            fixture
                .store
                .catalog()
                .write(Batch { hashes: vec![FileHash::of_row(id, stat, result)], ..Batch::default() })
                .expect("recorded")
        };
        let columns =
            "SELECT hash_error_count, hash_last_error, hash_last_error_at, hash_retry_after FROM library_files";
        for (count, retry) in [(1, "00:00:30"), (2, "00:01:00"), (3, "00:02:00")] {
            record(ReadResult::Failed("no".into()));
            let expected = format!(
                r#"Integer({count}) Text("no") Text("2026-01-01 00:00:00.000000") Text("2026-01-01 {retry}.000000")"#
            );
            assert_eq!(fixture.query(columns)[0], expected);
        }
        assert_eq!(fixture.store.catalog().count_failed(root).expect("a number"), 1);
        record(ReadResult::Content(Digest::shared(Algorithm::Blake3, hash(1))));
        assert_eq!(fixture.query(columns)[0], "Integer(0) Null Null Null");
        assert_eq!(fixture.store.catalog().count_failed(root).expect("a number"), 0);
        assert_eq!(record(ReadResult::Gone).missing, 1);
        assert_eq!(record(ReadResult::Gone).missing, 0, "already missing");
    }

    /// Two reads of a file may be written in either order: samples of an earlier content are not valid for the current
    /// one.
    #[test]
    fn samples_of_a_changed_file_are_discarded() {
        let fixture = Fixture::new();
        fill(&fixture, "/r", &[("a", 1_000_000, 1)]);
        let file = FileRef::Row(fixture.id("a"));
        let changed = Stat { mtime_ns: 9, ..stat(1_000_000, 1_000) };
        for (stat, samples, differs, expected) in [
            (stat(1_000_000, 1_000), 5, false, "Integer(5)"),
            (changed, 6, true, "Integer(6)"),
            (stat(1_000_000, 1_000), 7, false, "Integer(6)"),
        ] {
            let file_hash = FileHash { file, stat, result: ReadResult::Samples(samples), differs, racy: false };
            let batch = Batch { hashes: vec![file_hash], ..Batch::default() };
            fixture.store.catalog().write(batch).expect("written");
            assert_eq!(fixture.query("SELECT edges FROM library_files"), [expected]);
        }
    }

    /// A content without a duplicate is stored separately, and joins a group when it is shared.
    #[test]
    fn content_joins_a_group_when_it_is_shared() {
        let fixture = Fixture::new();
        let scan = fixture.begin(fixture.root("/r"));
        let listing = Listing {
            new_files: vec![("a".into(), stat(10, 1)), ("b".into(), stat(10, 2))],
            ..fixture.whole_listing(&scan, "")
        };
        let file_hash = |file| FileHash {
            file,
            stat: stat(10, 1),
            result: ReadResult::Content(Digest::unshared(Algorithm::Blake3, hash(1))),
            differs: false,
            racy: false,
        };
        let batch = Batch {
            listings: vec![(3, listing)],
            hashes: vec![file_hash(FileRef::New(3, 0)), file_hash(FileRef::New(3, 1))],
            shared: vec![SharedFile { file: FileRef::New(3, 1), digest: None }],
            holder: None,
        };
        let written = fixture.store.catalog().write(batch).expect("written");
        assert_eq!(written.ids[&3], [fixture.id("a"), fixture.id("b")]);
        assert_eq!(fixture.groups(&GroupQuery::default()), []);
        let shared = vec![SharedFile { file: FileRef::Row(fixture.id("a")), digest: None }];
        for _ in 0..2 {
            let batch = Batch { shared: shared.clone(), ..Batch::default() };
            fixture.store.catalog().write(batch).expect("written");
            assert_eq!(fixture.groups(&GroupQuery::default())[0].members.len(), 2);
        }
        // A reference to an unknown file is refused, and nothing of its batch is written.
        let before = fixture.all_rows();
        let batch = Batch { hashes: vec![file_hash(FileRef::New(9, 0))], ..Batch::default() };
        assert!(fixture.store.catalog().write(batch).is_err());
        assert_eq!(fixture.all_rows(), before);
    }
}

mod maintenance {
    use super::*;

    #[test]
    fn purge_deletes_rows_missing_since_before_the_date() {
        let fixture = Fixture::new();
        let root = fill(&fixture, "/r", &[("a", 1, 1), ("b", 2, 2), ("c", 3, 3)]);
        let scan = fixture.begin(root);
        fixture.record_folders(&scan, &["f", "g", "f/h"]);
        for (number, file, folder) in [(1, "a", "f"), (2, "b", "g")] {
            fixture.clock.set_unix_micros(day(number).micros());
            fixture.record(vec![Listing {
                missing_files: vec![fixture.id(file)],
                missing_folders: names(&[folder]),
                ..fixture.whole_listing(&scan, "")
            }]);
        }
        let purge = |files, folders, before| fixture.store.catalog().purge(files, folders, before).expect("purged");
        assert_eq!(purge(true, true, day(1)), Purged { files: 0, folders: 0 }, "not at the exact time");
        assert_eq!(purge(true, false, day(2)), Purged { files: 1, folders: 0 });
        assert_eq!(purge(false, true, day(2)), Purged { files: 0, folders: 2 });
        assert_eq!(purge(true, true, day(2)), Purged { files: 0, folders: 0 });
        assert_eq!(
            fixture.query("SELECT relative_path FROM library_files ORDER BY 1"),
            [r#"Text("b")"#, r#"Text("c")"#]
        );
        assert_eq!(purge(true, true, day(3)), Purged { files: 1, folders: 1 });
        assert_eq!(fixture.query("SELECT relative_path FROM folders"), [r#"Text("")"#]);
        assert_eq!(fixture.query("SELECT relative_path FROM library_files"), [r#"Text("c")"#]);
    }

    /// If the control plane did not record when a file went missing, the last change counts.
    #[test]
    fn purge_uses_updated_at_when_removed_at_is_null() {
        let fixture = Fixture::new();
        fill(&fixture, "/r", &[("a", 1, 1), ("b", 2, 2)]);
        fixture.sql("UPDATE library_files SET is_missing = 1, updated_at = '2026-01-05 00:00:00+00:00'");
        let purge = |before| fixture.store.catalog().purge(true, true, before).expect("purged").files;
        assert_eq!((purge(day(4)), purge(day(5))), (0, 2));
    }

    /// Returns a consistent catalog with files, folders and a missing file.
    fn consistent_catalog() -> Fixture {
        let fixture = Fixture::new();
        let root = fill(&fixture, "/r", &[("a", 10, 1), ("b", 10, 1), ("gone", 5, 2), ("empty", 0, 0)]);
        let scan = fixture.begin(root);
        fixture.record(vec![Listing { missing_files: vec![fixture.id("gone")], ..fixture.whole_listing(&scan, "") }]);
        fixture.record_folders(&scan, &["f", "it's"]);
        fixture.record(vec![Listing {
            new_files: vec![("x".into(), stat(7, 70)), ("y".into(), stat(8, 71))],
            ..fixture.whole_listing(&scan, "f/g")
        }]);
        fixture.finish(&scan);
        fixture
    }

    const HASH_COMPLETE: &str = "a hash is complete and matches the size and mtime of its file";
    const FILE_FOLDER: &str = "a file belongs to the folder in its path";
    const REMOVED_FOLDER: &str = "no present file is in a removed folder";
    const REMOVAL_TIME: &str = "a missing file has the time of its removal";
    const FOLDER_PARENT: &str = "a folder belongs to the parent in its path";
    const ROOT_TOTALS: &str = "the totals of a root match its rows";

    /// Runs SQL that violates rules, and asserts that exactly the expected rules are reported and repaired.
    #[track_caller]
    fn check(sql: &str, expected: &[(&str, i64)]) {
        let fixture = consistent_catalog();
        let broken = |fixture: &Fixture| -> Vec<(&'static str, i64)> {
            let checks = fixture.store.catalog().verify().expect("a check").into_iter();
            checks.filter(|check| check.broken > 0).map(|check| (check.name, check.broken)).collect()
        };
        assert_eq!(broken(&fixture), [], "before");
        fixture.sql(sql);
        assert_eq!(broken(&fixture), expected, "{sql}");
        let repaired = fixture.store.catalog().repair().expect("repaired");
        for (name, count) in expected {
            let check = repaired.iter().find(|check| check.name == *name).expect("that rule");
            assert_eq!(check.repaired, *count, "{sql}: {}", check.repair);
        }
        assert_eq!(broken(&fixture), [], "after {sql}");
        assert!(fixture.store.catalog().repair().expect("repaired").iter().all(|check| check.repaired == 0));
    }

    #[test]
    fn table_of_groups_is_checked_and_repaired() {
        let fixture = Fixture::new();
        fill(&fixture, "/r", &[("a", 10, 1), ("b", 10, 1), ("c", 20, 2), ("d", 20, 2)]);
        assert_eq!(fixture.groups(&GroupQuery::default()).len(), 2);
        for change in [
            "DELETE FROM duplicate_groups WHERE size_bytes = 10",
            "UPDATE duplicate_groups SET copies = 3 WHERE size_bytes = 20",
            "UPDATE duplicate_groups SET first_path = 'x'",
            "UPDATE duplicate_group_state SET reclaimable_bytes = 1",
        ] {
            fixture.sql(change);
            let broken =
                |checks: Vec<Check>| checks.into_iter().map(|check| (check.broken, check.repaired)).next_back();
            let found = broken(fixture.store.catalog().verify().expect("a check")).expect("a rule");
            assert!(found.0 > 0, "{change}");
            assert_eq!(
                broken(fixture.store.catalog().repair().expect("repaired")),
                Some((found.0, found.0)),
                "{change}"
            );
            assert_eq!(broken(fixture.store.catalog().verify().expect("a check")), Some((0, 0)), "{change}");
        }
    }

    #[test]
    fn every_rule_is_checked_and_repaired() {
        let a = "WHERE relative_path = 'a'";
        for set in [
            "content_hash = NULL",
            "hash_algorithm = NULL",
            "content_hash = x'0102'",
            "hash_algorithm = 'sha512'",
            "hashed_size_bytes = 11",
            "hashed_mtime_ns = NULL",
        ] {
            check(&format!("UPDATE library_files SET {set} {a}"), &[(HASH_COMPLETE, 1)]);
        }
        let other = "(SELECT id FROM folders WHERE relative_path = 'f')";
        let x = "WHERE relative_path = 'f/g/x'";
        check(&format!("UPDATE library_files SET folder_id = {other} {x}"), &[(FILE_FOLDER, 1)]);
        check(&format!("UPDATE library_files SET folder_id = NULL {x}"), &[(FILE_FOLDER, 1)]);
        check("UPDATE library_files SET removed_at = NULL WHERE is_missing = 1", &[(REMOVAL_TIME, 1)]);
        check("UPDATE folders SET parent_id = NULL WHERE relative_path = 'f/g'", &[(FOLDER_PARENT, 1)]);
        check(&format!("UPDATE folders SET parent_id = {other} WHERE relative_path = 'it''s'"), &[(FOLDER_PARENT, 1)]);
        check("UPDATE library_roots SET file_count = 99", &[(ROOT_TOTALS, 1)]);
        check("UPDATE library_roots SET total_size = NULL, folder_count = 1", &[(ROOT_TOTALS, 1)]);
        check(
            "UPDATE folders SET removed_at = '2026-01-01 00:00:00' WHERE relative_path = 'f/g'",
            &[(REMOVED_FOLDER, 2), (ROOT_TOTALS, 1)],
        );
    }

    #[test]
    fn repaired_hash_is_marked_for_hashing() {
        let fixture = consistent_catalog();
        assert_eq!(fixture.groups(&GroupQuery::default()).len(), 1);
        fixture.sql("UPDATE library_files SET content_hash = x'00' WHERE relative_path = 'a'");
        fixture.store.catalog().repair().expect("repaired");
        assert_eq!(fixture.groups(&GroupQuery::default()), []);
        assert_eq!(
            fixture
                .query("SELECT needs_hash, content_hash, hash_algorithm FROM library_files WHERE relative_path = 'a'"),
            ["Integer(1) Null Null"]
        );
    }

    /// While a root is scanned, its totals are those of the previous scan.
    #[test]
    fn totals_of_a_root_being_scanned_are_not_checked() {
        let fixture = consistent_catalog();
        fixture.begin(1);
        fixture.sql("UPDATE library_roots SET file_count = 99");
        let checks = fixture.store.catalog().verify().expect("a check");
        assert!(checks.iter().all(|check| check.broken == 0), "{checks:?}");
    }
}

mod groups {
    use super::*;

    /// Two roots. Content 1: three copies of 10 bytes, 2: two of 100, 3: two of 30 across roots, 4: single, 5: two of
    /// 10.
    fn fixture() -> (Fixture, i64, i64) {
        let fixture = Fixture::new();
        let r = fill(
            &fixture,
            "/r",
            &[
                ("b1", 10, 1),
                ("b2", 10, 1),
                ("b3", 10, 1),
                ("z1", 100, 2),
                ("z2", 100, 2),
                ("m", 30, 3),
                ("alone", 77, 4),
            ],
        );
        let s = fill(&fixture, "/s", &[("n", 30, 3), ("a1", 10, 5), ("a2", 10, 5)]);
        (fixture, r, s)
    }

    /// Asserts the contents of the groups, in order.
    #[track_caller]
    fn check(fixture: &Fixture, query: &GroupQuery, expected: &[u8]) {
        let found: Vec<u8> = fixture.groups(query).iter().map(|group| group.key.hash[0]).collect();
        assert_eq!(found, expected, "{query:?}");
        let all = fixture.store.catalog().groups(&query.clone().limit(0)).expect("groups");
        assert_eq!((all.groups.len(), all.total), (0, expected.len() as u64));
        // Every page size returns the same groups in the same order.
        for size in 1..=expected.len() + 1 {
            let mut pages = Vec::new();
            for offset in (0..=expected.len()).step_by(size) {
                let page = query.clone().limit(size).offset(offset);
                let page = fixture.store.catalog().groups(&page).expect("groups");
                assert_eq!((page.total, page.files, page.reclaimable), (all.total, all.files, all.reclaimable));
                pages.extend(page.groups.iter().map(|group| group.key.hash[0]));
            }
            assert_eq!(pages, expected, "{query:?} by {size}");
        }
    }

    #[test]
    fn groups_are_sorted_paged_and_filtered() {
        let (fixture, r, s) = fixture();
        let all = GroupQuery::default();
        let sort = |sort| all.clone().sort(sort);
        check(&fixture, &all, &[2, 3, 1, 5]);
        check(&fixture, &sort(SortBy::Reclaimable), &[2, 3, 1, 5]);
        check(&fixture, &sort(SortBy::Count), &[1, 2, 3, 5]);
        check(&fixture, &sort(SortBy::Size), &[2, 3, 1, 5]);
        check(&fixture, &sort(SortBy::Path), &[1, 3, 2, 5]);
        check(&fixture, &all.clone().min_count(3), &[1]);
        check(&fixture, &all.clone().min_count(0), &[2, 3, 1, 5]);
        check(&fixture, &all.clone().min_size(11), &[2, 3]);
        check(&fixture, &all.clone().min_size(101), &[]);
        check(&fixture, &all.clone().roots(vec![r]), &[2, 1]);
        check(&fixture, &all.clone().roots(vec![s]), &[5]);
        check(&fixture, &all.clone().roots(vec![r, s]), &[2, 3, 1, 5]);
        check(&fixture, &all.clone().across_roots(true), &[3]);
        check(&fixture, &all.clone().across_roots(true).roots(vec![r]), &[]);
        let sums = fixture.store.catalog().groups(&all).expect("groups");
        assert_eq!((sums.total, sums.files, sums.reclaimable), (4, 9, 100 + 30 + 20 + 10));
    }

    /// The order of the protocol's pages: count, total size, algorithm, hash.
    #[test]
    fn groups_of_equal_count_are_sorted_by_total_size_algorithm_and_hash() {
        let fixture = Fixture::new();
        let files = [("a1", 10, 1), ("a2", 10, 1), ("b1", 10, 2), ("b2", 10, 2), ("c1", 10, 3), ("c2", 10, 3)];
        fill(&fixture, "/r", &files);
        fill(&fixture, "/s", &[("d1", 90, 4), ("d2", 90, 4), ("e1", 1, 5), ("e2", 1, 5), ("e3", 1, 5)]);
        fixture.sql("UPDATE library_files SET hash_algorithm = 'sha256' WHERE relative_path IN ('a1', 'a2')");
        check(&fixture, &GroupQuery::default().sort(SortBy::Count), &[5, 4, 2, 3, 1]);
    }

    #[test]
    fn names_of_one_inode_are_one_copy() {
        let (fixture, r, _) = fixture();
        fixture.sql("UPDATE library_files SET inode = 5000, device = 7 WHERE relative_path IN ('b1', 'b3')");
        let query = GroupQuery::default().roots(vec![r]).sort(SortBy::Path);
        let group = fixture.groups(&query).remove(0);
        assert_eq!((group.copies, group.reclaimable), (2, 10));
        let members: Vec<_> =
            group.members.iter().map(|member| (member.path.to_str().expect("plain"), member.linked)).collect();
        assert_eq!(members, [("b1", false), ("b3", true), ("b2", false)]);
        check(&fixture, &GroupQuery::default().min_count(3), &[]);
        // The same inode number on another device is another file.
        fixture.sql("UPDATE library_files SET device = 8 WHERE relative_path = 'b3'");
        check(&fixture, &GroupQuery::default().min_count(3), &[1]);
        // All are names of one inode: no group.
        fixture.sql("UPDATE library_files SET inode = 5000, device = 7 WHERE relative_path LIKE 'b_'");
        check(&fixture, &GroupQuery::default(), &[2, 3, 5]);
        // A row that the control plane recorded without an inode is a separate copy.
        fixture.sql("UPDATE library_files SET inode = NULL, device = NULL WHERE relative_path LIKE 'b_'");
        assert_eq!(fixture.groups(&query)[0].copies, 3);
        assert!(fixture.groups(&query)[0].members.iter().all(|member| !member.linked));
    }

    #[test]
    fn missing_and_unhashed_files_are_in_no_group() {
        let (fixture, ..) = fixture();
        fixture.sql("UPDATE library_files SET is_missing = 1 WHERE relative_path = 'z1'");
        fixture.sql("UPDATE library_files SET needs_hash = 1 WHERE relative_path = 'n'");
        fixture.sql("UPDATE library_files SET hash_algorithm = 'sha256' WHERE relative_path = 'a1'");
        check(&fixture, &GroupQuery::default(), &[1]);
    }
}

mod control_plane_file {
    use super::*;

    const INSERT: &str =
        "INSERT INTO library_files (id, library_id, relative_path, size_bytes, mtime_ns, inode, device,
        is_missing, needs_hash, hash_algorithm, content_hash, hashed_size_bytes, hashed_mtime_ns, hash_error_count)
        VALUES";

    /// Files that the control plane recorded and hashed, without folders and change times.
    fn fixture() -> Fixture {
        Fixture::prepared(|path| {
            let conn = ddl::create(path);
            let row = |id: u32, path: &str, inode: u32| {
                format!(
                    "{INSERT} ({id}, 1, '{path}', 10, 1000, {inode}, 7, 0, 0, 'sha256', x'{}', 10, 1000, 0);",
                    "05".repeat(32)
                )
            };
            let rows = [row(11, "same", 1), row(12, "f/same", 2), row(13, "f/changed", 3), row(14, "gone", 4)];
            conn.execute_batch(&format!(
                "INSERT INTO library_roots (id, name, root_path) VALUES (1, 'r', '/r'); {}",
                rows.concat()
            ))
            .expect("rows");
        })
    }

    #[test]
    fn scan_adopts_existing_rows_and_keeps_hashes_of_unchanged_files() {
        let fixture = fixture();
        assert_eq!(fixture.groups(&GroupQuery::default())[0].members.len(), 4);
        assert_eq!(fixture.root("/r"), 1);
        let scan = fixture.begin(1);
        // The walk finds no recorded entries in the folder, so every file is new to it.
        let folder = fixture.store.catalog().root_folder(1).expect("a root folder");
        assert!(fixture.store.catalog().known_entries(&folder, true).expect("nothing").files.is_empty());
        let read = Digest::shared(Algorithm::Blake3, hash(9));
        let top = Listing {
            new_files: vec![("same".into(), stat(10, 1)), ("new".into(), stat(20, 9))],
            contents: vec![(0, read)],
            ..fixture.whole_listing(&scan, "")
        };
        let below = |scan: &Scan| Listing {
            new_files: vec![("same".into(), stat(10, 2)), ("changed".into(), Stat { mtime_ns: 9, ..stat(10, 3) })],
            ..fixture.whole_listing(scan, "f")
        };
        let written = fixture.store.catalog().write(Batch { listings: vec![(0, top)], ..Batch::default() });
        let written = written.expect("written");
        assert_eq!(written.ids[&0][0], 11, "its row");
        assert_eq!(written.conflicts, 1);
        fixture.record(vec![below(&scan)]);
        let rows = fixture.query(
            "SELECT l.id, f.relative_path, l.ctime_ns, l.needs_hash, l.hash_algorithm, l.last_seen_scan_id
             FROM library_files l LEFT JOIN folders f ON f.id = l.folder_id WHERE l.id <> 14 ORDER BY l.id",
        );
        let expected = [
            r#"Integer(11) Text("") Integer(2000) Integer(0) Text("sha256") Integer(1)"#,
            r#"Integer(12) Text("f") Integer(2000) Integer(0) Text("sha256") Integer(1)"#,
            r#"Integer(13) Text("f") Integer(2000) Integer(1) Null Integer(1)"#,
            r#"Integer(15) Text("") Integer(2000) Integer(1) Null Integer(1)"#,
        ];
        assert_eq!(rows, expected);
        // Now the rows are recorded for the folder.
        let folder = fixture.store.catalog().root_folder(1).expect("a root folder");
        assert_eq!(fixture.store.catalog().known_entries(&folder, true).expect("its files").files.len(), 2);
    }

    #[test]
    fn existing_rows_that_a_scan_does_not_see_are_marked_missing() {
        let fixture = fixture();
        let scan = fixture.begin(1);
        let folder = fixture.store.catalog().root_folder(1).expect("a root folder");
        let known = fixture.store.catalog().known_entries(&folder, true).expect("its files");
        // As a walk does: recorded files that it did not see are missing. It saw `same` and `f`.
        let missing = known.files.iter().filter(|(name, _)| name != "same").map(|(_, file)| file.id);
        let listing = Listing {
            new_files: vec![("same".into(), stat(10, 1))],
            missing_files: missing.collect(),
            ..fixture.whole_listing(&scan, "")
        };
        fixture.record(vec![listing]);
        assert!(fixture.store.catalog().mark_unseen_missing(1).expect("marked") > 0);
        assert_eq!(fixture.query("SELECT is_missing FROM library_files WHERE id = 14"), ["Integer(1)"]);
    }
}
