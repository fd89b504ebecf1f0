//! Rules that hold for every run, whatever was killed when.
//!
//! A rule reads only a [`RunRecord`], so a test can show that it fails.

use std::collections::{BTreeMap, HashMap, HashSet};

use clap::ValueEnum;

use super::history::{Change, RunRecord, Task, name_of};
use super::log::Event;
use super::task_kinds::{CompletedBy, Payload, TestKind};

/// Crashes after which a task is a poison pill; the default of a runner.
const MAX_CRASHES: u32 = 3;

/// Beginning of the reason in a poison pill's dead letter.
const POISON_PILL_PREFIX: &str = "poison pill";

/// Returns one line for each violation of a rule.
pub(crate) fn violations(record: &RunRecord) -> Vec<String> {
    let rules: [fn(&RunRecord) -> Vec<String>; 10] = [
        integrity_is_ok,
        acknowledged_tasks_exist,
        tasks_end_in_a_valid_state,
        failed_tasks_have_one_dead_letter,
        effects_match_tasks,
        status_changes_are_valid,
        owners_complete_tasks,
        leases_are_respected,
        crashes_do_not_exceed_starts,
        checkpoints_survive,
    ];
    rules.iter().flat_map(|rule| rule(record)).collect()
}

fn integrity_is_ok(record: &RunRecord) -> Vec<String> {
    record.damage.iter().map(|line| format!("integrity: {line}")).collect()
}

/// Acknowledged tasks exist. Compares id, kind and key, because an id alone could have been reused for another task.
fn acknowledged_tasks_exist(record: &RunRecord) -> Vec<String> {
    let tasks = by_id(record);
    let lost = record.events.iter().filter_map(|event| {
        let Event::Enqueued { task: id, kind, key: ack_key } = event else { return None };
        let text = format!("task {id} ({kind} {ack_key}) was acknowledged");
        match tasks.get(id) {
            None => Some(format!("{text} and does not exist")),
            Some(task) if task.kind != *kind || key(task).as_ref() != Some(ack_key) => {
                Some(format!("{text}, but its id belongs to another task: {} {:?}", task.kind, key(task)))
            }
            Some(_) => None,
        }
    });
    lost.collect()
}

/// A task is completed, or failed for a reason that its kind allows.
fn tasks_end_in_a_valid_state(record: &RunRecord) -> Vec<String> {
    let reasons: HashMap<&str, &str> =
        record.dead_letters.iter().map(|(task, reason)| (task.as_str(), reason.as_str())).collect();
    let violations = record.tasks.iter().filter_map(|task| {
        let violation = |what: String| Some(format!("task {} ({}) {what}", task.id, task.kind));
        let Ok(kind) = TestKind::from_str(&task.kind, false) else {
            return violation("has an unknown kind".to_owned());
        };
        let reason = reasons.get(task.id.to_string().as_str()).copied().unwrap_or_default();
        let poisoned = reason.starts_with(POISON_PILL_PREFIX);
        match task.status.as_str() {
            "completed" if kind.succeeds() => None,
            "completed" => violation("is completed, although its kind cannot complete".to_owned()),
            "failed" if poisoned && task.crashes < MAX_CRASHES => {
                violation(format!("is a poison pill after {} crashes", task.crashes))
            }
            "failed" if poisoned || record.bad_disk || kind == TestKind::Failing => None,
            "failed" => violation(format!("has failed: {reason}")),
            status => violation(format!("is {status}; it never ended")),
        }
    });
    violations.collect()
}

fn failed_tasks_have_one_dead_letter(record: &RunRecord) -> Vec<String> {
    let mut dead_letters: BTreeMap<&str, u32> = BTreeMap::new();
    for (task, _) in &record.dead_letters {
        *dead_letters.entry(task).or_default() += 1;
    }
    let mut found = Vec::new();
    for task in &record.tasks {
        let count = dead_letters.remove(task.id.to_string().as_str()).unwrap_or(0);
        if count != u32::from(task.status == "failed") {
            found.push(format!("task {} is {} and has {count} dead letters", task.id, task.status));
        }
    }
    found.extend(dead_letters.keys().map(|task| format!("a dead letter refers to task {task}, which does not exist")));
    found
}

