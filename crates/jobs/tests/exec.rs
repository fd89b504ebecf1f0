//! Commands as durable tasks: their outcomes, the stored output, and that no command is left running.
#![cfg(unix)]

use std::path::Path;
use std::time::Duration;

use gristmill_jobs::exec::{self, Command, ExecSettings};
use gristmill_jobs::{Runner, RunnerHandle};
use gristmill_pool::Retry;
use gristmill_store::tasks::{NewTask, TaskRow, TaskStatus};
use gristmill_store::{Durability, Store};
use serde_json::Value;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

struct Fixture {
    folder: TempDir,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.db");
        let store = Store::options().durability(Durability::Normal).open(path).unwrap();
        Fixture { folder, store }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn enqueue(&self, command: &Command) -> i64 {
        let payload = serde_json::to_string(command).unwrap();
        self.store.tasks().enqueue(NewTask::new(exec::KIND, payload)).unwrap().id
    }

    fn start(&self, settings: ExecSettings) -> RunnerHandle {
        Runner::builder(self.store.clone()).kind(exec::kind(settings)).start().unwrap()
    }
}

fn command(args: &[&str]) -> Command {
    Command { argv: args.iter().map(|arg| (*arg).to_owned()).collect(), ..Command::default() }
}

fn shell(script: &str) -> Command {
    command(&["sh", "-c", script])
}

fn once() -> ExecSettings {
    ExecSettings { retry: Retry::linear(1, Duration::ZERO), ..ExecSettings::default() }
}

/// Runs one attempt of a command.
fn run(fixture: &Fixture, command: &Command, settings: ExecSettings) -> TaskRow {
    let id = fixture.enqueue(command);
    let running = fixture.start(settings);
    running.wait_no_due_tasks().unwrap();
    running.stop(LONG).unwrap();
    fixture.store.tasks().get(id).unwrap()
}

fn result(task: &TaskRow) -> Value {
    serde_json::from_str(task.result.as_deref().unwrap()).unwrap()
}

#[test]
fn invalid_command_becomes_a_dead_letter_that_names_the_field() {
    let fixture = Fixture::new();
    let env = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let cases = [
        (command(&["echo", "a\0b"]), "argv[1] has a NUL character"),
        (command(&["ec\0ho"]), "argv[0] has a NUL character"),
        (Command { cwd: Some("/tm\0p".into()), ..command(&["echo"]) }, "cwd has a NUL character"),
        (Command { env: env("A", "b\0c"), ..command(&["echo"]) }, "env.\"A\" has a NUL character"),
        (Command { env: env("A=B", "c"), ..command(&["echo"]) }, "env has the name \"A=B\""),
        (Command { timeout_seconds: Some(0.0), ..command(&["echo"]) }, "timeout_seconds is 0;"),
        (Command { timeout_seconds: Some(-1.5), ..command(&["echo"]) }, "timeout_seconds is -1.5;"),
        (Command { timeout_seconds: Some(1e300), ..command(&["echo"]) }, "timeout_seconds is 1"),
    ];
    for (command, reason) in cases {
        assert!(command.check().unwrap_err().contains(reason), "{:?}", command.check());
        let task = run(&fixture, &command, ExecSettings::default());
        assert_eq!((task.status, task.attempts), (TaskStatus::Failed, 1), "{command:?}");
        assert!(task.error_message.as_deref().unwrap().contains(reason), "{:?}", task.error_message);
    }
}

#[test]
fn result_has_the_output_and_the_exit_code() {
    let task = run(&Fixture::new(), &shell("echo out; echo err >&2"), once());
    assert_eq!(task.status, TaskStatus::Completed);
    let result = result(&task);
    assert_eq!(
        (&result["exit_code"], &result["stdout"], &result["stderr"]),
        (&0.into(), &"out\n".into(), &"err\n".into())
    );
}

#[test]
fn arguments_are_passed_unchanged_without_a_shell() {
    let args = ["printf", "%s|", "a b", "$HOME", "; echo x", "*", "é\n"];
    let task = run(&Fixture::new(), &command(&args), once());
    assert_eq!(result(&task)["stdout"], "a b|$HOME|; echo x|*|é\n|");
}

#[test]
fn command_gets_cwd_env_and_stdin_from_its_payload() {
    let fixture = Fixture::new();
    let mut command = shell("pwd; echo $COLOR $GRISTMILL_TASK_ID $GRISTMILL_ATTEMPT; cat");
    command.cwd = Some(fixture.folder.path().to_path_buf());
    command.env.insert("COLOR".to_owned(), "blue".to_owned());
    command.stdin = Some("input".to_owned());
    let task = run(&fixture, &command, once());
    let folder = fixture.folder.path().canonicalize().unwrap();
    assert_eq!(result(&task)["stdout"], format!("{}\nblue 1 1\ninput", folder.display()));
}

#[test]
fn command_that_does_not_read_its_stdin_is_completed() {
    let mut command = command(&["true"]);
    command.stdin = Some("x".repeat(1 << 20));
    assert_eq!(run(&Fixture::new(), &command, once()).status, TaskStatus::Completed);
}

#[test]
fn long_output_is_cut_in_the_middle() {
    let settings = ExecSettings { max_output: 10, ..once() };
    let task = run(&Fixture::new(), &shell("printf abcdefghijklmnopqrstuvwxyz"), settings);
    assert_eq!(result(&task)["stdout"], "abcde\n[... 16 bytes left out ...]\nvwxyz");
}

