//! `--http`: sends each message as a POST request.
//!
//! Owns the HTTP client and classifies responses: success, permanent failure of the message, or failure of the
//! server. Redirects are not followed, so that messages reach only the given URL.

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use gristmill_amqp::Delivery;
use gristmill_pool::{TaskError, TaskResult};
use jiff::Timestamp;
use tokio_rustls::rustls::crypto::ring;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::metadata::{FieldLimits, MessageField, message_fields, normalize_name, trace_headers};
use crate::error::Error;
use crate::settings::consumers::HttpStatuses;

/// Limits of the request headers; common servers accept this size without configuration.
const FIELD_LIMITS: FieldLimits = FieldLimits { max_value: 4 << 10, max_total: 12 << 10 };

/// Bytes of an error response that are read and reported.
const MAX_ERROR_BODY: u64 = 1 << 10;

/// Upper bound of the wait that `Retry-After` can request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);

pub(super) struct Http {
    agent: ureq::Agent,
    url: String,
    /// URL without user, password, query and fragment.
    display_url: String,
    /// Statuses that count as failures of the server.
    retry_statuses: HttpStatuses,
}

impl Http {
    pub(super) fn new(url: String, timeout: Duration, retry_statuses: HttpStatuses) -> Result<Self, Error> {
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
        Ok(Http { agent: config.build().new_agent(), display_url: display_url(&url), url, retry_statuses })
    }

    pub(super) fn post(&self, delivery: &Delivery) -> TaskResult<()> {
        self.send(headers(delivery), delivery.body())
    }

    pub(super) fn post_batch(&self, deliveries: &[Delivery], lines: &[u8]) -> TaskResult<()> {
        let queue = deliveries.first().map(|one| percent_encode(one.queue())).unwrap_or_default();
        let headers = [
            ("Content-Type", "application/x-ndjson".to_owned()),
            ("X-Gristmill-Queue", queue),
            ("X-Gristmill-Batch", deliveries.len().to_string()),
        ];
        self.send(headers.map(|(name, value)| (name.to_owned(), value)).to_vec(), lines)
    }

    fn send(&self, headers: Vec<(String, String)>, body: &[u8]) -> TaskResult<()> {
        let mut request = self.agent.post(&self.url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut response = request.send(body).map_err(|error| {
            let text = format!("POST {}: {error}", self.display_url);
            // The consumer counts errors of this kind as timeouts.
            let kind = if is_timeout(&error) { ErrorKind::TimedOut } else { ErrorKind::Other };
            let described = std::io::Error::new(kind, text);
            match classify_failure(&error) {
                RequestFailure::InvalidMessage => TaskError::permanent(described),
                RequestFailure::NoConnection => TaskError::unavailable(described),
                RequestFailure::NoResponse => TaskError::dependency_failed(described),
            }
        })?;
        let status = response.status();
        if status.is_success() {
            // Reads up to 64 KiB to the end, so that the connection can be reused.
            let _ = std::io::copy(&mut response.body_mut().as_reader().take(64 << 10), &mut std::io::sink());
            return Ok(());
        }
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| parse_retry_after(text, Timestamp::now()));
        let mut body = Vec::new();
        let _ = response.body_mut().as_reader().take(MAX_ERROR_BODY).read_to_end(&mut body);
        let text = String::from_utf8_lossy(&body);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let separator = if text.is_empty() { "" } else { ": " };
        let text = format!("POST {}: {status}{separator}{text}", self.display_url);
        let error = match status.as_u16() {
            code if !self.retry_statuses.has(code) => TaskError::permanent(text),
            // The server rejected the request without processing the message.
            429 => TaskError::unavailable(text),
            503 if retry_after.is_some() => TaskError::unavailable(text),
            _ => TaskError::dependency_failed(text),
        };
        Err(match retry_after {
            Some(delay) => error.with_retry_after(delay),
            None => error,
        })
    }
}

fn is_timeout(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Timeout(_) => true,
        ureq::Error::Io(error) => error.kind() == ErrorKind::TimedOut,
        _ => false,
    }
}

/// Cause of a request that has no response.
#[derive(Debug, PartialEq, Eq)]
enum RequestFailure {
    /// The message cannot be sent.
    InvalidMessage,
    /// No connection was established, so the message was not sent.
    NoConnection,
    /// The server received the message, or a part of it, and did not respond.
    NoResponse,
}

