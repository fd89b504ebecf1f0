//! Publishing: each message is confirmed, or its error is returned.

use crate::fixture::*;
use gristmill_amqp::{Binding, Client, Error, Exchange, Message, Queue};
use gristmill_broker::Proxy;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_message_is_in_the_queue() {
    let orders = name("there");
    let client = builder().queue(Queue::new(&orders)).start().await.unwrap();
    let message = Message::to_queue(&orders, "hello").id("one").event("greeting").header("n", 17i64);
    client.publisher().publish(message.clone()).await.unwrap();
    let taken = take_all(&orders, 1).await;
    assert_eq!(taken[0].body(), "hello");
    assert_eq!(taken[0].properties(), &message.properties);
    assert_eq!(taken[0].properties().delivery_mode, Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_any_size_are_published() {
    let orders = name("sizes");
    let client = builder().queue(Queue::classic(&orders)).start().await.unwrap();
    let sizes = [0, 1, 4095, 4096, 4097, 131_063, 131_064, 131_065, 1 << 20, (5 << 20) + 17];
    let body = |size: usize| (0..size).map(|at| (at * 31 % 251) as u8).collect::<Vec<u8>>();
    for size in sizes {
        client.publisher().publish(Message::to_queue(&orders, body(size))).await.unwrap();
    }
    let taken = take_all(&orders, sizes.len()).await;
    let mut found: Vec<_> = taken.iter().map(|delivery| delivery.body().len()).collect();
    found.sort_unstable();
    assert_eq!(found, sizes);
    for delivery in taken {
        assert_eq!(delivery.body()[..], body(delivery.body().len())[..]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_gets_its_own_result() {
    let (orders, shop, full) = (name("mixed"), name("shop"), name("full"));
    let client = builder()
        .exchange(Exchange::direct(&shop))
        .queue(Queue::new(&orders))
        .queue(Queue::classic(&full).max_length(2))
        .start()
        .await
        .unwrap();
    let long = "k".repeat(256);
    let messages: Vec<Message> = (0..300)
        .map(|number| match number % 6 {
            1 => Message::new(&shop, "unbound", number.to_string()),
            2 if number < 10 => Message::new("no-such-exchange", "", number.to_string()),
            3 => Message::to_queue(&long, "x"),
            4 => Message::to_queue(&full, number.to_string()),
            _ => Message::to_queue(&orders, number.to_string()),
        })
        .collect();
    let results = client.publisher().publish_all(messages).await;
    let mut arrived = std::collections::BTreeSet::new();
    for (number, result) in results.into_iter().enumerate() {
        match (number % 6, result) {
            (1, Err(Error::Unroutable { exchange, key, .. })) => {
                assert_eq!((exchange.as_str(), key.as_str()), (shop.as_str(), "unbound"));
            }
            (2, Err(Error::Channel { code: 404, text })) if number < 10 => {
                assert!(text.contains("no-such-exchange"));
            }
            (3, Err(Error::Message(_))) => {}
            (4, Ok(())) if number < 16 => {}
            (4, Err(Error::Nacked)) if number >= 16 => {}
            (0 | 2 | 5, Ok(())) => {
                arrived.insert(number);
            }
            (_, other) => panic!("{number}: {other:?}"),
        }
    }
    depth_is(&client, &full, 2).await;
    // The missing exchange closed the channel, and unconfirmed messages were sent again.
    let log = Log::default();
    let consuming = builder().queue(Queue::new(&orders)).consumer(recording(&orders, &log)).start().await.unwrap();
    let seen = async || log.all().into_iter().collect::<std::collections::BTreeSet<_>>();
    until("all of them", async || seen().await.len() == arrived.len()).await;
    assert_eq!(seen().await, arrived);
    consuming.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unroutable_messages_and_large_headers_are_errors() {
    let client = client().await;
    let error = client.publisher().publish(Message::to_queue("no-such-queue", "x")).await.unwrap_err();
    assert!(matches!(error, Error::Unroutable { .. }), "{error}");
    let large = Message::to_queue("x", "x").header("large", "x".repeat(200_000));
    let error = client.publisher().publish(large).await.unwrap_err();
    assert!(error.to_string().contains("headers"), "{error}");
    // The channel still works.
    let orders = name("after");
    fill(&Queue::new(&orders), &orders, 0).await;
    client.publisher().publish(Message::to_queue(&orders, "x")).await.unwrap();
}

/// Messages unconfirmed at a lost connection are sent again: perhaps twice, never missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_when_the_network_is_cut() {
    let orders = name("cut");
    let queue = Queue::new(&orders);
    let proxy = Proxy::to(broker().address()).unwrap();
    let client =
        Client::builder(proxy.uri(&broker().uri())).queue(queue.clone()).max_in_flight(50).start().await.unwrap();
    let publisher = client.publisher();
    let to = orders.clone();
    let publishing = tokio::spawn(async move {
        publisher.publish_all((0..3000).map(|number| Message::to_queue(&to, number.to_string()))).await
    });
    let observer = crate::fixture::client().await;
    for round in 1..=5 {
        until("some more of them", async || observer.queue_depth(&orders).await.unwrap().0 >= round * 100).await;
        proxy.cut();
        proxy.restore();
    }
    for result in publishing.await.unwrap() {
        result.unwrap();
    }
    let log = Log::default();
    let consuming = builder().queue(queue).consumer(recording(&orders, &log)).start().await.unwrap();
    until("all of them", async || {
        let mut seen = log.all();
        seen.sort_unstable();
        seen.dedup();
        seen.len() == 3000
    })
    .await;
    consuming.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_times_out_without_a_confirmation() {
    let orders = name("late");
    let proxy = Proxy::to(broker().address()).unwrap();
    let client = Client::builder(proxy.uri(&broker().uri()))
        .queue(Queue::new(&orders))
        .confirm_timeout(Duration::from_millis(300))
        .max_in_flight(2)
        .start()
        .await
        .unwrap();
    proxy.stall();
    let results = client.publisher().publish_all(vec![Message::to_queue(&orders, "x"); 4]).await;
    assert!(results.iter().all(|result| matches!(result, Err(Error::Unconfirmed(_)))), "{results:?}");
    proxy.flow();
    client.publisher().publish(Message::to_queue(&orders, "y")).await.unwrap();
}

/// The broker's text names no exchange; the message that closed the channel is found by sending one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_message_that_closes_the_channel_fails() {
    let orders = name("rejected");
    let client = builder().queue(Queue::new(&orders)).start().await.unwrap();
    let messages = (0..60).map(|number| {
        let mut message = Message::to_queue(&orders, number.to_string());
        message.properties.user_id = (number % 20 == 7).then(|| "another-user".to_owned());
        message
    });
    let results = client.publisher().publish_all(messages).await;
    for (number, result) in results.into_iter().enumerate() {
        match result {
            Ok(()) => assert_ne!(number % 20, 7),
            Err(Error::Channel { code: 406, .. }) => assert_eq!(number % 20, 7),
            Err(error) => panic!("{number}: {error}"),
        }
    }
}

/// Regression: when the broker closed the channel while many messages were being sent, every later publication failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishing_continues_when_the_channel_is_closed_while_sending() {
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

/// Regression: returned messages were matched by route and body only. Of two that differ in their headers, the wrong
/// one got the error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returned_messages_are_matched_by_their_headers() {
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
