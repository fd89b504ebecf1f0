//! Durable tasks: enqueue, list, show, cancel, run now.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use gristmill_jobs::exec;
use gristmill_store::checkpoints::Checkpoint;
use gristmill_store::failures::FailedAttempt;
use gristmill_store::tasks::{CancelOutcome, Enqueued, NewTask, TaskCount, TaskFilter, TaskRow, TaskStatus};
use gristmill_store::{NestedJson, Page};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{DEFAULT_ROWS, MAX_ROWS, Problems, page_limit, parsed};
use crate::app::{App, AppState};
use crate::extract::{JsonBody, PathArgs, QueryArgs};
use crate::problem::{Problem, Result};
use crate::security::credentials::Caller;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, enqueue))
        .routes(routes!(counts))
        .routes(routes!(show))
        .routes(routes!(cancel))
        .routes(routes!(run_now))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// 1 to 200; 50 if it is left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Id of the last task of the previous page.
    #[param(pattern = "^[1-9][0-9]{0,17}$")]
    cursor: Option<String>,
    /// Only tasks with this status.
    #[param(inline, value_type = Option<TaskStatus>)]
    status: Option<String>,
    kind: Option<String>,
    queue: Option<String>,
    /// Only tasks whose payload or error contains this text.
    text: Option<String>,
}

/// Lists tasks, newest first.
#[utoipa::path(get, path = "/tasks", tag = "tasks", params(ListParams),
    responses((status = 200, body = Page<TaskRow>), Problems))]
async fn list(
    State(app): State<App>,
    QueryArgs(params): QueryArgs<ListParams>,
) -> Result<Json<Page<NestedJson<TaskRow>>>> {
    let limit = page_limit(params.limit, DEFAULT_ROWS, MAX_ROWS)?;
    let after = row_cursor(params.cursor.as_deref())?;
    let status = parsed(params.status.as_deref(), "status", TaskStatus::parse, TaskStatus::ALL)?;
    let filter = TaskFilter::default().status(status).kind(params.kind).queue(params.queue).text(params.text);
    app.run_long(move |app| Ok(Json(app.store.tasks().list(&filter, after, limit)?.map(NestedJson)))).await
}

#[derive(Debug, Serialize, ToSchema)]
struct TaskCounts {
    items: Vec<TaskCount>,
}

/// Returns the number of tasks by queue, kind and status.
#[utoipa::path(get, path = "/tasks/counts", tag = "tasks", responses((status = 200, body = TaskCounts), Problems))]
async fn counts(State(app): State<App>) -> Result<Json<TaskCounts>> {
    app.run(|app| Ok(Json(TaskCounts { items: app.store.tasks().counts_by_kind()? }))).await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewTaskBody {
    /// 1 to 200 bytes without control characters, as the queue.
    #[schema(min_length = 1, max_length = 200)]
    kind: String,
    /// `default` if it is left out.
    #[schema(min_length = 1, max_length = 200)]
    queue: Option<String>,
    /// JSON that is passed to the handler unchanged.
    #[schema(value_type = Value)]
    payload: Box<RawValue>,
    /// Higher ones are claimed first.
    priority: Option<i32>,
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 4_294_967_295_u32)]
    max_attempts: Option<u32>,
    /// While a task of this kind with this key is unfinished, no second one is inserted.
    unique_key: Option<String>,
    document_id: Option<String>,
}

/// Enqueues a task. Tasks of the kind `exec`, which run commands, only if the server allows it.
#[utoipa::path(post, path = "/tasks", tag = "tasks", request_body = NewTaskBody,
    responses((status = 201, body = Enqueued), Problems))]
