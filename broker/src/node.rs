//! The processes of a broker: how each is started, heard and ended.
//!
//! Owns the command lines, and the order by which no process is ever unknown to the watcher. What a start that
//! failed means, and whether to try again, is `broker`'s.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, OrFault};
use crate::installation::Program;

/// Waits for a word before it becomes the program: a process whose number the watcher does not know yet does
/// nothing, and ends when we do.
const GATE: &str = r#"read -r go && exec "$@" </dev/null"#;

/// How many lines of a process's output are kept. Erlang says why it ends, then twice what ended.
const KEPT: usize = 100;

/// A process that was started here, and what it says.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Never contended: the lock is here only so that a broker can be shared between threads.
    heard: Mutex<Receiver<String>>,
    kept: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    /// Starts a program that waits for [`Process::go`].
    pub(crate) fn start(
        program: Program,
        more: &[(&'static str, OsString)],
        words: &[OsString],
    ) -> Result<Process, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", GATE, "sh"]).arg(&program.path).args(words);
        command.env_clear().envs(program.environment).envs(more.iter().cloned()).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Signals of our terminal are for us.
        let mut child = command.process_group(0).spawn().or_fault_at("start", &program.path)?;
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (say, heard) = mpsc::channel();
        if let Some(errors) = child.stderr.take() {
            listen(errors, say.clone(), Arc::clone(&kept));
        }
        if let Some(output) = child.stdout.take() {
            listen(output, say, Arc::clone(&kept));
        }
        Ok(Process { child, heard: Mutex::new(heard), kept })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets it become what it was started for.
    pub(crate) fn go(&mut self) -> Result<(), Error> {
        match self.child.stdin.take() {
            Some(mut stdin) => stdin.write_all(b"go\n").or_fault("start a process of the broker"),
            None => Ok(()),
        }
    }

    /// Waits until it says something. Its silence for so long, or its end, is an error.
    pub(crate) fn says(&mut self, words: &str, limit: Duration) -> Result<(), RecvTimeoutError> {
        let heard = self.heard.get_mut().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + limit;
        loop {
            if heard.recv_timeout(until.saturating_duration_since(Instant::now()))?.contains(words) {
                return Ok(());
            }
        }
    }

    /// Waits until it has ended, or so long. It is not reaped by that, so its number stays its own.
    pub(crate) fn ends(&mut self, limit: Duration) -> bool {
        // Its end closes what we listen to; a line with that character in it is never said.
        self.says("\0", limit) == Err(RecvTimeoutError::Disconnected)
    }

    /// What it said last.
    pub(crate) fn last_words(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Sends a signal. A process that has ended keeps its number until it is reaped, so this reaches no other process.
    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(id) = id {
            let _ = kill_process(id, signal);
        }
    }

    /// Reaps it after its end.
    pub(crate) fn reap(&mut self) {
        let _ = self.child.wait();
    }
}

/// Passes on the output of a process and keeps the last lines. A process whose output is not read would stop at a full pipe.
fn listen(from: impl Read + Send + 'static, say: Sender<String>, kept: Arc<Mutex<VecDeque<String>>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(line.clone());
            drop(kept);
            let _ = say.send(line);
        }
    });
}
