//! Client of RabbitMQ's management API, for counts that AMQP does not have.
//!
//! AMQP counts ready messages. The API also counts unacknowledged messages and those that the broker is returning
//! from a retry queue. Queues report their counts to the API every 5 s.

use std::io::Read;
use std::time::Duration;

use gristmill_amqp::Endpoint;
use serde::Deserialize;

use crate::error::Error;
use crate::settings::Settings;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a reply that are read at most.
const MAX_REPLY_BYTES: u64 = 1 << 20;

/// Management API of one virtual host of a broker.
pub(super) struct Management {
    agent: ureq::Agent,
    /// Contains user and password: never printed.
    url: String,
    virtual_host: String,
}

/// Counts of a queue. A queue that was declared within the last seconds has none yet.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(super) struct QueueCounts {
    messages: Option<u64>,
    messages_ready: Option<u64>,
    messages_unacknowledged: Option<u64>,
}

impl QueueCounts {
    /// Number of all messages: ready, unacknowledged and returning to their queue. None if unknown.
    pub(super) fn all(&self) -> Option<u64> {
        self.messages
    }

    /// Number of messages that the broker is returning to their queue. None if unknown.
    pub(super) fn returning(&self) -> Option<u64> {
        let counted = self.messages_ready? + self.messages_unacknowledged?;
        Some(self.messages?.saturating_sub(counted))
    }
}

#[derive(Deserialize)]
struct ErrorReply {
    #[serde(default)]
    reason: String,
}

impl Management {
    /// Returns the API of the setting `amqp.management`, if set.
    pub(super) fn from_settings(settings: &Settings) -> Option<Self> {
        let uri = settings.amqp.uris.first()?.parse::<Endpoint>().ok()?;
        Some(Management::new(settings.amqp.management.as_ref()?, uri.virtual_host()))
    }

    fn new(url: &str, virtual_host: &str) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        let url = url.trim_end_matches('/').to_owned();
        Management { agent: config.build().new_agent(), url, virtual_host: virtual_host.to_owned() }
    }

    /// Returns the counts of a queue; none if the API does not know it.
    pub(super) fn counts(&self, queue: &str) -> Result<Option<QueueCounts>, Error> {
        let url = format!("{}/api/queues/{}/{}", self.url, percent_encode(&self.virtual_host), percent_encode(queue));
        let mut reply = self.agent.get(&url).call().map_err(|error| failed(&error.to_string()))?;
        let status = reply.status().as_u16();
        let mut text = String::new();
        let read = reply.body_mut().as_reader().take(MAX_REPLY_BYTES).read_to_string(&mut text);
        read.map_err(|error| failed(&error.to_string()))?;
        match status {
            200 => serde_json::from_str(&text).map(Some).map_err(|error| failed(&error.to_string())),
            401 | 403 => {
                let refusal = serde_json::from_str(&text).unwrap_or(ErrorReply { reason: String::new() });
                Err(self.access_refused(status, &refusal.reason))
            }
            404 => Ok(None),
            status => Err(failed(&format!("status {status} for queue {queue}"))),
        }
    }

    /// Error with the command that grants the missing permission.
    fn access_refused(&self, status: u16, reason: &str) -> Error {
        let user = user_in_url(&self.url).unwrap_or("USER");
        let next = match reason.to_lowercase() {
            reason if reason.contains("management user") => {
                format!("Grant it with `rabbitmqctl set_user_tags {user} management`")
            }
            reason if reason.contains("virtual host") => {
                let host = &self.virtual_host;
                format!("Grant it with `rabbitmqctl set_permissions -p {host} {user} '^$' '^$' '^$'`")
            }
            _ => "Check the user and the password in its URL".to_owned(),
        };
        let reason = if reason.is_empty() { format!("status {status}") } else { reason.to_owned() };
        Error::Setting(format!("access refused by the management API (amqp.management): {reason}. {next}"))
    }
}

fn failed(why: &str) -> Error {
    Error::System(format!(
        "cannot read the management API (amqp.management): {why}. Check its address, and that the plugin rabbitmq_management \
         is enabled"
    ))
}

/// Returns the user in a URL, not decoded.
fn user_in_url(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let (login, _) = rest.split('/').next()?.rsplit_once('@')?;
    login.split(':').next().filter(|user| !user.is_empty())
}

fn percent_encode(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returning_is_total_minus_ready_and_unacknowledged() {
        for (answer, expected) in [
            (r#"{"messages": 12, "messages_ready": 3, "messages_unacknowledged": 4, "name": "q"}"#, Some(5)),
            (r#"{"messages": 2, "messages_ready": 2, "messages_unacknowledged": 0}"#, Some(0)),
            // The counts were taken at different times.
            (r#"{"messages": 2, "messages_ready": 3, "messages_unacknowledged": 0}"#, Some(0)),
            (r#"{"name": "q"}"#, None),
            (r#"{"messages": 2, "messages_ready": 2}"#, None),
        ] {
            assert_eq!(serde_json::from_str::<QueueCounts>(answer).unwrap().returning(), expected, "{answer}");
        }
    }

    #[test]
    fn names_are_percent_encoded_and_users_read_from_urls() {
        assert_eq!(percent_encode("/"), "%2F");
        assert_eq!(percent_encode("orders.retry.1000"), "orders.retry.1000");
        assert_eq!(user_in_url("http://me:se@cret@localhost:15672/api"), Some("me"));
        assert_eq!(user_in_url("https://localhost/a@b"), None);
        assert_eq!(user_in_url("http://:secret@localhost"), None);
    }
}
