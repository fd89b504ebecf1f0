//! `gristmill consume` while what it hands messages to fails.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::bed::{Bed, body, header};
use crate::common::{RunOutput, signal};

/// A consumer at work; what it writes to standard error is in a file.
pub(crate) struct Process {
    child: Child,
    log: std::path::PathBuf,
}

impl Process {
    pub(crate) fn start(bed: &Bed, mut command: Command) -> Self {
        let log = bed.home.path("log");
        let child =
            command.stdout(std::process::Stdio::piped()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        Process { child, log }
    }

    pub(crate) fn consume(bed: &Bed, words: &[&str]) -> Self {
        Self::start(bed, bed.command(&[&["consume", &bed.queue, "--json"], words].concat()))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    #[track_caller]
    pub(crate) fn logs(&self, bed: &Bed, text: &str) {
        bed.until(&format!("{text:?} in the log"), || self.log().contains(text));
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn terminate(&self) {
        signal(&self.child, "TERM");
    }

    pub(crate) fn end(self) -> (RunOutput, String) {
        self.terminate();
        self.wait()
    }

    pub(crate) fn wait(self) -> (RunOutput, String) {
        let said = RunOutput::of(&self.child.wait_with_output().unwrap());
        (said, std::fs::read_to_string(self.log).unwrap())
    }
}

/// Answers each request with what `status` says of its body.
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

/// An address where nothing listens.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn http_server_that_is_down_pauses_consuming_and_costs_no_attempts() {
    let bed = Bed::new("down");
    bed.publish((0..30).map(|number| format!("{number}|")));
    let address = free();
    let url = format!("http://{address}/");
    let words = ["--attempts", "2", "--retry-delay", "1ms", "--metrics", "127.0.0.1:0", "--http", &url];
    let process = Process::consume(&bed, &words);
    process.logs(&bed, "consuming is paused");
    let requests = serve(TcpListener::bind(address).unwrap(), |_| "204 No Content");
    process.logs(&bed, "consuming is resumed");
    bed.until("all of them", || requests.load(Relaxed) == 30);
    let (said, log) = process.end();
    assert_eq!(said.code, Some(0), "{log}");
    let stats = &said.json()["consumers"][0];
    let found =
        [&stats["done"], &stats["rejected"], &stats["retried"], &stats["pauses"]].map(ToString::to_string);
    assert_eq!(found, ["30", "0", "0", "1"], "{stats}");
    assert_eq!(bed.depth(".dead"), Some(0));
    assert_eq!(log.matches("consuming is paused").count(), 1, "{log}");
    assert!(log.contains("refused"), "the cause is named: {log}");
}

#[test]
fn neither_drain_nor_the_end_of_its_time_is_success_while_the_sink_is_down() {
    let bed = Bed::new("down-end");
    bed.publish(["x|"]);
    let url = format!("http://{}/", free());
    let process = Process::consume(&bed, &["--drain", "--for", "3s", "--http", &url]);
    let (said, log) = process.wait();
    assert_eq!(said.code, Some(2), "{said:?} {log}");
    assert!(log.contains("ended while consuming was paused") && log.contains("refused"), "{log}");
    bed.depth_is("", 1);
    assert_eq!(bed.depth(".dead"), Some(0));
}

#[test]
fn drain_ends_with_an_error_when_the_sink_stays_down() {
    let bed = Bed::new("stays-down");
    bed.publish(["x|", "y|", "z|"]);
    let url = format!("http://{}/", free());
    let process = Process::consume(&bed, &["--drain", "--drain-timeout", "1s", "--http", &url]);
    let (said, log) = process.wait();
    assert_eq!(said.code, Some(2), "{said:?} {log}");
    let left = format!("3 messages unhandled (3 in {}): ", bed.queue);
    for expected in ["no message was finished for 1s", &left, "refused", "run the same command again"] {
        assert!(log.contains(expected), "no {expected:?} in {log}");
    }
    assert_eq!(said.json()["consumers"][0]["rejected"], 0);
    bed.depth_is("", 3);
    assert_eq!(bed.depth(".dead"), Some(0));
}

#[test]
fn drain_ends_with_an_error_when_one_message_alone_pauses_the_sink() {
    let bed = Bed::new("alone");
    bed.publish(["good|", "bad|"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    serve(listener, |body| if body == "bad|" { "503 Busy" } else { "204 No Content" });
    // The good one is done before, so that it shows nothing about the bad one.
    let words = ["--drain", "--drain-timeout", "1s", "--workers", "1", "--http", &url];
    let (said, log) = Process::consume(&bed, &words).wait();
    assert_eq!(said.code, Some(2), "{said:?} {log}");
    let left = format!("1 message unhandled (1 in {}): ", bed.queue);
    assert!(log.contains(&left) && log.contains("503"), "{log}");
    assert_eq!(said.json()["consumers"][0]["done"], 1);
    bed.depth_is("", 1);
}

#[test]
fn statuses_that_are_retried_are_a_setting() {
    let bed = Bed::new("statuses");
    // As many as have to fail in a row for a pause.
    bed.publish(["1|", "2|", "3|", "4|", "5|"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let requests = serve(listener, |_| "401 Unauthorized");
    let url = format!("http://{address}/");
    let words = ["--attempts", "1", "--http-retry-status", "401,404,5xx", "--http", &url];
    let process = Process::consume(&bed, &words);
    process.logs(&bed, "consuming is paused");
    // More often than the attempts that the messages have together.
    bed.until("requests", || requests.load(Relaxed) >= 6);
    let (said, _) = process.end();
    assert_eq!(said.json()["consumers"][0]["rejected"], 0);
    let stats = bed.drain(&["--attempts", "1", "--http-retry-status", "404,5xx", "--http", &url]);
    assert_eq!(stats["rejected"], 5, "{stats}");
}

#[test]
fn message_that_alone_makes_the_server_fail_is_a_dead_letter() {
    let bed = Bed::new("poison");
    bed.publish(
        (0..20).map(|number| format!("{}|", if number == 5 { "bad".to_owned() } else { number.to_string() })),
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    serve(listener, |body| if body == "bad|" { "500 Internal Server Error" } else { "204 No Content" });
    let words = ["--workers", "2", "--attempts", "2", "--retry-delay", "1ms", "--http", &url];
    let stats = bed.drain(&words);
    let found = [&stats["done"], &stats["rejected"], &stats["retried"]].map(ToString::to_string);
    assert_eq!(found, ["19", "1", "1"], "{stats}");
    let dead = bed.take(".dead", 1);
    assert_eq!((body(&dead[0]).as_str(), header(&dead[0], "x-gristmill-failed").as_str()), ("bad|", "2"));
}

/// The binary with room for files of this many KiB only, until it gets more.
fn with_small_files(bed: &Bed, kibibytes: u64, words: &[&str]) -> Process {
    let command = bed.command(words);
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
    Process::start(bed, limited)
}

#[test]
fn disk_without_room_pauses_consuming_and_costs_no_message() {
    let bed = Bed::new("room");
    for action in [&["--into", "x.db", "--table", "t"][..], &["--enqueue", "later"]] {
        let filler = "x".repeat(1_000);
        bed.publish((0..3_000).map(|number| format!("{{\"id\":{number},\"text\":\"{filler}\"}}")));
        let words = [&["consume", &bed.queue, "--json", "--drain", "--attempts", "1"], action].concat();
        let process = with_small_files(&bed, 1 << 10, &words);
        process.logs(&bed, "consuming is paused");
        let pid = Pid::from_raw(i32::try_from(process.child.id()).unwrap());
        let maximum = getrlimit(Resource::Fsize).maximum;
        prlimit(pid, Resource::Fsize, Rlimit { current: maximum, maximum }).unwrap();
        let (said, log) = process.wait();
        assert_eq!(said.code, Some(0), "{log}");
        assert!(log.contains("consuming is resumed"), "{log}");
        assert_eq!(said.json()["consumers"][0]["done"], 3_000, "{log}");
        assert_eq!(bed.depth(".dead"), Some(0), "{action:?}");
    }
    let rows = rusqlite::Connection::open(bed.home.path("x.db")).unwrap();
    let count = |sql| rows.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(DISTINCT id) FROM t"), 3_000);
}

#[test]
fn database_that_is_locked_at_the_start_pauses_consuming_until_it_is_unlocked() {
    let bed = Bed::new("locked-start");
    bed.publish((0..30).map(|number| format!("{{\"id\":{number}}}")));
    let other = rusqlite::Connection::open(bed.home.path("x.db")).unwrap();
    other.execute_batch("CREATE TABLE u (a); BEGIN EXCLUSIVE").unwrap();
    let process = Process::consume(&bed, &["--attempts", "1", "--into", "x.db", "--table", "t"]);
    process.logs(&bed, "x.db is locked by another program");
    process.logs(&bed, "consuming is paused");
    other.execute_batch("COMMIT").unwrap();
    process.logs(&bed, "consuming is resumed");
    let rows = || other.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap_or(0);
    bed.until("all rows", || rows() == 30);
    let (said, log) = process.end();
    assert_eq!(said.code, Some(0), "{log}");
    let stats = &said.json()["consumers"][0];
    assert_eq!((&stats["done"], &stats["rejected"]), (&30.into(), &0.into()), "{stats}");
    assert_eq!(bed.depth(".dead"), Some(0));
}

#[test]
fn database_that_is_locked_for_longer_than_the_timeout_pauses_consuming_and_gets_each_message_once() {
    const COUNT: i64 = 300;
    for (action, database, table) in [
        (&["--into", "x.db", "--table", "t"][..], "x.db", "t"),
        (&["--enqueue", "later"], ".local/share/gristmill/gristmill.db", "tasks"),
    ] {
        let bed = Bed::new("locked-longer");
        let words = ["--attempts", "2", "--retry-delay", "1ms", "--timeout", "200ms"];
        let process = Process::consume(&bed, &[&words, action].concat());
        process.logs(&bed, "consuming ");
        let other = rusqlite::Connection::open(bed.home.path(database)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        bed.publish((0..COUNT).map(|number| format!("{{\"id\":{number}}}")));
        let has_dead_letters = || bed.depth(".dead").is_some_and(|messages| messages > 0);
        bed.until("a pause", || process.log().contains("consuming is paused") || has_dead_letters());
        other.execute_batch("COMMIT").unwrap();
        let rows = || {
            other
                .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
                .unwrap_or(0)
        };
        bed.until("all rows", || rows() >= COUNT || has_dead_letters());
        let (said, log) = process.end();
        let stats = &said.json()["consumers"][0];
        let found = ["done", "retried", "rejected"].map(|name| stats[name].as_i64());
        assert_eq!(found, [Some(COUNT), Some(0), Some(0)], "{action:?} {stats} {log}");
        assert_eq!((rows(), bed.depth(".dead")), (COUNT, Some(0)), "{action:?} {log}");
    }
}

#[test]
fn drain_of_messages_for_a_database_that_stays_locked_ends_with_an_error() {
    let bed = Bed::new("stays-locked");
    bed.publish(["{\"id\":1}"]);
    let other = rusqlite::Connection::open(bed.home.path("x.db")).unwrap();
    other.execute_batch("CREATE TABLE u (a); BEGIN EXCLUSIVE").unwrap();
    let words = ["--drain", "--drain-timeout", "1s", "--into", "x.db", "--table", "t"];
    let (said, log) = Process::consume(&bed, &words).wait();
    assert_eq!(said.code, Some(2), "{said:?} {log}");
    assert!(
        log.contains("1 message unhandled") && log.contains("x.db: another program kept it locked"),
        "{log}"
    );
    bed.depth_is("", 1);
}

#[test]
fn database_that_turns_out_to_be_unusable_when_it_is_unlocked_ends_consuming() {
    let bed = Bed::new("unusable-later");
    bed.publish(["{\"id\":1}"]);
    let other = rusqlite::Connection::open(bed.home.path("x.db")).unwrap();
    other.execute_batch("CREATE VIEW t AS SELECT 1 AS id; BEGIN EXCLUSIVE").unwrap();
    let process = Process::consume(&bed, &["--into", "x.db", "--table", "t"]);
    process.logs(&bed, "consuming is paused");
    other.execute_batch("COMMIT").unwrap();
    let (said, log) = process.wait();
    assert_eq!(said.code, Some(1), "{said:?} {log}");
    assert!(log.contains("error: ") && log.contains("view"), "{log}");
    bed.depth_is("", 1);
    assert_eq!(bed.depth(".dead"), Some(0));
}

#[test]
fn own_database_that_is_locked_at_the_start_is_waited_for() {
    let bed = Bed::new("locked-store");
    bed.publish(["{\"id\":1}"]);
    drop(bed.home.store());
    let lock = || {
        let other = rusqlite::Connection::open(bed.home.database()).unwrap();
        other.execute_batch("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE").unwrap();
        other
    };
    for action in [&["--enqueue", "later"][..], &["--exec", "true"]] {
        let other = lock();
        let start = |words: &[&str]| {
            let mut command = bed.command(&[&["consume", &bed.queue, "--json"], words, action].concat());
            command.env("GRISTMILL_BUSY_TIMEOUT", "100ms");
            Process::start(&bed, command)
        };
        let process = start(&["--drain"]);
        process.logs(&bed, "gristmill.db is busy");
        // It reacts to a signal meanwhile, and its time is limited.
        let (said, log) = process.end();
        assert_eq!(said.code, Some(130), "{action:?} {said:?} {log}");
        let (said, log) = start(&["--for", "200ms"]).wait();
        assert_eq!(said.code, Some(2), "{action:?} {said:?} {log}");
        let process = start(&["--drain"]);
        process.logs(&bed, "gristmill.db is busy");
        other.execute_batch("COMMIT").unwrap();
        drop(other);
        let (said, log) = process.wait();
        assert_eq!(said.code, Some(0), "{action:?} {said:?} {log}");
        assert!(!log.contains("starts of messages are not counted"), "{log}");
        let done = said.json()["consumers"][0]["done"].as_u64();
        assert_eq!(done, Some(1), "{action:?} {log}");
        bed.publish(["{\"id\":2}"]);
    }
}

#[test]
fn command_that_cannot_be_started_pauses_consuming() {
    let bed = Bed::new("no-interpreter");
    bed.publish(["x"]);
    // It looks like a program until it is run.
    let program = bed.home.path("program");
    let write = |text: &str| {
        let new = bed.home.path("new");
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::rename(&new, &program).unwrap();
    };
    write("#!/is/not/there\n");
    let process = Process::consume(&bed, &["--attempts", "1", "--exec", program.to_str().unwrap()]);
    process.logs(&bed, "consuming is paused");
    write("#!/bin/sh\nexit 0\n");
    process.logs(&bed, "consuming is resumed");
    let (said, log) = process.end();
    let stats = &said.json()["consumers"][0];
    assert_eq!((&stats["done"], &stats["rejected"]), (&1.into(), &0.into()), "{log}");
    assert!(log.contains("cannot run "), "{log}");
}

#[test]
fn command_that_reports_an_unavailable_service_pauses_consuming() {
    let bed = Bed::new("unavailable");
    bed.publish(["x"]);
    let script = "test -e works && exit 0; exit 69";
    let process = Process::consume(&bed, &["--attempts", "1", "--exec", "sh", "-c", script]);
    process.logs(&bed, "consuming is paused");
    bed.home.write("works", "");
    process.logs(&bed, "consuming is resumed");
    let (said, log) = process.end();
    let stats = &said.json()["consumers"][0];
    assert_eq!((&stats["done"], &stats["rejected"]), (&1.into(), &0.into()), "{log}");
}
