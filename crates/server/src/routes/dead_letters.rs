//! Dead letters: list, show, retry, discard.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use gristmill_jobs::exec;
use gristmill_store::dead_letters::{BulkOutcome, DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetterSelection};
use gristmill_store::tasks::Enqueued;
use gristmill_store::{NestedJson, Page};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::tasks::{check_kind, row_cursor};
use super::{Changed, DEFAULT_ROWS, MAX_ROWS, Problems, page_limit};
use crate::app::{App, AppState};
use crate::extract::{JsonBody, PathArgs, QueryArgs, optional_object};
use crate::problem::{Problem, Result};
use crate::security::credentials::Caller;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(groups))
        .routes(routes!(retry_many))
        .routes(routes!(discard_many))
        .routes(routes!(show, discard))
        .routes(routes!(retry))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// 1 to 200; 50 if it is left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Id of the last dead letter of the previous page.
    #[param(pattern = "^[1-9][0-9]{0,17}$")]
    cursor: Option<String>,
    kind: Option<String>,
    document_id: Option<String>,
    /// Only those whose reason contains this text.
    reason: Option<String>,
    task_id: Option<String>,
    /// Only those of a group of `/dead-letters/groups`.
    reason_group: Option<String>,
}

/// Lists dead letters, newest first.
#[utoipa::path(get, path = "/dead-letters", tag = "dead letters", params(ListParams),
    responses((status = 200, body = Page<DeadLetter>), Problems))]
async fn list(
    State(app): State<App>,
    QueryArgs(params): QueryArgs<ListParams>,
) -> Result<Json<Page<NestedJson<DeadLetter>>>> {
    let limit = page_limit(params.limit, DEFAULT_ROWS, MAX_ROWS)?;
    let after = row_cursor(params.cursor.as_deref())?;
    let filter = DeadLetterFilter::default().kind(params.kind).document_id(params.document_id);
    let filter = filter.reason(params.reason).task_id(params.task_id).reason_group(params.reason_group);
    app.run_long(move |app| Ok(Json(app.store.dead_letters().list(&filter, after, limit)?.map(NestedJson)))).await
}

/// Returns a dead letter.
#[utoipa::path(get, path = "/dead-letters/{id}", tag = "dead letters", params(("id" = i64, Path,)),
    responses((status = 200, body = DeadLetter), Problems))]
async fn show(State(app): State<App>, PathArgs(id): PathArgs<i64>) -> Result<Json<NestedJson<DeadLetter>>> {
    app.run(move |app| Ok(Json(NestedJson(app.store.dead_letters().get(id)?)))).await
}

/// Enqueues the task of a dead letter again, and deletes the dead letter.
#[utoipa::path(post, path = "/dead-letters/{id}/retry", tag = "dead letters", params(("id" = i64, Path,)),
    responses((status = 201, body = Enqueued), Problems))]
async fn retry(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathArgs(id): PathArgs<i64>,
) -> Result<(StatusCode, Json<Enqueued>)> {
    let enqueued = app
        .change(
            caller,
            "retry dead letter",
            |_| 1,
            move |app| {
                let dead_letter = app.store.dead_letters().get(id)?;
                dead_letter.require_task()?;
                check_kind(app, &dead_letter.task_type)?;
                let task = dead_letter.task().ok_or_else(|| {
                    Problem::conflict(format!("dead letter {id} has no payload; it was not written by Gristmill"))
                })?;
                Ok(app.store.dead_letters().retry(id, task)?)
            },
        )
        .await?;
    Ok((StatusCode::CREATED, Json(enqueued)))
}

/// Deletes a dead letter.
#[utoipa::path(delete, path = "/dead-letters/{id}", tag = "dead letters", params(("id" = i64, Path,)),
    responses((status = 200, body = Changed), Problems))]