async fn enqueue(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<NewTaskBody>,
) -> Result<(StatusCode, Json<Enqueued>)> {
    check_kind(&app, &body.kind)?;
    let mut task = NewTask::new(body.kind, body.payload.get());
    if let Some(queue) = body.queue {
        task.queue = queue;
    }
    task.priority = body.priority.unwrap_or(0);
    task.max_attempts = body.max_attempts;
    task.unique_key = body.unique_key;
    task.document_id = body.document_id;
    let enqueued = app
        .change(
            caller,
            "enqueue task",
            |enqueued: &Enqueued| u64::from(enqueued.created),
            move |app| Ok(app.store.tasks().enqueue(task)?),
        )
        .await?;
    Ok((StatusCode::CREATED, Json(enqueued)))
}

/// Refuses the kind whose tasks run commands, unless the server allows it.
pub(super) fn check_kind(app: &AppState, kind: &str) -> Result<()> {
    match kind == exec::KIND && !app.allow_exec {
        true => Err(Problem::forbidden(
            "tasks of the kind exec run commands; this server accepts them only with serve.allow_exec = true",
        )),
        false => Ok(()),
    }
}

/// A task with everything that is known about it.
#[derive(Debug, Serialize, ToSchema)]
struct TaskDetails {
    #[schema(value_type = TaskRow)]
    task: NestedJson<TaskRow>,
    /// Failed attempts, oldest first.
    failures: Vec<FailedAttempt>,
    #[schema(value_type = Vec<Checkpoint>)]
    checkpoints: Vec<NestedJson<Checkpoint>>,
}

/// Returns a task with its failed attempts and its checkpoints.
#[utoipa::path(get, path = "/tasks/{id}", tag = "tasks", params(("id" = i64, Path,)),
    responses((status = 200, body = TaskDetails), Problems))]
async fn show(State(app): State<App>, PathArgs(id): PathArgs<i64>) -> Result<Json<TaskDetails>> {
    app.run(move |app| {
        let task = NestedJson(app.store.tasks().get(id)?);
        let failures = app.store.failures().list(id)?;
        let checkpoints = app.store.checkpoints().list(id)?.into_iter().map(NestedJson).collect();
        Ok(Json(TaskDetails { task, failures, checkpoints }))
    })
    .await
}

#[derive(Debug, Serialize, ToSchema)]
struct Cancelled {
    /// `cancelled`, or `requested`: a worker runs the task, which is cancelled when its run ends.
    outcome: &'static str,
}

/// Cancels a task that has not finished.
#[utoipa::path(post, path = "/tasks/{id}/cancel", tag = "tasks", params(("id" = i64, Path,)),
    responses((status = 200, body = Cancelled), Problems))]
async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathArgs(id): PathArgs<i64>,
) -> Result<Json<Cancelled>> {
    let outcome = match app.change(caller, "cancel task", |_| 1, move |app| Ok(app.store.tasks().cancel(id)?)).await? {
        CancelOutcome::Cancelled => "cancelled",
        CancelOutcome::Requested => "requested",
    };
    Ok(Json(Cancelled { outcome }))
}

/// Makes a task that waits for its time, or for its next attempt, due now.
#[utoipa::path(post, path = "/tasks/{id}/run-now", tag = "tasks", params(("id" = i64, Path,)),
    responses((status = 200, body = TaskRow), Problems))]
async fn run_now(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathArgs(id): PathArgs<i64>,
) -> Result<Json<NestedJson<TaskRow>>> {
    let task = app
        .change(
            caller,
            "run task now",
            |_| 1,
            move |app| {
                app.store.tasks().run_now(id)?;
                Ok(app.store.tasks().get(id)?)
            },
        )
        .await?;
    Ok(Json(NestedJson(task)))
}

/// Parses the cursor of a list that is sorted by row id.
pub(super) fn row_cursor(cursor: Option<&str>) -> Result<Option<i64>> {
    let parse = |text: &str| text.parse().ok().filter(|id| *id > 0);
    let invalid = |text| Problem::invalid(format!("invalid cursor {text:?}; expected the next_cursor of a page"));
    cursor.map(|text| parse(text).ok_or_else(|| invalid(text))).transpose()
}
