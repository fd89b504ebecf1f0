//! `gristmill consume` pauses while its action fails: server, disk, database or command.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::consumer_process::ConsumerProcess;
use crate::fixture::{Fixture, body, header};

/// Answers each request with the status that `status` returns for its body. Returns the number of requests.
fn serve(listener: TcpListener, status: fn(&str) -> &'static str) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let requests = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, count) = (stream.unwrap(), Arc::clone(&count));
            std::thread::spawn(move || {
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while !request.ends_with(b"|") {
                    match stream.read(&mut buffer) {
                        Ok(read @ 1..) => request.extend_from_slice(&buffer[..read]),
                        _ => return,
                    }
                }
                count.fetch_add(1, Relaxed);
                let text = String::from_utf8_lossy(&request).into_owned();
                let status = status(text.rsplit("\r\n\r\n").next().unwrap_or_default());
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes());
            });
        }
    });
    requests
}

/// Returns an address where nothing listens.
fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn unreachable_http_server_pauses_consuming_without_using_attempts() {
    let fixture = Fixture::new("down");
    fixture.publish((0..30).map(|number| format!("{number}|")));
    let address = unused_address();
    let url = format!("http://{address}/");
    let words = ["--attempts", "2", "--retry-delay", "1ms", "--metrics", "127.0.0.1:0", "--http", &url];
    let process = ConsumerProcess::consume(&fixture, &words);
    process.logs(&fixture, "consuming is paused");
    let requests = serve(TcpListener::bind(address).unwrap(), |_| "204 No Content");
    process.logs(&fixture, "consuming resumes");
    fixture.wait_until("all requests", || requests.load(Relaxed) == 30);
    let (output, log) = process.end();
    assert_eq!(output.code, Some(0), "{log}");
    let stats = &output.json()["consumers"][0];
    let found =
        [&stats["handled"], &stats["dead_lettered"], &stats["retried"], &stats["pauses"]].map(ToString::to_string);
    assert_eq!(found, ["30", "0", "0", "1"], "{stats}");
    assert_eq!(fixture.depth(".dead"), Some(0));
    assert_eq!(log.matches("consuming is paused").count(), 1, "{log}");
    assert!(log.contains("refused"), "the cause is missing: {log}");
}

#[test]
fn paused_consumer_exits_with_2_at_its_time_limit() {
    let fixture = Fixture::new("down-end");
    fixture.publish(["x|"]);
    let url = format!("http://{}/", unused_address());
    let process = ConsumerProcess::consume(&fixture, &["--drain", "--for", "3s", "--http", &url]);
    let (output, log) = process.wait();
    assert_eq!(output.code, Some(2), "{output:?} {log}");
    assert!(log.contains("ended while consuming was paused") && log.contains("refused"), "{log}");
    fixture.wait_for_depth("", 1);
    assert_eq!(fixture.depth(".dead"), Some(0));
}

#[test]
fn drain_fails_when_http_server_stays_down() {
    let fixture = Fixture::new("stays-down");
    fixture.publish(["x|", "y|", "z|"]);
    let url = format!("http://{}/", unused_address());
    let process = ConsumerProcess::consume(&fixture, &["--drain", "--drain-timeout", "1s", "--http", &url]);
    let (output, log) = process.wait();
    assert_eq!(output.code, Some(2), "{output:?} {log}");
    let left = format!("3 messages unhandled (3 in {}): ", fixture.queue);
    for expected in ["no message was finished for 1s", &left, "refused", "run the same command again"] {
        assert!(log.contains(expected), "no {expected:?} in {log}");
    }
    assert_eq!(output.json()["consumers"][0]["dead_lettered"], 0);
    fixture.wait_for_depth("", 3);
    assert_eq!(fixture.depth(".dead"), Some(0));
}

