//! Tables: columns, keys, names, and imports into existing tables.

#[macro_use]
mod common;

use std::path::PathBuf;

use common::{Fixture, lines, small_blocks};
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, OnError, Target};
use gristmill_jsonl::import::schema::Schema;
use gristmill_jsonl::import::stats::stats;
use gristmill_jsonl::import::summary::FileOutcome;

fn existing(existing: ExistingTable) -> ImportOptions {
    options! { existing, ..ImportOptions::default() }
}

#[test]
fn column_first_seen_in_line_400_000_is_added() {
    let fixture = Fixture::new();
    let mut text: String = (0..400_000).map(|n| format!("{{\"_key\":{n}}}\n")).collect();
    text.push_str("{\"_key\":400000,\"late\":1.5}\n");
    fixture.write("t.jsonl", text.as_bytes());
    assert_eq!(fixture.load(&ImportOptions::default()).rows, 400_001);
    assert_eq!(fixture.all("SELECT count(*), count(late), max(_key) FROM t"), "400001|1|400000");
    assert!(fixture.schema("t").ends_with("\"late\" REAL\n)"));
}

#[test]
fn types_widen_when_lines_disagree() {
    let first = r#"{"i":1,"r":1,"b":true,"t":1,"n":null,"m":true,"x":1.50,"j":1}"#;
    let last = r#"{"i":2,"r":2.5,"b":false,"t":"1","n":null,"m":3,"x":"y","j":[1]}"#;
    for before in [0, 1, 100] {
        let text = lines(&[first]) + &lines(&[first]).repeat(before) + &lines(&[last]);
        let fixture = Fixture::with(&[("t.jsonl", &text)]);
        fixture.load(&small_blocks());
        assert_eq!(
            fixture.schema("t"),
            "CREATE TABLE \"t\" (\n  \"i\" INTEGER,\n  \"r\" REAL,\n  \"b\" BOOLEAN,\n  \"t\" TEXT,\n  \"n\",\n  \
             \"m\" INTEGER,\n  \"x\" TEXT,\n  \"j\" TEXT\n)"
        );
        assert_eq!(fixture.one("SELECT * FROM t"), "1|1.0r|1|1|∅|1|1.50|1");
        assert_eq!(fixture.one("SELECT * FROM t ORDER BY rowid DESC"), "2|2.5r|0|1|∅|3|y|[1]");
        assert_eq!(fixture.all("SELECT DISTINCT typeof(t), typeof(x), typeof(j) FROM t"), "text|text|text");
    }
}

#[test]
fn names_are_made_valid_and_unique() {
    let fixture = Fixture::with(&[
        ("2024/map-moons.jsonl", "{\"a\":1}\n"),
        ("deep/er/_sde.ndjson", "{\"a\":1}\n"),
        ("sqlite_x.jsonl", "{\"a\":1}\n"),
        ("_imports.jsonl", "{\"a\":1}\n"),
        ("1st.jsonl", "{\"select\":1,\"we\\\"ird; --\":2,\"\":3,\"ID\":4,\"id\":5,\"Id\":6,\"rowid\":7}\n"),
        (".hidden.jsonl", "{\"a\":1}\n"),
        ("notes.txt", "{\"a\":1}\n"),
    ]);
    let summary = fixture.load(&ImportOptions::default());
    assert_eq!(
        fixture.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"),
        "_imports\n_sde\nmap_moons\nt_1st\nt__imports\nt_sqlite_x"
    );
    assert_eq!(
        fixture.all("SELECT name FROM pragma_table_info('t_1st')"),
        "select\nwe\"ird; --\nempty\nID\nid_2\nId_3\nrowid_2"
    );
    assert_eq!(fixture.all("SELECT \"select\", \"we\"\"ird; --\", empty, ID, id_2, Id_3 FROM t_1st"), "1|2|3|4|5|6");
    let notes = &summary.files.iter().find(|file| file.table == "t_1st").unwrap().notes;
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert_eq!(notes[1], "the key \"id\" is the column \"id_2\"");
}

#[test]
fn import_fails_when_two_files_have_one_table_name() {
    let fixture = Fixture::with(&[("a/types.jsonl", "{}"), ("b/Types.ndjson.gz", "{}"), ("c.jsonl", "{}")]);
    let error = fixture.import(&ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("a/types.jsonl") && error.contains("b/Types.ndjson.gz"), "{error}");
    assert!(error.contains("--table"), "{error}");
    assert!(!fixture.database().exists());
    // A file that is named twice is loaded once.
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n")]);
    let paths = [fixture.data(), fixture.data().join("t.jsonl"), fixture.data().join("../data/t.jsonl")];
    assert_eq!(fixture.import_of(&paths, &ImportOptions::default()).unwrap().rows, 1);
}

#[test]
fn import_fails_when_there_is_no_file_to_load() {
    let fixture = Fixture::with(&[("types.json", "{}")]);
    let error = fixture.import(&ImportOptions::default()).unwrap_err();
    assert!(error.is_user_error());
    assert!(error.to_string().contains("no file to load"), "{error}");
    assert!(fixture.import_of(&[fixture.data().join("gone")], &ImportOptions::default()).unwrap_err().is_user_error());
    // It is loaded if it is named itself.
    fixture.write("types.json", b"{\"a\":1}\n");
    fixture.import_of(&[fixture.data().join("types.json")], &ImportOptions::default()).unwrap();
    assert_eq!(fixture.all("SELECT a FROM types"), "1");
}

