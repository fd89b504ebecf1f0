//! Signals, time limits, kills and metrics of running consumers.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::{Value, json};

use crate::common::signal;
use crate::consumer_process::ConsumerProcess;
use crate::fixture::{Fixture, broker};

/// Consumer with two running commands, which end when the test creates the file `go`.
struct BusyConsumer {
    fixture: Fixture,
    process: Child,
    stderr: BufReader<ChildStderr>,
    stderr_text: String,
}

const COUNT: u32 = 20;

/// Returns the process ids of commands that were started.
fn command_ids(fixture: &Fixture) -> Vec<String> {
    let files = std::fs::read_dir(fixture.home.path(".")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_prefix("run-").map(str::to_owned)).collect()
}

impl BusyConsumer {
    /// Starts the consumer: two commands run, the other messages wait.
    fn start(what: &str, words: &[&str]) -> Self {
        Self::start_with(what, words, "")
    }

    /// Starts the consumer with commands that begin with these shell commands.
    fn start_with(what: &str, words: &[&str], prelude: &str) -> Self {
        let fixture = Fixture::new(what);
        fixture.publish((0..COUNT).map(|number| number.to_string()));
        // Creates a file when it runs, and ends when the file `go` exists.
        let script = format!("{prelude} cat > new-$$; mv new-$$ run-$$; until test -e go; do sleep 0.02; done");
        let fixed = ["consume", &fixture.queue, "--json", "--workers", "2", "--prefetch", "10"];
        let plain = fixture.command(&[&fixed, words, &["--exec", "sh", "-c", &script]].concat());
        let mut command = fixture.home.with_default_sighup(&plain);
        // Only the end of the consumer ends the commands.
        command.env("GRISTMILL_EXEC_TIMEOUT", "none");
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        fixture.wait_until("two running commands", || command_ids(&fixture).len() == 2);
        BusyConsumer { fixture, process, stderr, stderr_text: String::new() }
    }

    fn wait_for(&mut self, words: &str) {
        while !self.stderr_text.contains(words) {
            assert!(
                self.stderr.read_line(&mut self.stderr_text).unwrap() > 0,
                "never printed {words:?}: {}",
                self.stderr_text
            );
        }
    }

    fn end(&mut self) -> (Option<i32>, Value) {
        let mut out = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.stderr.read_to_string(&mut self.stderr_text).unwrap();
        assert!(!self.stderr_text.contains(broker().password()), "{}", self.stderr_text);
        let value = serde_json::from_str(&out).unwrap_or(Value::Null);
        (self.process.wait().unwrap().code(), value)
    }

    /// Waits until the commands, which were killed, have ended.
    fn check_commands_ended(&self) {
        for id in command_ids(&self.fixture) {
            self.fixture.wait_until("the end of a command", || {
                let alive = Command::new("kill").args(["-s", "0", &id]).stderr(Stdio::null()).status().unwrap();
                !alive.success()
            });
        }
    }

    fn release_commands(&self) {
        self.fixture.home.write("go", "");
    }
}

#[test]
fn first_signal_finishes_running_handlers_and_returns_the_rest() {
    for (words, code) in [(&[][..], 0), (&["--drain"], 130)] {
        for name in ["INT", "TERM", "HUP"] {
            let mut consumer = BusyConsumer::start("first-signal", words);
            signal(&consumer.process, name);
            consumer.wait_for("stopping: waiting up to 30s for running actions; interrupt again to stop within 1 s");
            consumer.release_commands();
            let (found, value) = consumer.end();
            assert_eq!(found, Some(code), "{words:?} {name}: {value} {}", consumer.stderr_text);
            assert_eq!(value["consumers"][0]["acknowledged"], 2, "{value}");
            assert_eq!(value["interrupted"], code == 130);
            consumer.fixture.wait_for_depth("", COUNT - 2);
            assert_eq!(consumer.fixture.depth(".dead"), Some(0));
        }
    }
}

#[test]
fn messages_unfinished_at_shutdown_timeout_return_to_queue() {
    for words in [&[][..], &["--batch", "5", "--linger", "1h"]] {
        let mut consumer = BusyConsumer::start("no-time", &[&["--shutdown", "100ms"], words].concat());
        signal(&consumer.process, "TERM");
        let (code, value) = consumer.end();
        assert_eq!(code, Some(0), "{words:?}: {value} {}", consumer.stderr_text);
        assert_eq!(value["consumers"][0]["acknowledged"], 0, "{words:?}: {value}");
        consumer.check_commands_ended();
        consumer.fixture.wait_for_depth("", COUNT);
    }
}

/// Returns a script that creates the file `overlap` if one of these processes runs.
#[cfg(target_os = "linux")]
fn overlap_script(ids: &[String]) -> String {
    let ids = ids.join(" ");
    format!(
        "for id in {ids}; do test -d /proc/$id && ! grep -q 'State:.Z' /proc/$id/status && touch overlap; done; true"
    )
}