#[test]
fn drain_fails_when_one_message_keeps_consuming_paused() {
    let fixture = Fixture::new("alone");
    fixture.publish(["good|", "bad|"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    serve(listener, |body| if body == "bad|" { "503 BusyConsumer" } else { "204 No Content" });
    // The good message is done first, so it does not show that the server works for others.
    let words = ["--drain", "--drain-timeout", "1s", "--workers", "1", "--http", &url];
    let (output, log) = ConsumerProcess::consume(&fixture, &words).wait();
    assert_eq!(output.code, Some(2), "{output:?} {log}");
    let left = format!("1 message unhandled (1 in {}): ", fixture.queue);
    assert!(log.contains(&left) && log.contains("503"), "{log}");
    assert_eq!(output.json()["consumers"][0]["handled"], 1);
    fixture.wait_for_depth("", 1);
}

#[test]
fn http_retry_status_sets_statuses_that_pause() {
    let fixture = Fixture::new("statuses");
    // The number of consecutive failures that pauses consuming.
    fixture.publish(["1|", "2|", "3|", "4|", "5|"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let requests = serve(listener, |_| "401 Unauthorized");
    let url = format!("http://{address}/");
    let words = ["--attempts", "1", "--http-retry-status", "401,404,5xx", "--http", &url];
    let process = ConsumerProcess::consume(&fixture, &words);
    process.logs(&fixture, "consuming is paused");
    // More requests than all attempts of the messages together.
    fixture.wait_until("requests", || requests.load(Relaxed) >= 6);
    let (output, _) = process.end();
    assert_eq!(output.json()["consumers"][0]["dead_lettered"], 0);
    let stats = fixture.drain(&["--attempts", "1", "--http-retry-status", "404,5xx", "--http", &url]);
    assert_eq!(stats["dead_lettered"], 5, "{stats}");
}

#[test]
fn message_that_alone_fails_the_server_is_dead_lettered() {
    let fixture = Fixture::new("poison");
    fixture
        .publish((0..20).map(|number| format!("{}|", if number == 5 { "bad".to_owned() } else { number.to_string() })));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    serve(listener, |body| if body == "bad|" { "500 Internal Server Error" } else { "204 No Content" });
    let words = ["--workers", "2", "--attempts", "2", "--retry-delay", "1ms", "--http", &url];
    let stats = fixture.drain(&words);
    let found = [&stats["handled"], &stats["dead_lettered"], &stats["retried"]].map(ToString::to_string);
    assert_eq!(found, ["19", "1", "1"], "{stats}");
    let dead = fixture.take(".dead", 1);
    assert_eq!((body(&dead[0]).as_str(), header(&dead[0], "x-gristmill-failed").as_str()), ("bad|", "2"));
}

/// Starts the binary with a file size limit in KiB, which the test raises later.
fn with_small_files(fixture: &Fixture, kibibytes: u64, words: &[&str]) -> ConsumerProcess {
    let command = fixture.command(words);
    let mut limited = Command::new("sh");
    let blocks = (kibibytes * 2).to_string();
    limited.args(["-c", "trap '' XFSZ; ulimit -S -f $0; exec \"$@\"", &blocks]);
    limited.arg(command.get_program()).args(command.get_args());
    limited.current_dir(command.get_current_dir().unwrap_or(std::path::Path::new(".")));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    ConsumerProcess::start(fixture, limited)
}

#[test]
fn full_disk_pauses_consuming_and_loses_no_message() {
    let fixture = Fixture::new("room");
    for action in [&["--into", "x.db", "--table", "t"][..], &["--enqueue", "later"]] {
        let filler = "x".repeat(1_000);
        fixture.publish((0..3_000).map(|number| format!("{{\"id\":{number},\"text\":\"{filler}\"}}")));
        let words = [&["consume", &fixture.queue, "--json", "--drain", "--attempts", "1"], action].concat();
        let process = with_small_files(&fixture, 1 << 10, &words);
        process.logs(&fixture, "consuming is paused");
        let pid = Pid::from_raw(i32::try_from(process.child.id()).unwrap());
        let maximum = getrlimit(Resource::Fsize).maximum;
        prlimit(pid, Resource::Fsize, Rlimit { current: maximum, maximum }).unwrap();
        let (output, log) = process.wait();
        assert_eq!(output.code, Some(0), "{log}");
        assert!(log.contains("consuming resumes"), "{log}");
        assert_eq!(output.json()["consumers"][0]["handled"], 3_000, "{log}");
        assert_eq!(fixture.depth(".dead"), Some(0), "{action:?}");
    }
    let rows = rusqlite::Connection::open(fixture.home.path("x.db")).unwrap();
    let count = |sql| rows.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(DISTINCT id) FROM t"), 3_000);
}

#[test]
fn into_database_locked_at_start_pauses_consuming_until_unlocked() {
    let fixture = Fixture::new("locked-start");
    fixture.publish((0..30).map(|number| format!("{{\"id\":{number}}}")));
    let other = rusqlite::Connection::open(fixture.home.path("x.db")).unwrap();
    other.execute_batch("CREATE TABLE u (a); BEGIN EXCLUSIVE").unwrap();
    let process = ConsumerProcess::consume(&fixture, &["--attempts", "1", "--into", "x.db", "--table", "t"]);
    process.logs(&fixture, "x.db is locked by another program");
    process.logs(&fixture, "consuming is paused");
    other.execute_batch("COMMIT").unwrap();
    process.logs(&fixture, "consuming resumes");
    let rows = || other.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap_or(0);
    fixture.wait_until("all rows", || rows() == 30);
    let (output, log) = process.end();
    assert_eq!(output.code, Some(0), "{log}");
    let stats = &output.json()["consumers"][0];
    assert_eq!((&stats["handled"], &stats["dead_lettered"]), (&30.into(), &0.into()), "{stats}");
    assert_eq!(fixture.depth(".dead"), Some(0));
}

#[test]
fn database_locked_beyond_timeout_pauses_and_gets_each_message_once() {
    const COUNT: i64 = 300;
    for (action, database, table) in [
        (&["--into", "x.db", "--table", "t"][..], "x.db", "t"),
        (&["--enqueue", "later"], ".local/share/gristmill/gristmill.db", "tasks"),
    ] {
        let fixture = Fixture::new("locked-longer");
        let words = ["--attempts", "2", "--retry-delay", "1ms", "--timeout", "200ms"];
        let process = ConsumerProcess::consume(&fixture, &[&words, action].concat());
        process.logs(&fixture, "consuming ");
        let other = rusqlite::Connection::open(fixture.home.path(database)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        fixture.publish((0..COUNT).map(|number| format!("{{\"id\":{number}}}")));
        let has_dead_letters = || fixture.depth(".dead").is_some_and(|messages| messages > 0);
        // The transaction itself fails only after 10 s.
        let is_late = || process.log().contains("no transaction began within 200ms (--timeout)");
        fixture.wait_until("a pause", || is_late() || has_dead_letters());
        other.execute_batch("COMMIT").unwrap();
        let rows =
            || other.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)).unwrap_or(0);
        fixture.wait_until("all rows", || rows() >= COUNT || has_dead_letters());
        let (output, log) = process.end();
        let stats = &output.json()["consumers"][0];
        let found = ["handled", "retried", "dead_lettered"].map(|name| stats[name].as_i64());
        assert_eq!(found, [Some(COUNT), Some(0), Some(0)], "{action:?} {stats} {log}");
        assert_eq!((rows(), fixture.depth(".dead")), (COUNT, Some(0)), "{action:?} {log}");
    }
}

#[test]
fn drain_fails_when_consuming_is_paused_and_a_command_hangs() {
    let fixture = Fixture::new("hangs");
    fixture.publish(["hang", "fail", "fail", "fail", "fail", "fail"]);
    let script =
        "test $(cat) = fail || { touch hangs; exec sleep 600; }; until test -e hangs; do sleep 0.02; done; exit 69";
    let words = ["--drain", "--drain-timeout", "1s", "--shutdown", "100ms", "--workers", "2", "--exec", "sh", "-c"];
    let mut process = ConsumerProcess::consume(&fixture, &[&words[..], &[script]].concat());
    fixture.wait_until("the end of the drain", || process.has_ended());
    let (output, log) = process.wait();
    assert_eq!(output.code, Some(2), "{output:?} {log}");
    assert!(log.contains("no message was finished for 1s") && log.contains("6 messages unhandled"), "{log}");
    fixture.wait_for_depth("", 6);
}

#[test]
fn drain_fails_when_into_database_stays_locked() {
    let fixture = Fixture::new("stays-locked");
    fixture.publish(["{\"id\":1}"]);
    let other = rusqlite::Connection::open(fixture.home.path("x.db")).unwrap();
    other.execute_batch("CREATE TABLE u (a); BEGIN EXCLUSIVE").unwrap();
    let words = ["--drain", "--drain-timeout", "1s", "--into", "x.db", "--table", "t"];
    let (output, log) = ConsumerProcess::consume(&fixture, &words).wait();
    assert_eq!(output.code, Some(2), "{output:?} {log}");
    assert!(log.contains("1 message unhandled") && log.contains("x.db: another program kept it locked"), "{log}");
    fixture.wait_for_depth("", 1);
}

#[test]
fn consumer_stops_when_unlocked_database_is_unusable() {
    let fixture = Fixture::new("unusable-later");
    fixture.publish(["{\"id\":1}"]);
    let other = rusqlite::Connection::open(fixture.home.path("x.db")).unwrap();
    other.execute_batch("CREATE VIEW t AS SELECT 1 AS id; BEGIN EXCLUSIVE").unwrap();
    let process = ConsumerProcess::consume(&fixture, &["--into", "x.db", "--table", "t"]);
    process.logs(&fixture, "consuming is paused");
    other.execute_batch("COMMIT").unwrap();
    let (output, log) = process.wait();
    assert_eq!(output.code, Some(1), "{output:?} {log}");
    assert!(log.contains("error: ") && log.contains("view"), "{log}");
    fixture.wait_for_depth("", 1);
    assert_eq!(fixture.depth(".dead"), Some(0));
}

#[test]
fn store_locked_at_start_is_waited_for() {
    let fixture = Fixture::new("locked-store");
    fixture.publish(["{\"id\":1}"]);
    drop(fixture.home.store());
    let lock = || {
        let other = rusqlite::Connection::open(fixture.home.database()).unwrap();
        other.execute_batch("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE").unwrap();
        other
    };
    for action in [&["--enqueue", "later"][..], &["--exec", "true"]] {
        let other = lock();
        let start = |words: &[&str]| {
            let mut command = fixture.command(&[&["consume", &fixture.queue, "--json"], words, action].concat());
            command.env("GRISTMILL_BUSY_TIMEOUT", "100ms");
            ConsumerProcess::start(&fixture, command)
        };
        let process = start(&["--drain"]);
        process.logs(&fixture, "gristmill.db is busy");
        // Signals and time limits work meanwhile.
        let (output, log) = process.end();
        assert_eq!(output.code, Some(130), "{action:?} {output:?} {log}");
        let (output, log) = start(&["--for", "200ms"]).wait();
        assert_eq!(output.code, Some(2), "{action:?} {output:?} {log}");
        let process = start(&["--drain"]);
        process.logs(&fixture, "gristmill.db is busy");
        other.execute_batch("COMMIT").unwrap();
        drop(other);
        let (output, log) = process.wait();
        assert_eq!(output.code, Some(0), "{action:?} {output:?} {log}");
        assert!(!log.contains("Starts of messages are not counted"), "{log}");
        let done = output.json()["consumers"][0]["handled"].as_u64();
        assert_eq!(done, Some(1), "{action:?} {log}");
        fixture.publish(["{\"id\":2}"]);
    }
}

#[test]
fn command_that_cannot_be_started_pauses_consuming() {
    let fixture = Fixture::new("no-interpreter");
    fixture.publish(["x"]);
    // The file is executable, but its interpreter does not exist.
    let program = fixture.home.path("program");
    let write = |text: &str| {
        let new = fixture.home.path("new");
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::rename(&new, &program).unwrap();
    };
    write("#!/is/not/there\n");
    let process = ConsumerProcess::consume(&fixture, &["--attempts", "1", "--exec", program.to_str().unwrap()]);
    process.logs(&fixture, "consuming is paused");
    write("#!/bin/sh\nexit 0\n");
    process.logs(&fixture, "consuming resumes");
    let (output, log) = process.end();
    let stats = &output.json()["consumers"][0];
    assert_eq!((&stats["handled"], &stats["dead_lettered"]), (&1.into(), &0.into()), "{log}");
    assert!(log.contains("cannot run "), "{log}");
}

#[test]
fn command_that_reports_an_unavailable_service_pauses_consuming() {
    let fixture = Fixture::new("unavailable");
    fixture.publish(["x"]);
    let script = "test -e works && exit 0; exit 69";
    let process = ConsumerProcess::consume(&fixture, &["--attempts", "1", "--exec", "sh", "-c", script]);
    process.logs(&fixture, "consuming is paused");
    fixture.home.write("works", "");
    process.logs(&fixture, "consuming resumes");
    let (output, log) = process.end();
    let stats = &output.json()["consumers"][0];
    assert_eq!((&stats["handled"], &stats["dead_lettered"]), (&1.into(), &0.into()), "{log}");
}
