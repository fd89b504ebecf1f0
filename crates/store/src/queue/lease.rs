//! Leases: which worker owns a row, and until when.
//!
//! Owns claim, heartbeat, finish, release and expiry for every table with the columns status, worker_id,
//! worker_heartbeat_at and lease_expires_at. Each table declares its `LeaseRules`: which rows are due, and what an
//! expired row becomes. The guards are the same for all: an owner's write names the status it leaves and the token of
//! its claim, so a row that was recovered and claimed again cannot be changed by its previous owner.
//!
//! A running row is stale if its worker is dead, or its lease has expired and its worker is not known to be alive
//! (`workers`). For the worker that runs the recovery, it is stale if its lease has expired and the worker does not
//! hold it ([`HeldLeases`]). Any worker or control plane may recover at any time.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sqlite::{Db, Row, SqlResult, ToSql, params};
use crate::{cleanup, jobs, tasks, thumbnails, wal, workers};

/// Default duration of a lease: 5 minutes.
pub const LEASE: Duration = Duration::from_secs(300);

/// Name of a worker, which is new with every start, and the source of the tokens of its claims.
///
/// A restarted process is another worker and does not own what its predecessor claimed.
#[derive(Clone, Debug)]
pub struct WorkerId {
    name: Arc<str>,
    claims: Arc<AtomicU64>,
}

impl WorkerId {
    /// Makes a worker named `name`, such as a host name and a process id, with a random suffix.
    pub fn new(name: &str) -> Self {
        let random = uuid::Uuid::new_v4().as_u128() as u64;
        // The Python control plane limits names to 128 characters; 40 are reserved for the random part and the counter.
        let name: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
        WorkerId { name: format!("{name}:{random:016x}").into(), claims: Arc::default() }
    }

    /// Returns the name, with which every token begins.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a unique token for one claim.
    pub fn token(&self) -> Token {
        let number = self.claims.fetch_add(1, Ordering::Relaxed) + 1;
        Token(format!("{}/{number}", self.name).into())
    }
}

/// Identifies a claim. It is stored in `worker_id`, and every later write of the owner must match it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// Makes a token from a name, as the Python control plane names its workers.
    pub fn named(name: &str) -> Self {
        Token(name.into())
    }

    /// Returns the text stored in the database.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Rows of one table that a worker holds when it recovers. Only the worker itself knows them: a claim may have been
/// committed although the commit was reported as failed, or dropped because its outcome could not be written. While the
/// worker is alive, no other worker frees such a row.
#[derive(Clone, Debug)]
pub struct HeldLeases {
    worker: String,
    /// JSON array of texts: the id of a row, a space, the token of its claim.
    rows: String,
}

impl HeldLeases {
    /// Records the rows, by id and token, that `worker` holds.
    pub fn new<'a, I: std::fmt::Display>(worker: &WorkerId, rows: impl IntoIterator<Item = (I, &'a Token)>) -> Self {
        let rows: Vec<String> = rows.into_iter().map(|(id, token)| format!("{id} {}", token.as_str())).collect();
        HeldLeases { worker: worker.name().to_owned(), rows: serde_json::json!(rows).to_string() }
    }

    /// Returns the parameters of [`LeaseRules::unheld_condition`].
    pub(crate) fn params<'a>(&'a self, now: &'a str) -> [&'a str; 3] {
        [now, &self.worker, &self.rows]
    }
}

/// Result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatResult {
    /// The lease was renewed.
    Kept,
    /// The lease had expired; the row was freed for other workers.
    Expired,
    /// The caller no longer owns the row: it was recovered, cancelled or finished.
    Lost,
}

/// Returns an SQL expression that orders the text forms of a time in `column` by time.
pub(crate) fn sortable_time(column: &str) -> String {
    format!("substr(replace({column}, '+00:00', '') || '.000000', 1, 26)")
}

/// How the rows of one table are leased. The SQL fragments may use ?1, the current time.
pub(crate) struct LeaseRules {
    pub(crate) table: &'static str,
    /// What a row is called in messages.
    pub(crate) noun: &'static str,
    /// Whether only Gristmill writes the times of the table, so that they compare as texts.
    pub(crate) canonical_times: bool,
    /// Condition on rows that are leased, such as jobs of some kinds.
    pub(crate) row_filter: &'static str,
    /// Columns that a claim sets, besides status and lease.
    pub(crate) on_claim: &'static str,
    /// Columns that a heartbeat sets, besides the lease.
    pub(crate) on_heartbeat: &'static str,
    /// Columns that expiry sets, besides the lease columns.
    pub(crate) on_expiry: &'static str,
    /// Whether a heartbeat renews an expired lease that was not recovered yet. For jobs the protocol forbids it.
    pub(crate) renews_expired: bool,
}