#[test]
fn compressed_files_are_loaded() {
    use std::io::Write;
    let fixture = Fixture::new();
    let text: String = (0..50_000).map(|n| format!("{{\"_key\":{n},\"x\":\"{}\"}}\n", n % 7)).collect();
    // Concatenated gzip or zstd members are one file.
    let mut compressed = Vec::new();
    for part in [&text.as_bytes()[..100_000], &text.as_bytes()[100_000..]] {
        let mut encoder = flate2::write::GzEncoder::new(&mut compressed, flate2::Compression::fast());
        encoder.write_all(part).unwrap();
        encoder.finish().unwrap();
    }
    fixture.write("g.jsonl.gz", &compressed);
    let mut compressed = zstd::encode_all(&text.as_bytes()[..100_000], 1).unwrap();
    compressed.extend(zstd::encode_all(&text.as_bytes()[100_000..], 1).unwrap());
    fixture.write("z.ndjson.zst", &compressed);
    assert_eq!(fixture.load(&ImportOptions::default()).rows, 100_000);
    for table in ["g", "z"] {
        assert_eq!(fixture.all(&format!("SELECT count(*), sum(_key), sum(x) FROM {table}")), "50000|1249975000|149997");
    }
    // A truncated file is not loaded.
    fixture.write("z.ndjson.zst", &compressed[..compressed.len() / 2]);
    let summary = fixture.load(&existing(ExistingTable::Replace));
    let failed: Vec<_> = summary.files.iter().filter(|file| file.outcome != FileOutcome::Loaded).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(fixture.all("SELECT count(*) FROM z"), "50000", "the existing table is kept");
    assert_eq!(fixture.all("SELECT count(*) FROM _imports WHERE error IS NOT NULL"), "1");
}

#[test]
fn primary_key_is_chosen_by_rule() {
    for (text, key, schema) in [
        // Ascending whole numbers are the rowid.
        (&["{\"_key\":1}", "{\"_key\":5}"][..], Some("_key"), "\"_key\" INTEGER PRIMARY KEY"),
        // Other keys get an index, and rows stay in file order.
        (&["{\"id\":5}", "{\"id\":1}", "{\"id\":3}"], Some("id"), "\"id\" INT NOT NULL PRIMARY KEY"),
        (&["{\"_id\":\"b\"}", "{\"_id\":\"a\"}"], Some("_id"), "\"_id\" TEXT NOT NULL PRIMARY KEY"),
        (&["{\"_id\":\"b\"}", "{\"_id\":7}"], Some("_id"), "\"_id\" TEXT NOT NULL PRIMARY KEY"),
        (&["{\"id\":1,\"_key\":9}", "{\"id\":2,\"_key\":8}"], Some("_key"), "\"_key\" INT NOT NULL PRIMARY KEY"),
        // None of these is a key.
        (&["{\"id\":1}", "{\"id\":1}"], None, "\"id\" INTEGER"),
        (&["{\"id\":2}", "{\"id\":1}", "{\"id\":1}"], None, "\"id\" INTEGER"),
        (&["{\"id\":1}", "{\"x\":2}"], None, "\"id\" INTEGER"),
        (&["{\"id\":1}", "{\"id\":null}"], None, "\"id\" INTEGER"),
        (&["{\"id\":1.5}", "{\"id\":2}"], None, "\"id\" REAL"),
        (&["{\"id\":true}", "{\"id\":false}"], None, "\"id\" BOOLEAN"),
        (&["{\"id\":[1]}", "{\"id\":[2]}"], None, "\"id\" TEXT"),
        (&["{\"x\":1}", "{\"id\":2}"], None, "\"id\" INTEGER"),
        // They are equal as text.
        (&["{\"id\":5}", "{\"id\":\"5\"}"], None, "\"id\" TEXT"),
        (&["{\"id\":\"5\"}", "{\"id\":5}"], None, "\"id\" TEXT"),
        (&["{\"id\":99999999999999999999}", "{\"id\":99999999999999999999}"], None, "\"id\" TEXT"),
    ] {
        for block in [8, 1 << 16] {
            let fixture = Fixture::with(&[("t.jsonl", &lines(text))]);
            let summary = fixture.load(&options! { block, ..ImportOptions::default() });
            assert_eq!(summary.rows, text.len() as u64, "{text:?}");
            assert_eq!(summary.files[0].primary_key.as_deref(), key, "{text:?}");
            let found = fixture.schema("t");
            assert!(
                found.contains(&format!("{schema}\n")) || found.contains(&format!("{schema},")),
                "{text:?}: {found}"
            );
            let keys = fixture.all("SELECT count(*) FROM pragma_table_info('t') WHERE pk > 0");
            assert_eq!(keys, if key.is_some() { "1" } else { "0" }, "{text:?}");
        }
    }
    let fixture = Fixture::with(&[("t.jsonl", "{\"id\":5}\n{\"id\":1}\n{\"id\":3}\n")]);
    fixture.load(&ImportOptions::default());
    assert_eq!(fixture.all("SELECT id FROM t NOT INDEXED"), "5\n1\n3", "rows are in file order");
    assert!(fixture.all("EXPLAIN QUERY PLAN SELECT * FROM t WHERE id = 3").contains("sqlite_autoindex_t_1"));
    let conn = fixture.open();
    let twice = conn.execute("INSERT INTO t VALUES (3)", []).unwrap_err().to_string();
    assert!(twice.contains("UNIQUE constraint failed: t.id"), "{twice}");
}

#[test]
fn requested_primary_key_is_used() {
    let text = lines(&[
        "{\"user\":\"b\",\"n\":1}",
        "{\"n\":2}",
        "{\"user\":\"a\",\"n\":3}",
        "{\"user\":\"b\",\"n\":4}",
        "{\"user\":null,\"n\":5}",
    ]);
    let options = options! { primary_key: vec!["user".to_owned()], ..ImportOptions::default() };
    let fixture = Fixture::with(&[("t.jsonl", &text), ("other.jsonl", "{\"x\":1}\n")]);
    let summary = fixture.load(&options);
    assert_eq!((summary.rows, summary.rejected), (3, 3));
    let reasons: Vec<_> = summary.examples.iter().map(|bad| (bad.line, bad.reason.as_str())).collect();
    assert_eq!(reasons[0], (2, "the primary key \"user\" is missing or null"));
    assert_eq!(reasons[1].0, 4);
    assert!(reasons[1].1.contains("UNIQUE constraint failed: t.user"), "{reasons:?}");
    assert_eq!(reasons[2].0, 5);
    assert_eq!(fixture.all("SELECT user, n FROM t NOT INDEXED"), "b|1\na|3");
    let other = summary.files.iter().find(|file| file.table == "other").unwrap();
    assert!(other.notes[0].contains("there is no column \"user\""), "{:?}", other.notes);
    // Numbers that are ascending only at first.
    let fixture =
        Fixture::with(&[("t.jsonl", "{\"user\":1}\n{\"user\":2}\n{\"user\":2}\n{\"user\":1}\n{\"user\":9}\n")]);
    let summary = fixture.load(&options);
    assert_eq!((summary.rows, summary.rejected), (3, 2));
    assert_eq!(fixture.all("SELECT user FROM t"), "1\n2\n9");
}

