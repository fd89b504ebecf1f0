//! The routes, a module for each subject.
//!
//! Owns which routes need no credential. A handler and its place in the OpenAPI document come from one macro.

mod dead_letters;
mod files;
mod folders;
mod groups;
mod health;
mod jobs;
mod overview;
mod questions;
mod roots;
mod scans;
mod session;
mod stream;
mod tasks;
mod thumbs;
mod wal;
mod workers;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, Modify, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;

/// Routes below `/api/v1` that need a credential.
pub(crate) fn protected() -> OpenApiRouter<App> {
    subjects().into_iter().fold(OpenApiRouter::new(), OpenApiRouter::merge)
}

/// The routes of each subject. A schema of one replaces that of another with the same name, so names are unique.
fn subjects() -> [OpenApiRouter<App>; 15] {
    [
        dead_letters::routes(),
        files::routes(),
        folders::routes(),
        groups::routes(),
        jobs::routes(),
        overview::routes(),
        questions::routes(),
        roots::routes(),
        scans::routes(),
        session::routes(),
        stream::routes(),
        tasks::routes(),
        thumbs::routes(),
        wal::routes(),
        workers::routes(),
    ]
}

/// Routes below `/api/v1` that need no credential, but must not be called by pages of other sites.
pub(crate) fn sign_in() -> OpenApiRouter<App> {
    session::sign_in_routes()
}

/// Routes below `/api/v1` that need no credential.
pub(crate) fn open() -> OpenApiRouter<App> {
    health::api_routes()
}

/// Routes for monitoring outside `/api/v1`, by whether they need a credential.
pub(crate) use health::{metrics_route, monitoring_routes};
pub(crate) use stream::MAX_STREAMS;

/// Responses of errors, which all routes have.
pub(crate) struct Problems;

impl IntoResponses for Problems {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let schema = Ref::from_schema_name(crate::problem::Problem::name());
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let response = ResponseBuilder::new()
            .description("An error, with a text for people in `detail`")
            .content("application/problem+json", content)
            .build();
        // Not as `default`, which would also describe a success that the document does not have.
        BTreeMap::from(["4XX", "5XX"].map(|statuses| (statuses.to_owned(), response.clone().into())))
    }
}

/// Adds how callers authenticate to the document.
pub(crate) struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        let cookie = ApiKeyValue::with_description("gristmill-PORT", "The cookie of a session; its name has the port");
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    }
}

/// How many rows a request has changed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Changed {
    pub(crate) changed: u64,
}

/// Default and maximum number of rows on a page of tasks, dead letters or scans.
pub(crate) const DEFAULT_ROWS: usize = 50;
pub(crate) const MAX_ROWS: usize = 200;

/// Checks the number of items on a page.
pub(crate) fn page_limit(limit: Option<usize>, default: usize, max: usize) -> crate::problem::Result<usize> {
    match limit.unwrap_or(default) {
        limit if (1..=max).contains(&limit) => Ok(limit),
        limit => Err(crate::problem::Problem::invalid(format!("invalid limit {limit}; expected 1 to {max}"))),
    }
}

/// Parses a value of a filter.
pub(crate) fn parsed<T: Copy + Serialize>(
    given: Option<&str>,
    what: &str,
    parse: fn(&str) -> Option<T>,
    known: &[T],
) -> crate::problem::Result<Option<T>> {
    let Some(given) = given else { return Ok(None) };
    parse(given).map(Some).ok_or_else(|| {
        let text = |value: &T| serde_json::to_string(value).unwrap_or_default().replace('"', "");
        let known: Vec<String> = known.iter().map(text).collect();
        crate::problem::Problem::invalid(format!("unknown {what} {given:?}; expected one of {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_subjects_have_different_schemas_of_one_name() {
        let mut seen = BTreeMap::new();
        for routes in subjects().into_iter().chain([sign_in(), open()]) {
            for (name, schema) in routes.into_openapi().components.unwrap_or_default().schemas {
                let schema = serde_json::to_value(schema).unwrap();
                let first = seen.entry(name.clone()).or_insert_with(|| schema.clone());
                assert_eq!(*first, schema, "two schemas have the name {name}");
            }
        }
    }
}
