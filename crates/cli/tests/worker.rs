//! The worker as a process: running tasks, signals, and recovery after a kill.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Home, assert_shape, end_of, signal};
use gristmill_store::Store;
use gristmill_store::jobs::JobKind;
use gristmill_store::lease::WorkerId;
use gristmill_store::tasks::{ClaimRequest, NewTask};
use serde_json::{Value, json};

#[test]
fn once_runs_due_tasks_and_exits() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--", "echo", "hello"], 0, "task 1", "");
    home.check(&["enqueue", "exec", "--", "sh", "-c", "exit 64"], 0, "task 2", "");
    home.check(&["enqueue", "exec", "--run-after", "1h", "--", "true"], 0, "task 3", "");
    let summary = home.json(&["worker", "--once"]);
    assert_shape("worker", &summary);
    assert_eq!((&summary["completed"], &summary["dead_lettered"]), (&json!(1), &json!(1)));
    assert_eq!(home.json(&["jobs", "show", "1"])["result"]["stdout"], "hello\n");
    assert_eq!(home.json(&["jobs", "show", "2"])["status"], "failed");
    assert_eq!(home.json(&["jobs", "show", "3"])["status"], "scheduled");
    home.check(&["worker", "--once"], 0, "0 tasks completed\n", "serves");
}

#[test]
fn job_fails_when_a_root_cannot_be_reached() {
    let home = Home::new();
    home.write("present/one", "same");
    home.write("absent/two", "same");
    assert_eq!(home.run(&["scan", "present", "absent"]).code, Some(0));
    // As when the disk is not mounted.
    std::fs::remove_file(home.path("absent/two")).unwrap();
    for kind in [JobKind::Scan, JobKind::Hash] {
        let store = Store::open(home.database()).unwrap();
        let job = store.jobs().create(kind, "{}", true).unwrap().id;
        drop(store);
        home.run(&["worker", "--once"]);
        let job = home.json(&["jobs", "show", &job]);
        let error = job["error_message"].as_str().unwrap_or_default();
        assert!(job["status"] == "failed" && error.starts_with("1 of 2 roots could not be scanned"), "{job}");
        assert!(error.contains(&home.real("absent")), "{job}");
    }
}

#[test]
fn once_reports_due_tasks_without_a_handler() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--", "true"], 0, "task 1", "");
    home.run_with_input(&["enqueue", "square", "--lines", "-"], b"1\n2\n").check("lines", 0, "queued 2 tasks", "");
    home.check(&["enqueue", "cube", "--payload", "1"], 0, "task 4", "");
    home.check(&["enqueue", "cube", "--payload", "1", "--queue", "elsewhere"], 0, "task 5", "");
    home.check(&["enqueue", "cube", "--payload", "1", "--run-after", "1h"], 0, "task 6", "");
    let expected = "left in the queue: 3 due tasks of kinds that this worker does not handle (1 of kind cube, 2 of kind \
                    square)\n";
    home.check(&["worker", "--once"], 0, "1 task completed", expected);
    assert_eq!(home.json(&["worker", "--once"])["left"], json!({"cube": 1, "square": 2}));
    assert_eq!(home.json(&["worker", "--once", "--queue", "empty"])["left"], json!({}));
}

