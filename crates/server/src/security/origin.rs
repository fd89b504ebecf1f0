//! Whether a browser sends a request for a page of this server.
//!
//! Owns the rule against cross-site requests. Browsers send `Sec-Fetch-Site` with every request, and older ones at least
//! `Origin` with those that change something.

use axum::http::{HeaderMap, header};

use super::Hosts;
use crate::problem::{Problem, Result};

pub(super) fn check(headers: &HeaderMap, hosts: &Hosts) -> Result<()> {
    let refuse = |detail: &str| Err(Problem::forbidden(detail));
    let mut sites = headers.get_all("sec-fetch-site").iter();
    match (sites.next(), sites.next()) {
        (Some(site), None) if site.as_bytes() == b"same-origin" => return Ok(()),
        (None, _) => {}
        _ => return refuse("a page of another site sent this request: Sec-Fetch-Site is not same-origin"),
    }
    let mut origins = headers.get_all(header::ORIGIN).iter();
    match (origins.next(), origins.next()) {
        (Some(origin), None) if origin.to_str().is_ok_and(|origin| hosts.has_origin(origin)) => Ok(()),
        (None, _) => refuse(
            "the request has neither Sec-Fetch-Site nor Origin; expected one of them with a session, or a bearer token",
        ),
        _ => refuse("a page of another site sent this request: its Origin is not that of this server"),
    }
}
