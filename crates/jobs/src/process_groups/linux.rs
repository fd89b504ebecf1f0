//! Processes and their groups, read from `/proc` on Linux.

use std::os::unix::fs::DirBuilderExt;

use rustix::process::{Pid, Signal, kill_process_group};

use super::{BTreeSet, Member, Path, fs, io};

/// Maximum number of times that environments are read while one of them is empty: a process has none for a short time
/// while it executes its program.
const MAX_ENVIRONMENT_READS: usize = 100;

/// A process's entry in `/proc/<process>/stat`. Group and session are 0 if their leader is outside of this pid
/// namespace, as in containers; `getpgrp` and `getsid` of rustix do not support that.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    has_ended: bool,
    group: u32,
    session: i32,
}

impl Stat {
    fn read(process: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name before may contain any character, parentheses too. Then: state, parent, group, session.
        let mut fields = text.rsplit_once(") ")?.1.split(' ');
        let has_ended = matches!(fields.next()?, "Z" | "X");
        let group = fields.nth(1)?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        Some(Stat { has_ended, group, session })
    }
}

pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn session() -> i32 {
    Stat::read("self").map_or(0, |stat| stat.session)
}

pub(super) fn own_group() -> u32 {
    Stat::read("self").map_or(0, |stat| stat.group)
}

pub(super) fn signal(group: u32, kill: bool) {
    let signal = if kill { Signal::KILL } else { Signal::TERM };
    if let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        // Fails if the group has already ended.
        let _ = kill_process_group(group, signal);
    }
}

/// Processes of a group that have not ended.
pub(super) fn members(group: u32) -> Vec<Member> {
    processes().filter_map(|process| member_of(group, process)).collect()
}

/// Groups with a process that has not ended.
pub(super) fn groups() -> BTreeSet<u32> {
    let stats = processes().filter_map(|process| Stat::read(&process.to_string()));
    stats.filter(|stat| !stat.has_ended).map(|stat| stat.group).collect()
}

/// The leader of a group that has the run's id in its environment.
pub(super) fn leader_of_run(run: &str, session: i32) -> Option<u32> {
    let variable = format!("{}={run}", super::ProcessRecord::RUN_ID_VARIABLE);
    for _ in 0..MAX_ENVIRONMENT_READS {
        let mut has_unreadable = false;
        for process in processes() {
            if member_of(process, process).is_none_or(|leader| leader.session != session) {
                continue;
            }
            let Ok(environment) = fs::read(format!("/proc/{process}/environ")) else { continue };
            if environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes()) {
                return Some(process);
            }
            has_unreadable |= environment.is_empty();
        }
        if !has_unreadable {
            return None;
        }
        std::thread::park_timeout(super::POLL_INTERVAL);
    }
    None
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
}

fn member_of(group: u32, process: u32) -> Option<Member> {
    let stat = Stat::read(&process.to_string())?;
    (stat.group == group && !stat.has_ended).then_some(Member { process, session: stat.session })
}

#[test]
fn group_and_session_are_0_when_their_leaders_are_outside_of_the_namespace() {
    let outside = Stat::parse("24 (a) S (b) S 1 0 0 0 -1 4194560 100");
    assert_eq!(outside, Some(Stat { has_ended: false, group: 0, session: 0 }));
    let ended = Stat::parse("25 (sh) Z 24 25 7 0 -1 4194560 100");
    assert_eq!(ended, Some(Stat { has_ended: true, group: 25, session: 7 }));
    assert_eq!(Stat::parse("26 (sh"), None);
    assert!(Stat::read("self").is_some());
}

#[test]
fn leader_of_run_finds_a_command_while_it_executes_its_program() {
    use std::os::unix::process::CommandExt;

    let run = format!("executing-of-{}", std::process::id());
    let mut command = std::process::Command::new("sleep");
    command.arg("60").process_group(0).env(super::ProcessRecord::RUN_ID_VARIABLE, &run);
    for _ in 0..20 {
        let mut child = command.spawn().unwrap();
        assert_eq!(leader_of_run(&run, session()), Some(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(leader_of_run(&run, session()), None);
}
