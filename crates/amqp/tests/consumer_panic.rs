//! A panic in the task of a consumer. In its own process, because its log writer panics.

use gristmill_amqp::{Client, Consumer, Message, Queue};
use gristmill_broker::Broker;
use gristmill_pool::TaskError;
use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

const FAILS: &str = "a message failed; it will be retried";

/// Log writer that panics on the line about a failed message, which is written in the consumer's task.
struct Log;

/// Panics once: tracing keeps a line that was not written and writes it with the next.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let is_failure = String::from_utf8_lossy(bytes).contains(FAILS);
        assert!(!is_failure || HAS_PANICKED.swap(true, Relaxed), "expected panic");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn panicked_consumer_is_reported_and_its_message_is_requeued() {
    let broker = Broker::start().unwrap();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    // On this thread only, which has the subscriber.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let consumer = Consumer::new("q", "ends").handle(|_| async { Err(TaskError::transient("not now")) });
        let builder = Client::builder(broker.uri()).queue(Queue::new("q")).consumer(consumer);
        let client = builder.start().await.unwrap();
        client.check_running().unwrap();
        client.publisher().publish(Message::to_queue("q", "x")).await.unwrap();
        until("the panic to be reported", async || client.check_running().is_err()).await;
        let error = client.check_running().unwrap_err().to_string();
        assert!(error.contains("consumer ends panicked"), "{error}");
        until("its message in the queue", async || client.queue_depth("q").await.is_ok_and(|depth| depth == (1, 0)))
            .await;
        client.shutdown(Duration::from_secs(10)).await;
    });
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !is().await {
        assert!(since.elapsed() < Duration::from_secs(90), "timed out waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
