//! Tests of `gristmill consume --into`.

use std::process::Stdio;

use gristmill_amqp::Message;
use serde_json::json;

use crate::common::RunOutput;
use crate::fixture::{Fixture, body, header};

/// Returns the number that a query of a database returns.
fn query(fixture: &Fixture, database: &str, sql: &str) -> i64 {
    let conn = rusqlite::Connection::open(fixture.home.path(database)).unwrap();
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn into_writes_objects_and_dead_letters_invalid_json() {
    let fixture = Fixture::new("rows");
    let bad = |number: usize| number.is_multiple_of(100);
    fixture.publish((0..5_000).map(|number| match number {
        number if !bad(number) => format!("{{\"id\": {number}, \"name\": \"n{number}\"}}"),
        number if number.is_multiple_of(200) => format!("{{\"id\": {number}"),
        number => format!("[{number}]"),
    }));
    let stats = fixture.drain(&["--into", "orders.db", "--table", "orders"]);
    let found = [&stats["received"], &stats["acknowledged"], &stats["dead_lettered"], &stats["retried"]];
    assert_eq!(found, [&json!(5_000), &json!(5_000), &json!(50), &json!(0)], "{stats}");
    assert_eq!(query(&fixture, "orders.db", "SELECT count(DISTINCT id) FROM orders"), 4_950);
    assert_eq!(query(&fixture, "orders.db", "SELECT count(*) FROM orders"), 4_950);
    assert_eq!(query(&fixture, "orders.db", "SELECT sum(name = 'n' || id) FROM orders"), 4_950);
    assert_eq!(fixture.depth(""), Some(0));
    let dead = fixture.take(".dead", 50);
    assert_eq!(dead.len(), 50);
    for dead_letter in &dead {
        assert_eq!(header(dead_letter, "x-gristmill-reason"), "permanent");
        let error = header(dead_letter, "x-gristmill-error");
        let expected = if body(dead_letter).starts_with('[') { "expected an object such as" } else { "is it cut off?" };
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn into_path_in_settings_file_is_relative_to_the_file() {
    let fixture = Fixture::new("file");
    fixture.publish(["{\"a\": 1}"]);
    let text = format!("[[consumers]]\nqueue = \"{}\"\ninto = \"out.db\"\ntable = \"t\"\nworkers = 3\n", fixture.queue);
    let file = fixture.home.write("elsewhere/c.toml", &text);
    let words = ["--config", file.to_str().unwrap(), "consume", "--json", "--drain", "--for", "2m", "--prefetch", "7"];
    let output = fixture.run(&words);
    assert_eq!(output.code, Some(0), "{output:?}");
    let stats = &output.json()["consumers"][0];
    let found = [&stats["queue"], &stats["workers"], &stats["prefetch"], &stats["acknowledged"]];
    assert_eq!(found, [&json!(fixture.queue), &json!(3), &json!(7), &json!(1)], "{stats}");
    assert_eq!(query(&fixture, "elsewhere/out.db", "SELECT a FROM t"), 1);
}

#[test]
fn killed_consumer_writes_no_second_row_within_dedup_window() {
    const COUNT: i64 = 4_000;
    let fixture = Fixture::new("killed-into");
    let message =
        |number| Message::to_queue(&fixture.queue, format!("{{\"id\":{number}}}")).id(format!("order-{number}"));
    fixture.send((0..COUNT).map(message));
    let count = |sql: &str| match rusqlite::Connection::open(fixture.home.path("x.db")) {
        Ok(conn) => conn.query_row(sql, [], |row| row.get(0)).unwrap_or(0),
        Err(_) => 0,
    };
    let rows = || count("SELECT count(*) FROM t");
    let words = ["--dedup-window", "1h", "--into", "x.db", "--table", "t"];
    while rows() < COUNT / 2 {
        let before = rows();
        let mut command = fixture.command(&[&["consume", &fixture.queue], &words[..]].concat());
        let null = std::process::Stdio::null;
        let mut child = command.stdout(null()).stderr(null()).spawn().unwrap();
        fixture.wait_until("rows", || rows() > before);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    fixture.drain(&words);
    assert_eq!((rows(), count("SELECT count(DISTINCT id) FROM t")), (COUNT, COUNT));
    // All messages arrive again.
    fixture.send((0..COUNT).map(message));
    let stats = fixture.drain(&words);
    assert_eq!((&stats["skipped"], &stats["handled"]), (&json!(COUNT), &json!(0)), "{stats}");
    assert_eq!(rows(), COUNT);
}

#[test]
fn consumer_stops_and_returns_messages_when_its_database_is_deleted() {
    for (words, database) in [
        (&["--into", "orders.db", "--table", "orders"][..], "orders.db"),
        (&["--enqueue", "k"], ".local/share/gristmill/gristmill.db"),
    ] {
        let fixture = Fixture::new("deleted");
        fixture.publish(["{\"id\": 1}"]);
        let mut command = fixture.command(&[&["consume", &fixture.queue], words].concat());
        let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        fixture.wait_for_depth("", 0);
        fixture.wait_until("a database", || fixture.home.path(database).exists());
        std::fs::remove_file(fixture.home.path(database)).unwrap();
        fixture.publish(["{\"id\": 2}"]);
        let output = RunOutput::of(&process.wait_with_output().unwrap());
        assert_eq!(output.code, Some(2), "{output:?}");
        assert!(output.err.contains("was deleted or moved away while it was in use"), "{output:?}");
        assert_eq!(fixture.depth(".dead"), Some(0), "{words:?}");
        // The first message is returned too if the database was deleted before its commit.
        let is_back = || fixture.run(&["queues", "peek", &fixture.queue]).out.contains("{\"id\": 2}");
        fixture.wait_until("the second message", is_back);
    }
}
