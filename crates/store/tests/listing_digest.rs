//! The digest of a folder's last listing: what keeps it and what replaces it. A walk that finds the same digest does not
//! compare the rows, so every other change of a row must replace it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gristmill_store::catalog::{
    Algorithm, Batch, ChangedFile, Digest, FileHash, FolderRef, HashUse, LinkKind, Listing, ListingDigest,
    ListingStatus, ReadResult, Stat,
};
use gristmill_store::scans::{ScanRequest, ScanScope};
use gristmill_store::{Durability, Store, UtcTime};
use rusqlite::Connection;
use tempfile::TempDir;

const FIRST: ListingDigest = [1; 16];
const SECOND: ListingDigest = [2; 16];

/// A root whose folder has the file `a` and the subfolder `inner`, which has the file `b`. Both have the digest `FIRST`.
struct Fixture {
    store: Store,
    conn: Connection,
    scan: i64,
    root: i64,
    _folder: TempDir,
}

fn stat() -> Stat {
    Stat { size: 10, mtime_ns: 5, ctime_ns: 5, inode: 7, device: 1, links: LinkKind::Single, allocated: 4096 }
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.db");
        let store = Store::options().durability(Durability::Normal).open(&path).unwrap();
        let root = store.roots().register(Path::new("/r")).unwrap().id;
        let request = ScanRequest {
            root,
            scope: ScanScope::Root,
            holder: "test".into(),
            settings: "all".into(),
            restart: false,
            is_alive: |_| Some(true),
        };
        let scan = store.scans().begin(request).unwrap().id;
        let fixture = Fixture { store, conn: Connection::open(&path).unwrap(), scan, root, _folder: folder };
        for (path, file) in [("", "a"), ("inner", "b")] {
            let folder_ref = FolderRef { root, id: None, path: path.into() };
            let listing = Listing {
                status: ListingStatus::Whole,
                new_files: vec![(file.into(), stat())],
                digest: Some(FIRST),
                ..Listing::new(scan, folder_ref)
            };
            fixture.record(listing);
        }
        assert_eq!(fixture.digests(), [Some(FIRST), Some(FIRST)]);
        fixture
    }

    fn record(&self, listing: Listing) {
        self.store.catalog().record(vec![listing]).unwrap();
    }

    /// A listing without changes, as a walk makes it that has seen the digest `FIRST`.
    fn listing(&self, path: &str, status: ListingStatus) -> Listing {
        let id = self.store.catalog().folder(self.root, Path::new(path)).unwrap().map(|folder| folder.id);
        let folder_ref = FolderRef { root: self.root, id, path: PathBuf::from(path) };
        Listing { status, known_digest: Some(FIRST), ..Listing::new(self.scan, folder_ref) }
    }

    /// The digests of the folder of the root and of `inner`.
    fn digests(&self) -> [Option<ListingDigest>; 2] {
        let folder = |path| self.store.catalog().folder(self.root, Path::new(path)).unwrap();
        ["", "inner"].map(|path| folder(path).and_then(|folder| folder.digest))
    }

    fn id(&self, path: &str) -> i64 {
        let sql = "SELECT id FROM library_files WHERE relative_path = ?1";
        self.conn.query_row(sql, [path], |row| row.get(0)).unwrap()
    }

    fn sql(&self, sql: &str) {
        self.conn.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn write_hash(&self, result: ReadResult, racy: bool) {
        let hash = FileHash { differs: false, racy, ..FileHash::of_row(self.id("inner/b"), stat(), result) };
        self.store.catalog().write(Batch { hashes: vec![hash], ..Batch::default() }).unwrap();
    }
}

fn content() -> ReadResult {
    let digest = Digest { used: HashUse::Group, ..Digest::shared(Algorithm::Blake3, vec![3; 32]) };
    ReadResult::Content(digest)
}

/// Checks after which changes the folder of the root, and `inner`, have the digest `FIRST`.
#[track_caller]
fn check(kept: [bool; 2], change: impl FnOnce(&Fixture)) {
    let fixture = Fixture::new();
    change(&fixture);
    assert_eq!(fixture.digests().map(|digest| digest == Some(FIRST)), kept);
}

#[test]
fn change_of_a_file_by_any_program_replaces_the_digest_of_its_folder() {
    for change in [
        "UPDATE library_files SET is_missing = 1 WHERE relative_path = 'inner/b'",
        "UPDATE library_files SET mtime_ns = 6 WHERE relative_path = 'inner/b'",
        "UPDATE library_files SET hash_racy = 1 WHERE relative_path = 'inner/b'",
        "UPDATE library_files SET excluded_at = 'now' WHERE relative_path = 'inner/b'",
        "DELETE FROM library_files WHERE relative_path = 'inner/b'",
    ] {
        check([true, false], |fixture| fixture.sql(change));
    }
    check([false, false], |fixture| {
        fixture.sql("UPDATE library_files SET folder_id = (SELECT id FROM folders WHERE relative_path = '')");
    });
    // The digest does not cover hashes.
    check([true, true], |fixture| {
        fixture.sql("UPDATE library_files SET needs_hash = 0, hash_algorithm = 'blake3', content_hash = zeroblob(32)");
    });
}

