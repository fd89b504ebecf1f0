//! `gristmill jobs show`: shows a task or a job with its checkpoints and the output of its failed attempts.

use gristmill_store::Store;
use gristmill_store::failures::FailedAttempt;
use gristmill_store::jobs::JobRow;
use gristmill_store::tasks::{TaskRow, TaskStatus};
use serde_json::json;

use super::{Entry, Id, dead_letter_of, status};
use crate::commands::to_object;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::Output;
use crate::units::utc;

pub(super) fn show(context: &Context, store: &Store, id: &Id) -> Result<Outcome, Error> {
    match id {
        Id::Task(id) => {
            let task = store.tasks().get(*id)?;
            let steps = store.checkpoints().list(*id)?;
            let failures = store.failures().list(*id)?;
            let mut value = Entry::Task(Box::new(task.clone())).as_value()?;
            let checkpoints: Vec<_> = steps.iter().map(to_object).collect::<Result<_, _>>()?;
            value["checkpoints"] = json!(checkpoints);
            value["failures"] = json!(failures);
            let dead_letter = if task.status == TaskStatus::Failed { dead_letter_of(store, *id)? } else { None };
            value["dead_letter"] = json!(dead_letter);
            context.output.print(&value, |output| {
                let next = dead_letter.map(|id| context.hints.command(&format!("dead show {id}")));
                let mut text = task_fields(output, &task, next);
                failures.iter().for_each(|failed| text.push_str(&failed_attempt(output, failed)));
                let row = |step: &gristmill_store::checkpoints::Checkpoint| {
                    vec![step.step.clone(), utc(step.updated_at), step.data.clone()]
                };
                if !steps.is_empty() {
                    text.push_str(&format!("\n{}", output.table(&["CHECKPOINT", "AT", "DATA"], steps.iter().map(row))));
                }
                text
            })?;
        }
        Id::Job(id) => {
            let job = store.jobs().get(id)?;
            let value = Entry::Job(Box::new(job.clone())).as_value()?;
            context.output.print(&value, |output| job_fields(output, &job))?;
        }
    }
    Ok(Outcome::Done)
}

fn failed_attempt(output: &Output, failed: &FailedAttempt) -> String {
    let step = failed.step.as_ref().map_or_else(String::new, |step| format!(" at step {step}"));
    let mut lines = format!("{}{step}, {}", failed.reason, utc(failed.failed_at));
    if let Some(output) = &failed.output {
        lines.push_str(&format!("\n{output}"));
    }
    format!("\n{}", output.fields(&[(&format!("attempt {}", failed.attempt), Some(lines))]))
}

fn task_fields(output: &Output, task: &TaskRow, next: Option<String>) -> String {
    let attempts = match task.max_attempts {
        Some(max) => format!("{} started, {} of at most {max} failed", task.starts, task.attempts),
        None => format!("{} started, {} failed", task.starts, task.attempts),
    };
    output.fields(&[
        ("task", Some(task.id.to_string())),
        ("kind", Some(task.kind.clone())),
        ("queue", Some(task.queue.clone())),
        ("status", Some(status(task).to_owned())),
        ("cancel request", task.cancel_requested_at.map(utc)),
        ("priority", Some(task.priority.to_string())),
        ("attempts", Some(attempts)),
        ("crashes", Some(task.crashes).filter(|count| *count > 0).map(|count| count.to_string())),
        ("document", task.document_id.clone()),
        ("unique key", task.unique_key.clone()),
        ("created", Some(utc(task.created_at))),
        ("due", task.run_after.map(utc)),
        ("started", task.started_at.map(utc)),
        ("finished", task.finished_at.map(utc)),
        ("worker", task.worker_id.clone()),
        ("heartbeat", task.worker_heartbeat_at.map(utc)),
        ("lease ends", task.lease_expires_at.map(utc)),
        ("last failure", task.last_failed_at.map(utc)),
        ("failed step", task.failed_step.clone()),
        ("last error", task.error_message.clone()),
        ("payload", Some(task.payload.clone())),
        ("result", task.result.clone()),
        ("next", next.map(|command| format!("{command} shows the dead letter"))),
    ])
}

fn job_fields(output: &Output, job: &JobRow) -> String {
    let total = job.total_items.map_or_else(String::new, |total| format!(" of {total}"));
    let progress = format!("{:.0} %, {}{total} items", job.progress * 100.0, job.processed_items);
    output.fields(&[
        ("job", Some(job.id.clone())),
        ("kind", Some(job.kind.as_str().to_owned())),
        ("status", Some(job.status.as_str().to_owned())),
        ("dry run", Some(if job.dry_run { "yes" } else { "no" }.to_owned())),
        ("progress", Some(progress)),
        ("created", Some(utc(job.created_at))),
        ("started", job.started_at.map(utc)),
        ("finished", job.finished_at.map(utc)),
        ("worker", job.worker_id.clone()),
        ("heartbeat", job.worker_heartbeat_at.map(utc)),
        ("lease ends", job.lease_expires_at.map(utc)),
        ("error code", job.error_code.clone()),
        ("error", job.error_message.clone()),
        ("payload", Some(job.payload.clone())),
    ])
}
