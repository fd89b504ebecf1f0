//! `gristmill consume --into`.

use serde_json::json;

use crate::bed::{Bed, body, header};

/// A number that SQL says about a database.
fn asked(bed: &Bed, database: &str, sql: &str) -> i64 {
    let conn = rusqlite::Connection::open(bed.home.path(database)).unwrap();
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn good_ones_are_rows_and_bad_ones_dead_letters() {
    let bed = Bed::new("rows");
    let bad = |number: usize| number.is_multiple_of(100);
    bed.publish((0..5_000).map(|number| match number {
        number if !bad(number) => format!("{{\"id\": {number}, \"name\": \"n{number}\"}}"),
        number if number.is_multiple_of(200) => format!("{{\"id\": {number}"),
        number => format!("[{number}]"),
    }));
    let stats = bed.drain(&["--into", "orders.db", "--table", "orders"]);
    let found = [&stats["received"], &stats["acknowledged"], &stats["rejected"], &stats["retried"]];
    assert_eq!(found, [&json!(5_000), &json!(5_000), &json!(50), &json!(0)], "{stats}");
    assert_eq!(asked(&bed, "orders.db", "SELECT count(DISTINCT id) FROM orders"), 4_950);
    assert_eq!(asked(&bed, "orders.db", "SELECT count(*) FROM orders"), 4_950);
    assert_eq!(asked(&bed, "orders.db", "SELECT sum(name = 'n' || id) FROM orders"), 4_950);
    assert_eq!(bed.depth(""), Some(0));
    let dead = bed.take(".dead", 50);
    assert_eq!(dead.len(), 50);
    for letter in &dead {
        assert_eq!(header(letter, "x-gristmill-reason"), "permanent");
        let error = header(letter, "x-gristmill-error");
        let expected =
            if body(letter).starts_with('[') { "expected an object such as" } else { "is it cut off?" };
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_consumer_of_the_settings_file_sees_paths_from_the_file() {
    let bed = Bed::new("file");
    bed.publish(["{\"a\": 1}"]);
    let text =
        format!("[[consumers]]\nqueue = \"{}\"\ninto = \"out.db\"\ntable = \"t\"\nworkers = 3\n", bed.queue);
    let file = bed.home.write("elsewhere/c.toml", &text);
    let words = [
        "--config",
        file.to_str().unwrap(),
        "consume",
        "--json",
        "--drain",
        "--for",
        "2m",
        "--prefetch",
        "7",
    ];
    let said = bed.run(&words);
    assert_eq!(said.code, Some(0), "{said:?}");
    let stats = &said.json()["consumers"][0];
    let found = [&stats["queue"], &stats["workers"], &stats["prefetch"], &stats["acknowledged"]];
    assert_eq!(found, [&json!(bed.queue), &json!(3), &json!(7), &json!(1)], "{stats}");
    assert_eq!(asked(&bed, "elsewhere/out.db", "SELECT a FROM t"), 1);
}
