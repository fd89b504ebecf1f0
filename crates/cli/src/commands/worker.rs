//! `gristmill worker`: runs queued tasks.
//!
//! `gristmill_jobs::Runner` claims and runs tasks.

mod scan_jobs;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gristmill_jobs::{RunSummary, RunnerHandle, exec};
use gristmill_pool::Retry;
use gristmill_pool::prometheus::MetricsText;
use gristmill_store::Store;
use gristmill_store::tasks::ForeignClaims;
use serde_json::json;

use super::environment::withheld;
use super::metrics::MetricsServer;
use super::to_object;
use crate::context::{Context, open_or_create};
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::output::{note, path};
use crate::progress::{ProgressLine, ProgressReporter};
use crate::settings::{Settings, keys};
use crate::supervisor::{FORCED_SHUTDOWN_TIMEOUT, Supervisor};
use crate::units::{plural, utc};

const HELP: &str = "\
Runs tasks of the kind exec, which are commands. Tasks of other kinds wait for workers that you write; --once reports \
how many due tasks it left, and how many tasks other workers have claimed.

A worker stops on Ctrl-C, SIGTERM or SIGHUP (which counts once):
  first signal   claim nothing more, and wait for running tasks for up to worker.shutdown; tasks
                 that have not finished by then return to the queue
  second signal  end commands and return their tasks to the queue within a second
  third signal   exit at once; other workers take over the tasks
SIGQUIT (Ctrl-\\) also exits at once, with a core dump if the system makes one. The next worker ends commands that are \
left running.

Exit status:
  0    stopped by one signal; or with --once, no due task is left that it can run. Failed tasks do
       not change the exit status
  1    a wrong argument or setting
  2    system failure: a full disk, a damaged file
  130  stopped before it was done (--once), or by more than one signal

Examples:
  gristmill worker
  gristmill worker --queue urgent --queue default
  gristmill worker --once && echo 'no command is due'
  gristmill worker --once --json | jq .left";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Exit when no task is due or running, instead of waiting for more
    #[arg(long)]
    once: bool,

    /// Queue to take tasks from, the most important first; repeatable [default: setting worker.queues, default]
    #[arg(long, value_name = "QUEUE")]
    queue: Vec<String>,

    /// Serve Prometheus metrics at http://ADDRESS/metrics; a port alone listens on 127.0.0.1 [default: setting
    /// worker.metrics, none]
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    context.flags.add(&keys::QUEUES, "--queue", Some(&args.queue).filter(|queues| !queues.is_empty()));
    context.flags.add(&keys::WORKER_METRICS, "--metrics", args.metrics.as_ref());
    let settings = context.settings()?;
    // Before the first claim, so that every signal leads to an orderly end.
    let supervisor = Supervisor::with_forced_stop(context.quiet)?;
    let store = open_or_create(&settings)?;
    let outcome = run_tasks(args, context, &settings, supervisor, &store);
    // A handler that did not stop still has the store. Unless it is closed, its WAL stays beside a database that has
    // replaced this one.
    store.close();
    outcome
}

fn run_tasks(
    args: &Args,
    context: &Context,
    settings: &Settings,
    supervisor: Supervisor,
    store: &Store,
) -> Result<Outcome, Error> {
    let running = Arc::new(start(store, settings)?);
    if !context.quiet {
        let queues = settings.worker.queues.join(", ");
        note(&format!("worker {} serves queues {queues} of {}", running.worker(), path(store.path())));
    }
    let metrics = settings.worker.metrics.map(|address| serve_metrics(address, store, &running)).transpose()?;
    if let Some(metrics) = metrics.as_ref().filter(|_| !context.quiet) {
        note(&format!("serving metrics at http://{}/metrics", metrics.address()));
    }
    let is_silent = context.quiet || !(context.verbose || io::stderr().is_terminal());
    let progress = ProgressReporter::start(is_silent, {
        let running = Arc::clone(&running);
        move |_| progress_line(&running)
    });
    let summary = run_until_stopped(&running, &supervisor, args.once, settings.worker.shutdown, progress)?;
    drop(metrics);
    let outcome = supervisor.outcome(args.once);
    drop(supervisor);
    let mut value = to_object(&summary)?;
    let mut claims = ForeignClaims::default();
    if args.once {
        claims = store.tasks().claims_of_others(&settings.worker.queues, running.worker())?;
        value.insert("claimed_by_others".to_owned(), json!(claims));
        let left = left(store, settings, &running)?;
        if !context.quiet && !left.is_empty() {
            note(&left_text(&left));
        }
        value.insert("left".to_owned(), json!(left));
    }
    context.output.summary(&value, Outcome::Done, |_| summary_text(&summary, &claims, &context.hints))?;
    Ok(outcome)
}

/// Serves the counters of the worker and the numbers of the database.
fn serve_metrics(address: SocketAddr, store: &Store, running: &Arc<RunnerHandle>) -> Result<MetricsServer, Error> {
    let (store, running) = (store.clone(), running.clone());
    MetricsServer::start(address, move || {
        let mut text = MetricsText::new("gristmill_");
        if let Err(error) = gristmill_server::write_store_metrics(&store, &mut text) {
            tracing::warn!(%error, "cannot read the numbers of the database for metrics");
        }
        running.stats().write_metrics(&mut text);
        text.to_string()
    })
}

