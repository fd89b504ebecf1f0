//! A process with a runner, which works until its standard input ends.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gristmill_jobs::{Runner, TaskContext, TaskKind};
use gristmill_pool::{Retry, TaskError, TaskResult};
use gristmill_store::{Durability, Store, WallClock};

use crate::log::{End, Log};
use crate::{KINDS, QUEUES, RETRY_DELAY};

/// The folder of the round, and the number of workers for each kind.
pub(crate) const FOLDER: &str = "GRISTMILL_MODEL_FOLDER";
pub(crate) const WORKERS: &str = "GRISTMILL_MODEL_WORKERS";

pub(crate) fn open(folder: &Path, clock: WallClock) -> Store {
    Store::options().durability(Durability::Normal).clock(clock).open(folder.join("work.db")).unwrap()
}

/// Runs with the payload `gate N` wait for this file.
pub(crate) fn gate(folder: &Path, number: i64) -> PathBuf {
    folder.join(format!("gate{number}"))
}

pub(crate) fn run() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let workers: usize = std::env::var(WORKERS).unwrap().parse().unwrap();
    let folder = PathBuf::from(&folder);
    let log = Arc::new(Log::open(&folder));
    let process = std::process::id();
    let store = open(&folder, WallClock::system());
    let mut builder = Runner::builder(store).name(format!("process{process}")).queues(QUEUES);
    for name in KINDS {
        let (log, folder) = (log.clone(), folder.clone());
        let handler = move |work: &TaskContext<'_>| {
            let now = || WallClock::system().now().micros();
            log.line(&format!("start {} {process} {} {}", work.id(), work.attempt(), now()));
            let (end, result) = handle(work, &folder);
            log.line(&format!("end {} {process} {} {}", work.id(), end.number(), now()));
            result
        };
        let retry = Retry::linear(3, RETRY_DELAY).without_jitter();
        builder = builder.kind(TaskKind::new(name, handler).workers(workers).retry(retry));
    }
    let runner = builder.start().unwrap();
    // Nothing is written there; its end is the order to stop.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    runner.stop(Duration::from_secs(20)).unwrap();
    log.line(&format!("stopped {process}"));
}

/// No run ends early because it is cancelled: then slow runs are slow, whatever happens.
fn handle(work: &TaskContext<'_>, folder: &Path) -> (End, TaskResult<()>) {
    if work.kind() == "slow" {
        wait(Duration::from_millis(60), || false);
    }
    let payload = work.payload().trim_matches('"');
    if payload == "long" {
        wait(Duration::from_millis(200), || false);
    }
    if let Some(number) = payload.strip_prefix("gate ").and_then(|number| number.parse().ok()) {
        let gate = gate(folder, number);
        wait(Duration::MAX, || gate.exists());
    }
    match payload {
        _ if work.is_cancelled() => (End::Cancelled, Err(TaskError::cancelled())),
        "fatal" => (End::Permanent, Err(TaskError::permanent("fatal"))),
        "flaky" if work.attempt() == 1 => (End::Transient, Err(TaskError::transient("flaky"))),
        _ => (End::Ok, Ok(())),
    }
}

/// Waits for a condition, at most for a time, whether the task is cancelled or not.
fn wait(limit: Duration, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while start.elapsed() < limit && !condition() {
        std::thread::park_timeout(Duration::from_millis(2));
    }
}
