//! Scans of a root: begin, resume, restart, and take-over from dead holders.

use std::path::Path;
use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::catalog::{
    Algorithm, Batch, ChangedFile, Digest, FileHash, FolderRef, Listing, ListingStatus, ReadResult, Stat,
};
use gristmill_store::scans::{Duplicates, FinishedScan, LEASE, Scan, ScanRequest, ScanScope, ScanTotals, WalkRecord};
use gristmill_store::{Durability, Error, Store, UtcTime};
use tempfile::TempDir;

struct Fixture {
    store: Store,
    clock: ManualClock,
    folder: TempDir,
    root: i64,
}

fn start() -> UtcTime {
    UtcTime::parse("2026-01-01 00:00:00").expect("a time")
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = ManualClock::at(start().micros());
        let options = Store::options().durability(Durability::Normal).clock(clock.clone());
        let store = options.open(folder.path().join("s.db")).expect("a store");
        let root = store.roots().register(Path::new("/r")).expect("a root").id;
        Fixture { store, clock, folder, root }
    }

    fn request(&self, holder: &str) -> ScanRequest {
        ScanRequest {
            root: self.root,
            scope: ScanScope::Root,
            holder: holder.into(),
            settings: "all".into(),
            restart: false,
            // The name states whether the holder is alive; other holders are unknown.
            is_alive: |holder| match holder {
                "alive" => Some(true),
                "dead" => Some(false),
                _ => None,
            },
        }
    }

    fn begin(&self, holder: &str) -> Result<Scan, Error> {
        self.store.scans().begin(self.request(holder))
    }

    fn finish(&self, scan: &Scan, totals: ScanTotals, settled: Option<(&str, Duplicates)>) -> Result<(), Error> {
        let finished = FinishedScan { id: scan.id, root: scan.root, totals, walk: Some(WalkRecord::default()) };
        self.store.scans().finish(vec![finished], "alive", settled)
    }

    /// Moves the clock, so that a scan that begins now is later than those that have finished.
    fn tick(&self) {
        self.clock.advance(Duration::from_micros(1));
    }

    fn sessions(&self) -> Vec<String> {
        let conn = rusqlite::Connection::open(self.folder.path().join("s.db")).expect("a connection");
        let sql = "SELECT status || ' ' || coalesce(holder, '-') || ' ' || coalesce(error_message, '-')
            FROM scan_sessions ORDER BY id";
        let mut statement = conn.prepare(sql).expect("a statement");
        statement.query_map([], |row| row.get(0)).expect("rows").map(|row| row.expect("a row")).collect()
    }

    #[track_caller]
    fn assert_refused(&self, request: ScanRequest, holder: &str) {
        let Err(Error::Conflict(message)) = self.store.scans().begin(request) else { panic!("not refused") };
        assert!(message.contains(holder) && message.contains("2026-01-01 00:00:00"), "{message}");
    }
}

#[test]
fn released_scan_is_resumed() {
    let fixture = Fixture::new();
    let first = fixture.begin("alive").expect("a new scan");
    assert!(!first.resumed);
    fixture.store.scans().release(first.id, "alive").expect("released");
    fixture.clock.set_unix_micros(start().plus(Duration::from_secs(5)).micros());
    let second = fixture.begin("other").expect("a resumed scan");
    let id = first.id;
    assert_eq!(second, Scan { resumed: true, ..first });
    fixture.store.scans().release(second.id, "other").expect("released");
    let third = fixture.begin("alive").expect("a resumed scan");
    fixture.finish(&third, ScanTotals { folders: 1, files: 2, bytes: 3, errors: 4 }, None).expect("finished");
    assert_eq!(fixture.sessions(), ["succeeded - -"]);
    let fourth = fixture.begin("alive").expect("a new scan");
    assert!(!fourth.resumed && fourth.id > id);
    let root = fixture.store.roots().list().expect("roots").remove(0);
    assert_eq!((root.folders, root.files, root.bytes), (Some(1), Some(2), Some(3)));
    assert_eq!(root.last_scanned_at, Some(fixture.store.now()));
}

