//! The worker as a process: it does the work, and ends when it is told to.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use common::{Home, shape_is_held};
use serde_json::{Value, json};

#[test]
fn once_does_what_is_due_and_ends() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--", "echo", "hello"], 0, "task 1", "");
    home.check(&["enqueue", "exec", "--", "sh", "-c", "exit 64"], 0, "task 2", "");
    home.check(&["enqueue", "exec", "--run-after", "1h", "--", "true"], 0, "task 3", "");
    let summary = home.json(&["worker", "--once"]);
    shape_is_held("worker", &summary);
    assert_eq!((&summary["completed"], &summary["buried"]), (&json!(1), &json!(1)));
    assert_eq!(home.json(&["jobs", "show", "1"])["result"]["stdout"], "hello\n");
    assert_eq!(home.json(&["jobs", "show", "2"])["status"], "failed");
    assert_eq!(home.json(&["jobs", "show", "3"])["status"], "scheduled");
    home.check(&["worker", "--once", "--quiet"], 0, "0 tasks done\n", "");
}

#[test]
fn a_worker_serves_its_queues_only() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--queue", "a", "--", "true"], 0, "task 1", "");
    home.check(&["enqueue", "exec", "--queue", "b", "--", "true"], 0, "task 2", "");
    home.check(&["worker", "--once", "--queue", "b", "--queue", "c"], 0, "1 task done", "serves b, c of");
    assert_eq!(home.json(&["jobs", "show", "1"])["status"], "pending");
    home.check(&["worker", "--once", "--queue", ""], 1, "", "worker.queues is [\"\"] (--queue)");
}

/// A worker with a command in its hands that ends when the test does.
struct Busy {
    home: Home,
    worker: Child,
    said: BufReader<std::process::ChildStderr>,
    _pipe: File,
}

impl Busy {
    fn start(words: &[&str], shutdown: &str) -> Self {
        let home = Home::new();
        assert!(Command::new("mkfifo").arg(home.path("pipe")).status().unwrap().success());
        home.check(&["enqueue", "exec", "--", "cat", "pipe"], 0, "task 1", "");
        let mut command = home.command(&[&["worker", "--json"], words].concat());
        command.env("GRISTMILL_WORKER_SHUTDOWN", shutdown).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut worker = command.spawn().unwrap();
        let said = BufReader::new(worker.stderr.take().unwrap());
        // Opens when somebody opens the other end: the command has started.
        let pipe = File::options().write(true).open(home.path("pipe")).unwrap();
        Busy { home, worker, said, _pipe: pipe }
    }

    fn signal(&self, name: &str) {
        let id = self.worker.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    fn wait_for(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it never said {words:?}");
        }
    }

    fn end(&mut self) -> (Option<i32>, String) {
        let mut out = String::new();
        self.worker.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (self.worker.wait().unwrap().code(), out)
    }

    fn task(&self) -> Value {
        self.home.json(&["jobs", "show", "1"])
    }
}

#[test]
fn the_first_signal_has_it_stop_in_order() {
    for (words, code) in [(&[][..], 0), (&["--once"], 130)] {
        for signal in ["INT", "TERM"] {
            let mut busy = Busy::start(words, "0s");
            busy.signal(signal);
            busy.wait_for("stopping: what runs has 0s");
            let (found, out) = busy.end();
            assert_eq!(found, Some(code), "{words:?} {signal}: {out}");
            let summary: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(summary["released"], 1, "{summary}");
            let task = busy.task();
            assert_eq!((&task["status"], &task["attempts"]), (&json!("pending"), &json!(0)), "{task}");
        }
    }
}

#[test]
fn the_second_signal_ends_it_at_once() {
    let mut busy = Busy::start(&[], "1d");
    busy.signal("TERM");
    busy.wait_for("stopping: what runs has 1d");
    busy.signal("INT");
    assert_eq!(busy.end(), (Some(130), String::new()));
    // The lease is what frees it, as after any other sudden death.
    assert_eq!(busy.task()["status"], "running");
}
