//! Scans of a root: begun, gone on with, begun anew; held by the living, taken over from the dead.

use std::path::Path;
use std::time::Duration;

use gristmill_store::catalog::{
    Algorithm, ChangedFile, FolderRef, HashedFile, Listing, ListingStatus, ReadResult, Stat,
};
use gristmill_store::scans::{Duplicates, FinishedScan, LEASE, Scan, ScanRequest, ScanTotals, WalkRecord};
use gristmill_store::{Durability, Error, Store, UtcTime, WallClock};
use tempfile::TempDir;

struct Desk {
    store: Store,
    clock: WallClock,
    folder: TempDir,
    root: i64,
}

fn start() -> UtcTime {
    UtcTime::parse("2026-01-01 00:00:00").expect("a time")
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = WallClock::manual(start());
        let options = Store::options().durability(Durability::Normal).clock(clock.clone());
        let store = options.open(folder.path().join("s.db")).expect("a store");
        let root = store.roots().register(Path::new("/r")).expect("a root").id;
        Desk { store, clock, folder, root }
    }

    fn wanted(&self, holder: &str) -> ScanRequest {
        ScanRequest {
            root: self.root,
            holder: holder.into(),
            settings: "all".into(),
            restart: false,
            // Who is alive is in the name; of anybody else nothing is known.
            is_alive: |holder| match holder {
                "living" => Some(true),
                "dead" => Some(false),
                _ => None,
            },
        }
    }

    fn begin(&self, holder: &str) -> Result<Scan, Error> {
        self.store.scans().begin(self.wanted(holder))
    }

    fn finish(
        &self,
        scan: &Scan,
        seen: ScanTotals,
        settled: Option<(&str, Duplicates)>,
    ) -> Result<(), Error> {
        let finished =
            FinishedScan { id: scan.id, root: scan.root, totals: seen, walk: Some(WalkRecord::default()) };
        self.store.scans().finish(vec![finished], settled)
    }

    fn sessions(&self) -> Vec<String> {
        let conn = rusqlite::Connection::open(self.folder.path().join("s.db")).expect("a connection");
        let sql = "SELECT status || ' ' || coalesce(holder, '-') || ' ' || coalesce(error_message, '-')
            FROM scan_sessions ORDER BY id";
        let mut statement = conn.prepare(sql).expect("a statement");
        statement.query_map([], |row| row.get(0)).expect("rows").map(|row| row.expect("a row")).collect()
    }

    #[track_caller]
    fn is_refused(&self, wanted: ScanRequest, holder: &str) {
        let Err(Error::Conflict(why)) = self.store.scans().begin(wanted) else { panic!("not refused") };
        assert!(why.contains(holder) && why.contains("2026-01-01 00:00:00"), "{why}");
    }
}

#[test]
fn one_that_was_released_is_gone_on_with() {
    let desk = Desk::new();
    let first = desk.begin("living").expect("begun");
    assert!(!first.resumed);
    desk.store.scans().release(first.id).expect("released");
    desk.clock.set(start().plus(Duration::from_secs(5)));
    let second = desk.begin("other").expect("gone on with");
    let id = first.id;
    assert_eq!(second, Scan { resumed: true, ..first });
    desk.store.scans().release(second.id).expect("released");
    let third = desk.begin("living").expect("gone on with");
    desk.finish(&third, ScanTotals { folders: 1, files: 2, bytes: 3, errors: 4 }, None).expect("finished");
    assert_eq!(desk.sessions(), ["succeeded - -"]);
    let fourth = desk.begin("living").expect("begun");
    assert!(!fourth.resumed && fourth.id > id);
    let root = desk.store.roots().list().expect("roots").remove(0);
    assert_eq!((root.folders, root.files, root.bytes), (Some(1), Some(2), Some(3)));
    assert_eq!(root.last_scanned_at, Some(desk.store.now()));
}

#[test]
fn another_request_or_a_restart_begins_anew() {
    let desk = Desk::new();
    let change: [fn(&mut ScanRequest); 2] =
        [|wanted| wanted.settings = "other".into(), |wanted| wanted.restart = true];
    for change in change {
        let first = desk.begin("living").expect("begun");
        desk.store.scans().release(first.id).expect("left");
        let mut wanted = desk.wanted("living");
        change(&mut wanted);
        let second = desk.store.scans().begin(wanted).expect("begun");
        assert!(!second.resumed && second.id != first.id);
        // The first is not running any more, whoever thinks it is.
        assert!(matches!(desk.finish(&first, ScanTotals::default(), None), Err(Error::Conflict(_))));
        assert!(desk.store.scans().heartbeat(vec![first.id], "living").is_err());
        desk.finish(&second, ScanTotals::default(), None).expect("finished");
    }
    assert_eq!(
        desk.sessions(),
        ["failed - begun anew", "succeeded - -", "failed - begun anew", "succeeded - -"]
    );
}

