//! Messages that become dead letters.

use crate::fixture::*;
use gristmill_amqp::{Consumer, Delivery, Message, Queue, header};
use gristmill_pool::{Retry, TaskError};
use gristmill_store::{Store, dead_letters::DeadLetterFilter};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);
const QUICK: Retry = Retry::exponential(3, Duration::from_millis(10));

fn header_of(delivery: &Delivery, name: &str) -> String {
    delivery.headers().get(name).map(ToString::to_string).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_has_the_reason_in_headers() {
    #[derive(serde::Deserialize)]
    struct Order {
        what: String,
    }
    let orders = name("dead");
    let queue = Queue::new(&orders);
    let texts = [r#"{"what":"transient"}"#, r#"{"what":"permanent"}"#, r#"{"what":"panic"}"#, "not JSON", "{}"];
    let messages = texts.iter().enumerate().map(|(id, text)| Message::to_queue(&orders, *text).id(id.to_string()));
    fill_with(&queue, messages.collect()).await;
    let consumer =
        Consumer::new(&orders, "rejecting").workers(2).retry(QUICK).handle_json(|order: Order, _| async move {
            match order.what.as_str() {
                "transient" => Err(TaskError::transient("still not")),
                "permanent" => Err(TaskError::permanent("never")),
                _ => panic!("oh no"),
            }
        });
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let dead = format!("{orders}.dead");
    depth_is(&client, &dead, 5).await;
    let stats = client.shutdown(SECONDS).await;
    let stats = &stats.consumers[0];
    assert_eq!((stats.dead_lettered, stats.retried, stats.panicked), (5, 2, 1));
    let mut dead_letters = take_all(&dead, 5).await;
    dead_letters.sort_by_key(|dead_letter| dead_letter.message_id().unwrap().to_owned());
    let reasons: Vec<_> = dead_letters
        .iter()
        .map(|dead_letter| (header_of(dead_letter, header::REASON), header_of(dead_letter, header::FAILED)))
        .collect();
    let expected = [("attempts", "3"), ("permanent", "1"), ("permanent", "1"), ("permanent", "1"), ("permanent", "1")];
    assert_eq!(reasons, expected.map(|(reason, failed)| (reason.to_owned(), failed.to_owned())));
    let errors: Vec<_> = dead_letters.iter().map(|dead_letter| header_of(dead_letter, header::ERROR)).collect();
    for (error, part) in errors.iter().zip(["still not", "never", "oh no", "cannot decode", "missing field"]) {
        assert!(error.contains(part), "{error}");
    }
    for (dead_letter, text) in dead_letters.iter().zip(texts) {
        assert_eq!(dead_letter.body(), text);
        assert_eq!(header_of(dead_letter, header::QUEUE), orders);
        assert_eq!(header_of(dead_letter, header::CONSUMER), "rejecting");
        assert!(!header_of(dead_letter, header::FAILED_AT).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_is_also_stored_when_configured() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("dead_letters.db")).unwrap();
    let orders = name("kept");
    let queue = Queue::new(&orders);
    let bytes: &[u8] = &[0xff, 0xfe];
    fill_with(
        &queue,
        vec![
            Message::to_queue(&orders, "text").id("one").header("mine", 17i64),
            Message::to_queue(&orders, bytes).id("two"),
        ],
    )
    .await;
    let consumer =
        Consumer::new(&orders, "keeps").store_dead_letters().handle_blocking(|_| Err(TaskError::permanent("refused")));
    let client = builder().queue(queue).consumer(consumer).store(store.clone()).start().await.unwrap();
    depth_is(&client, &format!("{orders}.dead"), 2).await;
    client.shutdown(SECONDS).await;
    let mut dead_letters = store.dead_letters().list(&DeadLetterFilter::default(), None, 10).unwrap().items;
    dead_letters.sort_by_key(|dead_letter| dead_letter.task_id.clone());
    assert_eq!(dead_letters.len(), 2);
    assert_eq!(dead_letters[0].task_type, format!("amqp:{orders}"));
    assert!(dead_letters[0].failure_reason.contains("refused"));
    let text = format!("{:?}{:?}", dead_letters[0].checkpoint, dead_letters[1].checkpoint);
    assert!(text.contains("mine") && text.contains("fffe"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_go_to_a_configured_target() {
    let (orders, dead_queue) = (name("own"), name("dead-queue"));
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 3).await;
    let consumer = Consumer::new(&orders, "own")
        .dead_letters("", &dead_queue)
        .handle(|_| async { Err(TaskError::permanent("no")) });
    let client = builder().queue(queue).queue(Queue::classic(&dead_queue)).consumer(consumer).start().await.unwrap();
    depth_is(&client, &dead_queue, 3).await;
    assert!(client.queue_depth(&format!("{orders}.dead")).await.is_err());
    client.shutdown(SECONDS).await;
}

/// A dead letter that cannot be routed is not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_is_kept_until_its_queue_exists() {
    let (orders, dead_queue) = (name("unroutable"), name("dead-queue"));
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 2).await;
    let log = Log::default();
    let consumer = {
        let log = log.clone();
        Consumer::new(&orders, "unroutable").dead_letters("", &dead_queue).handle(move |delivery| {
            log.add(number(&delivery));
            async { Err(TaskError::permanent("no")) }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    log.reaches(2).await;
    // The dead-letter queue exists now.
    let helper = builder().queue(Queue::classic(&dead_queue)).start().await.unwrap();
    depth_is(&helper, &dead_queue, 2).await;
    client.shutdown(SECONDS).await;
    depth_is(&helper, &orders, 0).await;
}

/// One message in a hundred fails: each is tried up to its limit, becomes a dead letter, and affects no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_messages_do_not_affect_others() {
    let orders = name("poison");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 5000).await;
    let (tries, done) = (Log::default(), Log::default());
    let consumer = {
        let (tries, done) = (tries.clone(), done.clone());
        Consumer::new(&orders, "poison").workers(8).retry(QUICK).handle(move |delivery| {
            let (tries, done) = (tries.clone(), done.clone());
            async move {
                let number = number(&delivery);
                match number % 300 {
                    0 => {
                        tries.add(number);
                        Err(TaskError::transient("bad"))
                    }
                    100 => {
                        tries.add(number);
                        Err(TaskError::permanent("worse"))
                    }
                    200 => {
                        tries.add(number);
                        panic!("worst")
                    }
                    _ => {
                        done.add(number);
                        Ok(())
                    }
                }
            }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let bad: Vec<usize> = (0..5000).filter(|number| number % 100 == 0).collect();
    let dead = format!("{orders}.dead");
    depth_is(&client, &dead, bad.len() as u32).await;
    let mut good = done.reaches(5000 - bad.len()).await;
    good.sort_unstable();
    assert_eq!(good, (0..5000).filter(|number| number % 100 != 0).collect::<Vec<_>>());
    client.shutdown(SECONDS).await;
    let mut tries = tries.all();
    tries.sort_unstable();
    let tries_of = |number: usize| if number.is_multiple_of(300) { 3 } else { 1 };
    let expected: Vec<usize> = bad.iter().flat_map(|number| vec![*number; tries_of(*number)]).collect();
    assert_eq!(tries, expected);
    let mut dead_letters: Vec<usize> = take_all(&dead, bad.len()).await.iter().map(number).collect();
    dead_letters.sort_unstable();
    assert_eq!(dead_letters, bad);
    let observer = self::client().await;
    assert_eq!(observer.queue_depth(&orders).await.unwrap().0, 0);
}

/// Its headers leave no room for those of Gristmill, so it is republished without its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_drops_headers_that_do_not_fit() {
    let orders = name("full-headers");
    let queue = Queue::new(&orders);
    fill_with(&queue, vec![Message::to_queue(&orders, "body").header("full", "x".repeat(130_900))]).await;
    let consumer = Consumer::new(&orders, "full").handle(|_| async { Err(TaskError::permanent("no")) });
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let dead = format!("{orders}.dead");
    depth_is(&client, &dead, 1).await;
    client.shutdown(SECONDS).await;
    let dead_letters = take_all(&dead, 1).await;
    assert_eq!(dead_letters[0].body(), "body");
    assert_eq!(header_of(&dead_letters[0], header::HEADERS_DROPPED), "true");
    assert_eq!(header_of(&dead_letters[0], header::REASON), "permanent");
}
