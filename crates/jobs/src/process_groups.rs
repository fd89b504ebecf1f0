//! Records the process groups of running commands, so that a later run can kill those that a killed worker left
//! running.
//!
//! Owns a folder beside the database with a file for each running command: the worker, the name of its work, the run's
//! id and, once the command is started, the leader of its group. A command whose worker was killed before it wrote the
//! leader is found by the run's id in its environment. The file is deleted when its command has ended. Files are not
//! synced, because they are useless after a reboot. A group is killed only if it is certain to be the recorded one,
//! which can be verified only on Linux.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Once};
use std::time::{Duration, Instant};

use gristmill_store::process;

#[cfg(not(target_os = "linux"))]
#[path = "process_groups/unsupported.rs"]
mod system;
#[cfg(target_os = "linux")]
#[path = "process_groups/linux.rs"]
mod system;

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
        let recorded = CommandRecord {
            owner: OWNER.clone(),
            session: system::session(),
            work: work.to_owned(),
            run: run.clone(),
            leader: None,
        };
        let file = self.write(&recorded).inspect_err(|error| warn(&self.folder, error)).ok();
        ProcessRecord { run, file }
    }

    fn write(&self, recorded: &CommandRecord) -> io::Result<(PathBuf, File)> {
        let path = self.folder.join(format!("{}-{}", boot_of(&recorded.owner), recorded.run));
        // Another process may remove the empty folder between the two calls.
        let mut attempts = 0;
        let mut file = loop {
            attempts += 1;
            system::create_folder(&self.folder)?;
            match gristmill_store::private::create_new(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < 10 => {}
                file => break file?,
            }
        };
        file.write_all(recorded.to_text().as_bytes()).inspect_err(|_| drop(fs::remove_file(&path)))?;
        Ok((path, file))
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
        if let Some((path, file)) = &mut self.file {
            let text = leader_text(&process::tag_of(leader), leader);
            if let Err(error) = file.write_all(text.as_bytes()) {
                warn(path, &error);
            }
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

fn leader_text(tag: &str, group: u32) -> String {
    format!("{tag}\n{group}\n")
}

/// The boot and the pid namespace in a tag, as part of a file name.
fn boot_of(tag: &str) -> String {
    let boot = tag.split_once(" (boot ").and_then(|(_, rest)| rest.split_once(", start "));
    boot.map_or_else(|| "unknown".to_owned(), |(boot, _)| boot.replace('/', "-"))
}

#[derive(Debug, PartialEq, Eq)]
struct CommandRecord {
    owner: String,
    session: i32,
    work: String,
    run: String,
    /// Tag of the leader and number of its group; `None` if the worker was killed before it was written.
    leader: Option<(String, u32)>,
}

impl CommandRecord {
    fn to_text(&self) -> String {
        let CommandRecord { owner, session, work, run, leader } = self;
        let leader = leader.as_ref().map_or_else(String::new, |(tag, group)| leader_text(tag, *group));
        format!("{owner}\n{session}\n{work}\n{run}\n{leader}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut next = || lines.next().map(str::to_owned);
        let (owner, session, work, run) = (next()?, next()?.parse().ok()?, next()?, next()?);
        let leader = next().zip(next().and_then(|group| group.parse().ok()));
        Some(CommandRecord { owner, session, work, run, leader })
    }

    /// Number of the group, if it is still the recorded one.
    fn group(&self) -> Option<u32> {
        match &self.leader {
            Some((leader, group)) => self.is_running(leader, *group).then_some(*group),
            None => system::leader_of_run(&self.run, self.session),
        }
    }

    /// Whether the group with this number is still the recorded one. The system does not reuse a number while a group
    /// has it, so if the leader has ended, its children are recognised by their session.
    fn is_running(&self, leader: &str, group: u32) -> bool {
        match process::is_alive(leader) {
            None => false,
            Some(true) => true,
            Some(false) => {
                let members = system::members(group);
                let taken = members.iter().any(|member| member.process == group);
                !taken && members.iter().any(|member| member.session == self.session)
            }
        }
    }

    /// Number of the group, if it runs and is not this process's own.
    fn running_group(&self) -> Option<u32> {
        let group = self.group().filter(|group| *group != system::own_group())?;
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
            let running = system::running_processes();
            groups.retain(|group| running.contains_key(group));
            let next = groups.first().and_then(|group| running.get(group));
            if !next.is_some_and(|process| system::wait_for_end(*process, deadline)) {
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

struct Member {
    process: u32,
    session: i32,
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn start(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Returns when every process of the command has ended.
    fn wait_for_end(child: &mut Child) {
        child.wait().unwrap();
        child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    }

    fn dead_owner() -> String {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let tag = process::tag_of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        tag
    }

    fn recorded(owner: &str, child: &Child, work: &str) -> CommandRecord {
        CommandRecord {
            owner: owner.to_owned(),
            session: system::session(),
            work: work.to_owned(),
            run: format!("{work}-of-{}", child.id()),
            leader: Some((process::tag_of(child.id()), child.id())),
        }
    }

    #[test]
    fn command_is_killed_when_its_worker_died_before_recording_the_leader() {
        let folder = tempfile::tempdir().unwrap();
        let groups = ProcessGroups::for_database(&folder.path().join("work.db"));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & wait"]).process_group(0).stdout(Stdio::piped());
        // Other processes may run the same test.
        let run = format!("run-of-{}", std::process::id());
        let mut left = command.env(ProcessRecord::RUN_ID_VARIABLE, &run).spawn().unwrap();
        let mut other = command.env(ProcessRecord::RUN_ID_VARIABLE, "another-run").spawn().unwrap();
        let found = recorded(&dead_owner(), &left, "task 1");
        groups.write(&CommandRecord { run, leader: None, ..found }).unwrap();
        assert_eq!(groups.kill_orphans(None), 1);
        wait_for_end(&mut left);
        assert!(other.try_wait().unwrap().is_none());
        groups.write(&recorded(&dead_owner(), &other, "task 2")).unwrap();
        assert_eq!(groups.kill_orphans(None), 1);
        wait_for_end(&mut other);
    }

    #[test]
    fn kill_orphans_kills_groups_of_dead_workers_only() {
        let folder = tempfile::tempdir().unwrap();
        let groups = ProcessGroups::for_database(&folder.path().join("work.db"));
        let (mut left, mut living) = (start("sleep 600 & wait"), start("sleep 600 & wait"));
        groups.write(&recorded(&dead_owner(), &left, "task 1")).unwrap();
        let mut kept = groups.record("task 2");
        kept.started(living.id());
        assert_eq!(groups.kill_orphans(None), 1);
        wait_for_end(&mut left);
        assert!(living.try_wait().unwrap().is_none());
        assert_eq!(groups.kill_orphans(Some("task 1")), 0, "it is killed once");
        // A run that has lost its task to the caller is killed, too.
        assert_eq!(groups.kill_orphans(Some("task 2")), 1);
        wait_for_end(&mut living);
        drop(kept);
        assert!(!groups.folder.exists());
    }

    #[test]
    fn incomplete_records_are_deleted_when_they_are_old() {
        let folder = tempfile::tempdir().unwrap();
        let groups = ProcessGroups::for_database(&folder.path().join("work.db"));
        let kept = groups.record("task 1");
        let (path, _) = kept.file.as_ref().unwrap();
        let names = ["old", "new"].map(|name| path.with_file_name(format!("{}-{name}", boot_of(&OWNER))));
        let files = names.each_ref().map(|name| File::create(name).unwrap());
        files[0].set_modified(std::time::SystemTime::now() - 2 * MAX_INCOMPLETE_AGE).unwrap();
        assert_eq!(groups.kill_orphans(None), 0);
        assert_eq!(names.map(|name| name.exists()), [false, true]);
        assert!(path.exists());
    }

    #[test]
    fn children_are_killed_when_their_leader_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let groups = ProcessGroups::for_database(&folder.path().join("work.db"));
        let mut left = start("sleep 600 & exit 0");
        let found = recorded(&dead_owner(), &left, "task 1");
        left.wait().unwrap();
        groups.write(&found).unwrap();
        assert_eq!(groups.kill_orphans(None), 1);
        wait_for_end(&mut left);
    }

    #[test]
    fn commands_that_ignore_sigterm_share_one_grace_period() {
        let folder = tempfile::tempdir().unwrap();
        let groups = ProcessGroups::for_database(&folder.path().join("work.db"));
        let mut left: Vec<Child> = (0..5).map(|_| start("trap '' TERM; echo ready; sleep 600")).collect();
        for (number, child) in left.iter_mut().enumerate() {
            let mut line = [0; 6];
            child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
            groups.write(&recorded(&dead_owner(), child, &format!("task {number}"))).unwrap();
        }
        assert_eq!(groups.kill_orphans(None), 5);
        left.iter_mut().for_each(wait_for_end);
    }

    #[test]
    fn group_number_reused_by_another_process_is_not_killed() {
        let folder = tempfile::tempdir().unwrap();
        let groups = ProcessGroups::for_database(&folder.path().join("work.db"));
        let mut other = start("exec sleep 600");
        let found = recorded(&dead_owner(), &other, "task 1");
        let leader = found.leader.as_ref().map(|(tag, group)| (tag.replace(", start ", ", start 1"), *group));
        groups.write(&CommandRecord { leader, ..found }).unwrap();
        assert_eq!(groups.kill_orphans(None), 0);
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn records_of_an_earlier_boot_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let groups = ProcessGroups::for_database(&folder.path().join("work.db"));
        fs::create_dir(&groups.folder).unwrap();
        fs::write(groups.folder.join("00000000-4026531836-77"), "").unwrap();
        assert_eq!(groups.kill_orphans(None), 0);
        assert!(!groups.folder.exists());
    }

    #[test]
    fn record_is_parsed_as_written() {
        for leader in [None, Some((process::tag(), 7))] {
            let found = CommandRecord {
                owner: process::tag(),
                session: 3,
                work: "task 1".to_owned(),
                run: "17-1".to_owned(),
                leader,
            };
            assert_eq!(CommandRecord::parse(&found.to_text()), Some(found));
        }
        assert_eq!(CommandRecord::parse("process 1 on x"), None);
    }
}
