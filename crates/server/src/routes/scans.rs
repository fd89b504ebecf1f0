//! Scans: list, show.

use axum::Json;
use axum::extract::State;
use gristmill_store::Page;
use gristmill_store::scans::ScanRow;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::tasks::row_cursor;
use super::{DEFAULT_ROWS, MAX_ROWS, Problems, page_limit};
use crate::app::App;
use crate::extract::{PathArgs, QueryArgs};
use crate::problem::Result;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// 1 to 200; 50 if it is left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Id of the last scan of the previous page.
    #[param(pattern = "^[1-9][0-9]{0,17}$")]
    cursor: Option<String>,
    /// Only scans of this root.
    library_id: Option<i64>,
}

/// Lists scans, newest first.
#[utoipa::path(get, path = "/scans", tag = "catalog", params(ListParams),
    responses((status = 200, body = Page<ScanRow>), Problems))]
async fn list(State(app): State<App>, QueryArgs(params): QueryArgs<ListParams>) -> Result<Json<Page<ScanRow>>> {
    let limit = page_limit(params.limit, DEFAULT_ROWS, MAX_ROWS)?;
    let after = row_cursor(params.cursor.as_deref())?;
    app.run(move |app| Ok(Json(app.store.scans().list(params.library_id, after, limit)?))).await
}

/// Returns a scan.
#[utoipa::path(get, path = "/scans/{id}", tag = "catalog", params(("id" = i64, Path,)),
    responses((status = 200, body = ScanRow), Problems))]
async fn show(State(app): State<App>, PathArgs(id): PathArgs<i64>) -> Result<Json<ScanRow>> {
    app.run(move |app| Ok(Json(app.store.scans().get(id)?))).await
}