/// Waits until a signal stops the worker, it has failed, or with `once` it has no due task left. Then stops it.
fn run_until_stopped(
    running: &RunnerHandle,
    supervisor: &Supervisor,
    once: bool,
    shutdown: Duration,
    progress: ProgressReporter,
) -> Result<RunSummary, Error> {
    let (end, force) = (supervisor.stop.child(), supervisor.force.child());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The result of stopping the worker tells whether it has failed.
            match once {
                true => drop(running.wait_no_due_tasks()),
                false => drop(running.wait_ended(Duration::MAX)),
            }
            end.cancel();
        });
        scope.spawn(|| {
            force.wait();
            if supervisor.force.is_cancelled() {
                supervisor.note_forced("commands are ended and their tasks");
                // Of several deadlines, the shortest applies.
                drop(running.stop(FORCED_SHUTDOWN_TIMEOUT));
            }
        });
        end.wait();
        drop(progress);
        supervisor.note_stopping(shutdown, "tasks");
        let summary = running.stop(shutdown);
        force.cancel();
        Ok(summary?)
    })
}

fn progress_line(running: &RunnerHandle) -> ProgressLine {
    let (mut done, mut active, mut failed) = (0, 0, 0);
    for kind in running.stats().kinds {
        done += kind.tasks.completed;
        active += kind.pool.active;
        failed += kind.tasks.retried + kind.tasks.dead_lettered;
    }
    ProgressLine::new(format!("{} completed, {active} running, {failed} failed", plural(done, "task")))
}

/// Counts due tasks of the served queues that this worker cannot run, by kind.
fn left(store: &Store, settings: &Settings, running: &RunnerHandle) -> Result<BTreeMap<String, u64>, Error> {
    let known = running.stats().kinds;
    let mut left = BTreeMap::new();
    for (queue, kind, count) in store.tasks().count_due()? {
        if settings.worker.queues.contains(&queue) && !known.iter().any(|known| known.kind == kind) {
            *left.entry(kind).or_insert(0) += count;
        }
    }
    Ok(left)
}

fn left_text(left: &BTreeMap<String, u64>) -> String {
    let kinds: Vec<_> = left.iter().map(|(kind, count)| format!("{count} of kind {kind}")).collect();
    let count = plural(left.values().sum(), "due task");
    format!("left in the queue: {count} of kinds that this worker does not handle ({})", kinds.join(", "))
}

pub(super) fn start(store: &Store, settings: &Settings) -> Result<RunnerHandle, Error> {
    let worker = &settings.worker;
    let exec = &settings.exec;
    let commands = exec::kind(exec::ExecSettings {
        workers: exec.workers,
        timeout: exec.timeout,
        max_output: usize::try_from(exec.max_output).unwrap_or(usize::MAX),
        retry: Retry::exponential(exec.attempts, exec.backoff_base).max_delay(exec.backoff_cap),
        removed_env: withheld(),
    });
    let runner = gristmill_jobs::Runner::builder(store.clone())
        .name(worker_name())
        .queues(worker.queues.clone())
        .lease(worker.lease)
        .max_crashes(worker.max_crashes)
        .retain_finished(worker.keep_finished)
        .kind(commands)
        .on_job({
            let scan = settings.scan.clone();
            move |call| scan_jobs::run(call, &scan)
        });
    Ok(runner.start()?)
}

/// Returns the name of this worker in leases: host and process id.
fn worker_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}", std::process::id())
}

fn summary_text(summary: &RunSummary, claims: &ForeignClaims, hints: &Hints) -> String {
    let RunSummary { completed, retried, dead_lettered, released, cancelled, lost, unfinished } = *summary;
    let mut lines = vec![format!("{} completed", plural(completed, "task"))];
    let dead_letters = format!("moved to the dead letters; see `{}`", hints.command("dead list"));
    let rest = [
        (retried, "failed and will be retried"),
        (dead_lettered, dead_letters.as_str()),
        (released, "returned to the queue"),
        (cancelled, "cancelled"),
        (lost, "taken over by other workers"),
        (unfinished, "left running: their commands did not end"),
    ];
    lines.extend(rest.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    lines.extend(claims_text(claims));
    lines.join("\n")
}

/// Describes the tasks that other workers hold, and when the leases of workers that cannot be checked expire.
fn claims_text(claims: &ForeignClaims) -> Vec<String> {
    let ForeignClaims { alive, unseen, unseen_until } = *claims;
    let mut lines = Vec::new();
    if alive > 0 {
        lines.push(format!("{alive} claimed by other live workers on this machine"));
    }
    if unseen > 0 {
        let until = unseen_until.map(|until| format!(": their leases expire by {}", utc(until)));
        lines.push(format!(
            "{unseen} claimed by workers that cannot be checked from here (on another machine, or without a heartbeat){}. When a \
             lease expires, its task becomes due again",
            until.unwrap_or_default()
        ));
    }
    lines
}
