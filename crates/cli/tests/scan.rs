//! Scans: results, exit status, and resuming.
#![cfg(unix)]

mod common;

use common::{Home, SlowScan, assert_shape, mount, with_mounts};
use serde_json::json;

#[test]
fn scan_prints_changes_and_duplicate_groups() {
    let home = Home::new();
    home.files(&[(b"a/one", &[1; 5_000]), (b"a/two", &[1; 5_000]), (b"a/b/three", &[2; 70_000]), (b"a/empty", b"")]);
    let (a, one) = (home.real("a"), home.real("a/one"));
    let space = format!("{:.1} KiB", home.allocated("a/one") as f64 / 1024.0);
    home.check(
        &["scan", "a"],
        0,
        &format!(
            "\nfiles: 4 new\n\n1 duplicate group, 2 files: {space} reclaimable\n{space:>12}  2 copies of \
             4.9 KiB: {one}\nList all copies: gristmill dupes\n"
        ),
        &format!("registered {a}\n"),
    );
    home.check(&["scan"], 0, "4 files in 2 folders, 78.1 KiB; read 0 files, 0 B; took ", "");
    home.files(&[(b"a/two", b"something else")]);
    std::fs::remove_file(home.path("a/b/three")).unwrap();
    home.check(&["scan", "a"], 0, "files: 1 changed, 1 missing\n\nno duplicates\n", "");
    home.files(&[(b"other/x", b"x")]);
    home.check(&["scan", "other"], 0, "no duplicates in any root\n", "/other\n");
    let summary = home.scan(&["a"]);
    assert_shape("scan", &summary);
    assert_eq!(summary["roots"], json!([a]));
}

#[test]
fn scan_refuses_an_unmounted_disk_and_reports_a_different_one() {
    with_mounts("scan_refuses_an_unmounted_disk_and_reports_a_different_one", || {
        let home = Home::new();
        let disk = home.path("disk");
        let unmount = || assert!(std::process::Command::new("umount").arg(&disk).status().unwrap().success());
        std::fs::create_dir(&disk).unwrap();
        mount("size=1m", &disk);
        home.files(&[(b"disk/file", &[1; 5_000]), (b"copies/file", &[1; 5_000])]);
        home.scan(&["disk", "copies"]);
        unmount();
        home.write("disk/.stray", "");
        home.check(&["scan", "disk"], 1, "disk: not on the disk of its last scan", "");
        let answer = home.json(&["dupes"]);
        assert_eq!((&answer["complete"], &answer["total_groups"]), (&json!(false), &json!(1)), "{answer}");
        mount("size=1m", &disk);
        home.write("disk/other", "other");
        home.check(&["scan", "disk"], 0, "1 new, 1 missing", "another disk is mounted at ");
        home.check(&["scan", "disk"], 0, "no duplicates", "");
        unmount();
        std::fs::remove_file(home.path("disk/.stray")).unwrap();
    });
}

/// A file of one root must not be searched for in the other.
#[test]
fn files_of_two_new_roots_scanned_together_are_kept_apart() {
    let home = Home::new();
    home.files(&[(b"a/one", b"same"), (b"b/two", b"same"), (b"a/x", b"that of a"), (b"b/x", b"that of b")]);
    let summary = home.scan(&["a", "b"]);
    assert_eq!((&summary["duplicate_files"], &summary["removed_files"]), (&json!(2), &json!(0)), "{summary}");
    let again = home.scan(&[]);
    for field in ["new_files", "changed_files", "returned_files", "read_files"] {
        assert_eq!(again[field], 0, "{field}: {again}");
    }
}