#[test]
fn other_settings_or_restart_begin_a_new_scan() {
    let fixture = Fixture::new();
    let change: [fn(&mut ScanRequest); 2] =
        [|request| request.settings = "other".into(), |request| request.restart = true];
    for change in change {
        let first = fixture.begin("alive").expect("a new scan");
        fixture.store.scans().release(first.id, "alive").expect("released");
        let mut request = fixture.request("alive");
        change(&mut request);
        let second = fixture.store.scans().begin(request).expect("a new scan");
        assert!(!second.resumed && second.id != first.id);
        // The former holder can neither finish nor renew the first scan.
        assert!(matches!(fixture.finish(&first, ScanTotals::default(), None), Err(Error::Conflict(_))));
        assert!(fixture.store.scans().heartbeat(vec![first.id], "alive").is_err());
        fixture.finish(&second, ScanTotals::default(), None).expect("finished");
    }
    assert_eq!(fixture.sessions(), ["failed - replaced by a new scan", "succeeded - -"].repeat(2));
}

/// A scan of a part neither finishes a root that was never scanned completely nor replaces a scan of the whole root.
#[test]
fn scan_of_a_part_leaves_the_root_as_unfinished_as_it_was() {
    for scope in [ScanScope::KnownFiles, ScanScope::NamedFiles] {
        let fixture = Fixture::new();
        let scans = fixture.store.scans();
        let root = || fixture.store.roots().list().expect("roots").remove(0);
        let part = |settings: &str| ScanRequest { scope, settings: settings.into(), ..fixture.request("alive") };
        let totals = ScanTotals { files: 2, ..ScanTotals::default() };
        let finish = |scan: &Scan| {
            let finished = FinishedScan { id: scan.id, root: scan.root, totals, walk: None };
            scans.finish(vec![finished], "alive", None).expect("finished");
        };
        finish(&scans.begin(part("part")).expect("a scan"));
        assert_eq!((root().last_scanned_at, scans.unfinished().expect("roots")), (None, vec![fixture.root]));
        let named = if scope == ScanScope::NamedFiles { vec![(fixture.root, 2)] } else { Vec::new() };
        assert_eq!(scans.partly_scanned().expect("roots"), named);

        let whole = fixture.begin("dead").expect("a scan of the whole root");
        let first = scans.begin(part("part")).expect("a scan of a part");
        assert!(scans.heartbeat(vec![whole.id], "dead").is_err(), "the killed scan is no longer held");
        assert!(fixture.begin("other").is_err(), "the root is held by the scan of a part");
        scans.release(first.id, "alive").expect("released");
        let second = scans.begin(part("another part")).expect("it replaces the scan of a part");
        finish(&second);
        assert!(scans.heartbeat(vec![first.id], "alive").is_err());
        assert_eq!(scans.unfinished().expect("roots"), [fixture.root]);
        assert_eq!(scans.partly_scanned().expect("roots"), [], "a scan of the whole root is unfinished");
        let third = scans.begin(part("part")).expect("a scan of a part");
        scans.release(third.id, "alive").expect("released");
        let resumed = fixture.begin("alive").expect("a scan of the whole root");
        assert_eq!((resumed.id, resumed.resumed), (whole.id, true));
        fixture.finish(&resumed, totals, None).expect("finished");
        assert_eq!(scans.unfinished().expect("roots"), [0; 0]);

        let since = root().last_scanned_at;
        fixture.tick();
        finish(&scans.begin(part("part")).expect("a scan of a part"));
        assert_eq!(root().last_scanned_at == since, scope == ScanScope::NamedFiles, "{scope:?}");
        assert_eq!(scans.partly_scanned().expect("roots"), []);
    }
}

#[test]
fn scan_of_a_live_holder_is_refused_with_its_name() {
    let fixture = Fixture::new();
    fixture.begin("alive").expect("a new scan");
    // It is known to be alive, however long its heartbeat is missing.
    for wait in [Duration::ZERO, LEASE * 100] {
        fixture.clock.set_unix_micros(start().plus(wait).micros());
        fixture.assert_refused(fixture.request("other"), "alive");
        fixture.assert_refused(ScanRequest { restart: true, ..fixture.request("other") }, "alive");
        fixture.assert_refused(ScanRequest { settings: "other".into(), ..fixture.request("other") }, "alive");
    }
    assert_eq!(fixture.sessions(), ["running alive -"]);
    // Another root is not held.
    let root = fixture.store.roots().register(Path::new("/other")).expect("a root").id;
    fixture.store.scans().begin(ScanRequest { root, ..fixture.request("other") }).expect("a new scan");
}

