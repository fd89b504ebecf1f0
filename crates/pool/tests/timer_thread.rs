//! What happens where the system starts no further thread: a process of its own, in which every thread asks for a
//! stack that there is no memory for.

#![cfg(all(feature = "tokio", not(any(shuttle, loom))))]

use gristmill_pool::{Pool, Retry, Task, TaskError};
use std::{
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

const CHILD: &str = "child_builds_a_pool_where_no_thread_starts";

/// Workers that are tokio tasks need no thread; retries and timeouts need the clock's.
#[test]
#[ignore = "run by the test below, in a process of its own"]
fn child_builds_a_pool_where_no_thread_starts() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        match Pool::builder().workers(1).build_async() {
            Err(error) => println!("refused: {error}"),
            Ok(pool) => {
                let policy = Retry::linear(2, Duration::from_millis(1));
                let task = Task::retrying_future(policy, |_| async { Err(TaskError::transient("busy")) });
                pool.submit_task(task).await.unwrap();
                println!("joined: {}", pool.join().await);
            }
        }
    });
}

#[test]
fn build_fails_when_timer_thread_cannot_start() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--ignored", "--nocapture", "--test-threads=1"])
        .env("RUST_MIN_STACK", (1u64 << 60).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || sender.send(std::io::read_to_string(stdout).unwrap()));
    let output = receiver.recv_timeout(Duration::from_secs(60));
    // A child that has ended is not harmed by this; one that hangs in `join` must not stay.
    let _ = child.kill();
    let status = child.wait().unwrap();
    reader.join().unwrap().unwrap();
    let output = output.expect("the child hangs: no timer ever fires in it");
    assert!(status.success(), "{output}");
    assert!(output.contains("refused: cannot start the timer thread"), "{output}");
}
