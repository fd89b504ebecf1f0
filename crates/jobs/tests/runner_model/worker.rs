//! A process with a runner, which runs until its standard input is closed.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gristmill_jobs::{Runner, TaskContext, TaskKind};
use gristmill_pool::clock::Clock;
use gristmill_pool::{Retry, TaskError, TaskResult};
use gristmill_store::{Durability, Store, UtcTime};

use crate::log::{Log, Outcome};
use crate::{KINDS, QUEUES, RETRY_DELAY};

/// Environment variable with the folder of the round.
pub(crate) const FOLDER: &str = "GRISTMILL_MODEL_FOLDER";
/// Environment variable with the number of workers for each kind.
pub(crate) const WORKERS: &str = "GRISTMILL_MODEL_WORKERS";

pub(crate) fn open(folder: &Path, clock: impl Into<Clock>) -> Store {
    Store::options().durability(Durability::Normal).clock(clock).open(folder.join("work.db")).unwrap()
}

/// The file that runs with the payload `gate N` wait for.
pub(crate) fn gate(folder: &Path, number: i64) -> PathBuf {
    folder.join(format!("gate{number}"))
}

pub(crate) fn run() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let workers: usize = std::env::var(WORKERS).unwrap().parse().unwrap();
    let folder = PathBuf::from(&folder);
    let log = Arc::new(Log::open(&folder));
    let process = std::process::id();
    let store = open(&folder, Clock::system());
    let mut builder = Runner::builder(store).name(format!("process{process}")).queues(QUEUES);
    for name in KINDS {
        let (log, folder) = (log.clone(), folder.clone());
        let handler = move |task: &TaskContext<'_>| {
            let now = || UtcTime::of(Clock::system()).micros();
            log.line(&format!("start {} {process} {} {}", task.id(), task.attempt(), now()));
            let (outcome, result) = handle(task, &folder);
            log.line(&format!("end {} {process} {} {}", task.id(), outcome.number(), now()));
            result
        };
        let retry = Retry::linear(3, RETRY_DELAY).without_jitter();
        builder = builder.kind(TaskKind::new(name, handler).workers(workers).retry(retry));
    }
    let runner = builder.start().unwrap();
    // The test writes nothing to the standard input, and closes it to stop this process.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    runner.stop(Duration::from_secs(20)).unwrap();
    log.line(&format!("stopped {process}"));
}

/// Runs the task. A cancelled run does not end early, so that slow runs are always slow.
fn handle(task: &TaskContext<'_>, folder: &Path) -> (Outcome, TaskResult<()>) {
    if task.kind() == "slow" {
        wait(Duration::from_millis(60), || false);
    }
    let payload = task.payload().trim_matches('"');
    if payload == "long" {
        wait(Duration::from_millis(200), || false);
    }
    if let Some(number) = payload.strip_prefix("gate ").and_then(|number| number.parse().ok()) {
        let gate = gate(folder, number);
        wait(Duration::MAX, || gate.exists());
    }
    match payload {
        _ if task.is_cancelled() => (Outcome::Cancelled, Err(TaskError::cancelled())),
        "fatal" => (Outcome::Permanent, Err(TaskError::permanent("fatal"))),
        "flaky" if task.attempt() == 1 => (Outcome::Transient, Err(TaskError::transient("flaky"))),
        _ => (Outcome::Ok, Ok(())),
    }
}

/// Waits up to `limit` for a condition, whether the task is cancelled or not.
fn wait(limit: Duration, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while start.elapsed() < limit && !condition() {
        std::thread::park_timeout(Duration::from_millis(2));
    }
}
