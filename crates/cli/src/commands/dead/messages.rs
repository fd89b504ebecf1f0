//! Dead letters of messages, published to their queues again.
//!
//! Owns the connection, which is made for the first of them. A letter is removed when the broker has confirmed its message.

use gristmill_amqp::{Client, Message};
use gristmill_store::Store;
use gristmill_store::dead_letters::DeadLetter;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::super::amqp_common;
use crate::context::Context;
use crate::error::Error;

/// Publishes messages of dead letters.
pub(super) struct Republisher<'a> {
    context: &'a Context,
    /// Why there is no connection, if it was tried in vain: it is not tried for each letter.
    connected: Option<Result<(Runtime, Client), String>>,
}

impl<'a> Republisher<'a> {
    pub(super) fn new(context: &'a Context) -> Self {
        Republisher { context, connected: None }
    }

    /// Publishes the message of a letter and removes the letter.
    pub(super) fn publish(&mut self, store: &Store, letter: &DeadLetter) -> Result<(Value, String), Error> {
        let DeadLetter { id, queue, .. } = letter;
        let queue = queue.clone().unwrap_or_default();
        let message = message(letter, &queue)?;
        let (runtime, client) = self.connect()?;
        runtime.block_on(client.publisher().publish(message)).map_err(|error| match error {
            gristmill_amqp::Error::Unroutable { .. } => Error::Setting(format!(
                "dead letter {id} stays: there is no queue {queue:?} at the broker to publish its message to"
            )),
            other => amqp_common::failed(other),
        })?;
        let removed = store.dead_letters().remove_published(letter)?;
        let text = match removed {
            true => format!("dead letter {id} is in the queue {queue} again"),
            false => format!(
                "dead letter {id} is in the queue {queue} again; the letter changed meanwhile, and stays"
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
            None => Err(Error::System("there is no connection".to_owned())),
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

fn message(letter: &DeadLetter, queue: &str) -> Result<Message, Error> {
    let wrong = |why: String| {
        Error::Setting(format!(
            "dead letter {} stays: its message cannot be published again: {why}; `gristmill dead show {0}` shows it",
            letter.id
        ))
    };
    let text = letter.checkpoint.as_deref().ok_or_else(|| wrong("the letter does not hold it".to_owned()))?;
    let json: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    Message::from_json(&json, queue).map_err(|error| wrong(error.to_string()))
}
