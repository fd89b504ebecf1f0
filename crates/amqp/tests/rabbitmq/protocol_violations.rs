//! Peers that violate the protocol.

use crate::fixture::*;
use crate::raw_amqp::{Behavior, peer};
use gristmill_amqp::{Client, Consumer, Queue};
use gristmill_pool::TaskError;
use std::time::Duration;

async fn client_of_peer(behavior: Behavior) -> Client {
    let consumer = Consumer::new("q", "q").handle(|_| async { Ok(()) });
    let uri = format!("amqp://a:b@{}", peer(behavior).await);
    Client::builder(uri).queue(Queue::classic("q")).consumer(consumer).start().await.unwrap()
}

/// Regression: a repeated or skipped delivery tag ended the task, or allocated memory for all tags between, while
/// statistics still reported consuming.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unexpected_delivery_tags_close_only_the_channel() {
    for tags in [vec![1, 2, 2, 3], vec![1, 1 << 36], vec![0], vec![u64::MAX]] {
        let client = client_of_peer(Behavior::DeliveryTags(tags.clone())).await;
        until(&format!("a reconnect after {tags:?}"), async || client.stats().consumers[0].channel_losses >= 2).await;
        assert_eq!(client.stats().connections, 1, "{tags:?}");
        client.shutdown(Duration::from_secs(5)).await;
    }
}

/// Regression: an unexpected close-ok was read as the reply to a close of the client, and the client never reconnected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unexpected_close_ok_is_a_lost_connection() {
    let gate = Gate::default();
    let client = client_of_peer(Behavior::SendsCloseOk(gate.clone())).await;
    assert_eq!(client.stats().connections, 1);
    gate.open(1);
    until("another connection, and it consumes", async || {
        let stats = client.stats();
        stats.connections == 2 && stats.connected && stats.consumers[0].consuming
    })
    .await;
    client.shutdown(Duration::from_secs(5)).await;
}

/// Regression: the loss of its channel made a second dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_message_makes_one_dead_letter_when_its_channel_is_lost() {
    let (published, confirms) = (Log::default(), Gate::default());
    let behavior = Behavior::Delivers {
        // One header, with a value of an unknown type.
        headers: b"\x01a?",
        published: published.clone(),
        is_published: Gate::default(),
        confirms: confirms.clone(),
    };
    let client = client_of_peer(behavior).await;
    until("the redelivery", async || client.stats().consumers[0].received == 2).await;
    confirms.open(10);
    until("it is acknowledged", async || client.stats().consumers[0].acknowledged == 1).await;
    assert_eq!(published.len(), 1);
    client.shutdown(Duration::from_secs(5)).await;
}

/// The queue may be a stream, and a message returned to a stream would reach all its readers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_with_an_offset_is_not_postponed_when_the_queue_kind_is_unknown() {
    let (started, published, is_published) = (Log::default(), Log::default(), Gate::default());
    let headers = b"\x0fx-stream-offsetl\0\0\0\0\0\0\0\x05";
    let confirms = Gate::default();
    // The first consume request is the query for the kind.
    is_published.open(1);
    let behavior = Behavior::Delivers { headers, published: published.clone(), is_published, confirms };
    let consumer = {
        let started = started.clone();
        Consumer::new("q", "q")
            .workers(2)
            .probe_delay(Duration::from_millis(20), Duration::from_millis(100))
            .handle_blocking(move |_| {
                started.add(());
                Err(TaskError::dependency_failed("503"))
            })
    };
    let uri = format!("amqp://a:b@{}", peer(behavior).await);
    let client = Client::builder(uri).queue(Queue::existing("q")).consumer(consumer).start().await.unwrap();
    until("it is tried or moved", async || started.len() >= 15 || published.len() > 0).await;
    assert_eq!(published.len(), 0);
    client.shutdown(Duration::from_secs(5)).await;
}