#[test]
fn task_is_completed_while_a_child_of_the_command_holds_its_output_open() {
    let fixture = Fixture::new();
    let fifo = fixture.path("end");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // The child reads from the pipe until the test writes to it.
    let task = run(&fixture, &shell(&format!("echo here; cat {fifo} & exit 0")), once());
    assert_eq!((task.status, &result(&task)["stdout"]), (TaskStatus::Completed, &"here\n".into()));
    std::fs::write(&fifo, "").unwrap();
}

/// Runs the first of two attempts of a command that fails, and checks the task's status and error.
#[track_caller]
fn check_failure(command: &Command, expected: TaskStatus, reason: &str) {
    let fixture = Fixture::new();
    let retry = Retry::linear(2, LONG).without_jitter();
    let task = run(&fixture, command, ExecSettings { retry, ..ExecSettings::default() });
    assert_eq!(task.status, expected, "{task:?}");
    let message = task.error_message.unwrap_or_default();
    assert!(message.contains(reason), "{message:?} has no {reason:?}");
}

#[test]
fn exit_code_decides_between_retry_and_dead_letter() {
    check_failure(&shell("exit 1"), TaskStatus::Scheduled, "exit status 1");
    check_failure(&shell("exit 75"), TaskStatus::Scheduled, "exit status 75");
    check_failure(&shell("exit 64"), TaskStatus::Failed, "exit status 64");
    check_failure(&shell("exit 127"), TaskStatus::Failed, "exit status 127");
    check_failure(&shell("kill -9 $$"), TaskStatus::Scheduled, "signal: 9");
    for code in [1, 75, 126] {
        let listed = Command { permanent: vec![code], transient: vec![code], ..shell(&format!("exit {code}")) };
        check_failure(&listed, TaskStatus::Failed, &format!("exit status {code}"));
    }
    for code in [0, 64, 127] {
        let listed = Command { transient: vec![code], ..shell(&format!("exit {code}")) };
        check_failure(&listed, TaskStatus::Scheduled, &format!("exit status {code}"));
    }
}

#[test]
fn command_that_cannot_be_started_is_a_permanent_error() {
    check_failure(&command(&["/no/such/program"]), TaskStatus::Failed, "\"/no/such/program\"");
    check_failure(&command(&["/"]), TaskStatus::Failed, "cannot run \"/\"");
    check_failure(&command(&[]), TaskStatus::Failed, "argv is empty");
    let missing_cwd = Command { cwd: Some("/no/such/folder".into()), ..command(&["true"]) };
    check_failure(&missing_cwd, TaskStatus::Failed, "no such folder");
    let negative_timeout = Command { timeout_seconds: Some(-1.0), ..command(&["true"]) };
    check_failure(&negative_timeout, TaskStatus::Failed, "timeout_seconds is -1");
}

#[test]
fn payload_with_an_unknown_field_is_refused() {
    let fixture = Fixture::new();
    let payload = r#"{"argv": ["true"], "timeuot_seconds": 3}"#;
    let id = fixture.store.tasks().enqueue(NewTask::new(exec::KIND, payload)).unwrap().id;
    let running = fixture.start(once());
    running.wait_idle().unwrap();
    let message = fixture.store.tasks().get(id).unwrap().error_message.unwrap();
    assert!(message.contains("timeuot_seconds"), "{message}");
}

#[test]
fn dead_letter_has_the_output_of_the_command() {
    let fixture = Fixture::new();
    run(&fixture, &shell("echo so far; echo no disk >&2; exit 70"), once());
    let dead_letter = fixture.store.dead_letters().get(1).unwrap();
    assert_eq!(dead_letter.failure_reason, "exit status 70");
    let details = dead_letter.error_details.unwrap();
    assert!(details.contains("--- stderr\nno disk") && details.contains("--- stdout\nso far"), "{details}");
}

/// Whether a process exists and is not a zombie.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

#[cfg(target_os = "linux")]
#[test]
fn command_that_exceeds_its_timeout_is_killed_with_its_children() {
    let fixture = Fixture::new();
    let script = format!("cat {0} & echo $! > {1}; wait", fixture.path("fifo"), fixture.path("pid"));
    assert!(std::process::Command::new("mkfifo").arg(fixture.path("fifo")).status().unwrap().success());
    let command = Command { timeout_seconds: Some(0.3), ..shell(&script) };
    let task = run(&fixture, &command, once());
    assert_eq!(task.status, TaskStatus::Failed);
    assert!(task.error_message.unwrap().contains("took longer than 300ms"));
    let child = std::fs::read_to_string(fixture.path("pid")).unwrap();
    while is_alive(child.trim()) {
        std::thread::yield_now();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn stop_terminates_the_command_and_releases_the_task() {
    let fixture = Fixture::new();
    let fifo = fixture.path("started");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let id = fixture.enqueue(&shell(&format!("echo $$ > {fifo}; exec sleep 600")));
    let running = fixture.start(once());
    let pid = std::fs::read_to_string(&fifo).unwrap();
    running.stop(Duration::from_millis(300)).unwrap();
    let task = fixture.store.tasks().get(id).unwrap();
    assert_eq!((task.status, task.attempts), (TaskStatus::Pending, 0));
    while is_alive(pid.trim()) {
        std::thread::yield_now();
    }
}