#[test]
fn objects_are_flattened_into_columns() {
    let text = lines(&[
        r#"{"_key":1,"name":{"en":"Ore","de":"Erz"},"pos":{"x":1,"deep":{"y":2}},"list":[{"a":1}]}"#,
        r#"{"_key":2,"name":{},"pos":7,"name_en":"taken"}"#,
        r#"{"_key":3,"name":null,"pos":{"deep":"flat"}}"#,
    ]);
    let fixture = Fixture::with(&[("t.jsonl", &text)]);
    fixture.load(&options! { flatten: 32, ..ImportOptions::default() });
    assert_eq!(
        fixture.all("SELECT name || ' ' || type FROM pragma_table_info('t')"),
        "_key INTEGER\nname_en TEXT\nname_de TEXT\npos_x INTEGER\npos_deep_y INTEGER\nlist TEXT\nname TEXT\n\
         pos INTEGER\nname_en_2 TEXT\npos_deep TEXT"
    );
    assert_eq!(
        fixture.all("SELECT * FROM t"),
        "1|Ore|Erz|1|2|[{\"a\":1}]|∅|∅|∅|∅\n2|∅|∅|∅|∅|∅|{}|7|taken|∅\n3|∅|∅|∅|∅|∅|∅|∅|∅|flat"
    );
    std::fs::remove_file(fixture.database()).unwrap();
    fixture.load(&options! { flatten: 1, ..ImportOptions::default() });
    assert_eq!(fixture.one("SELECT pos_deep FROM t"), "{\"y\":2}");
}

#[test]
fn flattened_object_with_too_many_keys_stays_json() {
    let mut text = String::new();
    for line in 0..300 {
        let members: Vec<String> = (0..10).map(|n| format!("\"{}\":{n}", line * 10 + n)).collect();
        text.push_str(&format!("{{\"_key\":{line},\"name\":{{\"en\":\"x\"}},\"by_id\":{{{}}}}}\n", members.join(",")));
    }
    let fixture = Fixture::with(&[("t.jsonl", &text)]);
    let summary = fixture.load(&options! { flatten: 32, block: 4_096, ..ImportOptions::default() });
    assert_eq!(summary.rows, 300);
    assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "_key\nname_en\nby_id");
    assert!(summary.files[0].notes[0].contains("\"by_id\" have too many keys"), "{:?}", summary.files[0].notes);
    assert_eq!(fixture.one("SELECT json_extract(by_id, '$.19') FROM t WHERE _key = 1"), "9");
}

#[test]
fn keys_beyond_the_column_limit_go_to_the_overflow_column() {
    let mut text = String::new();
    for line in 0..300 {
        let members: Vec<String> = (0..10).map(|n| format!("\"k{}\":{n}", line * 10 + n)).collect();
        text.push_str(&format!("{{\"_key\":{line},{}}}\n", members.join(",")));
    }
    let fixture = Fixture::with(&[("t.jsonl", &text)]);
    let summary = fixture.load(&options! { block: 4_096, ..ImportOptions::default() });
    assert_eq!(summary.rows, 300);
    assert_eq!(fixture.all("SELECT count(*) FROM pragma_table_info('t')"), "2000");
    assert!(summary.files[0].notes[0].contains("the others are in \"_more\""), "{:?}", summary.files[0].notes);
    assert_eq!(fixture.all("SELECT k1997, json_extract(_more, '$.k1998') FROM t WHERE _key = 199"), "7|8");
    assert_eq!(fixture.all("SELECT _more FROM t WHERE _key = 0"), "∅");
    assert_eq!(fixture.all("SELECT json_extract(_more, '$.k2999') FROM t WHERE _key = 299"), "9");
}

