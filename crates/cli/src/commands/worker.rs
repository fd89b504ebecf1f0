//! `gristmill worker`: the daemon that does the work.
//!
//! Owns how it is told to stop. What it does until then is the runner's affair.

mod scan_jobs;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::Scope;
use std::time::Duration;

use gristmill_jobs::{RunSummary, RunnerHandle, exec};
use gristmill_pool::Retry;
use gristmill_store::Store;
use gristmill_store::tasks::ForeignClaims;
use serde_json::json;

use super::environment::withheld;
use super::to_object;
use crate::context::{Context, open_or_create};
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::output::{note, path, plural, time};
use crate::settings::value::show_duration;
use crate::settings::{Raw, Settings, keys};
use crate::signals::Listener;

const EXAMPLES: &str = "\
The built-in worker runs tasks of the kind exec: commands. Tasks of other kinds wait for workers of your own; \
--once says how many it left, and how many tasks other workers have claimed.

The first Ctrl-C (or SIGTERM, or SIGHUP, which counts once) has it take nothing more and finish what runs, for as long as the setting \
worker.shutdown says; what has not finished by then goes back to the queue. The second ends commands and gives \
tasks back within a second; the third ends it at once, and what ran is free for other workers. SIGQUIT (Ctrl-\\) ends it \
at once too, with a core dump where the system makes one; the next worker ends commands that are left.

Exit codes:
  0    told to stop, once, and stopped; or with --once: nothing is due any more that it can run.
       Tasks that failed are no failure of the worker
  1    a wrong argument or setting
  2    the system failed: a full disk, a damaged file
  130  told to stop before it was done (--once), or told so more than once

Examples:
  gristmill worker
  gristmill worker --queue urgent --queue default
  gristmill worker --once && echo 'no command is due'
  gristmill worker --once --json | jq .left";

/// How long commands have after the second signal.
const FORCED_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often at most it is told how far the work has come.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// End when nothing is due and nothing runs, instead of waiting for more
    #[arg(long)]
    once: bool,

    /// A queue to take tasks from, the most important first; may be given several times
    #[arg(long, value_name = "QUEUE")]
    queue: Vec<String>,
}

/// What a worker is waited for with.
enum Event {
    /// It was told to stop, or to hurry.
    Signal,
    /// Nothing is left to do, or it cannot go on; stopping it says which.
    Ended,
    /// It has stopped.
    Stopped(Result<RunSummary, gristmill_jobs::Error>),
}

pub(crate) fn run(args: Args, context: &mut Context) -> Result<Outcome, Error> {
    if !args.queue.is_empty() {
        context.flags.values.insert(keys::QUEUES.name, ("--queue", Raw::Many(args.queue)));
    }
    let settings = context.settings()?;
    let (events, event) = mpsc::channel();
    // Before anything is claimed: from here on a signal is an orderly end.
    let signals = Listener::start(2, {
        let events = events.clone();
        // Nobody waits any more when the work is over.
        move || drop(events.send(Event::Signal))
    })?;
    let store = open_or_create(&settings)?;
    let running = start(&store, &settings)?;
    if !context.quiet {
        let queues = settings.worker.queues.join(", ");
        note(&format!("worker {} serves {queues} of {}", running.worker(), path(store.path())));
    }
    let attended =
        Supervisor { running: &running, shutdown: settings.worker.shutdown, quiet: context.quiet, events };
    let progress = !context.quiet && (context.verbose || io::stderr().is_terminal());
    let (told, summary) = std::thread::scope(|scope| {
        scope.spawn(|| {
            match args.once {
                true => drop(running.wait_no_due_tasks()),
                false => drop(running.wait_ended(Duration::MAX)),
            }
            let _ = attended.events.send(Event::Ended);
        });
        attended.wait_stopped(scope, &event, progress)
    });
    signals.stop();
    let summary = summary?;
    let mut value = to_object(&summary)?;
    let mut claims = ForeignClaims::default();
    if args.once {
        claims = store.tasks().claims_of_others(&settings.worker.queues, running.worker())?;
        value.insert("claimed_by_others".to_owned(), json!(claims));
        let left = left(&store, &settings, &running)?;
        if !context.quiet && !left.is_empty() {
            note(&left_text(&left));
        }
        value.insert("left".to_owned(), json!(left));
    }
    context.output.summary(&value, Outcome::Done, |_| summary_text(&summary, &claims, &context.hints))?;
    Ok(if told > 1 || (told > 0 && args.once) { Outcome::Interrupted } else { Outcome::Done })
}