async fn discard(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathArgs(id): PathArgs<i64>,
) -> Result<Json<Changed>> {
    app.change(caller, "discard dead letter", |_| 1, move |app| Ok(app.store.dead_letters().discard(id)?)).await?;
    Ok(Json(Changed { changed: 1 }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GroupParams {
    /// 1 to 1,000; 100 if it is left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    kind: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct DeadLetterGroupList {
    items: Vec<DeadLetterGroup>,
}

/// Groups dead letters by kind and by reason, without the numbers and ids in it. Those with most dead letters first.
#[utoipa::path(get, path = "/dead-letters/groups", tag = "dead letters", params(GroupParams),
    responses((status = 200, body = DeadLetterGroupList), Problems))]
async fn groups(
    State(app): State<App>,
    QueryArgs(params): QueryArgs<GroupParams>,
) -> Result<Json<DeadLetterGroupList>> {
    let limit = page_limit(params.limit, 100, 1_000)?;
    let filter = DeadLetterFilter::default().kind(params.kind);
    app.run_long(move |app| Ok(Json(DeadLetterGroupList { items: app.store.dead_letters().groups(&filter, limit)? })))
        .await
}

/// Selects dead letters: by ids, or by a filter.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Bulk {
    /// At most 10,000.
    ids: Option<Vec<i64>>,
    #[serde(default, deserialize_with = "optional_object")]
    filter: Option<BulkFilter>,
    /// Number of dead letters that the caller has seen. If another number is selected now, nothing is changed.
    expected_count: u64,
}

/// Only dead letters for which all given fields match.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BulkFilter {
    kind: Option<String>,
    document_id: Option<String>,
    /// Text that the reason contains.
    reason: Option<String>,
    reason_group: Option<String>,
}

/// Maximum number of ids in one request.
const MAX_IDS: usize = 10_000;

impl Bulk {
    fn selection(self) -> Result<DeadLetterSelection> {
        match (self.ids, self.filter) {
            (Some(ids), None) if ids.len() <= MAX_IDS => Ok(DeadLetterSelection::Ids(ids)),
            (Some(ids), None) => {
                Err(Problem::invalid(format!("{} ids; expected at most {MAX_IDS}, or a filter", ids.len())))
            }
            (None, Some(filter)) => {
                let BulkFilter { kind, document_id, reason, reason_group } = filter;
                let filter = DeadLetterFilter::default().kind(kind).document_id(document_id);
                Ok(DeadLetterSelection::Matching(filter.reason(reason).reason_group(reason_group)))
            }
            _ => Err(Problem::invalid("expected either ids or filter")),
        }
    }
}

/// Enqueues the tasks of many dead letters again. 409 if not `expected_count` of them are selected.
#[utoipa::path(post, path = "/dead-letters/retry", tag = "dead letters", request_body = Bulk,
    responses((status = 200, body = BulkOutcome), Problems))]
async fn retry_many(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Bulk>,
) -> Result<Json<BulkOutcome>> {
    let expected = body.expected_count;
    let selection = body.selection()?;
    let outcome = app
        .change(
            caller,
            "retry dead letters",
            |outcome: &BulkOutcome| outcome.done,
            move |app| {
                check_no_commands(app, &selection)?;
                Ok(app.store.dead_letters().retry_many(selection, expected)?)
            },
        )
        .await?;
    Ok(Json(outcome))
}

/// Deletes many dead letters. 409 if not `expected_count` of them are selected.
#[utoipa::path(post, path = "/dead-letters/discard", tag = "dead letters", request_body = Bulk,
    responses((status = 200, body = BulkOutcome), Problems))]
async fn discard_many(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Bulk>,
) -> Result<Json<BulkOutcome>> {
    let expected = body.expected_count;
    let selection = body.selection()?;
    let outcome = app
        .change(
            caller,
            "discard dead letters",
            |outcome: &BulkOutcome| outcome.done,
            move |app| Ok(app.store.dead_letters().discard_many(selection, expected)?),
        )
        .await?;
    Ok(Json(outcome))
}

/// Refuses a selection with tasks that run commands, unless the server allows them.
fn check_no_commands(app: &AppState, selection: &DeadLetterSelection) -> Result<()> {
    if app.allow_exec {
        return Ok(());
    }
    let count = match selection {
        DeadLetterSelection::Ids(ids) => app.store.dead_letters().count_of_kind(ids, exec::KIND)?,
        DeadLetterSelection::Matching(filter) if filter.kind.as_deref().is_none_or(|kind| kind == exec::KIND) => {
            let commands = filter.clone().kind(Some(exec::KIND.to_owned()));
            app.store.dead_letters().count_matching(&commands)?
        }
        _ => 0,
    };
    match count {
        0 => Ok(()),
        _ => Err(Problem::forbidden(format!(
            "{count} of the dead letters run commands; this server retries them only with serve.allow_exec = true"
        ))),
    }
}