#[test]
fn once_reports_claims_of_other_workers() {
    let home = Home::new();
    let store = home.store();
    let claim = |worker: &WorkerId, queue: &str| {
        let task = NewTask { queue: queue.into(), ..NewTask::new("exec", r#"{"argv":["true"]}"#) };
        store.tasks().enqueue(task).unwrap();
        let request = ClaimRequest {
            queue: queue.into(),
            kind: "exec".into(),
            limit: 1,
            max_running: None,
            max_crashed_once: usize::MAX,
            max_crashed_often: usize::MAX,
            lease: Duration::from_secs(3_600),
            token: worker.token(),
        };
        store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed.remove(0).id
    };
    // The process of the first worker is unknown; that of the second is this test.
    let (unseen, alive) = (WorkerId::new("elsewhere"), WorkerId::new("here"));
    store.workers().heartbeat(&alive, Duration::from_secs(3_600)).unwrap();
    let until = |id| store.tasks().get(id).unwrap().lease_expires_at.unwrap().to_string();
    claim(&unseen, "default");
    let last = claim(&unseen, "default");
    claim(&alive, "default");
    claim(&unseen, "other");
    let text = home.run(&["worker", "--once"]);
    let expected = format!(
        "0 tasks completed\n1 claimed by other live workers on this machine\n2 claimed by workers that cannot be checked from \
         here (on another machine, or without a heartbeat): their leases expire by {} UTC. When a lease expires, its task \
         becomes due again\n",
        &until(last)[..19]
    );
    text.check("text", 0, &expected, "serves");
    let value = home.json(&["worker", "--once"]);
    let claimed = &value["claimed_by_others"];
    assert_eq!((&claimed["alive"], &claimed["unseen"]), (&json!(1), &json!(2)), "{value}");
    let found = claimed["unseen_until"].as_str().unwrap();
    assert!(found.starts_with(&until(last)[..10]), "{found}");
    let value = home.json(&["worker", "--once", "--queue", "empty"]);
    assert_eq!(value["claimed_by_others"], json!({"alive": 0, "unseen": 0, "unseen_until": null}));
}

#[test]
fn worker_claims_only_from_its_queues() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--queue", "a", "--", "true"], 0, "task 1", "");
    home.check(&["enqueue", "exec", "--queue", "b", "--", "true"], 0, "task 2", "");
    home.check(&["worker", "--once", "--queue", "b", "--queue", "c"], 0, "1 task completed", "serves queues b, c of");
    assert_eq!(home.json(&["jobs", "show", "1"])["status"], "pending");
    home.check(&["worker", "--once", "--queue", ""], 1, "", "worker.queues is [\"\"] (--queue)");
}

/// A worker that runs a command which reads a pipe until the test drops it.
struct BusyWorker {
    home: Home,
    worker: Child,
    stderr: BufReader<std::process::ChildStderr>,
    /// Write end of the pipe that the command reads.
    pipe: Option<File>,
}

impl BusyWorker {
    fn home(command: &[&str]) -> Home {
        let home = Home::new();
        assert!(Command::new("mkfifo").arg(home.path("pipe")).status().unwrap().success());
        home.check(&[&["enqueue", "exec", "--"], command].concat(), 0, "task 1", "");
        home
    }

    fn start(words: &[&str], shutdown: &str) -> Self {
        Self::start_with(&["cat", "pipe"], words, shutdown)
    }

    fn start_with(command: &[&str], words: &[&str], shutdown: &str) -> Self {
        let home = Self::home(command);
        let command = home.with_default_sighup(&home.command(&[&["worker", "--json"], words].concat()));
        Self::spawn(home, command, shutdown)
    }

    /// Starts a worker with SIGHUP ignored, as `nohup` does.
    fn start_ignoring_sighup(shutdown: &str) -> Self {
        let home = Self::home(&["cat", "pipe"]);
        let ignoring = ["-c", "trap '' HUP; exec \"$0\" \"$@\""];
        let command = home.started_by("sh", &ignoring, &home.command(&["worker", "--json"]));
        Self::spawn(home, command, shutdown)
    }

    fn spawn(home: Home, mut command: Command, shutdown: &str) -> Self {
        command.env("GRISTMILL_WORKER_SHUTDOWN", shutdown).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut worker = command.spawn().unwrap();
        let stderr = BufReader::new(worker.stderr.take().unwrap());
        // Opening blocks until the command has opened the read end, so the command has started.
        let pipe = File::options().write(true).open(home.path("pipe")).unwrap();
        BusyWorker { home, worker, stderr, pipe: Some(pipe) }
    }

    fn signal(&self, name: &str) {
        let id = self.worker.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    fn wait_for(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(self.stderr.read_line(&mut line).unwrap() > 0, "the worker never printed {words:?}");
        }
    }

    fn end(&mut self) -> (Option<i32>, String) {
        let mut out = String::new();
        self.worker.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (self.worker.wait().unwrap().code(), out)
    }

    /// Asserts that no process reads the pipe any more.
    fn assert_command_ended(&mut self) {
        let written = self.pipe.as_mut().unwrap().write(b"x").map_err(|error| error.kind());
        assert_eq!(written, Err(ErrorKind::BrokenPipe));
    }

    fn task(&self) -> Value {
        self.home.json(&["jobs", "show", "1"])
    }
}

#[test]
fn first_signal_stops_the_worker_and_releases_its_task() {
    for (words, code) in [(&[][..], 0), (&["--once"], 130)] {
        for signal in ["INT", "TERM", "HUP"] {
            let mut busy = BusyWorker::start(words, "0s");
            busy.signal(signal);
            busy.wait_for("stopping: waiting up to 0s");
            let (found, out) = busy.end();
            assert_eq!(found, Some(code), "{words:?} {signal}: {out}");
            let summary: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(summary["released"], 1, "{summary}");
            let task = busy.task();
            assert_eq!((&task["status"], &task["attempts"]), (&json!("pending"), &json!(0)), "{task}");
        }
    }
}

/// Returns the write end of a pipe that is full, and its read end.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4_096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn signal_after_the_work_has_ended_ends_the_process() {
    for name in ["INT", "TERM", "HUP"] {
        let home = Home::new();
        home.check(&["enqueue", "square", "--payload", "1"], 0, "task 1", "");
        // Writing the summary blocks.
        let (reader, writer) = full_pipe();
        let mut command = home.with_default_sighup(&home.command(&["worker", "--once"]));
        let mut worker = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let mut stderr = BufReader::new(worker.stderr.take().unwrap());
        let mut line = String::new();
        // The supervisor was dropped before this line.
        while !line.contains("left in the queue") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "no task is left");
        }
        signal(&worker, name);
        assert_eq!(end_of(worker).code, Some(130), "{name}");
        drop(reader);
    }
}