/// Each completed task has applied all its effects, and no other effect exists.
fn effects_match_tasks(record: &RunRecord) -> Vec<String> {
    let applied = effects(record);
    let mut allowed = HashSet::new();
    let mut found = Vec::new();
    for task in &record.tasks {
        let (Ok(kind), Some(key)) = (TestKind::from_str(&task.kind, false), key(task)) else { continue };
        for effect in kind.effects(&key) {
            if task.status == "completed" && !applied.contains_key(effect.as_str()) {
                found.push(format!("task {} is completed without its effect {effect}", task.id));
            }
            allowed.insert(effect);
        }
    }
    let unexpected = applied.iter().filter(|(key, _)| !allowed.contains(**key));
    found.extend(
        unexpected.map(|(key, task)| format!("task {task} applied the effect {key}, which belongs to no task")),
    );
    found
}

/// A task takes only allowed transitions, has one owner at a time, and ends once.
fn status_changes_are_valid(record: &RunRecord) -> Vec<String> {
    let mut states: HashMap<i64, (&str, u32)> = HashMap::new();
    let mut found = Vec::new();
    for change in &record.changes {
        let Change { task, was, now, crashes, .. } = change;
        let is_valid = matches!(
            (was.as_str(), now.as_str()),
            ("scheduled", "pending")
                | ("pending", "running")
                | ("running", "pending" | "scheduled" | "completed" | "failed")
        );
        let (before, crashes_before) = states.get(task).copied().unwrap_or((was, 0));
        if !is_valid || before != was {
            found.push(format!("task {task} went from {was} to {now} (it was {before})"));
        }
        // No worker has died with it, or one has, and then the task was released or dead-lettered.
        let counted = *crashes == crashes_before
            || (*crashes == crashes_before + 1 && matches!(now.as_str(), "pending" | "failed"));
        if !counted {
            found.push(format!("task {task} went from {crashes_before} crashes to {crashes} as it became {now}"));
        }
        states.insert(*task, (now, *crashes));
    }
    found
}

/// The worker in a task's result is the owner of its claim: a late result of an earlier owner is refused. A handler
/// runs only under a claim.
fn owners_complete_tasks(record: &RunRecord) -> Vec<String> {
    let mut found = Vec::new();
    for task in record.tasks.iter().filter(|task| task.status == "completed") {
        let signer = task.result.as_deref().and_then(|text| serde_json::from_str::<CompletedBy>(text).ok());
        let signer = signer.map(|result| result.by);
        let owner = task.worker.as_deref().map(name_of);
        if signer.is_none() || signer.as_deref() != owner {
            found.push(format!("task {} was claimed by {owner:?} and completed by {signer:?}", task.id));
        }
    }
    let mut claims: HashMap<(i64, &str), i64> = HashMap::new();
    for change in record.changes.iter().filter(|change| change.now == "running") {
        let owner = change.owner.as_deref().map(name_of).unwrap_or_default();
        *claims.entry((change.task, owner)).or_default() += 1;
    }
    for event in &record.events {
        let Event::Start { task, worker } = event else { continue };
        let left = claims.entry((*task, worker)).or_default();
        *left -= 1;
        if *left < 0 {
            found.push(format!("{worker} ran task {task} more often than it had claimed it"));
        }
    }
    found
}

/// A live worker keeps its tasks until its lease expires, and renews it. A busy machine may delay some renewals, so a
/// few losses are tolerated. Tasks of a dead process are released immediately.
fn leases_are_respected(record: &RunRecord) -> Vec<String> {
    // The history has a resolution of 1 ms.
    let early = crash_changes(record)
        .filter(|change| change.lease.is_some_and(|lease| change.at + 0.002 < lease) && was_alive(record, change));
    let early: Vec<String> = early
        .map(|Change { task, owner, .. }| format!("task {task} was taken from {owner:?} before its lease expired"))
        .collect();
    if !early.is_empty() {
        return early;
    }
    let taken = taken_from_live_workers(record);
    let tolerated = 10 + record.tasks.len() / 20;
    if record.bad_disk || taken <= tolerated {
        return Vec::new();
    }
    vec![format!("{taken} tasks were taken from live workers; {tolerated} are tolerated")]
}

