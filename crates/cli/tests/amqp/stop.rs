//! How consumers end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::{Value, json};

use crate::bed::{Bed, broker};
use crate::common::signal;
use crate::sinks::Process;

/// A consumer with a command in its hands, which ends when the test says so.
struct Busy {
    bed: Bed,
    process: Child,
    said: BufReader<ChildStderr>,
    heard: String,
}

const COUNT: u32 = 20;

impl Busy {
    /// Two are with commands that wait for a file, the others wait.
    fn start(what: &str, words: &[&str]) -> Self {
        let bed = Bed::new(what);
        bed.publish((0..COUNT).map(|number| number.to_string()));
        // Ends when the test makes the file `go`; tells that it runs by a file of its own.
        let script = "n=$(cat); echo $$ > new-$n; mv new-$n run-$n; until test -e go; do sleep 0.02; done";
        let fixed = ["consume", &bed.queue, "--json", "--workers", "2", "--prefetch", "10"];
        let plain = bed.command(&[&fixed, words, &["--exec", "sh", "-c", script]].concat());
        let mut command = bed.home.with_default_sighup(&plain);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stderr.take().unwrap());
        bed.until("two that run", || bed.home.path("run-0").exists() && bed.home.path("run-1").exists());
        Busy { bed, process, said, heard: String::new() }
    }

    fn wait_for(&mut self, words: &str) {
        while !self.heard.contains(words) {
            assert!(
                self.said.read_line(&mut self.heard).unwrap() > 0,
                "it never said {words:?}: {}",
                self.heard
            );
        }
    }

    fn end(&mut self) -> (Option<i32>, Value) {
        let mut out = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.said.read_to_string(&mut self.heard).unwrap();
        assert!(!self.heard.contains(broker().password()), "{}", self.heard);
        let value = serde_json::from_str(&out).unwrap_or(Value::Null);
        (self.process.wait().unwrap().code(), value)
    }

    /// Nothing is left of the commands.
    fn commands_are_gone(&self) {
        for name in ["run-0", "run-1"] {
            let id = std::fs::read_to_string(self.bed.home.path(name)).unwrap();
            let alive =
                Command::new("kill").args(["-s", "0", id.trim()]).stderr(Stdio::null()).status().unwrap();
            assert!(!alive.success(), "the command of {name} still runs");
        }
    }

    fn go(&self) {
        self.bed.home.write("go", "");
    }
}

#[test]
fn the_first_signal_finishes_what_runs_and_gives_the_rest_back() {
    for (words, code) in [(&[][..], 0), (&["--drain"], 130)] {
        for name in ["INT", "TERM", "HUP"] {
            let mut busy = Busy::start("first-signal", words);
            signal(&busy.process, name);
            busy.wait_for("stopping: what runs has 30s; once more ends it within a second");
            busy.go();
            let (found, value) = busy.end();
            assert_eq!(found, Some(code), "{words:?} {name}: {value} {}", busy.heard);
            assert_eq!(value["consumers"][0]["acknowledged"], 2, "{value}");
            assert_eq!(value["interrupted"], code == 130);
            busy.bed.depth_is("", COUNT - 2);
            assert_eq!(busy.bed.depth(".dead"), Some(0));
        }
    }
}

#[test]
fn what_does_not_finish_in_time_goes_back() {
    let mut busy = Busy::start("no-time", &["--shutdown", "100ms"]);
    signal(&busy.process, "TERM");
    let (code, value) = busy.end();
    assert_eq!(code, Some(0), "{value} {}", busy.heard);
    assert_eq!(value["consumers"][0]["acknowledged"], 0, "{value}");
    busy.commands_are_gone();
    busy.bed.depth_is("", COUNT);
}

