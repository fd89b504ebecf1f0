//! Counts the signals that ask the program to stop: SIGINT (Ctrl-C), SIGTERM and SIGHUP.
//!
//! Owns the thread that listens. What a signal means is each command's own affair, but for the last: it ends the
//! process at once, whatever the command is busy with.

use std::io;
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::error::{Error, Outcome};

/// Listens from its start until it is stopped.
pub(crate) struct Listener {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Listener {
    /// Calls `tell` for each signal. The one after the first `most` ends the process.
    ///
    /// SIGHUP counts once: a terminal that is closed may send it twice, through the kernel and through the shell. It
    /// stays ignored if it was ignored when the program started, as `nohup` does.
    pub(crate) fn start(most: u32, mut tell: impl FnMut() + Send + 'static) -> Result<Self, Error> {
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
                if before >= most {
                    // Nothing is waited for, not even destructors.
                    signal_hook::low_level::exit(i32::from(Outcome::Interrupted.exit_code()));
                }
                tell();
            }
        });
        Ok(Listener { handle, thread: thread.map_err(failed)? })
    }

    pub(crate) fn stop(self) {
        self.handle.close();
        // It cannot panic; and if it could, the work is done all the same.
        drop(self.thread.join());
    }
}

/// Whether this process ignores a signal. Only Linux shows it; on other systems the answer is no.
fn is_ignored(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