/// A row of a table with leases.
pub(crate) trait LeasedRow: Sized {
    fn rules() -> &'static LeaseRules;
    fn read(row: &Row<'_>) -> SqlResult<Self>;
    fn status(&self) -> &'static str;
}

/// Implements [`LeasedRow`] for a struct of `table_row` with a status.
macro_rules! leased_row {
    ($row:ident, $rules:ident) => {
        impl $crate::lease::LeasedRow for $row {
            fn rules() -> &'static $crate::lease::LeaseRules {
                &$rules
            }

            fn read(row: &$crate::sqlite::Row<'_>) -> $crate::sqlite::SqlResult<Self> {
                $row::read(row)
            }

            fn status(&self) -> &'static str {
                self.status.as_str()
            }
        }
    };
}
pub(crate) use leased_row;

/// Returns the row with this id.
pub(crate) fn row<R: LeasedRow>(db: &Db<'_>, id: impl ToSql + Display) -> Result<R> {
    let LeaseRules { table, noun, .. } = R::rules();
    let found = db.first(&format!("SELECT * FROM {table} WHERE id = ?1"), [&id], R::read)?;
    found.ok_or_else(|| Error::not_found(noun, id))
}

/// Returns the row after its owner's write, or the error if the caller does not own it.
pub(crate) fn require_owned<R: LeasedRow>(
    db: &Db<'_>,
    done: bool,
    id: impl ToSql + Display,
    token: &Token,
) -> Result<R> {
    let row: R = row(db, &id)?;
    if done {
        return Ok(row);
    }
    let (noun, status, token) = (R::rules().noun, row.status(), token.as_str());
    Err(Error::Conflict(format!("{noun} {id} is {status} and not owned by {token:?}")))
}

/// Returns the row after a guarded update, or the error if its status does not allow the update.
pub(crate) fn require_changed<R: LeasedRow>(
    db: &Db<'_>,
    count: usize,
    id: impl ToSql + Display,
    required: &str,
) -> Result<R> {
    let row: R = row(db, &id)?;
    if count == 1 {
        return Ok(row);
    }
    let (noun, status) = (R::rules().noun, row.status());
    Err(Error::Conflict(format!("{noun} {id} is {status}; expected {required}")))
}

/// Frees stale rows, then claims the most urgent row of the query `ids` (see [`DueRows`]), if there is one.
pub(crate) fn claim_one<R: LeasedRow>(
    db: &Db<'_>,
    claim: (&Token, Duration),
    ids: &str,
    params: &[&dyn ToSql],
) -> Result<Option<R>> {
    R::rules().recover(db)?;
    Ok(R::rules().claim(db, claim, &DueRows { ids, params, limit: 1 }, "*", R::read)?.pop())
}

/// Returns a row to pending, so that another worker can claim it at once.
pub(crate) fn release<R: LeasedRow>(db: &Db<'_>, id: i64, token: &Token) -> Result<R> {
    let done = R::rules().release(db, &id, token, "status = 'pending', updated_at = ?1")?;
    require_owned(db, done, id, token)
}

/// Rows that a claim may take.
pub(crate) struct DueRows<'a> {
    /// Query for ids, most urgent first, without LIMIT. It may use ?1, the current time.
    pub(crate) ids: &'a str,
    /// Parameters of the query, from ?5 on.
    pub(crate) params: &'a [&'a dyn ToSql],
    /// Maximum number of rows.
    pub(crate) limit: usize,
}

impl LeaseRules {
    /// Leases rows that are due and returns `columns` of them. A single statement, so concurrent claims do not overlap.
    pub(crate) fn claim<T>(
        &self,
        db: &Db<'_>,
        (token, length): (&Token, Duration),
        due: &DueRows<'_>,
        columns: &str,
        map: impl FnMut(&Row<'_>) -> SqlResult<T>,
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

    /// Renews the lease of row `id`. `extra_params`: parameters of `on_heartbeat`, from ?5 on.
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
            false => format!(" AND {} > ?1", self.expiry_sql()),
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
        let expired = db.execute(&sql, params![now, id, token.0])?;
        Ok(if expired == 1 { HeartbeatResult::Expired } else { HeartbeatResult::Lost })
    }

    /// Applies `sets` (parameters `extra_params`, from ?4 on) and ends the lease. Returns false if the caller no longer
    /// owns the row. An expired lease that was not recovered is accepted: no other worker has the row.
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

    /// Returns the statement of [`finish`](Self::finish), to be built once.
    pub(crate) fn finish_sql(&self, sets: &str) -> String {
        self.finish_where_sql("id = ?2", sets)
    }

    /// Like [`finish_sql`](Self::finish_sql), for all rows whose ids are in the JSON array ?2.
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

    /// Returns a row unfinished, so that another worker can claim it at once.
    pub(crate) fn release(&self, db: &Db<'_>, id: &dyn ToSql, token: &Token, sets: &str) -> Result<bool> {
        let LeaseRules { table, row_filter, .. } = self;
        let sql = format!(
            "UPDATE {table} SET {sets}, worker_id = NULL, worker_heartbeat_at = NULL, lease_expires_at = NULL
             WHERE id = ?2 AND status = 'running' AND worker_id = ?3{row_filter}"
        );
        let now = db.now();
        Ok(db.execute(&sql, params![now, id, token.0])? == 1)
    }

    /// Frees every stale row and returns how many. Worker states are updated only if a row is leased.
    pub(crate) fn recover(&self, db: &Db<'_>) -> Result<usize> {
        let LeaseRules { table, row_filter, .. } = self;
        let leased = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE status = 'running'{row_filter})");
        if db.number(&leased, [])? == 0 {
            return Ok(0);
        }
        workers::update_states(db)?;
        self.free_stale(db)
    }

