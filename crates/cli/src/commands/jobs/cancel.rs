//! `gristmill jobs cancel`: cancels waiting and running tasks and jobs, and waits until the runs have ended.

use std::time::{Duration, Instant};

use gristmill_jobs::ProcessGroups;
use gristmill_store::Store;
use gristmill_store::jobs::JobStatus;
use gristmill_store::tasks::{CancelOutcome, TaskRow, TaskStatus};
use serde_json::{Value, json};

use super::Id;
use crate::commands::for_each_id;
use crate::context::Context;
use crate::error::{Error, Outcome};

/// How long to wait for running tasks to end. A worker sees the request and ends a command within a second.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval at which the worker of a task is checked for being alive.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Requests all cancellations first and then waits, so that running tasks end at the same time.
pub(super) fn cancel(context: &Context, store: &Store, ids: &[Id]) -> Result<Outcome, Error> {
    let requests: Vec<_> = ids.iter().map(|id| request(store, id)).collect();
    let deadline = Instant::now() + CANCEL_TIMEOUT;
    let mut requests = requests.into_iter();
    for_each_id(context, ids, |id| {
        let runs = requests.next().unwrap_or(Ok(false))?;
        let (status, line) = match id {
            Id::Task(number) if runs => wait_for_end(store, *number, deadline)?,
            Id::Task(number) => ("cancelled", format!("cancelled task {number}")),
            Id::Job(uuid) if runs => {
                ("cancelled", format!("cancelled job {uuid}; its worker stops it within a second"))
            }
            Id::Job(uuid) => ("cancelled", format!("cancelled job {uuid}")),
        };
        Ok((json!({"id": id, "status": status}) as Value, line))
    })
}

/// Requests the cancellation of a task or a job. Returns true if it is running.
fn request(store: &Store, id: &Id) -> Result<bool, Error> {
    match id {
        Id::Task(number) => Ok(store.tasks().cancel(*number)? == CancelOutcome::Requested),
        Id::Job(uuid) => {
            let job = store.jobs().get(uuid)?;
            store.jobs().cancel(uuid)?;
            Ok(job.status == JobStatus::Running)
        }
    }
}

/// Waits until the run of a task has ended. Returns its status and a sentence about it.
fn wait_for_end(store: &Store, id: i64, deadline: Instant) -> Result<(&'static str, String), Error> {
    let mut watch = store.watch()?;
    loop {
        let task = store.tasks().get(id)?;
        match task.status {
            TaskStatus::Running => {}
            TaskStatus::Cancelled => {
                return Ok(("cancelled", format!("cancelled task {id}; its run has ended")));
            }
            other => {
                let status = other.as_str();
                return Ok((status, format!("task {id} is {status}: its run ended before it could be cancelled")));
            }
        }
        if is_orphaned(store, &task)? {
            // No worker is left to end its command.
            ProcessGroups::for_database(store.path()).kill_orphans(None);
            if store.tasks().recover_cancelled()? > 0 {
                continue;
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let line = format!("task {id} is being cancelled; its worker has not ended its run yet");
            return Ok(("cancelling", line));
        }
        watch.wait(left.min(POLL_INTERVAL))?;
    }
}

/// Returns true if the lease of a task has expired or its worker has died.
fn is_orphaned(store: &Store, task: &TaskRow) -> Result<bool, Error> {
    let expired = task.lease_expires_at.is_none_or(|at| at <= store.now());
    let worker = task.worker_id.as_deref().and_then(|token| token.rsplit_once('/')).map(|(worker, _)| worker);
    Ok(expired || store.workers().dead()?.iter().any(|dead| Some(dead.as_str()) == worker))
}
