//! `gristmill worker`: the daemon that does the work.
//!
//! Owns how it is told to stop. What it does until then is the runner's affair.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use gristmill_jobs::{Running, Summary, exec};
use gristmill_pool::Retry;
use gristmill_store::Store;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::context::{Context, open_or_create};
use crate::error::{Error, Outcome};
use crate::output::{aside, plural};
use crate::settings::{Raw, Settings, keys};

const EXAMPLES: &str = "\
The first Ctrl-C (or SIGTERM) has it take nothing more and finish what runs, for as long as the setting
worker.shutdown says; what has not finished by then goes back to the queue. The second ends it at once.

Examples:
  gristmill worker
  gristmill worker --queue urgent --queue default
  gristmill worker --once && echo 'the queue is empty'";

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

/// What ends a worker.
enum Event {
    /// It was told to.
    Told,
    /// Nothing is left to do, or it cannot go on; stopping it says which.
    Ended,
}

pub(crate) fn run(args: Args, context: &mut Context) -> Result<Outcome, Error> {
    if !args.queue.is_empty() {
        context.flags.values.insert(keys::QUEUES.name, ("--queue", Raw::Many(args.queue)));
    }
    let settings = context.settings()?;
    let (events, event) = mpsc::channel();
    // Before anything is claimed: from here on a signal is an orderly end.
    let signals = Listener::start(events.clone())?;
    let store = open_or_create(&settings)?;
    let running = start(&store, &settings)?;
    if !context.quiet {
        let queues = settings.worker.queues.join(", ");
        aside(&format!("worker {} serves {queues} of {}", running.worker(), store.path().display()));
    }
    let (told, summary) = std::thread::scope(|scope| {
        let running = &running;
        scope.spawn(move || {
            match args.once {
                true => drop(running.wait_idle()),
                false => drop(running.wait_ended(Duration::MAX)),
            }
            // Nobody waits any more when a signal came first.
            let _ = events.send(Event::Ended);
        });
        let told = matches!(event.recv(), Ok(Event::Told));
        if told && !context.quiet {
            let limit = crate::settings::value::show_duration(settings.worker.shutdown);
            aside(&format!("stopping: what runs has {limit}; once more ends it at once"));
        }
        (told, running.stop(settings.worker.shutdown))
    });
    signals.stop();
    let summary = summary?;
    context.output.say(&summary, |_| tell(&summary))?;
    Ok(if told && args.once { Outcome::Interrupted } else { Outcome::Done })
}

fn start(store: &Store, settings: &Settings) -> Result<Running, Error> {
    let worker = &settings.worker;
    let exec = &settings.exec;
    let commands = exec::kind(exec::Settings {
        workers: exec.workers,
        timeout: exec.timeout,
        max_output: exec.max_output,
        retry: Retry::exponential(exec.attempts, exec.backoff_base).cap(exec.backoff_cap),
    });
    let runner = gristmill_jobs::Runner::builder(store.clone())
        .name(name())
        .queues(worker.queues.clone())
        .lease(worker.lease)
        .max_crashes(worker.max_crashes)
        .keep_finished(worker.keep_finished)
        .kind(commands);
    Ok(runner.start()?)
}

/// Which machine and which process, for people who look at leases.
fn name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}", std::process::id())
}

fn tell(summary: &Summary) -> String {
    let Summary { completed, retried, buried, released, lost, unfinished } = *summary;
    let mut lines = vec![format!("{} done", plural(completed, "task"))];
    let rest = [
        (retried, "failed and to be tried again"),
        (buried, "given up; see `gristmill dead list`"),
        (released, "back in the queue"),
        (lost, "taken over by others, or called off"),
        (unfinished, "left with commands that did not stop"),
    ];
    lines.extend(rest.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    lines.join("\n")
}

/// Listens for signals: the first is an event, the second ends the process.
struct Listener {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Listener {
    fn start(events: Sender<Event>) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::System(format!("cannot listen for signals: {error}"));
        let told = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the signal that sets the flag does not see it set.
            signal_hook::flag::register_conditional_shutdown(signal, 130, told.clone()).map_err(failed)?;
            signal_hook::flag::register(signal, told.clone()).map_err(failed)?;
        }
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let handle = signals.handle();
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for _ in signals.forever() {
                let _ = events.send(Event::Told);
            }
        });
        Ok(Listener { handle, thread: thread.map_err(failed)? })
    }

    fn stop(self) {
        self.handle.close();
        // It cannot panic; and if it could, the work is done all the same.
        drop(self.thread.join());
    }
}
