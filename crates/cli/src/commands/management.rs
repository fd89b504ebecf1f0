//! RabbitMQ's management API: true counts of queues.
//!
//! Owns one request. AMQP counts the messages that are ready; the API also counts those that consumers hold, and those that
//! the broker is returning from a queue where they waited. Queues report their counts to it every 5 s.

use std::io::Read;
use std::time::Duration;

use gristmill_amqp::Endpoint;
use serde::Deserialize;

use crate::error::Error;
use crate::settings::Settings;

/// How long the API may take, and how much of an answer is read.
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER: u64 = 1 << 20;

/// The API of a broker, of one virtual host.
pub(super) struct Management {
    agent: ureq::Agent,
    /// With user and password: not to be shown.
    url: String,
    virtual_host: String,
}

/// A queue as the API counts it. A queue that was declared within the last seconds has no counts yet.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Counts {
    messages: Option<u64>,
    messages_ready: Option<u64>,
    messages_unacknowledged: Option<u64>,
}

impl Counts {
    /// All messages: ready ones, those that consumers hold, and those that the broker is returning to their queue; none is
    /// unknown.
    pub(super) fn all(&self) -> Option<u64> {
        self.messages
    }

    /// Messages that the broker is returning to their queue; none is unknown.
    pub(super) fn returning(&self) -> Option<u64> {
        let counted = self.messages_ready? + self.messages_unacknowledged?;
        Some(self.messages?.saturating_sub(counted))
    }
}

/// Why the API did not answer.
#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    reason: String,
}

impl Management {
    /// The API that the settings name, if they do.
    pub(super) fn of(settings: &Settings) -> Option<Self> {
        let uri = settings.amqp.uris.first()?.parse::<Endpoint>().ok()?;
        Some(Management::new(settings.amqp.management.as_ref()?, uri.virtual_host()))
    }

    fn new(url: &str, virtual_host: &str) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        let url = url.trim_end_matches('/').to_owned();
        Management { agent: config.build().new_agent(), url, virtual_host: virtual_host.to_owned() }
    }

    /// The counts of a queue; none if the API does not know it.
    pub(super) fn counts(&self, queue: &str) -> Result<Option<Counts>, Error> {
        let url = format!("{}/api/queues/{}/{}", self.url, encoded(&self.virtual_host), encoded(queue));
        let mut answer = self.agent.get(&url).call().map_err(|error| failed(&error.to_string()))?;
        let status = answer.status().as_u16();
        let mut text = String::new();
        let read = answer.body_mut().as_reader().take(MAX_ANSWER).read_to_string(&mut text);
        read.map_err(|error| failed(&error.to_string()))?;
        match status {
            200 => serde_json::from_str(&text).map(Some).map_err(|error| failed(&error.to_string())),
            401 | 403 => {
                let refusal = serde_json::from_str(&text).unwrap_or(Refusal { reason: String::new() });
                Err(self.refused(status, &refusal.reason))
            }
            404 => Ok(None),
            status => Err(failed(&format!("status {status} for the queue {queue}"))),
        }
    }

    /// Why the user is refused, and what allows it.
    fn refused(&self, status: u16, reason: &str) -> Error {
        let user = user(&self.url).unwrap_or("USER");
        let next = match reason.to_lowercase() {
            reason if reason.contains("management user") => {
                format!("`rabbitmqctl set_user_tags {user} management` allows it")
            }
            reason if reason.contains("virtual host") => {
                let host = &self.virtual_host;
                format!("`rabbitmqctl set_permissions -p {host} {user} '^$' '^$' '^$'` allows it")
            }
            _ => "Are the user and the password in its URL the right ones?".to_owned(),
        };
        let reason = if reason.is_empty() { format!("status {status}") } else { reason.to_owned() };
        Error::Setting(format!("the management API (amqp.management) refuses the user: {reason}. {next}"))
    }
}

fn failed(why: &str) -> Error {
    Error::System(format!(
        "the management API (amqp.management): {why}. Is the plugin rabbitmq_management enabled, and is this its address?"
    ))
}

/// The user in a URL, as it is written there.
fn user(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let (login, _) = rest.split('/').next()?.rsplit_once('@')?;
    login.split(':').next().filter(|user| !user.is_empty())
}

/// A name as a part of a path.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_are_neither_ready_nor_held_are_being_returned() {
        for (answer, expected) in [
            (r#"{"messages": 12, "messages_ready": 3, "messages_unacknowledged": 4, "name": "q"}"#, Some(5)),
            (r#"{"messages": 2, "messages_ready": 2, "messages_unacknowledged": 0}"#, Some(0)),
            // The counts of one moment, and of the next.
            (r#"{"messages": 2, "messages_ready": 3, "messages_unacknowledged": 0}"#, Some(0)),
            (r#"{"name": "q"}"#, None),
            (r#"{"messages": 2, "messages_ready": 2}"#, None),
        ] {
            assert_eq!(serde_json::from_str::<Counts>(answer).unwrap().returning(), expected, "{answer}");
        }
    }

    #[test]
    fn names_in_urls() {
        assert_eq!(encoded("/"), "%2F");
        assert_eq!(encoded("orders.retry.1000"), "orders.retry.1000");
        assert_eq!(user("http://me:se@cret@localhost:15672/api"), Some("me"));
        assert_eq!(user("https://localhost/a@b"), None);
        assert_eq!(user("http://:secret@localhost"), None);
    }
}
