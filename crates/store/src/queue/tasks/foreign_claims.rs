//! Counts the claims of other workers, for a worker that ends and reports unfinished tasks.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::rows::column;
use crate::sqlite::Db;
use crate::time::UtcTime;
use crate::workers;

/// Number of tasks that other workers have claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ForeignClaims {
    /// Tasks of workers that are alive, as seen from this process.
    pub alive: u64,
    /// Tasks of workers of unknown state: on another machine, or whose process does not renew its leases.
    pub unseen: u64,
    /// When the last lease of such a worker expires, unless it is renewed.
    pub unseen_until: Option<UtcTime>,
}

pub(super) fn foreign_claims(db: &Db<'_>, queues: &[String], own_worker: &str) -> Result<ForeignClaims> {
    let sql = format!(
        "SELECT {} AS worker, count(*), max(lease_expires_at) AS until FROM tasks
            WHERE status = 'running' AND queue = ?1 GROUP BY worker",
        workers::worker_of("tasks")
    );
    let mut claims = ForeignClaims::default();
    let mut alive: Option<BTreeSet<String>> = None;
    for queue in queues.iter().collect::<BTreeSet<_>>() {
        let held: Vec<(Option<String>, i64, Option<UtcTime>)> =
            db.rows(&sql, [queue], |row| Ok((row.get(0)?, row.get(1)?, column(row, "until")?)))?;
        for (worker, count, until) in held {
            let count = count.unsigned_abs();
            let alive = match &alive {
                Some(alive) => alive,
                None => alive.insert(workers::alive_workers(db)?),
            };
            match worker {
                Some(worker) if worker == own_worker => {}
                Some(worker) if alive.contains(&worker) => claims.alive += count,
                _ => {
                    claims.unseen += count;
                    claims.unseen_until = claims.unseen_until.max(until);
                }
            }
        }
    }
    Ok(claims)
}
