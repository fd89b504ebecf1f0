//! Log lines of a client. In its own process, because tracing caches its subscribers for all threads.

use gristmill_amqp::{Client, Consumer, Message, Queue};
use gristmill_broker::{Broker, Proxy};
use gristmill_pool::{Retry, TaskError};
use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const SECONDS: Duration = Duration::from_secs(10);
const QUICK: Retry = Retry::exponential(3, Duration::from_millis(10));

/// Collects log lines of every level.
#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn logs_have_worker_and_trace_and_never_a_password() {
    let broker = Broker::start().unwrap();
    let buffer = LogBuffer::default();
    let writer = buffer.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    // On this thread only, so that all lines are collected.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    runtime.block_on(async {
        let (orders, proxy) = ("logs", Proxy::to(broker.address()).unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let queue = Queue::new(orders);
        let seen = Arc::clone(&log);
        let consumer =
            Consumer::new(orders, "logging").retry(QUICK).workers(5000).prefetch(5000).handle(move |delivery| {
                tracing::info!("line of the handler");
                seen.lock().unwrap().push(delivery.traceparent().map(str::to_owned));
                async move { if delivery.attempt() == 1 { Err(TaskError::transient("not now")) } else { Ok(()) } }
            });
        let uri = proxy.uri(&broker.uri());
        let consuming = Client::builder(uri).queue(queue).consumer(consumer).start().await.unwrap();
        let message = Message::to_queue(orders, "x").header("traceparent", trace);
        consuming.publisher().publish(message).await.unwrap();
        until("both attempts", || log.lock().unwrap().len() == 2).await;
        proxy.cut();
        until("the loss noticed", || !consuming.stats().consumers[0].consuming).await;
        proxy.restore();
        until("it is back", || consuming.stats().consumers[0].consuming).await;
        consuming.shutdown(SECONDS).await;
        let ordered = |name| {
            let consumer = Consumer::new("ordered", name).workers(1).timeout(Duration::from_secs(3600));
            consumer.handle(|_| async { Ok(()) })
        };
        let two = Client::builder(broker.uri()).queue(Queue::new("ordered"));
        let two = two.consumer(ordered("first")).consumer(ordered("second")).start().await.unwrap();
        until("the number of consumers known", || two.stats().consumers.iter().all(|one| one.lag.is_some())).await;
        two.shutdown(SECONDS).await;
        let _ = Client::builder(broker.uri().replace(broker.user(), "unknown")).start().await;
        let unreachable = Client::builder("amqp://127.0.0.1:1").queue(Queue::new("ordered")).consumer(ordered("third"));
        assert!(unreachable.connect_timeout(Duration::from_millis(300)).start().await.is_err());
        // The retry keeps the trace context.
        assert_eq!(*log.lock().unwrap(), [Some(trace.to_owned()), Some(trace.to_owned())]);
    });
    drop(guard);
    let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
    let line = text.lines().find(|line| line.contains("line of the handler")).unwrap();
    assert!(line.contains("worker=") && line.contains("consumer=\"logging\"") && line.contains(trace), "{line}");
    assert!(text.contains("what=\"workers\" requested=5000 used=200"), "{text}");
    assert!(text.contains("what=\"prefetch\" requested=5000 used=1000"), "{text}");
    assert!(text.contains("consuming was interrupted"), "{text}");
    // A lost connection is a warning. The failure of the first one is returned as an error.
    let (startup, lost): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|line| line.contains("not connected")).partition(|line| line.contains("127.0.0.1:1/"));
    assert!(!startup.is_empty() && startup.iter().all(|line| line.contains("DEBUG")), "{startup:?}");
    assert!(lost.iter().any(|line| line.contains("WARN")), "{lost:?}");
    assert!(
        text.contains("several consumers receive messages from a queue that this consumer reads in order"),
        "{text}"
    );
    assert!(text.contains("longer than the broker waits for an acknowledgement"), "{text}");
    assert!(!text.contains(broker.password()), "{text}");
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < Duration::from_secs(90), "timed out waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
