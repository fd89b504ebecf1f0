//! Ids of processed messages, so that a redelivered message is not processed again.
//!
//! Owns the tables `seen_messages` and `message_claims`. A scope is the range in which an id is unique, such as a
//! queue; scopes are independent. A message is claimed before it is handled, and then recorded or released, so only one
//! of the processes that share the file handles it at a time. The consumer decides what handling means.

use std::time::Duration;

use crate::Store;
use crate::error::{Error, Result};
use crate::process;
use crate::sqlite::{WriteKind, params};

/// How long the claim of an unknown process, such as one of another host, is valid.
const CLAIM_LEASE: Duration = Duration::from_secs(600);

/// Claims of ended processes are deleted after this time, or after the window of ids if that is longer.
const CLAIM_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Result of an attempt to claim a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimResult {
    /// The caller owns the message until it is recorded or released.
    Claimed,
    /// The message was recorded within the window.
    AlreadyProcessed,
    /// Another caller has claimed the message, and its process runs or is unknown.
    InProgress,
}

/// Deletes the oldest ids of a scope; reads only what it deletes, because the index is ordered by time.
const PRUNE: &str = "DELETE FROM seen_messages WHERE scope = ?1 AND message_id IN (SELECT message_id
    FROM seen_messages WHERE scope = ?1 AND seen_at <= ?2 ORDER BY seen_at LIMIT ?3)";

/// Ids of processed messages in a store.
#[derive(Clone, Copy, Debug)]
pub struct ProcessedIds<'a>(pub(crate) &'a Store);

