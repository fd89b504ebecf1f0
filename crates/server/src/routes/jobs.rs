//! Jobs of the shared protocol: create, list, claim, renew, finish, cancel, reset, recover.

use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use gristmill_store::jobs::{JobFilter, JobKind, JobRow, JobStatus, MAX_PAGE};
use gristmill_store::lease::{HeartbeatResult, Token};
use gristmill_store::{NestedJson, Page};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Problems, page_limit, parsed};
use crate::app::App;
use crate::extract::{JsonBody, PathArgs, QueryArgs};
use crate::problem::{Problem, Result};
use crate::security::credentials::Caller;

/// Lease of a job that was claimed over HTTP, as in the protocol.
const LEASE: Duration = Duration::from_secs(300);

/// Length of a worker's name in characters.
const MAX_WORKER_ID: usize = 128;

/// Number of jobs on a page unless the request says otherwise.
const DEFAULT_PAGE: usize = 50;

type JobAnswer = Json<NestedJson<JobRow>>;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get))
        .routes(routes!(claim))
        .routes(routes!(recover))
        .routes(routes!(heartbeat))
        .routes(routes!(finish))
        .routes(routes!(cancel))
        .routes(routes!(reset))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// 1 to 200; 50 if it is left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Id of the last job of the previous page.
    cursor: Option<String>,
    /// Only jobs with this status.
    #[param(inline, value_type = Option<JobStatus>)]
    status: Option<String>,
    /// Only jobs of this kind.
    #[param(inline, value_type = Option<JobKind>)]
    kind: Option<String>,
}

/// Lists jobs, newest first.
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(ListParams),
    responses((status = 200, body = Page<JobRow>), Problems))]
async fn list(
    State(app): State<App>,
    QueryArgs(params): QueryArgs<ListParams>,
) -> Result<Json<Page<NestedJson<JobRow>>>> {
    let limit = page_limit(params.limit, DEFAULT_PAGE, MAX_PAGE)?;
    let mut filter = JobFilter::default();
    filter.status = parsed(params.status.as_deref(), "status", JobStatus::parse, JobStatus::ALL)?;
    filter.kind = parsed(params.kind.as_deref(), "kind", JobKind::parse, JobKind::ALL)?;
    app.run(move |app| {
        let page = app.store.jobs().list(filter, params.cursor.as_deref(), limit)?;
        Ok(Json(page.map(NestedJson)))
    })
    .await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewJob {
    /// scan, hash, delete or thumbnail.
    #[schema(value_type = JobKind)]
    kind: String,
    #[schema(value_type = Option<Object>)]
    payload: Option<Box<RawValue>>,
    /// Whether no file may be changed. The default is that of the server.
    dry_run: Option<bool>,
}

/// Creates a job. 409 if another scan or hash job is active, or if the server allows only dry runs.
#[utoipa::path(post, path = "/jobs", tag = "jobs", request_body = NewJob,
    responses((status = 201, body = JobRow), Problems))]
async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(new): JsonBody<NewJob>,
) -> Result<(StatusCode, JobAnswer)> {
    let kind = parsed(Some(&new.kind), "kind", JobKind::parse, JobKind::ALL)?.unwrap_or(JobKind::Scan);
    let dry_run = new.dry_run.unwrap_or(app.dry_run);
    if app.dry_run && !dry_run {
        return Err(Problem::conflict("this server allows only dry runs (serve.dry_run); leave dry_run out, or true"));
    }
    if kind == JobKind::Delete && !dry_run {
        return Err(Problem::conflict("deleting files is not possible over HTTP; expected dry_run: true"));
    }
    let payload = new.payload.map_or_else(|| "{}".to_owned(), |payload| payload.get().to_owned());
    let job = app
        .change(caller, "create job", |_| 1, move |app| Ok(app.store.jobs().create(kind, &payload, dry_run)?))
        .await?;
    Ok((StatusCode::CREATED, Json(NestedJson(job))))
}

/// Returns a job.
#[utoipa::path(get, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path,)),
    responses((status = 200, body = JobRow), Problems))]
async fn get(State(app): State<App>, PathArgs(id): PathArgs<String>) -> Result<JobAnswer> {
    app.run(move |app| Ok(Json(NestedJson(app.store.jobs().get(&id)?)))).await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Claim {
    /// Name of the worker.
    #[schema(min_length = 1, max_length = 128)]
    worker_id: String,
}

/// Claims the oldest pending scan or hash job. 404 if there is none.
#[utoipa::path(post, path = "/jobs/scan-hash/claim", tag = "jobs", request_body = Claim,
    responses((status = 200, body = JobRow), Problems))]
