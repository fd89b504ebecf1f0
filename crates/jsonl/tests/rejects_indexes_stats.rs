//! Output of an import besides its rows: the file of rejects, indexes and statistics.

#[macro_use]
mod common;

use std::path::Path;

use common::{Fixture, small_blocks};
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, OnError, Target};
use gristmill_jsonl::import::stats::{DateKind, stats};

fn rejected_lines(path: &Path) -> Vec<u64> {
    let written = std::fs::read_to_string(path).unwrap();
    let line = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["line"].as_u64().unwrap();
    written.lines().map(line).collect()
}

#[test]
fn rejects_are_appended_by_each_import() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = fixture.data().join("bad.txt");
    let options = options! { rejects: Some(rejects.clone()), existing: ExistingTable::Append, ..small_blocks() };
    fixture.load(&options);
    assert_eq!(rejected_lines(&rejects), [2]);
    fixture.write("a.jsonl", b"{\"x\":1}\n{\"x\":2}\nbad\n");
    fixture.load(&options);
    assert_eq!(rejected_lines(&rejects), [2, 3]);
    // A file that is read twice adds its rejects once.
    fixture.write("a.jsonl", b"{\"y\":1}\n[]\n{\"y\":\"text\"}\nbad\n");
    fixture.load(&options);
    assert_eq!(rejected_lines(&rejects), [2, 3, 2, 4]);
}

#[test]
fn rejects_are_kept_by_a_resume() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = fixture.data().join("bad.txt");
    let options = options! { rejects: Some(rejects.clone()), resume: true, ..ImportOptions::default() };
    fixture.load(&options);
    fixture.load(&options);
    assert_eq!(rejected_lines(&rejects), [2]);
}

#[test]
fn rejects_begin_on_a_new_line_after_a_truncated_one() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = fixture.write("bad.txt", b"{\"file\":\"b\",\"li");
    fixture.load(&options! { rejects: Some(rejects.clone()), ..ImportOptions::default() });
    let written = std::fs::read_to_string(rejects).unwrap();
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(lines[0], "{\"file\":\"b\",\"li");
    assert!(lines[1].contains("\"line\":2"), "{written}");
}

#[test]
fn rejects_of_a_file_that_is_rolled_back_are_removed() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = fixture.data().join("bad.txt");
    let options = options! { rejects: Some(rejects.clone()), ..ImportOptions::default() };
    let handle = std::sync::Arc::new(ImportHandle::default());
    handle.cancel();
    let stopped = import(&[fixture.data()], &Target::Database(fixture.database()), &options, &handle);
    assert!(stopped.is_err() || stopped.unwrap().interrupted);
    fixture.load(&options);
    assert_eq!(rejected_lines(&rejects), [2]);
}

#[test]
fn two_imports_cannot_share_a_file_of_rejects() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let rejects = fixture.data().join("bad.txt");
    let other = std::fs::File::create(&rejects).unwrap();
    other.lock().unwrap();
    let options = options! { rejects: Some(rejects), ..ImportOptions::default() };
    let error = fixture.import(&options).unwrap_err().to_string();
    assert!(error.contains("another import is writing"), "{error}");
    drop(other);
    fixture.load(&options);
}

#[test]
fn rejects_that_cannot_be_written_fail_the_import() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let options = options! { rejects: Some("/dev/full".into()), ..ImportOptions::default() };
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1}\nbad\n")]);
    let error = fixture.import(&options).unwrap_err();
    assert!(error.to_string().contains("/dev/full"), "{error}");
    assert!(!fixture.database().exists());
    // In an existing database, the file whose rejects are lost is not loaded.
    fixture.load(&ImportOptions::default());
    let options = options! { existing: ExistingTable::Append, ..options };
    assert!(fixture.import(&options).is_err());
    assert_eq!(fixture.all("SELECT x FROM a"), "1");
}

#[test]
fn rejects_are_written_when_too_many_lines_are_bad() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1}\nbad\nworse\n")]);
    let rejects = fixture.data().join("bad.txt");
    let on_error = OnError::FailAfter(1);
    fixture.import(&options! { rejects: Some(rejects.clone()), on_error, ..ImportOptions::default() }).unwrap();
    assert_eq!(rejected_lines(&rejects), [2, 3]);
}

/// Returns table and column of each index of a database.
fn indexes(fixture: &Fixture) -> String {
    fixture.all(
        "SELECT tbl_name, (SELECT group_concat(name) FROM pragma_index_info(s.name)) FROM sqlite_schema s
         WHERE type = 'index' AND tbl_name <> '_imports' AND sql IS NOT NULL ORDER BY 1, 2",
    )
}