/// Counts tasks taken from a worker that had not died, was not suspended and did not wait for a suspended one.
pub(crate) fn taken_from_live_workers(record: &RunRecord) -> usize {
    let suspended =
        |change: &Change| record.suspensions.iter().any(|(from, until)| (*from..*until).contains(&change.at));
    crash_changes(record).filter(|change| was_alive(record, change) && !suspended(change)).count()
}

/// Returns whether the process that owned a task was alive at this change. Times of death are the earliest possible.
fn was_alive(record: &RunRecord, change: &Change) -> bool {
    let owner = change.owner.as_deref().map(name_of).unwrap_or_default();
    record.deaths.get(owner).is_none_or(|death| change.at + 0.002 < *death)
}

/// Returns the changes that count a crash, because the task's worker was considered dead.
fn crash_changes(record: &RunRecord) -> impl Iterator<Item = &Change> {
    let mut crashes: HashMap<i64, u32> = HashMap::new();
    record.changes.iter().filter(move |change| {
        let before = crashes.insert(change.task, change.crashes).unwrap_or(0);
        change.crashes > before
    })
}

/// A poison pill was started as often as it counts crashes. The store records a start just before the handler logs it,
/// so one kill may have come between.
fn crashes_do_not_exceed_starts(record: &RunRecord) -> Vec<String> {
    let mut starts: HashMap<i64, u32> = HashMap::new();
    for event in &record.events {
        if let Event::Start { task, .. } = event {
            *starts.entry(*task).or_default() += 1;
        }
    }
    let started = |task: &Task| starts.get(&task.id).copied().unwrap_or(0);
    let excessive = record.tasks.iter().filter(|task| task.status == "failed" && task.crashes > started(task) + 1);
    excessive
        .map(|task| format!("task {} was started {} times and has {} crashes", task.id, started(task), task.crashes))
        .collect()
}

/// A lookup finds every step that was acknowledged before it, and an ended task has no checkpoints.
fn checkpoints_survive(record: &RunRecord) -> Vec<String> {
    let mut saved: HashMap<i64, u32> = HashMap::new();
    let mut expected: HashMap<&str, u32> = HashMap::new();
    let mut found = Vec::new();
    for event in &record.events {
        match event {
            Event::Saved { task, step } => {
                let furthest = saved.entry(*task).or_default();
                *furthest = (*furthest).max(*step);
            }
            Event::LookUp { task, lookup } => {
                expected.insert(lookup, saved.get(task).copied().unwrap_or(0));
            }
            Event::Resumed { task, lookup, step } => match expected.get(lookup.as_str()) {
                Some(furthest) if step >= furthest => {}
                Some(furthest) => {
                    found.push(format!("task {task} resumed after step {step}, but step {furthest} was acknowledged"));
                }
                None => found.push(format!("task {task} resumed after step {step} without a lookup")),
            },
            Event::Enqueued { .. } | Event::Refused { .. } | Event::Start { .. } | Event::Effect { .. } => {}
        }
    }
    let orphans = record
        .checkpointed
        .iter()
        .filter(|id| record.tasks.iter().find(|task| task.id == **id).is_none_or(is_terminal));
    found.extend(orphans.map(|task| format!("checkpoints of task {task} are left, which has ended or does not exist")));
    found
}

/// Returns the effects by key, each with a task that applied it.
pub(crate) fn effects(record: &RunRecord) -> BTreeMap<&str, i64> {
    let effects = record.events.iter().filter_map(|event| match event {
        Event::Effect { task, key } => Some((key.as_str(), *task)),
        _ => None,
    });
    effects.collect()
}

fn is_terminal(task: &Task) -> bool {
    matches!(task.status.as_str(), "completed" | "failed" | "cancelled")
}

fn by_id(record: &RunRecord) -> HashMap<i64, &Task> {
    record.tasks.iter().map(|task| (task.id, task)).collect()
}

fn key(task: &Task) -> Option<String> {
    serde_json::from_str::<Payload>(&task.payload).ok().map(|payload| payload.key)
}

#[cfg(test)]
mod tests;
