//! The worker as a process: it does the work, and ends when it is told to.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
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
    home.check(&["worker", "--once"], 0, "0 tasks done\n", "serves");
}

#[test]
fn once_says_what_it_left() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--", "true"], 0, "task 1", "");
    home.feed(&["enqueue", "square", "--lines", "-"], b"1\n2\n").check("lines", 0, "2 tasks queued", "");
    home.check(&["enqueue", "cube", "--payload", "1"], 0, "task 4", "");
    home.check(&["enqueue", "cube", "--payload", "1", "--queue", "elsewhere"], 0, "task 5", "");
    home.check(&["enqueue", "cube", "--payload", "1", "--run-after", "1h"], 0, "task 6", "");
    let expected = "left in the queue: 3 due tasks that this worker has no handler for (1 of kind cube, 2 of kind \
                    square)\n";
    home.check(&["worker", "--once"], 0, "1 task done", expected);
    assert_eq!(home.json(&["worker", "--once"])["left"], json!({"cube": 1, "square": 2}));
    assert_eq!(home.json(&["worker", "--once", "--queue", "empty"])["left"], json!({}));
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
    pipe: File,
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
        Busy { home, worker, said, pipe }
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

    /// Nobody reads what is written to it any more.
    fn command_is_gone(&mut self) {
        let written = self.pipe.write(b"x").map_err(|error| error.kind());
        assert_eq!(written, Err(ErrorKind::BrokenPipe));
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
fn the_second_signal_ends_commands_and_gives_tasks_back() {
    for words in [&[][..], &["--once"]] {
        let mut busy = Busy::start(words, "1d");
        busy.signal("TERM");
        busy.wait_for("stopping: what runs has 1d; once more ends it within a second");
        busy.signal("INT");
        busy.wait_for("stopping now: commands are ended and their tasks go back to the queue");
        let (code, out) = busy.end();
        assert_eq!(code, Some(130), "{words:?}: {out}");
        let summary: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&summary["released"], &summary["unfinished"]), (&json!(1), &json!(0)), "{summary}");
        let task = busy.task();
        assert_eq!((&task["status"], &task["attempts"]), (&json!("pending"), &json!(0)), "{task}");
        busy.command_is_gone();
    }
}

#[test]
fn the_third_signal_ends_it_at_once() {
    let mut busy = Busy::start(&[], "1d");
    busy.signal("TERM");
    busy.wait_for("stopping: what runs has 1d");
    // At one go: there is but a second between the two.
    let kill = format!("kill -s INT {0}; kill -s TERM {0}", busy.worker.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    assert_eq!(busy.end(), (Some(130), String::new()));
    // The lease is what frees it, as after any other sudden death.
    assert_eq!(busy.task()["status"], "running");
}

#[test]
fn how_far_it_has_come_is_told_to_those_who_want_to_know() {
    let mut busy = Busy::start(&["--once", "-v"], "0s");
    busy.wait_for("0 tasks done, 1 running, 0 failed\n");
    busy.signal("INT");
    assert_eq!(busy.end().0, Some(130));
}

#[test]
fn a_task_that_runs_is_called_off_by_its_worker() {
    let mut busy = Busy::start(&[], "1d");
    let said = "task 1 is cancelled; its worker stops it at its next heartbeat, within 30s";
    busy.home.check(&["jobs", "cancel", "1"], 0, said, "");
    busy.signal("TERM");
    busy.wait_for("stopping");
    busy.signal("TERM");
    assert_eq!(busy.end().0, Some(130));
    assert_eq!(busy.task()["status"], "cancelled");
}