#[cfg(target_os = "linux")]
#[test]
fn commands_of_a_batch_end_before_their_messages_are_redelivered() {
    // They are killed half a second after SIGTERM.
    let words = ["--shutdown", "10s", "--batch", "5", "--linger", "1h"];
    let mut consumer = BusyConsumer::start_with("batch-order", &words, "trap '' TERM;");
    let overlap = overlap_script(&command_ids(&consumer.fixture));
    let script = format!("test $GRISTMILL_REDELIVERED = 0 || {{ {overlap}; touch again-$$; }}");
    let other = ConsumerProcess::consume(&consumer.fixture, &["--exec", "sh", "-c", &script]);
    signal(&consumer.process, "TERM");
    let (code, value) = consumer.end();
    assert_eq!((code, &value["consumers"][0]["acknowledged"]), (Some(0), &json!(0)), "{value}");
    let has_again = |name: &str| name.starts_with("again-");
    consumer.fixture.wait_until("redelivered messages", || {
        let mut files = std::fs::read_dir(consumer.fixture.home.path(".")).unwrap();
        files.any(|file| has_again(&file.unwrap().file_name().into_string().unwrap()))
    });
    assert!(!consumer.fixture.home.path("overlap").exists());
    consumer.fixture.wait_for_depth("", 0);
    other.end();
}

#[test]
fn second_signal_kills_commands() {
    let mut consumer = BusyConsumer::start("second-signal", &["--shutdown", "1d"]);
    signal(&consumer.process, "TERM");
    consumer.wait_for("stopping: waiting up to 1d");
    signal(&consumer.process, "INT");
    consumer.wait_for("stopping now: running actions are cancelled");
    let (code, value) = consumer.end();
    assert_eq!(code, Some(130), "{value} {}", consumer.stderr_text);
    consumer.check_commands_ended();
    consumer.fixture.wait_for_depth("", COUNT);
    assert_eq!(consumer.fixture.depth(".dead"), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn orphaned_commands_are_killed_before_their_messages_run_again() {
    let mut consumer = BusyConsumer::start("killed-groups", &[]);
    consumer.process.kill().unwrap();
    consumer.process.wait().unwrap();
    consumer.fixture.wait_for_depth("", COUNT);
    let script = overlap_script(&command_ids(&consumer.fixture));
    consumer.fixture.drain(&["--exec", "sh", "-c", &script]);
    assert!(!consumer.fixture.home.path("overlap").exists());
}

#[test]
fn killed_consumer_loses_no_message() {
    let mut consumer = BusyConsumer::start("killed", &[]);
    consumer.process.kill().unwrap();
    consumer.process.wait().unwrap();
    consumer.release_commands();
    consumer.fixture.wait_for_depth("", COUNT);
    let stats = consumer.fixture.drain(&["--exec", "true"]);
    assert_eq!(stats["acknowledged"], json!(COUNT), "{stats}");
}

#[test]
fn consume_ends_after_for_duration() {
    let fixture = Fixture::new("for");
    let output = fixture.run(&["consume", &fixture.queue, "--for", "200ms", "--exec", "true"]);
    output.check("for", 0, "0 messages done in ", "consuming ");
    assert!(output.out.starts_with("CONSUMER "), "{output:?}");
}

#[test]
fn metrics_are_served_while_consuming() {
    use std::io::Write;
    let mut consumer = BusyConsumer::start("metrics", &["--metrics", "127.0.0.1:0"]);
    let address = metrics_address(&mut consumer);
    let send = |request: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    };
    let queue = consumer.fixture.queue.clone();
    consumer.fixture.wait_until("two in flight", || {
        let response = send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        response.contains(&format!("gristmill_amqp_in_flight{{consumer=\"{queue}\",queue=\"{queue}\"}}"))
            && response.contains("gristmill_amqp_connected 1")
    });
    assert!(send("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(send("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    consumer.release_commands();
    signal(&consumer.process, "TERM");
    assert_eq!(consumer.end().0, Some(0));
}

/// Returns the address of the metrics.
fn metrics_address(consumer: &mut BusyConsumer) -> String {
    consumer.wait_for("serving metrics at http://");
    consumer.wait_for("/metrics\n");
    consumer.stderr_text.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned()
}

fn get_metrics(address: &str) -> String {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn idle_connections_do_not_block_the_metrics() {
    let mut consumer = BusyConsumer::start("idle-metrics", &["--metrics", "127.0.0.1:0"]);
    let address = metrics_address(&mut consumer);
    let is_open = |mut stream: &std::net::TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).is_err()
    };
    // Each is closed after 5 s anyway, which can pass before the response on a slow machine: then tries again.
    consumer.fixture.wait_until("a response while many idle connections are open", || {
        let idle: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
        assert!(get_metrics(&address).contains("gristmill_amqp_connected 1"));
        idle.iter().filter(|stream| is_open(stream)).count() > 30
    });
    consumer.release_commands();
    signal(&consumer.process, "TERM");
    assert_eq!(consumer.end().0, Some(0));
}

#[test]
fn command_and_request_timeouts_are_counted() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    for action in [&["--exec", "sleep", "600"][..], &["--http", &url]] {
        let fixture = Fixture::new("timeouts");
        fixture.publish(["a"]);
        let process =
            ConsumerProcess::consume(&fixture, &[&["--timeout", "200ms", "--attempts", "1"], action].concat());
        fixture.wait_until("a dead letter or a pause", || {
            fixture.depth(".dead") == Some(1) || process.log().contains("consuming is paused")
        });
        let (output, _) = process.end();
        let stats = &output.json()["consumers"][0];
        assert!(stats["timed_out"].as_u64().unwrap() >= 1, "{action:?}: {output:?}");
    }
}