#[test]
fn repeated_sighup_does_not_end_a_running_command() {
    let mut busy = BusyWorker::start(&[], "1d");
    // A closed terminal sends it twice: by the kernel and by the shell.
    busy.signal("HUP");
    busy.wait_for("stopping: waiting up to 1d");
    busy.signal("HUP");
    busy.pipe.take().unwrap().write_all(b"done").unwrap();
    assert_eq!(busy.end().0, Some(0));
    assert_eq!(busy.task()["result"]["stdout"], "done");
}

#[test]
fn sighup_that_was_ignored_at_the_start_stays_ignored() {
    let mut busy = BusyWorker::start_ignoring_sighup("1d");
    busy.signal("HUP");
    busy.signal("TERM");
    busy.wait_for("stopping: waiting up to 1d");
    busy.pipe = None;
    // If SIGHUP counted, the second signal would end the command and the exit status would be 130.
    assert_eq!(busy.end().0, Some(0));
    assert_eq!(busy.task()["status"], "completed");
}

#[test]
fn second_signal_ends_commands_and_releases_tasks() {
    for words in [&[][..], &["--once"]] {
        let mut busy = BusyWorker::start(words, "1d");
        busy.signal("TERM");
        busy.wait_for("stopping: waiting up to 1d for running tasks; interrupt again to stop within 1 s");
        busy.signal("INT");
        busy.wait_for("stopping now: running commands are ended and their tasks return to the queue");
        let (code, out) = busy.end();
        assert_eq!(code, Some(130), "{words:?}: {out}");
        let summary: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&summary["released"], &summary["unfinished"]), (&json!(1), &json!(0)), "{summary}");
        let task = busy.task();
        assert_eq!((&task["status"], &task["attempts"]), (&json!("pending"), &json!(0)), "{task}");
        busy.assert_command_ended();
    }
}

