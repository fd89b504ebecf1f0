//! The HTML report: its target, and the files that it does not overwrite.
#![cfg(unix)]

mod common;

use common::{Home, assert_shape, mount, with_mounts};

fn library() -> Home {
    let home = Home::new();
    home.files(&[(b"a/<script>one", b"same"), (b"a/two", b"same")]);
    home.scan(&["a"]);
    home
}

/// Returns the files of the home except hidden folders, to check that no draft is left.
fn names(home: &Home) -> Vec<String> {
    let entries = std::fs::read_dir(home.path("")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".local");
    names.sort();
    names
}

#[test]
fn report_replaces_an_earlier_report() {
    let home = library();
    let report = home.json(&["report", "--html", "page.html"]);
    assert_shape("report", &report);
    let page = std::fs::read_to_string(home.path("page.html")).unwrap();
    assert_eq!(report["bytes"], page.len());
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("&lt;script&gt;one"), "{page}");
    home.files(&[(b"a/three", b"same")]);
    home.scan(&[]);
    home.check(&["report", "--html", "page.html"], 0, "page.html (", "");
    assert_ne!(std::fs::read_to_string(home.path("page.html")).unwrap(), page);
    assert_eq!(names(&home), ["a", "page.html"]);
    home.check(&["report", "--html", "-"], 0, "<!DOCTYPE html>", "");
    assert!(home.json(&["report", "--html", "-"])["html"].as_str().unwrap().contains("</html>"));
}

#[test]
fn report_refuses_to_overwrite_other_files_without_force() {
    let home = library();
    home.write("mine.html", "<!DOCTYPE html>\nmine");
    home.write("empty.html", "");
    for name in ["mine.html", "empty.html"] {
        let before = std::fs::read(home.path(name)).unwrap();
        home.check(&["report", "--html", name], 1, "", "exists and is not a Gristmill report; ");
        assert_eq!(std::fs::read(home.path(name)).unwrap(), before);
    }
    home.check(&["report", "--html", "a"], 1, "", "a is a folder; name a file in it");
    home.check(&["report", "--html", "a", "--force"], 1, "", "a is a folder; name a file in it");
    home.check(
        &["report", "--html", "/dev/null", "--force"],
        1,
        "",
        "is not a regular file; `--html -` writes to standard",
    );
    home.check(&["report", "--html", "no/page.html"], 1, "", "choose another file with --html");
    home.check(&["report"], 1, "", "--html <FILE>");
    std::os::unix::fs::symlink("mine.html", home.path("link.html")).unwrap();
    home.check(&["report", "--html", "link.html"], 1, "", "is not a Gristmill report");
    home.check(&["report", "--html", "link.html", "--force"], 0, "mine.html (", "");
    assert!(home.path("link.html").is_symlink());
    assert!(std::fs::read_to_string(home.path("mine.html")).unwrap().contains("Made by Gristmill"));
    assert_eq!(names(&home), ["a", "empty.html", "link.html", "mine.html"]);
}

#[test]
fn report_without_a_database_writes_nothing() {
    let home = Home::new();
    home.check(&["report", "--html", "page.html"], 1, "", "`gristmill scan FOLDER` creates it");
    assert!(names(&home).is_empty());
}

#[test]
fn full_disk_is_exit_status_2_and_leaves_no_part_of_a_file() {
    with_mounts("full_disk_is_exit_status_2_and_leaves_no_part_of_a_file", || {
        let home = library();
        let full = home.path("full");
        std::fs::create_dir(&full).unwrap();
        mount("size=8k", &full);
        let old = "<!DOCTYPE html>Made by Gristmill.";
        std::fs::write(full.join("page.html"), old).unwrap();
        for words in [
            &["report", "--html", "full/page.html"][..],
            &["report", "--html", "full/new.html"],
            &["man", "--out", "full"],
            &["--config", "full/c.toml", "config", "init"],
            &["backup", "full/copy.db"],
        ] {
            home.check(words, 2, "", "full/");
        }
        let left: Vec<_> = std::fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let small = |name: &&std::ffi::OsString| !name.to_str().unwrap().ends_with(".1");
        assert_eq!(left.iter().filter(small).collect::<Vec<_>>(), ["page.html"]);
        assert_eq!(std::fs::read_to_string(full.join("page.html")).unwrap(), old);
    });
}
