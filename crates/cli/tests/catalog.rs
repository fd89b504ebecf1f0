//! Maintenance of the catalog: `roots`, `refresh`, `purge` and `verify`.
#![cfg(unix)]

mod common;

use common::{Home, assert_shape};
use gristmill_store::catalog::{Listing, ListingStatus, Stat};
use serde_json::json;

fn library() -> Home {
    let home = Home::new();
    home.write("a/one", "same");
    home.write("a/sub/two", "same");
    home.write("a/sub/three", "same");
    home.write("b/four", "same");
    home.scan(&["a", "b"]);
    home
}

#[test]
fn roots_list_shows_counts_and_filters_of_the_last_scan() {
    let home = library();
    home.run(&["scan", "--follow-links", "b", "--quiet"]);
    let found = home.json(&["roots"]);
    assert_shape("roots", &found);
    assert_eq!(found["items"][0]["path"], json!(home.real("a")));
    let numbers =
        |number: usize| ["folders", "files", "bytes"].map(|field| found["items"][number][field].as_u64().unwrap());
    assert_eq!((numbers(0), numbers(1)), ([2, 3, 12], [1, 1, 4]));
    home.run(&["scan", "--min-size", "1KiB", "--exclude", "*.tmp", "--skip-hidden", "b", "--quiet"]);
    let filters = "b     --follow-links --exclude '*.tmp' --min-size 1024 --skip-hidden\n";
    assert!(home.run(&["roots"]).out.contains(filters), "{:?}", home.run(&["roots"]));
    assert_eq!(home.json(&["roots"])["items"][1]["filters"]["min_size"], 1024);
    home.run(&["scan", "--follow-links", "b", "--quiet"]);
    let output = home.run(&["roots"]);
    let start = "NAME  FOLDERS  FILES  SIZE  LAST SCAN (UTC)      PATH\na     2        3      12 B  2";
    assert!(output.out.starts_with(start), "{output:?}");
    let end = format!("  {}\n\nNAME  SCAN OPTIONS\nb     --follow-links\n", home.real("b"));
    assert!(output.out.ends_with(&end), "{output:?}");
    assert_eq!(home.run(&["roots", "list"]).out, output.out, "list is the default");
}

#[test]
fn roots_remove_deletes_catalog_records_and_no_file() {
    let home = library();
    let expected = format!("this removes {} and its records from the catalog; confirm with --yes", home.real("a"));
    home.check(&["roots", "remove", "a"], 1, "", &expected);
    home.check(&["roots", "remove", "c"], 1, "", "c: not a root (registered: ");
    let removed = home.json(&["roots", "remove", &home.real("a"), "--yes"]);
    assert_shape("roots-remove", &removed);
    assert_eq!((&removed["folders"], &removed["files"]), (&json!(2), &json!(3)));
    assert!(home.path("a/sub/two").exists());
    assert_eq!(home.json(&["roots"])["items"].as_array().unwrap().len(), 1);
    // The folder of a root may be missing.
    std::fs::remove_dir_all(home.path("b")).unwrap();
    let expected = format!("removed {} from the catalog: 1 folder, 1 file. No file was changed\n", home.real("b"));
    home.check(&["roots", "remove", "b", "-y"], 0, &expected, "");
    home.check(&["roots"], 0, "no folder has been scanned yet; scan one: `gristmill scan FOLDER`", "");
}

#[test]
fn refresh_finds_removed_and_changed_files_and_no_new_ones() {
    let home = library();
    std::fs::remove_file(home.path("a/sub/two")).unwrap();
    home.write("a/new", "same");
    home.write("b/four", "changed");
    home.check(&["refresh", "a"], 0, "2 files in 2 folders, 8 B; took ", "");
    let found = home.json(&["refresh"]);
    assert_shape("refresh", &found);
    assert_eq!((&found["changed_files"], &found["read_files"]), (&json!(1), &json!(0)), "{found}");
    assert_eq!(home.json(&["dupes"])["total_files"], 2, "missing and changed files are no duplicates");
    assert_eq!(home.scan(&[])["new_files"], 1);
    home.check(&["refresh", "nowhere"], 1, "", "nowhere: not a root (registered: ");
    drop(home.run(&["--db", "empty.db", "enqueue", "k", "--payload", "1"]));
    home.check(
        &["--db", "empty.db", "refresh"],
        1,
        "",
        "no folder has been scanned yet; scan one: `gristmill --db empty.db scan FOLDER`",
    );
}

#[test]
fn purge_deletes_records_of_missing_files_and_folders() {
    let home = library();
    std::fs::remove_dir_all(home.path("a/sub")).unwrap();
    home.json(&["refresh"]);
    home.check(
        &["purge", "all", "--before", "1d"],
        0,
        "deleted records of 0 files and 0 folders missing since before 2",
        "",
    );
    let purged = home.json(&["purge", "folders", "--before", "2999-01-01"]);
    assert_shape("purge", &purged);
    assert_eq!(purged, json!({"files": 0, "folders": 1}));
    let output = "deleted records of 2 files missing since before 2999-01-01 00:00:00 UTC. No file was changed\n";
    home.check(&["purge", "files", "--before", "2999-01-01"], 0, output, "");
    home.check(&["purge", "all", "--before", "2999-01-01"], 0, "deleted records of 0 files and 0 folders", "");
    assert!(home.path("a/one").exists());
    home.check(&["verify"], 0, "all checks passed", "");
    home.check(&["purge", "all"], 1, "", "--before <DATE>");
    home.check(&["purge", "all", "--before", "late"], 1, "", "expected: a date such as 2026-01-31 (UTC)");
    home.check(&["purge", "roots", "--before", "1d"], 1, "", "possible values: files, folders, all");
}

#[test]
fn verify_reports_a_wrong_count_and_repair_corrects_it() {
    let home = library();
    let healthy = home.json(&["verify"]);
    assert_shape("verify", &healthy);
    assert_eq!((&healthy["broken"], &healthy["repaired"]), (&json!(0), &json!(0)));
    home.check(&["verify"], 0, "\nall checks passed\n", "");

    // Adds a file without counting it.
    let store = home.store();
    let root = store.roots().list().unwrap()[1].id;
    let mut listing = Listing::new(1, store.catalog().root_folder(root).unwrap());
    listing.new_files =
        vec![("ghost".into(), Stat { size: 5, mtime_ns: 1, ctime_ns: 1, inode: 7, device: 7, ..Stat::default() })];
    listing.status = ListingStatus::Whole;
    store.catalog().record(vec![listing]).unwrap();
    drop(store);
    let output = home.run(&["verify"]);
    let text = "\n1 row inconsistent; repair with `gristmill verify --repair`\n";
    output.check("verify", 1, text, "");
    let failed = home.run(&["verify", "--json"]).json();
    let failed = failed["items"].as_array().unwrap().iter().find(|check| check["broken"] == 1).unwrap().clone();
    let row = output.out.lines().find(|line| line.starts_with(failed["name"].as_str().unwrap())).unwrap();
    assert!(row.contains(" 1 ") && row.ends_with(failed["repair"].as_str().unwrap()), "{row}");
    home.check(&["verify", "--repair"], 0, "\n1 row repaired\n", "");
    home.check(&["verify", "--repair"], 0, "\nall checks passed\n", "");
    assert_eq!(home.json(&["roots"])["items"][1]["files"], 2);
}