#[test]
fn walk_mode_reads_no_file_and_hash_mode_reads_them_later() {
    let home = Home::new();
    home.files(&[(b"a/one", b"same"), (b"a/two", b"same")]);
    home.check(&["scan", "--mode", "walk", "a"], 0, "2 files in 1 folder, 8 B; took ", "/a\n");
    home.check(&["dupes"], 0, "no duplicates so far\n", "");
    home.check(&["scan", "--mode", "hash", "a"], 0, "read 2 files, 8 B; took ", "");
    home.check(&["dupes"], 0, "2 copies of 4 B", "");
}

#[test]
fn invalid_scan_arguments_create_no_database() {
    let home = Home::new();
    home.write("file", "x");
    home.check(&["scan", "nowhere"], 1, "", "nowhere: no such file or folder");
    home.check(&["scan", "--files-from", "nowhere"], 1, "", "cannot read the list of files nowhere (--files-from): ");
    home.check(&["scan", "--mode", "hash", "file"], 1, "", "--mode hash reads all files that were recorded before");
    home.check(&["scan", ".", "--max-depth", "0"], 1, "", "'--max-depth <N>'");
    home.check(&["scan"], 1, "", "no folder has been scanned yet; name one: `gristmill scan FOLDER`");
    home.check(&["scan", "--yes"], 1, "", "no folder has been scanned yet");
    for (folder, mode) in [("all", "all"), ("folders", "walk"), ("files", "hash")] {
        let expected = format!("there is no folder {folder}; for a mode, write `gristmill scan --mode {mode}`");
        home.check(&["scan", folder, "."], 1, "", &expected);
    }
    home.check(&["scan", ".", "--min-size", "10X"], 1, "", "such as 10MiB, 1.5G or 200kB");
    home.check(&["scan", ".", "--exclude", ""], 1, "", "matches nothing; example");
    home.check(&["scan", ".", "--io-limit", "fast"], 1, "", "scan.io_limit is \"fast\" (--io-limit)");
    home.check(&["scan", ".", "--hash", "md5"], 1, "", "expected: blake3, sha256, sha512 or sha3-256");
    home.check(&["scan", ".", "--newer-than", "soon"], 1, "", "expected: a date such as 2026-01-31");
    assert!(!home.database().exists());
}

#[test]
fn named_files_are_scanned_alone() {
    let home = Home::new();
    home.files(&[
        (b"a/one", b"same"),
        (b"a/b/two", b"same"),
        (b"a/b/three", b"same"),
        (b"c/four", b"same"),
        (b"c/x", b"x"),
    ]);
    std::os::unix::fs::symlink("one", home.path("a/link")).unwrap();
    let incomplete = format!("incomplete: only 2 named files of {} have been scanned", home.real("a"));
    home.check(&["scan", "a/one", "a/b/../b/two"], 0, &incomplete, &format!("registered {}\n", home.real("a")));
    home.check(&["dupes"], 0, "2 copies of 4 B", "");
    home.check(&["roots"], 0, "only named files", "");
    assert_eq!(home.json(&["dupes"])["unfinished_roots"], json!([home.real("a")]));
    // A folder, and files of other folders.
    let summary = home.json(&["scan", "--quiet", "c", "a/b/three", "a/link", "c/four"]);
    assert_shape("scan-named", &summary);
    assert_eq!((&summary["named_files"], &summary["skipped_files"]), (&json!(3), &json!(1)), "{summary}");
    assert_eq!((&summary["new_files"], &summary["duplicate_files"]), (&json!(3), &json!(4)), "{summary}");
    home.check(&["scan", "a/link"], 0, "1 named file skipped:\n  ", "");
    home.check(&["scan", "a/b/no", "a/one"], 1, "", "a/b/no: no such file or folder");
    // A known file that no longer exists is marked missing; its name is still accepted.
    std::fs::remove_file(home.path("a/one")).unwrap();
    for missing in [1, 0] {
        let summary = home.json(&["scan", "--quiet", "a/one"]);
        assert_eq!((&summary["removed_files"], &summary["errors"]), (&json!(missing), &json!(0)), "{summary}");
    }
    home.check(&["scan", "a"], 0, "2 files in 2 folders", "");
    assert_eq!(home.json(&["dupes"])["complete"], true);
    home.check(&["scan", "a/link", "--follow-links"], 1, "1 item could not be scanned:\n", "");
}

