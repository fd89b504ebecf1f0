//! Files of the catalog: their content, for preview, and their copies.

use std::fs::DirEntry;
use std::path::PathBuf;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use gristmill_dedup::copies::{CopiesOptions, FileAnswer, copies};
use gristmill_dedup::source::{self, Source};
use gristmill_store::resolve_last_link;
use gristmill_store::sqlite::folder_of;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::app::{App, AppState};
use crate::content;
use crate::extract::PathArgs;
use crate::problem::{Problem, Result};

/// Time for reading files that may be copies.
const COPIES_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(file_content)).routes(routes!(file_copies))
}

/// Sends the content of a file, or one range of it. Images, videos and audio can be shown; everything else is a
/// download. 409 if the file is not the one that the last scan found.
#[utoipa::path(get, path = "/files/{id}/content", tag = "files", params(("id" = i64, Path,)),
    responses(
        (status = 200, description = "The content",
            content(("image/*"), ("video/*"), ("audio/*"), ("application/octet-stream"))),
        (status = 206, description = "A range",
            content(("image/*"), ("video/*"), ("audio/*"), ("application/octet-stream"))),
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
    // Files that could not be compared within this time are possible copies.
    let mut options = CopiesOptions::default();
    options.cancel = app.stop.child();
    let cancel = options.cancel.clone();
    let timer = tokio::spawn(async move {
        tokio::time::sleep(COPIES_TIMEOUT).await;
        cancel.cancel();
    });
    let answer = app.run_long(move |app| {
        open(app, id)?;
        let path = path_of(app, id)?;
        let mut found = copies(&app.store, &[path], &options)?;
        let complete = found.coverage.complete;
        let answer = found.files.pop().ok_or_else(|| Problem::internal(&"no answer for a file"))?;
        Ok(Json(CopiesOfFile { answer, complete }))
    });
    let answer = answer.await;
    timer.abort();
    answer
}

fn path_of(app: &AppState, id: i64) -> Result<PathBuf> {
    let missing = || Problem::not_found(format!("there is no file {id} in the catalog"));
    let row = app.store.catalog().files_at(&[id])?.into_iter().next().ok_or_else(missing)?;
    let root = app.store.roots().list()?.into_iter().find(|root| root.id == row.root).ok_or_else(missing)?;
    Ok(root.path.join(row.path))
}

/// Opens a file, unless it is one of Gristmill's own: by identity, because it may have several names.
fn open(app: &AppState, id: i64) -> Result<Source> {
    let source = source::open(&app.store, id)?;
    let is_own = app.protected_files.iter().chain(&database_files(app)).any(|path| source.is_at(path));
    match is_own {
        true => Err(Problem::not_found(format!("there is no file {id} in the catalog"))),
        false => Ok(source),
    }
}

/// Lists the database with its log, tokens and other files beside it, whose names begin with its name.
fn database_files(app: &AppState) -> Vec<PathBuf> {
    let database = resolve_last_link(app.store.path());
    let name = database.file_name().unwrap_or_default().as_encoded_bytes();
    let entries = std::fs::read_dir(folder_of(&database)).into_iter().flatten().flatten();
    let is_own = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(name);
    entries.filter(is_own).map(|entry| entry.path()).collect()
}
