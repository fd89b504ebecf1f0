//! `gristmill consume --into`.

use std::process::Stdio;

use gristmill_amqp::Message;
use serde_json::json;

use crate::bed::{Bed, body, header};
use crate::common::RunOutput;

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

#[test]
fn killed_consumer_makes_no_second_row_of_a_message_with_once_within() {
    const COUNT: i64 = 4_000;
    let bed = Bed::new("killed-into");
    let message =
        |number| Message::to_queue(&bed.queue, format!("{{\"id\":{number}}}")).id(format!("order-{number}"));
    bed.send((0..COUNT).map(message));
    let count = |sql: &str| match rusqlite::Connection::open(bed.home.path("x.db")) {
        Ok(conn) => conn.query_row(sql, [], |row| row.get(0)).unwrap_or(0),
        Err(_) => 0,
    };
    let rows = || count("SELECT count(*) FROM t");
    let words = ["--once-within", "1h", "--into", "x.db", "--table", "t"];
    while rows() < COUNT / 2 {
        let before = rows();
        let mut command = bed.command(&[&["consume", &bed.queue], &words[..]].concat());
        let null = std::process::Stdio::null;
        let mut child = command.stdout(null()).stderr(null()).spawn().unwrap();
        bed.until("rows", || rows() > before);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    bed.drain(&words);
    assert_eq!((rows(), count("SELECT count(DISTINCT id) FROM t")), (COUNT, COUNT));
    // And when all come again.
    bed.send((0..COUNT).map(message));
    let stats = bed.drain(&words);
    assert_eq!((&stats["skipped"], &stats["done"]), (&json!(COUNT), &json!(0)), "{stats}");
    assert_eq!(rows(), COUNT);
}

#[test]
fn consumer_whose_database_is_deleted_ends_and_gives_its_messages_back() {
    for (words, database) in [
        (&["--into", "orders.db", "--table", "orders"][..], "orders.db"),
        (&["--enqueue", "k"], ".local/share/gristmill/gristmill.db"),
    ] {
        let bed = Bed::new("deleted");
        bed.publish(["{\"id\": 1}"]);
        let mut command = bed.command(&[&["consume", &bed.queue], words].concat());
        let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        bed.depth_is("", 0);
        bed.until("a database", || bed.home.path(database).exists());
        std::fs::remove_file(bed.home.path(database)).unwrap();
        bed.publish(["{\"id\": 2}"]);
        let said = RunOutput::of(&process.wait_with_output().unwrap());
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains("was deleted or moved away while it was in use"), "{said:?}");
        assert_eq!(bed.depth(".dead"), Some(0), "{words:?}");
        // The first message is given back, too, if the database was deleted before its row was known to be in it.
        let is_back = || bed.run(&["queues", "peek", &bed.queue]).out.contains("{\"id\": 2}");
        bed.until("the second message", is_back);
    }
}
