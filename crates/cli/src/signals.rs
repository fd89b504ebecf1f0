//! Counts the signals that ask the program to stop: SIGINT (Ctrl-C), SIGTERM and SIGHUP.
//!
//! Owns the thread that receives them. Each command decides what a signal means, except for the last one: it ends the
//! process at once.

use std::io;
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::error::{Error, Outcome};

/// Thread that receives signals until it is stopped.
pub(crate) struct Listener {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Listener {
    /// Calls `on_signal` for each of the first `max` signals. The next one ends the process.
    ///
    /// SIGHUP counts once, because a terminal that is closed may send it twice: by the kernel and by the shell. It
    /// stays ignored if it was ignored when the program started, as with `nohup`.
    pub(crate) fn start(max: u32, mut on_signal: impl FnMut() + Send + 'static) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::System(format!("cannot listen for signals: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        if !is_ignored(SIGHUP) {
            signals.add_signal(SIGHUP).map_err(failed)?;
        }
        let handle = signals.handle();
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let mut hung_up = false;
            let counted = signals.forever().filter(|signal| {
                let repeated = *signal == SIGHUP && hung_up;
                hung_up |= *signal == SIGHUP;
                !repeated
            });
            for (before, _) in (0..).zip(counted) {
                if before >= max {
                    // Destructors do not run.
                    signal_hook::low_level::exit(i32::from(Outcome::Interrupted.exit_status()));
                }
                on_signal();
            }
        });
        Ok(Listener { handle, thread: thread.map_err(failed)? })
    }

    pub(crate) fn stop(self) {
        self.handle.close();
        // A panic of the thread would not change the result of the run.
        drop(self.thread.join());
    }
}

/// Returns true if this process ignores a signal. Only Linux reports it; on other systems the result is false.
fn is_ignored(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
