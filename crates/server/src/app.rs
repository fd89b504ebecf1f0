//! The application: what handlers need, and the router with its layers.
//!
//! Owns the order of the layers. From the outside: headers, panics, host, timeout, body length, caller.

use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use gristmill_pool::CancelToken;
use gristmill_store::Store;
use serde_json::Value;
use tokio::sync::Semaphore;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::events::Events;
use crate::extract::MAX_BODY_BYTES;
use crate::options::{ServerOptions, Setting, WorkerStats};
use crate::problem::{Problem, Result};
use crate::routes::{self, Security};
use crate::security::credentials::{Caller, Credentials};
use crate::security::{self, Hosts};

/// Time until the head of the answer must be sent. Streams continue after it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Long queries that run at the same time: fewer than the store has connections for reading.
const MAX_LONG_QUERIES: usize = 2;

/// Time that a long query waits for others.
const LONG_QUERY_WAIT: Duration = Duration::from_secs(10);

/// Shared by all requests.
#[derive(Clone, Debug)]
pub(crate) struct App(Arc<AppState>);

pub(crate) struct AppState {
    pub(crate) store: Store,
    pub(crate) hosts: Hosts,
    pub(crate) credentials: Credentials,
    pub(crate) events: Events,
    pub(crate) base_path: String,
    pub(crate) read_only: bool,
    pub(crate) dry_run: bool,
    pub(crate) allow_exec: bool,
    pub(crate) has_tls: bool,
    pub(crate) protected_files: Vec<PathBuf>,
    pub(crate) settings: Vec<Setting>,
    /// Statistics of the worker in this process, if there is one.
    pub(crate) worker: OnceLock<WorkerStats>,
    /// Queries that read much. They leave connections to the database for the others.
    pub(crate) long_queries: Arc<Semaphore>,
    /// Open event streams.
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) started: Instant,
    pub(crate) stop: CancelToken,
}

impl std::fmt::Debug for AppState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppState").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl App {
    pub(crate) fn new(store: &Store, options: ServerOptions, port: u16, stop: &CancelToken) -> Self {
        let has_tls = options.tls.is_some();
        App(Arc::new(AppState {
            store: store.clone(),
            hosts: Hosts::new(port, has_tls, &options.allowed_hosts),
            credentials: Credentials::new(port, &options.full_token, &options.read_token),
            events: Events::new(),
            base_path: options.base_path,
            read_only: options.read_only,
            dry_run: options.dry_run,
            allow_exec: options.allow_exec,
            has_tls,
            protected_files: options.protected_files,
            settings: options.settings,
            worker: OnceLock::new(),
            long_queries: Arc::new(Semaphore::new(MAX_LONG_QUERIES)),
            streams: Arc::new(Semaphore::new(routes::MAX_STREAMS)),
            started: Instant::now(),
            stop: stop.clone(),
        }))
    }

    /// Runs a query that may read much. Only a few of them run at the same time.
    pub(crate) async fn run_long<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AppState) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = tokio::time::timeout(LONG_QUERY_WAIT, self.long_queries.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many long queries are running; try again later",
            ));
        };
        self.run(move |app| {
            let result = work(app);
            drop(permit);
            result
        })
        .await
    }

    /// Makes a change, and records it in the log: who made it, and how many rows it concerned. It is made and recorded
    /// even if the client goes meanwhile.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        caller: Caller,
        action: &'static str,
        count: impl FnOnce(&T) -> u64 + Send + 'static,
        work: impl FnOnce(&AppState) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(move |app| {
            let value = work(app)?;
            app.log_change(caller, action, count(&value));
            Ok(value)
        })
        .await
    }

    /// Runs work that blocks, such as a query, on another thread. It continues until its end even if the client goes.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AppState) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let app = self.clone();
        match tokio::task::spawn_blocking(move || work(&app)).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => Err(Problem::internal(&"a handler panicked")),
            Err(_) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping")),
        }
    }
}

impl AppState {
    /// Records a change in the log.
    pub(crate) fn log_change(&self, caller: Caller, action: &str, count: u64) {
        tracing::info!(
            credential = caller.credential.as_str(),
            access = caller.access.as_str(),
            action,
            count,
            "changed by a request"
        );
    }
}

