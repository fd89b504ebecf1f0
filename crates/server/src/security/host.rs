//! The names by which the server can be reached.
//!
//! Owns the check of the `Host` header. A page of another site can make its name resolve to this machine (DNS
//! rebinding); the browser then sends that name, which is not one of these.

use axum::extract::Request;
use axum::http::{StatusCode, header};

use crate::problem::{Problem, Result};

/// The host names of the server, in lower case and with their port.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    names: Vec<String>,
    scheme: &'static str,
    /// Number of names of loopback, which come first.
    loopback: usize,
}

impl Hosts {
    /// `allowed`: further names, each with or without a port. `port` is the one that the server listens on.
    pub(crate) fn new(port: u16, tls: bool, allowed: &[String]) -> Self {
        let (scheme, default_port) = if tls { ("https", 443) } else { ("http", 80) };
        // Clients leave out the default port of the scheme.
        let named = |name: &str, port: u16| {
            [Some(format!("{name}:{port}")), (port == default_port).then(|| name.to_owned())].into_iter().flatten()
        };
        let mut names: Vec<String> =
            ["127.0.0.1", "[::1]", "localhost"].iter().flat_map(|name| named(name, port)).collect();
        let loopback = names.len();
        for name in allowed {
            let name = name.to_ascii_lowercase();
            match name
                .rsplit_once(':')
                .filter(|(host, _)| !host.is_empty() && (!host.contains(':') || host.ends_with(']')))
            {
                Some((host, port)) => match port.parse() {
                    Ok(port) => names.extend(named(host, port)),
                    Err(_) => names.push(name.clone()),
                },
                // Behind a reverse proxy, the port is that of the proxy.
                None => {
                    names.extend(named(&name, port));
                    names.push(name);
                }
            }
        }
        Hosts { names, scheme, loopback }
    }

    /// Checks that a request is for one of the names.
    pub(crate) fn check(&self, request: &Request) -> Result<()> {
        let refuse = |detail: String| Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail));
        if request.uri().authority().is_some() {
            return refuse("the request line has a host; expected only a path, and the header Host".to_owned());
        }
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return refuse("expected exactly one Host header; --allow-host says which are accepted".to_owned());
        };
        let host = String::from_utf8_lossy(host.as_bytes()).to_ascii_lowercase();
        if self.names.contains(&host) {
            return Ok(());
        }
        refuse(format!(
            "this server does not answer to the host {host:?}; if it should, start it with --allow-host {}",
            shown_name(&host)
        ))
    }

    /// Whether an `Origin` header names a page of this server. A reverse proxy may have another scheme than the server.
    pub(super) fn has_origin(&self, origin: &str) -> bool {
        let Some((scheme, host)) = origin.split_once("://") else { return false };
        let position = self.names.iter().position(|name| name == host);
        let is_scheme = |at| scheme == self.scheme || (at >= self.loopback && matches!(scheme, "http" | "https"));
        position.is_some_and(is_scheme)
    }
}

/// Returns a host as it can be pasted into a command.
fn shown_name(host: &str) -> &str {
    let is_name = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']'))
    };
    if is_name(host) { host } else { "HOST" }
}