/// A worker and those who wait for it.
struct Supervisor<'a> {
    running: &'a RunnerHandle,
    shutdown: Duration,
    quiet: bool,
    events: Sender<Event>,
}

impl Supervisor<'_> {
    /// Waits for its end, and brings it about when told to. Says how often that was.
    fn wait_stopped<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        event: &Receiver<Event>,
        progress: bool,
    ) -> (u32, Result<RunSummary, gristmill_jobs::Error>) {
        let mut told = 0;
        let mut last = Progress::default();
        loop {
            match event.recv_timeout(if progress { PROGRESS_INTERVAL } else { Duration::MAX }) {
                Ok(Event::Signal) => {
                    told += 1;
                    self.on_signal(scope, told);
                }
                Ok(Event::Ended) if told == 0 => self.stop(scope, self.shutdown),
                // It ends because it was told to.
                Ok(Event::Ended) => {}
                Ok(Event::Stopped(summary)) => return (told, summary),
                // Nobody speaks for now; a sender is in our own hands, so that there always is somebody.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let now = Progress::of(self.running);
                    if now != last {
                        note(&now.text());
                        last = now;
                    }
                }
            }
        }
    }

    fn on_signal<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, told: u32) {
        let (limit, words) = match told {
            1 => {
                let limit = show_duration(self.shutdown);
                (self.shutdown, format!("stopping: what runs has {limit}; once more ends it within a second"))
            }
            _ => (
                FORCED_SHUTDOWN_TIMEOUT,
                "stopping now: commands are ended and their tasks go back to the queue; once more ends it at once"
                    .to_owned(),
            ),
        };
        if !self.quiet {
            note(&words);
        }
        self.stop(scope, limit);
    }

    /// Has it stopped, on a thread: here we go on to listen. Of several deadlines the shortest holds.
    fn stop<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, limit: Duration) {
        scope.spawn(move || drop(self.events.send(Event::Stopped(self.running.stop(limit)))));
    }
}

/// How far the work has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    done: u64,
    running: u64,
    failed: u64,
}

impl Progress {
    fn of(running: &RunnerHandle) -> Self {
        running.stats().kinds.iter().fold(Progress::default(), |sum, kind| Progress {
            done: sum.done + kind.tasks.completed,
            running: sum.running + kind.pool.active as u64,
            failed: sum.failed + kind.tasks.retried + kind.tasks.dead_lettered,
        })
    }

    fn text(self) -> String {
        let Progress { done, running, failed } = self;
        format!("{} done, {running} running, {failed} failed", plural(done, "task"))
    }
}

/// Due tasks in the queues served that this worker cannot run, by kind.
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
    format!("left in the queue: {count} that this worker has no handler for ({})", kinds.join(", "))
}

fn start(store: &Store, settings: &Settings) -> Result<RunnerHandle, Error> {
    let worker = &settings.worker;
    let exec = &settings.exec;
    let commands = exec::kind(exec::ExecSettings {
        workers: exec.workers,
        timeout: exec.timeout,
        max_output: exec.max_output,
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

/// Which machine and which process, for people who look at leases.
fn worker_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}", std::process::id())
}

fn summary_text(summary: &RunSummary, claims: &ForeignClaims, hints: &Hints) -> String {
    let RunSummary { completed, retried, dead_lettered: buried, released, cancelled, lost, unfinished } =
        *summary;
    let mut lines = vec![format!("{} done", plural(completed, "task"))];
    let given_up = format!("given up; see `{}`", hints.command("dead list"));
    let rest = [
        (retried, "failed and to be tried again"),
        (buried, given_up.as_str()),
        (released, "back in the queue"),
        (cancelled, "cancelled"),
        (lost, "taken over by others"),
        (unfinished, "left with commands that did not stop"),
    ];
    lines.extend(rest.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    lines.extend(claims_text(claims));
    lines.join("\n")
}

/// Which tasks other workers hold, and when it is known at the latest whether those are done that cannot be seen.
fn claims_text(claims: &ForeignClaims) -> Vec<String> {
    let ForeignClaims { alive, unseen, unseen_until } = *claims;
    let mut lines = Vec::new();
    if alive > 0 {
        lines.push(format!("{alive} claimed by other workers on this machine, which are alive"));
    }
    if unseen > 0 {
        let until = unseen_until.map(|until| format!(": their leases run until {} UTC", time(until)));
        lines.push(format!(
            "{unseen} claimed by workers that cannot be seen from here (on another machine, or silent), and perhaps not done{}. \
             Leases that are not renewed make their tasks due again",
            until.unwrap_or_default()
        ));
    }
    lines
}
