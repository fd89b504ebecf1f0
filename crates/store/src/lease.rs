//! Leases: who works on a row, and until when.
//!
//! Owns claim, heartbeat, finish, release and expiry for every table with the columns status, worker_id,
//! worker_heartbeat_at and lease_expires_at. A table says what is its own (what is due, what an expired row
//! becomes); the guards are the same everywhere and stand here: an owner's write names the state it leaves and
//! the token of its claim, so a row that was rescued and claimed again cannot be touched by its old owner.
//!
//! A running row is stale when its worker is dead, or when its lease has run out and its worker is not known to be alive
//! (`workers`), or when its lease has run out and its worker, which recovers, does not hold it (`Held`). It does not decide
//! when to recover: any worker or control plane may, at any time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Row, ToSql};

use crate::db::Db;
use crate::error::Result;
use crate::{cleanup, jobs, tasks, thumbnails, wal, workers};

/// The default length of a lease.
pub const LEASE: Duration = Duration::from_secs(300);

/// A worker's name, new with every start, and the source of its claims' tokens.
///
/// A process that starts again is another worker: what its predecessor held is not its own.
#[derive(Clone, Debug)]
pub struct WorkerId {
    name: Arc<str>,
    claims: Arc<AtomicU64>,
}

impl WorkerId {
    /// A worker called `name` (a host's name and a process id, say) and something random.
    pub fn new(name: &str) -> Self {
        let random = uuid::Uuid::new_v4().as_u128() as u64;
        // The other side takes names of up to 128 characters; 40 are left for the random part and the count.
        let name: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
        WorkerId { name: format!("{name}:{random:016x}").into(), claims: Arc::default() }
    }

    /// The name, as it begins every token.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A token for one claim: never used before, by anybody.
    pub fn token(&self) -> Token {
        let number = self.claims.fetch_add(1, Ordering::Relaxed) + 1;
        Token(format!("{}/{number}", self.name).into())
    }
}

/// What a claim writes into `worker_id`, and what every later write of the owner must show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// A token that somebody else chose: the other side of the protocol names its workers itself.
    pub fn named(name: &str) -> Self {
        Token(name.into())
    }

    /// The text in the database.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a worker holds in one table when it recovers. Only the worker itself can know that: a claim of its own may have been
/// committed though the commit was reported as failed, or may have been dropped because its outcome could not be written.
/// While the worker is alive, no other worker frees such a row.
#[derive(Clone, Debug)]
pub struct HeldLeases {
    worker: String,
    /// A JSON array of texts: the id of a row, a space, the token of its claim.
    rows: String,
}

impl HeldLeases {
    /// The rows, by id and token, that `worker` holds.
    pub fn new<'a, I: std::fmt::Display>(
        worker: &WorkerId,
        rows: impl IntoIterator<Item = (I, &'a Token)>,
    ) -> Self {
        let rows: Vec<String> =
            rows.into_iter().map(|(id, token)| format!("{id} {}", token.as_str())).collect();
        HeldLeases { worker: worker.name().to_owned(), rows: serde_json::json!(rows).to_string() }
    }

    /// The parameters of [`Leased::is_unheld`].
    pub(crate) fn params<'a>(&'a self, now: &'a str) -> [&'a str; 3] {
        [now, &self.worker, &self.rows]
    }
}

/// What a heartbeat found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatResult {
    /// The lease goes on.
    Kept,
    /// It had run out, though nobody had taken the row yet; the row is free for others now.
    Expired,
    /// The row is not the caller's any more: rescued, cancelled or finished.
    Lost,
}

/// The expression that compares as the time in `column` does, whichever of the legal texts it holds.
pub(crate) fn sortable_time(column: &str) -> String {
    format!("substr(replace({column}, '+00:00', '') || '.000000', 1, 26)")
}

/// How one table's rows are leased. The SQL pieces may use ?1, the time now.
pub(crate) struct LeaseRules {
    pub(crate) table: &'static str,
    /// Whether only we write the times in it, so that they compare as texts.
    pub(crate) canonical_times: bool,
    /// Rows that are leased at all, such as jobs of some kinds.
    pub(crate) row_filter: &'static str,
    /// Set when a row is claimed, besides status and lease.
    pub(crate) on_claim: &'static str,
    /// Set by a heartbeat, besides the lease.
    pub(crate) on_heartbeat: &'static str,
    /// Set when a lease is found to have run out, besides the lease columns.
    pub(crate) on_expiry: &'static str,
    /// Whether a heartbeat renews a lease that has run out while nobody else took the row. The protocol says that one of a
    /// job fails.
    pub(crate) renews_expired: bool,
}

/// Which rows a claim is for.
pub(crate) struct DueRows<'a> {
    /// A query for ids, most urgent first, without its LIMIT. It may use ?1, the time now.
    pub(crate) ids: &'a str,
    /// What it uses from ?5 on.
    pub(crate) params: &'a [&'a dyn ToSql],
    /// At most so many.
    pub(crate) limit: usize,
}

