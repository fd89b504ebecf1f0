//! Imports into existing tables: keys, columns and types, and which files a resumed import skips.

#[macro_use]
mod common;

use common::{Fixture, lines};
use gristmill_jsonl::Sink;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use gristmill_jsonl::import::schema::Schema;
use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};

fn existing(existing: ExistingTable) -> ImportOptions {
    options! { existing, ..ImportOptions::default() }
}

fn keyed(existing: ExistingTable, key: &str) -> ImportOptions {
    options! { existing, primary_key: vec![key.to_owned()], ..ImportOptions::default() }
}

/// Writes the lines as the file of table `t` and imports them.
#[track_caller]
fn load(fixture: &Fixture, text: &[&str], options: &ImportOptions) -> ImportSummary {
    fixture.write("t.jsonl", lines(text).as_bytes());
    fixture.load(options)
}

#[track_caller]
fn failure(summary: &ImportSummary) -> String {
    match &summary.files[0].outcome {
        FileOutcome::Failed(why) => why.clone(),
        other => panic!("{other:?}"),
    }
}

// Upserts.

#[test]
fn upsert_into_a_new_table_keeps_the_last_line_of_a_key_and_rejects_keyless_lines() {
    let text = [r#"{"id":1,"a":1}"#, r#"{"id":1,"a":2}"#, r#"{"a":1}"#, r#"{"id":2,"a":3}"#, r#"{"id":null,"a":4}"#];
    for options in [existing(ExistingTable::Upsert), keyed(ExistingTable::Upsert, "id")] {
        for block in [8, 1 << 16] {
            let fixture = Fixture::new();
            let summary = load(&fixture, &text, &options! { block, ..options.clone() });
            assert_eq!((summary.rows, summary.rejected), (3, 2), "{:?}", summary.examples);
            assert_eq!(summary.examples[0].line, 3);
            assert_eq!(summary.examples[0].reason, "the primary key \"id\" is missing or null");
            assert_eq!(fixture.all("SELECT id, a FROM t ORDER BY id"), "1|2\n2|3");
            assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t') WHERE pk"), "id");
        }
    }
}

#[test]
fn upsert_finds_the_key_in_a_later_line() {
    let fixture = Fixture::new();
    let text = [r#"{"a":0}"#, r#"{"id":"x","a":1}"#, r#"{"id":"x","b":2}"#, r#"{"id":"y","a":3}"#];
    let summary = load(&fixture, &text, &existing(ExistingTable::Upsert));
    assert_eq!((summary.rows, summary.rejected), (3, 1), "{:?}", summary.examples);
    assert_eq!(fixture.all("SELECT id, a, b FROM t ORDER BY id"), "x|1|2\ny|3|∅");
}

#[test]
fn upsert_without_any_key_fails() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n{\"a\":1}\n")]);
    let why = failure(&fixture.import(&existing(ExistingTable::Upsert)).unwrap());
    assert!(why.contains("--primary-key") && why.contains("_key, _id or id"), "{why}");
    assert!(!fixture.database().exists());
}

