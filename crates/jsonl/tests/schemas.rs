//! Schemas over several imports, and rows that have none of the columns.

mod common;

use common::{Bench, lines};
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
            let bench = Bench::with(&[("t.jsonl", &lines(text))]);
            let summary =
                bench.load(&ImportOptions { block, schema: schema(schema_text), ..ImportOptions::default() });
            let rows = text.len() as u64 - rejected;
            assert_eq!((summary.rows, summary.rejected), (rows, rejected), "{text:?}, block {block}");
            assert_eq!(bench.all("SELECT count(*), count(n) FROM t"), format!("{rows}|0"), "{text:?}");
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
        let options = ImportOptions {
            schema: schema(&text),
            existing: ExistingTable::Append,
            ..ImportOptions::default()
        };
        let bench = Bench::with(&[("t.jsonl", &lines(&[first]))]);
        bench.load(&options);
        bench.write("t.jsonl", lines(&[second]).as_bytes());
        let summary = bench.load(&options);
        assert_eq!(summary.rejected, 0, "{kind}: {:?}", summary.examples);
        assert!(bench.schema("t").contains(sql), "{kind}: {}", bench.schema("t"));
    }
}

#[test]
fn primary_key_that_a_schema_contradicts_is_refused() {
    let bench = Bench::with(&[("t.jsonl", "{\"id\":1,\"a\":5}\n"), ("u.jsonl", "{\"a\":1}\n")]);
    let options = |key: &str, text: &str| ImportOptions {
        primary_key: vec![key.to_owned()],
        schema: schema(text),
        ..ImportOptions::default()
    };
    let of_t = "[tables.t]\nprimary_key = \"id\"\n";
    let t = [bench.data().join("t.jsonl")];
    let error = bench.import_of(&t, &options("a", of_t)).unwrap_err().to_string();
    assert_eq!(
        error,
        "the schema gives the table \"t\" the primary key \"id\", but --primary-key is \"a\"; leave out one of them"
    );
    assert!(!bench.database().exists());
    // The same key twice is no contradiction, and one for the other tables is none either.
    bench.import_of(&t, &options("id", of_t)).unwrap();
    std::fs::remove_file(bench.database()).unwrap();
    let summary = bench.load(&options("a", of_t));
    let keys: Vec<_> = summary.files.iter().map(|file| file.primary_key.as_deref()).collect();
    assert_eq!((keys, summary.unmatched.len()), (vec![Some("id"), Some("a")], 0));
}

#[test]
fn index_of_a_schema_whose_column_is_missing_is_unmatched() {
    let bench = Bench::with(&[("t.jsonl", "{\"id\":1}\n"), ("u.jsonl", "{\"nope\":1}\n")]);
    let text = "[tables.t]\nindexes = [\"id\", \"nope\"]\n";
    let summary = bench.load(&ImportOptions { schema: schema(text), ..ImportOptions::default() });
    assert_eq!(summary.files[0].unmatched, ["nope"], "though another table has such a column");
    assert!(summary.files[1].unmatched.is_empty() && summary.rows == 2);
}
