//! The worker process, written as a user would: a runner with a handler for each kind.
//!
//! Owns the handlers. They log what the harness cannot see otherwise: that a run began, and which checkpoints were
//! acknowledged.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use clap::ValueEnum;
use gristmill_jobs::{Runner, TaskContext, TaskKind};
use gristmill_pool::{Retry, TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::tasks::NewTask;
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};

use super::log::{Event, Log};
use super::paths::RunPaths;
use super::task_kinds::{CompletedBy, Payload, STEPS, TestKind, step_key};
use crate::args::ProcessArgs;
use crate::harness::Named;
use crate::process::pause;
use crate::{Error, ErrorContext};

/// Time that a stopping worker waits for its handlers.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Resources that handlers need besides their task.
struct Tools {
    name: String,
    log: Log,
    /// Number of checkpoint lookups.
    lookups: AtomicU64,
}

/// Runs tasks until standard input ends.
pub(crate) fn run(args: &ProcessArgs) -> Result<(), Error> {
    log_to_stderr();
    die_with_harness();
    let paths = RunPaths(args.folder.clone());
    let store = Store::open(paths.database()).context("cannot open the store")?;
    let log = Log::open(&paths.log())?;
    let tools = Arc::new(Tools { name: args.name.clone(), log, lookups: AtomicU64::new(0) });
    let lease = Duration::from_millis(args.lease_ms);
    let mut builder = Runner::builder(store).name(&args.name).lease(lease);
    for &kind in TestKind::value_variants() {
        builder = builder.kind(task_kind(kind, &tools));
    }
    let running = builder.start().context("cannot start the runner")?;
    write_ready_flag(&paths, &args.name)?;
    let stop = end_of_input();
    loop {
        if let Some(ended) = running.wait_ended(Duration::ZERO) {
            ended.context("the runner ended unexpectedly")?;
        }
        if stop.recv_timeout(Duration::from_millis(50)) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    running.stop(EXIT_TIMEOUT).map(drop).context("cannot stop the runner")
}

/// Logs warnings to standard error, which the harness keeps in a file for runs with violations.
pub(crate) fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::new("warn");
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
}

/// Makes the kernel kill this process when its parent dies, even while it is suspended. Under strace the parent is
/// strace.
pub(crate) fn die_with_harness() {
    // If the call fails, the end of standard input still stops this process.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// Creates the file that tells the harness that this process is ready.
pub(crate) fn write_ready_flag(paths: &RunPaths, name: &str) -> Result<(), Error> {
    std::fs::write(paths.ready_flag_of(name), "").context("cannot write the ready file")
}

/// Returns a channel whose sender is dropped when standard input ends.
pub(crate) fn end_of_input() -> Receiver<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        // Nothing is written to standard input; an error counts as its end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    receiver
}

fn task_kind(kind: TestKind, tools: &Arc<Tools>) -> TaskKind {
    let tools = tools.clone();
    let handler = move |context: &TaskContext<'_>| {
        let payload: Payload = context.parse()?;
        tools.log.append(&Event::Start { task: context.id(), worker: tools.name.clone() })?;
        run_kind(kind, context, &payload, &tools)?;
        context.set_result(&CompletedBy { by: tools.name.clone() })
    };
    let retry = Retry::exponential(6, Duration::from_millis(20)).max_delay(Duration::from_millis(200));
    TaskKind::new(&kind.name(), handler).workers(4).retry(retry)
}

fn run_kind(kind: TestKind, context: &TaskContext<'_>, payload: &Payload, tools: &Tools) -> TaskResult<()> {
    match kind {
        TestKind::Fast => apply_effect(context, &payload.key, tools),
        TestKind::Flaky if context.attempt() <= 2 => Err(TaskError::transient("not yet")),
        TestKind::Flaky => apply_effect(context, &payload.key, tools),
        TestKind::Failing => Err(TaskError::permanent("failing")),
        TestKind::Steps => run_steps(context, &payload.key, tools),
        TestKind::Parent => run_parent(context, payload, tools),
        TestKind::Slow => {
            if context.wait_cancelled(Duration::from_millis(payload.millis)) {
                return Err(TaskError::cancelled());
            }
            apply_effect(context, &payload.key, tools)
        }
        TestKind::Uncancellable => {
            // Time in which the process was suspended counts.
            pause(Duration::from_millis(payload.millis));
            apply_effect(context, &payload.key, tools)
        }
        TestKind::Poison => {
            kill_process(getpid(), Signal::KILL)?;
            pause(Duration::MAX);
            Ok(())
        }
    }
}

fn apply_effect(context: &TaskContext<'_>, key: &str, tools: &Tools) -> TaskResult<()> {
    Ok(tools.log.append(&Event::Effect { task: context.id(), key: key.to_owned() })?)
}

/// Continues after the last saved step. The lookup is logged before it happens: a worker that is suspended between its
/// lookup and its log line rightly finds less than other workers have saved since.
fn run_steps(context: &TaskContext<'_>, key: &str, tools: &Tools) -> TaskResult<()> {
    let lookup = format!("{}/{}", tools.name, tools.lookups.fetch_add(1, Ordering::Relaxed));
    let task = context.id();
    tools.log.append(&Event::LookUp { task, lookup: lookup.clone() })?;
    let done = context.checkpoint::<u32>("done")?.unwrap_or(0);
    tools.log.append(&Event::Resumed { task, lookup, step: done })?;
    for step in done + 1..=STEPS {
        if step == 3 && context.attempt() == 1 {
            return Err(TaskError::partial("third", "the third step fails once"));
        }
        apply_effect(context, &step_key(key, step), tools)?;
        context.save_checkpoint("done", &step)?;
        tools.log.append(&Event::Saved { task, step })?;
    }
    Ok(())
}

/// Enqueues a follow-up task with a unique key, so that a parent that runs twice does not enqueue two.
fn run_parent(context: &TaskContext<'_>, payload: &Payload, tools: &Tools) -> TaskResult<()> {
    apply_effect(context, &payload.key, tools)?;
    let key = format!("{}/child", payload.key);
    let payload = Payload { key: key.clone(), ..payload.clone() };
    let mut child = NewTask::new(TestKind::Fast.name(), serde_json::to_string(&payload)?);
    child.unique_key = Some(key.clone());
    let child = context.store().tasks().enqueue(child).map_err(TaskError::transient)?;
    Ok(tools.log.append(&Event::Enqueued { task: child.id, kind: TestKind::Fast.name(), key })?)
}
