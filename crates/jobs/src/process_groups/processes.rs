//! Processes and their groups, read from `/proc`. Systems without it have none.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// Interval between two readings of `/proc` where no event can be awaited.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

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

pub(super) fn session() -> i32 {
    Stat::read("self").map_or(0, |stat| stat.session)
}

pub(super) fn own_group() -> u32 {
    Stat::read("self").map_or(0, |stat| stat.group)
}

/// Processes of a group that have not ended, with their sessions.
pub(super) fn members(group: u32) -> Vec<(u32, i32)> {
    processes().filter_map(|process| Some((process, session_of_member(group, process)?))).collect()
}

/// One process that has not ended, for each group that has one.
pub(super) fn running_processes() -> BTreeMap<u32, u32> {
    let stats = processes().filter_map(|process| Some((process, Stat::read(&process.to_string())?)));
    stats.filter(|(_, stat)| !stat.has_ended).map(|(process, stat)| (stat.group, process)).collect()
}

/// Waits until the process has ended. Returns false at the deadline.
pub(super) fn wait_for_end(process: u32, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    if !left.is_zero() && !poll_end(process, left) {
        std::thread::park_timeout(RETRY_INTERVAL.min(left));
    }
    !left.is_zero()
}

/// Waits up to `limit` for the end of the process or a signal. Returns false at once if the process has just been
/// reaped, or the system has no pidfd.
#[cfg(target_os = "linux")]
fn poll_end(process: u32, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let id = i32::try_from(process).ok().and_then(Pid::from_raw);
    let Some(Ok(pidfd)) = id.map(|id| pidfd_open(id, PidfdFlags::empty())) else { return false };
    let limit = Timespec::try_from(limit).ok();
    let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], limit.as_ref());
    true
}

#[cfg(not(target_os = "linux"))]
fn poll_end(_: u32, _: Duration) -> bool {
    false
}

/// The leader of a group that has the run's id in its environment.
pub(super) fn leader_of_run(run: &str, session: i32) -> Option<u32> {
    let variable = format!("{}={run}", super::ProcessRecord::RUN_ID_VARIABLE);
    for _ in 0..MAX_ENVIRONMENT_READS {
        let mut has_unreadable = false;
        for process in processes() {
            if session_of_member(process, process) != Some(session) {
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
        std::thread::park_timeout(RETRY_INTERVAL);
    }
    None
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
}

/// The session of a process, if it is in the group and has not ended.
fn session_of_member(group: u32, process: u32) -> Option<i32> {
    let stat = Stat::read(&process.to_string())?;
    (stat.group == group && !stat.has_ended).then_some(stat.session)
}

#[cfg(target_os = "linux")]
#[test]
fn group_and_session_are_0_when_their_leaders_are_outside_of_the_namespace() {
    let outside = Stat::parse("24 (a) S (b) S 1 0 0 0 -1 4194560 100");
    assert_eq!(outside, Some(Stat { has_ended: false, group: 0, session: 0 }));
    let ended = Stat::parse("25 (sh) Z 24 25 7 0 -1 4194560 100");
    assert_eq!(ended, Some(Stat { has_ended: true, group: 25, session: 7 }));
    assert_eq!(Stat::parse("26 (sh"), None);
    assert!(Stat::read("self").is_some());
}

#[cfg(target_os = "linux")]
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