#[test]
fn scan_of_a_dead_holder_is_taken_over_at_once() {
    let fixture = Fixture::new();
    let first = fixture.begin("dead").expect("a new scan");
    let second = fixture.begin("alive").expect("taken over");
    assert_eq!((second.id, second.resumed), (first.id, true));
    assert_eq!(fixture.sessions(), ["running alive -"]);
    let Err(Error::Conflict(message)) = fixture.store.scans().heartbeat(vec![first.id], "dead") else {
        panic!("not taken over")
    };
    assert!(message.contains("taken over"), "{message}");
}

#[test]
fn scan_of_an_unknown_holder_is_taken_over_after_the_lease() {
    let fixture = Fixture::new();
    let first = fixture.begin("elsewhere").expect("a new scan");
    let at = |seconds: u64| fixture.clock.set_unix_micros(start().plus(Duration::from_secs(seconds)).micros());
    let lease = LEASE.as_secs();
    at(lease - 1);
    fixture.assert_refused(fixture.request("other"), "elsewhere");
    fixture.store.scans().heartbeat(vec![first.id], "elsewhere").expect("a renewed heartbeat");
    at(2 * lease - 2);
    fixture.assert_refused(fixture.request("other"), "elsewhere");
    at(2 * lease - 1);
    let second = fixture.begin("other").expect("taken over");
    assert_eq!((second.id, second.resumed), (first.id, true));
    assert!(fixture.store.scans().heartbeat(vec![first.id], "elsewhere").is_err());
}

#[test]
fn former_holder_of_a_scan_can_neither_release_nor_finish_it() {
    let fixture = Fixture::new();
    let scan = fixture.begin("dead").expect("a new scan");
    fixture.begin("alive").expect("taken over");
    let scans = fixture.store.scans();
    scans.release(scan.id, "dead").expect("no release");
    let finished = FinishedScan { id: scan.id, root: scan.root, totals: ScanTotals::default(), walk: None };
    assert!(matches!(scans.finish(vec![finished], "dead", None), Err(Error::Conflict(_))));
    assert_eq!(fixture.sessions(), ["running alive -"]);
    fixture.finish(&scan, ScanTotals::default(), None).expect("finished by its holder");
}

/// A heartbeat renews all scans of a process, or names the one that was lost.
#[test]
fn heartbeat_names_the_scan_that_was_lost() {
    let fixture = Fixture::new();
    let first = fixture.begin("alive").expect("a new scan");
    let root = fixture.store.roots().register(Path::new("/other")).expect("a root").id;
    let second = fixture.store.scans().begin(ScanRequest { root, ..fixture.request("alive") }).expect("a new scan");
    fixture.store.scans().heartbeat(vec![first.id, second.id], "alive").expect("a renewed heartbeat");
    fixture.finish(&second, ScanTotals::default(), None).expect("finished");
    let error = fixture.store.scans().heartbeat(vec![first.id, second.id], "alive").expect_err("lost");
    assert!(error.to_string().contains(&format!("scan {}", second.id)), "{error}");
}

#[test]
fn root_is_not_removed_while_it_is_scanned() {
    let fixture = Fixture::new();
    let scan = fixture.begin("alive").expect("a new scan");
    assert!(matches!(fixture.store.roots().remove(fixture.root), Err(Error::Conflict(_))));
    fixture.store.scans().release(scan.id, "alive").expect("released");
    fixture.store.roots().remove(fixture.root).expect("removed");
    assert_eq!(fixture.sessions(), [""; 0]);
    assert!(matches!(fixture.store.roots().remove(fixture.root), Err(Error::NotFound(_))));
    // A root whose holder has not renewed its heartbeat for a lease can be removed.
    let fixture = Fixture::new();
    fixture.begin("elsewhere").expect("a new scan");
    fixture.clock.set_unix_micros(start().plus(LEASE).micros());
    fixture.store.roots().remove(fixture.root).expect("removed");
}

