//! Broker URIs: `amqp://user:password@host:port/vhost?…`.
//!
//! Formats endpoints, and never shows a password.

use crate::error::Error;
use std::{fmt, path::PathBuf, time::Duration};

/// One broker, or one node of a cluster, as a URI names it.
///
/// ```
/// use gristmill_amqp::Endpoint;
///
/// let endpoint: Endpoint = "amqps://shop:secret@broker.example/orders?heartbeat=5".parse()?;
/// assert_eq!(endpoint.to_string(), "amqps://shop@broker.example:5671/orders");
/// # Ok::<(), gristmill_amqp::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) vhost: String,
    pub(crate) heartbeat: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) external: bool,
}

/// TLS settings of the URI.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) server_name: Option<String>,
}

/// Short enough to notice a dead network within half a minute, long enough for a busy broker.
const HEARTBEAT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const PARAMETERS: [&str; 8] = [
    "heartbeat",
    "connection_timeout",
    "auth_mechanism",
    "cacertfile",
    "certfile",
    "keyfile",
    "server_name_indication",
    "verify",
];

impl Endpoint {
    /// Name of the virtual host.
    pub fn virtual_host(&self) -> &str {
        &self.vhost
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        let host = self.host.split(':').map(encode).collect::<Vec<_>>().join(":");
        let host = if self.host.contains(':') { format!("[{host}]") } else { host };
        let vhost = encode(&self.vhost);
        write!(f, "{scheme}://{}@{host}:{}/{vhost}", encode(&self.user), self.port)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

impl std::str::FromStr for Endpoint {
    type Err = Error;

    fn from_str(given: &str) -> Result<Self, Error> {
        parse(given).map_err(|why| Error::Uri { why })
    }
}

/// Parses a URI. The error never repeats the input: a password may be anywhere in it.
fn parse(given: &str) -> Result<Endpoint, String> {
    let (scheme, rest) = given.split_once("://").ok_or("it does not begin with amqp:// or amqps://")?;
    let mut tls = match scheme.to_ascii_lowercase().as_str() {
        "amqp" => None,
        "amqps" => Some(TlsFiles::default()),
        _ => return Err("it does not begin with amqp:// or amqps://".into()),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, vhost) = match rest.split_once('/') {
        // By the specification `amqp://host/` names a virtual host with an empty name; it is read as `/`.
        Some((authority, "")) | Some((authority, "%2f" | "%2F")) => (authority, "/".to_owned()),
        Some((authority, vhost)) if !vhost.contains('/') => (authority, decode(vhost, "the virtual host")?),
        Some(_) => return Err("write a slash in the virtual host as %2f".into()),
        None => (rest, "/".to_owned()),
    };
    let (login, host_port) = match authority.rsplit_once('@') {
        Some((login, host_port)) => (Some(login), host_port),
        None => (None, authority),
    };
    let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
        Some((user, password)) => (decode(user, "the user")?, decode(password, "the password")?),
        None => ("guest".to_owned(), "guest".to_owned()),
    };
    let (host, port) = split_host_port(host_port)?;
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or("the port must be 1 to 65535")?,
        None if tls.is_some() => 5671,
        None => 5672,
    };
    let mut endpoint = Endpoint {
        host,
        port,
        user,
        password,
        vhost,
        heartbeat: HEARTBEAT,
        connect_timeout: CONNECT_TIMEOUT,
        tls: None,
        external: false,
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // An unknown name may be part of a password that should have been escaped.
        let known = PARAMETERS.iter().find(|known| **known == name).copied();
        apply(&mut endpoint, &mut tls, name, &decode(value, known.unwrap_or("a parameter"))?)?;
    }
    if tls.as_ref().is_some_and(|tls| tls.certificate.is_some() != tls.key.is_some()) {
        return Err("certfile and keyfile must be given together".into());
    }
    endpoint.tls = tls;
    Ok(endpoint)
}

fn split_host_port(host_port: &str) -> Result<(String, Option<&str>), String> {
    let (host, port) = match host_port.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("an address in [ ] is not closed")?;
            match rest {
                "" => (host, None),
                _ => (host, Some(rest.strip_prefix(':').ok_or("only :port may follow an address in [ ]")?)),
            }
        }
        None => match host_port.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host_port, None),
        },
    };
    let host = if host.is_empty() { "localhost".to_owned() } else { decode(host, "the host")? };
    Ok((host, port))
}

fn apply(endpoint: &mut Endpoint, tls: &mut Option<TlsFiles>, name: &str, value: &str) -> Result<(), String> {
    let number = || value.parse::<u64>().map_err(|_| format!("{name} is not a whole number"));
    let needs_tls = |tls: &mut Option<TlsFiles>, assign: fn(&mut TlsFiles, String)| match tls {
        Some(tls) => {
            assign(tls, value.to_owned());
            Ok(())
        }
        None => Err(format!("{name} needs amqps://")),
    };
    match name {
        "heartbeat" => match number()? {
            0 => {
                return Err("heartbeat must be 1 to 3600 seconds: without it a dead network is not detected".into());
            }
            seconds @ 1..=3600 => endpoint.heartbeat = Duration::from_secs(seconds),
            _ => return Err("heartbeat must be 1 to 3600 seconds".into()),
        },
        "connection_timeout" => match number()? {
            0 => return Err("connection_timeout must be at least 1 millisecond".into()),
            milliseconds => endpoint.connect_timeout = Duration::from_millis(milliseconds),
        },
        "auth_mechanism" => match value.to_ascii_lowercase().as_str() {
            "plain" => endpoint.external = false,
            "external" => endpoint.external = true,
            _ => return Err("auth_mechanism must be plain or external".into()),
        },
        "cacertfile" => needs_tls(tls, |tls, value| tls.authorities = Some(value.into()))?,
        "certfile" => needs_tls(tls, |tls, value| tls.certificate = Some(value.into()))?,
        "keyfile" => needs_tls(tls, |tls, value| tls.key = Some(value.into()))?,
        "server_name_indication" => needs_tls(tls, |tls, value| tls.server_name = Some(value))?,
        "verify" if value == "verify_peer" => needs_tls(tls, |_, _| ())?,
        "verify" => {
            return Err(
                "verify must be verify_peer; for a self-signed certificate name its authority with cacertfile".into()
            );
        }
        _ => return Err(format!("unknown parameter; expected: {}", PARAMETERS.join(", "))),
    }
    Ok(())
}

fn decode(text: &str, what: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'%' => {
                let digits = rest.get(..2).and_then(|two| std::str::from_utf8(two).ok());
                let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
                rest = rest.get(2..).unwrap_or_default();
                byte.ok_or_else(|| format!("{what} has a % without two hexadecimal digits"))?
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).map_err(|_| format!("{what} is not UTF-8"))
}

fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02x}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_decoded_and_never_shown() {
        let endpoint: Endpoint = "amqp://a:p%3a%2f%40@host".parse().unwrap();
        assert_eq!(endpoint.password, "p:/@");
        let shown = format!("{endpoint} {endpoint:?} {endpoint:#?}");
        assert!(!shown.contains("p:/@") && !shown.contains("p%3a"), "{shown}");
    }
}