#[test]
fn the_second_signal_ends_commands() {
    let mut busy = Busy::start("second-signal", &["--shutdown", "1d"]);
    signal(&busy.process, "TERM");
    busy.wait_for("stopping: what runs has 1d");
    signal(&busy.process, "INT");
    busy.wait_for("stopping now: what runs is ended");
    let (code, value) = busy.end();
    assert_eq!(code, Some(130), "{value} {}", busy.heard);
    busy.commands_are_gone();
    busy.bed.depth_is("", COUNT);
    assert_eq!(busy.bed.depth(".dead"), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn commands_of_a_killed_consumer_are_ended_before_their_messages_are_handled_again() {
    let mut busy = Busy::start("killed-groups", &[]);
    busy.process.kill().unwrap();
    busy.process.wait().unwrap();
    busy.bed.depth_is("", COUNT);
    let ids = ["run-0", "run-1"].map(|name| std::fs::read_to_string(busy.bed.home.path(name)).unwrap());
    let script = format!(
        "for id in {}; do test -d /proc/$id && ! grep -q 'State:.Z' /proc/$id/status && touch overlap; done; true",
        ids.join(" ").replace('\n', "")
    );
    busy.bed.drain(&["--exec", "sh", "-c", &script]);
    assert!(!busy.bed.home.path("overlap").exists());
}

#[test]
fn killed_at_any_moment_it_loses_none() {
    let mut busy = Busy::start("killed", &[]);
    busy.process.kill().unwrap();
    busy.process.wait().unwrap();
    busy.go();
    busy.bed.depth_is("", COUNT);
    let stats = busy.bed.drain(&["--exec", "true"]);
    assert_eq!(stats["acknowledged"], json!(COUNT), "{stats}");
}

#[test]
fn after_a_time_it_ends_by_itself() {
    let bed = Bed::new("for");
    let said = bed.run(&["consume", &bed.queue, "--for", "200ms", "--exec", "true"]);
    said.check("for", 0, "0 messages done in ", "consuming ");
    assert!(said.out.starts_with("CONSUMER "), "{said:?}");
}

#[test]
fn metrics_are_served_while_it_works() {
    use std::io::Write;
    let mut busy = Busy::start("metrics", &["--metrics", "127.0.0.1:0"]);
    busy.wait_for("metrics are at http://");
    busy.wait_for("/metrics\n");
    let address = busy.heard.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let ask = |request: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let queue = busy.bed.queue.clone();
    busy.bed.until("two in flight", || {
        let answer = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        answer.contains(&format!("gristmill_amqp_in_flight{{consumer=\"{queue}\",queue=\"{queue}\"}}"))
            && answer.contains("gristmill_amqp_connected 1")
    });
    assert!(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    busy.go();
    signal(&busy.process, "TERM");
    assert_eq!(busy.end().0, Some(0));
}

/// The address of the metrics, and an answer from there.
fn metrics_of(busy: &mut Busy) -> String {
    busy.wait_for("metrics are at http://");
    busy.wait_for("/metrics\n");
    busy.heard.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned()
}

fn ask_for_metrics(address: &str) -> String {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn idle_connections_do_not_block_the_metrics() {
    let mut busy = Busy::start("idle-metrics", &["--metrics", "127.0.0.1:0"]);
    let address = metrics_of(&mut busy);
    let is_open = |mut stream: &std::net::TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).is_err()
    };
    // Each is closed after a time anyway, which can pass before the answer on a slow machine: then once more.
    busy.bed.until("an answer that did not wait until those before it were closed: many are open", || {
        let idle: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
        assert!(ask_for_metrics(&address).contains("gristmill_amqp_connected 1"));
        idle.iter().filter(|stream| is_open(stream)).count() > 30
    });
    busy.go();
    signal(&busy.process, "TERM");
    assert_eq!(busy.end().0, Some(0));
}

#[test]
fn timeouts_of_commands_and_requests_are_counted() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    for action in [&["--exec", "sleep", "600"][..], &["--http", &url]] {
        let bed = Bed::new("timeouts");
        bed.publish(["a"]);
        let process = Process::consume(&bed, &[&["--timeout", "200ms", "--attempts", "1"], action].concat());
        bed.until("a dead letter or a pause", || {
            bed.depth(".dead") == Some(1) || process.log().contains("consuming is paused")
        });
        let (said, _) = process.end();
        let stats = &said.json()["consumers"][0];
        assert!(stats["timed_out"].as_u64().unwrap() >= 1, "{action:?}: {said:?}");
    }
}