#[test]
fn result_of_a_read_replaces_the_digest_only_if_the_walk_must_examine_the_file_again() {
    check([true, true], |fixture| fixture.write_hash(content(), false));
    check([true, true], |fixture| fixture.write_hash(ReadResult::Failed("unreadable".into()), false));
    check([true, false], |fixture| fixture.write_hash(content(), true));
    check([true, false], |fixture| fixture.write_hash(ReadResult::Gone, false));
}

#[test]
fn maintenance_replaces_the_digests_of_the_rows_it_changes() {
    check([false, false], |fixture| drop(fixture.store.catalog().repair().unwrap()));
    check([true, true], |fixture| drop(fixture.store.catalog().verify().unwrap()));
    check([true, false], |fixture| {
        fixture.record(Listing {
            missing_files: vec![fixture.id("inner/b")],
            ..fixture.listing("inner", ListingStatus::Whole)
        });
        fixture.sql("UPDATE folders SET listing_digest = zeroblob(16) WHERE relative_path = 'inner'");
        let purged = fixture.store.catalog().purge(true, false, UtcTime::parse("2999-01-01 00:00:00").unwrap());
        assert_eq!(purged.unwrap().files, 1);
        assert_ne!(fixture.digests()[1], Some([0; 16]));
    });
}

#[test]
fn listing_writes_its_digest_only_if_it_is_complete() {
    for (status, expected) in [
        (ListingStatus::Whole, true),
        (ListingStatus::Part, false),
        (ListingStatus::Known, false),
        (ListingStatus::Named, false),
        (ListingStatus::Failed("unreadable".into()), false),
    ] {
        let fixture = Fixture::new();
        let is_whole = status == ListingStatus::Whole;
        fixture.record(Listing { digest: is_whole.then_some(SECOND), ..fixture.listing("inner", status.clone()) });
        let [outer, inner] = fixture.digests();
        assert_eq!((outer, inner == Some(SECOND)), (Some(FIRST), expected), "{status:?}");
        assert_ne!(inner, Some(FIRST), "{status:?}");
    }
    check([true, true], |fixture| fixture.record(fixture.listing("inner", ListingStatus::Unchanged)));
}

#[test]
fn listing_does_not_write_its_digest_if_a_row_has_changed_since_the_walk_read_it() {
    let changes: [fn(&Fixture); 3] = [
        |fixture| fixture.sql("UPDATE library_files SET is_missing = 1 WHERE relative_path = 'inner/b'"),
        |fixture| fixture.sql("DELETE FROM library_files WHERE relative_path = 'inner/b'"),
        |fixture| fixture.write_hash(content(), true),
    ];
    for change in changes {
        let fixture = Fixture::new();
        let id = fixture.id("inner/b");
        let changed_files = vec![ChangedFile { id, stat: stat(), keeps_hash: true }];
        let listing = Listing { changed_files, digest: Some(SECOND), ..fixture.listing("inner", ListingStatus::Whole) };
        change(&fixture);
        fixture.record(listing);
        assert_ne!(fixture.digests()[1], Some(SECOND));
    }
}

#[test]
fn folder_that_was_purged_since_the_walk_read_it_has_no_digest() {
    let fixture = Fixture::new();
    let listing = Listing { digest: Some(SECOND), ..fixture.listing("inner", ListingStatus::Whole) };
    fixture.sql("UPDATE library_files SET folder_id = NULL WHERE relative_path = 'inner/b'");
    fixture.sql("DELETE FROM folders WHERE relative_path = 'inner'");
    fixture.record(listing);
    let folder = fixture.store.catalog().folder(fixture.root, Path::new("inner")).unwrap();
    assert_eq!(folder.unwrap().digest, None);
    let dangling = "SELECT count(*) FROM library_files WHERE folder_id NOT IN (SELECT id FROM folders)";
    assert_eq!(fixture.conn.query_row(dangling, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

#[test]
fn named_file_replaces_the_digests_of_all_folders_above_it() {
    check([false, false], |fixture| {
        let new_files = vec![(OsString::from("c"), stat())];
        fixture.record(Listing { new_files, ..fixture.listing("inner", ListingStatus::Named) });
    });
    // A folder that was not known before.
    check([false, true], |fixture| {
        let new_files = vec![(OsString::from("c"), stat())];
        fixture.record(Listing { new_files, ..fixture.listing("new", ListingStatus::Named) });
    });
}

#[test]
fn removal_of_a_root_replaces_the_digests_around_its_folder() {
    check([false, false], |fixture| {
        fixture.store.scans().release(fixture.scan, "test").unwrap();
        let nested = fixture.store.roots().register(Path::new("/r/inner")).unwrap();
        fixture.store.roots().remove(nested.id).unwrap();
    });
}
