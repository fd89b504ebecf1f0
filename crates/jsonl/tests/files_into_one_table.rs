//! Loads several files into one table, as if they were one file; each file has its own record.

#[macro_use]
mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::{Fixture, small_blocks};
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, Target};
use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};

fn into_one() -> ImportOptions {
    options! { table: Some("logs".to_owned()), ..small_blocks() }
}

fn outcomes(summary: &ImportSummary) -> Vec<&'static str> {
    let word = |outcome: &FileOutcome| match outcome {
        FileOutcome::Loaded => "loaded",
        FileOutcome::Checked => "checked",
        FileOutcome::Unchanged => "unchanged",
        FileOutcome::Waiting => "not loaded",
        FileOutcome::Failed(_) => "failed",
    };
    summary.files.iter().map(|file| word(&file.outcome)).collect()
}

#[test]
fn files_are_loaded_into_one_table_in_order() {
    let fixture = Fixture::with(&[
        ("b/2.jsonl", "{\"id\":3}\n{\"id\":4,\"late\":true}\n"),
        ("a.jsonl", "{\"id\":1}\n"),
        ("b/1.jsonl", "[{\"id\":2}]"),
    ]);
    let summary = fixture.load(&into_one());
    assert_eq!(fixture.all("SELECT * FROM logs"), "1|∅\n2|∅\n3|∅\n4|1");
    assert_eq!((summary.rows, outcomes(&summary)), (4, vec!["loaded"; 3]));
    assert_eq!(summary.files.iter().map(|file| file.rows).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!(summary.files.iter().filter(|file| file.sql.is_some()).count(), 1);
    assert_eq!(fixture.all("SELECT mode, rows FROM _imports ORDER BY id"), "create|1\nappend|1\nappend|2");
    assert!(fixture.schema("logs").contains("\"id\" INTEGER PRIMARY KEY"), "{}", fixture.schema("logs"));
}

#[test]
fn types_are_inferred_from_all_files() {
    // A column that is INTEGER in one file is TEXT with the original spelling, because the last file has text.
    let fixture = Fixture::with(&[
        ("1.jsonl", "{\"a\":1,\"b\":1}\n"),
        ("2.jsonl", "{\"a\":1.50,\"b\":2}\n"),
        ("3.jsonl", "{\"a\":\"x\",\"b\":2.5}\n"),
    ]);
    fixture.load(&into_one());
    assert_eq!(fixture.all("SELECT a, b FROM logs"), "1|1.0r\n1.50|2.0r\nx|2.5r");
    let together =
        Fixture::with(&[("logs.jsonl", "{\"a\":1,\"b\":1}\n{\"a\":1.50,\"b\":2}\n{\"a\":\"x\",\"b\":2.5}\n")]);
    together.load(&small_blocks());
    assert_eq!(fixture.schema("logs"), together.schema("logs"));
}

#[test]
fn key_is_unique_over_all_files() {
    let fixture = Fixture::with(&[("1.jsonl", "{\"id\":1,\"a\":1}\n"), ("2.jsonl", "{\"id\":1,\"a\":2}\n")]);
    let summary = fixture.load(&options! { primary_key: vec!["id".to_owned()], ..into_one() });
    assert_eq!((fixture.all("SELECT id, a FROM logs").as_str(), summary.rejected), ("1|1", 1));
    assert!(summary.examples[0].file.ends_with("2.jsonl"), "{:?}", summary.examples);
    let fixture = Fixture::with(&[("1.jsonl", "{\"id\":1,\"a\":1}\n"), ("2.jsonl", "{\"id\":1,\"a\":2}\n")]);
    let upsert = options! { existing: ExistingTable::Upsert, primary_key: vec!["id".to_owned()], ..into_one() };
    fixture.load(&upsert);
    assert_eq!(fixture.all("SELECT id, a FROM logs"), "1|2", "the last line of a key wins");
}

#[test]
fn unreadable_file_does_not_affect_the_others() {
    let fixture = Fixture::with(&[("1.jsonl", "{\"a\":1}\n"), ("3.jsonl", "{\"a\":3}\nbad\n")]);
    fixture.write("2.jsonl", b"[{\"a\":2,\"only_here\":1},");
    fixture.write("4.jsonl", b"bad\nworse\n");
    let rejects = fixture.folder.path().join("data/bad.txt");
    let summary = fixture.load(&options! { rejects: Some(rejects.clone()), ..into_one() });
    assert_eq!(fixture.all("SELECT * FROM logs"), "1\n3");
    assert_eq!(outcomes(&summary), ["loaded", "failed", "loaded", "failed"]);
    assert_eq!(
        fixture.all("SELECT rows, errors, error IS NULL FROM _imports ORDER BY source"),
        "1|0|1\n0|0|0\n1|1|1\n0|2|0"
    );
    assert_eq!(std::fs::read_to_string(rejects).unwrap().lines().count(), 3);
    assert_eq!(fixture.schema("logs"), "CREATE TABLE \"logs\" (\n  \"a\" INTEGER\n)");
}

#[test]
fn resume_loads_only_files_that_are_new() {
    let fixture = Fixture::with(&[("1.jsonl", "{\"a\":1}\n"), ("2.jsonl", "{\"a\":2}\n")]);
    let resume = options! { resume: true, ..into_one() };
    fixture.load(&resume);
    let summary = fixture.load(&resume);
    assert_eq!(outcomes(&summary), ["unchanged", "unchanged"]);
    fixture.write("3.jsonl", b"{\"a\":3}\n");
    let error = fixture.import(&resume).unwrap_err().to_string();
    assert!(error.contains("3.jsonl") && error.contains("--append"), "{error}");
    let summary = fixture.load(&options! { existing: ExistingTable::Append, ..resume.clone() });
    assert_eq!(outcomes(&summary), ["unchanged", "unchanged", "loaded"]);
    assert_eq!(fixture.all("SELECT a FROM logs"), "1\n2\n3");
    // A replaced table is loaded from all files.
    fixture.write("2.jsonl", b"{\"a\":22}\n");
    let summary = fixture.load(&options! { existing: ExistingTable::Replace, ..resume });
    assert_eq!(outcomes(&summary), ["loaded"; 3]);
    assert_eq!(fixture.all("SELECT a FROM logs"), "1\n22\n3");
}

#[test]
fn replace_with_resume_removes_rows_of_files_that_are_not_named() {
    let fixture = Fixture::with(&[("1.jsonl", "{\"a\":1}\n"), ("2.jsonl", "{\"a\":2}\n")]);
    let replace = options! { resume: true, existing: ExistingTable::Replace, ..into_one() };
    fixture.load(&into_one());
    assert_eq!(outcomes(&fixture.load(&replace)), ["unchanged"; 2]);
    let first = [fixture.data().join("1.jsonl")];
    let summary = fixture.import_of(&first, &replace).unwrap();
    assert_eq!((outcomes(&summary), fixture.all("SELECT a FROM logs")), (vec!["loaded"], "1".to_owned()));
    assert_eq!(outcomes(&fixture.import_of(&first, &replace).unwrap()), ["unchanged"]);
    // A file that was loaded twice is in the table twice.
    fixture.import_of(&first, &options! { existing: ExistingTable::Append, ..into_one() }).unwrap();
    assert_eq!(outcomes(&fixture.import_of(&first, &replace).unwrap()), ["loaded"]);
    assert_eq!(fixture.all("SELECT a FROM logs"), "1");
}

#[test]
fn replace_with_resume_removes_rows_that_the_user_had_before() {
    let fixture = Fixture::with(&[("1.jsonl", "{\"a\":1}\n")]);
    fixture.open().execute_batch("CREATE TABLE logs (a); INSERT INTO logs VALUES (7)").unwrap();
    fixture.load(&options! { existing: ExistingTable::Append, ..into_one() });
    let replace = options! { resume: true, existing: ExistingTable::Replace, ..into_one() };
    assert_eq!(outcomes(&fixture.load(&replace)), ["loaded"]);
    assert_eq!(fixture.all("SELECT a FROM logs"), "1");
    assert_eq!(outcomes(&fixture.load(&replace)), ["unchanged"]);
}

#[test]
fn rows_without_keys_are_loaded_by_a_resume_with_a_file_that_has_keys() {
    let fixture = Fixture::with(&[("1.jsonl", "{}\n"), ("2.jsonl", "{}\n{}\n")]);
    let resume = options! { resume: true, ..into_one() };
    let summary = fixture.import(&into_one()).unwrap();
    assert_eq!((summary.rows, outcomes(&summary)), (0, vec!["failed"; 2]));
    fixture.write("3.jsonl", b"{\"a\":1}\n");
    let summary = fixture.load(&resume);
    assert_eq!((summary.rows, outcomes(&summary)), (4, vec!["loaded"; 3]));
    assert_eq!(fixture.all("SELECT count(*), count(a) FROM logs"), "4|1");
}

#[test]
fn rows_without_the_named_columns_are_not_counted_and_are_read_again_by_a_resume() {
    for block in [1, 1 << 16] {
        let fixture = Fixture::with(&[("t.jsonl", "{\"b\":1}\n{\"b\":2}\n"), ("u.jsonl", "{\"a\":1}\n")]);
        let columns = vec!["a".to_owned()];
        let summary = fixture.load(&options! { columns, block, ..ImportOptions::default() });
        assert_eq!((summary.rows, summary.files[0].rows), (1, 0), "{block}");
        assert_eq!(fixture.all("SELECT rows, blake3 IS NULL FROM _imports ORDER BY source"), "0|1\n1|0");
    }
}

#[test]
fn files_are_appended_to_an_existing_table() {
    let fixture = Fixture::with(&[("logs.jsonl", "{\"a\":1}\n")]);
    fixture.load(&ImportOptions::default());
    fixture.write("2.jsonl", b"{\"a\":2,\"b\":1}\n");
    fixture.write("3.jsonl", b"{\"a\":3.5}\n");
    let paths: Vec<PathBuf> = vec![fixture.data().join("2.jsonl"), fixture.data().join("3.jsonl")];
    fixture.import_of(&paths, &options! { existing: ExistingTable::Append, ..into_one() }).unwrap();
    assert_eq!(fixture.all("SELECT * FROM logs"), "1.0r|∅\n2.0r|1\n3.5r|∅");
}

#[test]
fn filename_column_has_the_file_of_each_row() {
    let fixture = Fixture::with(&[("1.jsonl", "{\"a\":1}\n{\"a\":2}\n"), ("2.jsonl", "{\"a\":\"x\"}\n{\"file\":1}\n")]);
    let options = options! { filename_column: Some("file".to_owned()), ..into_one() };
    let summary = fixture.load(&options);
    let path_of = |name: &str| fixture.data().join(name).display().to_string();
    assert_eq!(
        fixture.all("SELECT * FROM logs"),
        format!("{0}|1\n{0}|2\n{1}|x", path_of("1.jsonl"), path_of("2.jsonl"))
    );
    assert_eq!(summary.rejected, 1);
    assert!(summary.examples[0].reason.contains("--filename-column"), "{:?}", summary.examples);
}

#[test]
fn pattern_selects_matching_files() {
    let fixture = Fixture::with(&[
        ("a1.log", "{\"a\":1}\n"),
        ("a2.log", "{\"a\":2}\n"),
        ("b.log", "{\"a\":3}\n"),
        ("deep/a3.log", "{\"a\":4}\n"),
    ]);
    fixture.import_of(&[fixture.data().join("a*.log")], &into_one()).unwrap();
    assert_eq!(fixture.all("SELECT a FROM logs"), "1\n2");
    std::fs::remove_file(fixture.database()).unwrap();
    fixture.import_of(&[fixture.data().join("**/a[23].log")], &into_one()).unwrap();
    assert_eq!(fixture.all("SELECT a FROM logs"), "2\n4");
    let error = fixture.import_of(&[fixture.data().join("c*.log")], &into_one()).unwrap_err().to_string();
    assert!(error.contains("no file matches"), "{error}");
}

#[test]
fn only_the_named_columns_are_loaded() {
    let fixture =
        Fixture::with(&[("t.jsonl", "{\"a\":1,\"b\":{\"x\":1,\"y\":2},\"c\":true}\n{\"c\":false,\"d\":5}\n")]);
    let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let options = options! { columns: columns(&["c", "b"]), ..small_blocks() };
    fixture.load(&options);
    assert_eq!(fixture.all("SELECT * FROM t"), "{\"x\":1,\"y\":2}|1\n∅|0");
    // A second import does not add the other columns either.
    fixture.open().execute_batch("ALTER TABLE t ADD COLUMN d").unwrap();
    fixture.load(&options! { existing: ExistingTable::Append, ..options.clone() });
    assert_eq!(fixture.all("SELECT count(*), count(d) FROM t"), "4|0");
    std::fs::remove_file(fixture.database()).unwrap();
    fixture.load(&options! { flatten: 4, ..options });
    assert_eq!(fixture.all("SELECT b_x, b_y, c FROM t"), "1|2|1\n∅|∅|0");
    std::fs::remove_file(fixture.database()).unwrap();
    let summary = fixture.load(&options! { columns: columns(&["b.y", "nope"]), flatten: 4, ..small_blocks() });
    assert_eq!(fixture.all("SELECT * FROM t"), "2\n∅");
    assert_eq!(summary.unmatched, ["nope"]);
}

#[test]
fn key_that_is_not_among_the_columns_is_refused() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1,\"b\":2}\n")]);
    let options = options! { columns: vec!["a".to_owned()], primary_key: vec!["b".to_owned()], ..small_blocks() };
    let error = fixture.import(&options).unwrap_err().to_string();
    assert!(error.contains("but not in --columns; add it to --columns"), "{error}");
}