/// The result of a full comparison is reused only while nothing changes, and only for the same method.
#[test]
fn full_comparison_is_reused_until_the_catalog_changes() {
    let fixture = Fixture::new();
    let duplicates = Duplicates { groups: 1, files: 2, reclaimable: 3 };
    let settled = |method: &str, own: &[i64]| fixture.store.scans().is_compared_with(method, own).expect("a result");
    let finish = |settled| {
        fixture.tick();
        let scan = fixture.begin("alive").expect("a new scan");
        fixture.finish(&scan, ScanTotals::default(), settled).expect("finished");
    };
    assert!(!settled("blake3", &[]));
    finish(Some(("blake3", duplicates)));
    assert!(settled("blake3", &[]));
    assert!(!settled("sha256", &[]));
    // Neither after a scan without a full comparison, nor during another scan; the caller's own scan does not count.
    finish(None);
    assert!(!settled("blake3", &[]));
    finish(Some(("blake3", duplicates)));
    let third = fixture.begin("alive").expect("a new scan");
    assert!(!settled("blake3", &[]));
    assert!(settled("blake3", &[third.id]));
    // Nor after two concurrent scans: the one that ended last may not have compared files that the other added.
    let other = fixture.store.roots().register(Path::new("/other")).expect("a root").id;
    let fourth =
        fixture.store.scans().begin(ScanRequest { root: other, ..fixture.request("alive") }).expect("a new scan");
    fixture.finish(&fourth, ScanTotals::default(), Some(("blake3", duplicates))).expect("finished");
    fixture.finish(&third, ScanTotals::default(), Some(("blake3", duplicates))).expect("finished");
    assert!(!settled("blake3", &[]));
    // Moved, repaired or deleted rows clear the settled mark.
    let undo: [&dyn Fn(); 3] = [
        &|| drop(fixture.store.roots().register(Path::new("/r/in")).expect("a root")),
        &|| drop(fixture.store.catalog().repair().expect("repaired")),
        &|| assert_eq!(fixture.store.roots().remove(other).expect("removed").files, 0),
    ];
    for undo in undo {
        finish(Some(("blake3", duplicates)));
        assert!(settled("blake3", &[]));
        undo();
        assert!(!settled("blake3", &[]));
    }
}

/// Rows of a killed scan may be unread when another scan ends.
#[test]
fn scan_that_ends_while_another_is_unfinished_is_not_settled() {
    let fixture = Fixture::new();
    let duplicates = Duplicates { groups: 1, files: 2, reclaimable: 3 };
    let other = fixture.store.roots().register(Path::new("/other")).expect("a root").id;
    fixture.begin("dead").expect("a new scan");
    let second =
        fixture.store.scans().begin(ScanRequest { root: other, ..fixture.request("alive") }).expect("a new scan");
    fixture.finish(&second, ScanTotals::default(), Some(("blake3", duplicates))).expect("finished");
    fixture.tick();
    // It replaces the killed scan, which is marked as failed at the time when this one begins.
    let third =
        fixture.store.scans().begin(ScanRequest { restart: true, ..fixture.request("alive") }).expect("a new scan");
    assert!(!fixture.store.scans().is_compared_with("blake3", &[third.id]).expect("a result"));
    assert!(!fixture.store.scans().is_fully_compared(&[]).expect("a result"));
    fixture.finish(&third, ScanTotals::default(), Some(("blake3", duplicates))).expect("finished");
    assert!(fixture.store.scans().is_fully_compared(&[]).expect("a result"));
    assert_eq!(fixture.store.scans().unfinished().expect("a result"), [0; 0]);
}

