//! Each rule, shown to fail: a sound record with one thing wrong in it.

use super::*;
use crate::record::Ack;

const TOKEN: &str = "w1:00ff/1";

fn change(task: i64, was: &str, now: &str) -> Change {
    let (was, now, owner) = (was.to_owned(), now.to_owned(), Some(TOKEN.to_owned()));
    Change { at: 100.0, task, was, now, owner, crashes: 0, lease: Some(99.9) }
}

fn task(id: i64, errand: Errand, status: &str) -> Task {
    Task {
        id,
        kind: errand.name().to_owned(),
        status: status.to_owned(),
        crashes: 0,
        worker: Some(TOKEN.to_owned()),
        payload: format!(r#"{{"key": "k{id}", "millis": 0, "padding": ""}}"#),
        result: Some(r#"{"by": "w1"}"#.to_owned()),
    }
}

/// Task 1 is swift and completed, task 2 doomed and failed.
fn sound() -> Record {
    Record {
        acks: vec![Ack { id: 1, kind: "swift".to_owned(), key: "k1".to_owned() }],
        notes: vec![Note::Start(1, "w1".to_owned())],
        effects: vec![("k1".to_owned(), 1)],
        tasks: vec![task(1, Errand::Swift, "completed"), task(2, Errand::Doomed, "failed")],
        letters: vec![("2".to_owned(), "doomed".to_owned())],
        history: vec![
            change(1, "pending", "running"),
            change(1, "running", "completed"),
            change(2, "pending", "running"),
            change(2, "running", "failed"),
        ],
        ..Record::default()
    }
}

#[track_caller]
fn check(spoil: impl FnOnce(&mut Record), expected: &str) {
    let mut record = sound();
    spoil(&mut record);
    let found = findings(&record);
    assert!(found.iter().any(|line| line.contains(expected)), "{expected:?} is not in {found:?}");
}

#[test]
fn nothing_is_wrong_with_a_sound_run() {
    assert_eq!(findings(&sound()), Vec::<String>::new());
}

#[test]
fn what_was_acknowledged_must_be_there() {
    check(|record| drop(record.tasks.remove(0)), "was acknowledged and is not there");
    check(|record| record.acks[0].key = "k9".to_owned(), "another has its number");
}

#[test]
fn every_task_must_come_to_a_fitting_end() {
    check(|record| record.tasks[0].status = "running".to_owned(), "never came to an end");
    check(|record| record.tasks[1].status = "completed".to_owned(), "which it cannot be");
    let fail = |record: &mut Record, reason: &str| {
        record.tasks[0].status = "failed".to_owned();
        record.letters.push(("1".to_owned(), reason.to_owned()));
    };
    check(|record| fail(record, "no luck"), "has failed: no luck");
    check(|record| fail(record, "poison pill: its worker died"), "is a poison pill after 0 crashes");
}

#[test]
fn a_failed_task_has_one_letter() {
    check(|record| record.letters.clear(), "has 0 dead letters");
    check(|record| record.letters.push(record.letters[0].clone()), "has 2 dead letters");
    check(
        |record| record.letters.push(("1".to_owned(), String::new())),
        "is completed and has 1 dead letters",
    );
    check(|record| record.letters.push(("9".to_owned(), String::new())), "no such task");
}

#[test]
fn effects_are_those_asked_for() {
    check(|record| record.effects.clear(), "without its effect k1");
    check(|record| record.effects.push(("k2".to_owned(), 2)), "which nobody asked for");
}

#[test]
fn a_task_goes_one_way() {
    check(|record| record.history.push(change(1, "completed", "pending")), "went from completed to pending");
    check(|record| record.history.push(change(1, "running", "completed")), "(it was completed)");
    check(|record| record.history.insert(1, change(1, "running", "running")), "went from running to running");
    check(|record| record.history[1].crashes = 1, "from 0 crashes to 1 as it became completed");
}

#[test]
fn only_its_owner_completes_a_task() {
    let other = Some(r#"{"by": "w2"}"#.to_owned());
    check(|record| record.tasks[0].result = other, r#"completed by Some("w2")"#);
    check(|record| record.notes.push(Note::Start(1, "w1".to_owned())), "more often than it had claimed it");
}

/// A sound record in which task 1 is taken from its worker so many times before it is completed.
fn taken(times: u32) -> Record {
    let mut record = sound();
    let losses = (1..=times).flat_map(|crashes| {
        let freed = Change { crashes, ..change(1, "running", "pending") };
        [freed, Change { crashes, ..change(1, "pending", "running") }]
    });
    record.history.splice(1..1, losses);
    record
        .history
        .iter_mut()
        .filter(|change| change.now == "completed")
        .for_each(|change| change.crashes = times);
    record
}

#[test]
fn the_living_keep_their_tasks_and_the_dead_do_not() {
    check(|record| *record = taken(11), "11 tasks were taken from workers that lived");
    assert_eq!(findings(&taken(10)), Vec::<String>::new());
    let mut dead = taken(30);
    dead.deaths.insert("w1".to_owned(), 99.0);
    assert_eq!(findings(&dead), Vec::<String>::new());
    dead.deaths.insert("w1".to_owned(), 101.0);
    assert_eq!(taken_from_the_living(&dead), 30);
    let mut stopped = taken(30);
    stopped.stops.push((99.0, 101.0));
    assert_eq!(findings(&stopped), Vec::<String>::new());
}

#[test]
fn nobody_is_called_dead_too_soon() {
    let too_soon = |record: &mut Record| {
        *record = taken(1);
        record.history[1].lease = Some(100.5);
    };
    check(too_soon, "before its lease had run out");
    // What a dead one held is free at once.
    let mut dead = taken(1);
    dead.history[1].lease = Some(100.5);
    dead.deaths.insert("w1".to_owned(), 99.0);
    assert_eq!(findings(&dead), Vec::<String>::new());
}

#[test]
fn crashes_without_starts_make_no_poison_pill() {
    let poisoned = |starts: usize| {
        move |record: &mut Record| {
            let pill = Task { crashes: 3, ..task(3, Errand::Swift, "failed") };
            record.tasks.push(pill);
            record.letters.push(("3".to_owned(), "poison pill: its worker died 3 times".to_owned()));
            record.notes.extend((0..starts).map(|_| Note::Start(3, "w1".to_owned())));
        }
    };
    check(poisoned(1), "task 3 was started 1 times and has 3 crashes");
}

#[test]
fn checkpoints_are_found_again_and_go_in_the_end() {
    let looks = || Note::Looks(1, "w1/0".to_owned());
    let resumed = |step| Note::Resumed(1, "w1/0".to_owned(), step);
    let saved = || Note::Saved(1, 2);
    check(|record| record.notes.extend([saved(), looks(), resumed(1)]), "and 2 was acknowledged");
    check(|record| record.notes.push(resumed(0)), "without a look");
    // It was stopped after its look, and another went on meanwhile.
    let mut late = sound();
    late.notes.extend([looks(), saved(), resumed(0)]);
    assert_eq!(findings(&late), Vec::<String>::new());
    check(|record| record.checkpointed.push(1), "checkpoints of task 1 are left");
}

#[test]
fn damage_is_a_finding() {
    check(|record| record.damage.push("row 3 missing from index".to_owned()), "integrity: row 3");
}
