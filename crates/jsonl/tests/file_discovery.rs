//! Discovery of files: names that are not UTF-8, and entries that are not regular files.

#[macro_use]
mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use common::Fixture;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};

fn into_one() -> ImportOptions {
    options! { table: Some("t".to_owned()), ..ImportOptions::default() }
}

fn resume() -> ImportOptions {
    options! { resume: true, existing: ExistingTable::Append, ..into_one() }
}

/// Writes a file and returns its path.
fn write(fixture: &Fixture, name: &[u8], text: &str) -> PathBuf {
    std::fs::create_dir_all(fixture.data()).unwrap();
    let path = fixture.data().join(Path::new(OsStr::from_bytes(name)));
    std::fs::write(&path, text).unwrap();
    path
}

fn unchanged(summary: &ImportSummary) -> usize {
    summary.files.iter().filter(|file| file.outcome == FileOutcome::Unchanged).count()
}

#[test]
fn resume_distinguishes_files_whose_names_are_not_utf8() {
    let fixture = Fixture::new();
    write(&fixture, b"\xff.jsonl", "{\"a\":1}\n");
    write(&fixture, b"\xfe.jsonl", "{\"a\":2}\n");
    fixture.load(&into_one());
    assert_eq!(unchanged(&fixture.load(&resume())), 2);
    assert_eq!(fixture.all("SELECT a FROM t"), "2\n1");
    // The same contents under a third name, and one that looks like an escaped byte.
    write(&fixture, b"\xfd.jsonl", "{\"a\":1}\n");
    write(&fixture, b"\\xFF.jsonl", "{\"a\":1}\n");
    let summary = fixture.load(&resume());
    assert_eq!((unchanged(&summary), summary.rows), (2, 2));
    assert_eq!(unchanged(&fixture.load(&resume())), 4);
    assert_eq!(fixture.all("SELECT count(DISTINCT source), count(*) FROM _imports"), "4|4");
}

#[test]
fn filename_column_distinguishes_files_whose_names_are_not_utf8() {
    let fixture = Fixture::new();
    write(&fixture, b"\xff.jsonl", "{\"a\":1}\n");
    write(&fixture, b"\xfe.jsonl", "{\"a\":2}\n");
    fixture.load(&options! { filename_column: Some("file".to_owned()), ..into_one() });
    let path_of = |name: &str| fixture.data().join(name).display().to_string();
    assert_eq!(
        fixture.all("SELECT file, a FROM t"),
        format!("{}|2\n{}|1", path_of("\\xFE.jsonl"), path_of("\\xFF.jsonl"))
    );
}

fn failures(summary: &ImportSummary) -> Vec<(&str, &str)> {
    let mut failures = Vec::new();
    for file in &summary.files {
        if let FileOutcome::Failed(why) = &file.outcome {
            failures.push((file.source.rsplit('/').next().unwrap_or(""), why.as_str()));
        }
    }
    failures
}

#[test]
fn broken_links_and_pipes_in_folders_and_patterns_are_failures() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"a\":1}\n"), ("sub/c.jsonl", "{\"a\":2}\n")]);
    std::os::unix::fs::symlink("nowhere", fixture.data().join("b.jsonl")).unwrap();
    std::os::unix::fs::symlink("nowhere", fixture.data().join(".hidden.jsonl")).unwrap();
    std::os::unix::fs::symlink("nowhere", fixture.data().join("other.txt")).unwrap();
    std::os::unix::fs::symlink("a.jsonl", fixture.data().join("link.jsonl")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(fixture.data().join("p.jsonl")).status().unwrap();
    assert!(pipe.success());
    for given in [fixture.data(), fixture.data().join("*.jsonl"), fixture.data().join("**/*.jsonl")] {
        let _ = std::fs::remove_file(fixture.database());
        let summary = fixture.import_of(std::slice::from_ref(&given), &into_one()).unwrap();
        let failures = failures(&summary);
        assert_eq!(failures.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["b.jsonl", "p.jsonl"]);
        assert!(failures[0].1.contains("link"), "{failures:?}");
        assert!(failures[1].1.contains("not a regular file"), "{failures:?}");
        assert_eq!(fixture.one("SELECT a FROM t"), "1", "{given:?}");
    }
    // Files of other folders are loaded.
    let _ = std::fs::remove_file(fixture.database());
    let given = [fixture.data().join("b*.jsonl"), fixture.data().join("sub")];
    assert_eq!(failures(&fixture.import_of(&given, &into_one()).unwrap()).len(), 1);
    // Without any other file, the error names them.
    let error = fixture.import_of(&given[..1], &into_one()).unwrap_err().to_string();
    assert!(error.contains("b.jsonl") && error.contains("link"), "{error}");
}

#[test]
fn pattern_matches_folders_and_reports_missing_ones() {
    let fixture = Fixture::with(&[
        ("a1/x/1.jsonl", "{\"a\":1}\n"),
        ("a2/x/2.jsonl", "{\"a\":2}\n"),
        ("a2/y/3.jsonl", "{\"a\":3}\n"),
        ("b/x/4.jsonl", "{\"a\":4}\n"),
        ("b/x/z/5.jsonl", "{\"a\":5}\n"),
    ]);
    for (pattern, rows) in [
        ("a*/x/*.jsonl", "1\n2"),
        ("*/x/*", "1\n2\n4"),
        ("b/**/*.jsonl", "4\n5"),
        ("[ab]*/**/[35].jsonl", "3\n5"),
        ("a?/*/3.jsonl", "3"),
    ] {
        let _ = std::fs::remove_file(fixture.database());
        fixture.import_of(&[fixture.data().join(pattern)], &into_one()).unwrap();
        assert_eq!(fixture.all("SELECT a FROM t"), rows, "{pattern}");
    }
    let error = fixture.import_of(&[fixture.data().join("gone/*.jsonl")], &into_one()).unwrap_err().to_string();
    assert!(error.contains("no file matches") && error.contains("No such file"), "{error}");
}

#[test]
fn table_name_and_compression_come_from_the_file_name() {
    for (name, table, compression, is_jsonl) in [
        ("types.jsonl", "types", None, true),
        ("a.b.ndjson", "a_b", None, true),
        ("types.jsonl.gz", "types", Some("gzip"), true),
        ("TYPES.JSONL.ZST", "TYPES", Some("zstd"), true),
        ("types.json", "types", None, false),
        ("notes.gz", "notes", Some("gzip"), false),
        (".jsonl", "_jsonl", None, false),
    ] {
        let fixture = Fixture::new();
        let path = write(&fixture, name.as_bytes(), "{\"a\":1}\n");
        // A folder has only the files with a JSONL extension that are not hidden.
        let in_folder = fixture.import(&ImportOptions::default()).is_ok();
        assert_eq!(in_folder, is_jsonl, "{name}");
        let options = options! { existing: ExistingTable::Replace, ..ImportOptions::default() };
        let file = fixture.import_of(&[path], &options).unwrap().files.remove(0);
        assert_eq!(file.table, table, "{name}");
        match (compression, file.outcome) {
            (None, outcome) => assert_eq!(outcome, FileOutcome::Loaded, "{name}"),
            (Some(kind), FileOutcome::Failed(why)) => assert!(why.contains(&format!("not {kind} data")), "{why}"),
            (Some(_), outcome) => panic!("{name}: {outcome:?}"),
        }
    }
}
