//! Building a pool when no thread can be started: a child process in which every thread requests a stack that exceeds
//! the memory.

#![cfg(all(feature = "tokio", not(any(shuttle, loom))))]

use gristmill_pool::{Pool, Retry, Task, TaskError};
use std::{
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

const CHILD: &str = "child_builds_a_pool_where_no_thread_starts";

/// Tokio workers need no threads, but retries and timeouts need the timer thread.
#[test]
#[ignore = "run by the test below in a child process"]
fn child_builds_a_pool_where_no_thread_starts() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        match Pool::builder().workers(1).build_async() {
            Err(error) => println!("build failed: {error}"),
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
    // Ends a child that hangs in `join`; has no effect on one that has exited.
    let _ = child.kill();
    let status = child.wait().unwrap();
    reader.join().unwrap().unwrap();
    let output = output.expect("the child hangs: no timer ever fires in it");
    assert!(status.success(), "{output}");
    assert!(output.contains("build failed: cannot start the timer thread"), "{output}");
}