#[test]
fn only_selected_languages_are_kept() {
    let text = lines(&[
        r#"{"_key":1,"name":{"de":"Erz","en":"Ore","fr":"Minerai"},"size":{"x":1,"y":2},"en":"stays"}"#,
        r#"{"_key":2,"name":{"fr":"Seul"}}"#,
        r#"{"_key":3,"name":{"de":"Erz","en":"cut"#,
    ]);
    let fixture = Fixture::with(&[("t.jsonl", &text)]);
    let options = options! { languages: vec!["en".to_owned(), "de".to_owned()], ..ImportOptions::default() };
    let rejects = fixture.folder.path().join("data/rejects.txt");
    let summary = fixture.load(&options! { rejects: Some(rejects.clone()), ..options.clone() });
    assert_eq!(summary.rejected, 1);
    assert_eq!(fixture.one("SELECT name, size, en FROM t"), "{\"de\":\"Erz\",\"en\":\"Ore\"}|{\"x\":1,\"y\":2}|stays");
    assert_eq!(fixture.one("SELECT name FROM t WHERE _key = 2"), "{\"fr\":\"Seul\"}");
    assert!(
        std::fs::read_to_string(rejects)
            .unwrap()
            .contains(r#""raw":"{\"_key\":3,\"name\":{\"de\":\"Erz\",\"en\":\"cut""#)
    );
    std::fs::remove_file(fixture.database()).unwrap();
    fixture.load(&options! { flatten: 1, ..options });
    assert_eq!(
        fixture.all("SELECT name FROM pragma_table_info('t')"),
        "_key\nname_de\nname_en\nsize_x\nsize_y\nen\nname_fr"
    );
}

fn schema(text: &str) -> Schema {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Schema::read(file.path()).unwrap()
}

#[test]
fn schema_sets_types_names_and_keys() {
    let fixture = Fixture::with(&[
        (
            "t.jsonl",
            "{\"a\":1,\"b\":\"x\",\"c\":true,\"n\":1}\n{\"a\":2.5,\"b\":3,\"n\":9007199254740993}\n{\"a\":\"no\"}\n",
        ),
        ("left.jsonl", "{\"a\":1}\n"),
    ]);
    let text = "[tables.t]\nname = \"things\"\nindexes = [\"beta\"]\n[tables.t.columns]\na = { type = \"real\" }\n\
                b = { name = \"beta\" }\nc = { skip = true }\nnever = { type = \"integer\" }\n[tables.left]\nskip = true\n";
    let summary = fixture.load(&options! { schema: schema(text), ..ImportOptions::default() });
    assert_eq!((summary.files.len(), summary.rows, summary.rejected), (1, 2, 1));
    let expected = "the column \"a\" is REAL (numbers in the range of a double); found text: ";
    assert!(summary.examples[0].reason.starts_with(expected), "{}", summary.examples[0].reason);
    assert_eq!(
        fixture.schema("things"),
        "CREATE TABLE \"things\" (\n  \"a\" REAL,\n  \"beta\" TEXT,\n  \"n\" INTEGER,\n  \"never\" INTEGER\n)"
    );
    assert_eq!(fixture.all("SELECT * FROM things"), "1.0r|x|1|∅\n2.5r|3|9007199254740993|∅");
    assert_eq!(
        fixture.all("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'things'"),
        "idx_things_beta"
    );

    for (others, rows, rejected) in [("skip", 3, 0), ("reject", 1, 2)] {
        let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1,\"b\":1}\n{\"a\":2}\n{\"b\":1}\n")]);
        let text = format!("[tables.t]\nothers = \"{others}\"\n[tables.t.columns.a]\ntype = \"integer\"\n");
        let summary = fixture.load(&options! { schema: schema(&text), ..ImportOptions::default() });
        assert_eq!((summary.rows, summary.rejected), (rows, rejected));
        assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "a");
    }
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n")]);
    let wrong = options! { schema: schema("[tables.typo]\n"), ..ImportOptions::default() };
    assert!(fixture.import(&wrong).unwrap_err().to_string().contains("\"typo\", but no file has that name"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[tables.t.columns.a]\ntype = \"int\"\n").unwrap();
    let error = Schema::read(file.path()).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("integer"), "{error}");
}

#[test]
fn second_import_into_a_table_is_refused_with_advice() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n")]);
    fixture.load(&ImportOptions::default());
    let error = fixture.import(&ImportOptions::default()).unwrap_err();
    assert!(error.is_user_error());
    let error = error.to_string();
    assert!(error.contains("has the table t already") && error.contains("--append"), "{error}");
    // Another table can be added.
    fixture.write("u.jsonl", b"{\"a\":2}\n");
    fixture.import_of(&[fixture.data().join("u.jsonl")], &ImportOptions::default()).unwrap();
    assert_eq!(fixture.all("SELECT t.a, u.a FROM t, u"), "1|2");
}

#[test]
fn replace_creates_the_table_again_with_its_indexes() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"_key\":1,\"a\":1}\n")]);
    fixture.load(&ImportOptions::default());
    fixture.open().execute_batch("CREATE INDEX by_a ON t (a); CREATE INDEX by_key_and_a ON t (_key, a)").unwrap();
    fixture.write("t.jsonl", b"{\"_key\":2,\"a\":\"text\"}\n{\"_key\":3,\"b\":1}\n");
    fixture.load(&existing(ExistingTable::Replace));
    assert_eq!(fixture.all("SELECT _key, a, b FROM t"), "2|text|∅\n3|∅|1");
    assert_eq!(
        fixture.all("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 't' ORDER BY 1"),
        "by_a\nby_key_and_a"
    );
    assert_eq!(fixture.all("SELECT mode, rows FROM _imports ORDER BY id"), "create|1\nreplace|2");
}

#[test]
fn append_adds_rows_and_columns() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"_key\":1,\"n\":1,\"ID\":1,\"id\":2}\n")]);
    fixture.load(&ImportOptions::default());
    let text = lines(&[
        r#"{"_key":2,"n":2,"new":0.5,"id":4}"#,
        r#"{"_key":1,"n":3}"#,
        r#"{"_key":3,"n":"text"}"#,
        r#"{"_key":4,"n":4.0,"new":7}"#,
    ]);
    fixture.write("t.jsonl", text.as_bytes());
    let summary = fixture.load(&existing(ExistingTable::Append));
    assert_eq!((summary.rows, summary.rejected), (3, 1));
    assert!(summary.examples[0].reason.contains("UNIQUE constraint failed: t._key"));
    assert_eq!(
        fixture.all("SELECT _key, n, ID, id_2, new FROM t"),
        "1|1|1|2|∅\n2|2|∅|4|0.5r\n3|text|∅|∅|∅\n4|4.0|∅|∅|7.0r"
    );
    assert!(fixture.schema("t").contains("\"new\" REAL"));
    // Append to a table created by the user.
    fixture
        .open()
        .execute_batch(
            "CREATE TABLE own (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, at DATETIME, up AS (upper(name)))",
        )
        .unwrap();
    fixture.write(
        "own.jsonl",
        b"{\"name\":7,\"at\":\"2024-01-02\",\"id\":1}\n{\"at\":1,\"id\":2}\n{\"name\":\"x\",\"id\":9}\n",
    );
    let summary = fixture.import_of(&[fixture.data().join("own.jsonl")], &existing(ExistingTable::Append)).unwrap();
    assert_eq!((summary.rows, summary.rejected), (2, 1));
    assert_eq!(fixture.all("SELECT * FROM own"), "1|7|2024-01-02|7\n9|x|∅|X");
}