impl ProcessedIds<'_> {
    /// Returns for each id whether it was recorded less than `window` ago. An id that occurs twice in `ids` does not
    /// count as recorded by that.
    pub fn contains(self, scope: &str, ids: &[String], window: Duration) -> Result<Vec<bool>> {
        self.0.read(|db| {
            // One query for each id, because a JSON list would cut off an id at a NUL. In one transaction, which ends
            // when it is dropped: with a lock for each query, 200 ids took 1.0 ms instead of 0.6 ms.
            let _transaction = db.with_conn(|conn| conn.unchecked_transaction())?;
            let sql = "SELECT 1 FROM seen_messages WHERE scope = ?1 AND message_id = ?2 AND seen_at > ?3";
            let horizon = db.now.minus(window).to_string();
            ids.iter().map(|id| Ok(db.number(sql, params![scope, id, horizon])? > 0)).collect()
        })
    }

    /// Claims a message for this process, unless it was recorded within `window` or a live process has claimed it.
    pub fn claim(self, scope: &str, id: &str, window: Duration) -> Result<ClaimResult> {
        let claims = self.claim_all(scope, vec![id.to_owned()], window)?;
        Ok(claims.into_iter().next().unwrap_or(ClaimResult::InProgress))
    }

    /// Claims messages in one transaction, like [`claim`](Self::claim). An id that occurs twice is claimed once.
    pub fn claim_all(self, scope: &str, ids: Vec<String>, window: Duration) -> Result<Vec<ClaimResult>> {
        let scope = scope.to_owned();
        self.0.write(WriteKind::TaskCompound, move |db| {
            let seen = "SELECT 1 FROM seen_messages WHERE scope = ?1 AND message_id = ?2 AND seen_at > ?3";
            let claimed = "SELECT claimed_by, claimed_at > ?3 FROM message_claims WHERE scope = ?1 AND message_id = ?2";
            let insert = "INSERT OR REPLACE INTO message_claims (scope, message_id, claimed_by, claimed_at)
                VALUES (?1, ?2, ?3, ?4)";
            let (window, lease) = (db.now.minus(window).to_string(), db.now.minus(CLAIM_LEASE).to_string());
            let claim = |id: &String| {
                if db.number(seen, params![scope, id, window])? > 0 {
                    return Ok(ClaimResult::AlreadyProcessed);
                }
                let found = db.rows(claimed, params![scope, id, lease], |row| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?))
                })?;
                if found.iter().any(|(by, is_recent)| process::is_alive(by).unwrap_or(*is_recent)) {
                    return Ok(ClaimResult::InProgress);
                }
                db.execute(insert, params![scope, id, process::tag(), db.now()])?;
                Ok(ClaimResult::Claimed)
            };
            ids.iter().map(claim).collect()
        })
    }

    /// Releases a claim of this process: the message was not handled.
    pub fn release(self, scope: &str, id: &str) -> Result<()> {
        self.release_all(scope, vec![id.to_owned()])
    }

    /// Releases claims of this process in one transaction.
    pub fn release_all(self, scope: &str, ids: Vec<String>) -> Result<()> {
        let scope = scope.to_owned();
        self.0.write(WriteKind::TaskCompound, move |db| {
            let sql = "DELETE FROM message_claims WHERE scope = ?1 AND message_id = ?2 AND claimed_by = ?3";
            ids.iter().try_for_each(|id| db.execute(sql, params![scope, id, process::tag()]).map(drop))
        })
    }

    /// Records messages as processed, on disk. Ends their claims and restarts the window of ids recorded before.
    pub fn record(self, scope: &str, ids: Vec<String>) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        if scope.is_empty() {
            return Err(Error::Invalid("the scope is empty; expected a text such as a queue's name".to_owned()));
        }
        if ids.iter().any(String::is_empty) {
            return Err(Error::Invalid(
                "a message without an id cannot be recognized; expected ids that are not empty".to_owned(),
            ));
        }
        let scope = scope.to_owned();
        self.0.write(WriteKind::TaskCompound, move |db| {
            // After the clock was set back, an earlier time does not replace a later one.
            let sql = "INSERT INTO seen_messages (scope, message_id, seen_at) VALUES (?1, ?2, ?3)
                ON CONFLICT (scope, message_id) DO UPDATE SET seen_at = excluded.seen_at
                WHERE excluded.seen_at > seen_at";
            let claim = "DELETE FROM message_claims WHERE scope = ?1 AND message_id = ?2";
            ids.iter().try_for_each(|id| {
                db.execute(sql, params![scope, id, db.now()])?;
                db.execute(claim, params![scope, id]).map(drop)
            })
        })
    }

    /// Deletes up to `limit` ids of a scope that were recorded `window` ago or earlier, oldest first. Returns how many.
    pub fn prune(self, scope: &str, window: Duration, limit: usize) -> Result<usize> {
        let scope = scope.to_owned();
        self.0.write(WriteKind::TaskCompound, move |db| {
            let claims = "DELETE FROM message_claims WHERE scope = ?1 AND claimed_at <= ?2";
            db.execute(claims, params![scope, db.now.minus(window.max(CLAIM_RETENTION)).to_string()])?;
            let horizon = db.now.minus(window).to_string();
            db.execute(PRUNE, params![scope, horizon, crate::sql_limit(limit)])
        })
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, StatementStatus};

    use super::*;

    /// Counts SQLite's virtual machine steps instead of measuring time.
    #[test]
    fn prune_reads_only_the_rows_it_deletes() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(crate::sqlite::schema::SEEN_MESSAGES).unwrap();
        conn.execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
             INSERT INTO seen_messages SELECT 'q' || (i % 2), printf('%08x', i * 2654435761 % 4294967296),
                printf('2026-01-19 %02d:%02d:%02d.%06d', i / 360000, i / 6000 % 60, i / 100 % 60, i % 100) FROM n",
        )
        .unwrap();
        let mut prune = conn.prepare(PRUNE).unwrap();
        for (limit, deleted) in [(1_000, 1_000), (0, 0), (10, 10), (10_000, 10_000)] {
            prune.reset_status(StatementStatus::VmStep);
            assert_eq!(prune.execute(params!["q1", "2026-01-19 01:00:00.000000", limit]).unwrap(), deleted);
            let steps = prune.get_status(StatementStatus::VmStep);
            assert!(steps < 1_000 + 100 * limit, "{steps} steps for {limit}");
        }
        let left = "SELECT count(*) FROM seen_messages WHERE scope = ?1";
        let left = |scope| conn.query_row(left, [scope], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!((left("q0"), left("q1")), (500_000, 500_000 - 11_010));
    }
}
