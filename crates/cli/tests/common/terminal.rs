//! Runs commands on a pseudo-terminal.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A command that runs on its own terminal.
pub(crate) struct Session {
    screen: File,
    pub(crate) process: Child,
    pub(crate) shown: String,
}

impl Session {
    pub(crate) fn start(mut command: Command, columns: u16) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen, size).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags);
        let end = || Stdio::from(options.open(OsStr::from_bytes(name.to_bytes())).unwrap());
        let process = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Session { screen: File::from(screen), process, shown: String::new() }
    }

    /// Reads until the text is shown.
    pub(crate) fn wait_for(&mut self, words: &str) {
        while !self.shown.contains(words) {
            assert!(self.read(), "{words:?} was not shown: {:?}", self.shown);
        }
    }

    /// Reads more output. Returns false when no process has the terminal open any more.
    pub(crate) fn read(&mut self) -> bool {
        let mut part = [0; 4_096];
        let count = self.screen.read(&mut part).unwrap_or(0);
        self.shown.push_str(&String::from_utf8_lossy(&part[..count]));
        count > 0
    }

    pub(crate) fn answer(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the command and returns its exit status and all output.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        while self.read() {}
        (self.process.wait().unwrap().code(), self.shown)
    }
}
