//! Commands that a killed worker left running: which are killed, and what becomes of their records.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use gristmill_jobs::{ProcessGroups, ProcessRecord};
use gristmill_store::process;
use tempfile::TempDir;

struct Fixture {
    folder: TempDir,
    groups: ProcessGroups,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let groups = ProcessGroups::for_database(&folder.path().join("work.db"));
        Fixture { folder, groups }
    }

    fn records(&self) -> PathBuf {
        self.folder.path().join("work.db-commands")
    }

    fn path(&self, record: &ProcessRecord) -> PathBuf {
        let mut paths = fs::read_dir(self.records()).unwrap().map(|entry| entry.unwrap().path());
        paths.find(|path| path.to_str().unwrap().ends_with(record.run_id())).unwrap()
    }

    /// Leaves a copy of the record with the changes of `edit` to its lines: worker, session, work, run, leader, group.
    fn leave(&self, record: ProcessRecord, edit: impl Fn(&mut Vec<String>)) {
        let path = self.path(&record);
        let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        edit(&mut lines);
        fs::write(path.with_extension("left"), lines.join("\n") + "\n").unwrap();
        drop(record);
    }

    /// Leaves the record of a command whose worker died.
    fn orphan(&self, child: &Child, work: &str) {
        let mut record = self.groups.record(work);
        record.started(child.id());
        self.leave(record, |lines| lines[0] = dead_worker());
    }
}

fn start(script: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", script]).process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Returns when every process of the command has ended.
fn wait_for_end(child: &mut Child) {
    child.wait().unwrap();
    child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
}

fn dead_worker() -> String {
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let tag = process::tag_of(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    tag
}

#[test]
fn command_is_killed_when_its_worker_died_before_recording_the_leader() {
    let fixture = Fixture::new();
    let record = fixture.groups.record("task 1");
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 600 & wait"]).process_group(0).stdout(Stdio::piped());
    let mut left = command.env(ProcessRecord::RUN_ID_VARIABLE, record.run_id()).spawn().unwrap();
    let mut other = command.env(ProcessRecord::RUN_ID_VARIABLE, "another-run").spawn().unwrap();
    fixture.leave(record, |lines| lines[0] = dead_worker());
    assert_eq!(fixture.groups.kill_orphans(None), 1);
    wait_for_end(&mut left);
    assert!(other.try_wait().unwrap().is_none());
    fixture.orphan(&other, "task 2");
    assert_eq!(fixture.groups.kill_orphans(None), 1);
    wait_for_end(&mut other);
}

#[test]
fn kill_orphans_kills_groups_of_dead_workers_only() {
    let fixture = Fixture::new();
    let (mut left, mut living) = (start("sleep 600 & wait"), start("sleep 600 & wait"));
    fixture.orphan(&left, "task 1");
    let mut kept = fixture.groups.record("task 2");
    kept.started(living.id());
    assert_eq!(fixture.groups.kill_orphans(None), 1);
    wait_for_end(&mut left);
    assert!(living.try_wait().unwrap().is_none());
    assert_eq!(fixture.groups.kill_orphans(Some("task 1")), 0, "it is killed once");
    // A run that has lost its task to the caller is killed, too.
    assert_eq!(fixture.groups.kill_orphans(Some("task 2")), 1);
    wait_for_end(&mut living);
    drop(kept);
    assert!(!fixture.records().exists());
}

#[test]
fn incomplete_records_are_deleted_when_they_are_old() {
    let fixture = Fixture::new();
    let kept = fixture.groups.record("task 1");
    let path = fixture.path(&kept);
    let names = ["old", "new"].map(|name| path.with_extension(name));
    names.iter().for_each(|name| fs::write(name, "process 1 on x").unwrap());
    let two_hours_ago = SystemTime::now() - Duration::from_secs(2 * 3_600);
    File::options().write(true).open(&names[0]).unwrap().set_modified(two_hours_ago).unwrap();
    assert_eq!(fixture.groups.kill_orphans(None), 0);
    assert_eq!(names.map(|name| name.exists()), [false, true]);
    assert!(path.exists());
}

#[test]
fn children_are_killed_when_their_leader_has_ended() {
    let fixture = Fixture::new();
    let mut left = start("sleep 600 & exit 0");
    fixture.orphan(&left, "task 1");
    left.wait().unwrap();
    assert_eq!(fixture.groups.kill_orphans(None), 1);
    wait_for_end(&mut left);
}

#[test]
fn commands_that_ignore_sigterm_share_one_grace_period() {
    let fixture = Fixture::new();
    let mut left: Vec<Child> = (0..5).map(|_| start("trap '' TERM; echo ready; sleep 600")).collect();
    for (number, child) in left.iter_mut().enumerate() {
        let mut line = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        fixture.orphan(child, &format!("task {number}"));
    }
    assert_eq!(fixture.groups.kill_orphans(None), 5);
    left.iter_mut().for_each(wait_for_end);
}

#[test]
fn group_number_reused_by_another_process_is_not_killed() {
    let fixture = Fixture::new();
    let mut other = start("exec sleep 600");
    let mut record = fixture.groups.record("task 1");
    record.started(other.id());
    fixture.leave(record, |lines| {
        lines[0] = dead_worker();
        lines[4] = lines[4].replace(", start ", ", start 1");
    });
    assert_eq!(fixture.groups.kill_orphans(None), 0);
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn records_of_an_earlier_boot_are_deleted() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.records()).unwrap();
    fs::write(fixture.records().join("00000000-4026531836-77"), "").unwrap();
    assert_eq!(fixture.groups.kill_orphans(None), 0);
    assert!(!fixture.records().exists());
}
