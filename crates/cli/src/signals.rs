//! Ctrl-C and SIGTERM, counted.
//!
//! Owns the thread that listens. What a signal means is each command's own affair, but for the last: it ends the
//! process at once, whatever the command is busy with.

use std::io;
use std::thread::JoinHandle;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::error::{Error, Outcome};

/// Listens from its start until it is stopped.
pub(crate) struct Listener {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Listener {
    /// Calls `tell` for each signal. The one after the first `most` ends the process.
    pub(crate) fn start(most: u32, mut tell: impl FnMut() + Send + 'static) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::System(format!("cannot listen for signals: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let handle = signals.handle();
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for (before, _) in (0..).zip(signals.forever()) {
                if before >= most {
                    // Whoever asks so often wants it now: nothing is waited for, destructors neither.
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