#[test]
fn every_write_that_changes_a_file_clears_the_settled_mark() {
    let fixture = Fixture::new();
    let settle = || {
        fixture.tick();
        let scan = fixture.begin("alive").expect("a new scan");
        fixture.finish(&scan, ScanTotals::default(), Some(("blake3", Duplicates::default()))).expect("finished");
    };
    let settled = || fixture.store.scans().is_fully_compared(&[]).expect("a result");
    let top = FolderRef { root: fixture.root, id: None, path: "".into() };
    let empty = || Listing { status: ListingStatus::Whole, ..Listing::new(1, top.clone()) };
    let stat = Stat { size: 5, inode: 1, ..Stat::default() };
    settle();
    fixture.store.catalog().record(vec![empty()]).expect("recorded");
    assert!(settled(), "an unchanged folder changes no file");
    for listing in [
        Listing { new_files: vec![("a".into(), stat)], ..empty() },
        Listing { changed_files: vec![ChangedFile { id: 1, stat, keeps_hash: true }], ..empty() },
        Listing { missing_files: vec![1], ..empty() },
        Listing { excluded_files: vec![1], ..empty() },
        Listing { missing_folders: vec!["f".into()], ..empty() },
        Listing { excluded_folders: vec!["f".into()], ..empty() },
        Listing { foreign_folders: vec!["f".into()], ..empty() },
    ] {
        settle();
        assert!(settled());
        fixture.store.catalog().record(vec![listing.clone()]).expect("recorded");
        assert!(!settled(), "{listing:?}");
    }
    settle();
    let result = ReadResult::Content(Digest::shared(Algorithm::Sha256, vec![1; 32]));
    fixture
        .store
        .catalog()
        .write(Batch { hashes: vec![FileHash::of_row(1, stat, result)], ..Batch::default() })
        .expect("recorded");
    assert!(!settled(), "a file was read with another algorithm");
}

#[test]
fn scans_are_listed_newest_first_with_their_root() {
    let fixture = Fixture::new();
    let other = fixture.store.roots().register(Path::new("/q")).expect("a root").id;
    let first = fixture.begin("alive").expect("a scan");
    fixture.tick();
    let totals = ScanTotals { folders: 2, files: 3, bytes: 40, errors: 1 };
    let duplicates = Duplicates { groups: 5, files: 11, reclaimable: 60 };
    fixture.finish(&first, totals, Some(("blake3", duplicates))).expect("finished");
    let request = ScanRequest { root: other, scope: ScanScope::NamedFiles, ..fixture.request("alive") };
    let second = fixture.store.scans().begin(request).expect("a scan");
    let third = fixture.begin("alive").expect("a scan");

    let scans = fixture.store.scans();
    let ids = |root, after, limit| {
        let page = scans.list(root, after, limit).expect("a page");
        (page.items.iter().map(|scan| scan.id).collect::<Vec<_>>(), page.next_cursor)
    };
    assert_eq!(ids(None, None, 2), (vec![third.id, second.id], Some(second.id.to_string())));
    assert_eq!(ids(None, Some(second.id), 2), (vec![first.id], None));
    assert_eq!(ids(Some(fixture.root), None, 9), (vec![third.id, first.id], None));
    assert_eq!(ids(Some(99), None, 9), (vec![], None));
    let json = |id| serde_json::to_string(&scans.get(id).expect("a scan")).expect("JSON");
    assert_eq!(
        json(first.id),
        r#"{"id":1,"library_id":1,"root_path":"/r","status":"succeeded","started_at":"2026-01-01T00:00:00.000000Z","#
            .to_owned()
            + r#""finished_at":"2026-01-01T00:00:00.000001Z","error_message":null,"files_seen":3,"directories_seen":2,"#
            + r#""bytes_seen":40,"error_count":1,"duplicate_groups":5,"duplicate_files":11,"reclaimable_bytes":60,"#
            + r#""scope":"root"}"#
    );
    assert!(
        json(second.id).contains(r#""root_path":"/q","status":"running""#) && json(second.id).contains("named_files")
    );
    assert_eq!(scans.get(9), Err(Error::NotFound("there is no scan 9".to_owned())));

    // A scan of the Python control plane belongs to no root.
    let conn = rusqlite::Connection::open(fixture.folder.path().join("s.db")).expect("a connection");
    conn.execute("INSERT INTO scan_sessions (status, error_message) VALUES ('failed', 'x')", []).expect("a row");
    let foreign = scans.list(None, None, 1).expect("a page").items.remove(0);
    assert_eq!((foreign.library_id, foreign.root_path, foreign.scope), (None, None, ScanScope::Root));
}
