//! Rules for the runs of every round: which may overlap, when they may start, and in which order.

use std::collections::{HashMap, HashSet};

use gristmill_store::tasks::TaskRow;

use crate::log::{Event, Outcome};
use crate::rules::History;
use crate::{QUEUES, RETRY_DELAY};

/// A run ends with its end in the log, or with its process. A process that is about to be killed counts as ended,
/// because others may claim its tasks at once. Tasks with the same unique key count as one.
pub(crate) fn no_task_runs_twice_at_a_time(history: &History<'_>) -> Result<(), String> {
    let mut first_with_key: HashMap<&str, i64> = HashMap::new();
    let mut same: HashMap<i64, i64> = HashMap::new();
    for task in history.tasks {
        if let Some(key) = &task.unique_key {
            same.insert(task.id, *first_with_key.entry(key).or_insert(task.id));
        }
    }
    let mut running: HashMap<i64, u32> = HashMap::new();
    let mut dead: HashSet<u32> = HashSet::new();
    for event in history.events {
        match event {
            Event::Start { process, .. } if dead.contains(process) => {}
            Event::Start { task, process, .. } => {
                if let Some(other) = running.insert(same.get(task).copied().unwrap_or(*task), *process) {
                    return Err(format!("task {task} was started in {process} while it ran in {other}"));
                }
            }
            Event::End { task, process, .. } => {
                let task = same.get(task).unwrap_or(task);
                if running.get(task) == Some(process) {
                    running.remove(task);
                }
            }
            Event::Kill { process } => {
                dead.insert(*process);
                running.retain(|_, other| other != process);
            }
            _ => {}
        }
    }
    Ok(())
}

/// A stop returns after all runs have ended, and no run is started afterwards.
pub(crate) fn no_run_outlasts_the_stop_of_its_process(history: &History<'_>) -> Result<(), String> {
    let mut running: HashSet<(i64, u32)> = HashSet::new();
    let mut stopped: HashSet<u32> = HashSet::new();
    for event in history.events {
        match event {
            Event::Start { task, process, .. } => {
                if stopped.contains(process) {
                    return Err(format!("task {task} was started in {process}, which had stopped"));
                }
                running.insert((*task, *process));
            }
            Event::End { task, process, .. } => drop(running.remove(&(*task, *process))),
            Event::Stopped { process } => {
                if let Some((task, _)) = running.iter().find(|(_, other)| other == process) {
                    return Err(format!("process {process} has stopped, and task {task} runs there"));
                }
                stopped.insert(*process);
            }
            _ => {}
        }
    }
    Ok(())
}

/// A task is not started before it is due, nor a retry before its delay is over. Outcomes that a killed process may not
/// have stored do not count.
pub(crate) fn nothing_starts_early(history: &History<'_>) -> Result<(), String> {
    let delay = i64::try_from(RETRY_DELAY.as_micros()).unwrap_or(i64::MAX);
    // The earliest start of a task, and the process whose outcome determines it.
    let mut due: HashMap<i64, (i64, u32)> = HashMap::new();
    // The test logs the due time after it has enqueued the task, so these events are read first.
    for event in history.events {
        if let Event::Due { task, at } = event {
            due.insert(*task, (*at, 0));
        }
    }
    for event in history.events {
        match event {
            Event::Start { task, at, .. } => {
                if let Some((earliest, _)) = due.remove(task)
                    && *at < earliest
                {
                    return Err(format!("task {task} was started {} µs too early", earliest - at));
                }
            }
            Event::End { task, process, outcome: Outcome::Transient, at } => {
                due.insert(*task, (at + delay, *process));
            }
            Event::Kill { process } => due.retain(|_, (_, other)| other != process),
            _ => {}
        }
    }
    Ok(())
}

/// A run is cancelled only after a request: stops wait for runs that end in time, and a living process keeps its
/// claims.
pub(crate) fn only_requests_cancel_runs(history: &History<'_>) -> Result<(), String> {
    let mut requested: HashSet<i64> = HashSet::new();
    for event in history.events {
        if let Event::Cancel { task, .. } = event {
            requested.insert(*task);
        }
    }
    for event in history.events {
        if let Event::End { task, process, outcome: Outcome::Cancelled, .. } = event
            && !requested.contains(task)
        {
            return Err(format!("the run of task {task} in {process} was cancelled without a request"));
        }
    }
    Ok(())
}

/// A task that was cancelled at once is not started afterwards.
pub(crate) fn cancelled_tasks_do_not_start(history: &History<'_>) -> Result<(), String> {
    let mut cancelled: HashSet<i64> = HashSet::new();
    for event in history.events {
        match event {
            Event::Cancel { task, at_once: true } => drop(cancelled.insert(*task)),
            Event::Start { task, .. } if cancelled.contains(task) => {
                return Err(format!("task {task} was cancelled, and then started"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// One worker starts the new tasks of each kind in the order of queue, priority and number.
pub(crate) fn priorities_are_in_order(history: &History<'_>) -> Result<(), String> {
    let finish = history.events.iter().position(|event| *event == Event::Finish).unwrap_or(0);
    let (before, after) = history.events.split_at(finish);
    // Tasks that were started before wait for their next attempt, and scheduled ones until they are due.
    let not_due: HashSet<i64> = before
        .iter()
        .filter_map(|event| match event {
            Event::Start { task, .. } | Event::Due { task, .. } => Some(*task),
            _ => None,
        })
        .collect();
    let tasks: HashMap<i64, &TaskRow> = history.tasks.iter().map(|task| (task.id, task)).collect();
    let mut last: HashMap<&str, (Option<usize>, i64, i64)> = HashMap::new();
    for event in after {
        let Event::Start { task, attempt: 1, .. } = event else { continue };
        let row = tasks[task];
        // Tasks that a killed process had claimed are limited and may run after others.
        if not_due.contains(task) || row.abandoned > 0 || row.crashes > 0 {
            continue;
        }
        let queue = QUEUES.iter().position(|queue| *queue == row.queue);
        let position = (queue, -i64::from(row.priority), row.id);
        if let Some(before) = last.insert(&row.kind, position)
            && before > position
        {
            return Err(format!("task {} ran before {position:?} of its kind, out of order", before.2));
        }
    }
    Ok(())
}
