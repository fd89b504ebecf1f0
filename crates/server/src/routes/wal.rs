//! Checkpoints of the write-ahead log, as the shared protocol orders them.

use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use gristmill_store::UtcTime;
use gristmill_store::wal::{WalMode, WalRequest, WalRequestResult, WalRow, WalState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::app::{App, AppState};
use crate::extract::JsonBody;
use crate::problem::{Problem, Result};
use crate::security::credentials::Caller;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(request))
        .routes(routes!(latest))
        .routes(routes!(metrics))
        .routes(routes!(state))
}

/// Shortest time between two checkpoints, unless one is forced.
const MIN_INTERVAL: Duration = Duration::from_secs(900);

const MAX_MODE: usize = 16;
const MAX_REASON: usize = 2_048;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CheckpointRequest {
    /// passive (the default), restart or truncate. Truncate only with `force`.
    #[schema(value_type = Option<WalMode>)]
    mode: Option<String>,
    #[schema(max_length = 2048)]
    reason: Option<String>,
    /// Whether the time since the last checkpoint does not matter.
    #[serde(default)]
    force: bool,
}

/// Requests a checkpoint. An unfinished one is returned instead. 429 if the last one is too recent, 409 for a truncation
/// that is not forced.
#[utoipa::path(post, path = "/maintenance/wal/checkpoint", tag = "maintenance", request_body = CheckpointRequest,
    responses((status = 202, body = WalRow), Problems))]
async fn request(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<CheckpointRequest>,
) -> Result<(StatusCode, Json<WalRow>)> {
    let mode = body.mode.as_deref().unwrap_or("passive").trim().to_ascii_lowercase();
    if mode.len() > MAX_MODE {
        return Err(Problem::invalid(format!("mode has {} bytes; expected at most {MAX_MODE}", mode.len())));
    }
    let mode = super::parsed(Some(&mode), "mode", WalMode::parse, WalMode::ALL)?.unwrap_or(WalMode::Passive);
    if let Some(count) = body.reason.as_ref().map(|reason| reason.chars().count()).filter(|count| *count > MAX_REASON) {
        return Err(Problem::invalid(format!("reason has {count} characters; expected at most {MAX_REASON}")));
    }
    if mode == WalMode::Truncate && !body.force {
        return Err(Problem::conflict("a checkpoint that truncates blocks other programs; expected force: true"));
    }
    let request = WalRequest {
        mode,
        requested_by: "api".to_owned(),
        reason: body.reason,
        min_interval: (!body.force).then_some(MIN_INTERVAL),
    };
    let count = |result: &WalRequestResult| u64::from(matches!(result, WalRequestResult::Queued(_)));
    let work = move |app: &AppState| Ok(app.store.wal().enqueue(request)?);
    let row = match app.change(caller, "request checkpoint", count, work).await? {
        WalRequestResult::Queued(row) | WalRequestResult::Active(row) => row,
        WalRequestResult::TooSoon(next) => {
            let detail = format!("the last checkpoint is too recent; the next one is possible from {}", next.rfc3339());
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail));
        }
    };
    Ok((StatusCode::ACCEPTED, Json(row)))
}

/// Returns the checkpoint that was requested last. 404 if there is none.
#[utoipa::path(get, path = "/maintenance/wal/checkpoint/latest", tag = "maintenance",
    responses((status = 200, body = WalRow), Problems))]
async fn latest(State(app): State<App>) -> Result<Json<WalRow>> {
    let row = app.run(|app| Ok(app.store.wal().latest()?)).await?;
    row.map(Json).ok_or_else(|| Problem::not_found("no checkpoint was requested yet"))
}

#[derive(Debug, Serialize, ToSchema)]
struct Metrics {
    generated_at: UtcTime,
    pending: u64,
    running: u64,
    retryable: u64,
    failed: u64,
    completed: u64,
    latest_completed_at: Option<UtcTime>,
    /// Size of the write-ahead log.
    wal_size_bytes: u64,
}

/// Returns the number of checkpoints by status.
#[utoipa::path(get, path = "/maintenance/wal/metrics", tag = "maintenance",
    responses((status = 200, body = Metrics), Problems))]
async fn metrics(State(app): State<App>) -> Result<Json<Metrics>> {
    app.run(|app| {
        let found = app.store.wal().metrics()?;
        Ok(Json(Metrics {
            generated_at: app.store.now(),
            pending: found.pending,
            running: found.running,
            retryable: found.retryable,
            failed: found.failed,
            completed: found.completed,
            latest_completed_at: found.latest_completed_at,
            wal_size_bytes: found.wal_size_bytes,
        }))
    })
    .await
}

/// Returns the sizes of the database and of its write-ahead log.
#[utoipa::path(get, path = "/maintenance/wal", tag = "maintenance",
    responses((status = 200, body = WalState), Problems))]
async fn state(State(app): State<App>) -> Result<Json<WalState>> {
    app.run(|app| Ok(Json(app.store.wal().state()?))).await
}
