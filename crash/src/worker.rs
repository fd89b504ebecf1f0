//! A worker as a user would write one: a runner, and a handler for each kind.
//!
//! Owns what handlers do. They note in a log what the referee cannot see otherwise: that a run began, and which
//! checkpoints were acknowledged to it.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gristmill_jobs::{Runner, TaskContext, TaskKind};
use gristmill_pool::{Retry, TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::tasks::NewTask;
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};

use crate::args::Member;
use crate::errand::{Errand, Order, STEPS, Signature, step_key};
use crate::ledger::{Effects, Log};
use crate::site::Site;
use crate::{OrTrouble, Trouble};

/// How long a worker that is told to end waits for its handlers.
const PATIENCE: Duration = Duration::from_secs(5);

/// What handlers need besides their task.
struct Tools {
    name: String,
    effects: Effects,
    runs: Log,
    acks: Log,
    /// How often a checkpoint was looked up.
    looks: AtomicU64,
}

/// Works until standard input ends.
pub(crate) fn run(member: &Member) -> Result<(), Trouble> {
    log_to_stderr();
    die_with_the_referee();
    let site = Site::new(&member.site);
    let store = Store::open(site.database()).or_trouble("cannot open the store")?;
    let tools = Arc::new(tools(&site, &member.name)?);
    let lease = Duration::from_millis(member.lease_ms);
    let mut builder = Runner::builder(store).name(&member.name).lease(lease);
    for errand in Errand::ALL {
        builder = builder.kind(kind(errand, &tools));
    }
    let running = builder.start().or_trouble("the runner does not start")?;
    raise_flag(&site, &member.name)?;
    let enough = end_of_input();
    loop {
        if let Some(ended) = running.wait_ended(Duration::ZERO) {
            ended.or_trouble("the runner has ended by itself")?;
        }
        if enough.recv_timeout(Duration::from_millis(50)) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    running.stop(PATIENCE).map(drop).or_trouble("the runner did not stop well")
}

fn tools(site: &Site, name: &str) -> Result<Tools, Trouble> {
    Ok(Tools {
        name: name.to_owned(),
        effects: Effects::open(&site.effects()).or_trouble("cannot open the effects")?,
        runs: Log::open(&site.runs()).or_trouble("cannot open a log")?,
        acks: Log::open(&site.acks()).or_trouble("cannot open a log")?,
        looks: AtomicU64::new(0),
    })
}

/// For whoever looks into the folder of a run with findings.
pub(crate) fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::new("warn");
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
}

/// A referee that is killed leaves nobody behind, not even a process that is stopped. Under strace the parent is
/// strace: who kills that kills us.
pub(crate) fn die_with_the_referee() {
    // Refused nowhere that we know of; then the end of standard input has to do.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// Tells the referee that work has begun.
pub(crate) fn raise_flag(site: &Site, name: &str) -> Result<(), Trouble> {
    std::fs::write(site.flag_of(name), "").or_trouble("cannot raise the flag")
}

/// Gives a signal (the other side is dropped) when standard input ends.
pub(crate) fn end_of_input() -> Receiver<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        // Nothing is ever written there; an error is an end as well.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    receiver
}

fn kind(errand: Errand, tools: &Arc<Tools>) -> TaskKind {
    let tools = tools.clone();
    let handler = move |work: &TaskContext<'_>| {
        let order: Order = work.parse()?;
        tools.runs.line(&format!("start {} {}", work.id(), tools.name))?;
        attempt(errand, work, &order, &tools)?;
        work.set_result(&Signature { by: tools.name.clone() })
    };
    let retry = Retry::exponential(6, Duration::from_millis(20)).max_delay(Duration::from_millis(200));
    TaskKind::new(errand.name(), handler).workers(4).retry(retry)
}

fn attempt(errand: Errand, work: &TaskContext<'_>, order: &Order, tools: &Tools) -> TaskResult<()> {
    match errand {
        Errand::Swift => effect(work, &order.key, tools),
        Errand::Flaky if work.attempt() <= 2 => Err(TaskError::transient("not yet")),
        Errand::Flaky => effect(work, &order.key, tools),
        Errand::Doomed => Err(TaskError::permanent("doomed")),
        Errand::Steps => steps(work, &order.key, tools),
        Errand::Parent => parent(work, order, tools),
        Errand::Slow => {
            if work.wait_cancelled(Duration::from_millis(order.millis)) {
                return Err(TaskError::cancelled());
            }
            effect(work, &order.key, tools)
        }
        Errand::Stubborn => {
            wait(Duration::from_millis(order.millis));
            effect(work, &order.key, tools)
        }
        Errand::Poison => {
            kill_process(getpid(), Signal::KILL)?;
            wait(Duration::MAX);
            Ok(())
        }
    }
}

fn effect(work: &TaskContext<'_>, key: &str, tools: &Tools) -> TaskResult<()> {
    Ok(tools.effects.have(key, work.id(), &tools.name)?)
}

/// Goes on after the last step that was noted. It says so before it looks: a worker that is stopped between its
/// look and its note finds less than others have saved since, and is right.
fn steps(work: &TaskContext<'_>, key: &str, tools: &Tools) -> TaskResult<()> {
    let look = format!("{}/{}", tools.name, tools.looks.fetch_add(1, Ordering::Relaxed));
    tools.runs.line(&format!("looks {} {look}", work.id()))?;
    let done = work.checkpoint::<u32>("done")?.unwrap_or(0);
    tools.runs.line(&format!("resumed {} {look} {done}", work.id()))?;
    for step in done + 1..=STEPS {
        if step == 3 && work.attempt() == 1 {
            return Err(TaskError::partial("third", "the third step fails once"));
        }
        effect(work, &step_key(key, step), tools)?;
        work.save_checkpoint("done", &step)?;
        tools.runs.line(&format!("saved {} {step}", work.id()))?;
    }
    Ok(())
}

/// The follow-up has a key, so a parent that runs twice does not leave two of them waiting.
fn parent(work: &TaskContext<'_>, order: &Order, tools: &Tools) -> TaskResult<()> {
    effect(work, &order.key, tools)?;
    let key = format!("{}/child", order.key);
    let order = Order { key: key.clone(), ..order.clone() };
    let mut child = NewTask::new(Errand::Swift.name(), serde_json::to_string(&order)?);
    child.unique_key = Some(key.clone());
    let child = work.store().tasks().enqueue(child).map_err(TaskError::transient)?;
    tools.acks.line(&format!("{} {} {key}", child.id, Errand::Swift.name()))?;
    Ok(())
}

/// Waits by the clock on the wall, hearing nothing: time in which the process was stopped counts.
fn wait(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::park_timeout(time - start.elapsed().min(time));
    }
}
