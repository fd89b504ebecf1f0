//! Objects with an id, of which each becomes one row within a time, however often it comes.
//!
//! Owns the table `_processed_ids` in the user's database. An id is noted in the transaction that holds its row, so that
//! both are there or neither is.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{OptionalExtension, params};

use super::{BatchError, CachedTable, RejectedObject, Sink};
use crate::error::Result;
use crate::import::names::PROCESSED_IDS;

/// How many ids that are too old are deleted with each new one, at most.
const PRUNED_PER_ID: usize = 2;

/// What is remembered of objects: their ids, within a scope, for a time.
#[derive(Clone, Debug)]
pub(super) struct DedupWindow {
    scope: String,
    window: Duration,
}

/// An object with its id.
#[derive(Clone, Copy, Debug)]
pub struct WithId<'a> {
    /// What it is known by; an object without an id is always new.
    pub id: Option<&'a str>,
    /// The object itself, as JSON.
    pub object: &'a [u8],
}

/// What became of a good object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendResult {
    /// It is a row now.
    Inserted,
    /// A row was made of it before.
    Duplicate,
}

impl Sink {
    /// Remembers ids for this time, for [`append_once`](Self::append_once). A scope is what an id is unique in, such as a
    /// queue. The table `_processed_ids` is made in the database.
    #[must_use]
    pub fn dedup_window(mut self, scope: impl Into<String>, window: Duration) -> Self {
        self.dedup = Some(DedupWindow { scope: scope.into(), window });
        self
    }

    /// [`append`](Self::append), but an object whose id became a row within the time of
    /// [`once_within`](Self::once_within) makes no second one. An object that fails is not remembered.
    pub fn append_deduplicated(
        &mut self,
        objects: &[WithId<'_>],
    ) -> Result<Vec<Result<AppendResult, RejectedObject>>> {
        let Some(dedup) = self.dedup.clone() else {
            let plain: Vec<&[u8]> = objects.iter().map(|one| one.object).collect();
            let results = self.append(&plain)?;
            return Ok(results.into_iter().map(|result| result.map(|()| AppendResult::Inserted)).collect());
        };
        self.append_with(
            objects,
            |one| one.object,
            |sink, cached, objects| sink.write_new(cached, &dedup, objects),
        )
    }

    /// Writes those that are new, and notes their ids. Of several with one id the first that is good counts.
    fn write_new(
        &mut self,
        cached: &mut CachedTable,
        dedup: &DedupWindow,
        objects: &[WithId<'_>],
    ) -> Result<Vec<Result<AppendResult, RejectedObject>>, BatchError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let horizon = milliseconds(now.saturating_sub(dedup.window));
        let mut results: Vec<Option<Result<AppendResult, RejectedObject>>> =
            objects.iter().map(|_| None).collect();
        let mut rest: Vec<usize> = (0..objects.len()).collect();
        while !rest.is_empty() {
            // Those with an id that one of this round has come after it is decided on.
            let mut ids = HashSet::new();
            let (now_tried, later): (Vec<usize>, Vec<usize>) =
                rest.iter().partition(|index| objects[**index].id.is_none_or(|id| ids.insert(id)));
            let mut new = Vec::with_capacity(now_tried.len());
            for index in now_tried {
                match objects[index].id {
                    Some(id) if self.is_processed(dedup, id, horizon)? => {
                        results[index] = Some(Ok(AppendResult::Duplicate));
                    }
                    _ => new.push(index),
                }
            }
            let bodies: Vec<&[u8]> = new.iter().map(|index| objects[*index].object).collect();
            let written = self.write_all(cached, &bodies)?;
            for (index, result) in new.into_iter().zip(written) {
                if let (Ok(()), Some(id)) = (&result, objects[index].id) {
                    self.record_processed(dedup, id, milliseconds(now))?;
                }
                results[index] = Some(result.map(|()| AppendResult::Inserted));
            }
            rest = later;
        }
        self.prune_processed(dedup, horizon, objects.len() * PRUNED_PER_ID)?;
        Ok(results.into_iter().flatten().collect())
    }

    /// Makes the table of ids, if ids are to be remembered and it is not there.
    pub(super) fn make_processed_ids(&self) -> Result<()> {
        if self.dedup.is_none() {
            return Ok(());
        }
        let table = format!(
            "CREATE TABLE IF NOT EXISTS {PROCESSED_IDS} (scope TEXT NOT NULL, id TEXT NOT NULL,
             processed_at INTEGER NOT NULL, PRIMARY KEY (scope, id)) WITHOUT ROWID"
        );
        let index = format!(
            "CREATE INDEX IF NOT EXISTS ix{PROCESSED_IDS}_processed_at ON {PROCESSED_IDS} (scope, processed_at)"
        );
        self.run(&table)?;
        self.run(&index)
    }

    fn is_processed(&self, dedup: &DedupWindow, id: &str, horizon: i64) -> Result<bool> {
        let sql = format!("SELECT 1 FROM {PROCESSED_IDS} WHERE scope = ?1 AND id = ?2 AND processed_at > ?3");
        let read = || -> rusqlite::Result<_> {
            let mut statement = self.conn.prepare_cached(&sql)?;
            statement.query_row(params![dedup.scope, id, horizon], |_| Ok(())).optional()
        };
        read().map(|found| found.is_some()).map_err(|error| self.failed(&error))
    }

    /// A clock that was set back makes no id older.
    fn record_processed(&self, dedup: &DedupWindow, id: &str, now: i64) -> Result<()> {
        let sql = format!(
            "INSERT INTO {PROCESSED_IDS} (scope, id, processed_at) VALUES (?1, ?2, ?3)
             ON CONFLICT (scope, id) DO UPDATE SET processed_at = max(processed_at, excluded.processed_at)"
        );
        let write = || self.conn.prepare_cached(&sql)?.execute(params![dedup.scope, id, now]);
        write().map(drop).map_err(|error| self.failed(&error))
    }

    fn prune_processed(&self, dedup: &DedupWindow, horizon: i64, limit: usize) -> Result<()> {
        let sql = format!(
            "DELETE FROM {PROCESSED_IDS} WHERE scope = ?1 AND id IN (SELECT id FROM {PROCESSED_IDS}
             WHERE scope = ?1 AND processed_at <= ?2 ORDER BY processed_at LIMIT ?3)"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let delete = || self.conn.prepare_cached(&sql)?.execute(params![dedup.scope, horizon, limit]);
        delete().map(drop).map_err(|error| self.failed(&error))
    }
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