#[test]
fn one_that_a_living_process_holds_is_refused_by_its_name() {
    let desk = Desk::new();
    desk.begin("living").expect("begun");
    // However long it has been silent: it is known to live.
    for wait in [Duration::ZERO, LEASE * 100] {
        desk.clock.set(start().plus(wait));
        desk.is_refused(desk.wanted("other"), "living");
        desk.is_refused(ScanRequest { restart: true, ..desk.wanted("other") }, "living");
        desk.is_refused(ScanRequest { settings: "other".into(), ..desk.wanted("other") }, "living");
    }
    assert_eq!(desk.sessions(), ["running living -"]);
    // Another root is nobody's.
    let root = desk.store.roots().register(Path::new("/other")).expect("a root").id;
    desk.store.scans().begin(ScanRequest { root, ..desk.wanted("other") }).expect("begun");
}

#[test]
fn one_that_a_dead_process_held_is_taken_over_at_once() {
    let desk = Desk::new();
    let first = desk.begin("dead").expect("begun");
    let second = desk.begin("living").expect("taken over");
    assert_eq!((second.id, second.resumed), (first.id, true));
    assert_eq!(desk.sessions(), ["running living -"]);
    let Err(Error::Conflict(why)) = desk.store.scans().heartbeat(vec![first.id], "dead") else {
        panic!("kept")
    };
    assert!(why.contains("taken over"), "{why}");
}

#[test]
fn of_one_that_nobody_can_ask_about_silence_decides() {
    let desk = Desk::new();
    let first = desk.begin("elsewhere").expect("begun");
    let at = |seconds: u64| desk.clock.set(start().plus(Duration::from_secs(seconds)));
    let lease = LEASE.as_secs();
    at(lease - 1);
    desk.is_refused(desk.wanted("other"), "elsewhere");
    desk.store.scans().heartbeat(vec![first.id], "elsewhere").expect("kept");
    at(2 * lease - 2);
    desk.is_refused(desk.wanted("other"), "elsewhere");
    at(2 * lease - 1);
    let second = desk.begin("other").expect("taken over");
    assert_eq!((second.id, second.resumed), (first.id, true));
    assert!(desk.store.scans().heartbeat(vec![first.id], "elsewhere").is_err());
}

/// A beat is for all of a process's scans, or says which one is lost.
#[test]
fn a_beat_names_the_scan_that_was_lost() {
    let desk = Desk::new();
    let first = desk.begin("living").expect("begun");
    let root = desk.store.roots().register(Path::new("/other")).expect("a root").id;
    let second = desk.store.scans().begin(ScanRequest { root, ..desk.wanted("living") }).expect("begun");
    desk.store.scans().heartbeat(vec![first.id, second.id], "living").expect("kept");
    desk.finish(&second, ScanTotals::default(), None).expect("finished");
    let error = desk.store.scans().heartbeat(vec![first.id, second.id], "living").expect_err("lost");
    assert!(error.to_string().contains(&format!("scan {}", second.id)), "{error}");
}

#[test]
fn a_root_is_not_removed_under_a_scan() {
    let desk = Desk::new();
    let scan = desk.begin("living").expect("begun");
    assert!(matches!(desk.store.roots().remove(desk.root), Err(Error::Conflict(_))));
    desk.store.scans().release(scan.id).expect("released");
    desk.store.roots().remove(desk.root).expect("removed");
    assert_eq!(desk.sessions(), [""; 0]);
    assert!(matches!(desk.store.roots().remove(desk.root), Err(Error::NotFound(_))));
    // One whose holder has long been silent can go.
    let desk = Desk::new();
    desk.begin("elsewhere").expect("begun");
    desk.clock.set(start().plus(LEASE));
    desk.store.roots().remove(desk.root).expect("removed");
}

