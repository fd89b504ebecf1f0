//! Records the process groups of running commands, so that a later run can kill those that a killed worker left
//! running.
//!
//! Owns a folder beside the database with a file for each running command: the worker, the name of its work, the run's
//! id and, once the command is started, the leader of its group. A command whose worker was killed before it wrote the
//! leader is found by the run's id in its environment. The file is deleted when its command has ended. Files are not
//! synced, because they are useless after a reboot. A group is killed only if it is certain to be the recorded one,
//! which can be verified only on Linux.

mod processes;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Once};
use std::time::{Duration, Instant};

use gristmill_store::process;

/// How long a group has to end after SIGTERM, and then after SIGKILL.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);

/// Incomplete records older than this are deleted.
const MAX_INCOMPLETE_AGE: Duration = Duration::from_secs(3600);

static OWNER: LazyLock<String> = LazyLock::new(process::tag);

/// The process groups of running commands that use one database.
#[derive(Clone, Debug)]
pub struct ProcessGroups {
    folder: PathBuf,
}

impl ProcessGroups {
    /// Returns the groups of the database at this path. They are recorded in the folder `<database>-commands`.
    pub fn for_database(database: &Path) -> Self {
        let mut folder = gristmill_store::resolve_last_link(database).into_os_string();
        folder.push("-commands");
        ProcessGroups { folder: folder.into() }
    }

    /// Records a command that is about to be started as the leader of a new group, for `work` such as `task 7`.
    pub fn record(&self, work: &str) -> ProcessRecord {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let owner: String = OWNER.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let run = format!("{owner}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let text = format!("{}\n{}\n{work}\n{run}\n", *OWNER, processes::session());
        let path = self.folder.join(format!("{}-{run}", boot_of(&OWNER)));
        let file = self.create(&path, &text).inspect_err(|error| warn(&self.folder, error)).ok();
        ProcessRecord { run, file: file.map(|file| (path, file)) }
    }

    fn create(&self, path: &Path, text: &str) -> io::Result<File> {
        // Another process may remove the empty folder between the two calls.
        let mut attempts = 0;
        let mut file = loop {
            attempts += 1;
            create_folder(&self.folder)?;
            match gristmill_store::private::create_new(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < 10 => {}
                file => break file?,
            }
        };
        file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(file)
    }

    /// Kills the groups of dead workers, and every other group that works on `work`, because its run has lost the
    /// claim. Returns the number of groups.
    pub fn kill_orphans(&self, work: Option<&str>) -> usize {
        let Ok(entries) = fs::read_dir(&self.folder) else { return 0 };
        let boot = boot_of(&OWNER);
        let mut orphans = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let same_machine = |name: &str| name.split('-').next() == boot.split('-').next();
            if !same_machine(&name) {
                // Recorded before a reboot.
                drop(fs::remove_file(&path));
                continue;
            }
            let recorded = fs::read_to_string(&path).ok().and_then(|text| CommandRecord::parse(&text));
            let Some(recorded) = recorded else {
                // Its worker is still writing it, was killed before, or the disk was full.
                if is_old(&path) {
                    drop(fs::remove_file(&path));
                }
                continue;
            };
            let is_dead = process::is_alive(&recorded.owner) == Some(false);
            if is_dead || work == Some(recorded.work.as_str()) {
                orphans.push((path, recorded));
            }
        }
        let ended = terminate_all(orphans.iter().filter_map(|(_, recorded)| recorded.running_group()).collect());
        orphans.iter().for_each(|(path, _)| drop(fs::remove_file(path)));
        drop(fs::remove_dir(&self.folder));
        ended
    }
}

fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn is_old(path: &Path) -> bool {
    let written = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    written.and_then(|written| written.elapsed().ok()).is_some_and(|age| age > MAX_INCOMPLETE_AGE)
}

fn warn(folder: &Path, error: &io::Error) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!(
            folder = %folder.display(),
            %error,
            "cannot record a running command; if this process is killed, the command may run beside the next attempt"
        );
    });
}