    /// Like [`recover`](Self::recover), and also frees expired leases of the calling worker that are not in `held`.
    pub(crate) fn recover_by(&self, db: &Db<'_>, held: &HeldLeases) -> Result<usize> {
        Ok(self.free_unheld(db, held)? + self.recover(db)?)
    }

    /// Frees rows that a worker claimed and does not hold, and whose lease has expired. Returns how many.
    pub(crate) fn free_unheld(&self, db: &Db<'_>, held: &HeldLeases) -> Result<usize> {
        db.execute(&self.free_sql(&self.unheld_condition()), held.params(db.now()))
    }

    /// Condition: expired, claimed by the worker ?2, and not among the rows ?3 that it holds.
    pub(crate) fn unheld_condition(&self) -> String {
        format!(
            "{} AND substr(worker_id, 1, length(?2) + 1) = ?2 || '/'
             AND id || ' ' || worker_id NOT IN (SELECT value FROM json_each(?3))",
            self.expired_condition()
        )
    }

    /// Frees every row that is stale by the last recorded states of workers. Returns how many.
    pub(crate) fn free_stale(&self, db: &Db<'_>) -> Result<usize> {
        db.execute(&self.free_sql(&self.stale_condition()), [db.now()])
    }

    /// Returns the number of leased rows, and how many of them are stale.
    pub(crate) fn leased_and_stale(&self, db: &Db<'_>) -> Result<(u64, u64)> {
        let LeaseRules { table, row_filter, .. } = self;
        let leased = format!("SELECT count(*) FROM {table} WHERE status = 'running'{row_filter}");
        // A file of an earlier version has no workers table.
        let has_workers_table = db.has_table("workers")?;
        let which = if has_workers_table { self.stale_condition() } else { self.expired_condition() };
        // Counts also rows of workers that have ended since the last update: examining must not write their state.
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
        Ok((db.count(&leased, [])?, db.count(&stale, (db.now(), dead))?))
    }

    fn free_sql(&self, which: &str) -> String {
        let LeaseRules { table, on_expiry, .. } = self;
        format!(
            "UPDATE {table} SET {on_expiry}, worker_id = NULL, worker_heartbeat_at = NULL,
                lease_expires_at = NULL WHERE {which}"
        )
    }

    /// Condition: running, and its lease has expired or has no end, by the wall clock.
    fn expired_condition(&self) -> String {
        let expires = self.expiry_sql();
        format!("status = 'running' AND (lease_expires_at IS NULL OR {expires} <= ?1){}", self.row_filter)
    }

    /// Condition: running, and its worker is dead, or its lease has expired and its worker is not known to be alive.
    pub(crate) fn stale_condition(&self) -> String {
        let LeaseRules { table, row_filter, .. } = self;
        let (expires, alive, dead) =
            (self.expiry_sql(), workers::held_by(table, "alive"), workers::held_by(table, "dead"));
        format!(
            "status = 'running' AND ({dead} OR (lease_expires_at IS NULL OR {expires} <= ?1) AND NOT {alive}){row_filter}"
        )
    }

    fn expiry_sql(&self) -> String {
        if self.canonical_times { "lease_expires_at".to_owned() } else { sortable_time("lease_expires_at") }
    }
}

/// Returns the rules of every table with leases.
pub(crate) fn leased_tables() -> [&'static LeaseRules; 5] {
    [&tasks::LEASE_RULES, &jobs::LEASE_RULES, &thumbnails::LEASE_RULES, &cleanup::LEASE_RULES, &wal::LEASE_RULES]
}

/// Runs a statement of [`LeaseRules::finish_sql`].
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