/// What a scan that read everything left is good for the next one: only for that, and only in the same manner.
#[test]
fn what_the_last_scan_settled_holds_until_something_else_was_done() {
    let desk = Desk::new();
    let duplicates = Duplicates { groups: 1, files: 2, reclaimable: 3 };
    let settled =
        |manner: &str, own: &[i64]| desk.store.scans().last_full_comparison(manner, own).expect("an answer");
    let finish = |left| {
        let scan = desk.begin("living").expect("begun");
        desk.finish(&scan, ScanTotals::default(), left).expect("finished");
    };
    assert_eq!(settled("blake3", &[]), None);
    finish(Some(("blake3", duplicates)));
    assert_eq!(settled("blake3", &[]), Some(duplicates));
    assert_eq!(settled("sha256", &[]), None);
    // One that did not read everything, and one that is under way: not our own.
    finish(None);
    assert_eq!(settled("blake3", &[]), None);
    finish(Some(("blake3", duplicates)));
    let third = desk.begin("living").expect("begun");
    assert_eq!(settled("blake3", &[]), None);
    assert_eq!(settled("blake3", &[third.id]), Some(duplicates));
    // Of two the one that ended last, whichever began first.
    let other = desk.store.roots().register(Path::new("/other")).expect("a root").id;
    let fourth =
        desk.store.scans().begin(ScanRequest { root: other, ..desk.wanted("living") }).expect("begun");
    let more = Duplicates { groups: 2, ..duplicates };
    desk.finish(&fourth, ScanTotals::default(), Some(("blake3", duplicates))).expect("finished");
    desk.finish(&third, ScanTotals::default(), Some(("blake3", more))).expect("finished");
    assert_eq!(settled("blake3", &[]), Some(more));
    // Rows change owners, or are put right: nothing is settled any more.
    let undo: [&dyn Fn(); 3] = [
        &|| drop(desk.store.roots().register(Path::new("/r/in")).expect("a root")),
        &|| drop(desk.store.catalog().repair().expect("repaired")),
        &|| assert_eq!(desk.store.roots().remove(other).expect("removed").files, 0),
    ];
    for undo in undo {
        finish(Some(("blake3", duplicates)));
        assert_eq!(settled("blake3", &[]), Some(duplicates));
        undo();
        assert_eq!(settled("blake3", &[]), None);
    }
}

/// Rows of a scan that was killed may be unread when another one ends.
#[test]
fn scan_that_ends_while_another_is_unfinished_settles_nothing() {
    let desk = Desk::new();
    let duplicates = Duplicates { groups: 1, files: 2, reclaimable: 3 };
    let other = desk.store.roots().register(Path::new("/other")).expect("a root").id;
    desk.begin("dead").expect("begun");
    let second =
        desk.store.scans().begin(ScanRequest { root: other, ..desk.wanted("living") }).expect("begun");
    desk.finish(&second, ScanTotals::default(), Some(("blake3", duplicates))).expect("finished");
    let third =
        desk.store.scans().begin(ScanRequest { restart: true, ..desk.wanted("living") }).expect("begun");
    assert_eq!(desk.store.scans().last_full_comparison("blake3", &[third.id]).expect("an answer"), None);
    assert!(!desk.store.scans().is_fully_compared(&[]).expect("an answer"));
    desk.finish(&third, ScanTotals::default(), Some(("blake3", duplicates))).expect("finished");
    assert!(desk.store.scans().is_fully_compared(&[]).expect("an answer"));
    assert_eq!(desk.store.scans().unfinished().expect("an answer"), [0; 0]);
}

#[test]
fn every_write_that_changes_a_file_clears_the_settled_mark() {
    let desk = Desk::new();
    let settle = || {
        let scan = desk.begin("living").expect("begun");
        desk.finish(&scan, ScanTotals::default(), Some(("blake3", Duplicates::default()))).expect("finished");
    };
    let settled = || desk.store.scans().is_fully_compared(&[]).expect("an answer");
    let top = FolderRef { root: desk.root, id: None, path: "".into() };
    let empty = || Listing { status: ListingStatus::Whole, ..Listing::new(1, top.clone()) };
    let stat = Stat { size: 5, inode: 1, ..Stat::default() };
    settle();
    desk.store.catalog().record(vec![empty()]).expect("recorded");
    assert!(settled(), "a folder that is as it was changes no file");
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
        desk.store.catalog().record(vec![listing.clone()]).expect("recorded");
        assert!(!settled(), "{listing:?}");
    }
    settle();
    let finding = ReadResult::Content(Algorithm::Sha256, vec![1; 32]);
    desk.store.catalog().record_shared(vec![HashedFile { id: 1, stat, result: finding }]).expect("settled");
    assert!(!settled(), "a file was read with another algorithm");
}
