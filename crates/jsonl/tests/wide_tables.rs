//! Lines with more keys than SQLite allows columns: the overflow column `_more`.

#[macro_use]
mod common;

use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use gristmill_jsonl::import::summary::ImportSummary;

use self::common::Fixture;

/// A line with 2100 keys `c0` to `c2099`, and these members before and after them.
fn wide(before: &str, after: &str) -> String {
    let keys: Vec<String> = (0..2_100).map(|n| format!("\"c{n}\":{n}")).collect();
    format!("{{{before}{}{after}}}\n", keys.join(","))
}

fn load(fixture: &Fixture, text: &str, options: &ImportOptions) -> ImportSummary {
    fixture.write("t.jsonl", text.as_bytes());
    fixture.load(options)
}

fn upsert() -> ImportOptions {
    options! { existing: ExistingTable::Upsert, ..ImportOptions::default() }
}

#[test]
fn upsert_keeps_overflow_keys_that_the_line_lacks() {
    let first = wide("\"id\":1,", ",\"o\":{\"a\":1,\"b\":2},\"n\":1,\"q\\\"\":1");
    let second = "{\"id\":1,\"c2098\":\"changed\",\"o\":{\"b\":null},\"n\":null,\"q\\u0022\":2,\"new\":[1]}\n";
    let check = |fixture: &Fixture| {
        assert_eq!(fixture.all("SELECT count(*), c0, json_valid(_more) FROM t"), "1|0|1");
        assert_eq!(fixture.all("SELECT _more ->> 'c2097', _more ->> 'c2098' FROM t"), "2097|changed");
        let of_objects = "SELECT _more -> 'o', _more -> 'n', _more -> 'new' FROM t";
        assert_eq!(fixture.all(of_objects), "{\"b\":null}|null|[1]");
        // A key may be written with other escapes.
        assert_eq!(fixture.all("SELECT value FROM t, json_each(_more) WHERE key = 'q\"'"), "2");
        // 1998 keys c are columns.
        assert_eq!(fixture.all("SELECT count(*) FROM t, json_each(_more)"), (102 + 4).to_string());
    };
    let fixture = Fixture::new();
    load(&fixture, &first, &upsert());
    assert_eq!(load(&fixture, second, &upsert()).rejected, 0);
    check(&fixture);
    // A line without overflow keys changes none.
    load(&fixture, "{\"id\":1,\"c0\":0}\n", &upsert());
    check(&fixture);
    // The same with both lines in one file.
    let fixture = Fixture::new();
    load(&fixture, &format!("{first}{second}"), &upsert());
    check(&fixture);
}

#[test]
fn line_is_rejected_when_the_overflow_column_is_not_an_object() {
    let fixture = Fixture::new();
    load(&fixture, &wide("\"id\":1,", ""), &upsert());
    fixture.open().execute_batch("UPDATE t SET _more = 'by hand'").unwrap();
    let summary = load(&fixture, "{\"id\":1,\"c2099\":1}\n{\"id\":2,\"c2099\":1}\n", &upsert());
    assert_eq!((summary.rows, summary.rejected), (1, 1), "{:?}", summary.examples);
    let reason = &summary.examples[0].reason;
    assert!(reason.contains("\"_more\"") && reason.contains("JSON object"), "{reason}");
    assert_eq!(fixture.all("SELECT _more FROM t"), "by hand\n{\"c2099\":1}");
}

#[test]
fn key_and_index_columns_never_overflow() {
    for block in [64, 512 << 10] {
        let options = options! { block, ..ImportOptions::default() };
        // The key is chosen by rule, named, named in an upsert where a later line has it, or set by a schema.
        let fixture = Fixture::new();
        let summary = load(&fixture, &wide("", ",\"id\":1"), &options);
        assert_eq!(summary.files[0].primary_key.as_deref(), Some("id"));
        let columns = "SELECT count(*), max(name = '_more') FROM pragma_table_info('t')";
        assert_eq!(fixture.all(columns), "2000|1");
        assert_eq!(fixture.all("SELECT id, _more ->> 'c1998', _more ->> 'id' FROM t"), "1|1998|∅");

        let fixture = Fixture::new();
        let named = options! {
            primary_key: vec!["k".to_owned()],
            indexes: vec!["i".to_owned(), "late".to_owned()],
            ..options.clone()
        };
        let text = wide("", ",\"k\":1,\"i\":2") + "{\"k\":2,\"c2099\":0}\n{\"k\":3,\"late\":1}\n";
        let summary = load(&fixture, &text, &named);
        assert_eq!((summary.rows, summary.rejected), (3, 0), "{:?}", summary.files[0]);
        assert_eq!(summary.files[0].primary_key.as_deref(), Some("k"));
        assert_eq!(fixture.all("SELECT k, i, late FROM t"), "1|2|∅\n2|∅|∅\n3|∅|1");
        assert_eq!(fixture.all("SELECT _more ->> 'c2099' FROM t"), "2099\n0\n∅");
        assert_eq!(fixture.all(columns), "2000|1");

        let fixture = Fixture::new();
        let text = wide("", "") + "{\"id\":7,\"c2099\":0}\n{\"id\":7,\"c2098\":1}\n";
        let summary = load(&fixture, &text, &options! { existing: ExistingTable::Upsert, ..options.clone() });
        assert_eq!((summary.rows, summary.rejected), (2, 1), "{:?}", summary.files[0]);
        assert_eq!(fixture.all("SELECT id, _more FROM t"), "7|{\"c2099\":0,\"c2098\":1}");
    }
}

#[test]
fn schema_columns_never_overflow() {
    let fixture = Fixture::new();
    let schema = "[tables.t]\nprimary_key = \"id\"\nindexes = [\"i\"]\n[tables.t.columns]\n\
                  r = { type = \"real\" }\nx = { name = \"y\" }\n";
    let path = fixture.write("schema.toml", schema.as_bytes());
    let schema = gristmill_jsonl::import::schema::Schema::read(&path).unwrap();
    let text = wide("", ",\"x\":1,\"r\":2,\"i\":3,\"id\":4");
    let summary = load(&fixture, &text, &options! { schema, ..ImportOptions::default() });
    assert_eq!((summary.rows, summary.rejected), (1, 0), "{:?}", summary.files[0]);
    assert_eq!(fixture.all("SELECT y, r, i, id FROM t"), "1|2.0r|3|4");
    assert_eq!(fixture.all("SELECT count(*) FROM t, json_each(_more)"), "105");
}
