//! Errors of the API.
//!
//! Owns their form, `application/problem+json` (RFC 9457) with a text for people in `detail`, and the status of each
//! error of the store and of the workloads.

use std::fmt;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use gristmill_store::Error as StoreError;
use serde::Serialize;
use utoipa::ToSchema;

/// Result of a handler.
pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

/// An error as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Name of the status.
    title: &'static str,
    /// Status of the response.
    status: u16,
    /// What is wrong, and what would be right.
    detail: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Problem { title, status: status.as_u16(), detail: detail.into() }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::CONFLICT, detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, detail)
    }

    /// An error that the client cannot do anything about. Its cause is in the log, not in the response.
    pub(crate) fn internal(cause: &impl fmt::Display) -> Self {
        tracing::error!(error = %cause, "request failed");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed; its log has the reason")
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::NotFound(_) => StatusCode::NOT_FOUND,
            StoreError::Conflict(_) => StatusCode::CONFLICT,
            StoreError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            StoreError::QueueFull(_) => StatusCode::TOO_MANY_REQUESTS,
            StoreError::ReadOnly(_) => StatusCode::FORBIDDEN,
            StoreError::Busy(_) | StoreError::Closed | StoreError::Deleted(_) | StoreError::Replaced(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            StoreError::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
            _ => return Problem::internal(&error),
        };
        Problem::new(status, error.to_string())
    }
}

impl From<gristmill_dedup::Error> for Problem {
    fn from(error: gristmill_dedup::Error) -> Self {
        match error {
            gristmill_dedup::Error::Store(error) => error.into(),
            gristmill_dedup::Error::Root(..) => Problem::not_found(error.to_string()),
            gristmill_dedup::Error::Invalid(_) => Problem::invalid(error.to_string()),
            error => Problem::internal(&error),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let status = self.status();
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
        }
        response
    }
}
