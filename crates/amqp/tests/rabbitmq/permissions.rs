//! Users with restricted permissions.

use crate::fixture::*;
use gristmill_amqp::{Binding, Client, Consumer, Error, Exchange, Message, Offset, Queue};
use gristmill_pool::{Retry, TaskError};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

/// Adds a user with permissions to configure, write and read, and returns its URI.
fn user(what: &str, permissions: [&str; 3]) -> String {
    let user = name(what);
    broker().ctl(["add_user", &user, "secret"]).unwrap();
    broker().ctl(["set_permissions", "-p", "/", &user, permissions[0], permissions[1], permissions[2]]).unwrap();
    format!("amqp://{user}:secret@{}/%2f", broker().address())
}

fn failing(queue: &str) -> Consumer {
    Consumer::new(queue, "failing")
        .workers(2)
        .retry(Retry::exponential(2, Duration::from_millis(100)))
        .handle(|_| async { Err(TaskError::transient("not now")) })
}

/// Declares what a consumer needs, as a user who may.
async fn declared(queue: &str) -> Client {
    let client = builder().queue(Queue::quorum(queue)).consumer(failing(queue)).start().await.unwrap();
    client.publisher().publish(Message::to_queue(queue, "first")).await.unwrap();
    depth_is(&client, &format!("{queue}.dead"), 1).await;
    client.shutdown(SECONDS).await;
    crate::fixture::client().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_without_configure_permission_consumes_retries_and_dead_letters() {
    let orders = name("no-configure");
    let helper = declared(&orders).await;
    let uri = user("reader", ["^$", ".*", ".*"]);
    for queue in [Queue::existing(&orders), Queue::quorum(&orders)] {
        let client = Client::builder(&uri).queue(queue).consumer(failing(&orders)).start().await.unwrap();
        helper.publisher().publish(Message::to_queue(&orders, "second")).await.unwrap();
        until("a dead letter", async || client.stats().consumers[0].dead_lettered == 1).await;
        assert_eq!(client.stats().consumers[0].retried, 1);
        client.shutdown(SECONDS).await;
    }
    depth_is(&helper, &format!("{orders}.dead"), 3).await;
    helper.shutdown(SECONDS).await;
}

async fn refused(uri: &str, queue: Queue, consumer: Consumer) -> String {
    match Client::builder(uri).queue(queue).consumer(consumer).start().await {
        Err(error @ Error::MissingPermissions(_)) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it started"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permissions_are_named_at_start_with_the_command_that_grants_them() {
    let orders = name("no-permissions");
    let helper = builder().queue(Queue::quorum(&orders)).start().await.unwrap();
    let uri = user("unprivileged", ["^$", "^$", ".*"]);
    let text = refused(&uri, Queue::existing(&orders), failing(&orders)).await;
    for expected in [
        format!("configure on exchange {orders}.dead, which does not exist"),
        format!("configure on queue {orders}.dead, which does not exist"),
        format!("configure on queue {orders}.retry.125, which does not exist"),
        "write on exchange amq.default".to_owned(),
        "rabbitmqctl set_permissions -p '/' 'unprivileged-".to_owned(),
        format!("'^({orders}\\.dead|{orders}\\.retry\\.125)$' '^(amq\\.default|{orders}\\.dead)$' '^({orders}|"),
    ] {
        assert!(text.contains(&expected), "no {expected:?} in {text}");
    }
    // With the permissions that the command grants, it starts.
    let command = text.split("rabbitmqctl ").nth(1).unwrap().split(" (it replaces").next().unwrap();
    let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
    broker().ctl(&words).unwrap();
    let text = refused_or_started(&uri, &orders).await;
    assert!(text.is_empty(), "{text}");
    helper.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_configure_permission_is_named_for_a_user_who_may_bind() {
    let orders = name("no-dead");
    let helper = builder().queue(Queue::quorum(&orders)).start().await.unwrap();
    let uri = user("no-configure", ["^$", ".*", ".*"]);
    // The queue alone is not enough, because dead letters are published to the exchange.
    for has_queue in [false, true] {
        if has_queue {
            fill(&Queue::quorum(format!("{orders}.dead")), "unused", 0).await;
        }
        let text = refused(&uri, Queue::existing(&orders), failing(&orders)).await;
        let expected = format!("configure on exchange {orders}.dead, which does not exist");
        assert!(text.contains(&expected) && text.contains("rabbitmqctl set_permissions"), "{text}");
        let names_queue = text.contains(&format!("configure on queue {orders}.dead"));
        assert_eq!(names_queue, !has_queue, "{text}");
    }
    helper.shutdown(SECONDS).await;
}

async fn refused_or_started(uri: &str, orders: &str) -> String {
    match Client::builder(uri).queue(Queue::existing(orders)).consumer(failing(orders)).start().await {
        Err(error) => error.to_string(),
        Ok(client) => {
            client.publisher().publish(Message::to_queue(orders, "x")).await.unwrap();
            until("a dead letter", async || client.stats().consumers[0].dead_lettered == 1).await;
            client.shutdown(SECONDS).await;
            String::new()
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_read_or_bind_permission_is_named() {
    let orders = name("no-read");
    let helper = declared(&orders).await;
    let uri = user("writer", [".*", ".*", "\\.dead$"]);
    let text = refused(&uri, Queue::existing(&orders), failing(&orders)).await;
    assert!(text.contains(&format!("read on queue {orders}")), "{text}");
    let uri = user("binder", ["^$", "^(amq.default|.*\\.dead)$", ".*"]);
    let client = Client::builder(&uri)
        .exchange(Exchange::existing("amq.topic"))
        .queue(Queue::existing(&orders))
        .bind(Binding::new(&orders, "amq.topic", "a.*"))
        .consumer(failing(&orders));
    let text = client.start().await.err().unwrap().to_string();
    assert!(text.contains(&format!("write on queue {orders}")), "{text}");
    helper.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_retry_queue_is_named_when_nothing_is_declared() {
    let orders = name("no-retry-queue");
    let helper = builder().queue(Queue::quorum(&orders)).start().await.unwrap();
    let uri = user("elsewhere", ["^$", ".*", ".*"]);
    let consumer = failing(&orders).dead_letters("amq.fanout", "");
    let text = refused(&uri, Queue::existing(&orders), consumer).await;
    assert!(text.contains(&format!("configure on queue {orders}.retry.125")), "{text}");
    helper.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_stream_is_recognised_without_configure_permission() {
    let (orders, uri) = (name("kind"), user("kind-reader", ["^$", ".*", ".*"]));
    let queue_of = |kind| format!("{orders}.{kind}");
    for queue in
        [Queue::stream(queue_of("stream")), Queue::quorum(queue_of("quorum")), Queue::classic(queue_of("classic"))]
    {
        fill(&queue, "unused", 0).await;
    }
    for (kind, is_stream) in [("stream", true), ("quorum", false), ("classic", false)] {
        let start = |offset: Option<Offset>| {
            let consumer = recording(&queue_of(kind), &Log::default()).workers(1).dead_letters("amq.fanout", "");
            let consumer = offset.into_iter().fold(consumer, Consumer::offset);
            Client::builder(&uri).queue(Queue::existing(queue_of(kind))).consumer(consumer).start()
        };
        let client = start(None).await.unwrap();
        until("a message", async || {
            let message = Message::to_queue(queue_of(kind), "1");
            client.publisher().publish(message).await.unwrap();
            client.stats().consumers[0].handled > 0
        })
        .await;
        assert_eq!(client.stats().consumers[0].position.is_some(), is_stream, "{kind}");
        client.shutdown(SECONDS).await;
        match start(Some(Offset::First)).await {
            Ok(client) => assert!(is_stream, "{:?}", client.shutdown(SECONDS).await),
            Err(error) => {
                let text = format!("queue {} is a {kind} queue", queue_of(kind));
                assert!(!is_stream && error.to_string().contains(&text), "{error}");
            }
        }
    }
}