/// The document without its paths, which the routes add.
#[derive(OpenApi)]
#[openapi(
    info(title = "Gristmill", description = "Duplicate files, durable tasks, and the protocol of the shared database."),
    components(schemas(crate::problem::Problem)),
    modifiers(&Security),
    security(("bearer" = []), ("session" = []))
)]
struct Document;

/// Returns the OpenAPI document of all routes, as JSON.
pub fn openapi() -> String {
    let routes = routes::protected().merge(routes::sign_in()).merge(routes::open());
    let api = OpenApiRouter::with_openapi(Document::openapi()).nest("/api/v1", routes);
    let mut document = serde_json::to_value(api.into_openapi()).unwrap_or_default();
    name_operations(&mut document);
    serde_json::to_string_pretty(&document).unwrap_or_default()
}

/// Names each operation after its method and path: `get_jobs_id`. The names of handlers are not unique.
fn name_operations(document: &mut Value) {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut).into_iter().flatten();
    for (path, methods) in paths {
        let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        // Without the common `api` and `v1`.
        let words: Vec<&str> = words.skip(2).collect();
        for (method, operation) in methods.as_object_mut().into_iter().flatten() {
            if let Some(id) = operation.get_mut("operationId") {
                *id = format!("{method}_{}", words.join("_")).into();
            }
        }
    }
}

/// Returns the whole application.
pub(crate) fn router(app: &App) -> Router {
    let check_caller = || from_fn_with_state(app.clone(), security::check_caller);
    let protected: Router<App> = routes::protected().into();
    let sign_in: Router<App> = routes::sign_in().into();
    let api = protected
        .route_layer(check_caller())
        .merge(sign_in.route_layer(from_fn_with_state(app.clone(), security::check_origin)))
        .merge(routes::open());
    let routes = Router::new()
        .nest("/api/v1", api)
        .merge(routes::metrics_route().route_layer(check_caller()))
        .merge(routes::monitoring_routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app.clone());
    let routes = match app.base_path.as_str() {
        "" => routes,
        base => Router::new().nest(base, routes).fallback(not_found),
    };
    routes
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn(limit_time))
        .layer(from_fn_with_state(app.clone(), security::check_host))
        .layer(from_fn(catch_panic))
        .layer(from_fn(security::headers::add))
}

async fn not_found(request: Request) -> Problem {
    Problem::not_found(format!("there is no {}; /api/v1/openapi.json lists all paths", request.uri().path()))
}

async fn method_not_allowed(request: Request) -> Problem {
    let detail = format!("{} does not allow the method {}", request.uri().path(), request.method());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

async fn limit_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = format!("the answer took longer than {} seconds", REQUEST_TIMEOUT.as_secs());
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response()
        }
    }
}

/// Turns the panic of a handler into an error. The log gets no part of the request.
async fn catch_panic(request: Request, next: Next) -> Response {
    match CatchPanic(Box::pin(next.run(request))).await {
        Some(response) => response,
        None => Problem::internal(&"a handler panicked").into_response(),
    }
}

struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future> Future for CatchPanic<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(_) => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::HeaderValue;
    use axum::routing::get;
    use hyper::service::Service as _;

    use super::*;

    #[test]
    fn panic_of_a_handler_is_an_error() {
        async fn panics() -> &'static str {
            if std::hint::black_box(true) {
                panic!("a defect");
            }
            ""
        }
        let router: Router = Router::new().route("/", get(panics)).layer(from_fn(catch_panic));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (status, content_type, body) = runtime.block_on(async {
            let service = hyper_util::service::TowerToHyperService::new(router);
            let response = service.call(Request::new(Body::empty())).await.unwrap();
            let content_type = response.headers().get("content-type").cloned();
            (response.status(), content_type, to_bytes(response.into_body(), 10_000).await.unwrap())
        });
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(content_type, Some(HeaderValue::from_static("application/problem+json")));
        assert!(!String::from_utf8_lossy(&body).contains("defect"), "{body:?}");
    }
}
