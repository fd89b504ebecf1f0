//! Commands as durable tasks: what their ends mean, what is kept of them, and that none is left behind.
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

struct House {
    folder: TempDir,
    store: Store,
}

impl House {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.db");
        let store = Store::options().durability(Durability::Normal).open(path).unwrap();
        House { folder, store }
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

fn command(words: &[&str]) -> Command {
    Command { argv: words.iter().map(|word| (*word).to_owned()).collect(), ..Command::default() }
}

fn shell(script: &str) -> Command {
    command(&["sh", "-c", script])
}

fn once() -> ExecSettings {
    ExecSettings { retry: Retry::linear(1, Duration::ZERO), ..ExecSettings::default() }
}

/// Runs one command to its end.
fn run(house: &House, command: &Command, settings: ExecSettings) -> TaskRow {
    let id = house.enqueue(command);
    let running = house.start(settings);
    running.wait_no_due_tasks().unwrap();
    running.stop(LONG).unwrap();
    house.store.tasks().get(id).unwrap()
}

fn kept(task: &TaskRow) -> Value {
    serde_json::from_str(task.result.as_deref().unwrap()).unwrap()
}

/// None of them can ever be started; each becomes a dead letter that names the field.
#[test]
fn a_command_with_nul_or_without_time_is_a_dead_letter_that_names_the_field() {
    let house = House::new();
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
        let task = run(&house, &command, ExecSettings::default());
        assert_eq!((task.status, task.attempts), (TaskStatus::Failed, 1), "{command:?}");
        assert!(task.error_message.as_deref().unwrap().contains(reason), "{:?}", task.error_message);
    }
}

#[test]
fn output_and_exit_code_are_kept() {
    let task = run(&House::new(), &shell("echo out; echo err >&2"), once());
    assert_eq!(task.status, TaskStatus::Completed);
    let kept = kept(&task);
    assert_eq!(
        (&kept["exit_code"], &kept["stdout"], &kept["stderr"]),
        (&0.into(), &"out\n".into(), &"err\n".into())
    );
}

#[test]
fn words_are_words_whatever_is_in_them() {
    let words = ["printf", "%s|", "a b", "$HOME", "; echo x", "*", "é\n"];
    let task = run(&House::new(), &command(&words), once());
    assert_eq!(kept(&task)["stdout"], "a b|$HOME|; echo x|*|é\n|");
}

#[test]
fn folder_variables_and_input_are_the_payloads() {
    let house = House::new();
    let mut asked = shell("pwd; echo $GRIST $GRISTMILL_TASK_ID $GRISTMILL_ATTEMPT; cat");
    asked.cwd = Some(house.folder.path().to_path_buf());
    asked.env.insert("GRIST".to_owned(), "corn".to_owned());
    asked.stdin = Some("flour".to_owned());
    let task = run(&house, &asked, once());
    let folder = house.folder.path().canonicalize().unwrap();
    assert_eq!(kept(&task)["stdout"], format!("{}\ncorn 1 1\nflour", folder.display()));
}

#[test]
fn a_command_that_reads_nothing_is_not_waited_for() {
    let mut asked = command(&["true"]);
    asked.stdin = Some("x".repeat(1 << 20));
    assert_eq!(run(&House::new(), &asked, once()).status, TaskStatus::Completed);
}

#[test]
fn long_output_is_cut_in_the_middle() {
    let settings = ExecSettings { max_output: 10, ..once() };
    let task = run(&House::new(), &shell("printf abcdefghijklmnopqrstuvwxyz"), settings);
    assert_eq!(kept(&task)["stdout"], "abcde\n[... 16 bytes left out ...]\nvwxyz");
}

#[test]
fn a_child_that_holds_the_output_open_does_not_hold_up_the_task() {
    let house = House::new();
    let fifo = house.path("end");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // The child reads from the pipe until we let it go.
    let task = run(&house, &shell(&format!("echo here; cat {fifo} & exit 0")), once());
    assert_eq!((task.status, &kept(&task)["stdout"]), (TaskStatus::Completed, &"here\n".into()));
    std::fs::write(&fifo, "").unwrap();
}