#[test]
fn limit_loads_the_first_rows_of_each_table() {
    for block in [1, 16, 1 << 16] {
        let fixture = Fixture::with(&[
            ("t.jsonl", "{\"a\":1}\nbad\n{\"a\":2}\n{\"a\":3,\"z\":1}\nworse\n"),
            ("u.jsonl", "{\"a\":1}\n"),
        ]);
        let summary = fixture.load(&options! { limit: Some(2), block, ..ImportOptions::default() });
        assert_eq!(fixture.all("SELECT * FROM t"), "1\n2");
        assert_eq!(fixture.all("SELECT * FROM u"), "1");
        assert_eq!((summary.rows, summary.rejected), (3, 1), "{summary:?}");
        std::fs::remove_file(fixture.database()).unwrap();
        let summary = fixture.load(&options! { limit: Some(3), block, ..into_one() });
        assert_eq!(fixture.all("SELECT a FROM logs"), "1\n2\n3");
        assert_eq!(outcomes(&summary), ["loaded", "not loaded"]);
    }
}

#[test]
fn limit_counts_only_rows_that_the_table_accepts() {
    let text = "{\"id\":1}\n{\"id\":1}\nbad\n{\"a\":2}\n{\"id\":3}\n{\"id\":4}\n{\"id\":5,\"z\":1}\nworse\n";
    for block in [1, 16, 1 << 16] {
        let keyed = options! { primary_key: vec!["id".to_owned()], limit: Some(3), block, ..ImportOptions::default() };
        let fixture = Fixture::with(&[("t.jsonl", text)]);
        let summary = fixture.load(&keyed);
        assert_eq!((summary.rows, summary.rejected), (3, 3), "{block}: {summary:?}");
        assert_eq!(fixture.all("SELECT id FROM t"), "1\n3\n4");
        assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "id\na");
        // Into an existing table.
        let append = options! { existing: ExistingTable::Append, limit: Some(1), ..keyed.clone() };
        let summary = fixture.load(&append);
        assert_eq!((summary.rows, summary.rejected), (1, 6), "{block}: {summary:?}");
        assert_eq!(fixture.all("SELECT id, z FROM t WHERE id > 3"), "4|∅\n5|1");
        // The limit equals the number of rows.
        let fixture = Fixture::with(&[("t.jsonl", text)]);
        let summary = fixture.load(&options! { limit: Some(4), ..keyed.clone() });
        assert_eq!((summary.rows, summary.rejected), (4, 3), "{block}: {summary:?}");
        let fixture = Fixture::with(&[("t.jsonl", text)]);
        let summary = fixture.load(&options! { limit: Some(5), ..keyed });
        assert_eq!((summary.rows, summary.rejected), (4, 4), "{block}: {summary:?}");
    }
}

