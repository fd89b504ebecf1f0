//! Roots: list, register, remove.

use std::path::PathBuf;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use gristmill_dedup::roots;
use gristmill_store::roots::{RemovedRoot, Root};
use gristmill_store::{UtcTime, display_path};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::app::App;
use crate::extract::{JsonBody, PathArgs};
use crate::problem::{Problem, Result};
use crate::security::credentials::Caller;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, register)).routes(routes!(remove))
}

/// A folder that is scanned.
#[derive(Debug, Serialize, ToSchema)]
struct RootItem {
    id: i64,
    name: String,
    /// Absolute path. Bytes that are not UTF-8 are replaced.
    path: String,
    follow_links: bool,
    created_at: UtcTime,
    last_scanned_at: Option<UtcTime>,
    /// Number of folders, files and bytes at the last scan.
    folders: Option<i64>,
    files: Option<i64>,
    bytes: Option<i64>,
    /// Whether its folder can be reached now. A disk may not be mounted.
    reachable: bool,
}

impl RootItem {
    fn of(root: Root, reachable: bool) -> Self {
        RootItem {
            id: root.id,
            name: root.name,
            path: display_path(&root.path),
            follow_links: root.follow_links,
            created_at: root.created_at,
            last_scanned_at: root.last_scanned_at,
            folders: root.folders,
            files: root.files,
            bytes: root.bytes,
            reachable,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct RootList {
    items: Vec<RootItem>,
}

/// Lists the roots.
#[utoipa::path(get, path = "/roots", tag = "catalog", responses((status = 200, body = RootList), Problems))]
async fn list(State(app): State<App>) -> Result<Json<RootList>> {
    app.run(|app| {
        let absent = roots::absent(&app.store)?;
        let is_absent = |root: &Root| absent.iter().any(|other| other.id == root.id);
        let items = app.store.roots().list()?.into_iter();
        let items = items.map(|root| {
            let reachable = !is_absent(&root);
            RootItem::of(root, reachable)
        });
        Ok(Json(RootList { items: items.collect() }))
    })
    .await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewRoot {
    /// Absolute path of an existing folder.
    #[schema(pattern = "^/")]
    path: String,
}

/// Registers a folder as a root. A registered one is returned unchanged. A job of the kind scan scans it.
#[utoipa::path(post, path = "/roots", tag = "catalog", request_body = NewRoot,
    responses((status = 201, body = RootItem), Problems))]
async fn register(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<NewRoot>,
) -> Result<(StatusCode, Json<RootItem>)> {
    let path = PathBuf::from(&body.path);
    if !path.is_absolute() || body.path.contains('\0') {
        return Err(Problem::invalid(format!("invalid path {:?}; expected an absolute path", body.path)));
    }
    let root = app
        .change(
            caller,
            "register root",
            |_| 1,
            move |app| {
                let path = roots::resolve(&path).map_err(|error| Problem::invalid(error.to_string()))?;
                Ok(app.store.roots().register(&path)?)
            },
        )
        .await?;
    Ok((StatusCode::CREATED, Json(RootItem::of(root, true))))
}

/// Deletes a root and its records from the catalog. No file of the disk is touched.
#[utoipa::path(delete, path = "/roots/{id}", tag = "catalog", params(("id" = i64, Path,)),
    responses((status = 200, body = RemovedRoot), Problems))]
async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathArgs(id): PathArgs<i64>,
) -> Result<Json<RemovedRoot>> {
    let removed = app.change(caller, "remove root", |_| 1, move |app| Ok(app.store.roots().remove(id)?)).await?;
    Ok(Json(removed))
}
