//! Health, readiness and metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use gristmill_store::UtcTime;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::app::{App, openapi};
use crate::metrics;
use crate::problem::{Problem, Result};

pub(super) fn api_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(document))
}

/// Routes that a process supervisor or a proxy asks.
pub(crate) fn monitoring_routes() -> Router<App> {
    Router::new().route("/health", get(health)).route("/ready", get(ready))
}

/// The route that Prometheus asks, with a bearer token.
pub(crate) fn metrics_route() -> Router<App> {
    Router::new().route("/metrics", get(metrics))
}

#[derive(Debug, Serialize, ToSchema)]
struct Health {
    /// `ok`: the server answers. `/ready` says whether it can reach its database.
    status: &'static str,
    service: &'static str,
    environment: &'static str,
    /// Whether jobs that change files are refused.
    dry_run: bool,
    timestamp: UtcTime,
}

/// Says that the server answers.
#[utoipa::path(get, path = "/health", tag = "monitoring", security(()),
    responses((status = 200, body = Health), Problems))]
async fn health(State(app): State<App>) -> Json<Health> {
    Json(Health {
        status: "ok",
        service: "gristmill",
        environment: if app.read_only { "read-only" } else { "production" },
        dry_run: app.dry_run,
        timestamp: app.store.now(),
    })
}

/// Returns this document.
#[utoipa::path(get, path = "/openapi.json", tag = "monitoring", security(()),
    responses((status = 200, body = Object), Problems))]
async fn document() -> Response {
    static DOCUMENT: std::sync::OnceLock<Arc<str>> = std::sync::OnceLock::new();
    let text = DOCUMENT.get_or_init(|| openapi().into()).to_string();
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Says whether the server can work: its database can be read and is in place.
async fn ready(State(app): State<App>) -> Result<&'static str> {
    let unready = |detail: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
    if app.stop.is_cancelled() {
        return Err(unready("the server is stopping".to_owned()));
    }
    let result = app.run(|app| Ok(app.store.dead_letters().count()?)).await;
    result.map(|_| "ready\n").map_err(|_| unready("the database cannot be read; the log has the reason".to_owned()))
}

async fn metrics(State(app): State<App>) -> Result<Response> {
    let text = app.run(metrics::text).await?;
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}