#[test]
fn append_keeps_the_columns_of_flattened_objects() {
    let options = options! { flatten: 32, ..existing(ExistingTable::Append) };
    let fixture = Fixture::with(&[("t.jsonl", "{\"p\":{\"x\":1,\"y\":2.5}}\n")]);
    fixture.load(&options);
    fixture.write("t.jsonl", b"{\"p\":{\"x\":3,\"y\":4}}\n{\"p\":{\"x\":\"no\"}}\n");
    let summary = fixture.load(&options);
    assert_eq!((summary.rows, summary.rejected), (2, 0));
    assert_eq!(fixture.all("SELECT p_x, p_y FROM t"), "1|2.5r\n3|4.0r\nno|∅");
}

#[test]
fn upsert_updates_rows_by_key() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"_key\":1,\"a\":1,\"b\":1}\n{\"_key\":2,\"a\":2,\"b\":2}\n")]);
    fixture.load(&ImportOptions::default());
    fixture.write(
        "t.jsonl",
        b"{\"_key\":2,\"a\":20}\n{\"_key\":3,\"a\":30,\"c\":1}\n{\"a\":1}\n{\"_key\":1,\"b\":null}\n{\"_key\":1}\n",
    );
    let summary = fixture.load(&existing(ExistingTable::Upsert));
    assert_eq!((summary.rows, summary.rejected), (4, 1));
    assert_eq!(summary.examples[0].reason, "the primary key \"_key\" is missing or null");
    assert_eq!(fixture.all("SELECT _key, a, b, c FROM t"), "1|1|∅|∅\n2|20|2|∅\n3|30|∅|1");
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n")]);
    fixture.load(&ImportOptions::default());
    let error = fixture.import(&existing(ExistingTable::Upsert)).unwrap_err().to_string();
    assert!(error.contains("has no primary key"), "{error}");
    fixture.open().execute_batch("CREATE UNIQUE INDEX u ON t (a)").unwrap();
    let named = options! { primary_key: vec!["a".to_owned()], ..existing(ExistingTable::Upsert) };
    assert_eq!(fixture.load(&named).rows, 1);
    assert_eq!(fixture.all("SELECT a FROM t"), "1");
}

#[test]
fn resume_skips_unchanged_files() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1}\n"), ("b.jsonl", "{\"x\":1}\n"), ("c.jsonl", "{\"x\":1}\n")]);
    fixture.load(&ImportOptions::default());
    // A new time without new contents is no change.
    let touched = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    std::fs::File::options().append(true).open(fixture.data().join("b.jsonl")).unwrap().set_modified(touched).unwrap();
    fixture.write("c.jsonl", b"{\"x\":2}\n");
    fixture.write("d.jsonl", b"{\"x\":4}\n");
    let error = fixture.import(&options! { resume: true, ..ImportOptions::default() }).unwrap_err().to_string();
    assert!(error.contains("has the table c already") && error.contains("changed since"), "{error}");
    let summary = fixture.load(&options! { resume: true, ..existing(ExistingTable::Append) });
    let outcomes: Vec<_> = summary.files.iter().map(|file| file.outcome.clone()).collect();
    assert_eq!(outcomes, [FileOutcome::Unchanged, FileOutcome::Unchanged, FileOutcome::Loaded, FileOutcome::Loaded]);
    assert_eq!(fixture.all("SELECT x FROM c"), "1\n2");
    assert_eq!(fixture.all("SELECT x FROM d"), "4");
    // With other options the file is loaded again.
    let other = options! { resume: true, flatten: 1, ..existing(ExistingTable::Replace) };
    assert!(fixture.load(&other).files.iter().all(|file| file.outcome == FileOutcome::Loaded));
}

#[test]
fn file_that_is_not_a_database_is_not_changed() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n")]);
    std::fs::write(fixture.database(), "a text, not a database, and longer than a header would be: ".repeat(20))
        .unwrap();
    let error = fixture.import(&ImportOptions::default()).unwrap_err();
    assert!(error.is_user_error() && error.to_string().contains("not an SQLite database"), "{error}");
    assert!(std::fs::read_to_string(fixture.database()).unwrap().starts_with("a text"));
    // An input cannot be the output.
    let lines = fixture.data().join("t.jsonl");
    let error = import(
        std::slice::from_ref(&lines),
        &Target::Database(lines.clone()),
        &ImportOptions::default(),
        &ImportHandle::default().into(),
    );
    assert!(error.is_err());
    assert_eq!(std::fs::read_to_string(&lines).unwrap(), "{\"a\":1}\n");
    // An empty file is an empty database.
    std::fs::write(fixture.database(), "").unwrap();
    fixture.load(&ImportOptions::default());
    assert_eq!(fixture.all("SELECT a FROM t"), "1");
}

#[test]
fn dry_run_writes_nothing() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"_key\":1,\"a\":1}\nbad\n{\"_key\":2,\"a\":\"x\"}\n")]);
    let dry_run = |target| {
        import(&[fixture.data()], &target, &ImportOptions::default(), &ImportHandle::default().into()).unwrap()
    };
    let summary = dry_run(Target::Schema);
    assert_eq!(
        summary.files[0].sql.as_deref(),
        Some("CREATE TABLE \"t\" (\n  \"_key\" INTEGER PRIMARY KEY,\n  \"a\" TEXT\n)")
    );
    assert_eq!((summary.rows, summary.rejected), (2, 1));
    let summary = dry_run(Target::ValidateOnly);
    assert_eq!((summary.rows, summary.rejected, summary.files[0].columns.len()), (2, 1, 0));
    assert!(!fixture.database().exists());
    fixture.load(&ImportOptions::default());
    assert_eq!(Some(fixture.schema("t")), dry_run(Target::Schema).files[0].sql.clone());
}

