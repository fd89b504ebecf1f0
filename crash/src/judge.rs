//! The verdict: what must be true of every run, whatever was killed when.
//!
//! Owns the rules. It looks at a [`Record`] and at nothing else, so each rule can be shown to fail.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::errand::{Errand, Order, Signature};
use crate::record::{Note, Record};
use crate::witness::{Change, Task, name_of};

/// So many workers may die with a task before it is a poison pill; a runner's default.
const MAX_CRASHES: u32 = 3;

/// How the letter of a poison pill begins.
const POISON: &str = "poison pill";

/// What is wrong, a line each. Nothing when all is well.
pub(crate) fn findings(record: &Record) -> Vec<String> {
    let rules: [fn(&Record) -> Vec<String>; 10] = [
        damage,
        acknowledged_tasks_are_there,
        every_task_has_its_end,
        letters_belong_to_failed_tasks,
        one_effect_per_key,
        changes_are_legal,
        completed_by_its_owner,
        leases_are_kept,
        crashes_were_starts,
        checkpoints_are_kept,
    ];
    rules.iter().flat_map(|rule| rule(record)).collect()
}

fn damage(record: &Record) -> Vec<String> {
    record.damage.iter().map(|line| format!("integrity: {line}")).collect()
}

/// By number, kind and key: a number alone could have gone to somebody else's task.
fn acknowledged_tasks_are_there(record: &Record) -> Vec<String> {
    let tasks = by_id(record);
    let lost = record.acks.iter().filter_map(|ack| {
        let text = format!("task {} ({} {}) was acknowledged", ack.id, ack.kind, ack.key);
        match tasks.get(&ack.id) {
            None => Some(format!("{text} and is not there")),
            Some(task) if task.kind != ack.kind || key(task) != Some(ack.key.clone()) => {
                Some(format!("{text}, and another has its number: {} {:?}", task.kind, key(task)))
            }
            Some(_) => None,
        }
    });
    lost.collect()
}

/// Completed, or failed for a reason its kind can have.
fn every_task_has_its_end(record: &Record) -> Vec<String> {
    let reasons: HashMap<&str, &str> =
        record.letters.iter().map(|(task, reason)| (task.as_str(), reason.as_str())).collect();
    let wrong = record.tasks.iter().filter_map(|task| {
        let about = |what: String| Some(format!("task {} ({}) {what}", task.id, task.kind));
        let Some(errand) = Errand::named(&task.kind) else { return about("is of no known kind".to_owned()) };
        let reason = reasons.get(task.id.to_string().as_str()).copied().unwrap_or_default();
        let poisoned = reason.starts_with(POISON);
        match task.status.as_str() {
            "completed" if errand.succeeds() => None,
            "completed" => about("is completed, which it cannot be".to_owned()),
            "failed" if poisoned && task.crashes < MAX_CRASHES => {
                about(format!("is a poison pill after {} crashes", task.crashes))
            }
            "failed" if poisoned || record.bad_disk || errand == Errand::Doomed => None,
            "failed" => about(format!("has failed: {reason}")),
            status => about(format!("is {status}: it never came to an end")),
        }
    });
    wrong.collect()
}

fn letters_belong_to_failed_tasks(record: &Record) -> Vec<String> {
    let mut letters: BTreeMap<&str, u32> = BTreeMap::new();
    for (task, _) in &record.letters {
        *letters.entry(task).or_default() += 1;
    }
    let mut wrong = Vec::new();
    for task in &record.tasks {
        let count = letters.remove(task.id.to_string().as_str()).unwrap_or(0);
        if count != u32::from(task.status == "failed") {
            wrong.push(format!("task {} is {} and has {count} dead letters", task.id, task.status));
        }
    }
    wrong.extend(
        letters.keys().map(|task| format!("there is a dead letter of task {task}, and no such task")),
    );
    wrong
}

