//! `--http`: a POST of each message.
//!
//! Owns the client and what an answer means: whether the message is done, is refused, or the server has failed. Redirects
//! are not followed: a message would arrive at a place that was not named.

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use gristmill_amqp::Delivery;
use gristmill_pool::{TaskError, TaskResult};
use jiff::Timestamp;
use tokio_rustls::rustls::crypto::ring;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::metadata::{Bounds, MessageField, about, plain, trace};
use crate::error::Error;
use crate::settings::consumers::Statuses;

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
    /// Answers that are the server's fault.
    retried: Statuses,
}

impl Http {
    pub(super) fn new(url: String, timeout: Duration, retried: Statuses) -> Result<Self, Error> {
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
        Ok(Http { agent: config.build().new_agent(), url, shown, retried })
    }

    pub(super) fn post(&self, delivery: &Delivery) -> TaskResult<()> {
        self.send(headers(delivery), delivery.body())
    }

    /// Posts a batch as JSON lines.
    pub(super) fn post_batch(&self, deliveries: &[Delivery], lines: &[u8]) -> TaskResult<()> {
        let queue = deliveries.first().map(|one| encoded(one.queue())).unwrap_or_default();
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
        let mut answer = request.send(body).map_err(|error| {
            let text = format!("POST {}: {error}", self.shown);
            // Timeouts are counted by their kind.
            let kind = if is_timeout(&error) { ErrorKind::TimedOut } else { ErrorKind::Other };
            let described = std::io::Error::new(kind, text);
            match fault(&error) {
                Fault::Message => TaskError::permanent(described),
                Fault::NoConnection => TaskError::unavailable(described),
                Fault::Unclear => TaskError::dependency_failed(described),
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
        let error = match status.as_u16() {
            code if !self.retried.has(code) => TaskError::permanent(text),
            // The server has said that it did not look at the message.
            429 => TaskError::unavailable(text),
            503 if later.is_some() => TaskError::unavailable(text),
            _ => TaskError::dependency_failed(text),
        };
        Err(match later {
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

/// What a request without an answer shows.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// The message cannot be sent.
    Message,
    /// No connection was made: the message was not sent.
    NoConnection,
    /// The server had the message, or a part of it, and did not answer.
    Unclear,
}

fn fault(error: &ureq::Error) -> Fault {
    match error {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => Fault::Message,
        ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Tls(_)
        | ureq::Error::Rustls(_)
        | ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => Fault::NoConnection,
        ureq::Error::Io(error) => match error.kind() {
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
            | ErrorKind::TimedOut => Fault::Unclear,
            // Refused, unreachable, no more files: there was no connection.
            _ => Fault::NoConnection,
        },
        _ => Fault::Unclear,
    }
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
            MessageField::Property("CONTENT_TYPE", _) => continue,
            MessageField::Property(name, value) => (format!("X-Gristmill-{}", plain(name, '-')), value),
            MessageField::Header(name, _) if name.is_empty() => continue,
            MessageField::Header(name, value) => (format!("X-Gristmill-Header-{}", plain(&name, '-')), value),
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
    fn request_without_an_answer_shows_whether_there_was_a_connection() {
        let io = |kind: ErrorKind| ureq::Error::Io(kind.into());
        for (error, expected) in [
            (io(ErrorKind::ConnectionRefused), Fault::NoConnection),
            (io(ErrorKind::HostUnreachable), Fault::NoConnection),
            (ureq::Error::HostNotFound, Fault::NoConnection),
            (ureq::Error::Timeout(ureq::Timeout::Connect), Fault::NoConnection),
            (ureq::Error::Timeout(ureq::Timeout::Global), Fault::Unclear),
            (ureq::Error::Timeout(ureq::Timeout::RecvResponse), Fault::Unclear),
            (io(ErrorKind::ConnectionReset), Fault::Unclear),
            (io(ErrorKind::UnexpectedEof), Fault::Unclear),
            (ureq::Error::BadUri(String::new()), Fault::Message),
        ] {
            assert_eq!(fault(&error), expected, "{error}");
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
