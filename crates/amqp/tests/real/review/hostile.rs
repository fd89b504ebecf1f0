//! Messages that nobody would send who means well.

use super::raw::Hand;
use crate::bed::*;
use gristmill_amqp::{Consumer, Error, FieldValue, Headers, Message, Queue, header};
use gristmill_broker::Proxy;
use gristmill_pool::{Retry, TaskError};
use gristmill_store::Store;
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

/// To the brim, so that there is no room for ours.
const BRIM: usize = 130_900;

/// Headers that look like ours were kept whatever they were, and then there was no room: as many of such messages as are sent
/// ahead, and the consumer stood still for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_by_our_names_cannot_make_a_message_unmovable() {
    let orders = name("forged");
    let queue = Queue::quorum(&orders);
    let text = || FieldValue::from("x".repeat(BRIM));
    let bytes = || FieldValue::Bytes(vec![0xff; BRIM].into());
    let table = || FieldValue::from(Headers::new().with("a", "x".repeat(BRIM)));
    let array = || FieldValue::Array(vec![text()]);
    let mut messages = Vec::new();
    for (name, value) in [
        ("x-gristmill-note", text()),
        (header::EXPIRES_AT, table()),
        (header::EXPIRES_AT, text()),
        (header::FAILED, array()),
        (header::REASON, table()),
        (header::ERROR, bytes()),
        (header::CONSUMER, text()),
        (header::QUEUE, table()),
        (header::ROUTING_KEY, text()),
        (header::EXCHANGE, bytes()),
        (header::USER, text()),
        (header::HEADERS_DROPPED, table()),
    ] {
        for what in ["never", "later"] {
            messages.push(Message::to_queue(&orders, what).header(name, value.clone()));
        }
    }
    let bad = messages.len() / 2;
    messages.extend((0..10).map(|_| Message::to_queue(&orders, "good")));
    fill_with(&queue, messages).await;
    let log = Log::default();
    let consumer = {
        let log = log.clone();
        Consumer::new(&orders, "forged")
            .workers(2)
            .prefetch(4)
            .retry(Retry::exponential(3, Duration::from_millis(10)))
            .handle(move |delivery| {
                let result = match &delivery.body()[..] {
                    b"never" => Err(TaskError::permanent("never")),
                    b"later" if delivery.attempt() == 1 => Err(TaskError::transient("later")),
                    _ => {
                        log.add(delivery.body().clone());
                        Ok(())
                    }
                };
                async { result }
            })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let done = log.reaches(10 + bad).await;
    assert_eq!(done.iter().filter(|body| &body[..] == b"good").count(), 10);
    let dead = format!("{orders}.dead");
    depth_is(&client, &dead, bad as u32).await;
    client.shutdown(SECONDS).await;
    for letter in take_all(&dead, bad).await {
        assert_eq!(letter.body(), "never");
        assert_eq!(letter.headers().get(header::REASON), Some(&FieldValue::from("permanent")));
        assert_eq!(letter.headers().get(header::QUEUE), Some(&FieldValue::from(orders.as_str())));
        let error = letter.headers().get(header::ERROR).and_then(FieldValue::as_str).unwrap_or_default();
        assert!(error.contains("never"), "{error}");
    }
}

/// The broker adds headers of its own (`x-death`) and does not look whether they still fit into what was agreed on: one such
/// message, and all consumers of the client connected again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_grew_at_the_broker_is_read() {
    let (first, grown, other) = (name("first"), name("grown"), name("other"));
    let (sizes, log) = (Log::default(), Log::default());
    let consumer = {
        let sizes = sizes.clone();
        Consumer::new(&grown, "grown").handle(move |delivery| {
            let size = delivery.headers().get("h").and_then(FieldValue::as_str).map(str::len);
            sizes.add((size, delivery.headers().get("x-death").is_some()));
            async { Ok(()) }
        })
    };
    let client = builder()
        .queue(Queue::classic(&grown))
        .queue(
            Queue::classic(&first)
                .argument("x-message-ttl", 1i64)
                .argument("x-dead-letter-exchange", "")
                .argument("x-dead-letter-routing-key", grown.as_str()),
        )
        .queue(Queue::classic(&other))
        .consumer(consumer)
        .consumer(noting(&other, &log))
        .start()
        .await
        .unwrap();
    // The largest that can be published.
    let mut size = 131_072;
    loop {
        let message = Message::to_queue(&first, "x").header("h", "x".repeat(size));
        match client.publisher().publish(message).await {
            Err(Error::Message(_)) => size -= 1,
            result => break result.unwrap(),
        }
    }
    assert_eq!(sizes.reaches(1).await, [(Some(size), true)]);
    for number in 0..20 {
        client.publisher().publish(Message::to_queue(&other, number.to_string())).await.unwrap();
    }
    log.reaches(20).await;
    let stats = client.shutdown(SECONDS).await;
    assert_eq!(stats.connections, 1);
    assert!(stats.consumers.iter().all(|consumer| consumer.interrupted == 0), "{stats:?}");
}