/// The table of effects refuses a second one by itself, as a user's would; what is left to see is that each
/// completed task had all of its own, and that nothing had one that should not.
fn one_effect_per_key(record: &Record) -> Vec<String> {
    let had: HashSet<&str> = record.effects.iter().map(|(key, _)| key.as_str()).collect();
    let mut allowed = HashSet::new();
    let mut wrong = Vec::new();
    for task in &record.tasks {
        let (Some(errand), Some(key)) = (Errand::named(&task.kind), key(task)) else { continue };
        for effect in errand.effects(&key) {
            if task.status == "completed" && !had.contains(effect.as_str()) {
                wrong.push(format!("task {} is completed without its effect {effect}", task.id));
            }
            allowed.insert(effect);
        }
    }
    let strays = record.effects.iter().filter(|(key, _)| !allowed.contains(key));
    wrong.extend(
        strays.map(|(key, task)| format!("task {task} had the effect {key}, which nobody asked for")),
    );
    wrong
}

/// A task moves along the arrows of its life, has one owner at a time, and comes to one end.
fn changes_are_legal(record: &Record) -> Vec<String> {
    let mut states: HashMap<i64, (&str, u32)> = HashMap::new();
    let mut wrong = Vec::new();
    for change in &record.history {
        let Change { task, was, now, crashes, .. } = change;
        let legal = matches!(
            (was.as_str(), now.as_str()),
            ("scheduled", "pending")
                | ("pending", "running")
                | ("running", "pending" | "scheduled" | "completed" | "failed")
        );
        let (before, died) = states.get(task).copied().unwrap_or((was, 0));
        if !legal || before != was {
            wrong.push(format!("task {task} went from {was} to {now} (it was {before})"));
        }
        // Either nobody died with it, or one worker, and then it was freed or given up.
        let counted =
            *crashes == died || (*crashes == died + 1 && matches!(now.as_str(), "pending" | "failed"));
        if !counted {
            wrong.push(format!("task {task} went from {died} crashes to {crashes} as it became {now}"));
        }
        states.insert(*task, (now, *crashes));
    }
    wrong
}

/// Whoever signs the result is whose claim it was: a late verdict of an old owner must have been refused. And a
/// handler runs only under a claim.
fn completed_by_its_owner(record: &Record) -> Vec<String> {
    let mut wrong = Vec::new();
    for task in record.tasks.iter().filter(|task| task.status == "completed") {
        let signed = task.result.as_deref().and_then(|text| serde_json::from_str::<Signature>(text).ok());
        let signed = signed.map(|signature| signature.by);
        let owner = task.worker.as_deref().map(name_of);
        if signed.is_none() || signed.as_deref() != owner {
            wrong.push(format!("task {} was claimed by {owner:?} and completed by {signed:?}", task.id));
        }
    }
    let mut claims: HashMap<(i64, &str), i64> = HashMap::new();
    for change in record.history.iter().filter(|change| change.now == "running") {
        let owner = change.owner.as_deref().map(name_of).unwrap_or_default();
        *claims.entry((change.task, owner)).or_default() += 1;
    }
    for note in &record.notes {
        let Note::Start(task, worker) = note else { continue };
        let left = claims.entry((*task, worker)).or_default();
        *left -= 1;
        if *left < 0 {
            wrong.push(format!("{worker} ran task {task} more often than it had claimed it"));
        }
    }
    wrong
}

/// A worker that lives is not called dead before its lease has run out. And it prolongs it: a machine may be too busy for
/// that now and then, so some are forgiven. What a process held that has died is free at once.
fn leases_are_kept(record: &Record) -> Vec<String> {
    // The history counts milliseconds.
    let early = deaths(record).filter(|change| {
        change.lease.is_some_and(|lease| change.at + 0.002 < lease) && was_alive(record, change)
    });
    let early: Vec<String> = early
        .map(|Change { task, owner, .. }| {
            format!("task {task} was taken from {owner:?} before its lease had run out")
        })
        .collect();
    if !early.is_empty() {
        return early;
    }
    let taken = taken_from_the_living(record);
    let forgiven = 10 + record.tasks.len() / 20;
    if record.bad_disk || taken <= forgiven {
        return Vec::new();
    }
    vec![format!("{taken} tasks were taken from workers that lived; on a busy machine {forgiven} might be")]
}