/// The record of one command. Drop it when the command has ended.
#[derive(Debug)]
pub struct ProcessRecord {
    run: String,
    file: Option<(PathBuf, File)>,
}

impl ProcessRecord {
    /// Environment variable that the command must have, with [`run_id`](Self::run_id) as its value.
    pub const RUN_ID_VARIABLE: &str = "GRISTMILL_RUN_ID";

    /// Id of this run of the command.
    pub fn run_id(&self) -> &str {
        &self.run
    }

    /// Adds the started process, which is the leader of its group.
    pub fn started(&mut self, leader: u32) {
        if let Some((path, file)) = &mut self.file
            && let Err(error) = file.write_all(format!("{}\n{leader}\n", process::tag_of(leader)).as_bytes())
        {
            warn(path, &error);
        }
    }
}

impl Drop for ProcessRecord {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.file {
            drop(fs::remove_file(path));
            // Fails while the folder has other files.
            path.parent().map(fs::remove_dir);
        }
    }
}

/// The boot and the pid namespace in a tag, as part of a file name.
fn boot_of(tag: &str) -> String {
    let boot = tag.split_once(" (boot ").and_then(|(_, rest)| rest.split_once(", start "));
    boot.map_or_else(|| "unknown".to_owned(), |(boot, _)| boot.replace('/', "-"))
}

/// A record as it is read, with a line for each field.
struct CommandRecord {
    owner: String,
    session: i32,
    work: String,
    run: String,
    /// Tag of the leader and number of its group; `None` if the worker was killed before it was written.
    leader: Option<(String, u32)>,
}

impl CommandRecord {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut next = || lines.next().map(str::to_owned);
        let (owner, session, work, run) = (next()?, next()?.parse().ok()?, next()?, next()?);
        let leader = next().zip(next().and_then(|group| group.parse().ok()));
        Some(CommandRecord { owner, session, work, run, leader })
    }

    /// Number of the group, if it is still the recorded one. The system does not reuse a number while a group has it, so
    /// if the leader has ended, its children are recognised by their session.
    fn group(&self) -> Option<u32> {
        let Some((leader, group)) = &self.leader else { return processes::leader_of_run(&self.run, self.session) };
        let is_same = match process::is_alive(leader)? {
            true => true,
            false => {
                let members = processes::members(*group);
                let taken = members.iter().any(|(process, _)| process == group);
                !taken && members.iter().any(|(_, session)| *session == self.session)
            }
        };
        is_same.then_some(*group)
    }

    /// Number of the group, if it runs and is not this process's own.
    fn running_group(&self) -> Option<u32> {
        let group = self.group().filter(|group| *group != processes::own_group())?;
        tracing::warn!(group, work = self.work, owner = self.owner, "killing an orphaned command");
        Some(group)
    }
}

/// Terminates all groups at the same time, with all their processes. Returns the number of groups.
fn terminate_all(mut groups: Vec<u32>) -> usize {
    let count = groups.len();
    for kill in [false, true] {
        groups.iter().for_each(|group| signal_group(*group, kill));
        let deadline = Instant::now() + TERMINATE_TIMEOUT;
        while !groups.is_empty() {
            let running = processes::running_processes();
            groups.retain(|group| running.contains_key(group));
            let next = groups.first().and_then(|group| running.get(group));
            if !next.is_some_and(|process| processes::wait_for_end(*process, deadline)) {
                break;
            }
        }
    }
    count
}

/// Sends SIGTERM or SIGKILL to the processes of a group.
#[cfg(unix)]
pub(crate) fn signal_group(group: u32, kill: bool) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let signal = if kill { Signal::KILL } else { Signal::TERM };
    if let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        // Fails if the group has already ended.
        let _ = kill_process_group(group, signal);
    }
}

/// Does nothing: this system has no process groups.
#[cfg(not(unix))]
pub(crate) fn signal_group(_: u32, _: bool) {}
