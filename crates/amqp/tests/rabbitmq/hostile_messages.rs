//! Malformed and malicious messages.

use crate::fixture::*;
use crate::raw_amqp::RawClient;
use gristmill_amqp::{Consumer, Error, FieldValue, Headers, Message, Queue, header};
use gristmill_broker::Proxy;
use gristmill_pool::{Retry, TaskError};
use gristmill_store::Store;
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

/// Size of headers that leave no room for those of Gristmill, in bytes.
const MAX_HEADER_BYTES: usize = 130_900;

/// Regression: headers with Gristmill's names were kept whatever their size, and the message could not be republished:
/// a prefetch of such messages stopped the consumer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_with_gristmill_names_do_not_prevent_republishing() {
    let orders = name("forged");
    let queue = Queue::quorum(&orders);
    let text = || FieldValue::from("x".repeat(MAX_HEADER_BYTES));
    let bytes = || FieldValue::Bytes(vec![0xff; MAX_HEADER_BYTES].into());
    let table = || FieldValue::from(Headers::new().with("a", "x".repeat(MAX_HEADER_BYTES)));
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
    for dead_letter in take_all(&dead, bad).await {
        assert_eq!(dead_letter.body(), "never");
        assert_eq!(dead_letter.headers().get(header::REASON), Some(&FieldValue::from("permanent")));
        assert_eq!(dead_letter.headers().get(header::QUEUE), Some(&FieldValue::from(orders.as_str())));
        let error = dead_letter.headers().get(header::ERROR).and_then(FieldValue::as_str).unwrap_or_default();
        assert!(error.contains("never"), "{error}");
    }
}

/// Regression: the broker adds headers (`x-death`) beyond the negotiated frame size; one such message made all
/// consumers of the client reconnect repeatedly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_enlarged_by_the_broker_is_read() {
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
        .consumer(recording(&other, &log))
        .start()
        .await
        .unwrap();
    // Find the largest header that can be published.
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
    assert!(stats.consumers.iter().all(|consumer| consumer.channel_losses == 0), "{stats:?}");
}

/// Regression: with a stream header on an ordinary message, the consumer asked an ordinary queue to resume at an offset
/// after the next cut, and was always refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_offset_header_on_an_ordinary_queue_is_ignored() {
    for kind in [Queue::quorum, Queue::classic] {
        let orders = name("offset");
        let queue = kind(orders.clone());
        let (log, proxy) = (Log::default(), Proxy::to(broker().address()).unwrap());
        let client = gristmill_amqp::Client::builder(proxy.uri(&broker().uri()))
            .queue(queue.clone())
            .consumer(recording(&orders, &log))
            .start()
            .await
            .unwrap();
        fill_with(&queue, vec![Message::to_queue(&orders, "0").header("x-stream-offset", 5i64)]).await;
        log.reaches(1).await;
        until("acknowledged", async || client.stats().consumers[0].acknowledged == 1).await;
        proxy.cut();
        proxy.restore();
        fill_with(&queue, vec![Message::to_queue(&orders, "1")]).await;
        // The cut may lose the acknowledgement; then the first message is redelivered.
        until("the next message", async || log.all().contains(&1)).await;
        client.shutdown(SECONDS).await;
    }
}

/// Regression: the store refused an empty id, and the handler ran until the message was a dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_message_id_counts_as_none() {
    let orders = name("no-id");
    let queue = Queue::quorum(&orders);
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("ids.db")).unwrap();
    let messages = (0..5).map(|number| Message::to_queue(&orders, number.to_string()).id(""));
    fill_with(&queue, messages.collect()).await;
    let log = Log::default();
    let consumer = recording(&orders, &log).dedup_window(Duration::from_secs(60));
    let client = builder().queue(queue).store(store).consumer(consumer).start().await.unwrap();
    until("acknowledged", async || client.stats().consumers[0].acknowledged == 5).await;
    let stats = client.shutdown(SECONDS).await;
    let mut seen = log.all();
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    assert_eq!((stats.consumers[0].skipped, stats.consumers[0].retried, stats.consumers[0].dead_lettered), (0, 0, 0));
}

/// Regression: text that is not UTF-8 grew when written again: a long one could not be republished, and a short one had
/// other bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_of_any_bytes_are_republished_unchanged() {
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
                    // Through the retry queue, and then to the dead letters.
                    match &delivery.body()[..] {
                        b"bad" => Err(TaskError::transient("no")),
                        _ => Ok(()),
                    }
                }
            })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let mut raw = RawClient::new().await;
    let mut sent: Vec<(Vec<u8>, Vec<u8>)> = vec![
        (vec![0xff; 16], (0x80..0x90).collect()),
        (vec![0xff; 255], vec![0xfe; 255]),
        ("ÿ".as_bytes().to_vec(), b"\xff".to_vec()),
        (b"\xff".to_vec(), "ÿ".as_bytes().to_vec()),
        (b"plain".to_vec(), "schön".as_bytes().to_vec()),
    ];
    for (correlation, id) in &sent {
        raw.publish(&orders, correlation, id, b"bad").await;
    }
    for _ in 0..5 {
        raw.publish(&orders, b"c", b"i", b"good").await;
    }
    log.reaches(15).await;
    let dead = format!("{orders}.dead");
    depth_is(&client, &dead, 5).await;
    let mut found = Vec::new();
    for _ in 0..5 {
        found.push(raw.take(&dead).await);
    }
    sent.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, sent);
    client.shutdown(SECONDS).await;
}

/// Regression: two ids that are not UTF-8 were read as equal, and the second message was acknowledged without being
/// handled.
async fn check_both_are_handled(first: &[u8], second: &[u8]) {
    let orders = name("binary-ids");
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("ids.db")).unwrap();
    let log = Log::default();
    let consumer = recording(&orders, &log).dedup_window(Duration::from_secs(60));
    let client = builder().queue(Queue::quorum(&orders)).store(store).consumer(consumer).start().await.unwrap();
    let mut raw = RawClient::new().await;
    for (number, id) in [("0", first), ("1", second), ("2", first)] {
        raw.publish(&orders, b"c", id, number.as_bytes()).await;
    }
    until("acknowledged", async || client.stats().consumers[0].acknowledged == 3).await;
    let stats = client.shutdown(SECONDS).await;
    let mut seen = log.all();
    seen.sort_unstable();
    // The third has the id of the first.
    assert_eq!((seen, stats.consumers[0].skipped), (vec![0, 1], 1), "{first:x?} and {second:x?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_bytes_are_different_ids() {
    check_both_are_handled(b"\xff\x01", b"\xfe\x01").await;
    check_both_are_handled(&[0xff; 16], &[0xff; 15]).await;
}

/// Text that is not UTF-8 is read as Latin-1, in which one byte is the same text as two bytes of UTF-8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn non_utf8_id_differs_from_the_text_it_is_read_as() {
    check_both_are_handled(b"\xff", "ÿ".as_bytes()).await;
}