#[test]
fn second_upsert_with_a_keyless_line_duplicates_nothing() {
    let fixture = Fixture::new();
    let text = [r#"{"id":3,"a":1}"#, r#"{"a":9}"#, r#"{"id":1,"a":2}"#];
    for _ in 0..3 {
        let summary = load(&fixture, &text, &existing(ExistingTable::Upsert));
        assert_eq!((summary.rows, summary.rejected), (2, 1));
        assert_eq!(fixture.all("SELECT id, a FROM t ORDER BY id"), "1|2\n3|1");
    }
}

#[test]
fn upsert_keeps_the_last_line_of_a_key_in_an_existing_table() {
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"id":1,"a":1}"#], &ImportOptions::default());
    let text = [r#"{"id":1,"a":2}"#, r#"{"id":2,"a":1}"#, r#"{"id":1,"a":3}"#, r#"{"id":2,"a":5}"#];
    assert_eq!(load(&fixture, &text, &existing(ExistingTable::Upsert)).rejected, 0);
    assert_eq!(fixture.all("SELECT id, a FROM t"), "1|3\n2|5");
}

#[test]
fn upsert_of_a_key_that_changes_its_type_keeps_one_row_for_a_key() {
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"id":1,"a":1}"#, r#"{"id":2,"a":1}"#], &existing(ExistingTable::Upsert));
    let summary = load(&fixture, &[r#"{"id":"x","a":2}"#, r#"{"id":1,"a":3}"#], &existing(ExistingTable::Upsert));
    assert_eq!((summary.rows, summary.rejected), (2, 0), "{:?}", summary.examples);
    assert_eq!(fixture.all("SELECT id, a, typeof(id) FROM t ORDER BY id"), "1|3|text\n2|1|text\nx|2|text");
}

// Keyless lines.

#[test]
fn append_rejects_keyless_lines() {
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"id":1,"a":1}"#, r#"{"id":5,"a":2}"#], &ImportOptions::default());
    let text = [r#"{"a":3}"#, r#"{"id":6,"a":4}"#, r#"{"id":null,"a":5}"#, r#"{"id":7,"a":6}"#];
    let summary = load(&fixture, &text, &existing(ExistingTable::Append));
    assert_eq!((summary.rows, summary.rejected), (2, 2));
    assert_eq!(summary.examples[0].reason, "the primary key \"id\" is missing or null");
    assert_eq!(fixture.all("SELECT id, a FROM t"), "1|1\n5|2\n6|4\n7|6");
}

#[test]
fn append_to_a_user_table_rejects_keyless_lines_unless_autoincrement_or_default() {
    let cases = [
        ("id INTEGER PRIMARY KEY, a", 1, "9|x"),
        ("id TEXT PRIMARY KEY, a", 1, "9|x"),
        ("id INTEGER PRIMARY KEY AUTOINCREMENT, a", 0, "1|y\n9|x"),
        ("id PRIMARY KEY DEFAULT 'd', a", 0, "d|y\n9|x"),
    ];
    for (columns, rejected, rows) in cases {
        let fixture = Fixture::new();
        fixture.open().execute_batch(&format!("CREATE TABLE t ({columns})")).unwrap();
        let text = [r#"{"a":"y"}"#, r#"{"id":9,"a":"x"}"#];
        let summary = load(&fixture, &text, &existing(ExistingTable::Append));
        assert_eq!(summary.rejected, rejected, "{columns}: {:?}", summary.examples);
        assert_eq!(fixture.all("SELECT id, a FROM t ORDER BY rowid"), rows, "{columns}");
    }
}

#[test]
fn sink_rejects_keyless_objects() {
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"id":1,"a":1}"#], &ImportOptions::default());
    let mut sink = Sink::open(&fixture.database(), "t").unwrap();
    let results = sink.append(&[b"{\"a\":2}", b"{\"id\":2}"]).unwrap();
    let error = results[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("the primary key \"id\" is missing or null"), "{error}");
    drop(sink);
    assert_eq!(fixture.all("SELECT id, a FROM t"), "1|1\n2|∅");
}

// Keys that differ in case.

#[test]
fn key_in_another_case_gets_its_own_column() {
    for mode in [ExistingTable::Append, ExistingTable::Upsert] {
        let fixture = Fixture::new();
        let steps = [
            r#"{"id":1,"name":"a"}"#,
            r#"{"id":2,"Name":"b"}"#,
            r#"{"id":3,"name":"c"}"#,
            r#"{"id":4,"Name":"d","name":"e","NAME":"f"}"#,
            r#"{"id":5,"NAME":"g"}"#,
        ];
        for step in steps {
            assert_eq!(load(&fixture, &[step], &existing(mode)).rejected, 0);
        }
        assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "id\nname\nName_2\nNAME_3");
        assert_eq!(fixture.all("SELECT name, Name_2, NAME_3 FROM t"), "a|∅|∅\n∅|b|∅\nc|∅|∅\ne|d|f\n∅|∅|g");
    }
}

#[test]
fn second_import_with_flattened_objects_has_the_columns_of_one_import() {
    let options = options! { flatten: 32, ..existing(ExistingTable::Append) };
    let steps = [
        r#"{"p":{"x":1},"p_x":2}"#,
        r#"{"p_x":2}"#,
        r#"{"P":{"X":3}}"#,
        r#"{"p_x":4,"P":{"X":5},"p":{"x":6}}"#,
        r#"{"q_x":7}"#,
        r#"{"q":{"x":8}}"#,
        r#"{"q":{"x":9},"q_x":10}"#,
    ];
    let once = Fixture::new();
    load(&once, &steps, &options);
    let fixture = Fixture::new();
    for step in steps {
        load(&fixture, &[step], &options);
    }
    assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "p_x\np_x_2\nP_X_3\nq_x\nq_x_2");
    assert_eq!(fixture.all("SELECT * FROM t"), once.all("SELECT * FROM t"));
}

