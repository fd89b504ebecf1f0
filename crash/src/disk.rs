//! Bad disks: one that is small and can be filled up, and one whose writes and syncs fail now and then.
//!
//! Owns how a machine is asked for them, and what to say where it refuses. Nothing here knows about tasks.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::chance::Chance;
use crate::site::Site;
use crate::{OrTrouble, Trouble};

/// Room for the database, its log (16 MiB between two checkpoints) and some more.
const SIZE: &str = "40m";

/// Unmounts a folder as soon as its standard input ends: also when the referee is interrupted or killed.
const KEEPER: &str = r#"trap "" INT TERM HUP; cat; umount "$0" || umount --lazy "$0""#;

/// A small disk, there until it is dropped.
pub(crate) struct SmallDisk {
    folder: PathBuf,
    keeper: Child,
}

impl SmallDisk {
    pub(crate) fn mount(folder: &Path) -> Result<Self, Trouble> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={SIZE}"), "gristmill-crash"]).arg(folder);
        let refused =
            |why: &str| Trouble::NotHere(format!("a small tmpfs cannot be mounted: {}", why.trim()));
        let output = mount.stdin(Stdio::null()).output().map_err(|error| refused(&error.to_string()))?;
        if !output.status.success() {
            return Err(refused(&String::from_utf8_lossy(&output.stderr)));
        }
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER]).arg(folder).stdin(Stdio::piped());
        let keeper = keeper.spawn().or_trouble("cannot start the keeper of the small disk")?;
        Ok(SmallDisk { folder: folder.to_path_buf(), keeper })
    }

    /// Takes all the room that is left.
    pub(crate) fn fill(&self) -> Result<(), Trouble> {
        let path = self.ballast();
        let mut file = File::create(path).or_trouble("cannot create the ballast")?;
        // By pages: a partial write would leave room for a small one.
        while file.write_all(&[0; 4_096]).is_ok() {}
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn free(&self) -> Result<(), Trouble> {
        std::fs::remove_file(self.ballast()).or_trouble("cannot remove the ballast")
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }

    /// Copies what is on it to a folder that stays.
    pub(crate) fn rescue(&self, to: &Path) -> std::io::Result<()> {
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
        drop(self.keeper.stdin.take());
        let unmounted = self.keeper.wait();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} could not be unmounted: do it by hand", self.folder.display());
        }
    }
}

/// A program that has chosen system calls of another one fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strace(());

impl Strace {
    /// Asks it to trace something: it may be there and not be allowed to.
    pub(crate) fn find() -> Result<Self, Trouble> {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "true"]);
        let refused = |why: &str| Trouble::NotHere(format!("strace cannot be used: {}", first_line(why)));
        let output = strace.stdin(Stdio::null()).output().map_err(|error| refused(&error.to_string()))?;
        if !output.status.success() {
            return Err(refused(&String::from_utf8_lossy(&output.stderr)));
        }
        Ok(Strace(()))
    }

    /// The beginning of a command that runs `program`, its calls on the database failing at random turns.
    pub(crate) fn before(self, program: &Path, site: &Site, name: &str, chance: &mut Chance) -> Command {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o"]).arg(site.injections_of(name));
        command.args(["-e", "trace=fsync,fdatasync,pwrite64,pread64,ftruncate"]);
        for path in [site.database(), site.log_of_database()] {
            command.arg("-P").arg(path);
        }
        let mut fail = |calls: &str, first: u64, step: u64| {
            let (first, step) = (chance.within(first..first * 4), chance.within(step..step * 4));
            command.args(["-e", &format!("inject={calls}:error=EIO:when={first}+{step}")]);
        };
        fail("fsync,fdatasync", 5, 15);
        fail("pwrite64", 50, 200);
        fail("ftruncate", 2, 5);
        // Not for everybody: who opens the database after a crash reads all of its log, and would never get far.
        if chance.percent(30) {
            let first = chance.within(20..600);
            command.args(["-e", &format!("inject=pread64:error=EIO:when={first}+{first}")]);
        }
        command.arg(program);
        command
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("it does not say why")
}

/// How many calls were made to fail in this run.
pub(crate) fn injections(site: &Site) -> usize {
    let entries = std::fs::read_dir(site.root()).into_iter().flatten().flatten();
    let traces =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|it| it == "strace"));
    traces.map(|path| injected(&path, "")).sum()
}

/// Whether a member of the crew met a read that failed.
pub(crate) fn a_read_failed(site: &Site, name: &str) -> bool {
    injected(&site.injections_of(name), "pread64") > 0
}

/// How many calls of this name a trace says were made to fail.
fn injected(trace: &Path, call: &str) -> usize {
    let text = std::fs::read(trace).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().filter(|line| line.ends_with("(INJECTED)") && line.contains(call)).count()
}