#[test]
fn indexes_of_two_tables_do_not_share_a_name() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"b_c\":1,\"c\":1}\n"), ("a_b.jsonl", "{\"c\":2,\"b_c\":1}\n")]);
    let options = options! { indexes: vec!["c".to_owned(), "b_c".to_owned()], ..ImportOptions::default() };
    fixture.load(&options);
    assert_eq!(indexes(&fixture), "a|b_c\na|c\na_b|b_c\na_b|c");
    // A second import into the same tables creates no duplicate index.
    fixture.load(&options! { existing: ExistingTable::Append, ..options.clone() });
    fixture.load(&options! { existing: ExistingTable::Replace, ..options });
    assert_eq!(indexes(&fixture), "a|b_c\na|c\na_b|b_c\na_b|c");
}

#[test]
fn index_gets_another_name_when_its_name_is_in_use() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1,\"y\":1}\n"), ("idx_a_x.jsonl", "{\"z\":1}\n")]);
    fixture.load(&ImportOptions::default());
    fixture.open().execute_batch("CREATE INDEX idx_a_y ON a (x COLLATE NOCASE)").unwrap();
    let options = options! { indexes: vec!["x".to_owned(), "Y".to_owned()], ..ImportOptions::default() };
    fixture.load(&options! { existing: ExistingTable::Append, ..options });
    assert_eq!(indexes(&fixture), "a|x\na|x\na|y");
}

#[test]
fn iso_dates_are_recognised_in_statistics() {
    let fixture = Fixture::with(&[(
        "t.jsonl",
        "{\"day\":\"2024-01-02\",\"at\":\"2024-01-02T03:04:05Z\",\"mixed\":\"2024-01-02\",\"text\":\"2024-01-02\",\"n\":1}\n\
         {\"day\":null,\"at\":\"2024-01-02\",\"mixed\":\"03:04\",\"text\":\"x\",\"n\":2}\n",
    )]);
    fixture.load(&ImportOptions::default());
    let stats = stats(&fixture.database()).unwrap();
    let found: Vec<_> = stats.tables[0].dates.iter().map(|date| (date.column.as_str(), date.kind)).collect();
    assert_eq!(found, [("day", DateKind::Date), ("at", DateKind::DateTime)]);
}

#[test]
fn statistics_count_the_files_of_a_table() {
    let fixture = Fixture::with(&[("1.jsonl", "{\"a\":1}\n"), ("2.jsonl", "{\"a\":1}\n")]);
    let options = options! { table: Some("t".to_owned()), ..ImportOptions::default() };
    fixture.load(&options);
    assert_eq!(stats(&fixture.database()).unwrap().tables[0].sources, 2);
    std::fs::remove_file(fixture.data().join("2.jsonl")).unwrap();
    fixture.load(&options! { existing: ExistingTable::Replace, ..options });
    assert_eq!(stats(&fixture.database()).unwrap().tables[0].sources, 1);
}

#[test]
fn stats_count_the_rejected_lines_of_all_files_of_a_table() {
    let fixture = Fixture::with(&[("1.jsonl", "bad\n{\"a\":1}\nworse\n"), ("2.jsonl", "{\"a\":2}\n")]);
    let options = options! { table: Some("t".to_owned()), ..ImportOptions::default() };
    fixture.load(&options);
    let of_table = || stats(&fixture.database()).unwrap().tables.remove(0);
    assert_eq!((of_table().sources, of_table().errors), (2, Some(2)));
    // A file that failed does not count.
    let bad = fixture.folder.path().join("data/3.jsonl");
    std::fs::write(&bad, "bad\n").unwrap();
    let append = options! { existing: ExistingTable::Append, ..options.clone() };
    assert!(fixture.import_of(std::slice::from_ref(&bad), &append).unwrap().has_failures());
    let table = of_table();
    assert_eq!((table.sources, table.errors), (2, Some(2)));
    assert!(table.source.unwrap().ends_with("2.jsonl"));
    // A replaced table counts only the rejected lines of its new files.
    std::fs::write(&bad, "bad\n{\"a\":3}\n").unwrap();
    fixture.import_of(&[bad], &options! { existing: ExistingTable::Replace, ..options }).unwrap();
    assert_eq!((of_table().sources, of_table().errors), (1, Some(1)));
}
