//! Retries dead letters.
//!
//! Owns how a task is rebuilt from its dead letter. The store enqueues it and deletes the dead letter in one
//! transaction.

use gristmill_store::dead_letters::{DeadLetter, DeadLetterFilter};
use gristmill_store::tasks::{Enqueued, NewTask};
use gristmill_store::{Error, Store};

use crate::kind::TaskKind;

/// Retries the task of a dead letter. The task is rebuilt by its kind among `kinds` if that has
/// [`rebuild_with`](TaskKind::rebuild_with), otherwise from the stored payload. It starts with no failed attempts and
/// with the checkpoints of the old task.
pub fn retry(store: &Store, kinds: &[TaskKind], dead_letter: i64) -> Result<Enqueued, Error> {
    let found = store.dead_letters().get(dead_letter)?;
    store.dead_letters().retry(dead_letter, rebuild_task(kinds, &found)?)
}

/// Dead letters that [`retry_all`] retried, refused or left to the client of the broker.
#[derive(Debug, Default)]
pub struct RetrySummary {
    /// New tasks, with the numbers of their dead letters.
    pub tasks: Vec<(i64, Enqueued)>,
    /// Dead letters that cannot be retried, with the reason. They are kept.
    pub refused: Vec<(i64, Error)>,
    /// Dead letters of messages, which are not tasks. They are kept: only the broker's client can publish them again.
    pub messages: Vec<i64>,
}

/// Retries every dead letter that matches the filter. One that cannot be retried does not affect the others.
pub fn retry_all(store: &Store, kinds: &[TaskKind], filter: &DeadLetterFilter) -> Result<RetrySummary, Error> {
    let mut summary = RetrySummary::default();
    let mut after = None;
    loop {
        let page = store.dead_letters().list(filter, after, 200)?;
        for dead_letter in &page.items {
            after = Some(dead_letter.id);
            if dead_letter.is_message() {
                summary.messages.push(dead_letter.id);
                continue;
            }
            match rebuild_task(kinds, dead_letter).and_then(|task| store.dead_letters().retry(dead_letter.id, task)) {
                Ok(enqueued) => summary.tasks.push((dead_letter.id, enqueued)),
                Err(error) if error.is_user_error() => summary.refused.push((dead_letter.id, error)),
                Err(error) => return Err(error),
            }
        }
        if page.next_cursor.is_none() {
            return Ok(summary);
        }
    }
}

fn rebuild_task(kinds: &[TaskKind], dead_letter: &DeadLetter) -> Result<NewTask, Error> {
    dead_letter.require_task()?;
    let kind = kinds.iter().find(|kind| kind.name() == dead_letter.task_type);
    if let Some(rebuild) = kind.and_then(|kind| kind.rebuild.as_ref()) {
        return rebuild(dead_letter)
            .map_err(|reason| Error::Invalid(format!("cannot retry dead letter {}: {reason}", dead_letter.id)));
    }
    dead_letter.task().ok_or_else(|| {
        Error::Invalid(format!(
            "cannot retry dead letter {}: it has no payload, because another program wrote it, and the kind {:?} \
             cannot rebuild its tasks",
            dead_letter.id, dead_letter.task_type
        ))
    })
}
