//! Dead letters, tried again through their kinds.
//!
//! Owns how a letter becomes a task. The store does it in one transaction with throwing the letter away.

use gristmill_store::dead_letters::{DeadLetter, DeadLetterFilter};
use gristmill_store::tasks::{Enqueued, NewTask};
use gristmill_store::{Error, Store};

use crate::kind::TaskKind;

/// Tries the task of a letter again: made by its kind among `kinds` if that knows how, else as the letter kept
/// it. The new task has all its attempts before it, and the checkpoints of the old one.
pub fn retry(store: &Store, kinds: &[TaskKind], letter: i64) -> Result<Enqueued, Error> {
    let found = store.dead_letters().get(letter)?;
    store.dead_letters().retry(letter, rebuilt(kinds, &found)?)
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

/// Tries every letter again that the filter lets through. One that cannot be costs only itself.
pub fn retry_all(
    store: &Store,
    kinds: &[TaskKind],
    filter: &DeadLetterFilter,
) -> Result<RetrySummary, Error> {
    let mut retried = RetrySummary::default();
    let mut after = None;
    loop {
        let page = store.dead_letters().list(filter, after, 200)?;
        for letter in &page.items {
            after = Some(letter.id);
            if letter.is_message() {
                retried.messages.push(letter.id);
                continue;
            }
            match rebuilt(kinds, letter).and_then(|task| store.dead_letters().retry(letter.id, task)) {
                Ok(enqueued) => retried.tasks.push((letter.id, enqueued)),
                Err(error) if error.is_user_error() => retried.refused.push((letter.id, error)),
                Err(error) => return Err(error),
            }
        }
        if page.next_cursor.is_none() {
            return Ok(retried);
        }
    }
}

fn rebuilt(kinds: &[TaskKind], letter: &DeadLetter) -> Result<NewTask, Error> {
    letter.require_task()?;
    let kind = kinds.iter().find(|kind| kind.name() == letter.task_type);
    if let Some(rebuild) = kind.and_then(|kind| kind.rebuild.as_ref()) {
        return rebuild(letter).map_err(|reason| {
            Error::Invalid(format!("dead letter {} cannot be made a task again: {reason}", letter.id))
        });
    }
    letter.task().ok_or_else(|| {
        Error::Invalid(format!(
            "dead letter {} has no payload (another program wrote it), and the kind {:?} does not say how to \
             make its task again",
            letter.id, letter.task_type
        ))
    })
}
