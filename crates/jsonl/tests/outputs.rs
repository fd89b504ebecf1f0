//! What an import leaves beside its rows: the file of rejects, and indexes.

mod common;

use std::path::Path;

use common::{Bench, small_blocks};
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, OnError, Target};
use gristmill_jsonl::import::stats::{DateKind, stats};

fn rejected_lines(path: &Path) -> Vec<u64> {
    let written = std::fs::read_to_string(path).unwrap();
    let line =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["line"].as_u64().unwrap();
    written.lines().map(line).collect()
}

#[test]
fn rejects_are_appended_by_each_import() {
    let bench = Bench::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = bench.data().join("bad.txt");
    let options =
        ImportOptions { rejects: Some(rejects.clone()), existing: ExistingTable::Append, ..small_blocks() };
    bench.load(&options);
    assert_eq!(rejected_lines(&rejects), [2]);
    bench.write("a.jsonl", b"{\"x\":1}\n{\"x\":2}\nbad\n");
    bench.load(&options);
    assert_eq!(rejected_lines(&rejects), [2, 3]);
    // A file that is read twice adds its rejects once.
    bench.write("a.jsonl", b"{\"y\":1}\n[]\n{\"y\":\"text\"}\nbad\n");
    bench.load(&options);
    assert_eq!(rejected_lines(&rejects), [2, 3, 2, 4]);
}

#[test]
fn rejects_are_kept_by_a_resume() {
    let bench = Bench::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = bench.data().join("bad.txt");
    let options = ImportOptions { rejects: Some(rejects.clone()), resume: true, ..ImportOptions::default() };
    bench.load(&options);
    bench.load(&options);
    assert_eq!(rejected_lines(&rejects), [2]);
}

#[test]
fn rejects_after_a_line_that_was_cut_off_begin_on_their_own() {
    let bench = Bench::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = bench.write("bad.txt", b"{\"file\":\"b\",\"li");
    bench.load(&ImportOptions { rejects: Some(rejects.clone()), ..ImportOptions::default() });
    let written = std::fs::read_to_string(rejects).unwrap();
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(lines[0], "{\"file\":\"b\",\"li");
    assert!(lines[1].contains("\"line\":2"), "{written}");
}

#[test]
fn rejects_of_a_file_that_is_not_kept_are_not_kept() {
    let bench = Bench::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = bench.data().join("bad.txt");
    let options = ImportOptions { rejects: Some(rejects.clone()), ..ImportOptions::default() };
    let control = std::sync::Arc::new(ImportHandle::default());
    control.cancel();
    let stopped = import(&[bench.data()], &Target::Database(bench.database()), &options, &control);
    assert!(stopped.is_err() || stopped.unwrap().interrupted);
    bench.load(&options);
    assert_eq!(rejected_lines(&rejects), [2]);
}

#[test]
fn two_imports_cannot_share_a_file_of_rejects() {
    let bench = Bench::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = bench.data().join("bad.txt");
    let other = std::fs::File::create(&rejects).unwrap();
    other.lock().unwrap();
    let options = ImportOptions { rejects: Some(rejects), ..ImportOptions::default() };
    let error = bench.import(&options).unwrap_err().to_string();
    assert!(error.contains("another import is writing"), "{error}");
    drop(other);
    bench.load(&options);
}

#[test]
fn rejects_that_cannot_be_written_fail_the_import() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let options = ImportOptions { rejects: Some("/dev/full".into()), ..ImportOptions::default() };
    let bench = Bench::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let error = bench.import(&options).unwrap_err();
    assert!(error.to_string().contains("/dev/full"), "{error}");
    assert!(!bench.database().exists());
    // In a database that is there already, the file whose rejects are lost is not loaded.
    bench.load(&ImportOptions::default());
    let options = ImportOptions { existing: ExistingTable::Append, ..options };
    assert!(bench.import(&options).is_err());
    assert_eq!(bench.all("SELECT x FROM a"), "1");
}

#[test]
fn rejects_are_there_when_too_many_lines_were_bad() {
    let bench = Bench::with(&[("a.jsonl", "{\"x\":1}\nbad\nworse\n")]);
    let rejects = bench.data().join("bad.txt");
    let on_error = OnError::FailAfter(1);
    bench
        .import(&ImportOptions { rejects: Some(rejects.clone()), on_error, ..ImportOptions::default() })
        .unwrap();
    assert_eq!(rejected_lines(&rejects), [2, 3]);
}

/// The indexes of a database: table and column.
fn indexes(bench: &Bench) -> String {
    bench.all(
        "SELECT tbl_name, (SELECT group_concat(name) FROM pragma_index_info(s.name)) FROM sqlite_schema s
         WHERE type = 'index' AND tbl_name <> '_imports' AND sql IS NOT NULL ORDER BY 1, 2",
    )
}