/// How often a worker was called dead that had neither died nor been stopped, nor waited for one that was.
pub(crate) fn taken_from_the_living(record: &Record) -> usize {
    let stopped =
        |change: &Change| record.stops.iter().any(|(from, until)| (*from..*until).contains(&change.at));
    deaths(record).filter(|change| was_alive(record, change) && !stopped(change)).count()
}

/// Whether the process that owned a task was alive when that changed. Times of deaths are the earliest possible.
fn was_alive(record: &Record, change: &Change) -> bool {
    let owner = change.owner.as_deref().map(name_of).unwrap_or_default();
    record.deaths.get(owner).is_none_or(|death| change.at + 0.002 < *death)
}

/// The changes by which a task lost a worker that was taken for dead.
fn deaths(record: &Record) -> impl Iterator<Item = &Change> {
    let mut crashes: HashMap<i64, u32> = HashMap::new();
    record.history.iter().filter(move |change| {
        let before = crashes.insert(change.task, change.crashes).unwrap_or(0);
        change.crashes > before
    })
}

/// A poison pill was started as often as it counts crashes. A start is noted just before its handler runs, and logged by
/// the handler: one kill may have come between.
fn crashes_were_starts(record: &Record) -> Vec<String> {
    let mut starts: HashMap<i64, u32> = HashMap::new();
    for note in &record.notes {
        if let Note::Start(task, _) = note {
            *starts.entry(*task).or_default() += 1;
        }
    }
    let started = |task: &Task| starts.get(&task.id).copied().unwrap_or(0);
    let wrong =
        record.tasks.iter().filter(|task| task.status == "failed" && task.crashes > started(task) + 1);
    wrong
        .map(|task| {
            format!("task {} was started {} times and has {} crashes", task.id, started(task), task.crashes)
        })
        .collect()
}

/// Who looks finds every step that was acknowledged before; who is done leaves none behind.
fn checkpoints_are_kept(record: &Record) -> Vec<String> {
    let mut saved: HashMap<i64, u32> = HashMap::new();
    let mut expected: HashMap<&str, u32> = HashMap::new();
    let mut wrong = Vec::new();
    for note in &record.notes {
        match note {
            Note::Saved(task, step) => {
                let furthest = saved.entry(*task).or_default();
                *furthest = (*furthest).max(*step);
            }
            Note::Looks(task, look) => {
                expected.insert(look, saved.get(task).copied().unwrap_or(0));
            }
            Note::Resumed(task, look, step) => match expected.get(look.as_str()) {
                Some(furthest) if step >= furthest => {}
                Some(furthest) => wrong
                    .push(format!("task {task} went on after step {step}, and {furthest} was acknowledged")),
                None => wrong.push(format!("task {task} went on after step {step} without a look")),
            },
            Note::Start(..) => {}
        }
    }
    let orphans = record
        .checkpointed
        .iter()
        .filter(|id| record.tasks.iter().find(|task| task.id == **id).is_none_or(is_terminal));
    wrong.extend(
        orphans.map(|task| format!("checkpoints of task {task} are left, and nobody will need them")),
    );
    wrong
}

fn is_terminal(task: &Task) -> bool {
    matches!(task.status.as_str(), "completed" | "failed" | "cancelled")
}

fn by_id(record: &Record) -> HashMap<i64, &Task> {
    record.tasks.iter().map(|task| (task.id, task)).collect()
}

fn key(task: &Task) -> Option<String> {
    serde_json::from_str::<Order>(&task.payload).ok().map(|order| order.key)
}

#[cfg(test)]
mod tests;
