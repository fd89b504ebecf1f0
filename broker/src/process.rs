//! Processes of a broker: how each is started, read and signalled.
//!
//! Owns the start sequence: no process executes its program before the reaper knows its id. `broker` decides whether a
//! failed start is retried.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, IoContext};
use crate::installation::Program;

/// Waits for a line before it executes the program: a process that the reaper does not know yet does nothing, and exits
/// when this process does.
const GATE: &str = r#"read -r go && exec "$@" </dev/null"#;

/// Number of output lines kept of a process. Erlang prints two reports after the reason of an exit.
const MAX_RECENT_LINES: usize = 100;

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Never contended: the lock only makes a broker shareable between threads.
    output_lines: Mutex<Receiver<String>>,
    recent: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    /// Starts a program that waits for [`Process::release`].
    pub(crate) fn start(
        program: Program,
        environment: &[(&'static str, OsString)],
        args: &[OsString],
    ) -> Result<Process, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", GATE, "sh"]).arg(&program.path).args(args);
        command.env_clear().envs(program.environment).envs(environment.iter().cloned()).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Signals of the terminal, such as Ctrl-C, must not reach the broker.
        let mut child = command.process_group(0).spawn().context_at("start", &program.path)?;
        let recent = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, output_lines) = mpsc::channel();
        if let Some(errors) = child.stderr.take() {
            read_lines(errors, sender.clone(), Arc::clone(&recent));
        }
        if let Some(output) = child.stdout.take() {
            read_lines(output, sender, Arc::clone(&recent));
        }
        Ok(Process { child, output_lines: Mutex::new(output_lines), recent })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets the process execute its program.
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        match self.child.stdin.take() {
            Some(mut stdin) => stdin.write_all(b"go\n").context("start a process of the broker"),
            None => Ok(()),
        }
    }

    /// Waits until it prints a line with this text. A timeout, or its exit, is an error.
    pub(crate) fn wait_for_output(&mut self, text: &str, limit: Duration) -> Result<(), RecvTimeoutError> {
        let output_lines = self.output_lines.get_mut().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + limit;
        loop {
            if output_lines.recv_timeout(until.saturating_duration_since(Instant::now()))?.contains(text) {
                return Ok(());
            }
        }
    }

    /// Waits up to `limit` until it has exited. Does not reap it, so its id is not reused.
    pub(crate) fn wait_exit(&mut self, limit: Duration) -> bool {
        // Its exit closes the output; no line contains that character.
        self.wait_for_output("\0", limit) == Err(RecvTimeoutError::Disconnected)
    }

    pub(crate) fn recent_output(&self) -> String {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Sends a signal. A process that has ended keeps its id until it is reaped, so no other process is signalled.
    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(id) = id {
            let _ = kill_process(id, signal);
        }
    }

    pub(crate) fn reap(&mut self) {
        let _ = self.child.wait();
    }
}

/// Sends each line of an output to `sender` and keeps the last ones. A process blocks if its output is not read.
fn read_lines(from: impl Read + Send + 'static, sender: Sender<String>, recent: Arc<Mutex<VecDeque<String>>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            let mut recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
            if recent.len() == MAX_RECENT_LINES {
                recent.pop_front();
            }
            recent.push_back(line.clone());
            drop(recent);
            let _ = sender.send(line);
        }
    });
}