impl LeaseRules {
    /// Leases what is due and reads `columns` of it. One statement: nobody comes between.
    pub(crate) fn claim<T>(
        &self,
        db: &Db<'_>,
        (token, length): (&Token, Duration),
        due: &DueRows<'_>,
        columns: &str,
        map: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let LeaseRules { table, on_claim, .. } = self;
        let sql = format!(
            "UPDATE {table} SET status = 'running', worker_id = ?2, worker_heartbeat_at = ?1,
                lease_expires_at = ?3{on_claim}
             WHERE id IN ({} LIMIT ?4) RETURNING {columns}",
            due.ids
        );
        let (now, expires) = (db.now(), db.now.plus(length).to_string());
        let limit = crate::sql_limit(due.limit);
        let mut params: Vec<&dyn ToSql> = vec![&now, &token.0, &expires, &limit];
        params.extend_from_slice(due.params);
        db.rows(&sql, &*params, map)
    }

    /// Prolongs the lease of the row `id`. `more`: columns for a heartbeat of this table, from ?5 on.
    pub(crate) fn heartbeat(
        &self,
        db: &Db<'_>,
        id: &dyn ToSql,
        (token, length): (&Token, Duration),
        extra_params: &[&dyn ToSql],
    ) -> Result<HeartbeatResult> {
        let LeaseRules { table, on_heartbeat, row_filter, .. } = self;
        let unexpired = match self.renews_expired {
            true => String::new(),
            false => format!(" AND {} > ?1", self.lease_moment()),
        };
        let sql = format!(
            "UPDATE {table} SET worker_heartbeat_at = ?1, lease_expires_at = ?3{on_heartbeat}
             WHERE id = ?4 AND status = 'running' AND worker_id = ?2{unexpired}{row_filter}"
        );
        let (now, expires) = (db.now(), db.now.plus(length).to_string());
        let mut params: Vec<&dyn ToSql> = vec![&now, &token.0, &expires, id];
        params.extend_from_slice(extra_params);
        if db.execute(&sql, &*params)? == 1 {
            return Ok(HeartbeatResult::Kept);
        }
        let sql = format!("{} AND id = ?2 AND worker_id = ?3", self.free_sql(&self.expired_condition()));
        let expired = db.execute(&sql, rusqlite::params![now, id, token.0])?;
        Ok(if expired == 1 { HeartbeatResult::Expired } else { HeartbeatResult::Lost })
    }

    /// The owner's last word: sets `sets` (from ?4 on `more`), ends the lease. False when the row is not the
    /// owner's any more. A lease that ran out unnoticed still counts: nobody else has the row, and the work
    /// is done.
    pub(crate) fn finish(
        &self,
        db: &Db<'_>,
        id: &dyn ToSql,
        token: &Token,
        sets: &str,
        extra_params: &[&dyn ToSql],
    ) -> Result<bool> {
        execute_finish(db, &self.finish_sql(sets), id, token, extra_params)
    }

    /// The statement of [`finish`](Self::finish), for those who need it often.
    pub(crate) fn finish_sql(&self, sets: &str) -> String {
        self.finish_where_sql("id = ?2", sets)
    }

    /// Like [`finishing`](Self::finishing), for all rows whose ids are in the JSON array ?2.
    pub(crate) fn finish_many_sql(&self, sets: &str) -> String {
        self.finish_where_sql("id IN (SELECT value FROM json_each(?2))", sets)
    }

    fn finish_where_sql(&self, which: &str, sets: &str) -> String {
        let LeaseRules { table, row_filter, .. } = self;
        format!(
            "UPDATE {table} SET {sets}, worker_heartbeat_at = ?1, lease_expires_at = NULL
             WHERE {which} AND status = 'running' AND worker_id = ?3{row_filter}"
        )
    }

    /// Gives a row back undone: others can have it at once.
    pub(crate) fn release(&self, db: &Db<'_>, id: &dyn ToSql, token: &Token, sets: &str) -> Result<bool> {
        let LeaseRules { table, row_filter, .. } = self;
        let sql = format!(
            "UPDATE {table} SET {sets}, worker_id = NULL, worker_heartbeat_at = NULL, lease_expires_at = NULL
             WHERE id = ?2 AND status = 'running' AND worker_id = ?3{row_filter}"
        );
        let now = db.now();
        Ok(db.execute(&sql, rusqlite::params![now, id, token.0])? == 1)
    }

