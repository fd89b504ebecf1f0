//! Imports: output, exit status, and rollback after Ctrl-C.
#![cfg(unix)]

mod common;

use std::io::Write;
use std::process::Stdio;

use common::{Home, RunOutput, assert_shape, signal};
use serde_json::json;

/// Creates a folder with two files, one of which has a bad line.
fn folder() -> Home {
    let home = Home::new();
    std::fs::create_dir(home.path("sde")).unwrap();
    home.write(
        "sde/types.jsonl",
        "{\"_key\":34,\"name\":{\"en\":\"Tritanium\"}}\n{\"_key\":35\n{\"_key\":36,\"mass\":0.5}\n",
    );
    home.write("sde/map-moons.ndjson", "{\"_key\":1}\n");
    home
}

#[test]
fn import_prints_tables_and_rejected_lines() {
    let home = folder();
    let bad = home.real("sde/types.jsonl");
    let expected = format!(
        "TABLE      ROWS  REJECTED  COLUMNS  SIZE  KEY   OUTCOME
map_moons  1     0         1        11 B  _key  loaded
types      2     1         3        72 B  _key  loaded

1 line was rejected:
  {bad}:2:11: the line ends in the middle of a value; is it cut off?
sde.db: 2 tables, 3 rows from 83 B in "
    );
    home.check(&["import", "sde", "--into", "sde.db", "--on-error", "skip"], 0, &expected, "");
    home.check(
        &["import", "sde", "--into", "sde.db"],
        1,
        "",
        "sde.db has the tables map_moons, types already; use --replace, --append or --upsert, or --resume",
    );
    home.check(&["import", "sde", "--into", "sde.db", "--resume"], 1, "2 files unchanged", "");
    let stats = home.run(&["import", "stats", "sde.db"]);
    assert!(stats.out.contains("types      2     3"), "{}", stats.out);
    assert!(stats.out.contains("sde.db: 2 tables, 3 rows, "), "{}", stats.out);
    assert_shape("import-stats", &home.json(&["import", "stats", "sde.db"]));
}

#[test]
fn json_has_rows_columns_and_rejected_lines() {
    let home = folder();
    let summary = home.json(&["import", "sde", "--into", "sde.db", "--on-error", "skip"]);
    assert_shape("import", &summary);
    assert_eq!((&summary["rows"], &summary["rejected"]), (&json!(3), &json!(1)));
    assert_eq!(summary["files"][1]["columns"], json!([["_key", "INTEGER"], ["name", "TEXT"], ["mass", "REAL"]]));
    assert_eq!(summary["files"][1]["outcome"], "loaded");
    assert_eq!(summary["examples"][0]["line"], 2);
}

