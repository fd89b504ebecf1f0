//! Parts of a request, with errors as problems.
//!
//! Owns the limits of a body: its type, its length, and the time to send it.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, OptionalFromRequest, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use http_body::Body as _;
use serde::de::DeserializeOwned;

use crate::problem::{Problem, Result};

/// Length of a body. The router sets this limit.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;

/// Time to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A JSON body. Unknown fields are errors, as each type decides.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
        if !media_type.eq_ignore_ascii_case("application/json") {
            let detail = format!("the body has the type {media_type:?}; expected application/json");
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let body = match tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, state)).await {
            Ok(body) => body.map_err(|rejection| refused_body(&rejection))?,
            Err(_) => {
                let detail = format!("the body was not sent within {} seconds", BODY_TIMEOUT.as_secs());
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail));
            }
        };
        let value = serde_json::from_slice(&body).map_err(|error| Problem::invalid(format!("the body: {error}")))?;
        Ok(JsonBody(value))
    }
}

/// A request without a body may leave out its type, too.
impl<T: DeserializeOwned, S: Send + Sync> OptionalFromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Option<Self>> {
        let is_empty = request.body().is_end_stream() && !request.headers().contains_key(header::CONTENT_TYPE);
        match is_empty {
            true => Ok(None),
            false => <Self as FromRequest<S>>::from_request(request, state).await.map(Some),
        }
    }
}

fn refused_body(rejection: &BytesRejection) -> Problem {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let detail = format!("the body is too long; expected at most {MAX_BODY_BYTES} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
        }
        _ => Problem::new(StatusCode::BAD_REQUEST, "the body could not be read"),
    }
}

/// The parameters after `?`.
pub(crate) struct QueryArgs<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryArgs<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(QueryArgs(value)),
            Err(rejection) => Err(Problem::invalid(rejection.body_text())),
        }
    }
}

/// The parameters in the path.
pub(crate) struct PathArgs<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathArgs<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(PathArgs(value)),
            Err(rejection) => Err(Problem::invalid(rejection.body_text())),
        }
    }
}
