//! `--http`: a POST of each message.
//!
//! Owns the client and what an answer means. Redirects are followed by nobody: a message would arrive where nobody
//! said it should.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use gristmill_amqp::Delivery;
use gristmill_pool::{TaskError, TaskResult};
use jiff::Timestamp;
use tokio_rustls::rustls::crypto::ring;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::about::{About, Bounds, about, plain, trace};
use crate::error::Error;

/// What servers take without a word about it.
const BOUNDS: Bounds = Bounds { each: 4 << 10, total: 12 << 10 };

/// So much of an answer is read, to be told when it is no good one.
const ANSWER: u64 = 1 << 10;

/// An answer that asks for a longer wait is not believed.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// What posts.
pub(super) struct Http {
    agent: ureq::Agent,
    url: String,
    /// Without what may be secret in it.
    shown: String,
}

impl Http {
    pub(super) fn new(url: String, timeout: Duration) -> Result<Self, Error> {
        let mut config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(200)
            .max_idle_connections_per_host(200)
            .user_agent(concat!("gristmill/", env!("CARGO_PKG_VERSION")));
        if url.starts_with("https:") {
            config = config.tls_config(tls()?);
        }
        let shown = shown(&url);
        Ok(Http { agent: config.build().new_agent(), url, shown })
    }

    pub(super) fn post(&self, delivery: &Delivery) -> TaskResult<()> {
        let mut request = self.agent.post(&self.url);
        for (name, value) in headers(delivery) {
            request = request.header(name, value);
        }
        let sent = request.send(&delivery.body()[..]);
        let mut answer = sent.map_err(|error| {
            let text = format!("POST {}: {error}", self.shown);
            match error {
                ureq::Error::BadUri(_) | ureq::Error::Http(_) => TaskError::permanent(text),
                _ => TaskError::transient(text),
            }
        })?;
        let status = answer.status();
        if status.is_success() {
            // To its end, so that the connection can be used again; but not for ever.
            let _ = std::io::copy(&mut answer.body_mut().as_reader().take(64 << 10), &mut std::io::sink());
            return Ok(());
        }
        let later = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let later = later.and_then(|text| wait(text, Timestamp::now()));
        let mut said = Vec::new();
        let _ = answer.body_mut().as_reader().take(ANSWER).read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let apart = if said.is_empty() { "" } else { ": " };
        let text = format!("POST {}: {status}{apart}{said}", self.shown);
        let error = match is_passing(status.as_u16()) {
            true => TaskError::transient(text),
            false => TaskError::permanent(text),
        };
        Err(match later {
            Some(delay) => error.retry_after(delay),
            None => error,
        })
    }
}

/// Whether the same request may be answered otherwise later.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..)
}

/// What an answer says about when to come again: seconds, or a moment.
fn wait(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    let delay = match text.parse().map(Duration::from_secs) {
        Ok(delay) => delay,
        Err(_) => {
            let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
            Duration::try_from(at.duration_since(now)).unwrap_or_default()
        }
    };
    Some(delay.min(LONGEST_WAIT))
}

fn headers(delivery: &Delivery) -> Vec<(String, String)> {
    let kind = delivery.properties().content_type.as_deref().map(encoded);
    let kind = kind.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "application/octet-stream".to_owned());
    let mut headers = vec![("Content-Type".to_owned(), kind)];
    for one in about(delivery, BOUNDS, |_| true) {
        let (name, value) = match one {
            About::Property("CONTENT_TYPE", _) => continue,
            About::Property(name, value) => (format!("X-Gristmill-{}", plain(name, '-')), value),
            About::Header(name, _) if name.is_empty() => continue,
            About::Header(name, value) => (format!("X-Gristmill-Header-{}", plain(&name, '-')), value),
        };
        if headers.iter().all(|(known, _)| *known != name) {
            headers.push((name, encoded(&value)));
        }
    }
    headers.extend(trace(delivery).map(|(name, value)| (name.to_owned(), encoded(value))));
    headers
}

/// A value as it may stand in a header: what has more than plain letters in it is encoded as in a URL.
fn encoded(value: &str) -> String {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte);
    if value.bytes().all(is_plain) {
        return value.to_owned();
    }
    let mut text = String::with_capacity(value.len() * 2);
    for byte in value.bytes() {
        match byte {
            b'%' => text.push_str("%25"),
            byte if is_plain(byte) => text.push(byte.into()),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// A URL without its user, its password and its question.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let rest = &rest[..end];
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}://{host}{path}")
}

/// The authorities that this system trusts.
fn tls() -> Result<TlsConfig, Error> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map_or_else(String::new, |error| format!(" ({error})"));
        return Err(Error::Setting(format!(
            "this system has no certificates of authorities to check https:// with{why}; install them, such as the \
             package ca-certificates, or name a file of them with SSL_CERT_FILE"
        )));
    }
    let roots: Vec<Certificate<'static>> =
        found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    let builder = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&roots));
    Ok(builder.unversioned_rustls_crypto_provider(Arc::new(ring::default_provider())).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_answers_may_be_others_later() {
        for status in [408, 425, 429, 500, 503, 599] {
            assert!(is_passing(status), "{status}");
        }
        for status in [300, 302, 307, 400, 401, 404, 409, 422, 499] {
            assert!(!is_passing(status), "{status}");
        }
    }

    #[test]
    fn both_ways_of_saying_when_to_come_again() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        for (text, seconds) in [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("99999999", Some(86_400)),
            ("Sat, 31 Jan 2026 12:01:30 GMT", Some(90)),
            ("Sat, 31 Jan 2026 11:00:00 GMT", Some(0)),
            ("soon", None),
            ("-5", None),
            ("", None),
        ] {
            assert_eq!(wait(text, now).map(|wait| wait.as_secs()), seconds, "{text:?}");
        }
    }

    #[test]
    fn a_url_is_shown_without_what_may_be_secret() {
        for (url, expected) in [
            ("https://u:secret@host:1/a?token=secret#secret", "https://host:1/a"),
            ("http://host", "http://host"),
            ("http://u:se@cret@host?x", "http://host"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn values_of_any_kind_become_plain() {
        for (value, expected) in
            [("a b", "a b"), ("50%", "50%"), ("a\r\nb: c", "a%0D%0Ab: c"), ("é%", "%C3%A9%25")]
        {
            assert_eq!(encoded(value), expected);
        }
    }
}
