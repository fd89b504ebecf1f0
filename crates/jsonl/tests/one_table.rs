//! Many files into one table: as if they were one file, each with its own record.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::{Bench, small_blocks};
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, Target};
use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};

fn into_one() -> ImportOptions {
    ImportOptions { table: Some("logs".to_owned()), ..small_blocks() }
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
fn many_files_become_one_table_in_order() {
    let bench = Bench::with(&[
        ("b/2.jsonl", "{\"id\":3}\n{\"id\":4,\"late\":true}\n"),
        ("a.jsonl", "{\"id\":1}\n"),
        ("b/1.jsonl", "[{\"id\":2}]"),
    ]);
    let summary = bench.load(&into_one());
    assert_eq!(bench.all("SELECT * FROM logs"), "1|∅\n2|∅\n3|∅\n4|1");
    assert_eq!((summary.rows, outcomes(&summary)), (4, vec!["loaded"; 3]));
    assert_eq!(summary.files.iter().map(|file| file.rows).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!(summary.files.iter().filter(|file| file.sql.is_some()).count(), 1);
    assert_eq!(bench.all("SELECT mode, rows FROM _imports ORDER BY id"), "create|1\nappend|1\nappend|2");
    assert!(bench.schema("logs").contains("\"id\" INTEGER PRIMARY KEY"), "{}", bench.schema("logs"));
}

#[test]
fn types_are_unified_over_all_files() {
    // What one file alone would make INTEGER is TEXT with its spelling, as the last file needs it.
    let bench = Bench::with(&[
        ("1.jsonl", "{\"a\":1,\"b\":1}\n"),
        ("2.jsonl", "{\"a\":1.50,\"b\":2}\n"),
        ("3.jsonl", "{\"a\":\"x\",\"b\":2.5}\n"),
    ]);
    bench.load(&into_one());
    assert_eq!(bench.all("SELECT a, b FROM logs"), "1|1.0r\n1.50|2.0r\nx|2.5r");
    let together =
        Bench::with(&[("logs.jsonl", "{\"a\":1,\"b\":1}\n{\"a\":1.50,\"b\":2}\n{\"a\":\"x\",\"b\":2.5}\n")]);
    together.load(&small_blocks());
    assert_eq!(bench.schema("logs"), together.schema("logs"));
}

#[test]
fn key_is_unique_over_all_files() {
    let bench = Bench::with(&[("1.jsonl", "{\"id\":1,\"a\":1}\n"), ("2.jsonl", "{\"id\":1,\"a\":2}\n")]);
    let summary = bench.load(&ImportOptions { primary_key: vec!["id".to_owned()], ..into_one() });
    assert_eq!((bench.all("SELECT id, a FROM logs").as_str(), summary.rejected), ("1|1", 1));
    assert!(summary.examples[0].file.ends_with("2.jsonl"), "{:?}", summary.examples);
    let bench = Bench::with(&[("1.jsonl", "{\"id\":1,\"a\":1}\n"), ("2.jsonl", "{\"id\":1,\"a\":2}\n")]);
    let upsert =
        ImportOptions { existing: ExistingTable::Upsert, primary_key: vec!["id".to_owned()], ..into_one() };
    bench.load(&upsert);
    assert_eq!(bench.all("SELECT id, a FROM logs"), "1|2", "the last line of a key wins");
}

#[test]
fn unreadable_file_of_many_costs_only_itself() {
    let bench = Bench::with(&[("1.jsonl", "{\"a\":1}\n"), ("3.jsonl", "{\"a\":3}\nbad\n")]);
    bench.write("2.jsonl", b"[{\"a\":2,\"only_here\":1},");
    bench.write("4.jsonl", b"bad\nworse\n");
    let rejects = bench.folder.path().join("data/bad.txt");
    let summary = bench.load(&ImportOptions { rejects: Some(rejects.clone()), ..into_one() });
    assert_eq!(bench.all("SELECT * FROM logs"), "1\n3");
    assert_eq!(outcomes(&summary), ["loaded", "failed", "loaded", "failed"]);
    assert_eq!(
        bench.all("SELECT rows, errors, error IS NULL FROM _imports ORDER BY source"),
        "1|0|1\n0|0|0\n1|1|1\n0|2|0"
    );
    assert_eq!(std::fs::read_to_string(rejects).unwrap().lines().count(), 3);
    assert_eq!(bench.schema("logs"), "CREATE TABLE \"logs\" (\n  \"a\" INTEGER\n)");
}

#[test]
fn resume_loads_only_files_that_are_new() {
    let bench = Bench::with(&[("1.jsonl", "{\"a\":1}\n"), ("2.jsonl", "{\"a\":2}\n")]);
    let resume = ImportOptions { resume: true, ..into_one() };
    bench.load(&resume);
    let summary = bench.load(&resume);
    assert_eq!(outcomes(&summary), ["unchanged", "unchanged"]);
    bench.write("3.jsonl", b"{\"a\":3}\n");
    let error = bench.import(&resume).unwrap_err().to_string();
    assert!(error.contains("3.jsonl") && error.contains("--append"), "{error}");
    let summary = bench.load(&ImportOptions { existing: ExistingTable::Append, ..resume.clone() });
    assert_eq!(outcomes(&summary), ["unchanged", "unchanged", "loaded"]);
    assert_eq!(bench.all("SELECT a FROM logs"), "1\n2\n3");
    // A table that is made anew is made of all files.
    bench.write("2.jsonl", b"{\"a\":22}\n");
    let summary = bench.load(&ImportOptions { existing: ExistingTable::Replace, ..resume });
    assert_eq!(outcomes(&summary), ["loaded"; 3]);
    assert_eq!(bench.all("SELECT a FROM logs"), "1\n22\n3");
}

#[test]
fn replace_with_resume_removes_rows_of_files_that_are_not_named() {
    let bench = Bench::with(&[("1.jsonl", "{\"a\":1}\n"), ("2.jsonl", "{\"a\":2}\n")]);
    let replace = ImportOptions { resume: true, existing: ExistingTable::Replace, ..into_one() };
    bench.load(&into_one());
    assert_eq!(outcomes(&bench.load(&replace)), ["unchanged"; 2]);
    let first = [bench.data().join("1.jsonl")];
    let summary = bench.import_of(&first, &replace).unwrap();
    assert_eq!((outcomes(&summary), bench.all("SELECT a FROM logs")), (vec!["loaded"], "1".to_owned()));
    assert_eq!(outcomes(&bench.import_of(&first, &replace).unwrap()), ["unchanged"]);
    // A file that was loaded twice is in the table twice.
    bench.import_of(&first, &ImportOptions { existing: ExistingTable::Append, ..into_one() }).unwrap();
    assert_eq!(outcomes(&bench.import_of(&first, &replace).unwrap()), ["loaded"]);
    assert_eq!(bench.all("SELECT a FROM logs"), "1");
}

#[test]
fn replace_with_resume_removes_rows_that_the_user_had_before() {
    let bench = Bench::with(&[("1.jsonl", "{\"a\":1}\n")]);
    bench.open().execute_batch("CREATE TABLE logs (a); INSERT INTO logs VALUES (7)").unwrap();
    bench.load(&ImportOptions { existing: ExistingTable::Append, ..into_one() });
    let replace = ImportOptions { resume: true, existing: ExistingTable::Replace, ..into_one() };
    assert_eq!(outcomes(&bench.load(&replace)), ["loaded"]);
    assert_eq!(bench.all("SELECT a FROM logs"), "1");
    assert_eq!(outcomes(&bench.load(&replace)), ["unchanged"]);
}

#[test]
fn rows_without_keys_are_loaded_by_a_resume_with_a_file_that_has_keys() {
    let bench = Bench::with(&[("1.jsonl", "{}\n"), ("2.jsonl", "{}\n{}\n")]);
    let resume = ImportOptions { resume: true, ..into_one() };
    let summary = bench.import(&into_one()).unwrap();
    assert_eq!((summary.rows, outcomes(&summary)), (0, vec!["failed"; 2]));
    bench.write("3.jsonl", b"{\"a\":1}\n");
    let summary = bench.load(&resume);
    assert_eq!((summary.rows, outcomes(&summary)), (4, vec!["loaded"; 3]));
    assert_eq!(bench.all("SELECT count(*), count(a) FROM logs"), "4|1");
}

#[test]
fn rows_without_the_named_columns_are_not_counted_and_are_read_again_by_a_resume() {
    for block in [1, 1 << 16] {
        let bench = Bench::with(&[("t.jsonl", "{\"b\":1}\n{\"b\":2}\n"), ("u.jsonl", "{\"a\":1}\n")]);
        let columns = vec!["a".to_owned()];
        let summary = bench.load(&ImportOptions { columns, block, ..ImportOptions::default() });
        assert_eq!((summary.rows, summary.files[0].rows), (1, 0), "{block}");
        assert_eq!(bench.all("SELECT rows, blake3 IS NULL FROM _imports ORDER BY source"), "0|1\n1|0");
    }
}

#[test]
fn files_are_added_to_a_table_that_exists() {
    let bench = Bench::with(&[("logs.jsonl", "{\"a\":1}\n")]);
    bench.load(&ImportOptions::default());
    bench.write("2.jsonl", b"{\"a\":2,\"b\":1}\n");
    bench.write("3.jsonl", b"{\"a\":3.5}\n");
    let paths: Vec<PathBuf> = vec![bench.data().join("2.jsonl"), bench.data().join("3.jsonl")];
    bench.import_of(&paths, &ImportOptions { existing: ExistingTable::Append, ..into_one() }).unwrap();
    assert_eq!(bench.all("SELECT * FROM logs"), "1.0r|∅\n2.0r|1\n3.5r|∅");
}

#[test]
fn filename_column_says_where_a_row_is_from() {
    let bench =
        Bench::with(&[("1.jsonl", "{\"a\":1}\n{\"a\":2}\n"), ("2.jsonl", "{\"a\":\"x\"}\n{\"file\":1}\n")]);
    let options = ImportOptions { filename_column: Some("file".to_owned()), ..into_one() };
    let summary = bench.load(&options);
    let shown = |name: &str| bench.data().join(name).display().to_string();
    assert_eq!(
        bench.all("SELECT * FROM logs"),
        format!("{0}|1\n{0}|2\n{1}|x", shown("1.jsonl"), shown("2.jsonl"))
    );
    assert_eq!(summary.rejected, 1);
    assert!(summary.examples[0].reason.contains("--filename-column"), "{:?}", summary.examples);
}

#[test]
fn patterns_name_files() {
    let bench = Bench::with(&[
        ("a1.log", "{\"a\":1}\n"),
        ("a2.log", "{\"a\":2}\n"),
        ("b.log", "{\"a\":3}\n"),
        ("deep/a3.log", "{\"a\":4}\n"),
    ]);
    bench.import_of(&[bench.data().join("a*.log")], &into_one()).unwrap();
    assert_eq!(bench.all("SELECT a FROM logs"), "1\n2");
    std::fs::remove_file(bench.database()).unwrap();
    bench.import_of(&[bench.data().join("**/a[23].log")], &into_one()).unwrap();
    assert_eq!(bench.all("SELECT a FROM logs"), "2\n4");
    let error = bench.import_of(&[bench.data().join("c*.log")], &into_one()).unwrap_err().to_string();
    assert!(error.contains("no file matches"), "{error}");
}

#[test]
fn only_the_named_columns_are_loaded() {
    let bench =
        Bench::with(&[("t.jsonl", "{\"a\":1,\"b\":{\"x\":1,\"y\":2},\"c\":true}\n{\"c\":false,\"d\":5}\n")]);
    let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let options = ImportOptions { columns: columns(&["c", "b"]), ..small_blocks() };
    bench.load(&options);
    assert_eq!(bench.all("SELECT * FROM t"), "{\"x\":1,\"y\":2}|1\n∅|0");
    // A second import leaves the others alone as well.
    bench.open().execute_batch("ALTER TABLE t ADD COLUMN d").unwrap();
    bench.load(&ImportOptions { existing: ExistingTable::Append, ..options.clone() });
    assert_eq!(bench.all("SELECT count(*), count(d) FROM t"), "4|0");
    std::fs::remove_file(bench.database()).unwrap();
    bench.load(&ImportOptions { flatten: 4, ..options });
    assert_eq!(bench.all("SELECT b_x, b_y, c FROM t"), "1|2|1\n∅|∅|0");
    std::fs::remove_file(bench.database()).unwrap();
    let summary =
        bench.load(&ImportOptions { columns: columns(&["b.y", "nope"]), flatten: 4, ..small_blocks() });
    assert_eq!(bench.all("SELECT * FROM t"), "2\n∅");
    assert_eq!(summary.unmatched, ["nope"]);
}

#[test]
fn key_that_is_not_among_the_columns_is_refused() {
    let bench = Bench::with(&[("t.jsonl", "{\"a\":1,\"b\":2}\n")]);
    let options =
        ImportOptions { columns: vec!["a".to_owned()], primary_key: vec!["b".to_owned()], ..small_blocks() };
    let error = bench.import(&options).unwrap_err().to_string();
    assert!(error.contains("add it to --columns"), "{error}");
}

#[test]
fn limit_takes_the_first_rows_of_each_table() {
    for block in [1, 16, 1 << 16] {
        let bench = Bench::with(&[
            ("t.jsonl", "{\"a\":1}\nbad\n{\"a\":2}\n{\"a\":3,\"z\":1}\nworse\n"),
            ("u.jsonl", "{\"a\":1}\n"),
        ]);
        let summary = bench.load(&ImportOptions { limit: Some(2), block, ..ImportOptions::default() });
        assert_eq!(bench.all("SELECT * FROM t"), "1\n2");
        assert_eq!(bench.all("SELECT * FROM u"), "1");
        assert_eq!((summary.rows, summary.rejected), (3, 1), "{summary:?}");
        std::fs::remove_file(bench.database()).unwrap();
        let summary = bench.load(&ImportOptions { limit: Some(3), block, ..into_one() });
        assert_eq!(bench.all("SELECT a FROM logs"), "1\n2\n3");
        assert_eq!(outcomes(&summary), ["loaded", "not loaded"]);
    }
}

#[test]
fn limit_counts_rows_that_the_table_takes() {
    let text = "{\"id\":1}\n{\"id\":1}\nbad\n{\"a\":2}\n{\"id\":3}\n{\"id\":4}\n{\"id\":5,\"z\":1}\nworse\n";
    for block in [1, 16, 1 << 16] {
        let keyed = ImportOptions {
            primary_key: vec!["id".to_owned()],
            limit: Some(3),
            block,
            ..ImportOptions::default()
        };
        let bench = Bench::with(&[("t.jsonl", text)]);
        let summary = bench.load(&keyed);
        assert_eq!((summary.rows, summary.rejected), (3, 3), "{block}: {summary:?}");
        assert_eq!(bench.all("SELECT id FROM t"), "1\n3\n4");
        assert_eq!(bench.all("SELECT name FROM pragma_table_info('t')"), "id\na");
        // Of a table that exists.
        let append = ImportOptions { existing: ExistingTable::Append, limit: Some(1), ..keyed.clone() };
        let summary = bench.load(&append);
        assert_eq!((summary.rows, summary.rejected), (1, 6), "{block}: {summary:?}");
        assert_eq!(bench.all("SELECT id, z FROM t WHERE id > 3"), "4|∅\n5|1");
        // Exactly as many as there are.
        let bench = Bench::with(&[("t.jsonl", text)]);
        let summary = bench.load(&ImportOptions { limit: Some(4), ..keyed.clone() });
        assert_eq!((summary.rows, summary.rejected), (4, 3), "{block}: {summary:?}");
        let bench = Bench::with(&[("t.jsonl", text)]);
        let summary = bench.load(&ImportOptions { limit: Some(5), ..keyed });
        assert_eq!((summary.rows, summary.rejected), (4, 4), "{block}: {summary:?}");
    }
}

#[test]
fn limited_import_is_never_taken_for_the_whole_file() {
    let bench = Bench::with(&[("t.jsonl", "{\"a\":1}\n{\"a\":2}\n")]);
    bench.load(&ImportOptions { limit: Some(1), ..small_blocks() });
    let error = bench.import(&ImportOptions { resume: true, ..small_blocks() }).unwrap_err().to_string();
    assert!(error.contains("--replace"), "{error}");
}

#[test]
fn stopped_import_of_many_files_leaves_nothing_half_done() {
    let bench = Bench::with(&[("1.jsonl", "{\"a\":1}\n"), ("2.jsonl", "{\"a\":2}\n")]);
    let control = Arc::new(ImportHandle::default());
    control.cancel();
    let target = Target::Database(bench.database());
    let stopped = import(&[bench.data()], &target, &ImportOptions { resume: true, ..into_one() }, &control);
    assert!(stopped.map_or(true, |summary| summary.interrupted));
    let summary = bench.load(&ImportOptions { resume: true, ..into_one() });
    assert_eq!((bench.all("SELECT a FROM logs").as_str(), summary.rows), ("1\n2", 2));
}

#[test]
fn preview_tells_what_an_import_would_do_and_writes_nothing() {
    let bench = Bench::with(&[("t.jsonl", "{\"id\":1,\"a\":1,\"u\":1}\n")]);
    bench.load(&ImportOptions::default());
    bench.write("t.jsonl", b"{\"id\":2,\"a\":\"x\",\"new\":1}\n{\"a\":1}\n");
    bench.write("u.jsonl", b"{\"id\":1}\n");
    let before = std::fs::read(bench.database()).unwrap();
    let preview = |options: &ImportOptions| {
        import(&[bench.data()], &Target::Preview(bench.database()), options, &Arc::default())
    };
    let error = preview(&ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("has the table t already"), "{error}");
    let append = ImportOptions { existing: ExistingTable::Append, ..small_blocks() };
    let summary = preview(&append).unwrap();
    let actions: Vec<_> = summary.files.iter().map(|file| (file.action.unwrap(), file.rows)).collect();
    assert_eq!(actions, [("append", 1), ("create", 1)], "{summary:?}");
    assert_eq!(summary.rejected, 1, "a line without the key");
    let notes = summary.files[0].notes.join("; ");
    assert!(notes.contains("gets new columns: \"new\""), "{notes}");
    assert!(notes.contains("\"a\" is INTEGER, becomes TEXT"), "{notes}");
    assert!(summary.files[1].sql.is_some() && summary.files[0].sql.is_none());
    let replaced = preview(&ImportOptions { existing: ExistingTable::Replace, ..append.clone() }).unwrap();
    assert_eq!(replaced.files[0].action, Some("replace"));
    assert_eq!(std::fs::read(bench.database()).unwrap(), before);
    assert_eq!(bench.strays(), Vec::<String>::new());
    // A table of the user's own keeps its types: what it does not take is rejected.
    bench.open().execute_batch("CREATE TABLE own (a INTEGER); ALTER TABLE t RENAME TO other").unwrap();
    bench.write("own.jsonl", b"{\"a\":1}\n{\"a\":\"x\"}\n");
    std::fs::remove_file(bench.data().join("t.jsonl")).unwrap();
    let summary = preview(&append).unwrap();
    assert_eq!((summary.files[0].rows, summary.rejected), (1, 1), "{summary:?}");
}

#[test]
fn preview_of_a_new_database_is_its_schema() {
    let bench = Bench::with(&[("t.jsonl", "{\"id\":1}\n")]);
    let summary =
        import(&[bench.data()], &Target::Preview(bench.database()), &small_blocks(), &Arc::default())
            .unwrap();
    assert_eq!((summary.files[0].action, summary.is_published), (Some("create"), false));
    assert!(!bench.database().exists());
}
