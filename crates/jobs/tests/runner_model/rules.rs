//! What must be true of every round, whatever was killed when: how tasks end, and what is counted.

use std::collections::{BTreeMap, HashMap, HashSet};

use gristmill_store::dead_letters::DeadLetter;
use gristmill_store::tasks::{TaskRow, TaskStatus};

use crate::log::{End, Event};
use crate::runs;

/// A runner's default.
pub(crate) const MAX_CRASHES: u32 = 3;

/// How the reason of a poison pill begins.
const POISON: &str = "poison pill";

type Rule = fn(&Round<'_>) -> Result<(), String>;

/// What is left of a round.
pub(crate) struct Round<'a> {
    pub(crate) events: &'a [Event],
    pub(crate) tasks: &'a [TaskRow],
    letters: &'a [DeadLetter],
    /// For each task its starts, and how many of them in processes that were killed.
    starts: BTreeMap<i64, (u32, u32)>,
    /// Tasks of which a run has ended well.
    succeeded: HashSet<i64>,
    cancelled: HashSet<i64>,
}

pub(crate) fn check(events: &[Event], tasks: &[TaskRow], letters: &[DeadLetter]) -> Result<(), String> {
    let kill = |event: &Event| match event {
        Event::Kill { process } => Some(*process),
        _ => None,
    };
    let killed: HashSet<u32> = events.iter().filter_map(kill).collect();
    let (mut succeeded, mut cancelled) = (HashSet::new(), HashSet::new());
    let mut starts: BTreeMap<i64, (u32, u32)> = BTreeMap::new();
    for event in events {
        match event {
            Event::Start { task, process, .. } => {
                let counts = starts.entry(*task).or_default();
                counts.0 += 1;
                counts.1 += u32::from(killed.contains(process));
            }
            Event::End { task, end: End::Ok, .. } => drop(succeeded.insert(*task)),
            Event::Cancel { task, .. } => drop(cancelled.insert(*task)),
            _ => {}
        }
    }
    let round = Round { events, tasks, letters, starts, succeeded, cancelled };
    let rules: [Rule; 11] = [
        runs::no_task_runs_beside_itself,
        runs::no_run_outlasts_the_stop_of_its_process,
        runs::nothing_starts_early,
        runs::only_requests_cancel_runs,
        runs::cancelled_tasks_do_not_start,
        every_task_has_its_end,
        letters_belong_to_failed_tasks,
        letters_were_tried,
        crashes_are_starts,
        starts_are_counted,
        runs::priorities_are_in_order,
    ];
    rules.iter().try_for_each(|rule| rule(&round))
}

impl Round<'_> {
    fn starts(&self, task: &TaskRow) -> (u32, u32) {
        self.starts.get(&task.id).copied().unwrap_or_default()
    }

    fn letter(&self, task: &TaskRow) -> Option<&DeadLetter> {
        let id = task.id.to_string();
        self.letters.iter().find(|letter| letter.task_id == id)
    }

    fn is_poison(&self, task: &TaskRow) -> bool {
        self.letter(task).is_some_and(|letter| letter.failure_reason.starts_with(POISON))
    }
}

/// Completed only after a run that ended well, cancelled only if that was asked for, and failed only if its kind, or enough
/// deaths, can make it fail.
fn every_task_has_its_end(round: &Round<'_>) -> Result<(), String> {
    for task in round.tasks {
        let fatal = task.payload.contains("fatal");
        let cancelled = round.cancelled.contains(&task.id);
        let right = match task.status {
            TaskStatus::Completed => round.succeeded.contains(&task.id),
            TaskStatus::Failed => !cancelled && (fatal || round.is_poison(task)),
            TaskStatus::Cancelled => cancelled,
            _ => false,
        };
        if !right {
            return Err(format!("not the right end, dead letter {:?}: {task:?}", round.letter(task)));
        }
    }
    Ok(())
}

fn letters_belong_to_failed_tasks(round: &Round<'_>) -> Result<(), String> {
    let failed = round.tasks.iter().filter(|task| task.status == TaskStatus::Failed);
    let mut failed: Vec<String> = failed.map(|task| task.id.to_string()).collect();
    let mut letters: Vec<String> = round.letters.iter().map(|letter| letter.task_id.clone()).collect();
    failed.sort();
    letters.sort();
    if failed == letters { Ok(()) } else { Err(format!("failed are {failed:?}, dead letters {letters:?}")) }
}

/// A dead letter was started as often as it has failed attempts, and a poison pill as often as it has crashes. The start
/// of a task that may have crashed is noted just before the handler logs it: one kill may have come between.
fn letters_were_tried(round: &Round<'_>) -> Result<(), String> {
    for task in round.tasks.iter().filter(|task| task.status == TaskStatus::Failed) {
        let ((all, in_killed), poison) = (round.starts(task), round.is_poison(task));
        let attempts = round.letter(task).map_or(0, |letter| letter.attempt_count).max(task.attempts);
        let tried = match poison {
            true => task.crashes >= MAX_CRASHES && in_killed + 1 >= task.crashes,
            false => attempts > 0 && all >= attempts,
        };
        if !tried {
            return Err(format!(
                "a dead letter with {all} starts, {in_killed} of them in killed processes: {task:?}"
            ));
        }
    }
    Ok(())
}

/// A crash is a start by a process that was killed. The start is noted just before the handler logs it: one kill may have
/// come between.
fn crashes_are_starts(round: &Round<'_>) -> Result<(), String> {
    let unseen: u32 = round.tasks.iter().map(|task| task.crashes.saturating_sub(round.starts(task).1)).sum();
    if unseen > 2 {
        return Err(format!("{unseen} crashes are of tasks that were not started"));
    }
    for task in round.tasks {
        let (_, in_killed) = round.starts(task);
        if task.crashes > in_killed + 1 {
            return Err(format!("{in_killed} starts in killed processes: {task:?}"));
        }
    }
    Ok(())
}

/// The store counts no start that was not, and forgets only those of processes that were killed. Handlers are told numbers
/// that do not fall.
fn starts_are_counted(round: &Round<'_>) -> Result<(), String> {
    for task in round.tasks {
        let (all, in_killed) = round.starts(task);
        if task.starts > all + 1 || task.starts + in_killed < all {
            return Err(format!("{all} starts, {in_killed} of them in killed processes: {task:?}"));
        }
    }
    let mut last: HashMap<i64, u32> = HashMap::new();
    for event in round.events {
        if let Event::Start { task, attempt, .. } = event
            && let Some(before) = last.insert(*task, *attempt)
            && before > *attempt
        {
            return Err(format!("task {task} was start {before} and then {attempt}"));
        }
    }
    Ok(())
}