#[test]
fn stats_count_tables_rows_and_bytes() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"_key\":\"x\"}\nbad\n"), ("b.jsonl", "{\"y\":1,\"z\":2}\n")]);
    fixture.load(&options! { indexes: vec!["y".to_owned()], ..ImportOptions::default() });
    let stats = stats(&fixture.database()).unwrap();
    let tables: Vec<_> =
        stats.tables.iter().map(|table| (table.table.as_str(), table.rows, table.columns, table.errors)).collect();
    assert_eq!(tables, [("a", 1, 1, Some(1)), ("b", 1, 2, Some(0))]);
    assert!(stats.tables.iter().all(|table| table.bytes > 0 && table.index_bytes > 0));
    assert!(stats.tables[1].source.as_ref().unwrap().ends_with("b.jsonl"));
    assert!(gristmill_jsonl::import::stats::stats(&PathBuf::from("/gone.db")).is_err());
}

#[test]
fn cancelled_import_is_resumed() {
    let fixture = Fixture::with(&[("a.jsonl", "{\"x\":1}\n"), ("b.jsonl", "{\"x\":1}\n"), ("c.jsonl", "bad\n")]);
    let options = options! { resume: true, on_error: OnError::Fail, ..ImportOptions::default() };
    let summary = fixture.import(&options).unwrap();
    assert!(summary.stopped_by.is_some() && !fixture.database().exists());
    assert_eq!(fixture.leftovers(), [".out.db.import", ".out.db.import-journal"]);
    // Meanwhile one file was removed, one was changed, and the bad one was corrected.
    std::fs::remove_file(fixture.data().join("a.jsonl")).unwrap();
    fixture.write("c.jsonl", b"{\"x\":3}\n");
    fixture.write("d.jsonl", b"{\"x\":4}\n");
    let summary = fixture.load(&options);
    let outcomes: Vec<_> = summary.files.iter().map(|file| file.outcome.clone()).collect();
    assert_eq!(outcomes, [FileOutcome::Unchanged, FileOutcome::Loaded, FileOutcome::Loaded]);
    assert_eq!(fixture.all("SELECT b.x, c.x, d.x FROM b, c, d"), "1|3|4");
    assert_eq!(fixture.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"), "_imports\nb\nc\nd");
    assert_eq!(fixture.all("SELECT \"table\" FROM _imports ORDER BY 1"), "b\nc\nd");
}

#[test]
fn resume_recognises_a_renamed_table() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"x\":1}\n")]);
    let renamed = schema("[tables.t]\nname = \"other\"\n");
    let options = options! { schema: renamed, resume: true, ..ImportOptions::default() };
    fixture.load(&options);
    assert_eq!(fixture.load(&options).files[0].outcome, FileOutcome::Unchanged);
    assert_eq!(stats(&fixture.database()).unwrap().tables[0].errors, Some(0));
}

#[test]
fn line_with_many_keys_is_loaded() {
    let fixture = Fixture::new();
    let members: Vec<String> = (0..200_000).map(|n| format!("\"k{n}\":{n}")).collect();
    let twice = format!("{{\"_key\":2,{},\"k9999\":0}}", members.join(","));
    fixture.write("t.jsonl", format!("{{\"_key\":1,{}}}\n{twice}\n", members.join(",")).as_bytes());
    let summary = fixture.load(&ImportOptions::default());
    assert_eq!((summary.rows, summary.rejected), (1, 1));
    assert!(summary.examples[0].reason.contains("\"k9999\" occurs twice"), "{}", summary.examples[0].reason);
    assert_eq!(fixture.all("SELECT k5, json_extract(_more, '$.k199999') FROM t"), "5|199999");
}

#[test]
fn import_fails_when_the_database_path_is_not_usable() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"x\":1}\n")]);
    // The database is created at the target of a link, and the link stays.
    let (real, link) = (fixture.data().join("real.db"), fixture.data().join("link.db"));
    std::fs::write(&real, "").unwrap();
    std::os::unix::fs::symlink("real.db", &link).unwrap();
    let into = |path: PathBuf| {
        import(&[fixture.data()], &Target::Database(path), &ImportOptions::default(), &ImportHandle::default().into())
    };
    into(link.clone()).unwrap();
    assert!(link.is_symlink() && stats(&real).unwrap().tables.len() == 1);
    std::fs::remove_file(&real).unwrap();
    assert!(into(link).unwrap_err().to_string().contains("follow the link"));
    // A table `_imports` created by the user.
    fixture.open().execute_batch("CREATE TABLE _imports (what)").unwrap();
    let error = fixture.import(&ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("a table _imports that no import created"), "{error}");
    // No database is created if no file could be loaded.
    std::fs::remove_file(fixture.database()).unwrap();
    fixture.write("t.jsonl", b"\xff\xfe{\0}\0");
    let summary = fixture.import(&ImportOptions::default()).unwrap();
    assert!(summary.has_failures() && !summary.is_published);
    assert!(!fixture.database().exists());
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