#[test]
fn bad_lines_set_the_exit_status() {
    let home = folder();
    home.check(&["import", "sde/map-moons.ndjson", "--validate"], 0, "checked 1 file, 1 row", "");
    home.check(&["import", "sde", "--dry-run"], 1, "  \"mass\" REAL\n);\n", "");
    home.check(&["import", "sde", "--into", "x.db", "--on-error", "fail"], 1, "x.db was not created", "");
    home.check(&["import", "sde", "--into", "x.db", "--max-errors", "0"], 1, "stopped at line 2 of ", "");
    assert!(!home.path("x.db").exists());
    home.check(
        &["import", "sde", "--into", "x.db", "--strict", "--rejects", "bad.jsonl"],
        1,
        "All rejected lines: bad.jsonl",
        "",
    );
    assert!(home.path("x.db").exists());
    let rejects = std::fs::read_to_string(home.path("bad.jsonl")).unwrap();
    assert!(rejects.contains(r#""line":2,"column":11,"reason":"the line ends"#), "{rejects}");
    assert!(rejects.contains(r#""raw":"{\"_key\":35""#), "{rejects}");
    home.write("sde/packed.jsonl.gz", "not packed");
    home.check(
        &["import", "sde", "--into", "y.db"],
        1,
        "packed.jsonl.gz: its name ends in a gzip extension, but it is not gzip data",
        "",
    );
    home.check(&["import", "stats", "y.db"], 0, "map_moons", "");
    home.check(
        &["import", "sde/types.jsonl", "--into", "z.db", "--index", "nope"],
        1,
        "no table has a column \"nope\"",
        "",
    );
    home.write("rows.csv", "a,b\n1,2\n");
    home.check(&["import", "rows.csv", "--into", "c.db"], 1, "nothing loaded; c.db was not created", "");
    home.write("array.json", "[{\"a\":1}]\n");
    home.check(&["import", "array.json", "--validate"], 0, "checked 1 file, 1 row", "");
    // Lines rejected by the first import still count with --resume.
    let words = ["import", "sde/types.jsonl", "--into", "s.db", "--on-error", "skip"];
    home.check(&words, 0, "1 line was rejected", "");
    let words = ["import", "sde/types.jsonl", "--into", "s.db", "--resume"];
    home.check(&words, 1, "1 line was rejected", "");
}

#[test]
fn rejected_lines_exit_0_only_with_skip_or_max_errors() {
    let home = folder();
    for (words, code) in [
        (&[][..], 1),
        (&["--on-error", "skip"], 0),
        (&["--max-errors", "1"], 0),
        (&["--on-error", "skip", "--strict"], 1),
        (&["--max-errors", "1", "--strict"], 1),
    ] {
        let import = ["import", "sde", "--into", "x.db", "--replace"];
        home.check(&[&import, words].concat(), code, "1 line was rejected", "");
        assert_eq!(home.json(&["import", "stats", "x.db"])["tables"][1]["rows"], 2, "valid lines are loaded");
    }
}

#[test]
fn upsert_uses_a_composite_primary_key() {
    let home = Home::new();
    let line = |year: u16, number: u8, paid: bool| format!("{{\"year\":{year},\"number\":{number},\"paid\":{paid}}}\n");
    home.write("bills.jsonl", &(line(2024, 1, false) + &line(2024, 2, false) + &line(2025, 1, false)));
    let words = ["import", "bills.jsonl", "--into", "x.db", "--upsert", "--primary-key", "year,number"];
    home.check(&words, 0, "year, number  loaded", "");
    home.write("bills.jsonl", &(line(2024, 2, true) + &line(2025, 2, true)));
    home.check(&words, 0, "x.db: 1 table, 2 rows", "");
    assert_eq!(home.json(&["import", "stats", "x.db"])["tables"][0]["rows"], 4);
    let words = ["import", "bills.jsonl", "--into", "x.db", "--append", "--primary-key", "year"];
    home.check(&words, 1, "", "the primary key of the table \"bills\" is \"year\", \"number\", not \"year\"");
    let words = ["import", "bills.jsonl", "--into", "y.db", "--primary-key", "year,nope"];
    home.check(&words, 1, "do not have the primary key \"year\", \"nope\"", "");
}

#[test]
fn exact_numbers_flag_and_setting_make_long_decimals_text() {
    let home = Home::new();
    home.write("t.jsonl", "{\"pi\":3.14159265358979323846}\n");
    let kind = |summary: &serde_json::Value| summary["files"][0]["columns"][0][1].clone();
    assert_eq!(kind(&home.json(&["import", "t.jsonl", "--dry-run"])), "REAL");
    assert_eq!(kind(&home.json(&["import", "t.jsonl", "--dry-run", "--exact-numbers"])), "TEXT");
    home.write("gristmill.toml", "[import]\nexact_numbers = true\n");
    assert_eq!(kind(&home.json(&["--config", "gristmill.toml", "import", "t.jsonl", "--dry-run"])), "TEXT");
}

#[test]
fn validate_and_dry_run_report_checked_not_loaded() {
    let home = Home::new();
    home.write("t.jsonl", "{\"id\":1}\n");
    for words in [&["--validate"][..], &["--dry-run"], &["--dry-run", "--into", "x.db"]] {
        let summary = home.json(&[&["import", "t.jsonl"], words].concat());
        assert_eq!(summary["files"][0]["outcome"], "checked", "{summary}");
        assert_eq!(summary["rows"], 1, "{summary}");
    }
}

#[test]
fn dry_run_exits_as_the_import_does() {
    let home = Home::new();
    home.write("k.jsonl", "{\"id\":1}\n{\"a\":1}\n{\"id\":1}\n");
    let words = ["import", "k.jsonl", "--into", "n.db", "--primary-key", "id"];
    home.check(&[&words[..], &["--dry-run"]].concat(), 1, "2 lines were rejected", "");
    assert!(!home.path("n.db").exists());
    home.check(&words, 1, "2 lines were rejected", "");
}

#[test]
fn named_columns_that_are_missing_exit_1() {
    let home = Home::new();
    home.write("t.jsonl", "{\"id\":1}\n");
    home.write("s.toml", "[tables.t]\nindexes = [\"nope\"]\n");
    let words = ["import", "t.jsonl", "--into", "x.db", "--schema", "s.toml"];
    home.check(&words, 1, "t: there is no column \"nope\" for an index", "");
    let words = ["import", "t.jsonl", "--into", "x.db", "--replace", "--columns", "ID"];
    home.check(&words, 1, "no line has a key that --columns names: \"ID\"", "");
    home.check(&["import", "stats", "x.db"], 0, "x.db: 1 table, 1 row", "");
}

#[test]
fn validate_exits_1_with_bad_lines() {
    let home = folder();
    home.check(&["import", "sde", "--validate"], 1, "1 line was rejected", "");
    home.write("pretty.jsonl", "{\"a\":1}\n{\n\"a\":2\n}\n");
    home.check(&["import", "pretty.jsonl", "--validate"], 1, "looks like pretty-printed JSON", "");
}

#[test]
fn compressed_standard_input_is_unpacked() {
    let home = Home::new();
    let words = ["import", "-", "--table", "t", "--into", "p.db"];
    // Output of `printf '{"a":1}\n{"a":"x"}\n' | gzip`. It needs two passes, because the column becomes text.
    let packed: &[u8] = &[
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0xab, 0x56, 0x4a, 0x54, 0xb2, 0x32, 0xac, 0xe5,
        0xaa, 0x06, 0xd1, 0x4a, 0x15, 0x4a, 0xb5, 0x5c, 0x00, 0x79, 0x9b, 0x3e, 0xf2, 0x12, 0x00, 0x00, 0x00,
    ];
    home.run_with_input(&words, packed).check("gzip", 0, "p.db: 1 table, 2 rows", "");
}

#[test]
fn files_of_one_table_are_summed_in_one_row() {
    let home = folder();
    let words = ["import", "sde", "--table", "all", "--filename-column", "file", "--into", "x.db"];
    home.check(&words, 1, "TABLE  FILES  ROWS  REJECTED  COLUMNS  SIZE  KEY   OUTCOME\nall    2      3     1", "");
    home.check(&["import", "stats", "x.db"], 0, "x.db: 1 table, 3 rows", "");
    home.write("sde/broken.jsonl", "[{\"_key\":9},");
    let words = ["import", "sde/*", "--table", "all", "--into", "y.db", "--columns", "_key,nope"];
    home.check(&words, 1, "1 failed, 2 loaded", "");
    home.check(
        &["import", "sde", "--into", "z.db", "--limit", "1", "--columns", "nope"],
        1,
        "no table has a column \"nope\"",
        "",
    );
}

#[test]
fn dry_run_with_a_database_previews_its_changes() {
    let home = Home::new();
    home.write("t.jsonl", "{\"id\":1,\"at\":\"2024-01-02\"}\n");
    home.check(&["import", "t.jsonl", "--into", "x.db", "--dry-run"], 0, "would create", "");
    assert!(!home.path("x.db").exists());
    home.run(&["import", "t.jsonl", "--into", "x.db"]);
    home.write("t.jsonl", "{\"id\":2,\"at\":\"x\",\"b\":1}\n");
    let words = ["import", "t.jsonl", "--into", "x.db", "--append", "--dry-run"];
    let output = home.run(&words);
    output.check("append", 0, "would append", "");
    assert!(output.out.contains("t: gets new columns: \"b\""), "{}", output.out);
    assert!(output.out.contains("into x.db; nothing was written"), "{}", output.out);
    home.check(&["import", "stats", "x.db"], 0, "t.at: dates (ISO 8601)\nx.db: 1 table, 1 row", "");
}

#[test]
fn export_of_an_imported_table_restores_its_lines() {
    let home = folder();
    home.run(&["import", "sde", "--into", "x.db"]);
    let lines =
        "{\"_key\":34,\"name\":{\"en\":\"Tritanium\"},\"mass\":null}\n{\"_key\":36,\"name\":null,\"mass\":0.5}\n";
    let output = home.run(&["export", "types", "--from", "x.db"]);
    assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (Some(0), lines, ""));
    let words = ["export", "types", "--from", "x.db", "--output", "types.jsonl"];
    home.check(&words, 0, "types.jsonl: 2 rows of types", "");
    assert_eq!(std::fs::read_to_string(home.path("types.jsonl")).unwrap(), lines);
    home.check(&words, 1, "", "types.jsonl exists; ");
    assert_shape("export", &home.json(&[&words[..], &["--force"]].concat()));
    home.check(&["export", "nope", "--from", "x.db"], 1, "", "there is no table \"nope\"; tables: _imports, map_moons");
    home.check(&["export", "types", "--from", "gone.db"], 1, "", "cannot read gone.db");
    let piped = home.run_with_input(&["import", "-", "--table", "types", "--into", "y.db"], output.out.as_bytes());
    piped.check("again", 0, "y.db: 1 table, 2 rows", "");
    assert_eq!(home.run(&["export", "types", "--from", "y.db"]).out, lines);
}

#[test]
fn invalid_arguments_are_refused_and_create_no_database() {
    let home = folder();
    home.write("note.db", &"no database, but long enough to look like one. ".repeat(30));
    for (words, err) in [
        (&["import"][..], "required arguments were not provided"),
        (&["import", "sde"], "no database given; name one with --into FILE.db"),
        (&["import", "sde", "--into", "a.db", "--validate"], "cannot be used with"),
        (&["import", "sde", "--validate", "--primary-key", "_key"], "cannot be used with"),
        (&["import", "sde", "--validate", "--upsert"], "cannot be used with"),
        (&["import", "sde", "--into", "a.db", "--append", "--replace"], "cannot be used with"),
        (&["import", "nowhere", "--into", "a.db"], "cannot read nowhere"),
        (&["import", "-", "--into", "a.db"], "standard input has no name; name its table with --table NAME"),
        (&["import", "sde", "--into", "a.db", "--limit", "0"], "invalid value '0' for '--limit <N>'"),
        (
            &["import", "sde", "--into", "a.db", "--columns", "a", "--index", "b"],
            "\"b\" is named as a key or for an index, but not in --columns",
        ),
        (&["import", "no*.jsonl", "--into", "a.db"], "no file matches no*.jsonl"),
        (&["import", "sde", "--into", "a.db", "--workers", "33"], "expected: a whole number from 0 to 32, or cores"),
        (&["import", "sde", "--into", "a.db", "--max-line", "10X"], "such as 10MiB"),
        (&["import", "sde", "--into", "a.db", "--max-line", "2GiB"], "--max-line 2147483648 is not allowed"),
        (&["import", "sde", "--into", "a.db", "--languages", "en,d!e"], "--languages \"d!e\" is not allowed"),
        (&["import", "sde", "--into", "a.db", "--on-error", "stop"], "[possible values: skip, fail]"),
        (&["import", "sde", "--into", "a.db", "--schema", "gone.toml"], "cannot read the schema gone.toml"),
        (&["import", "sde", "--into", "sde"], "sde is a folder; name a file for the database"),
        (&["import", "sde", "--into", "no/where/a.db"], "there is no folder no/where for the database"),
        (&["import", "sde", "--into", "note.db"], "note.db is not an SQLite database"),
        (&["import", "stats", "gone.db"], "cannot read gone.db"),
        (&["import", "stats", "note.db"], "note.db is not an SQLite database"),
    ] {
        home.check(words, 1, "", err);
    }
    assert!(!home.path("a.db").exists());
    // Gristmill's own database is refused as a target.
    home.run(&["enqueue", "exec", "--", "true"]);
    let own = home.database();
    home.check(&["import", "sde", "--into", own.to_str().unwrap()], 1, "", "is Gristmill's own database");
}

#[test]
fn standard_input_is_read_once_even_if_two_passes_are_needed() {
    let home = Home::new();
    // The input is read once, although the column of numbers becomes text in the last line.
    let mut lines = "{\"a\":1}\n".repeat(100_000);
    lines.push_str("{\"a\":\"x\"}\n");
    let words = ["import", "-", "--table", "piped lines", "--into", "p.db"];
    home.run_with_input(&words, lines.as_bytes()).check("a pipe", 0, "p.db: 1 table, 100,001 rows", "");
    let stats = home.json(&["import", "stats", "p.db"]);
    assert_eq!((&stats["tables"][0]["table"], &stats["tables"][0]["rows"]), (&json!("piped lines"), &json!(100_001)));
    assert_eq!(stats["tables"][0]["source"], "standard input");
    // The first pass stops early because there are too many columns; the pipe is still read to its end.
    let members: Vec<String> = (0..3_000).map(|n| format!("\"{n}\":{n}")).collect();
    let mut lines = format!("{{\"by_id\":{{{}}}}}\n", members.join(","));
    lines.push_str(&"{\"by_id\":{\"1\":1}}\n".repeat(400_000));
    let words = ["import", "-", "--table", "wide", "--into", "p.db", "--flatten"];
    let mut process = home.command(&words);
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = process.spawn().unwrap();
    process.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = RunOutput::of(&process.wait_with_output().unwrap());
    // An import that takes longer than ten seconds prints its progress to standard error.
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("p.db: 1 table, 400,001 rows"), "{output:?}");
}

/// Runs an import whose standard input does not end, and interrupts it.
fn import_interrupted_while_reading(home: &Home, words: &[&str]) -> RunOutput {
    let mut process = home.command(words);
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = process.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    // More than one block, so that some rows are written.
    input.write_all("{\"a\":1}\n".repeat(300_000).as_bytes()).unwrap();
    signal(&process, "INT");
    let output = RunOutput::of(&process.wait_with_output().unwrap());
    drop(input);
    output
}

#[test]
fn interrupted_import_leaves_no_incomplete_table() {
    let home = Home::new();
    let words = ["import", "-", "--table", "t", "--into", "new.db"];
    import_interrupted_while_reading(&home, &words).check("a new database", 130, "stopped; new.db was not created", "");
    let file_names = || {
        let names = std::fs::read_dir(home.path(".")).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(file_names(), [""; 0]);
    home.run_with_input(&words, b"{\"a\":7}\n").check("afterwards", 0, "1 table, 1 row", "");
    assert_eq!(file_names(), ["input", "new.db"]);
    let words = ["import", "-", "--table", "t", "--into", "new.db", "--append"];
    import_interrupted_while_reading(&home, &words).check(
        "an old one",
        130,
        "stopped; new.db contains the files that were complete",
        "",
    );
    assert_eq!(home.json(&["import", "stats", "new.db"])["tables"][0]["rows"], 1);
}

#[test]
fn error_messages_name_the_cause_and_the_remedy() {
    let home = folder();
    home.write("bad.jsonl", "{\"a\":1}\nx\ny\n{\"a\":2}\nz\n");
    let bad = ["import", "bad.jsonl", "--into", "a.db", "--max-errors", "2"];
    home.check(&bad, 1, "more than 2 bad lines (--max-errors 2); stopped at line 5", "");
    home.write("worse.jsonl", "x\ny\n");
    let worse = ["import", "worse.jsonl", "--into", "a.db"];
    home.check(&worse, 1, "no valid line (2 of 2 rejected); first reasons below", "");
    home.write("schema.toml", "[tables.types.columns]\nmass = \"real\"\n");
    let schema = ["import", "sde", "--into", "a.db", "--schema", "schema.toml"];
    home.check(&schema, 1, "", "write { type = \"integer\" }");
    home.check(&["import", "sde", "--into", "/dev/null"], 1, "", "/dev/null is not a regular file");
    home.write("empty.jsonl", "");
    home.check(&["import", "empty.jsonl", "--into", "a.db"], 0, "a.db: nothing loaded", "");
    home.run(&["import", "sde", "--into", "b.db", "--on-error", "skip"]);
    let again = ["import", "sde", "--into", "b.db", "--on-error", "skip", "--resume"];
    home.check(&again, 0, "1 line was rejected when its file was loaded earlier\nb.db: nothing loaded", "");
    home.write("sde/types.jsonl", "{\"_key\":40}\n");
    home.check(&again, 1, "", "types.jsonl is new, or has changed since it was loaded");
}