#[test]
fn exact_column_name_wins_in_an_imported_table() {
    for block in [8, 1 << 16] {
        let append = options! { block, ..existing(ExistingTable::Append) };
        let fixture = Fixture::new();
        for step in [r#"{"A":1}"#, r#"{"a":2}"#, r#"{"A":"x","a_2":"y"}"#] {
            assert_eq!(load(&fixture, &[step], &append).rejected, 0);
        }
        assert_eq!(fixture.all("SELECT * FROM t"), "1|∅\n∅|2\nx|y");
        // A key has the column that was created for it.
        load(&fixture, &[r#"{"a":3}"#], &append);
        assert_eq!(fixture.all("SELECT a_2 FROM t WHERE rowid = 4"), "3");
    }
}

#[test]
fn column_has_no_other_key_when_its_own_key_is_in_the_file() {
    for order in [[r#"{"a_2":[]}"#, r#"{"a":3}"#], [r#"{"a":3}"#, r#"{"a_2":[]}"#]] {
        for block in [8, 1 << 16] {
            let append = options! { block, ..existing(ExistingTable::Append) };
            let fixture = Fixture::new();
            load(&fixture, &[r#"{"A":1,"a":2}"#], &append);
            load(&fixture, &order, &append);
            assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "A\na_2\na_2_2");
            assert_eq!(fixture.all("SELECT a_2, a_2_2 FROM t ORDER BY a_2"), "∅|[]\n2|∅\n3|∅");
            assert!(fixture.schema("t").contains("\"a_2\" INTEGER"), "{}", fixture.schema("t"));
            load(&fixture, &[r#"{"a_2":"own"}"#], &append);
            assert_eq!(
                fixture.all("SELECT a_2_2 FROM t WHERE rowid = 4"),
                "own",
                "the key's own column takes precedence"
            );
        }
    }
}

#[test]
fn exact_column_name_wins_with_a_schema_that_skips_other_keys() {
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"A":1,"a":2}"#], &existing(ExistingTable::Append));
    let path = fixture.folder.path().join("data/s.toml");
    for others in ["skip", "reject"] {
        std::fs::write(&path, format!("[tables.t]\nothers = \"{others}\"\ncolumns.a.type = \"integer\"")).unwrap();
        let schema = Schema::read(&path).unwrap();
        let text = [r#"{"a_2":3}"#, r#"{"a_2":"x"}"#];
        let summary = load(&fixture, &text, &options! { schema, ..existing(ExistingTable::Append) });
        assert_eq!((summary.rows, summary.rejected), (1, 1), "the type of the schema applies");
    }
    assert_eq!(fixture.all("SELECT a_2 FROM t"), "2\n3\n3");
}

#[test]
fn exact_column_name_wins_in_a_sink_into_an_imported_table() {
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"A":1,"a":2}"#], &ImportOptions::default());
    let mut sink = Sink::open(&fixture.database(), "t").unwrap();
    for object in [r#"{"a_2":3}"#, r#"{"a":4}"#, r#"{"a":5,"a_2":6}"#] {
        sink.append(&[object.as_bytes()]).unwrap().remove(0).unwrap();
    }
    drop(sink);
    assert_eq!(fixture.all("SELECT a_2, a_2_2 FROM t"), "2|∅\n3|∅\n4|∅\n5|6");
}

#[test]
fn exact_column_name_wins_in_a_user_table() {
    for order in [[r#"{"Name":"b"}"#, r#"{"name":"c"}"#], [r#"{"name":"c"}"#, r#"{"Name":"b"}"#]] {
        // In one file each key has a column, whichever comes first.
        for block in [8, 1 << 16] {
            let fixture = Fixture::new();
            fixture.open().execute_batch("CREATE TABLE t (name TEXT)").unwrap();
            load(&fixture, &order, &options! { block, ..existing(ExistingTable::Append) });
            assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "name\nName_2");
            assert_eq!(fixture.all("SELECT name, Name_2 FROM t ORDER BY name IS NULL"), "c|∅\n∅|b");
            load(&fixture, &[r#"{"Name":"d"}"#], &existing(ExistingTable::Append));
            assert_eq!(fixture.all("SELECT count(Name_2) FROM t"), "2", "the key keeps its column");
        }
        // A key without an exact match has the column whose name differs only in case.
        let fixture = Fixture::new();
        fixture.open().execute_batch("CREATE TABLE t (name TEXT)").unwrap();
        for text in order {
            load(&fixture, &[text], &existing(ExistingTable::Append));
        }
        assert_eq!(fixture.all("SELECT name FROM t ORDER BY name"), "b\nc");
    }
}

#[test]
fn exact_column_name_wins_in_a_sink() {
    let fixture = Fixture::new();
    fixture.open().execute_batch("CREATE TABLE t (name TEXT)").unwrap();
    let mut sink = Sink::open(&fixture.database(), "t").unwrap();
    for object in [r#"{"Name":1}"#, r#"{"name":2}"#, r#"{"name":3,"Name":4}"#] {
        sink.append(&[object.as_bytes()]).unwrap().remove(0).unwrap();
    }
    let mut sink = Sink::open(&fixture.database(), "t").unwrap();
    for object in [r#"{"Name":5}"#, r#"{"name":6}"#] {
        sink.append(&[object.as_bytes()]).unwrap().remove(0).unwrap();
    }
    drop(sink);
    assert_eq!(fixture.all("SELECT * FROM t"), "1|∅\n2|∅\n3|4\n∅|5\n6|∅");
    // A table created by an import.
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"name":"a"}"#], &ImportOptions::default());
    let mut sink = Sink::open(&fixture.database(), "t").unwrap();
    for object in [r#"{"Name":"b"}"#, r#"{"name":"c"}"#] {
        sink.append(&[object.as_bytes()]).unwrap().remove(0).unwrap();
    }
    drop(sink);
    load(&fixture, &[r#"{"Name":"d"}"#, r#"{"name":"e"}"#], &existing(ExistingTable::Append));
    assert_eq!(fixture.all("SELECT name, Name_2 FROM t"), "a|∅\n∅|b\nc|∅\n∅|d\ne|∅");
}

#[test]
fn primary_key_and_index_use_the_column_of_the_exact_key() {
    let fixture = Fixture::new();
    let text = [r#"{"ID":7,"id":1}"#, r#"{"ID":7,"id":2}"#];
    let options = options! { indexes: vec!["id".to_owned()], ..keyed(ExistingTable::Refuse, "id") };
    let summary = load(&fixture, &text, &options);
    assert_eq!((summary.rows, summary.rejected), (2, 0), "{:?}", summary.examples);
    assert_eq!(summary.files[0].primary_key.as_deref(), Some("id_2"));
}

// Numbers that a double rounds.

#[test]
fn decimals_beyond_a_double_are_rounded() {
    let fixture = Fixture::new();
    let text = [
        r#"{"pi":3.14159265358979323846,"small":1e-400,"far":1e400,"code":123456789012345678901}"#,
        r#"{"pi":0.1,"small":1.5,"far":2,"code":7}"#,
    ];
    let summary = load(&fixture, &text, &ImportOptions::default());
    assert_eq!(summary.rejected, 0);
    assert_eq!(fixture.all("SELECT * FROM t"), "3.141592653589793r|0.0r|1e400|123456789012345678901\n0.1r|1.5r|2|7");
    assert!(fixture.schema("t").contains("\"pi\" REAL,\n  \"small\" REAL,\n  \"far\" TEXT,\n  \"code\" TEXT"));
    // Append to a table created by an import and to one created by the user.
    assert_eq!(load(&fixture, &text[..1], &existing(ExistingTable::Append)).rejected, 0);
    assert_eq!(fixture.all("SELECT typeof(pi), typeof(small) FROM t WHERE rowid = 3"), "real|real");
    let fixture = Fixture::new();
    fixture.open().execute_batch("CREATE TABLE t (r REAL, n NUMERIC, d DATETIME)").unwrap();
    let text = r#"{"r":3.14159265358979323846,"n":3.14159265358979323846,"d":3.14159265358979323846}"#;
    let summary = load(&fixture, &[text, r#"{"r":9007199254740993}"#], &existing(ExistingTable::Append));
    assert_eq!(summary.rejected, 0, "{:?}", summary.examples);
    assert_eq!(
        fixture.all("SELECT * FROM t"),
        "3.141592653589793r|3.141592653589793r|3.141592653589793r\n9007199254740992.0r|∅|∅"
    );
}

// Types that change between imports.

#[test]
fn append_widens_columns_and_rejects_no_line() {
    // Values of the first file, of the second, and the result of one import of both.
    let cases = [
        ("1", "\"x\"", "TEXT", "1\nx"),
        ("1", "2.5", "REAL", "1.0r\n2.5r"),
        ("9007199254740993", "2.5", "NUMERIC", "9007199254740993\n2.5r"),
        ("1.5", "9007199254740993", "NUMERIC", "1.5r\n9007199254740993"),
        ("0.30000000000000004", "\"x\"", "TEXT", "0.30000000000000004\nx"),
        ("1e300", "[1]", "TEXT", "1e300\n[1]"),
        ("true", "7", "INTEGER", "1\n7"),
        ("true", "2.5", "REAL", "1.0r\n2.5r"),
        ("true", "\"x\"", "TEXT", "true\nx"),
        ("false", "{\"a\":1}", "TEXT", "false\n{\"a\":1}"),
        ("7", "123456789012345678901", "TEXT", "7\n123456789012345678901"),
        ("null", "1.50", "REAL", "∅\n1.5r"),
        ("null", "\"007\"", "TEXT", "∅\n007"),
        ("\"x\"", "1.50", "TEXT", "x\n1.50"),
    ];
    for (first, second, kind, rows) in cases {
        let line = |value: &str| format!("{{\"n\":{value}}}");
        let (first, second) = (line(first), line(second));
        let once = Fixture::new();
        load(&once, &[&first, &second], &ImportOptions::default());
        let fixture = Fixture::new();
        load(&fixture, &[&first], &ImportOptions::default());
        fixture.open().execute_batch("CREATE INDEX i ON t (n); CREATE VIEW v AS SELECT n FROM t").unwrap();
        let summary = load(&fixture, &[&second], &existing(ExistingTable::Append));
        assert_eq!(summary.rejected, 0, "{first} {second}: {:?}", summary.examples);
        assert_eq!(fixture.all("SELECT n FROM t"), rows, "{first} {second}");
        assert_eq!(fixture.all("SELECT n FROM v"), rows, "{first} {second}");
        assert_eq!(fixture.schema("t"), format!("CREATE TABLE \"t\" (\n  \"n\" {kind}\n)"));
        assert_eq!(once.schema("t"), fixture.schema("t"));
        assert_eq!(once.all("SELECT n FROM t"), rows);
        assert_eq!(fixture.all("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 't'"), "i");
    }
}

/// Rows of the lines, imported separately and together.
fn imported_separately_and_together(lines: &[&str], options: &ImportOptions, select: &str) -> (String, String) {
    let (apart, once) = (Fixture::new(), Fixture::new());
    for line in lines {
        let summary = load(&apart, &[line], options);
        assert_eq!(summary.rejected, 0, "{lines:?}: {:?}", summary.examples);
    }
    load(&once, lines, options);
    (apart.all(select), once.all(select))
}

#[test]
fn upsert_finds_a_number_after_its_key_column_became_text() {
    for id in ["1", "-3", "9007199254740992"] {
        let line = |id: &str, v: &str| format!("{{\"id\":{id},\"v\":\"{v}\"}}");
        let lines = [line(id, "old"), line("1.5", "h"), line("\"x\"", "t"), line(id, "new")];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let select = "SELECT id, v FROM t ORDER BY v";
        let (apart, once) = imported_separately_and_together(&lines, &existing(ExistingTable::Upsert), select);
        assert_eq!(apart, format!("1.5|h\n{id}|new\nx|t"));
        assert_eq!(apart, once);
    }
    // Numbers that all have a fraction keep it.
    let lines = [r#"{"id":1.0,"v":1}"#, r#"{"id":1.5,"v":2}"#, r#"{"id":"x","v":3}"#, r#"{"id":1.0,"v":4}"#];
    let select = "SELECT id, v FROM t ORDER BY v";
    let (apart, once) = imported_separately_and_together(&lines, &existing(ExistingTable::Upsert), select);
    assert_eq!(apart, "1.5|2\nx|3\n1.0|4");
    assert_eq!(apart, once);
}

#[test]
fn numbers_have_the_spelling_of_one_import_when_their_column_becomes_text() {
    let cases = [
        (&["5", "1.5", "\"x\""][..], "5\n1.5\nx"),
        (&["1.5", "5", "\"x\""], "1.5\n5\nx"),
        (&["5", "1.5", "null", "2", "[1]"], "5\n1.5\n∅\n2\n[1]"),
        (&["5.0", "1.5", "\"x\""], "5.0\n1.5\nx"),
        (&["1e300", "7", "\"x\""], "1e300\n7\nx"),
        (&["9007199254740993", "1.5", "4", "\"x\""], "9007199254740993\n1.5\n4\nx"),
    ];
    for (values, expected) in cases {
        let lines: Vec<String> = values.iter().map(|value| format!("{{\"n\":{value}}}")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (apart, once) =
            imported_separately_and_together(&lines, &existing(ExistingTable::Append), "SELECT n FROM t");
        assert_eq!(apart, expected, "{values:?}");
        assert_eq!(once, expected, "{values:?}");
    }
    // A boolean in a column of numbers is stored as a number.
    for values in [["true", "5", "\"x\""], ["true", "1.5", "\"x\""]] {
        let lines = values.map(|value| format!("{{\"n\":{value}}}"));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (apart, _) = imported_separately_and_together(&lines, &existing(ExistingTable::Append), "SELECT n FROM t");
        assert_eq!(apart, format!("1\n{}\nx", values[1]));
    }
}

#[test]
fn whole_numbers_of_a_sink_have_no_fraction_when_their_column_becomes_text() {
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"n":1.5}"#], &ImportOptions::default());
    let mut sink = Sink::open(&fixture.database(), "t").unwrap();
    assert!(sink.append(&[b"{\"n\":5}"]).unwrap()[0].is_ok());
    assert!(sink.append(&[b"{\"n\":6}"]).unwrap()[0].is_ok());
    drop(sink);
    load(&fixture, &[r#"{"n":"x"}"#], &existing(ExistingTable::Append));
    assert_eq!(fixture.all("SELECT n FROM t"), "1.5\n5\n6\nx");
    assert_eq!(fixture.all("SELECT count(*) FROM _imports"), "3");
}

#[test]
fn append_widens_a_primary_key() {
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"id":1,"a":1}"#, r#"{"id":2,"a":2}"#], &ImportOptions::default());
    fixture.open().execute_batch("CREATE INDEX i ON t (a)").unwrap();
    let summary = load(&fixture, &[r#"{"id":"x","a":3}"#, r#"{"id":"1","a":4}"#], &existing(ExistingTable::Append));
    assert_eq!((summary.rows, summary.rejected), (1, 1), "{:?}", summary.examples);
    assert!(summary.examples[0].reason.contains("UNIQUE"), "{:?}", summary.examples);
    assert_eq!(fixture.all("SELECT id, a FROM t ORDER BY a"), "1|1\n2|2\nx|3");
    assert_eq!(fixture.schema("t"), "CREATE TABLE \"t\" (\n  \"id\" TEXT NOT NULL PRIMARY KEY,\n  \"a\" INTEGER\n)");
    // A primary key that is not the rowid.
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"id":2}"#, r#"{"id":1}"#], &ImportOptions::default());
    assert_eq!(load(&fixture, &[r#"{"id":"x"}"#], &existing(ExistingTable::Append)).rejected, 0);
    assert_eq!(fixture.all("SELECT id FROM t NOT INDEXED"), "2\n1\nx");
}

#[test]
fn any_type_has_numeric_affinity_unless_the_table_is_strict() {
    let text = [r#"{"d":"007"}"#, r#"{"d":"1e5"}"#, r#"{"d":"x"}"#, r#"{"d":7}"#];
    let fixture = Fixture::new();
    fixture.open().execute_batch("CREATE TABLE t (d ANY)").unwrap();
    let summary = load(&fixture, &text, &existing(ExistingTable::Append));
    assert_eq!((summary.rows, summary.rejected), (2, 2), "{:?}", summary.examples);
    assert!(summary.examples[0].reason.contains("\"d\""), "{:?}", summary.examples);
    assert_eq!(fixture.all("SELECT quote(d) FROM t"), "'x'\n7");
    let fixture = Fixture::new();
    fixture.open().execute_batch("CREATE TABLE t (d ANY) STRICT").unwrap();
    assert_eq!(load(&fixture, &text, &existing(ExistingTable::Append)).rejected, 0);
    assert_eq!(fixture.all("SELECT quote(d) FROM t"), "'007'\n'1e5'\n'x'\n7");
}

#[test]
fn line_is_rejected_when_a_user_table_does_not_accept_it() {
    let fixture = Fixture::new();
    fixture.open().execute_batch("CREATE TABLE t (n INTEGER)").unwrap();
    let summary = load(&fixture, &[r#"{"n":1}"#, r#"{"n":"x"}"#], &existing(ExistingTable::Append));
    assert_eq!((summary.rows, summary.rejected), (1, 1));
    assert!(summary.examples[0].reason.contains("\"n\""), "{:?}", summary.examples);
    assert_eq!(fixture.schema("t"), "CREATE TABLE t (n INTEGER)");
}

// Which files a resumed import skips.

#[test]
fn resume_loads_a_dropped_table_again() {
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"a":1}"#, r#"{"a":2}"#], &ImportOptions::default());
    let resume = options! { resume: true, ..ImportOptions::default() };
    assert_eq!(fixture.load(&resume).files[0].outcome, FileOutcome::Unchanged);
    fixture.open().execute_batch("DROP TABLE t").unwrap();
    assert_eq!(fixture.load(&resume).files[0].outcome, FileOutcome::Loaded);
    assert_eq!(fixture.all("SELECT a FROM t"), "1\n2");
    assert_eq!(fixture.load(&resume).files[0].outcome, FileOutcome::Unchanged);
}

#[test]
fn resume_fails_for_a_table_that_lost_rows_or_columns() {
    for change in ["DELETE FROM t WHERE a = 1", "ALTER TABLE t DROP COLUMN b", "DROP TABLE t; CREATE TABLE t (a, b)"] {
        let fixture = Fixture::new();
        load(&fixture, &[r#"{"a":1,"b":1}"#, r#"{"a":2,"b":2}"#], &ImportOptions::default());
        fixture.open().execute_batch(change).unwrap();
        for mode in [ExistingTable::Refuse, ExistingTable::Append] {
            let resume = options! { resume: true, ..existing(mode) };
            let error = fixture.import(&resume).unwrap_err();
            assert!(error.is_user_error() && error.to_string().contains("--replace"), "{change}: {error}");
        }
        let resume = options! { resume: true, ..existing(ExistingTable::Replace) };
        assert_eq!(fixture.load(&resume).files[0].outcome, FileOutcome::Loaded, "{change}");
        assert_eq!(fixture.all("SELECT a, b FROM t"), "1|1\n2|2");
    }
    // Additional rows from another program are accepted.
    let fixture = Fixture::new();
    load(&fixture, &[r#"{"a":1}"#], &ImportOptions::default());
    fixture.open().execute_batch("INSERT INTO t VALUES (5); ALTER TABLE t ADD COLUMN c").unwrap();
    let resume = options! { resume: true, ..ImportOptions::default() };
    assert_eq!(fixture.load(&resume).files[0].outcome, FileOutcome::Unchanged);
}

#[test]
fn resume_reads_a_file_again_that_may_have_changed_within_the_same_tick() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n")]);
    fixture.load(&ImportOptions::default());
    let path = fixture.data().join("t.jsonl");
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    // Other contents of the same size, written so soon that the file has the same time.
    fixture.write("t.jsonl", b"{\"a\":2}\n");
    std::fs::File::options().append(true).open(&path).unwrap().set_modified(modified).unwrap();
    let resume = options! { resume: true, existing: ExistingTable::Replace, ..ImportOptions::default() };
    assert_eq!(fixture.load(&resume).files[0].outcome, FileOutcome::Loaded);
    assert_eq!(fixture.all("SELECT a FROM t"), "2");
    assert_eq!(fixture.load(&resume).files[0].outcome, FileOutcome::Unchanged);
}

// Requested keys.

#[test]
fn import_fails_when_no_line_has_the_primary_key() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n")]);
    let why = failure(&fixture.import(&keyed(ExistingTable::Refuse, "nope")).unwrap());
    assert!(why.contains("\"nope\""), "{why}");
    assert!(!fixture.database().exists());
}

#[test]
fn import_fails_when_the_table_has_another_primary_key() {
    for mode in [ExistingTable::Append, ExistingTable::Upsert] {
        let fixture = Fixture::new();
        load(&fixture, &[r#"{"id":1,"a":1}"#], &ImportOptions::default());
        for (key, words) in [("a", "is \"id\", not \"a\""), ("nope", "is \"id\", not \"nope\"")] {
            let error = fixture.import(&keyed(mode, key)).unwrap_err();
            assert!(error.is_user_error() && error.to_string().contains(words), "{error}");
        }
        fixture.load(&keyed(mode, "id"));
        // A table without a primary key.
        let fixture = Fixture::new();
        load(&fixture, &[r#"{"a":1}"#], &ImportOptions::default());
        let error = fixture.import(&keyed(mode, "a")).unwrap_err().to_string();
        assert!(error.contains("has no primary key"), "{error}");
        // A unique index suffices.
        fixture.open().execute_batch("CREATE UNIQUE INDEX u ON t (a)").unwrap();
        assert_eq!(load(&fixture, &[r#"{"a":2}"#, r#"{"a":3}"#], &keyed(mode, "a")).rows, 2);
    }
}

// Keys of several columns.

fn composite(existing: ExistingTable) -> ImportOptions {
    options! { existing, primary_key: vec!["year".to_owned(), "n".to_owned()], ..ImportOptions::default() }
}

#[test]
fn composite_key_is_the_tables_primary_key() {
    let text = [
        r#"{"year":2024,"n":1,"a":1}"#,
        r#"{"year":2024,"n":2,"a":2}"#,
        r#"{"year":2025,"n":1,"a":3}"#,
        r#"{"year":2024,"n":1,"a":4}"#,
        r#"{"year":2025,"a":5}"#,
        r#"{"year":null,"n":1,"a":6}"#,
    ];
    for block in [8, 1 << 16] {
        let fixture = Fixture::new();
        let summary = load(&fixture, &text[..3], &options! { block, ..composite(ExistingTable::Refuse) });
        assert_eq!((summary.rows, summary.rejected), (3, 0));
        assert_eq!(summary.files[0].primary_key.as_deref(), Some("year, n"));
        assert_eq!(
            fixture.schema("t"),
            "CREATE TABLE \"t\" (\n  \"year\" INT NOT NULL,\n  \"n\" INT NOT NULL,\n  \"a\" INTEGER,\n  PRIMARY KEY (\"year\", \"n\")\n)"
        );
        assert!(fixture.open().execute("INSERT INTO t VALUES (2025, 1, 9)", []).is_err());
        // Lines without a complete key, and lines with an existing key.
        let fixture = Fixture::new();
        let summary = load(&fixture, &text, &options! { block, ..composite(ExistingTable::Refuse) });
        assert_eq!((summary.rows, summary.rejected), (3, 3));
        let reasons: Vec<&str> = summary.examples.iter().map(|bad| bad.reason.as_str()).collect();
        assert!(reasons[0].contains("UNIQUE constraint failed: t.year, t.n"), "{reasons:?}");
        assert_eq!(reasons[1], "the primary key \"n\" is missing or null");
        assert_eq!(reasons[2], "the primary key \"year\" is missing or null");
        assert_eq!(fixture.all("SELECT a FROM t NOT INDEXED"), "1\n2\n3");
    }
}

#[test]
fn upsert_updates_rows_by_a_composite_key() {
    let fixture = Fixture::new();
    for _ in 0..2 {
        let text = [r#"{"year":2024,"n":1,"a":1}"#, r#"{"year":2024,"n":2}"#, r#"{"year":2024,"n":1,"a":2}"#];
        assert_eq!(load(&fixture, &text, &composite(ExistingTable::Upsert)).rejected, 0);
        assert_eq!(fixture.all("SELECT * FROM t ORDER BY n"), "2024|1|2\n2024|2|∅");
    }
    // The key need not be named again. Its columns are widened like others.
    let summary = load(&fixture, &[r#"{"year":"2024","n":2,"a":7}"#], &existing(ExistingTable::Upsert));
    assert_eq!(summary.rejected, 0, "{:?}", summary.examples);
    assert_eq!(fixture.all("SELECT * FROM t ORDER BY n"), "2024|1|2\n2024|2|7");
    assert_eq!(fixture.all("SELECT DISTINCT typeof(year) FROM t"), "text");
    // A unique index of the table suffices, in any order of columns.
    let fixture = Fixture::new();
    fixture.open().execute_batch("CREATE TABLE t (n, year, a, UNIQUE (n, year))").unwrap();
    for a in 1..3 {
        let line = format!("{{\"year\":1,\"n\":1,\"a\":{a}}}");
        assert_eq!(load(&fixture, &[&line], &composite(ExistingTable::Upsert)).rows, 1);
        assert_eq!(fixture.all("SELECT a FROM t"), a.to_string());
    }
}

#[test]
fn schema_sets_a_composite_key() {
    let schema = |text: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Schema::read(file.path())
    };
    let options = |key: &str| {
        let text = format!("[tables.t]\nprimary_key = {key}\n[tables.t.columns]\nn = {{ name = \"number\" }}\n");
        options! { schema: schema(&text).unwrap(), ..existing(ExistingTable::Upsert) }
    };
    let fixture = Fixture::new();
    let text = [r#"{"year":1,"n":1,"a":1}"#, r#"{"year":1,"n":2,"a":1}"#, r#"{"year":1,"n":1,"a":2}"#];
    load(&fixture, &text, &options("[\"year\", \"number\"]"));
    assert_eq!(fixture.all("SELECT number, a FROM t ORDER BY 1"), "1|2\n2|1");
    load(&fixture, &[r#"{"year":1,"n":2,"a":5}"#], &options("[\"number\", \"year\"]"));
    assert_eq!(fixture.all("SELECT number, a FROM t ORDER BY 1"), "1|2\n2|5");
    let error = fixture.import(&options("\"year\"")).unwrap_err().to_string();
    assert!(error.contains("is \"year\", \"number\", not \"year\""), "{error}");
    let error = schema("[tables.t]\nprimary_key = 7\n").unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("a column's name, or a list of names"), "{error}");
}

// Reasons of rejected lines.

#[test]
fn rejection_reasons_name_the_column_of_the_schema() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "[tables.t.columns]\ngroupID = { type = \"integer\", name = \"group_id\" }\n";
    std::fs::write(file.path(), text).unwrap();
    let options = options! { schema: Schema::read(file.path()).unwrap(), ..existing(ExistingTable::Append) };
    let text = [r#"{"groupID":"x"}"#, r#"{"groupID":1}"#, r#"{"groupID":"y"}"#];
    let fixture = Fixture::new();
    // A new table and an existing one.
    for _ in 0..2 {
        let summary = load(&fixture, &text, &options);
        assert_eq!((summary.rows, summary.rejected), (1, 2));
        for bad in &summary.examples {
            let expected = "the column \"group_id\" is INTEGER (whole numbers of 64 bits); found text: ";
            assert!(bad.reason.starts_with(expected), "{}", bad.reason);
        }
    }
    // An inferred type is never the reason, because it is inferred from the valid lines.
    let text = "[tables.t.columns]\na = { type = \"integer\" }\n";
    std::fs::write(file.path(), text).unwrap();
    let options = options! { schema: Schema::read(file.path()).unwrap(), ..ImportOptions::default() };
    let fixture = Fixture::new();
    let text = [r#"{"b":1,"a":1}"#, r#"{"b":"x","a":"y"}"#, r#"{"c":1}"#, r#"{"c":"z"}"#];
    let summary = load(&fixture, &text, &options);
    assert_eq!((summary.rows, summary.rejected), (3, 1));
    let expected = "the column \"a\" is INTEGER (whole numbers of 64 bits); found text: \"y\"";
    assert_eq!(summary.examples[0].reason, expected);
    let fixture = Fixture::new();
    fixture.open().execute_batch("CREATE TABLE t (id INTEGER, a INTEGER)").unwrap();
    let text = [r#"{"id":1,"ID":1}"#, r#"{"id":2,"ID":"x","a":"y"}"#];
    let summary = load(&fixture, &text, &existing(ExistingTable::Append));
    let expected = "the column \"a\" is INTEGER (whole numbers of 64 bits); found text: \"y\"";
    assert_eq!(summary.examples[0].reason, expected);
}

#[test]
fn appended_key_named_like_the_rowid_gets_another_column_name() {
    let fixture = Fixture::new();
    fixture.write("t.jsonl", b"{\"a\":1}\n");
    fixture.load(&ImportOptions::default());
    fixture.write("t.jsonl", b"{\"a\":2,\"rowid\":7,\"OID\":\"x\"}\n");
    fixture.load(&options! { existing: ExistingTable::Append, ..ImportOptions::default() });
    assert_eq!(fixture.all("SELECT a, rowid_2, OID_2 FROM t"), "1|∅|∅\n2|7|x");
}