#[test]
fn resume_loads_a_file_again_after_a_limited_import() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n{\"a\":2}\n")]);
    fixture.load(&options! { limit: Some(1), ..small_blocks() });
    let error = fixture.import(&options! { resume: true, ..small_blocks() }).unwrap_err().to_string();
    assert!(error.contains("--replace"), "{error}");
}

#[test]
fn cancelled_import_of_many_files_leaves_no_partial_table() {
    let fixture = Fixture::with(&[("1.jsonl", "{\"a\":1}\n"), ("2.jsonl", "{\"a\":2}\n")]);
    let handle = Arc::new(ImportHandle::default());
    handle.cancel();
    let target = Target::Database(fixture.database());
    let stopped = import(&[fixture.data()], &target, &options! { resume: true, ..into_one() }, &handle);
    assert!(stopped.map_or(true, |summary| summary.interrupted));
    let summary = fixture.load(&options! { resume: true, ..into_one() });
    assert_eq!((fixture.all("SELECT a FROM logs").as_str(), summary.rows), ("1\n2", 2));
}

#[test]
fn preview_reports_changes_and_writes_nothing() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"id\":1,\"a\":1,\"u\":1}\n")]);
    fixture.load(&ImportOptions::default());
    fixture.write("t.jsonl", b"{\"id\":2,\"a\":\"x\",\"new\":1}\n{\"a\":1}\n");
    fixture.write("u.jsonl", b"{\"id\":1}\n");
    let before = std::fs::read(fixture.database()).unwrap();
    let preview = |options: &ImportOptions| {
        import(&[fixture.data()], &Target::Preview(fixture.database()), options, &Arc::default())
    };
    let error = preview(&ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("has the table t already"), "{error}");
    let append = options! { existing: ExistingTable::Append, ..small_blocks() };
    let summary = preview(&append).unwrap();
    let actions: Vec<_> = summary.files.iter().map(|file| (file.action.unwrap(), file.rows)).collect();
    assert_eq!(actions, [("append", 1), ("create", 1)], "{summary:?}");
    assert_eq!(summary.rejected, 1, "a line without the key");
    let notes = summary.files[0].notes.join("; ");
    assert!(notes.contains("gets new columns: \"new\""), "{notes}");
    assert!(notes.contains("\"a\" is INTEGER, becomes TEXT"), "{notes}");
    assert!(summary.files[1].sql.is_some() && summary.files[0].sql.is_none());
    let replaced = preview(&options! { existing: ExistingTable::Replace, ..append.clone() }).unwrap();
    assert_eq!(replaced.files[0].action, Some("replace"));
    assert_eq!(std::fs::read(fixture.database()).unwrap(), before);
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
    // A table created by the user keeps its types; other values are rejected.
    fixture.open().execute_batch("CREATE TABLE own (a INTEGER); ALTER TABLE t RENAME TO other").unwrap();
    fixture.write("own.jsonl", b"{\"a\":1}\n{\"a\":\"x\"}\n");
    std::fs::remove_file(fixture.data().join("t.jsonl")).unwrap();
    let summary = preview(&append).unwrap();
    assert_eq!((summary.files[0].rows, summary.rejected), (1, 1), "{summary:?}");
}

#[test]
fn preview_of_a_new_database_equals_its_schema() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"id\":1}\n")]);
    let summary =
        import(&[fixture.data()], &Target::Preview(fixture.database()), &small_blocks(), &Arc::default()).unwrap();
    assert_eq!((summary.files[0].action, summary.is_published), (Some("create"), false));
    assert!(!fixture.database().exists());
}