/// Runs a command that fails, with two attempts, and checks what became of it.
#[track_caller]
fn check_failure(asked: &Command, expected: TaskStatus, reason: &str) {
    let house = House::new();
    let retry = Retry::linear(2, LONG).without_jitter();
    let task = run(&house, asked, ExecSettings { retry, ..ExecSettings::default() });
    assert_eq!(task.status, expected, "{task:?}");
    let message = task.error_message.unwrap_or_default();
    assert!(message.contains(reason), "{message:?} has no {reason:?}");
}

#[test]
fn exit_codes_decide_by_rule() {
    check_failure(&shell("exit 1"), TaskStatus::Scheduled, "exit code 1");
    check_failure(&shell("exit 75"), TaskStatus::Scheduled, "exit code 75");
    check_failure(&shell("exit 64"), TaskStatus::Failed, "exit code 64");
    check_failure(&shell("exit 127"), TaskStatus::Failed, "exit code 127");
    check_failure(&shell("kill -9 $$"), TaskStatus::Scheduled, "signal: 9");
    let permanent = Command { permanent: vec![1], ..shell("exit 1") };
    check_failure(&permanent, TaskStatus::Failed, "exit code 1");
    let transient = Command { transient: vec![64], ..shell("exit 64") };
    check_failure(&transient, TaskStatus::Scheduled, "exit code 64");
}

#[test]
fn what_cannot_be_run_at_all_is_permanent() {
    check_failure(&command(&["/no/such/program"]), TaskStatus::Failed, "\"/no/such/program\"");
    check_failure(&command(&["/"]), TaskStatus::Failed, "cannot run \"/\"");
    check_failure(&command(&[]), TaskStatus::Failed, "argv is empty");
    let nowhere = Command { cwd: Some("/no/such/folder".into()), ..command(&["true"]) };
    check_failure(&nowhere, TaskStatus::Failed, "there is no such folder");
    let never = Command { timeout_seconds: Some(-1.0), ..command(&["true"]) };
    check_failure(&never, TaskStatus::Failed, "timeout_seconds is -1");
}

#[test]
fn a_payload_with_an_unknown_word_is_refused() {
    let house = House::new();
    let payload = r#"{"argv": ["true"], "timeuot_seconds": 3}"#;
    let id = house.store.tasks().enqueue(NewTask::new(exec::KIND, payload)).unwrap().id;
    let running = house.start(once());
    running.wait_idle().unwrap();
    let message = house.store.tasks().get(id).unwrap().error_message.unwrap();
    assert!(message.contains("timeuot_seconds"), "{message}");
}

#[test]
fn the_dead_letter_has_what_the_command_said() {
    let house = House::new();
    run(&house, &shell("echo so far; echo no disk >&2; exit 70"), once());
    let letter = house.store.dead_letters().get(1).unwrap();
    assert_eq!(letter.failure_reason, "exit code 70");
    let details = letter.error_details.unwrap();
    assert!(details.contains("--- stderr\nno disk") && details.contains("--- stdout\nso far"), "{details}");
}

/// Whether a process is there and is not a zombie.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_takes_too_long_is_ended_with_its_children() {
    let house = House::new();
    let script = format!("cat {0} & echo $! > {1}; wait", house.path("fifo"), house.path("pid"));
    assert!(std::process::Command::new("mkfifo").arg(house.path("fifo")).status().unwrap().success());
    let asked = Command { timeout_seconds: Some(0.3), ..shell(&script) };
    let task = run(&house, &asked, once());
    assert_eq!(task.status, TaskStatus::Failed);
    assert!(task.error_message.unwrap().contains("took longer than 300ms"));
    let child = std::fs::read_to_string(house.path("pid")).unwrap();
    while lives(child.trim()) {
        std::thread::yield_now();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn stopping_the_worker_ends_the_command_and_frees_the_task() {
    let house = House::new();
    let fifo = house.path("started");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let id = house.enqueue(&shell(&format!("echo $$ > {fifo}; exec sleep 600")));
    let running = house.start(once());
    let pid = std::fs::read_to_string(&fifo).unwrap();
    running.stop(Duration::from_millis(300)).unwrap();
    let task = house.store.tasks().get(id).unwrap();
    assert_eq!((task.status, task.attempts), (TaskStatus::Pending, 0));
    while lives(pid.trim()) {
        std::thread::yield_now();
    }
}
