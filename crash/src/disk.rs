//! Disk faults: a small disk that can be filled up, and disk operations that fail at times.
//!
//! Owns the calls of `mount` and `strace`, and the messages where a machine refuses them. Knows nothing about tasks.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gristmill_check::Rng;

use crate::{Error, ErrorContext};

/// Enough for the database, its WAL (16 MiB between two checkpoints) and a reserve.
const SMALL_DISK_SIZE: &str = "40m";

/// Unmounts a folder when its standard input ends, even if the harness is interrupted or killed.
const UNMOUNT_SCRIPT: &str = r#"trap "" INT TERM HUP; cat; umount "$0" || umount --lazy "$0""#;

/// A small tmpfs, mounted until it is dropped.
pub(crate) struct SmallDisk {
    folder: PathBuf,
    unmounter: Child,
}

impl SmallDisk {
    pub(crate) fn mount(folder: &Path) -> Result<Self, Error> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={SMALL_DISK_SIZE}"), "gristmill-crash"]).arg(folder);
        run_or_refuse(&mut mount, |why| format!("a small tmpfs cannot be mounted: {}", why.trim()))?;
        let mut unmounter = Command::new("sh");
        unmounter.args(["-c", UNMOUNT_SCRIPT]).arg(folder).stdin(Stdio::piped());
        let unmounter = unmounter.spawn().context("cannot start the process that unmounts the small disk")?;
        Ok(SmallDisk { folder: folder.to_path_buf(), unmounter })
    }

    /// Uses all free space.
    pub(crate) fn fill(&self) -> Result<(), Error> {
        let path = self.filler();
        let mut file = File::create(path).context("cannot create the file that fills the disk")?;
        // Writes whole pages, because a partial write would leave space for a small one.
        while file.write_all(&[0; 4_096]).is_ok() {}
        Ok(())
    }

    /// Frees the space that [`SmallDisk::fill`] used.
    pub(crate) fn free(&self) -> Result<(), Error> {
        std::fs::remove_file(self.filler()).context("cannot remove the file that fills the disk")
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    pub(crate) fn copy_files_to(&self, to: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(to)?;
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        Ok(())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.unmounter.stdin.take());
        let unmounted = self.unmounter.wait();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("cannot unmount {0}; run `umount {0}`", self.folder.display());
        }
    }
}

/// Proof that `strace` can inject failures into system calls here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strace(());

impl Strace {
    /// Runs `strace` once, because it may be installed but not permitted.
    pub(crate) fn detect() -> Result<Self, Error> {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "true"]);
        let first_line = |why: &str| why.lines().next().unwrap_or("no reason given").to_owned();
        run_or_refuse(&mut strace, |why| format!("strace cannot be used: {}", first_line(why))).map(Strace)
    }

    /// Returns a command that runs `program` with random failures of its system calls on these files, and logs them.
    pub(crate) fn fail_at_times(self, program: &Path, files: &[PathBuf], log: &Path, rng: &mut Rng) -> Command {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o"]).arg(log);
        command.args(["-e", "trace=fsync,fdatasync,pwrite64,pread64,ftruncate"]);
        for file in files {
            command.arg("-P").arg(file);
        }
        let mut inject = |calls: &str, first: u64, step: u64| {
            let (first, step) = (rng.u64(first..first * 4), rng.u64(step..step * 4));
            command.args(["-e", &format!("inject={calls}:error=EIO:when={first}+{step}")]);
        };
        inject("fsync,fdatasync", 5, 15);
        inject("pwrite64", 50, 200);
        inject("ftruncate", 2, 5);
        // Not for all processes: opening the database after a crash reads its whole WAL and would rarely succeed.
        if rng.percent(30) {
            let first = rng.u64(20..600);
            command.args(["-e", &format!("inject=pread64:error=EIO:when={first}+{first}")]);
        }
        command.arg(program);
        command
    }
}

/// Runs a command. If this machine does not support it, `refusal` makes the message from the reason.
fn run_or_refuse(command: &mut Command, refusal: impl Fn(&str) -> String) -> Result<(), Error> {
    let refused = |why: &str| Error::Unsupported(refusal(why));
    let output = command.stdin(Stdio::null()).output().map_err(|error| refused(&error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(refused(&String::from_utf8_lossy(&output.stderr))) }
}

/// Counts the calls of this name that a log of [`Strace::fail_at_times`] marks as made to fail.
pub(crate) fn count_failed_calls(log: &Path, call: &str) -> usize {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().filter(|line| line.ends_with("(INJECTED)") && line.contains(call)).count()
}
