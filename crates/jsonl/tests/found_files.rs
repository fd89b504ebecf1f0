//! Files that a folder or a pattern has: names that are not UTF-8, and entries that are no regular files.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use common::Bench;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};

fn into_one() -> ImportOptions {
    ImportOptions { table: Some("t".to_owned()), ..ImportOptions::default() }
}

fn resume() -> ImportOptions {
    ImportOptions { resume: true, existing: ExistingTable::Append, ..into_one() }
}

/// Writes a file, and says where it is.
fn write(bench: &Bench, name: &[u8], text: &str) -> PathBuf {
    std::fs::create_dir_all(bench.data()).unwrap();
    let path = bench.data().join(Path::new(OsStr::from_bytes(name)));
    std::fs::write(&path, text).unwrap();
    path
}

fn unchanged(summary: &ImportSummary) -> usize {
    summary.files.iter().filter(|file| file.outcome == FileOutcome::Unchanged).count()
}

#[test]
fn resume_tells_files_apart_whose_names_are_not_utf8() {
    let bench = Bench::new();
    write(&bench, b"\xff.jsonl", "{\"a\":1}\n");
    write(&bench, b"\xfe.jsonl", "{\"a\":2}\n");
    bench.load(&into_one());
    assert_eq!(unchanged(&bench.load(&resume())), 2);
    assert_eq!(bench.all("SELECT a FROM t"), "2\n1");
    // The same contents under a third name, and one that looks like an escaped byte.
    write(&bench, b"\xfd.jsonl", "{\"a\":1}\n");
    write(&bench, b"\\xFF.jsonl", "{\"a\":1}\n");
    let summary = bench.load(&resume());
    assert_eq!((unchanged(&summary), summary.rows), (2, 2));
    assert_eq!(unchanged(&bench.load(&resume())), 4);
    assert_eq!(bench.all("SELECT count(DISTINCT source), count(*) FROM _imports"), "4|4");
}

#[test]
fn filename_column_tells_files_apart_whose_names_are_not_utf8() {
    let bench = Bench::new();
    write(&bench, b"\xff.jsonl", "{\"a\":1}\n");
    write(&bench, b"\xfe.jsonl", "{\"a\":2}\n");
    bench.load(&ImportOptions { filename_column: Some("file".to_owned()), ..into_one() });
    let shown = |name: &str| bench.data().join(name).display().to_string();
    assert_eq!(
        bench.all("SELECT file, a FROM t"),
        format!("{}|2\n{}|1", shown("\\xFE.jsonl"), shown("\\xFF.jsonl"))
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
fn links_to_nowhere_and_pipes_of_a_folder_or_a_pattern_are_failures() {
    let bench = Bench::with(&[("a.jsonl", "{\"a\":1}\n"), ("sub/c.jsonl", "{\"a\":2}\n")]);
    std::os::unix::fs::symlink("nowhere", bench.data().join("b.jsonl")).unwrap();
    std::os::unix::fs::symlink("nowhere", bench.data().join(".hidden.jsonl")).unwrap();
    std::os::unix::fs::symlink("nowhere", bench.data().join("other.txt")).unwrap();
    std::os::unix::fs::symlink("a.jsonl", bench.data().join("link.jsonl")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(bench.data().join("p.jsonl")).status().unwrap();
    assert!(pipe.success());
    for given in [bench.data(), bench.data().join("*.jsonl"), bench.data().join("**/*.jsonl")] {
        let _ = std::fs::remove_file(bench.database());
        let summary = bench.import_of(std::slice::from_ref(&given), &into_one()).unwrap();
        let failures = failures(&summary);
        assert_eq!(failures.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["b.jsonl", "p.jsonl"]);
        assert!(failures[0].1.contains("link"), "{failures:?}");
        assert!(failures[1].1.contains("not a regular file"), "{failures:?}");
        assert_eq!(bench.one("SELECT a FROM t"), "1", "{given:?}");
    }
    // Those of other folders are loaded.
    let _ = std::fs::remove_file(bench.database());
    let given = [bench.data().join("b*.jsonl"), bench.data().join("sub")];
    assert_eq!(failures(&bench.import_of(&given, &into_one()).unwrap()).len(), 1);
    // Where there is nothing else, the error names them.
    let error = bench.import_of(&given[..1], &into_one()).unwrap_err().to_string();
    assert!(error.contains("b.jsonl") && error.contains("link"), "{error}");
}

#[test]
fn patterns_match_folders_and_name_those_that_are_not_there() {
    let bench = Bench::with(&[
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
        let _ = std::fs::remove_file(bench.database());
        bench.import_of(&[bench.data().join(pattern)], &into_one()).unwrap();
        assert_eq!(bench.all("SELECT a FROM t"), rows, "{pattern}");
    }
    let error = bench.import_of(&[bench.data().join("gone/*.jsonl")], &into_one()).unwrap_err().to_string();
    assert!(error.contains("no file matches") && error.contains("No such file"), "{error}");
}
