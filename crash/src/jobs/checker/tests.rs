//! Each rule fails for a valid record with one change that violates it.

use super::*;
use crate::harness::Named;

const TOKEN: &str = "w1:00ff/1";

fn change(task: i64, was: &str, now: &str) -> Change {
    let (was, now, owner) = (was.to_owned(), now.to_owned(), Some(TOKEN.to_owned()));
    Change { at: 100.0, task, was, now, owner, crashes: 0, lease: Some(99.9) }
}

fn task(id: i64, kind: TestKind, status: &str) -> Task {
    Task {
        id,
        kind: kind.name(),
        status: status.to_owned(),
        crashes: 0,
        worker: Some(TOKEN.to_owned()),
        payload: format!(r#"{{"key": "k{id}", "millis": 0, "padding": ""}}"#),
        result: Some(r#"{"by": "w1"}"#.to_owned()),
    }
}

fn start(task: i64) -> Event {
    Event::Start { task, worker: "w1".to_owned() }
}

/// Returns a record without violations: task 1 is fast and completed, task 2 failing and failed.
fn valid_record() -> RunRecord {
    RunRecord {
        events: vec![
            Event::Enqueued { task: 1, kind: "fast".to_owned(), key: "k1".to_owned() },
            start(1),
            Event::Effect { task: 1, key: "k1".to_owned() },
        ],
        tasks: vec![task(1, TestKind::Fast, "completed"), task(2, TestKind::Failing, "failed")],
        dead_letters: vec![("2".to_owned(), "failing".to_owned())],
        changes: vec![
            change(1, "pending", "running"),
            change(1, "running", "completed"),
            change(2, "pending", "running"),
            change(2, "running", "failed"),
        ],
        ..RunRecord::default()
    }
}

#[track_caller]
fn check(corrupt: impl FnOnce(&mut RunRecord), expected: &str) {
    let mut record = valid_record();
    corrupt(&mut record);
    let found = violations(&record);
    assert!(found.iter().any(|line| line.contains(expected)), "{expected:?} is not in {found:?}");
}

#[test]
fn valid_record_has_no_violations() {
    assert_eq!(violations(&valid_record()), Vec::<String>::new());
}

#[test]
fn acknowledged_task_must_exist() {
    check(|record| drop(record.tasks.remove(0)), "was acknowledged and does not exist");
    let other = Event::Enqueued { task: 1, kind: "fast".to_owned(), key: "k9".to_owned() };
    check(|record| record.events.push(other), "its id belongs to another task");
}

#[test]
fn task_must_end_in_a_state_its_kind_allows() {
    check(|record| record.tasks[0].status = "running".to_owned(), "it never ended");
    check(|record| record.tasks[1].status = "completed".to_owned(), "its kind cannot complete");
    let fail = |record: &mut RunRecord, reason: &str| {
        record.tasks[0].status = "failed".to_owned();
        record.dead_letters.push(("1".to_owned(), reason.to_owned()));
    };
    check(|record| fail(record, "no luck"), "has failed: no luck");
    check(|record| fail(record, "poison pill: its worker died"), "is a poison pill after 0 crashes");
}

#[test]
fn only_a_failed_task_has_one_dead_letter() {
    check(|record| record.dead_letters.clear(), "has 0 dead letters");
    check(|record| record.dead_letters.push(record.dead_letters[0].clone()), "has 2 dead letters");
    check(|record| record.dead_letters.push(("1".to_owned(), String::new())), "is completed and has 1 dead letters");
    check(|record| record.dead_letters.push(("9".to_owned(), String::new())), "which does not exist");
}

#[test]
fn effects_must_match_completed_tasks() {
    check(|record| drop(record.events.pop()), "without its effect k1");
    let other = Event::Effect { task: 2, key: "k2".to_owned() };
    check(|record| record.events.push(other), "which belongs to no task");
}

#[test]
fn status_change_must_be_allowed() {
    check(|record| record.changes.push(change(1, "completed", "pending")), "went from completed to pending");
    check(|record| record.changes.push(change(1, "running", "completed")), "(it was completed)");
    check(|record| record.changes.insert(1, change(1, "running", "running")), "went from running to running");
    check(|record| record.changes[1].crashes = 1, "from 0 crashes to 1 as it became completed");
}

#[test]
fn task_must_be_completed_by_its_owner() {
    let other = Some(r#"{"by": "w2"}"#.to_owned());
    check(|record| record.tasks[0].result = other, r#"completed by Some("w2")"#);
    check(|record| record.events.push(start(1)), "more often than it had claimed it");
}

/// Returns a valid record in which task 1 is taken from its worker `times` times before it is completed.
fn taken(times: u32) -> RunRecord {
    let mut record = valid_record();
    let losses = (1..=times).flat_map(|crashes| {
        let freed = Change { crashes, ..change(1, "running", "pending") };
        [freed, Change { crashes, ..change(1, "pending", "running") }]
    });
    record.changes.splice(1..1, losses);
    record.changes.iter_mut().filter(|change| change.now == "completed").for_each(|change| change.crashes = times);
    record
}

#[test]
fn live_workers_may_lose_few_tasks_and_dead_or_suspended_ones_all() {
    check(|record| *record = taken(11), "11 tasks were taken from live workers");
    assert_eq!(violations(&taken(10)), Vec::<String>::new());
    let mut dead = taken(30);
    dead.deaths.insert("w1".to_owned(), 99.0);
    assert_eq!(violations(&dead), Vec::<String>::new());
    dead.deaths.insert("w1".to_owned(), 101.0);
    assert_eq!(taken_from_live_workers(&dead), 30);
    let mut suspended = taken(30);
    suspended.suspensions.push((99.0, 101.0));
    assert_eq!(violations(&suspended), Vec::<String>::new());
}

#[test]
fn live_worker_keeps_its_task_until_its_lease_expires() {
    let too_soon = |record: &mut RunRecord| {
        *record = taken(1);
        record.changes[1].lease = Some(100.5);
    };
    check(too_soon, "before its lease expired");
    // Tasks of a dead worker are released immediately.
    let mut dead = taken(1);
    dead.changes[1].lease = Some(100.5);
    dead.deaths.insert("w1".to_owned(), 99.0);
    assert_eq!(violations(&dead), Vec::<String>::new());
}

#[test]
fn poison_pill_must_have_been_started() {
    let poisoned = |starts: usize| {
        move |record: &mut RunRecord| {
            let pill = Task { crashes: 3, ..task(3, TestKind::Fast, "failed") };
            record.tasks.push(pill);
            record.dead_letters.push(("3".to_owned(), "poison pill: its worker died 3 times".to_owned()));
            record.events.extend((0..starts).map(|_| start(3)));
        }
    };
    check(poisoned(1), "task 3 was started 1 times and has 3 crashes");
}

#[test]
fn acknowledged_checkpoints_are_found_and_deleted_at_the_end() {
    let lookup = || Event::LookUp { task: 1, lookup: "w1/0".to_owned() };
    let resumed = |step| Event::Resumed { task: 1, lookup: "w1/0".to_owned(), step };
    let saved = || Event::Saved { task: 1, step: 2 };
    check(|record| record.events.extend([saved(), lookup(), resumed(1)]), "but step 2 was acknowledged");
    check(|record| record.events.push(resumed(0)), "without a lookup");
    // The worker was suspended after its lookup, and another worker continued meanwhile.
    let mut late = valid_record();
    late.events.extend([lookup(), saved(), resumed(0)]);
    assert_eq!(violations(&late), Vec::<String>::new());
    check(|record| record.checkpointed.push(1), "checkpoints of task 1 are left");
}

#[test]
fn damage_is_a_violation() {
    check(|record| record.damage.push("row 3 missing from index".to_owned()), "integrity: row 3");
}
