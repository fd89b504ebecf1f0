//! Dead letters, tried again through their kinds.
//!
//! Owns how a dead_letter becomes a task. The store does it in one transaction with throwing the dead_letter away.

use gristmill_store::dead_letters::{DeadLetter, DeadLetterFilter};
use gristmill_store::tasks::{Enqueued, NewTask};
use gristmill_store::{Error, Store};

use crate::kind::TaskKind;

/// Tries the task of a dead_letter again: made by its kind among `kinds` if that knows how, else as the dead_letter kept
/// it. The new task has all its attempts before it, and the checkpoints of the old one.
pub fn retry(store: &Store, kinds: &[TaskKind], dead_letter: i64) -> Result<Enqueued, Error> {
    let found = store.dead_letters().get(dead_letter)?;
    store.dead_letters().retry(dead_letter, rebuild_task(kinds, &found)?)
}

/// What became of trying many letters again.
#[derive(Debug, Default)]
pub struct RetrySummary {
    /// New tasks, with the letters they came from.
    pub tasks: Vec<(i64, Enqueued)>,
    /// Letters that could not be tried again, and why. They stay.
    pub refused: Vec<(i64, Error)>,
    /// Letters of messages, which are no tasks. They stay; who knows their broker can publish them again.
    pub messages: Vec<i64>,
}

/// Tries every dead_letter again that the filter lets through. One that cannot be costs only itself.
pub fn retry_all(
    store: &Store,
    kinds: &[TaskKind],
    filter: &DeadLetterFilter,
) -> Result<RetrySummary, Error> {
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
            match rebuild_task(kinds, dead_letter)
                .and_then(|task| store.dead_letters().retry(dead_letter.id, task))
            {
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
        return rebuild(dead_letter).map_err(|reason| {
            Error::Invalid(format!(
                "dead dead_letter {} cannot be made a task again: {reason}",
                dead_letter.id
            ))
        });
    }
    dead_letter.task().ok_or_else(|| {
        Error::Invalid(format!(
            "dead dead_letter {} has no payload (another program wrote it), and the kind {:?} does not say how to \
             make its task again",
            dead_letter.id, dead_letter.task_type
        ))
    })
}