#[test]
fn column_of_numbers_widens_when_rows_are_appended() {
    let first = r#"{"_key":1,"n":1,"r":0.5,"b":true,"t":"x"}"#;
    let fixture = Fixture::with(&[("t.jsonl", &lines(&[first]))]);
    fixture.load(&ImportOptions::default());
    fixture.open().execute_batch("CREATE VIEW v AS SELECT n FROM t; CREATE INDEX i ON t (r)").unwrap();
    let other = fixture.open();
    assert_eq!(common::rows(&other, "SELECT n FROM v"), "1");
    // Numbers that the old types cannot hold without loss.
    fixture.write("t.jsonl", lines(&[r#"{"_key":2,"n":3.5,"r":9007199254740993,"b":7,"t":1.50}"#]).as_bytes());
    for (existing_rows, key) in [(ExistingTable::Append, 2), (ExistingTable::Upsert, 2)] {
        let summary = fixture.load(&existing(existing_rows));
        let rejected =
            u64::from(existing_rows == ExistingTable::Append && fixture.all("SELECT count(*) FROM t") != "2");
        assert_eq!(summary.rejected, rejected, "{:?}", summary.examples);
        assert_eq!(
            fixture.all(&format!("SELECT n, r, b, t FROM t WHERE _key = {key}")),
            "3.5r|9007199254740993|7|1.50"
        );
    }
    assert_eq!(fixture.all("SELECT n, r, b, t FROM t WHERE _key = 1"), "1.0r|0.5r|1|x");
    assert_eq!(
        fixture.schema("t"),
        "CREATE TABLE \"t\" (\n  \"_key\" INTEGER PRIMARY KEY,\n  \"n\" REAL,\n  \"r\" NUMERIC,\n  \"b\" INTEGER,\n  \"t\" TEXT\n)"
    );
    assert_eq!(common::rows(&other, "SELECT n FROM v"), "1.0r\n3.5r", "another connection sees the change");
    // Text makes the column TEXT.
    fixture.write("t.jsonl", b"{\"_key\":3,\"n\":\"text\"}\n{\"_key\":4}\n");
    assert_eq!(fixture.load(&existing(ExistingTable::Append)).rejected, 0);
    assert_eq!(common::rows(&other, "SELECT n FROM v"), "1\n3.5\ntext\n∅", "another connection sees the change");
}

#[test]
fn replace_keeps_the_table_when_the_file_has_no_valid_rows() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n")]);
    fixture.load(&ImportOptions::default());
    for text in ["garbage\n", "", "\n\n", "{}\n"] {
        fixture.write("t.jsonl", text.as_bytes());
        let summary = fixture.load(&existing(ExistingTable::Replace));
        assert!(summary.has_failures(), "{text:?}: {:?}", summary.files);
        assert_eq!(fixture.all("SELECT a FROM t"), "1", "{text:?}");
    }
    fixture.write("u.jsonl", b"a,b\n1,2\n");
    let summary = fixture.import_of(&[fixture.data().join("u.jsonl")], &ImportOptions::default()).unwrap();
    assert!(summary.has_failures() && summary.examples.len() == 2);
    assert_eq!(fixture.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"), "_imports\nt");
}

#[test]
fn requested_columns_that_no_table_has_are_unmatched() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n"), ("u.jsonl", "{\"b\":1}\n")]);
    let indexes = ["a", "nope"].map(str::to_owned).to_vec();
    let options = options! { indexes, primary_key: vec!["b".to_owned()], ..ImportOptions::default() };
    assert_eq!(fixture.load(&options).unmatched, ["nope"]);
    // The table of a file that was not loaded may have the column.
    fixture.write("u.jsonl", b"{\"b\":2}\n");
    let again = options! { resume: true, existing: ExistingTable::Replace, ..options };
    assert_eq!(fixture.load(&again).unmatched, [""; 0]);
    assert_eq!(
        fixture.all("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = 't'"),
        "idx_t_a"
    );
    // A schema names a column by its key or its new name, and named columns are not skipped.
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1,\"b\":2,\"c\":3}\n")]);
    let text = "[tables.gone]\nskip = true\n[tables.t]\nprimary_key = \"c\"\nindexes = [\"a\"]\nothers = \"skip\"\n\
                [tables.t.columns]\na = { name = \"alpha\" }\n";
    let summary = fixture.load(&options! { schema: schema(text), ..ImportOptions::default() });
    assert_eq!(summary.files[0].primary_key.as_deref(), Some("c"));
    assert_eq!(fixture.all("SELECT * FROM t"), "1|3");
    assert_eq!(fixture.all("SELECT name FROM sqlite_schema WHERE type = 'index' AND name LIKE 'idx%'"), "idx_t_alpha");
}

#[test]
fn short_line_limits_are_enforced() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n{\"a\":1000000}\n")]);
    let summary = fixture.load(&options! { max_line: 10, ..ImportOptions::default() });
    assert_eq!((summary.rows, summary.rejected), (1, 1));
}

/// After an error no rows are left that a retry would duplicate.
#[test]
fn file_fails_when_its_table_cannot_be_finished() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"id\":1,\"a\":1}\n"), ("u.jsonl", "{\"a\":1}\n")]);
    fixture.open().execute_batch("CREATE VIRTUAL TABLE t USING fts5(id, a)").unwrap();
    let options = options! { indexes: vec!["a".to_owned()], ..existing(ExistingTable::Append) };
    for _ in 0..2 {
        let summary = fixture.load(&options);
        let failed: Vec<_> = summary.files.iter().filter(|file| file.outcome != FileOutcome::Loaded).collect();
        assert!(matches!(&failed[..], [file] if file.table == "t"), "{failed:?}");
        assert_eq!(fixture.all("SELECT count(*) FROM t"), "0");
    }
    assert_eq!(fixture.all("SELECT count(*) FROM u"), "2");
    assert_eq!(fixture.all("SELECT count(*) FROM _imports WHERE error IS NULL"), "2");
}

#[test]
fn import_respects_types_triggers_and_constraints_of_user_tables() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"id\":1}\n{\"id\":2}\n{\"id\":1}\n{\"id\":3}\n")]);
    // A trigger that rolls back the transaction.
    fixture
        .open()
        .execute_batch(
            "CREATE TABLE t (id INT); CREATE TRIGGER g BEFORE INSERT ON t WHEN new.id = 3
             BEGIN SELECT raise(ROLLBACK, 'no'); END",
        )
        .unwrap();
    let error = fixture.import(&existing(ExistingTable::Append)).unwrap_err();
    assert!(error.is_user_error() && error.to_string().contains("rolls back transactions"), "{error}");
    assert_eq!(fixture.all("SELECT count(*) FROM t"), "0");
    // Columns with defaults.
    fixture.open().execute_batch("DROP TABLE t; CREATE TABLE t (id INT UNIQUE, n DEFAULT 5)").unwrap();
    assert_eq!(fixture.load(&existing(ExistingTable::Append)).rows, 3);
    assert_eq!(fixture.all("SELECT id, n FROM t"), "1|5\n2|5\n3|5", "missing values are the defaults of the table");
    // Types with numeric affinity.
    fixture.open().execute_batch("DROP TABLE t; CREATE TABLE t (code STRING, day DATETIME)").unwrap();
    fixture.write(
        "t.jsonl",
        b"{\"code\":\"007\"}\n{\"day\":\"2024-01-02\",\"code\":7}\n{\"code\":3.14159265358979323846}\n",
    );
    let summary = fixture.load(&existing(ExistingTable::Append));
    assert_eq!((summary.rows, summary.rejected), (2, 1), "{:?}", summary.examples);
    assert_eq!(fixture.all("SELECT * FROM t"), "7|2024-01-02\n3.141592653589793r|∅");
    // A generated column, and a STRICT table.
    fixture.open().execute_batch("DROP TABLE t; CREATE TABLE t (a, up AS (a || 'x'))").unwrap();
    fixture.write("t.jsonl", b"{\"a\":\"b\",\"up\":1}\n");
    fixture.load(&existing(ExistingTable::Append));
    assert_eq!(fixture.all("SELECT a, up, up_2 FROM t"), "b|bx|1");
    fixture.open().execute_batch("DROP TABLE t; CREATE TABLE t (a INT) STRICT").unwrap();
    fixture.write("t.jsonl", b"{\"a\":1,\"new\":true}\n");
    let summary = fixture.load(&existing(ExistingTable::Append));
    assert!(matches!(&summary.files[0].outcome, FileOutcome::Failed(why) if why.contains("rejects its rows")));
}

