//! The runner of commands: each state of a command with the event that ends it, and what is left behind.
#![cfg(unix)]

use std::fs::File;
use std::future::pending;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use gristmill_jobs::ProcessGroups;
use gristmill_jobs::exec::{CommandEnd, CommandError, CommandOutput, CommandRun, ExitClass, OutputLimit};
use tokio::{process::Command, time::sleep};

const LONG: Duration = Duration::from_secs(600);

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn run_of(script: &str) -> CommandRun<'static> {
    CommandRun::new(shell(script), None, None, OutputLimit::last(100))
}

fn groups(folder: &Path) -> ProcessGroups {
    ProcessGroups::for_database(&folder.join("work.db"))
}

fn make_fifo(folder: &Path) -> String {
    let fifo = folder.join("fifo").to_str().unwrap().to_owned();
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fifo
}

#[derive(Clone, Copy, PartialEq)]
enum Event {
    None,
    Timeout,
    Cancel,
}

fn end_of(script: &str, event: Event, limit: Duration, grace: Duration) -> CommandOutput {
    let folder = tempfile::tempdir().unwrap();
    let cancelled = async move { if event == Event::Cancel { sleep(limit).await } else { pending().await } };
    let limit = (event == Event::Timeout).then_some(limit);
    let run = CommandRun::new(shell(script), Some(b"input"), limit, OutputLimit::last(100));
    let output = run.run_blocking(&groups(folder.path()), "a test", cancelled, |_| grace).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the record is deleted");
    output
}

#[test]
fn end_and_output_follow_from_the_state_of_the_command_and_the_event() {
    use Event::{Cancel, None, Timeout};
    let exited = |raw: i32| CommandEnd::Exited(ExitStatus::from_raw(raw));
    let ignores_term = "trap '' TERM; echo a; while :; do sleep 600; done";
    // After SIGTERM it writes more than a pipe holds.
    let writes_after_term = "trap 'head -c 1000000 /dev/zero; echo b; exit' TERM; while :; do sleep 0.1; done";
    let long_line = format!("…{}", "x".repeat(100));
    for (script, event, grace, end, stdout) in [
        ("echo a; exit 3", None, LONG, exited(3 << 8), "a\n"),
        ("kill -9 $$", None, LONG, exited(9), ""),
        ("cat", None, LONG, exited(0), "input"),
        ("printf '\\377'", None, LONG, exited(0), "\u{fffd}"),
        ("head -c 1000000 /dev/zero | tr '\\0' x", None, LONG, exited(0), &long_line),
        ("echo a; exec sleep 600", Timeout, LONG, CommandEnd::TimedOut, "a\n"),
        (writes_after_term, Timeout, LONG, CommandEnd::TimedOut, "b\n"),
        (ignores_term, Timeout, Duration::ZERO, CommandEnd::TimedOut, "a\n"),
        ("echo a; exec sleep 600", Cancel, LONG, CommandEnd::Cancelled, ""),
        (writes_after_term, Cancel, LONG, CommandEnd::Cancelled, ""),
        (ignores_term, Cancel, Duration::ZERO, CommandEnd::Cancelled, ""),
    ] {
        // A slow machine needs a later event to reach the state.
        let limits = [Duration::from_millis(100), Duration::from_secs(2), Duration::from_secs(60)];
        let outputs = limits.map(|limit| move || end_of(script, event, limit, grace));
        let is_expected = |output: &CommandOutput| (output.end, output.stdout.ends_with(stdout)) == (end, true);
        assert!(outputs.iter().any(|output| is_expected(&output())), "{script}");
    }
}

#[test]
fn children_left_by_the_command_can_write_to_its_outputs() {
    for (closed, late) in [("2> /dev/null", "echo late"), ("> /dev/null", "echo late >&2")] {
        let folder = tempfile::tempdir().unwrap();
        let fifo = make_fifo(folder.path());
        // The child waits until the command has ended, writes to an output, and reports the exit status of that.
        let script = format!("(trap '' PIPE; cat {fifo}; {late}; echo $? > {fifo}) {closed} & exit 0");
        let output = run_of(&script).run_blocking(&groups(folder.path()), "a test", pending(), |_| LONG).unwrap();
        assert_eq!(output.end, CommandEnd::Exited(ExitStatus::from_raw(0)));
        std::fs::write(&fifo, "").unwrap();
        assert_eq!(std::fs::read_to_string(&fifo).unwrap(), "0\n", "{late}");
    }
}

#[test]
fn dropped_run_kills_the_command_and_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = make_fifo(folder.path());
    let script = format!("sleep 600 > {fifo} & exec sleep 600");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let groups = groups(folder.path());
    runtime.block_on(async {
        let started = async {
            let opened = tokio::task::spawn_blocking(|| File::open(fifo));
            opened.await.unwrap().unwrap()
        };
        let mut opened = tokio::select! {
            _ = run_of(&script).run(&groups, "a test", pending(), |_| LONG) => panic!("the command ended"),
            opened = started => opened,
        };
        // The end is read when the last process that can write to it has ended.
        assert_eq!(io::copy(&mut opened, &mut io::sink()).unwrap(), 0);
    });
}

#[test]
fn failed_start_is_an_error_and_leaves_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let run = CommandRun::new(Command::new("/no/such/program"), None, None, OutputLimit::last(10));
    let error = run.run_blocking(&groups(folder.path()), "a test", pending(), |_| LONG).unwrap_err();
    assert!(matches!(&error, CommandError::Start(error) if error.kind() == io::ErrorKind::NotFound), "{error:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn long_output_is_cut_in_the_middle_or_at_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let check = |limit: OutputLimit, text: &str, expected: &str| {
        let mut command = Command::new("printf");
        command.arg(text);
        let run = CommandRun::new(command, None, None, limit);
        let output = run.run_blocking(&groups(folder.path()), "a test", pending(), |_| LONG).unwrap();
        assert_eq!(output.stdout, expected, "{limit:?} of {text:?}");
    };
    let ends = OutputLimit::ends(8);
    check(ends, "", "");
    check(ends, "abc", "abc");
    check(ends, "abcdefgh", "abcdefgh");
    check(ends, "abcdefghi", "abcd\n[... 1 bytes left out ...]\nfghi");
    check(ends, "abcdefghijkl", "abcd\n[... 4 bytes left out ...]\nijkl");
    check(OutputLimit::ends(6), "abé", "ab\u{e9}");
    let last = OutputLimit::last(4);
    check(last, "abcd", "abcd");
    check(last, "abcdef", "…cdef");
    check(last, "abécde", "…cde");
    check(OutputLimit::last(0), "ab", "…");
}

#[test]
fn exit_codes_are_classified() {
    let check = |statuses: &[i32], expected: ExitClass| {
        statuses.iter().for_each(|raw| assert_eq!(ExitClass::of(ExitStatus::from_raw(*raw)), expected, "{raw}"));
    };
    let exit = |code: i32| code << 8;
    check(&[0], ExitClass::Success);
    check(&[1, 2, 3, 63, 75, 79, 124, 125, 128, 255].map(exit), ExitClass::Transient);
    check(&[9], ExitClass::Transient);
    check(&[64, 65, 68, 70, 74, 76, 78].map(exit), ExitClass::Permanent);
    check(&[69, 126, 127].map(exit), ExitClass::Unavailable);
}
