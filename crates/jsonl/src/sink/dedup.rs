//! Deduplicates objects by id: an id becomes at most one row within a time window.
//!
//! Owns the table `_processed_ids` in the user's database. An id is recorded in the transaction that inserts its row.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::params;

use super::cached_table::CachedTable;
use super::{Results, Sink};
use crate::error::{Failure, Result};
use crate::import::names::PROCESSED_IDS;
use crate::sql::Sql;

/// Maximum number of expired ids that are deleted per appended object.
const PRUNED_PER_ID: usize = 2;

/// How long ids are remembered, and the scope in which they are unique.
#[derive(Clone, Debug)]
pub(super) struct DedupWindow {
    scope: String,
    window: Duration,
}

/// An object with the id by which duplicates are found.
#[derive(Clone, Copy, Debug)]
pub struct WithId<'a> {
    /// Unique id; an object without an id is always new.
    pub id: Option<&'a str>,
    /// The object as JSON text.
    pub object: &'a [u8],
}

/// Result for an object that was not rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendResult {
    /// The object was inserted as a row.
    Inserted,
    /// The id became a row before, within the window.
    Duplicate,
}

impl Sink {
    /// Enables deduplication for [`append_deduplicated`](Self::append_deduplicated): ids are remembered for `window`.
    /// An id is unique within `scope`, such as a queue. Creates the table `_processed_ids` in the database.
    #[must_use]
    pub fn dedup_window(mut self, scope: impl Into<String>, window: Duration) -> Self {
        self.dedup = Some(DedupWindow { scope: scope.into(), window });
        self
    }

    /// Writes the new objects and records their ids. Of several objects with one id, the first valid one is written.
    pub(super) fn write_new(
        &mut self,
        cached: &mut CachedTable,
        dedup: &DedupWindow,
        objects: &[WithId<'_>],
    ) -> Result<Results, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let horizon = milliseconds(now.saturating_sub(dedup.window));
        let mut results: Vec<Option<_>> = objects.iter().map(|_| None).collect();
        let mut rest: Vec<usize> = (0..objects.len()).collect();
        while !rest.is_empty() {
            // Further objects with an id of this round wait until the first one is written or rejected.
            let mut ids = HashSet::new();
            let (current, later): (Vec<usize>, Vec<usize>) =
                rest.iter().partition(|index| objects[**index].id.is_none_or(|id| ids.insert(id)));
            let mut new = Vec::with_capacity(current.len());
            for index in current {
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
                if let (Ok(_), Some(id)) = (&result, objects[index].id) {
                    self.record_processed(dedup, id, milliseconds(now))?;
                }
                results[index] = Some(result);
            }
            rest = later;
        }
        self.prune_processed(dedup, horizon, objects.len() * PRUNED_PER_ID)?;
        Ok(results.into_iter().flatten().collect())
    }

    /// Creates the table of ids, if deduplication is enabled and the table does not exist.
    pub(super) fn create_processed_ids(&self) -> Result<()> {
        if self.dedup.is_none() {
            return Ok(());
        }
        self.db.execute(&format!(
            "CREATE TABLE IF NOT EXISTS {PROCESSED_IDS} (scope TEXT NOT NULL, id TEXT NOT NULL,
             processed_at INTEGER NOT NULL, PRIMARY KEY (scope, id)) WITHOUT ROWID;
             CREATE INDEX IF NOT EXISTS ix{PROCESSED_IDS}_processed_at ON {PROCESSED_IDS} (scope, processed_at)"
        ))
    }

    fn is_processed(&self, dedup: &DedupWindow, id: &str, horizon: i64) -> Sql<bool> {
        let sql = format!("SELECT 1 FROM {PROCESSED_IDS} WHERE scope = ?1 AND id = ?2 AND processed_at > ?3");
        self.db.conn.prepare_cached(&sql)?.exists(params![dedup.scope, id, horizon])
    }

    /// Records an id. If the clock was set back, the id keeps its later time.
    fn record_processed(&self, dedup: &DedupWindow, id: &str, now: i64) -> Sql<usize> {
        let sql = format!(
            "INSERT INTO {PROCESSED_IDS} (scope, id, processed_at) VALUES (?1, ?2, ?3)
             ON CONFLICT (scope, id) DO UPDATE SET processed_at = max(processed_at, excluded.processed_at)"
        );
        self.db.conn.prepare_cached(&sql)?.execute(params![dedup.scope, id, now])
    }

    fn prune_processed(&self, dedup: &DedupWindow, horizon: i64, limit: usize) -> Sql<usize> {
        let sql = format!(
            "DELETE FROM {PROCESSED_IDS} WHERE scope = ?1 AND id IN (SELECT id FROM {PROCESSED_IDS}
             WHERE scope = ?1 AND processed_at <= ?2 ORDER BY processed_at LIMIT ?3)"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.db.conn.prepare_cached(&sql)?.execute(params![dedup.scope, horizon, limit])
    }
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
