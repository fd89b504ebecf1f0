//! Compares the tables of a folder like EVE's static data with golden files.
//!
//! `GRISTMILL_BLESS=1` overwrites the golden files; review the difference before you commit it.

#[macro_use]
mod common;

use std::path::Path;

use common::{Fixture, rows};
use gristmill_jsonl::import::options::ImportOptions;

#[track_caller]
fn check(name: &str, options: &ImportOptions) {
    let eve = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/eve");
    let fixture = Fixture::new();
    let summary = fixture.import_of(&[eve.join("sde")], options).unwrap();
    assert_eq!(summary.rejected, 0, "{:?}", summary.examples);
    let conn = fixture.open();
    let mut found = rows(&conn, "PRAGMA integrity_check") + "\n";
    for file in &summary.files {
        let table = &file.table;
        let schema = fixture.schema(table);
        let contents = rows(&conn, &format!("SELECT * FROM \"{table}\" NOT INDEXED"));
        found.push_str(&format!("\n{schema}\n{contents}\n"));
        found.extend(file.notes.iter().map(|note| format!("-- {note}\n")));
    }
    let import_log =
        r#"SELECT "table", "bytes", "blake3", "mode", "rows", "errors", "error" FROM _imports ORDER BY id"#;
    found.push_str(&format!("\n{}\n", rows(&conn, import_log)));
    let golden = eve.join(name);
    if std::env::var_os("GRISTMILL_BLESS").is_some() {
        std::fs::write(&golden, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(&golden).unwrap());
}

#[test]
fn tables_match_the_golden_file_without_flattening() {
    check("plain.txt", &ImportOptions::default());
}

#[test]
fn tables_match_the_golden_file_flattened_with_two_languages() {
    let languages = vec!["en".to_owned(), "de".to_owned()];
    check("flattened.txt", &options! { flatten: 32, languages, ..ImportOptions::default() });
}
