//! A shell process that kills the broker's processes when this process has ended, even if it was killed.
//!
//! Owns the deletion of a broker's folder, and the killing of its processes if this process cannot do it. The shell
//! reads a pipe that only this process writes to. Each line names the processes that run now; the end of the pipe means
//! that this process has ended. It kills only processes that were named and have the broker's environment, because the
//! id of one that ended may have been reused.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::{Error, IoContext};

/// `$1` is the folder, which is `HOME` in the environment of each process. A process that has ended, reaped or not, has
/// no environment.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
processes=
while read -r line; do processes=$line; done
is_broker() { grep -qF "HOME=$1" "/proc/$2/environ"; }
for process in $processes; do
    is_broker "$1" "$process" && kill -KILL "$process"
done
for process in $processes; do
    while is_broker "$1" "$process"; do sleep 0.02; done
done
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"#;

#[derive(Debug)]
pub(crate) struct Reaper {
    shell: Child,
    /// Write end of the pipe. Other processes that this one starts do not inherit it.
    pipe: Option<ChildStdin>,
}

impl Reaper {
    /// Starts the shell. From here on the folder is deleted when this process ends.
    pub(crate) fn start(folder: &Path) -> Result<Reaper, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "gristmill-reaper"]).arg(folder).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Signals of the terminal must not interrupt the clean-up.
        let mut shell = command.process_group(0).spawn().context("start sh to clean up after the broker")?;
        let pipe = shell.stdin.take();
        Ok(Reaper { shell, pipe })
    }

    pub(crate) fn set_processes(&mut self, processes: &[u32]) -> Result<(), Error> {
        let ids: Vec<String> = processes.iter().map(u32::to_string).collect();
        let mut line = ids.join(" ");
        line.push('\n');
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        pipe.write_all(line.as_bytes()).context("reach the process that cleans up after the broker")
    }
}

impl Drop for Reaper {
    /// Returns when the processes have ended and the folder is deleted.
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.shell.wait();
    }
}
