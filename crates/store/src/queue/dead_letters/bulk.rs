//! Retries or discards many dead letters.
//!
//! Owns how they are selected, the check of their number, and the transactions. Rows are read one at a time, because a
//! payload may have 16 MiB and a message 256 MiB.

use std::sync::Arc;

use serde::Serialize;

use super::{DeadLetterFilter, DeadLetters, discard, matches, retry};
use crate::error::{Error, Result};
use crate::sqlite::{Db, WriteKind};

/// Maximum number of dead letters in a transaction: other writers wait for some 20 ms.
const MAX_PER_TRANSACTION: usize = 500;

/// Number of payload and checkpoint bytes after which a transaction ends.
const MAX_BYTES_PER_TRANSACTION: usize = 8 << 20;

/// Dead letters to retry or discard.
#[derive(Clone, Debug)]
pub enum DeadLetterSelection {
    /// Those with these ids, each counted once, whether or not they exist.
    Ids(Vec<i64>),
    /// Those that match the filter.
    Matching(DeadLetterFilter),
}

/// Result of retrying or discarding many dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BulkOutcome {
    /// Number of dead letters that were retried or discarded.
    pub done: u64,
    /// Dead letters whose state does not allow it: a message, a task with the same unique key that is not finished, or
    /// one that no longer exists.
    pub skipped: Vec<NotDone>,
    /// Dead letters with values that do not allow it, such as a payload that is not JSON.
    pub failed: Vec<NotDone>,
}

/// A dead letter that was not retried or discarded; it is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotDone {
    /// Id of the dead letter.
    pub id: i64,
    /// Reason, for people.
    pub reason: String,
}

/// What is done with each dead letter; returns the number of bytes that it had.
type Action = fn(&Db<'_>, i64) -> Result<usize>;

impl DeadLetters<'_> {
    /// Enqueues the tasks of the selected dead letters, each as [`retry`](DeadLetters::retry) does with
    /// [`DeadLetter::task`](super::DeadLetter::task).
    ///
    /// [`Error::Conflict`], and nothing is changed, unless the selection has `expected_count` dead letters. Otherwise
    /// all dead letters that were selected then are retried, in the order of their ids and in transactions of at most
    /// 500, so that other writers do not wait. The first one includes the check. If a later one fails, the earlier ones
    /// remain: their dead letters no longer exist.
    pub fn retry_many(self, selection: DeadLetterSelection, expected_count: u64) -> Result<BulkOutcome> {
        self.run_many(selection, expected_count, retry_from_payload)
    }

    /// Deletes the selected dead letters, checked and divided into transactions as in
    /// [`retry_many`](DeadLetters::retry_many).
    pub fn discard_many(self, selection: DeadLetterSelection, expected_count: u64) -> Result<BulkOutcome> {
        self.run_many(selection, expected_count, |db, id| discard(db, id).map(|()| 0))
    }

    fn run_many(self, selection: DeadLetterSelection, expected_count: u64, action: Action) -> Result<BulkOutcome> {
        let (ids, mut outcome, mut end) = self.0.write_and_notify(WriteKind::TaskCompound, move |db| {
            let ids: Arc<[i64]> = select(db, &selection)?.into();
            check_count(ids.len() as u64, expected_count)?;
            let (outcome, end) = run_some(db, &ids, action)?;
            Ok((ids, outcome, end))
        })?;
        while end < ids.len() {
            let (rest, begin) = (ids.clone(), end);
            let run = move |db: &Db<'_>| run_some(db, rest.get(begin..).unwrap_or_default(), action);
            let (BulkOutcome { done, skipped, failed }, taken) =
                self.0.write_and_notify(WriteKind::TaskCompound, run)?;
            outcome.done += done;
            outcome.skipped.extend(skipped);
            outcome.failed.extend(failed);
            end += taken;
        }
        Ok(outcome)
    }
}

fn select(db: &Db<'_>, selection: &DeadLetterSelection) -> Result<Vec<i64>> {
    match selection {
        DeadLetterSelection::Ids(ids) => {
            let mut ids = ids.clone();
            ids.sort_unstable();
            ids.dedup();
            Ok(ids)
        }
        DeadLetterSelection::Matching(filter) => {
            let sql = format!("SELECT id FROM dead_letter_queue WHERE {} ORDER BY id", matches());
            db.rows(&sql, filter.params(), |row| row.get(0))
        }
    }
}

fn check_count(found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Conflict(format!(
        "{found} dead letters are selected now; expected {expected}. Nothing was changed: look at the list again"
    )))
}

/// Runs the action on the first dead letters, as many as fit in a transaction. Returns how many these were.
fn run_some(db: &Db<'_>, ids: &[i64], action: Action) -> Result<(BulkOutcome, usize)> {
    let (mut outcome, mut bytes, mut taken) = (BulkOutcome::default(), 0, 0);
    for &id in ids.iter().take(MAX_PER_TRANSACTION) {
        taken += 1;
        let not_done = |error: Error| NotDone { id, reason: error.to_string() };
        match db.savepoint(|| action(db, id)) {
            Ok(length) => {
                outcome.done += 1;
                bytes += length;
            }
            Err(error @ (Error::Conflict(_) | Error::NotFound(_))) => outcome.skipped.push(not_done(error)),
            Err(error @ (Error::Invalid(_) | Error::Malformed(_))) => outcome.failed.push(not_done(error)),
            Err(error) => return Err(error),
        }
        if bytes >= MAX_BYTES_PER_TRANSACTION {
            break;
        }
    }
    Ok((outcome, taken))
}

fn retry_from_payload(db: &Db<'_>, id: i64) -> Result<usize> {
    let dead_letter = super::row(db, id)?;
    dead_letter.require_task()?;
    let Some(task) = dead_letter.task() else {
        return Err(Error::Invalid(format!(
            "dead letter {id} has no payload, because another program wrote it; it cannot be retried"
        )));
    };
    task.check()?;
    retry(db, &dead_letter, &task)?;
    Ok(task.payload.len() + dead_letter.checkpoint.as_ref().map_or(0, String::len))
}
