//! Files that a folder or a pattern has: names that are not UTF-8, and entries that are no regular files.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use common::Bench;
use gristmill_jsonl::import::options::{Existing, Options};
use gristmill_jsonl::import::summary::{Outcome, Summary};

fn into_one() -> Options {
    Options { table: Some("t".to_owned()), ..Options::default() }
}

fn resume() -> Options {
    Options { resume: true, existing: Existing::Append, ..into_one() }
}

/// Writes a file, and says where it is.
fn write(bench: &Bench, name: &[u8], text: &str) -> PathBuf {
    std::fs::create_dir_all(bench.data()).unwrap();
    let path = bench.data().join(Path::new(OsStr::from_bytes(name)));
    std::fs::write(&path, text).unwrap();
    path
}

fn unchanged(summary: &Summary) -> usize {
    summary.files.iter().filter(|file| file.outcome == Outcome::Unchanged).count()
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
    bench.load(&Options { filename_column: Some("file".to_owned()), ..into_one() });
    let shown = |name: &str| bench.data().join(name).display().to_string();
    assert_eq!(
        bench.all("SELECT file, a FROM t"),
        format!("{}|2\n{}|1", shown("\\xFE.jsonl"), shown("\\xFF.jsonl"))
    );
}
