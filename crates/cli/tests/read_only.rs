//! Databases on read-only media, or without write permission.
#![cfg(target_os = "linux")]

mod common;

use std::os::unix::fs::PermissionsExt;

use common::{Home, mount, with_mounts};

/// Creates a catalog with a task at `media/x.db`.
fn fill(home: &Home) {
    home.files(&[(b"a/one", b"same"), (b"a/two", b"same")]);
    home.check(&["--db", "media/x.db", "scan", "a"], 0, "2 copies of 4 B", "registered");
    home.check(&["--db", "media/x.db", "enqueue", "exec", "--", "true"], 0, "task 1", "");
}

#[track_caller]
fn check_read_only(home: &Home) {
    for (words, out) in [
        (&["dupes"][..], "2 copies of 4 B"),
        (&["folders"], "no "),
        (&["roots"], "/a"),
        (&["jobs", "list"], "exec"),
        (&["jobs", "show", "1"], "pending"),
        (&["dead", "list"], "no dead letters"),
        (&["verify"], "all checks passed"),
        (&["doctor"], "sqlite "),
        (&["report", "--html", "page.html"], "wrote "),
        (&["backup", "copy.db"], "wrote "),
    ] {
        home.check(&[&["--db", "media/x.db"], words].concat(), 0, out, "");
    }
    std::fs::remove_file(home.path("copy.db")).unwrap();
    for words in [
        &["scan", "a"][..],
        &["refresh"],
        &["purge", "all", "--before", "1d"],
        &["roots", "remove", "a", "--yes"],
        &["enqueue", "exec", "--", "true"],
        &["worker", "--once"],
        &["jobs", "cancel", "1"],
        &["verify", "--repair"],
        &["doctor", "--repair"],
    ] {
        let output = home.run(&[&["--db", "media/x.db"], words].concat());
        assert!(output.code == Some(1) && output.err.contains("is read-only"), "{words:?}: {output:?}");
        assert!(output.err.contains("media/x.db"), "{words:?}: {output:?}");
    }
}

#[test]
fn read_commands_work_on_read_only_media() {
    with_mounts("read_commands_work_on_read_only_media", || {
        let home = Home::new();
        let media = home.path("media");
        std::fs::create_dir(&media).unwrap();
        mount("size=8m", &media);
        fill(&home);
        mount("remount,ro", &media);
        check_read_only(&home);
        // A backup has no WAL.
        mount("remount,rw", &media);
        home.check(&["--db", "media/x.db", "backup", "media/y.db"], 0, "wrote ", "");
        std::fs::rename(home.path("media/y.db"), home.path("media/x.db")).unwrap();
        mount("remount,ro", &media);
        check_read_only(&home);
    });
}

#[test]
fn read_commands_work_in_a_read_only_folder() {
    let home = Home::unprivileged();
    std::fs::create_dir(home.path("media")).unwrap();
    fill(&home);
    let set = |name: &str, mode: u32| {
        std::fs::set_permissions(home.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set("media/x.db", 0o444);
    set("media", 0o555);
    check_read_only(&home);
    set("media", 0o755);
}

#[test]
fn wal_that_needs_recovery_on_read_only_media_is_named() {
    with_mounts("wal_that_needs_recovery_on_read_only_media_is_named", || {
        let home = Home::new();
        let media = home.path("media");
        std::fs::create_dir(&media).unwrap();
        mount("size=8m", &media);
        fill(&home);
        // As left by a killed process.
        std::fs::write(media.join("x.db-wal"), [7; 5_000]).unwrap();
        mount("remount,ro", &media);
        home.check(&["--db", "media/x.db", "dupes"], 1, "", "media/x.db-wal");
    });
}

/// A walk marks files as missing, and leaves the groups to the next list.
#[test]
fn groups_that_cannot_be_updated_are_listed_as_out_of_date() {
    with_mounts("groups_that_cannot_be_updated_are_listed_as_out_of_date", || {
        let home = Home::new();
        let media = home.path("media");
        std::fs::create_dir(&media).unwrap();
        mount("size=8m", &media);
        fill(&home);
        std::fs::remove_file(home.path("a/two")).unwrap();
        home.check(&["--db", "media/x.db", "scan", "--mode", "walk", "a"], 0, "files: 1 missing", "");
        mount("remount,ro", &media);
        let remark = "not up to date: the groups of 20";
        home.check(&["--db", "media/x.db", "dupes"], 0, remark, "");
        home.check(&["--db", "media/x.db", "dupes", "--fdupes"], 0, "", remark);
        assert_eq!(home.json(&["--db", "media/x.db", "dupes"])["current"], false);
        mount("remount,rw", &media);
        home.check(&["--db", "media/x.db", "dupes"], 0, "no duplicates", "");
        assert_eq!(home.json(&["--db", "media/x.db", "dupes"])["current"], true);
    });
}
