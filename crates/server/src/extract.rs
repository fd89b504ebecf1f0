//! Parts of a request, with errors as problems.
//!
//! Owns the limits of a body: its type, its length, and the time to send it.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, OptionalFromRequest, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use http_body::Body as _;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

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
        // serde would accept an array with the fields of a struct in their order.
        if body.trim_ascii_start().starts_with(b"[") {
            return Err(Problem::invalid("the body is an array; expected an object"));
        }
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

/// Reads an optional field that is an object. Without this, an array with its fields in their order is accepted too.
pub(crate) fn optional_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<Option<T>, D::Error> {
    deserializer.deserialize_option(OptionalObject(PhantomData))
}

struct OptionalObject<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OptionalObject<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_none<E>(self) -> std::result::Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
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
