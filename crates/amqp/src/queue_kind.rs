//! Finds the kind of a queue that exists: classic, quorum or stream.
//!
//! AMQP 0-9-1 cannot query it. RabbitMQ refuses a consumer whose arguments the queue's kind does not have, and names
//! the kind in its reply. No kind has both arguments sent here, so no consumer is ever added. Only the permission to
//! read is needed, which a consumer has anyway. Each query is one error in the broker's log.

use crate::{
    error::Error,
    net::{Channel, Connection},
    wire::{method::Outgoing, table::Headers},
};
use std::time::Duration;

/// Returns the kind of a queue; none if the broker does not name it, or the queue cannot be consumed from.
pub(crate) async fn find(connection: &Connection, queue: &str) -> Result<Option<&'static str>, Error> {
    let mut channel = Channel::open(connection).await?;
    // A broker that knows neither argument would add the consumer: it then holds one message briefly.
    channel.call(&Outgoing::Qos { prefetch: 1 }).await?;
    let arguments = Headers::new().with("x-stream-offset", "next").with("x-priority", 0_i64);
    let consume = Outgoing::Consume { queue, tag: "gristmill.kind", flags: 0, arguments: &arguments };
    match channel.call(&consume).await {
        Err(Error::Channel { text, .. }) => Ok(named_in(&text)),
        Err(error) => Err(error),
        Ok(_) => {
            channel.close(Duration::from_secs(5)).await;
            Ok(None)
        }
    }
}

/// Kind named in the broker's text, as in `… of queue type rabbit_stream_queue`.
fn named_in(text: &str) -> Option<&'static str> {
    let (_, kind) = text.rsplit_once(" of queue type ")?;
    ["classic", "quorum", "stream"].into_iter().find(|known| kind.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_read_from_the_refusal_of_a_consumer() {
        let text = |kind: &str| {
            format!("PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'a stream' in vhost '/'{kind}")
        };
        for kind in ["classic", "quorum", "stream"] {
            assert_eq!(named_in(&text(&format!(" of queue type rabbit_{kind}_queue"))), Some(kind));
        }
        // The name of a queue is not its kind.
        assert_eq!(named_in(&text("")), None);
        assert_eq!(named_in(&text(" of queue type rabbit_mqtt_qos0_queue")), None);
    }
}
