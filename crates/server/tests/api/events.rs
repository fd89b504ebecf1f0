//! The stream of events.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{FULL, Fixture};

struct Stream(BufReader<TcpStream>);

#[derive(Debug)]
struct Event {
    id: String,
    topic: String,
    data: Value,
}

impl Stream {
    fn open(fixture: &Fixture, query: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!(
            "GET /api/v1/events{query} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {FULL}\r\n{headers}\r\n",
            fixture.host()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut stream = Stream(BufReader::new(stream));
        while !stream.line().starts_with("retry:") {}
        stream
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let count = self.0.read_line(&mut line).unwrap();
        assert!(count > 0, "the stream has ended");
        line.trim_end().to_owned()
    }

    fn next(&mut self) -> Event {
        let (mut id, mut topic) = (String::new(), String::new());
        loop {
            let line = self.line();
            match line.split_once(": ") {
                Some(("id", value)) => id = value.to_owned(),
                Some(("event", value)) => topic = value.to_owned(),
                Some(("data", value)) => return Event { id, topic, data: serde_json::from_str(value).unwrap() },
                _ => {}
            }
        }
    }

    fn next_of(&mut self, topic: &str) -> Event {
        loop {
            let event = self.next();
            if event.topic == topic {
                return event;
            }
        }
    }
}

#[test]
fn changes_of_any_program_are_events() {
    let fixture = Fixture::new();
    let mut stream = Stream::open(&fixture, "?topics=jobs,tasks,dead-letters", "");
    fixture.post("/api/v1/jobs", &json!({ "kind": "scan" }));
    let event = stream.next_of("jobs");
    assert_eq!((&event.data["jobs"][0]["kind"], &event.data["jobs"][0]["status"]), (&json!("scan"), &json!("pending")));
    // By another program.
    fixture.sql("UPDATE jobs SET status = 'running', progress = 0.25, worker_id = 'python'");
    assert_eq!(stream.next_of("jobs").data["jobs"][0]["progress"], 0.25);
    fixture.post("/api/v1/tasks", &json!({ "kind": "mail", "payload": {} }));
    assert_eq!(stream.next_of("tasks").data["pending"], 1);
    assert_eq!(fixture.get("/api/v1/events?topics=odd").status, 422);
}

#[test]
fn interrupted_stream_continues_where_it_was() {
    let fixture = Fixture::new();
    let mut stream = Stream::open(&fixture, "?topics=tasks", "");
    fixture.post("/api/v1/tasks", &json!({ "kind": "mail", "payload": {} }));
    let first = stream.next_of("tasks");
    let mut other = Stream::open(&fixture, "?topics=tasks", "");
    drop(stream);
    fixture.post("/api/v1/tasks", &json!({ "kind": "mail", "payload": {} }));
    while other.next_of("tasks").data["pending"] != 2 {}
    let mut stream = Stream::open(&fixture, "?topics=tasks", &format!("Last-Event-ID: {}\r\n", first.id));
    assert_eq!(stream.next().data["pending"], 2);
    // By the parameter, for clients that cannot set the header.
    let mut stream = Stream::open(&fixture, &format!("?topics=tasks&last_event_id={}", first.id), "");
    assert_eq!(stream.next().data["pending"], 2);
}

#[test]
fn events_of_an_earlier_server_are_a_resync() {
    let fixture = Fixture::new();
    for id in ["1-7", "nonsense"] {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!(
            "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {FULL}\r\nLast-Event-ID: {id}\r\n\r\n",
            fixture.host()
        );
        stream.write_all(request.as_bytes()).unwrap();
        assert_eq!(Stream(BufReader::new(stream)).next().topic, "resync", "{id}");
    }
}

#[test]
fn server_ends_with_an_error_when_its_database_is_replaced() {
    let fixture = Fixture::new();
    let mut stream = Stream::open(&fixture, "", "");
    std::fs::rename(fixture.path("g.db"), fixture.path("moved.db")).unwrap();
    let mut rest = Vec::new();
    stream.0.read_to_end(&mut rest).expect("the end of the stream, not a timeout");
    let error = fixture.ended().expect_err("an error").to_string();
    assert!(error.contains("was deleted or moved"), "{error}");
}

#[test]
fn stopping_ends_streams() {
    let fixture = Fixture::new();
    let mut streams: Vec<Stream> = (0..20).map(|_| Stream::open(&fixture, "", "")).collect();
    fixture.stop.cancel();
    for stream in &mut streams {
        let mut rest = Vec::new();
        stream.0.read_to_end(&mut rest).expect("the end of the stream, not a timeout");
    }
}