#[test]
fn third_signal_exits_at_once() {
    let mut busy = BusyWorker::start(&[], "1d");
    busy.signal("TERM");
    busy.wait_for("stopping: waiting up to 1d");
    // Sent by one shell, because the worker exits a second after the second signal.
    let kill = format!("kill -s INT {0}; kill -s TERM {0}", busy.worker.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    assert_eq!(busy.end(), (Some(130), String::new()));
    // Only the lease releases the task, as after any sudden death.
    assert_eq!(busy.task()["status"], "running");
}

#[test]
fn verbose_worker_prints_its_progress() {
    let mut busy = BusyWorker::start(&["--once", "-v"], "0s");
    busy.wait_for("0 tasks completed, 1 running, 0 failed\n");
    busy.signal("INT");
    assert_eq!(busy.end().0, Some(130));
}

#[test]
fn cancelling_a_running_task_ends_its_command_and_children_and_then_frees_its_key() {
    // The second command ignores SIGTERM.
    for script in ["cat pipe", "trap '' TERM; cat pipe"] {
        let home = Home::new();
        assert!(Command::new("mkfifo").arg(home.path("pipe")).status().unwrap().success());
        let words = ["enqueue", "exec", "--unique-key", "k", "--", "sh", "-c", script];
        home.check(&words, 0, "task 1", "");
        let command = home.command(&["worker", "--json"]);
        let mut busy = BusyWorker::spawn(home, command, "1d");
        busy.home.check(&["jobs", "cancel", "1"], 0, "cancelled task 1; its run has ended\n", "");
        busy.assert_command_ended();
        assert_eq!(busy.task()["status"], "cancelled");
        busy.home.check(&["enqueue", "exec", "--unique-key", "k", "--", "true"], 0, "task 2", "");
        busy.signal("TERM");
        let (code, out) = busy.end();
        let summary: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &summary["cancelled"]), (Some(0), &json!(1)), "{summary}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn cancelling_a_task_of_a_killed_worker_ends_its_command() {
    let mut busy = BusyWorker::start(&[], "1d");
    busy.worker.kill().unwrap();
    busy.worker.wait().unwrap();
    let output = busy.home.run(&["jobs", "cancel", "1"]);
    assert_eq!((output.code, output.out.as_str()), (Some(0), "cancelled task 1; its run has ended\n"));
    assert!(output.err.contains("killing an orphaned command"), "{output:?}");
    busy.assert_command_ended();
    let task = busy.task();
    assert_eq!((&task["status"], &task["crashes"]), (&json!("cancelled"), &json!(0)), "{task}");
}

#[test]
fn commands_do_not_inherit_the_broker_password_or_message_variables() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--", "env"], 0, "task 1", "");
    let asked = r#"{"argv": ["env"], "env": {"GRISTMILL_AMQP_URI": "amqp://asked-for"}}"#;
    home.check(&["enqueue", "exec", "--payload", asked], 0, "task 2", "");
    let mut command = home.command(&["worker", "--once"]);
    command.env("GRISTMILL_AMQP_URI", "amqp://user:secret@localhost").env("KEPT", "yes");
    command.env("GRISTMILL_AMQP_MANAGEMENT", "http://user:secret@localhost").env("GRISTMILL_AMQP_SHUTDOWN", "7s");
    for name in ["GRISTMILL_MESSAGE_ID", "GRISTMILL_ATTEMPT", "GRISTMILL_HEADER_TENANT", "TRACEPARENT"] {
        command.env(name, "of another message");
    }
    assert!(command.output().unwrap().status.success());
    let environment = |id: &str| home.json(&["jobs", "show", id])["result"]["stdout"].as_str().unwrap().to_owned();
    let found = environment("1");
    for kept in ["KEPT=yes", "GRISTMILL_TASK_ID=1", "GRISTMILL_AMQP_SHUTDOWN=7s"] {
        assert!(found.contains(kept), "{found}");
    }
    assert!(!found.contains("secret") && !found.contains("another message"), "{found}");
    assert!(environment("2").contains("GRISTMILL_AMQP_URI=amqp://asked-for"), "a task may set the variable itself");
}

