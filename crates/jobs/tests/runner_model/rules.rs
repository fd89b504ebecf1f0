//! Rules for the tasks of every round: their final status, dead letters, and counts of starts and crashes.

use std::collections::{BTreeMap, HashMap, HashSet};

use gristmill_store::dead_letters::DeadLetter;
use gristmill_store::tasks::{TaskRow, TaskStatus};

use crate::log::{Event, Outcome};
use crate::runs;

/// Default of a runner.
pub(crate) const MAX_CRASHES: u32 = 3;

/// Beginning of the failure reason of a poison pill.
const POISON: &str = "poison pill";

type Rule = fn(&History<'_>) -> Result<(), String>;

/// The log of a round and its tasks at the end.
pub(crate) struct History<'a> {
    pub(crate) events: &'a [Event],
    pub(crate) tasks: &'a [TaskRow],
    dead_letters: &'a [DeadLetter],
    /// For each task its number of starts, and of those in processes that were killed.
    starts: BTreeMap<i64, (u32, u32)>,
    /// Tasks with a run that succeeded.
    succeeded: HashSet<i64>,
    cancelled: HashSet<i64>,
}

pub(crate) fn check(events: &[Event], tasks: &[TaskRow], dead_letters: &[DeadLetter]) -> Result<(), String> {
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
            Event::End { task, outcome: Outcome::Ok, .. } => drop(succeeded.insert(*task)),
            Event::Cancel { task, .. } => drop(cancelled.insert(*task)),
            _ => {}
        }
    }
    let history = History { events, tasks, dead_letters, starts, succeeded, cancelled };
    let rules: [Rule; 11] = [
        runs::no_task_runs_twice_at_a_time,
        runs::no_run_outlasts_the_stop_of_its_process,
        runs::nothing_starts_early,
        runs::only_requests_cancel_runs,
        runs::cancelled_tasks_do_not_start,
        every_task_is_finished_correctly,
        dead_letters_match_failed_tasks,
        dead_letters_were_attempted,
        crashes_match_starts_in_killed_processes,
        stored_starts_match_the_log,
        runs::priorities_are_in_order,
    ];
    rules.iter().try_for_each(|rule| rule(&history))
}

impl History<'_> {
    fn starts(&self, task: &TaskRow) -> (u32, u32) {
        self.starts.get(&task.id).copied().unwrap_or_default()
    }

    fn dead_letter(&self, task: &TaskRow) -> Option<&DeadLetter> {
        let id = task.id.to_string();
        self.dead_letters.iter().find(|dead_letter| dead_letter.task_id == id)
    }

    fn is_poison(&self, task: &TaskRow) -> bool {
        self.dead_letter(task).is_some_and(|dead_letter| dead_letter.failure_reason.starts_with(POISON))
    }
}

/// A task is completed only after a run that succeeded, cancelled only after a request, and failed only if its payload
/// asks for it or it is a poison pill.
fn every_task_is_finished_correctly(history: &History<'_>) -> Result<(), String> {
    for task in history.tasks {
        let fatal = task.payload.contains("fatal");
        let cancelled = history.cancelled.contains(&task.id);
        let is_correct = match task.status {
            TaskStatus::Completed => history.succeeded.contains(&task.id),
            TaskStatus::Failed => !cancelled && (fatal || history.is_poison(task)),
            TaskStatus::Cancelled => cancelled,
            _ => false,
        };
        if !is_correct {
            return Err(format!("wrong status, dead letter {:?}: {task:?}", history.dead_letter(task)));
        }
    }
    Ok(())
}

fn dead_letters_match_failed_tasks(history: &History<'_>) -> Result<(), String> {
    let failed = history.tasks.iter().filter(|task| task.status == TaskStatus::Failed);
    let mut failed: Vec<String> = failed.map(|task| task.id.to_string()).collect();
    let mut dead_letters: Vec<String> =
        history.dead_letters.iter().map(|dead_letter| dead_letter.task_id.clone()).collect();
    failed.sort();
    dead_letters.sort();
    if failed == dead_letters { Ok(()) } else { Err(format!("failed tasks {failed:?}, dead letters {dead_letters:?}")) }
}

/// A dead letter was started at least as often as it has failed attempts, and a poison pill as often as it has crashes.
/// The start of a task that may have crashed is recorded just before the handler logs it, so one kill may be between
/// the two.
fn dead_letters_were_attempted(history: &History<'_>) -> Result<(), String> {
    for task in history.tasks.iter().filter(|task| task.status == TaskStatus::Failed) {
        let ((all, in_killed), poison) = (history.starts(task), history.is_poison(task));
        let attempts = history.dead_letter(task).map_or(0, |dead_letter| dead_letter.attempt_count).max(task.attempts);
        let tried = match poison {
            true => task.crashes >= MAX_CRASHES && in_killed + 1 >= task.crashes,
            false => attempts > 0 && all >= attempts,
        };
        if !tried {
            return Err(format!("a dead letter with {all} starts, {in_killed} of them in killed processes: {task:?}"));
        }
    }
    Ok(())
}

/// A crash is a start by a process that was killed. The start is recorded just before the handler logs it, so one kill
/// may be between the two.
fn crashes_match_starts_in_killed_processes(history: &History<'_>) -> Result<(), String> {
    let unseen: u32 = history.tasks.iter().map(|task| task.crashes.saturating_sub(history.starts(task).1)).sum();
    if unseen > 2 {
        return Err(format!("{unseen} crashes of tasks that were not started"));
    }
    for task in history.tasks {
        let (_, in_killed) = history.starts(task);
        if task.crashes > in_killed + 1 {
            return Err(format!("{in_killed} starts in killed processes: {task:?}"));
        }
    }
    Ok(())
}

/// The store counts only starts that happened, and misses only those of killed processes. The attempt number that
/// handlers see does not decrease.
fn stored_starts_match_the_log(history: &History<'_>) -> Result<(), String> {
    for task in history.tasks {
        let (all, in_killed) = history.starts(task);
        if task.starts > all + 1 || task.starts + in_killed < all {
            return Err(format!("{all} starts, {in_killed} of them in killed processes: {task:?}"));
        }
    }
    let mut last: HashMap<i64, u32> = HashMap::new();
    for event in history.events {
        if let Event::Start { task, attempt, .. } = event
            && let Some(before) = last.insert(*task, *attempt)
            && before > *attempt
        {
            return Err(format!("task {task} had attempt {before} and then {attempt}"));
        }
    }
    Ok(())
}