async fn claim(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Claim>,
) -> Result<JobAnswer> {
    let token = token(&body.worker_id)?;
    let claimed = app.change(caller, "claim job", |_| 1, move |app| Ok(app.store.jobs().claim(&token, LEASE)?)).await?;
    let job = claimed.ok_or_else(|| Problem::not_found("no scan or hash job is pending"))?;
    Ok(Json(NestedJson(job)))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Heartbeat {
    /// Name of the worker that has claimed the job.
    #[schema(min_length = 1, max_length = 128)]
    worker_id: String,
    /// From 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    progress: Option<f64>,
    #[schema(minimum = 0)]
    processed_items: Option<u64>,
}

/// Renews the lease of a job and stores its progress. 409 if another worker has it, or the lease has expired.
#[utoipa::path(post, path = "/jobs/{id}/heartbeat", tag = "jobs", params(("id" = String, Path,)),
    request_body = Heartbeat, responses((status = 200, body = JobRow), Problems))]
async fn heartbeat(
    State(app): State<App>,
    PathArgs(id): PathArgs<String>,
    JsonBody(body): JsonBody<Heartbeat>,
) -> Result<JobAnswer> {
    let token = token(&body.worker_id)?;
    app.run(move |app| {
        let jobs = app.store.jobs();
        let job = jobs.get(&id)?;
        let progress = body.progress.unwrap_or(job.progress);
        let items = body.processed_items.unwrap_or_else(|| u64::try_from(job.processed_items).unwrap_or(0));
        match jobs.heartbeat(&id, &token, LEASE, progress, items)? {
            HeartbeatResult::Lost => Err(Problem::conflict(format!(
                "job {id} is not claimed by {:?}, or its lease has expired; claim a job again",
                body.worker_id
            ))),
            _ => Ok(Json(NestedJson(jobs.get(&id)?))),
        }
    })
    .await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Finish {
    /// Name of the worker that has claimed the job.
    #[schema(min_length = 1, max_length = 128)]
    worker_id: String,
    success: bool,
    /// Why it failed.
    error_message: Option<String>,
}

/// Ends the run of a job. 409 if another worker has it, or it has ended.
#[utoipa::path(post, path = "/jobs/{id}/finish", tag = "jobs", params(("id" = String, Path,)),
    request_body = Finish, responses((status = 200, body = JobRow), Problems))]
async fn finish(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathArgs(id): PathArgs<String>,
    JsonBody(body): JsonBody<Finish>,
) -> Result<JobAnswer> {
    let token = token(&body.worker_id)?;
    let outcome = match body.success {
        true => Ok(()),
        false => Err(body.error_message.unwrap_or_else(|| "the worker gave no reason".to_owned())),
    };
    let job =
        app.change(caller, "finish job", |_| 1, move |app| Ok(app.store.jobs().finish(&id, &token, outcome)?)).await?;
    Ok(Json(NestedJson(job)))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Cancel {
    /// Why it is cancelled.
    error_message: Option<String>,
}

/// Cancels a job that has not ended.
#[utoipa::path(post, path = "/jobs/{id}/cancel", tag = "jobs", params(("id" = String, Path,)),
    request_body = Option<Cancel>, responses((status = 200, body = JobRow), Problems))]
async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathArgs(id): PathArgs<String>,
    body: Option<JsonBody<Option<Cancel>>>,
) -> Result<JobAnswer> {
    let message = body.and_then(|JsonBody(body)| body?.error_message);
    let job = app
        .change(caller, "cancel job", |_| 1, move |app| Ok(app.store.jobs().cancel_because(&id, message.as_deref())?))
        .await?;
    Ok(Json(NestedJson(job)))
}

/// Makes a retryable job pending.
#[utoipa::path(post, path = "/jobs/{id}/reset", tag = "jobs", params(("id" = String, Path,)),
    responses((status = 200, body = JobRow), Problems))]
async fn reset(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathArgs(id): PathArgs<String>,
) -> Result<JobAnswer> {
    let job = app.change(caller, "reset job", |_| 1, move |app| Ok(app.store.jobs().reset(&id)?)).await?;
    Ok(Json(NestedJson(job)))
}

#[derive(Debug, Serialize, ToSchema)]
struct RecoveredJobs {
    /// Number of jobs that are retryable now.
    recovered: usize,
}

/// Makes scan and hash jobs with an expired lease retryable.
#[utoipa::path(post, path = "/jobs/recover-stale", tag = "jobs",
    responses((status = 200, body = RecoveredJobs), Problems))]
async fn recover(State(app): State<App>, Extension(caller): Extension<Caller>) -> Result<Json<RecoveredJobs>> {
    let recovered = app
        .change(caller, "recover jobs", |recovered| *recovered as u64, |app| Ok(app.store.jobs().recover()?))
        .await?;
    Ok(Json(RecoveredJobs { recovered }))
}

fn token(worker_id: &str) -> Result<Token> {
    match worker_id.chars().count() {
        1..=MAX_WORKER_ID => Ok(Token::named(worker_id)),
        count => Err(Problem::invalid(format!("worker_id has {count} characters; expected 1 to {MAX_WORKER_ID}"))),
    }
}
