//! Publishes the messages of dead letters to their queues again.
//!
//! Owns the connection, which is opened for the first message. A dead letter is deleted when the broker has confirmed
//! its message.

use gristmill_amqp::{Client, Message};
use gristmill_store::Store;
use gristmill_store::dead_letters::DeadLetter;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::super::amqp_common;
use crate::context::Context;
use crate::error::Error;

pub(super) struct Republisher<'a> {
    context: &'a Context,
    /// The connection, or why there is none. A failed connection is not retried for each dead letter.
    connected: Option<Result<(Runtime, Client), String>>,
}

impl<'a> Republisher<'a> {
    pub(super) fn new(context: &'a Context) -> Self {
        Republisher { context, connected: None }
    }

    /// Publishes the message of a dead letter and deletes the dead letter.
    pub(super) fn publish(&mut self, store: &Store, dead_letter: &DeadLetter) -> Result<(Value, String), Error> {
        let DeadLetter { id, queue, .. } = dead_letter;
        let queue = queue.clone().unwrap_or_default();
        let message = message(dead_letter, &queue)?;
        let (runtime, client) = self.connect()?;
        runtime.block_on(client.publisher().publish(message)).map_err(|error| match error {
            gristmill_amqp::Error::Unroutable { .. } => {
                Error::Setting(format!("cannot retry dead letter {id}: there is no queue {queue:?} at the broker"))
            }
            other => amqp_common::failed(other),
        })?;
        let removed = store.dead_letters().remove_published(dead_letter)?;
        let text = match removed {
            true => format!("published dead letter {id} to the queue {queue} again"),
            false => format!(
                "published dead letter {id} to the queue {queue} again; the dead letter changed meanwhile and is kept"
            ),
        };
        Ok((json!({"id": id, "published": queue}), text))
    }

    fn connect(&mut self) -> Result<&(Runtime, Client), Error> {
        if self.connected.is_none() {
            let settings = self.context.settings()?;
            let runtime = amqp_common::runtime(1)?;
            let builder = amqp_common::builder(&settings.amqp, "gristmill dead retry");
            let client = runtime.block_on(builder.start()).map_err(amqp_common::failed);
            let client = client.inspect_err(|error| self.connected = Some(Err(error.to_string())))?;
            self.connected = Some(Ok((runtime, client)));
        }
        match &self.connected {
            Some(Ok(connected)) => Ok(connected),
            Some(Err(why)) => Err(Error::System(why.clone())),
            None => Err(Error::System("there is no connection to the broker".to_owned())),
        }
    }
}

impl Drop for Republisher<'_> {
    fn drop(&mut self) {
        if let Some(Ok((runtime, client))) = self.connected.take() {
            runtime.block_on(amqp_common::close(client));
            runtime.shutdown_background();
        }
    }
}

fn message(dead_letter: &DeadLetter, queue: &str) -> Result<Message, Error> {
    let failed = |why: String| {
        Error::Setting(format!(
            "cannot retry dead letter {}: its message cannot be published: {why}; `gristmill dead show {0}` shows it",
            dead_letter.id
        ))
    };
    let text = dead_letter.checkpoint.as_deref().ok_or_else(|| failed("it is not stored".to_owned()))?;
    let json: Value = serde_json::from_str(text).map_err(|error| failed(error.to_string()))?;
    Message::from_json(&json, queue).map_err(|error| failed(error.to_string()))
}
