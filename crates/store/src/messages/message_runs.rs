//! Messages that were started and have not ended, so that crashes and failed attempts are counted across restarts.
//!
//! Owns the table `message_runs`. A row contains the starts of a message that have no outcome yet, and its failed
//! attempts. The consumer decides which messages have a row and how the counts are used.

use std::time::Duration;

use crate::Store;
use crate::error::{Error, Result};
use crate::rows::column;
use crate::sqlite::{Db, WriteKind, params};

/// Deletes the oldest rows; reads only what it deletes.
const PRUNE: &str = "DELETE FROM message_runs WHERE (scope, fingerprint, copy) IN (SELECT scope, fingerprint, copy
    FROM message_runs WHERE updated_at <= ?1 ORDER BY updated_at LIMIT ?2)";

/// Identifies a message of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunKey {
    /// Hash of everything that identifies the message.
    pub fingerprint: [u8; 16],
    /// Number among identical messages, from 0.
    pub copy: u32,
}

/// Counts of a message that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRun {
    /// Identifies the message within its scope.
    pub key: RunKey,
    /// Committed starts without an outcome.
    pub starts: u32,
    /// Number of failed attempts.
    pub failed: u32,
    /// Error of the last failed attempt.
    pub error: Option<String>,
    /// Time since the last failed attempt; if none failed, since the last start.
    pub age: Duration,
}

/// Message runs of a store.
#[derive(Clone, Copy, Debug)]
pub struct MessageRuns<'a>(pub(crate) &'a Store);

impl MessageRuns<'_> {
    /// Returns up to `limit` runs of a scope, latest first.
    pub fn list(self, scope: &str, limit: usize) -> Result<Vec<MessageRun>> {
        self.0.read(|db| {
            let sql = "SELECT fingerprint, copy, starts, failed, error, updated_at FROM message_runs WHERE scope = ?1
                ORDER BY updated_at DESC LIMIT ?2";
            let rows = db.rows(sql, params![scope, crate::sql_limit(limit)], |row| {
                let run = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, column(row, "updated_at")?);
                Ok((row.get::<_, Vec<u8>>(0)?, run))
            })?;
            let run = |(fingerprint, (copy, starts, failed, error, updated_at)): (Vec<u8>, _)| {
                // A fingerprint of another length was written by an unknown version.
                let key = RunKey { fingerprint: fingerprint.try_into().ok()?, copy };
                let age = db.now.since(updated_at);
                Some(MessageRun { key, starts, failed, error, age })
            };
            Ok(rows.into_iter().filter_map(run).collect())
        })
    }

    /// Counts a start unless `limit` is reached; it is then on disk. Returns the new count, or `None` at the limit.
    pub fn start(self, scope: &str, key: RunKey, limit: u32) -> Result<Option<u32>> {
        let scope = check_scope(scope)?;
        self.0.write(WriteKind::TaskStatement, move |db| count_start(db, &scope, key, limit))
    }

    /// Counts a start of each message, like [`start`](Self::start).
    pub fn start_all(self, scope: &str, keys: Vec<RunKey>, limit: u32) -> Result<Vec<Option<u32>>> {
        let scope = check_scope(scope)?;
        self.0.write(WriteKind::TaskCompound, move |db| {
            keys.iter().map(|key| count_start(db, &scope, *key, limit)).collect()
        })
    }

    /// Reverts starts whose runs the consumer itself ended, such as at shutdown: they are not crashes.
    pub fn undo_starts(self, scope: &str, keys: Vec<RunKey>) -> Result<()> {
        let scope = check_scope(scope)?;
        self.0.write(WriteKind::TaskCompound, move |db| {
            let sql = "UPDATE message_runs SET starts = starts - 1
                WHERE scope = ?1 AND fingerprint = ?2 AND copy = ?3 AND starts > 0";
            for_each_key(&keys, |key| db.execute(sql, params![scope, key.fingerprint, key.copy]))?;
            let sql = "DELETE FROM message_runs
                WHERE scope = ?1 AND fingerprint = ?2 AND copy = ?3 AND starts = 0 AND failed = 0";
            for_each_key(&keys, |key| db.execute(sql, params![scope, key.fingerprint, key.copy]))
        })
    }

    /// Records a failed attempt: the number of failed attempts and the last error. No start without an outcome remains.
    pub fn fail(self, scope: &str, key: RunKey, failed: u32, error: String) -> Result<()> {
        let scope = check_scope(scope)?;
        self.0.write(WriteKind::TaskStatement, move |db| {
            let sql = "INSERT INTO message_runs (scope, fingerprint, copy, starts, failed, error, updated_at)
                    VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6)
                ON CONFLICT DO UPDATE SET starts = 0, failed = excluded.failed, error = excluded.error,
                    updated_at = excluded.updated_at";
            let params = params![scope, key.fingerprint, key.copy, failed, error, db.now()];
            db.execute(sql, params).map(drop)
        })
    }

    /// Deletes messages that have ended.
    pub fn finish(self, scope: &str, keys: Vec<RunKey>) -> Result<()> {
        let scope = check_scope(scope)?;
        self.0.write(WriteKind::TaskCompound, move |db| {
            let sql = "DELETE FROM message_runs WHERE scope = ?1 AND fingerprint = ?2 AND copy = ?3";
            for_each_key(&keys, |key| db.execute(sql, params![scope, key.fingerprint, key.copy]))
        })
    }

    /// Deletes up to `limit` messages of any scope, oldest first, that were not updated for `age`. Returns how many.
    pub fn prune(self, age: Duration, limit: usize) -> Result<usize> {
        self.0.write(WriteKind::TaskStatement, move |db: &Db<'_>| {
            db.execute(PRUNE, params![db.now.minus(age).to_string(), crate::sql_limit(limit)])
        })
    }
}

fn count_start(db: &Db<'_>, scope: &str, key: RunKey, limit: u32) -> Result<Option<u32>> {
    let sql = "INSERT INTO message_runs (scope, fingerprint, copy, starts, failed, updated_at)
            SELECT ?1, ?2, ?3, 1, 0, ?5 WHERE ?4 > 0
        ON CONFLICT DO UPDATE SET starts = starts + 1,
            updated_at = CASE WHEN failed > 0 THEN updated_at ELSE excluded.updated_at END
            WHERE starts < ?4
        RETURNING starts";
    db.first(sql, params![scope, key.fingerprint, key.copy, limit, db.now()], |row| row.get(0))
}

fn check_scope(scope: &str) -> Result<String> {
    match scope.is_empty() {
        true => Err(Error::Invalid("the scope is empty; expected a text such as a queue's name".to_owned())),
        false => Ok(scope.to_owned()),
    }
}

fn for_each_key(keys: &[RunKey], mut execute: impl FnMut(&RunKey) -> Result<usize>) -> Result<()> {
    keys.iter().try_for_each(|key| execute(key).map(drop))
}