#[test]
fn files_are_named_in_a_list() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    home.files(&[(b"a/one", b"same"), (b"a/t\nwo", b"same"), (b"a/caf\xe9", b"same"), (b"a/x", b"same")]);
    let scan = |input: &[u8]| home.run_with_input(&["scan", "--files-from", "-", "--json", "--quiet"], input);
    let check = |input: &[u8], code: i32, names: u64, files: u64, error: &str| {
        let output = scan(input);
        let summary = output.json();
        assert_eq!((output.code, &summary["named_files"]), (Some(code), &json!(names)), "{output:?}");
        assert_eq!(summary["files"], files, "{output:?}");
        assert!(summary["error_samples"].to_string().contains(error), "{output:?}");
    };
    check(b"", 0, 0, 0, "[]");
    check(b"a/one\n./a/../a/one\n", 0, 1, 1, "[]");
    check(b"a/t\nwo\0a/caf\xe9\0", 0, 2, 2, "[]");
    check(b"a/one\na/no\nno/no\na\n\n", 1, 4, 1, "a/no: no such file");
    check(b"a/t\nwo", 1, 2, 0, "wo: no such file");
    check(home.path("a/x").as_os_str().as_bytes(), 0, 1, 1, "[]");
    assert_eq!(home.json(&["dupes"])["total_files"], 4);
    let output = home.run(&["roots"]);
    assert_eq!(output.out.matches("only named files").count(), 1, "{output:?}");
    home.files(&[(b"list", b"a/one\na/x")]);
    home.check(&["scan", "--files-from", "list", "b"], 1, "", "b: no such file or folder");
    assert_eq!(home.json(&["scan", "--files-from", "list", "a"])["files"], 4);
}

/// Each folder would be a root, and the next scan without arguments would scan all of them.
#[test]
fn files_in_many_folders_outside_of_roots_are_refused() {
    let home = Home::new();
    let names: Vec<String> = (0..101).map(|number| format!("a/{number}/f")).collect();
    names.iter().for_each(|name| drop(home.write(name, "x")));
    let list = names.join("\n");
    let scan = ["scan", "--quiet", "--files-from", "-"];
    let output = home.run_with_input(&scan, list.as_bytes());
    let expected = format!(
        "each would become a root; at most 100 can. First register a folder that contains them: `gristmill scan {} --mode walk`",
        home.real("a")
    );
    output.check("101 folders", 1, "", &expected);
    assert!(!home.database().exists());
    home.scan(&["a", "--mode", "walk"]);
    assert_eq!(home.run_with_input(&scan, list.as_bytes()).code, Some(0));
    assert_eq!(home.json(&["roots"])["items"].as_array().unwrap().len(), 1);
}

#[test]
fn depth_limit_is_listed_with_the_filters_of_a_root() {
    let home = Home::new();
    home.files(&[(b"a/one", b"x"), (b"a/b/two", b"x"), (b"a/b/c/three", b"x")]);
    assert_eq!(home.scan(&["a", "--max-depth", "2"])["files"], 2);
    home.check(&["roots"], 0, "a     --max-depth 2\n", "");
    assert_eq!(home.json(&["roots"])["items"][0]["filters"]["max_depth"], 2);
    let summary = home.scan(&["a", "--max-depth", "1"]);
    assert_eq!((&summary["files"], &summary["excluded_files"]), (&json!(1), &json!(1)), "{summary}");
    assert_eq!(home.scan(&["a"])["included_files"], 1);
}