    /// Frees every stale row. Returns how many. Workers are judged only if a row is leased.
    pub(crate) fn recover(&self, db: &Db<'_>) -> Result<usize> {
        let LeaseRules { table, row_filter, .. } = self;
        let leased = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE status = 'running'{row_filter})");
        if db.number(&leased, [])? == 0 {
            return Ok(0);
        }
        workers::update_states(db)?;
        self.free_stale(db)
    }

    /// Like [`recover`](Self::recover), by a worker that knows what it holds.
    pub(crate) fn recover_by(&self, db: &Db<'_>, held: &HeldLeases) -> Result<usize> {
        Ok(self.free_unheld(db, held)? + self.recover(db)?)
    }

    /// Frees rows that a worker claimed and does not hold, and whose lease has run out. Returns how many.
    pub(crate) fn free_unheld(&self, db: &Db<'_>, held: &HeldLeases) -> Result<usize> {
        db.execute(&self.free_sql(&self.unheld_condition()), held.params(db.now()))
    }

    /// Running beyond its time, claimed by the worker ?2, and not among the rows ?3 that it holds.
    pub(crate) fn unheld_condition(&self) -> String {
        format!(
            "{} AND substr(worker_id, 1, length(?2) + 1) = ?2 || '/'
             AND id || ' ' || worker_id NOT IN (SELECT value FROM json_each(?3))",
            self.expired_condition()
        )
    }

    /// Frees every row that is stale by the last judgement of workers. Returns how many.
    pub(crate) fn free_stale(&self, db: &Db<'_>) -> Result<usize> {
        db.execute(&self.free_sql(&self.stale_condition()), [db.now()])
    }

    /// How many rows are leased, and how many of them are stale.
    pub(crate) fn leased_and_stale(&self, db: &Db<'_>) -> Result<(i64, i64)> {
        let LeaseRules { table, row_filter, .. } = self;
        let leased = format!("SELECT count(*) FROM {table} WHERE status = 'running'{row_filter}");
        // A file of an earlier version may be looked at, too.
        let workers_table = "SELECT count(*) FROM sqlite_schema WHERE name = 'workers'";
        let has_workers_table = db.number(workers_table, [])? > 0;
        let which = if has_workers_table { self.stale_condition() } else { self.expired_condition() };
        // By the last judgement; and held by workers that have ended since, which a check must not write down.
        let ended = match has_workers_table {
            true => format!(
                "status = 'running' AND EXISTS (SELECT 1 FROM json_each(?2)
                    WHERE substr({table}.worker_id, 1, length(value) + 1) = value || '/'){row_filter}"
            ),
            false => "false AND ?2 IS NULL".to_owned(),
        };
        let stale = format!("SELECT count(*) FROM {table} WHERE ({which}) OR ({ended})");
        let dead = if has_workers_table { workers::dead_workers(db)? } else { BTreeSet::new() };
        let dead = serde_json::Value::from_iter(dead).to_string();
        Ok((db.number(&leased, [])?, db.number(&stale, (db.now(), dead))?))
    }

    fn free_sql(&self, which: &str) -> String {
        let LeaseRules { table, on_expiry, .. } = self;
        format!(
            "UPDATE {table} SET {on_expiry}, worker_id = NULL, worker_heartbeat_at = NULL,
                lease_expires_at = NULL WHERE {which}"
        )
    }

    /// Running, and beyond its time or without one, by the wall clock.
    fn expired_condition(&self) -> String {
        let expires = self.lease_moment();
        format!("status = 'running' AND (lease_expires_at IS NULL OR {expires} <= ?1){}", self.row_filter)
    }

    /// Running, and its worker is dead, or its lease has run out and its worker is not known to be alive.
    pub(crate) fn stale_condition(&self) -> String {
        let LeaseRules { table, row_filter, .. } = self;
        let (expires, alive, dead) =
            (self.lease_moment(), workers::held_by(table, "alive"), workers::held_by(table, "dead"));
        format!(
            "status = 'running' AND ({dead} OR (lease_expires_at IS NULL OR {expires} <= ?1) AND NOT {alive}){row_filter}"
        )
    }

    fn lease_moment(&self) -> String {
        if self.canonical_times { "lease_expires_at".to_owned() } else { sortable_time("lease_expires_at") }
    }
}

/// The tables whose rows are leased.
pub(crate) fn leased_tables() -> [&'static LeaseRules; 5] {
    [
        tasks::lease_rules(),
        jobs::lease_rules(),
        thumbnails::lease_rules(),
        cleanup::lease_rules(),
        wal::lease_rules(),
    ]
}

/// Runs a statement that [`Leased::finishing`] made.
pub(crate) fn execute_finish(
    db: &Db<'_>,
    sql: &str,
    id: &dyn ToSql,
    token: &Token,
    extra_params: &[&dyn ToSql],
) -> Result<bool> {
    let now = db.now();
    let mut params: Vec<&dyn ToSql> = Vec::with_capacity(3 + extra_params.len());
    params.extend([&now as &dyn ToSql, id, &token.0]);
    params.extend_from_slice(extra_params);
    Ok(db.execute(sql, &*params)? == 1)
}
