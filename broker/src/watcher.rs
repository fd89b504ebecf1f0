//! A small process that ends the broker's processes when this process has ended, even if it was killed.
//!
//! Owns the deletion of a broker's folder, and the killing of its processes when this process cannot do it any more.
//! It is a shell that reads a pipe whose other end only this process holds. Each line names the processes that run now; the
//! end of the pipe means that this process has ended. It signals only processes that were named and have the broker's
//! environment: another process may have got the number of one that ended.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::{Error, OrFault};

/// `$1` is the folder, which is also the home of each process and so stands in its environment. A process that has
/// ended, reaped or not, has no environment.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
processes=
while read -r line; do processes=$line; done
ours() { grep -qF "HOME=$1" "/proc/$2/environ"; }
for process in $processes; do
    ours "$1" "$process" && kill -KILL "$process"
done
for process in $processes; do
    while ours "$1" "$process"; do sleep 0.02; done
done
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"#;

/// The process that cleans up.
#[derive(Debug)]
pub(crate) struct Watcher {
    shell: Child,
    /// Our end of the pipe. Other processes that we start do not inherit it.
    pipe: Option<ChildStdin>,
}

impl Watcher {
    /// From here on the folder will be deleted, whatever happens.
    pub(crate) fn of(folder: &Path) -> Result<Watcher, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "gristmill-watcher"]).arg(folder).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // What interrupts us at a terminal must not interrupt the cleaning up.
        let mut shell = command.process_group(0).spawn().or_fault("start sh to clean up after the broker")?;
        let pipe = shell.stdin.take();
        Ok(Watcher { shell, pipe })
    }

    /// Names all processes that run now.
    pub(crate) fn tell(&mut self, processes: &[u32]) -> Result<(), Error> {
        let words: Vec<String> = processes.iter().map(u32::to_string).collect();
        let mut line = words.join(" ");
        line.push('\n');
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        pipe.write_all(line.as_bytes()).or_fault("reach the process that cleans up after the broker")
    }
}

impl Drop for Watcher {
    /// Returns when everything is gone.
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.shell.wait();
    }
}