#[test]
fn indexes_of_two_tables_do_not_share_a_name() {
    let bench = Bench::with(&[("a.jsonl", "{\"b_c\":1,\"c\":1}\n"), ("a_b.jsonl", "{\"c\":2,\"b_c\":1}\n")]);
    let options =
        ImportOptions { indexes: vec!["c".to_owned(), "b_c".to_owned()], ..ImportOptions::default() };
    bench.load(&options);
    assert_eq!(indexes(&bench), "a|b_c\na|c\na_b|b_c\na_b|c");
    // Once more, into the same tables: no index is made twice.
    bench.load(&ImportOptions { existing: ExistingTable::Append, ..options.clone() });
    bench.load(&ImportOptions { existing: ExistingTable::Replace, ..options });
    assert_eq!(indexes(&bench), "a|b_c\na|c\na_b|b_c\na_b|c");
}

#[test]
fn index_is_made_though_something_has_its_name() {
    let bench = Bench::with(&[("a.jsonl", "{\"x\":1,\"y\":1}\n"), ("idx_a_x.jsonl", "{\"z\":1}\n")]);
    bench.load(&ImportOptions::default());
    bench.open().execute_batch("CREATE INDEX idx_a_y ON a (x COLLATE NOCASE)").unwrap();
    let options = ImportOptions { indexes: vec!["x".to_owned(), "Y".to_owned()], ..ImportOptions::default() };
    bench.load(&ImportOptions { existing: ExistingTable::Append, ..options });
    assert_eq!(indexes(&bench), "a|x\na|x\na|y");
}

#[test]
fn iso_dates_are_recognised_in_statistics() {
    let bench = Bench::with(&[(
        "t.jsonl",
        "{\"day\":\"2024-01-02\",\"at\":\"2024-01-02T03:04:05Z\",\"mixed\":\"2024-01-02\",\"text\":\"2024-01-02\",\"n\":1}\n\
         {\"day\":null,\"at\":\"2024-01-02\",\"mixed\":\"03:04\",\"text\":\"x\",\"n\":2}\n",
    )]);
    bench.load(&ImportOptions::default());
    let stats = stats(&bench.database()).unwrap();
    let found: Vec<_> = stats.tables[0].dates.iter().map(|date| (date.column.as_str(), date.kind)).collect();
    assert_eq!(found, [("day", DateKind::Date), ("at", DateKind::DateTime)]);
}

#[test]
fn statistics_count_the_files_of_a_table() {
    let bench = Bench::with(&[("1.jsonl", "{\"a\":1}\n"), ("2.jsonl", "{\"a\":1}\n")]);
    let options = ImportOptions { table: Some("t".to_owned()), ..ImportOptions::default() };
    bench.load(&options);
    assert_eq!(stats(&bench.database()).unwrap().tables[0].sources, 2);
    std::fs::remove_file(bench.data().join("2.jsonl")).unwrap();
    bench.load(&ImportOptions { existing: ExistingTable::Replace, ..options });
    assert_eq!(stats(&bench.database()).unwrap().tables[0].sources, 1);
}

#[test]
fn stats_count_the_rejected_lines_of_all_files_of_a_table() {
    let bench = Bench::with(&[("1.jsonl", "bad\n{\"a\":1}\nworse\n"), ("2.jsonl", "{\"a\":2}\n")]);
    let options = ImportOptions { table: Some("t".to_owned()), ..ImportOptions::default() };
    bench.load(&options);
    let of_table = || stats(&bench.database()).unwrap().tables.remove(0);
    assert_eq!((of_table().sources, of_table().errors), (2, Some(2)));
    // A file that could not be loaded is not one of them.
    let bad = bench.folder.path().join("data/3.jsonl");
    std::fs::write(&bad, "bad\n").unwrap();
    let append = ImportOptions { existing: ExistingTable::Append, ..options.clone() };
    assert!(bench.import_of(std::slice::from_ref(&bad), &append).unwrap().has_failures());
    let table = of_table();
    assert_eq!((table.sources, table.errors), (2, Some(2)));
    assert!(table.source.unwrap().ends_with("2.jsonl"));
    // A table that is made anew has the rejected lines of its new files only.
    std::fs::write(&bad, "bad\n{\"a\":3}\n").unwrap();
    bench.import_of(&[bad], &ImportOptions { existing: ExistingTable::Replace, ..options }).unwrap();
    assert_eq!((of_table().sources, of_table().errors), (1, Some(1)));
}
