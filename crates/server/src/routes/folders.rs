//! Entries of a folder, from the catalog.

use std::path::PathBuf;

use axum::Json;
use axum::extract::State;
use gristmill_store::Page;
use gristmill_store::catalog::FolderEntry;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Problems, page_limit};
use crate::app::App;
use crate::extract::{PathArgs, QueryArgs};
use crate::problem::Result;

const DEFAULT_PAGE: usize = 200;
const MAX_PAGE: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(entries))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EntryParams {
    /// Path relative to the root; the root itself if it is left out.
    path: Option<String>,
    /// 1 to 1,000; 200 if it is left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists the folders and files directly in a folder of a root, as the last scan found them.
#[utoipa::path(get, path = "/roots/{id}/entries", tag = "catalog", params(("id" = i64, Path,), EntryParams),
    responses((status = 200, body = Page<FolderEntry>), Problems))]
async fn entries(
    State(app): State<App>,
    PathArgs(root): PathArgs<i64>,
    QueryArgs(params): QueryArgs<EntryParams>,
) -> Result<Json<Page<FolderEntry>>> {
    let limit = page_limit(params.limit, DEFAULT_PAGE, MAX_PAGE)?;
    let path = PathBuf::from(params.path.unwrap_or_default());
    app.run(move |app| Ok(Json(app.store.catalog().folder_page(root, &path, params.cursor.as_deref(), limit)?))).await
}