fn classify_failure(error: &ureq::Error) -> RequestFailure {
    match error {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => RequestFailure::InvalidMessage,
        ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Tls(_)
        | ureq::Error::Rustls(_)
        | ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => RequestFailure::NoConnection,
        ureq::Error::Io(error) => match error.kind() {
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
            | ErrorKind::TimedOut => RequestFailure::NoResponse,
            // Refused, unreachable, too many open files: there was no connection.
            _ => RequestFailure::NoConnection,
        },
        _ => RequestFailure::NoResponse,
    }
}

/// Parses `Retry-After`: a number of seconds, or a date.
fn parse_retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    let delay = match text.parse().map(Duration::from_secs) {
        Ok(delay) => delay,
        Err(_) => {
            let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
            Duration::try_from(at.duration_since(now)).unwrap_or_default()
        }
    };
    Some(delay.min(MAX_RETRY_AFTER))
}

fn headers(delivery: &Delivery) -> Vec<(String, String)> {
    let kind = delivery.properties().content_type.as_deref().map(percent_encode);
    let kind = kind.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "application/octet-stream".to_owned());
    let mut headers = vec![("Content-Type".to_owned(), kind)];
    for one in message_fields(delivery, FIELD_LIMITS, |_| true) {
        let (name, value) = match one {
            MessageField::Property("CONTENT_TYPE", _) => continue,
            MessageField::Property(name, value) => (format!("X-Gristmill-{}", normalize_name(name, '-')), value),
            MessageField::Header(name, _) if name.is_empty() => continue,
            MessageField::Header(name, value) => (format!("X-Gristmill-Header-{}", normalize_name(&name, '-')), value),
        };
        if headers.iter().all(|(known, _)| *known != name) {
            headers.push((name, percent_encode(&value)));
        }
    }
    headers.extend(trace_headers(delivery).map(|(name, value)| (name.to_owned(), percent_encode(value))));
    headers
}

/// Percent-encodes a header value that contains characters other than printable ASCII.
fn percent_encode(value: &str) -> String {
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

/// Removes user, password, query and fragment from a URL.
fn display_url(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let rest = &rest[..end];
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}://{host}{path}")
}

/// Trusts the certificate authorities of the system.
fn tls() -> Result<TlsConfig, Error> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map_or_else(String::new, |error| format!(" ({error})"));
        return Err(Error::Setting(format!(
            "cannot check https:// certificates: the system has no certificate authorities{why}; install the package \
             ca-certificates, or name a file of them in SSL_CERT_FILE"
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
    fn failed_requests_are_classified_by_connection() {
        let io = |kind: ErrorKind| ureq::Error::Io(kind.into());
        for (error, expected) in [
            (io(ErrorKind::ConnectionRefused), RequestFailure::NoConnection),
            (io(ErrorKind::HostUnreachable), RequestFailure::NoConnection),
            (ureq::Error::HostNotFound, RequestFailure::NoConnection),
            (ureq::Error::Timeout(ureq::Timeout::Connect), RequestFailure::NoConnection),
            (ureq::Error::Timeout(ureq::Timeout::Global), RequestFailure::NoResponse),
            (ureq::Error::Timeout(ureq::Timeout::RecvResponse), RequestFailure::NoResponse),
            (io(ErrorKind::ConnectionReset), RequestFailure::NoResponse),
            (io(ErrorKind::UnexpectedEof), RequestFailure::NoResponse),
            (ureq::Error::BadUri(String::new()), RequestFailure::InvalidMessage),
        ] {
            assert_eq!(classify_failure(&error), expected, "{error}");
        }
    }

    #[test]
    fn retry_after_is_parsed_as_seconds_or_date() {
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
            assert_eq!(parse_retry_after(text, now).map(|wait| wait.as_secs()), seconds, "{text:?}");
        }
    }

    #[test]
    fn displayed_url_has_no_credentials_or_query() {
        for (url, expected) in [
            ("https://u:secret@host:1/a?token=secret#secret", "https://host:1/a"),
            ("http://host", "http://host"),
            ("http://u:se@cret@host?x", "http://host"),
        ] {
            assert_eq!(display_url(url), expected);
        }
    }

    #[test]
    fn header_values_are_percent_encoded() {
        for (value, expected) in [("a b", "a b"), ("50%", "50%"), ("a\r\nb: c", "a%0D%0Ab: c"), ("é%", "%C3%A9%25")] {
            assert_eq!(percent_encode(value), expected);
        }
    }
}
