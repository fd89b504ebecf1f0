//! Numbers of everything, settings, and the worker of this process.

use axum::Json;
use axum::extract::State;
use gristmill_store::UtcTime;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::app::App;
use crate::options::Setting;
use crate::problem::Result;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(overview)).routes(routes!(settings))
}

#[derive(Debug, Serialize, ToSchema)]
struct Overview {
    generated_at: UtcTime,
    tasks: Vec<StatusCount>,
    dead_letters: u64,
    /// Numbers of the catalog at the last scans.
    roots: u64,
    files: i64,
    bytes: i64,
    duplicates: DuplicateTotals,
}

#[derive(Debug, Serialize, ToSchema)]
struct StatusCount {
    status: &'static str,
    count: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct DuplicateTotals {
    groups: u64,
    files: u64,
    reclaimable_bytes: u64,
    /// Whether no file has changed since the groups were evaluated.
    current: bool,
}

/// Returns the numbers of tasks, dead letters, files and duplicates.
#[utoipa::path(get, path = "/overview", tag = "overview", responses((status = 200, body = Overview), Problems))]
async fn overview(State(app): State<App>) -> Result<Json<Overview>> {
    app.run(|app| {
        let store = &app.store;
        let counts = store.tasks().counts()?.into_iter();
        let tasks = counts.map(|(status, count)| StatusCount { status: status.as_str(), count }).collect();
        let roots = store.roots().list()?;
        let totals = store.catalog().group_totals()?;
        Ok(Json(Overview {
            generated_at: store.now(),
            tasks,
            dead_letters: store.dead_letters().count()?,
            roots: roots.len() as u64,
            files: roots.iter().filter_map(|root| root.files).sum(),
            bytes: roots.iter().filter_map(|root| root.bytes).sum(),
            duplicates: DuplicateTotals {
                groups: totals.groups,
                files: totals.files,
                reclaimable_bytes: totals.reclaimable,
                current: totals.state.is_current,
            },
        }))
    })
    .await
}

#[derive(Debug, Serialize, ToSchema)]
struct SettingList {
    items: Vec<Setting>,
}

/// Lists the settings that the server was started with. They cannot be changed over HTTP.
#[utoipa::path(get, path = "/settings", tag = "overview", responses((status = 200, body = SettingList), Problems))]
async fn settings(State(app): State<App>) -> Json<SettingList> {
    Json(SettingList { items: app.settings.clone() })
}
