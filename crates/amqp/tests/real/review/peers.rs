//! Peers that do not keep to the protocol.

use super::raw::{Manner, peer};
use crate::bed::*;
use gristmill_amqp::{Client, Consumer, Queue};
use gristmill_pool::TaskError;
use std::time::Duration;

async fn client_of_peer(manner: Manner) -> Client {
    let consumer = Consumer::new("q", "q").handle(|_| async { Ok(()) });
    let uri = format!("amqp://a:b@{}", peer(manner).await);
    Client::builder(uri).queue(Queue::classic("q")).consumer(consumer).start().await.unwrap()
}

/// A number twice, and one far ahead: the task ended over it (or took the memory for all between), and statistics went on
/// saying that it consumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_are_not_the_next_cost_the_channel_and_no_more() {
    for numbers in [vec![1, 2, 2, 3], vec![1, 1 << 36], vec![0], vec![u64::MAX]] {
        let client = client_of_peer(Manner::Numbers(numbers.clone())).await;
        until(&format!("it comes back after {numbers:?}"), async || {
            client.stats().consumers[0].interrupted >= 2
        })
        .await;
        assert_eq!(client.stats().connections, 1, "{numbers:?}");
        client.shutdown(Duration::from_secs(5)).await;
    }
}

/// One frame of the other side was taken for our own end: the client never connected again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_that_nobody_asked_for_is_a_lost_connection() {
    let gate = Gate::default();
    let client = client_of_peer(Manner::Closes(gate.clone())).await;
    assert_eq!(client.stats().connections, 1);
    gate.open(1);
    until("another connection, and it consumes", async || {
        let stats = client.stats();
        stats.connections == 2 && stats.connected && stats.consumers[0].consuming
    })
    .await;
    client.shutdown(Duration::from_secs(5)).await;
}

/// The loss of its channel made a second dead letter of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_message_whose_channel_is_lost_is_one_dead_letter() {
    let (published, confirms) = (Log::default(), Gate::default());
    let manner = Manner::Delivers {
        // One, with a value of a kind that is not known.
        headers: b"\x01a?",
        published: published.clone(),
        is_published: Gate::default(),
        confirms: confirms.clone(),
    };
    let client = client_of_peer(manner).await;
    until("it comes again", async || client.stats().consumers[0].received == 2).await;
    confirms.open(10);
    until("it is acknowledged", async || client.stats().consumers[0].acknowledged == 1).await;
    assert_eq!(published.len(), 1);
    client.shutdown(Duration::from_secs(5)).await;
}

/// The queue may be a stream, and what falls back into a stream would come to all who read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_with_an_offset_is_not_postponed_from_a_queue_of_unknown_kind() {
    let (started, published, is_published) = (Log::default(), Log::default(), Gate::default());
    let headers = b"\x0fx-stream-offsetl\0\0\0\0\0\0\0\x05";
    let confirms = Gate::default();
    // The first that is delivered to is the question for the kind.
    is_published.open(1);
    let manner = Manner::Delivers { headers, published: published.clone(), is_published, confirms };
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
    let uri = format!("amqp://a:b@{}", peer(manner).await);
    let client = Client::builder(uri).queue(Queue::existing("q")).consumer(consumer).start().await.unwrap();
    until("it is tried or moved", async || started.len() >= 15 || published.len() > 0).await;
    assert_eq!(published.len(), 0);
    client.shutdown(Duration::from_secs(5)).await;
}