#[test]
fn upsert_into_a_new_table_updates_earlier_lines() {
    for primary_key in [None, Some("k".to_owned())] {
        let key = primary_key.as_deref().unwrap_or("id");
        let text = format!("{{\"{key}\":\"a\",\"n\":1}}\n{{\"{key}\":\"b\",\"n\":2}}\n{{\"{key}\":\"a\",\"n\":3}}\n");
        let fixture = Fixture::with(&[("t.jsonl", &text)]);
        let options =
            options! { primary_key: primary_key.clone().into_iter().collect(), ..existing(ExistingTable::Upsert) };
        for _ in 0..2 {
            assert_eq!(fixture.load(&options).rejected, 0);
            assert_eq!(fixture.all(&format!("SELECT {key}, n FROM t ORDER BY 1")), "a|3\nb|2");
        }
    }
}

#[test]
fn resume_skips_only_files_whose_rows_are_in_the_table() {
    let fixture = Fixture::with(&[("a/t.jsonl", "{\"x\":1}\n"), ("b/t.jsonl", "{\"x\":2}\n")]);
    let import_of =
        |folder: &str, options: &ImportOptions| fixture.import_of(&[fixture.data().join(folder)], options).unwrap();
    import_of("a", &ImportOptions::default());
    import_of("b", &existing(ExistingTable::Replace));
    let again = options! { resume: true, ..existing(ExistingTable::Replace) };
    assert_eq!(import_of("a", &again).files[0].outcome, FileOutcome::Loaded);
    assert_eq!(fixture.all("SELECT x FROM t"), "1");
    // The path may be written in any form.
    assert_eq!(import_of("b/../a", &again).files[0].outcome, FileOutcome::Unchanged);
}

#[test]
fn too_many_columns_are_reduced_for_every_kind_of_key() {
    let keys = |from: usize, to: usize| (from..to).map(|n| format!("\"k{n}\":{n}")).collect::<Vec<_>>().join(",");
    let wide = keys(0, 2_100);
    for text in [
        // Flattened objects after too many keys.
        format!("{{\"_key\":1,{wide},\"p\":{{\"x\":1,\"y\":2}},\"q\":{{\"x\":3,\"y\":4}}}}\n"),
        format!(
            "{{\"_key\":1,\"p\":{{\"x\":1,\"y\":2}},{wide}}}\n{{\"_key\":2,\"p\":{{\"z\":11}},\"q\":{{\"z\":22}}}}\n"
        ),
        format!(
            "{{\"p\":{{{wide}}},\"_key\":1,\"name\":\"n\",\"q\":{{\"x\":3}}}}\n{{\"p\":{{}},\"_key\":0,\"name\":\"m\"}}\n"
        ),
    ] {
        let fixture = Fixture::with(&[("t.jsonl", &text)]);
        let rows = text.lines().count() as u64;
        let options = options! { flatten: 32, block: 4_096, ..ImportOptions::default() };
        let summary = fixture.load(&options);
        assert_eq!(
            (summary.rows, summary.rejected),
            (rows, 0),
            "{:?} {:?}",
            summary.files[0].outcome,
            summary.files[0].notes
        );
        assert_eq!(summary.files[0].primary_key.as_deref(), Some("_key"));
        // All values are in a column or in the overflow column.
        let texts: Vec<String> = fixture
            .all("SELECT name FROM pragma_table_info('t')")
            .lines()
            .map(|name| format!("coalesce(\"{name}\", '')"))
            .collect();
        let all: String =
            texts.chunks(50).map(|chunk| fixture.all(&format!("SELECT {} FROM t", chunk.join("||'|'||")))).collect();
        assert!(all.contains("2099"), "{}", &all[..200]);
        // More rows can be appended.
        let again = options! { existing: ExistingTable::Append, ..options };
        let summary = fixture.load(&again);
        assert_eq!(
            summary.rows,
            if fixture.all("SELECT count(*) FROM pragma_table_info('t') WHERE pk") == "1" { 0 } else { rows }
        );
    }
    let fixture = Fixture::with(&[("t.jsonl", &format!("{{{}}}\n", keys(0, 3_000)))]);
    fixture.load(&ImportOptions::default());
    assert_eq!(fixture.load(&existing(ExistingTable::Append)).rows, 1);
    assert_eq!(fixture.all("SELECT json_extract(_more, '$.k2999') FROM t"), "2999\n2999");
    // A table that already has the maximum of columns.
    let fixture = Fixture::with(&[("t.jsonl", "{\"new\":1}\n")]);
    let columns: Vec<String> = (0..2_000).map(|n| format!("c{n}")).collect();
    fixture.open().execute_batch(&format!("CREATE TABLE t ({})", columns.join(","))).unwrap();
    let summary = fixture.load(&existing(ExistingTable::Append));
    assert!(
        matches!(&summary.files[0].outcome, FileOutcome::Failed(why) if why.contains("no room for a column \"new\""))
    );
}
