//! Signing in and out.
//!
//! Owns the cookie of a session. The link that the server prints has a one-time code behind `#`, which browsers send
//! to no server; the page posts it here.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::app::App;
use crate::extract::JsonBody;
use crate::problem::{Problem, Result};
use crate::security::Peer;
use crate::security::credentials::{Access, CODE_LIFETIME, Caller};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show, sign_out)).routes(routes!(new_link))
}

pub(super) fn sign_in_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(sign_in))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SignIn {
    /// The code behind `#k=` in the link.
    code: String,
}

/// Who sends requests.
#[derive(Debug, Serialize, ToSchema)]
struct Session {
    /// `full` or `read`.
    access: &'static str,
    /// `session` or `token`.
    credential: &'static str,
    /// Whether this caller can change something.
    can_change: bool,
}

/// Exchanges the code of a sign-in link for the cookie of a session.
#[utoipa::path(post, path = "/sign-in", tag = "session", request_body = SignIn, security(()),
    responses((status = 204, description = "The cookie is set"), Problems))]
async fn sign_in(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    JsonBody(body): JsonBody<SignIn>,
) -> Result<Response> {
    let (session, access) = app.credentials.sign_in(&body.code, peer.map(|Extension(peer)| peer.0))?;
    tracing::info!(access = access.as_str(), "signed in with a link");
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie(&app, &session, "")?)]).into_response())
}

/// Says what the caller may do.
#[utoipa::path(get, path = "/session", tag = "session", responses((status = 200, body = Session), Problems))]
async fn show(State(app): State<App>, Extension(caller): Extension<Caller>) -> Json<Session> {
    Json(Session {
        access: caller.access.as_str(),
        credential: caller.credential.as_str(),
        can_change: caller.access == Access::Full && !app.read_only,
    })
}

/// Ends the session of the cookie.
#[utoipa::path(delete, path = "/session", tag = "session",
    responses((status = 204, description = "The session has ended"), Problems))]
async fn sign_out(State(app): State<App>, headers: HeaderMap) -> Result<Response> {
    app.credentials.sign_out(&headers);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie(&app, "", "; Max-Age=0")?)]).into_response())
}

/// The end of a sign-in link.
#[derive(Debug, Serialize, ToSchema)]
struct Link {
    /// Path and fragment, to be appended to the address of the server.
    path: String,
    /// Seconds until the link expires. It can be used once.
    expires_in: u64,
}

/// Makes a sign-in link.
#[utoipa::path(post, path = "/sign-in-links", tag = "session", responses((status = 201, body = Link), Problems))]
async fn new_link(State(app): State<App>, Extension(caller): Extension<Caller>) -> (StatusCode, Json<Link>) {
    app.log_change(caller, "make sign-in link", 1);
    let path = format!("{}/#k={}", app.base_path, app.credentials.new_code(caller.access));
    (StatusCode::CREATED, Json(Link { path, expires_in: CODE_LIFETIME.as_secs() }))
}

fn cookie(app: &App, value: &str, end: &str) -> Result<HeaderValue> {
    let name = app.credentials.cookie_name();
    let path = if app.base_path.is_empty() { "/" } else { app.base_path.as_str() };
    let secure = if app.has_tls { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}{end}");
    let mut header = HeaderValue::from_str(&text).map_err(|error| Problem::internal(&error))?;
    header.set_sensitive(true);
    Ok(header)
}
