//! Workers of the database, and the one of this process with its pools.

use axum::Json;
use axum::extract::State;
use gristmill_store::workers::WorkerRow;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::app::App;
use crate::problem::{Problem, Result};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(own))
}

#[derive(Debug, Serialize, ToSchema)]
struct WorkerList {
    items: Vec<WorkerRow>,
}

/// Lists the workers of the database, of all processes.
#[utoipa::path(get, path = "/workers", tag = "workers", responses((status = 200, body = WorkerList), Problems))]
async fn list(State(app): State<App>) -> Result<Json<WorkerList>> {
    app.run(|app| Ok(Json(WorkerList { items: app.store.workers().list()? }))).await
}

#[derive(Debug, Serialize, ToSchema)]
struct OwnWorker {
    /// Counters of the worker and of the pool of each kind; null if the server runs no worker.
    #[schema(value_type = Option<Object>)]
    worker: Option<Box<RawValue>>,
}

/// Returns the counters of the worker that runs in the server.
#[utoipa::path(get, path = "/workers/own", tag = "workers", responses((status = 200, body = OwnWorker), Problems))]
async fn own(State(app): State<App>) -> Result<Json<OwnWorker>> {
    let stats = app.worker.get().map(|worker| serde_json::value::to_raw_value(&worker()));
    let worker = stats.transpose().map_err(|error| Problem::internal(&error))?;
    Ok(Json(OwnWorker { worker }))
}
