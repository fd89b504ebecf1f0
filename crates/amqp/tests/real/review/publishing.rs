//! Publishing, through what closes its channel and what comes back.

use crate::bed::*;
use gristmill_amqp::{Binding, Error, Exchange, Message, Queue};

/// The broker closed the channel while much was being sent: the publisher took its own silence for the end, and every
/// publish after it was an error for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goes_on_when_the_channel_is_closed_in_the_midst_of_sending() {
    let orders = name("midst");
    let client = builder().queue(Queue::classic(&orders)).start().await.unwrap();
    for round in 0..8 {
        let messages = (0..300).map(|number| match number {
            10 => Message::new("no-such-exchange", "", "x"),
            _ => Message::to_queue(&orders, vec![b'x'; 30_000]),
        });
        for (number, result) in client.publisher().publish_all(messages).await.into_iter().enumerate() {
            match result {
                Ok(()) => assert_ne!(number, 10, "round {round}"),
                Err(Error::Channel { code: 404, .. }) => assert_eq!(number, 10, "round {round}"),
                Err(error) => panic!("round {round}, {number}: {error}"),
            }
        }
    }
    assert_eq!(client.stats().connections, 1);
    broker().ctl(["delete_queue", &orders]).unwrap();
}

/// A message that comes back was told from others by where it went and what it says: of two that differ in their headers
/// alone, the one that arrived was an error, and the one that was lost was not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_back_is_told_apart_by_its_headers() {
    let (orders, shop) = (name("kinds"), name("shop"));
    let client = builder()
        .exchange(Exchange::headers(&shop))
        .queue(Queue::quorum(&orders))
        .bind(Binding::new(&orders, &shop, "").argument("x-match", "all").argument("kind", "a"))
        .start()
        .await
        .unwrap();
    let kinds = ["a", "b", "a", "a", "b"];
    let messages = kinds.map(|kind| Message::new(&shop, "", "tick").header("kind", kind));
    let results = client.publisher().publish_all(messages).await;
    for (kind, result) in kinds.into_iter().zip(results) {
        match (kind, result) {
            ("a", Ok(())) | ("b", Err(Error::Unroutable { .. })) => {}
            (kind, result) => panic!("{kind}: {result:?}"),
        }
    }
    depth_is(&client, &orders, 3).await;
}
