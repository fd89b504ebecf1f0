//! Files of the catalog: their content, for preview, and their copies.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use gristmill_dedup::copies::{CopiesOptions, FileAnswer, copies};
use gristmill_dedup::source::{self, Source};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::app::{App, AppState};
use crate::content;
use crate::extract::PathArgs;
use crate::problem::{Problem, Result};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(file_content)).routes(routes!(file_copies))
}

/// Sends the content of a file, or one range of it. Images, videos and audio can be shown; everything else is a
/// download. 409 if the file is not the one that the last scan found.
#[utoipa::path(get, path = "/files/{id}/content", tag = "files", params(("id" = i64, Path,)),
    responses((status = 200, description = "The content", content_type = "application/octet-stream"),
        (status = 206, description = "A range", content_type = "application/octet-stream"),
        (status = 304, description = "It has the given ETag"), Problems))]
async fn file_content(State(app): State<App>, PathArgs(id): PathArgs<i64>, headers: HeaderMap) -> Result<Response> {
    let source = app.run(move |app| open(app, id)).await?;
    content::respond(source, &headers)
}

#[derive(Debug, Serialize, ToSchema)]
struct CopiesOfFile {
    /// The copies, and how complete the answer is.
    #[schema(value_type = Object)]
    answer: FileAnswer,
    complete: bool,
}

/// Finds the copies of a file, as they are on the disk now.
#[utoipa::path(get, path = "/files/{id}/copies", tag = "files", params(("id" = i64, Path,)),
    responses((status = 200, body = CopiesOfFile), Problems))]
async fn file_copies(State(app): State<App>, PathArgs(id): PathArgs<i64>) -> Result<Json<CopiesOfFile>> {
    app.run(move |app| {
        open(app, id)?;
        let path = path_of(app, id)?;
        let mut options = CopiesOptions::default();
        options.cancel = app.stop.child();
        let mut found = copies(&app.store, &[path], &options)?;
        let complete = found.coverage.complete;
        let answer = found.files.pop().ok_or_else(|| Problem::internal(&"no answer for a file"))?;
        Ok(Json(CopiesOfFile { answer, complete }))
    })
    .await
}

fn path_of(app: &AppState, id: i64) -> Result<std::path::PathBuf> {
    let missing = || Problem::not_found(format!("there is no file {id} in the catalog"));
    let row = app.store.catalog().files_at(&[id])?.into_iter().next().ok_or_else(missing)?;
    let root = app.store.roots().list()?.into_iter().find(|root| root.id == row.root).ok_or_else(missing)?;
    Ok(root.path.join(row.path))
}

/// Opens a file, unless it is one of Gristmill's own: by identity, because it may have several names.
fn open(app: &AppState, id: i64) -> Result<Source> {
    let source = source::open(&app.store, id)?;
    let is_own = app.protected_files.iter().any(|path| source.is_at(path));
    match is_own {
        true => Err(Problem::not_found(format!("there is no file {id} in the catalog"))),
        false => Ok(source),
    }
}
