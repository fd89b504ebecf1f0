//! Who may send which request.
//!
//! Owns the order of the checks: host, authentication, right, origin. `host` decides which names the server answers to,
//! `credentials` who sends a request, `origin` whether a browser sends it for a page of this server.

pub(crate) mod credentials;
pub(crate) mod headers;
mod host;
mod origin;

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use self::credentials::{Access, Caller, Credential};
pub(crate) use self::host::Hosts;
use crate::App;
use crate::connections::Connection;
use crate::problem::{Problem, Result};

/// Address of the client, as far as it matters: bad tokens are limited for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Refuses requests for other hosts. Runs first, for every request.
pub(crate) async fn check_host(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.hosts.check(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Refuses requests without a valid credential, without the right to change something, or from pages of other origins.
/// The caller is available to the handler.
pub(crate) async fn check_caller(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match authorize(&app, &request) {
        Ok(caller) => {
            if let Some(connection) = request.extensions().get::<Arc<Connection>>() {
                connection.trust();
            }
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

/// Refuses requests from pages of other origins. For routes that need no credential.
pub(crate) async fn check_origin(State(app): State<App>, request: Request, next: Next) -> Response {
    match origin::check(request.headers(), &app.hosts) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn authorize(app: &App, request: &Request) -> Result<Caller> {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let caller = app.credentials.authenticate(request.headers(), peer)?;
    if is_safe(request.method()) {
        return Ok(caller);
    }
    if app.read_only && !is_about_sessions(request) {
        return Err(Problem::forbidden("the server was started with --read-only and changes nothing"));
    }
    let is_sign_out = is_about_sessions(request) && *request.method() == Method::DELETE;
    if caller.access < Access::Full && !is_sign_out {
        return Err(Problem::forbidden("this token can only read; use the full token to change something"));
    }
    // A browser adds cookies to requests of any page, but no bearer token.
    if caller.credential == Credential::Session {
        origin::check(request.headers(), &app.hosts)?;
    }
    Ok(caller)
}

/// Whether a request signs out or makes a sign-in link, which changes nothing in the database.
fn is_about_sessions(request: &Request) -> bool {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    route.ends_with("/api/v1/session") || route.ends_with("/api/v1/sign-in-links")
}

/// Whether a request with this method changes nothing.
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}