/// A header that only streams have: after the next cut the consumer asked an ordinary queue to go on from there, was refused,
/// and never came back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offset_on_an_ordinary_message_means_nothing() {
    for kind in [Queue::quorum, Queue::classic] {
        let orders = name("offset");
        let queue = kind(orders.clone());
        let (log, proxy) = (Log::default(), Proxy::to(broker().address()).unwrap());
        let client = gristmill_amqp::Client::builder(proxy.uri(&broker().uri()))
            .queue(queue.clone())
            .consumer(noting(&orders, &log))
            .start()
            .await
            .unwrap();
        fill_with(&queue, vec![Message::to_queue(&orders, "0").header("x-stream-offset", 5i64)]).await;
        log.reaches(1).await;
        until("acknowledged", async || client.stats().consumers[0].acknowledged == 1).await;
        proxy.cut();
        proxy.restore();
        fill_with(&queue, vec![Message::to_queue(&orders, "1")]).await;
        // The cut may take the acknowledgement with it; then the first message comes again.
        until("the next message", async || log.all().contains(&1)).await;
        client.shutdown(SECONDS).await;
    }
}

/// An empty id is none. The store refused to remember it, and the handler ran again and again until all were dead letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_id_is_none() {
    let orders = name("no-id");
    let queue = Queue::quorum(&orders);
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("seen.db")).unwrap();
    let messages = (0..5).map(|number| Message::to_queue(&orders, number.to_string()).id(""));
    fill_with(&queue, messages.collect()).await;
    let log = Log::default();
    let consumer = noting(&orders, &log).dedup_window(Duration::from_secs(60));
    let client = builder().queue(queue).store(store).consumer(consumer).start().await.unwrap();
    until("acknowledged", async || client.stats().consumers[0].acknowledged == 5).await;
    let stats = client.shutdown(SECONDS).await;
    let mut seen = log.all();
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    assert_eq!(
        (stats.consumers[0].skipped, stats.consumers[0].retried, stats.consumers[0].rejected),
        (0, 0, 0)
    );
}

/// Text that is no UTF-8 grew when it was written again: a long one could not be moved at all, and a short one came out as
/// other bytes, which no reader in another language found again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_of_any_bytes_are_moved_as_they_are() {
    let orders = name("bytes");
    let queue = Queue::quorum(&orders);
    let log = Log::default();
    let consumer = {
        let log = log.clone();
        Consumer::new(&orders, "bytes")
            .workers(2)
            .prefetch(4)
            .retry(Retry::exponential(2, Duration::from_millis(10)))
            .handle(move |delivery| {
                log.add(delivery.body().clone());
                async move {
                    // By the waiting room, and then to the dead letters.
                    match &delivery.body()[..] {
                        b"bad" => Err(TaskError::transient("no")),
                        _ => Ok(()),
                    }
                }
            })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let mut hand = Hand::new().await;
    let mut sent: Vec<(Vec<u8>, Vec<u8>)> = vec![
        (vec![0xff; 16], (0x80..0x90).collect()),
        (vec![0xff; 255], vec![0xfe; 255]),
        ("ÿ".as_bytes().to_vec(), b"\xff".to_vec()),
        (b"\xff".to_vec(), "ÿ".as_bytes().to_vec()),
        (b"plain".to_vec(), "schön".as_bytes().to_vec()),
    ];
    for (correlation, id) in &sent {
        hand.publish(&orders, correlation, id, b"bad").await;
    }
    for _ in 0..5 {
        hand.publish(&orders, b"c", b"i", b"good").await;
    }
    log.reaches(15).await;
    let dead = format!("{orders}.dead");
    depth_is(&client, &dead, 5).await;
    let mut found = Vec::new();
    for _ in 0..5 {
        found.push(hand.take(&dead).await);
    }
    sent.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, sent);
    client.shutdown(SECONDS).await;
}

/// Two ids that were no UTF-8 became the same, and the second message was acknowledged without having been run.
async fn both_are_run(first: &[u8], second: &[u8]) {
    let orders = name("binary-ids");
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("seen.db")).unwrap();
    let log = Log::default();
    let consumer = noting(&orders, &log).dedup_window(Duration::from_secs(60));
    let client =
        builder().queue(Queue::quorum(&orders)).store(store).consumer(consumer).start().await.unwrap();
    let mut hand = Hand::new().await;
    for (number, id) in [("0", first), ("1", second), ("2", first)] {
        hand.publish(&orders, b"c", id, number.as_bytes()).await;
    }
    until("acknowledged", async || client.stats().consumers[0].acknowledged == 3).await;
    let stats = client.shutdown(SECONDS).await;
    let mut seen = log.all();
    seen.sort_unstable();
    // The third has the first one's id.
    assert_eq!((seen, stats.consumers[0].skipped), (vec![0, 1], 1), "{first:x?} and {second:x?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_bytes_are_different_ids() {
    both_are_run(b"\xff\x01", b"\xfe\x01").await;
    both_are_run(&[0xff; 16], &[0xff; 15]).await;
}

/// What is not UTF-8 is read as Latin-1, and one byte then says what two bytes of another id say in UTF-8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_of_bytes_is_not_that_of_the_text_it_is_read_as() {
    both_are_run(b"\xff", "ÿ".as_bytes()).await;
}
