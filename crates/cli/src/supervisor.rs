//! Supervision of running work: signals, stopping and progress.
//!
//! Owns the thread that counts SIGINT (Ctrl-C), SIGTERM and SIGHUP. The first signal asks the work of a command to stop,
//! the second to stop at once, if the command distinguishes the two; the next one ends the process. After the work has
//! ended, each of them ends the process.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

use gristmill_pool::CancelToken;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;
use signal_hook::iterator::{Handle, Signals};

use crate::error::{Error, Outcome};
use crate::output::note;
use crate::progress::{ProgressLine, ProgressReporter};
use crate::units::show_duration;

/// Time until the end of work that is asked to stop at once.
pub(crate) const FORCED_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Set after the supervised work has ended: SIGINT and SIGTERM then end the process. signal-hook does not restore the
/// default actions, so the signals would be ignored otherwise.
static EXIT_ON_SIGNAL: AtomicBool = AtomicBool::new(false);

/// The same for SIGHUP.
static EXIT_ON_SIGHUP: AtomicBool = AtomicBool::new(false);

/// Set when SIGHUP is received. Further ones are ignored.
static HUNG_UP: AtomicBool = AtomicBool::new(false);

/// Receives signals until it is dropped. A process has at most one at a time.
pub(crate) struct Supervisor {
    /// Cancelled by the first signal.
    pub(crate) stop: CancelToken,
    /// Cancelled by the second signal.
    pub(crate) force: CancelToken,
    quiet: bool,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Supervises work that ends soon after the first signal. The second one ends the process.
    pub(crate) fn with_stop(quiet: bool) -> Result<Self, Error> {
        Self::start(1, quiet)
    }

    /// Supervises work that takes its time to stop after the first signal. The second one asks it to stop at once, the
    /// third one ends the process.
    pub(crate) fn with_forced_stop(quiet: bool) -> Result<Self, Error> {
        Self::start(2, quiet)
    }

    /// Handles the first `max` signals; the next one ends the process.
    ///
    /// SIGHUP counts once, because a terminal that is closed may send it twice: by the kernel and by the shell. It
    /// stays ignored if it was ignored when the program started, as with `nohup`.
    fn start(max: usize, quiet: bool) -> Result<Self, Error> {
        let (stop, force) = (CancelToken::new(), CancelToken::new());
        let tokens = [stop.clone(), force.clone()];
        let interrupted = i32::from(Outcome::Interrupted.exit_status());
        let failed = |error: io::Error| Error::System(format!("cannot listen for signals: {error}"));
        let mut signals = Signals::new([] as [i32; 0]).map_err(failed)?;
        for (signal, exit) in [(SIGINT, &EXIT_ON_SIGNAL), (SIGTERM, &EXIT_ON_SIGNAL), (SIGHUP, &EXIT_ON_SIGHUP)] {
            if signal != SIGHUP || !is_ignored(SIGHUP) {
                signals.add_signal(signal).map_err(failed)?;
                register_conditional_shutdown(signal, interrupted, exit).map_err(failed)?;
            }
            exit.store(false, SeqCst);
        }
        let handle = signals.handle();
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let mut tokens = tokens.into_iter().take(max);
            for signal in signals.forever() {
                if signal == SIGHUP && HUNG_UP.swap(true, SeqCst) {
                    continue;
                }
                match tokens.next() {
                    Some(token) => token.cancel(),
                    // Destructors do not run.
                    None => signal_hook::low_level::exit(interrupted),
                }
            }
        });
        Ok(Supervisor { stop, force, quiet, handle, thread: Some(thread.map_err(failed)?) })
    }

    /// Returns the outcome of work that did what it was asked to. Work without an end of its own, which one signal has
    /// stopped, is done.
    pub(crate) fn outcome(&self, has_end: bool) -> Outcome {
        match self.force.is_cancelled() || (self.stop.is_cancelled() && has_end) {
            true => Outcome::Interrupted,
            false => Outcome::Done,
        }
    }

    /// Says that the first signal was received, if it was.
    pub(crate) fn note_stopping(&self, limit: Duration, running: &str) {
        if self.stop.is_cancelled() && !self.quiet {
            let limit = show_duration(limit);
            note(&format!("stopping: waiting up to {limit} for running {running}; interrupt again to stop within 1 s"));
        }
    }

    /// Says that the second signal was received, and what happens to the running work.
    pub(crate) fn note_forced(&self, consequence: &str) {
        if !self.quiet {
            note(&format!("stopping now: running {consequence} return to the queue; interrupt again to exit at once"));
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        EXIT_ON_SIGNAL.store(true, SeqCst);
        self.handle.close();
        // A panic of the thread would not change the result of the run.
        drop(self.thread.take().map(JoinHandle::join));
        // The thread has recorded every signal that it received.
        EXIT_ON_SIGHUP.store(!HUNG_UP.load(SeqCst), SeqCst);
    }
}

/// Runs `work`, shows its progress, and calls `cancel` at the first signal.
pub(crate) fn with_progress<T>(
    quiet: bool,
    cancel: impl FnOnce() + Send + 'static,
    line: impl FnMut(Duration) -> ProgressLine + Send + 'static,
    work: impl FnOnce() -> T,
) -> Result<T, Error> {
    let supervisor = Supervisor::with_stop(quiet)?;
    let _cancel = supervisor.stop.on_cancel(cancel);
    let _progress = ProgressReporter::start(quiet, line);
    Ok(work())
}

/// Returns true if this process ignores a signal. Only Linux reports it; on other systems the result is false.
fn is_ignored(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