#[test]
fn unreadable_folder_is_skipped_and_its_name_is_escaped() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.files(&[(b"a/bad\x1b[2J\nname/x", b"x"), (b"a/one", b"same"), (b"a/two", b"same")]);
    let bad = home.path("a/bad\u{1b}[2J\nname");
    std::fs::set_permissions(&bad, std::fs::Permissions::from_mode(0o000)).unwrap();
    // Root can read the folder; then there is no error.
    let readable = std::fs::read_dir(&bad).is_ok();
    let output = home.run(&["scan", "a"]);
    assert_eq!(output.code, Some(i32::from(!readable)), "{output:?}");
    assert!(!output.out.contains('\u{1b}') && output.out.contains("2 copies of 4 B"), "{output:?}");
    assert!(readable || output.out.contains("1 item could not be read:\n"), "{output:?}");
    std::fs::set_permissions(&bad, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn root_path_that_is_not_utf8_is_scanned_and_listed() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    home.files(&[(b"caf\xe9/one", b"same"), (b"caf\xe9/two", b"same")]);
    let mut command = home.command(&["scan", "--quiet", "--json"]);
    let output = common::RunOutput::of(&command.arg(std::ffi::OsStr::from_bytes(b"caf\xe9")).output().unwrap());
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(output.json()["roots"][0], json!(home.real("caf\\xE9")));
    let roots = home.json(&["roots"]);
    let bytes = roots["items"][0]["path_bytes"].as_str().unwrap();
    assert!(bytes.ends_with("2f636166e9"), "{bytes}");
    home.check(&["roots"], 0, "caf\\xE9", "");
}

/// Creates files that cannot be read within a test at one byte per second.
fn library(home: &Home) {
    for number in 0..20_u8 {
        let content = [number; 4_096];
        home.files(&[
            (format!("a/{number}").as_bytes(), &content),
            (format!("a/copies/{number}").as_bytes(), &content),
        ]);
    }
}

#[test]
fn interrupted_scan_is_resumed_by_the_same_command() {
    let home = Home::new();
    library(&home);
    let output = SlowScan::start(&home, &["a"]).interrupt();
    assert_eq!(output.code, Some(130), "{output:?}");
    let text = "stopped; what was found is saved, and the same command resumes the scan\n";
    assert!(output.out.starts_with(text), "{output:?}");
    home.check(&["roots"], 0, "not finished", "");
    home.check(&["dupes"], 0, "Complete it with `gristmill scan`", "");

    let output = SlowScan::start(&home, &["a", "--json"]).interrupt();
    let summary = output.json();
    assert_eq!(output.code, Some(130));
    assert_eq!((&summary["interrupted"], &summary["resumed"]), (&json!(true), &json!(true)), "{summary}");

    let summary = home.scan(&["a"]);
    assert_eq!((&summary["interrupted"], &summary["resumed"]), (&json!(false), &json!(true)), "{summary}");
    assert_eq!(summary["duplicate_groups"], 20);
    assert_eq!(home.scan(&["a"])["resumed"], false);
}

#[test]
fn root_is_scanned_by_one_process_at_a_time() {
    let home = Home::new();
    library(&home);
    home.files(&[(b"b/x", b"x")]);
    let slow = SlowScan::start(&home, &["a"]);
    let holder = format!("by process {} on ", slow.process.id());
    let output = home.run(&["scan", "b", "a"]);
    output.check("the same root", 1, "", &format!("{}: already being scanned since ", home.real("a")));
    assert!(output.err.contains(&holder), "{output:?}");
    home.check(&["refresh", "--quiet"], 1, "", &holder);
    home.check(&["scan", "a/1", "b/x"], 1, "", &holder);
    home.check(
        &["roots", "remove", "a", "--yes"],
        1,
        "",
        "the root is being scanned, or its scan was killed less than a minute ago",
    );
    assert_eq!(home.scan(&["b"])["files"], 1, "another root is not locked");
    assert_eq!(slow.interrupt().code, Some(130));
    assert_eq!(home.scan(&["a"])["duplicate_groups"], 20);
}
