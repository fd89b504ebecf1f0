//! Schemas in several imports, and rows without any column.

#[macro_use]
mod common;

use common::{Fixture, lines};
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use gristmill_jsonl::import::schema::Schema;

fn schema(text: &str) -> Schema {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Schema::read(file.path()).unwrap()
}

#[test]
fn rows_without_any_column_are_kept_if_the_schema_has_one() {
    let skips = "[tables.t]\nothers = \"skip\"\n[tables.t.columns]\nn = { type = \"numeric\" }\n";
    let infers = "[tables.t.columns]\nn = { type = \"any\" }\n";
    for (text, schema_text, rejected) in [
        (&["{}"][..], skips, 0),
        (&["{}"], infers, 0),
        (&["{\"x\":57}", "{\"name\":\"true\"}", "{\"x\":1}"], skips, 0),
        (&["{\"x\":57}", "bad", "{\"name\":\"true\"}"], skips, 1),
    ] {
        for block in [1, 24, 1 << 16] {
            let fixture = Fixture::with(&[("t.jsonl", &lines(text))]);
            let summary = fixture.load(&options! { block, schema: schema(schema_text), ..ImportOptions::default() });
            let rows = text.len() as u64 - rejected;
            assert_eq!((summary.rows, summary.rejected), (rows, rejected), "{text:?}, block {block}");
            assert_eq!(fixture.all("SELECT count(*), count(n) FROM t"), format!("{rows}|0"), "{text:?}");
        }
    }
}

#[test]
fn type_of_a_schema_stays_in_a_second_import() {
    for (kind, sql, first, second) in [
        ("any", "\"n\"\n", "{}", "{\"n\":1}"),
        ("any", "\"n\"\n", "{\"n\":1}", "{\"n\":\"x\"}"),
        ("real", "\"n\" REAL", "{\"n\":0.5}", "{\"n\":9007199254740993}"),
        ("boolean", "\"n\" BOOLEAN", "{\"n\":true}", "{\"n\":1}"),
        ("integer", "\"n\" INTEGER", "{}", "{\"n\":7}"),
    ] {
        let text = format!("[tables.t.columns]\nn = {{ type = \"{kind}\" }}\n");
        let options = options! { schema: schema(&text), existing: ExistingTable::Append, ..ImportOptions::default() };
        let fixture = Fixture::with(&[("t.jsonl", &lines(&[first]))]);
        fixture.load(&options);
        fixture.write("t.jsonl", lines(&[second]).as_bytes());
        let summary = fixture.load(&options);
        assert_eq!(summary.rejected, 0, "{kind}: {:?}", summary.examples);
        assert!(fixture.schema("t").contains(sql), "{kind}: {}", fixture.schema("t"));
    }
}

#[test]
fn primary_key_that_a_schema_contradicts_is_refused() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"id\":1,\"a\":5}\n"), ("u.jsonl", "{\"a\":1}\n")]);
    let options = |key: &str, text: &str| {
        options! {
            primary_key: vec![key.to_owned()],
            schema: schema(text),
            ..ImportOptions::default()
        }
    };
    let of_t = "[tables.t]\nprimary_key = \"id\"\n";
    let t = [fixture.data().join("t.jsonl")];
    let error = fixture.import_of(&t, &options("a", of_t)).unwrap_err().to_string();
    assert_eq!(
        error,
        "the schema gives the table \"t\" the primary key \"id\", but --primary-key is \"a\"; leave out one of them"
    );
    assert!(!fixture.database().exists());
    // The same key in both is allowed, and so is a key for other tables.
    fixture.import_of(&t, &options("id", of_t)).unwrap();
    std::fs::remove_file(fixture.database()).unwrap();
    let summary = fixture.load(&options("a", of_t));
    let keys: Vec<_> = summary.files.iter().map(|file| file.primary_key.as_deref()).collect();
    assert_eq!((keys, summary.unmatched.len()), (vec![Some("id"), Some("a")], 0));
}

#[test]
fn index_of_a_schema_whose_column_is_missing_is_unmatched() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"id\":1}\n"), ("u.jsonl", "{\"nope\":1}\n")]);
    let text = "[tables.t]\nindexes = [\"id\", \"nope\"]\n";
    let summary = fixture.load(&options! { schema: schema(text), ..ImportOptions::default() });
    assert_eq!(summary.files[0].unmatched, ["nope"], "another table has such a column, but not this one");
    assert!(summary.files[1].unmatched.is_empty() && summary.rows == 2);
}