#[test]
fn worker_exits_with_an_error_when_its_database_is_deleted_or_replaced() {
    for (what, words) in [("deleted", "was deleted or moved away"), ("replaced", "was replaced by another file")] {
        // A command that ignores SIGTERM is ended too.
        let mut busy = BusyWorker::start_with(&["sh", "-c", "trap '' TERM; cat pipe"], &[], "1d");
        let database = busy.home.database();
        if what == "replaced" {
            let other = Home::new();
            other.check(&["enqueue", "exec", "--", "true"], 0, "task 1", "");
            std::fs::rename(other.database(), &database).unwrap();
        } else {
            std::fs::remove_file(&database).unwrap();
        }
        let (code, out) = busy.end();
        let mut output = String::new();
        busy.stderr.read_to_string(&mut output).unwrap();
        assert_eq!((code, out.as_str()), (Some(2), ""), "{what}: {output}");
        assert!(output.contains(words) && output.contains("start again"), "{what}: {output}");
        busy.assert_command_ended();
        busy.home.check(
            &["enqueue", "exec", "--", "true"],
            0,
            if what == "replaced" { "task 2" } else { "task 1" },
            "",
        );
        assert_eq!(busy.task()["status"], "pending", "{what}: the new database contains nothing of the old one");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn command_of_a_killed_worker_is_ended_before_its_task_runs_again() {
    check_that_runs_do_not_overlap(|home| home.database());
}

#[test]
fn command_of_a_killed_worker_with_a_linked_database_is_ended() {
    check_that_runs_do_not_overlap(|home| {
        let link = home.path("link.db");
        std::os::unix::fs::symlink(home.database(), &link).unwrap();
        link
    });
}

/// `database` returns the path by which the first worker opens the database.
fn check_that_runs_do_not_overlap(database: impl Fn(&Home) -> PathBuf) {
    let home = Home::new();
    assert!(Command::new("mkfifo").arg(home.path("pipe")).status().unwrap().success());
    // The second run checks whether processes of the first one are alive.
    let script = "alive() { test -d /proc/$1 && ! grep -q 'State:.Z' /proc/$1/status; }
        if test -e leader; then alive $(cat leader) && echo overlap; alive $(cat child) && echo overlap; exit 0; fi
        sleep 600 & echo $! > child; echo $$ > leader; cat pipe";
    home.check(&["enqueue", "exec", "--", "sh", "-c", script], 0, "task 1", "");
    let mut command = home.command(&["worker"]);
    let mut worker = command
        .env("GRISTMILL_WORKER_LEASE", "100ms")
        .env("GRISTMILL_DB", database(&home))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pipe = File::options().write(true).open(home.path("pipe")).unwrap();
    worker.kill().unwrap();
    worker.wait().unwrap();
    while home.json(&["jobs", "show", "1"])["status"] != "completed" {
        assert_eq!(home.run(&["worker", "--once"]).code, Some(0));
    }
    let task = home.json(&["jobs", "show", "1"]);
    assert_eq!((&task["result"]["stdout"], &task["crashes"]), (&json!(""), &json!(1)), "{task}");
    drop(pipe);
    let mut left = std::fs::read_dir(home.database().parent().unwrap()).unwrap();
    assert!(left.all(|entry| !entry.unwrap().file_name().to_string_lossy().contains("commands")));
}

#[test]
fn doctor_ends_the_command_of_a_killed_worker_before_it_releases_the_task() {
    let mut busy = BusyWorker::start_with(&["cat", "pipe"], &[], "1d");
    busy.worker.kill().unwrap();
    busy.worker.wait().unwrap();
    let found = busy.home.run(&["doctor", "--json"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(found.out.contains("held by a worker that has exited or stopped renewing its lease"), "{found:?}");
    let repaired = busy.home.run(&["doctor", "--repair"]);
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    let mut pipe = busy.pipe.take().unwrap();
    let written = std::io::Write::write(&mut pipe, b"x");
    assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    assert_eq!(busy.task()["status"], "pending");
}

/// Script that prints the number of its start. The first start then reads the pipe.
const WHICH_START: &str = "echo $GRISTMILL_ATTEMPT $GRISTMILL_REDELIVERED; test $GRISTMILL_ATTEMPT != 1 || cat pipe";

#[test]
fn once_runs_the_tasks_of_a_killed_worker_without_waiting_for_their_lease() {
    let mut busy = BusyWorker::start_with(&["sh", "-c", WHICH_START], &[], "1d");
    busy.worker.kill().unwrap();
    busy.worker.wait().unwrap();
    drop(busy.pipe.take());
    let summary = busy.home.json(&["worker", "--once"]);
    assert_eq!(summary["completed"], 1, "{summary}");
    let task = busy.task();
    assert_eq!((&task["status"], &task["starts"], &task["crashes"]), (&"completed".into(), &2.into(), &1.into()));
    assert_eq!(task["result"]["stdout"], "2 1\n", "GRISTMILL_ATTEMPT, GRISTMILL_REDELIVERED");
}

#[test]
fn recover_releases_tasks_of_a_killed_worker_before_their_lease_expires() {
    let mut busy = BusyWorker::start_with(&["sh", "-c", WHICH_START], &[], "1d");
    assert_eq!(busy.home.json(&["jobs", "recover"])["tasks"], 0);
    busy.worker.kill().unwrap();
    busy.worker.wait().unwrap();
    assert_eq!(busy.home.json(&["jobs", "recover"])["tasks"], 1);
    assert_eq!(busy.task()["status"], "pending");
}

#[test]
fn first_start_of_a_command_is_no_redelivery() {
    let home = Home::new();
    home.check(
        &["enqueue", "exec", "--", "sh", "-c", "echo $GRISTMILL_ATTEMPT $GRISTMILL_REDELIVERED"],
        0,
        "task 1",
        "",
    );
    home.json(&["worker", "--once"]);
    assert_eq!(home.json(&["jobs", "show", "1"])["result"]["stdout"], "1 0\n");
}

#[test]
fn metrics_are_served_while_tasks_run() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--", "true"], 0, "task 1", "");
    let mut command = home.command(&["worker", "--metrics", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains("serving metrics at")).unwrap();
    let address = line.split("http://").nth(1).unwrap().strip_suffix("/metrics").unwrap();
    let get = || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let completed = "gristmill_worker_tasks_total{kind=\"exec\",outcome=\"completed\"} 1\n";
    assert!(common::becomes_true(|| get().contains(completed)), "{}", get());
    let counted = "gristmill_tasks{queue=\"default\",kind=\"exec\",status=\"completed\"} 1\n";
    assert!(common::becomes_true(|| get().contains(counted)), "{}", get());
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
