//! A panic in a consumer's own task. In a process of its own: what is logged there panics.

use gristmill_amqp::{Client, Consumer, Message, Queue};
use gristmill_broker::Broker;
use gristmill_pool::TaskError;
use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

const FAILS: &str = "a message failed; it is tried again";

/// Takes what is logged, and panics as the consumer logs that a message failed: lines are written in its own task.
struct Log;

/// Once: what logs a line keeps it, and writes it again with the next.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let is_it = String::from_utf8_lossy(bytes).contains(FAILS);
        assert!(!is_it || HAS_PANICKED.swap(true, Relaxed), "as it should");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn consumer_whose_task_panics_is_reported_and_its_message_goes_back_to_the_queue() {
    let broker = Broker::start().unwrap();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    // On this thread alone, whose subscriber it is.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let consumer = Consumer::new("q", "ends").handle(|_| async { Err(TaskError::transient("not now")) });
        let builder = Client::builder(broker.uri()).queue(Queue::new("q")).consumer(consumer);
        let client = builder.start().await.unwrap();
        client.check_running().unwrap();
        client.publisher().publish(Message::to_queue("q", "x")).await.unwrap();
        until("its end known", async || client.check_running().is_err()).await;
        let error = client.check_running().unwrap_err().to_string();
        assert!(error.contains("consumer ends has ended by a panic"), "{error}");
        until("its message in the queue", async || {
            client.queue_depth("q").await.is_ok_and(|depth| depth == (1, 0))
        })
        .await;
        client.shutdown(Duration::from_secs(10)).await;
    });
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !is().await {
        assert!(since.elapsed() < Duration::from_secs(90), "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
