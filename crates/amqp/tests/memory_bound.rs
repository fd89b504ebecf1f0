//! Memory of a consumer does not grow with the length of its queue. In its own process, so that nothing else is
//! measured.

use gristmill_amqp::{Client, Consumer, Message, Queue};
use gristmill_broker::Broker;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Prefetch of the consumer.
const PREFETCH: usize = 500;
/// Allowance for everything else, in MiB.
const SLACK: usize = 16;

/// Resident memory of this process, in MiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() / 1024
}

/// Handles a queue that is much longer than the prefetch, and checks the peak memory.
async fn flood(broker: &Broker, messages: usize, size: usize) {
    let name = format!("flood-{size}");
    let queue = Queue::quorum(&name);
    let publishing = Client::builder(broker.uri()).queue(queue.clone()).start().await.unwrap();
    let publisher = publishing.publisher();
    for _ in 0..messages / 250 {
        for result in publisher.publish_all(vec![Message::to_queue(&name, vec![b'x'; size]); 250]).await {
            result.unwrap();
        }
    }
    let before = resident();
    let (count, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let consumer = {
        let (count, most) = (Arc::clone(&count), Arc::clone(&most));
        Consumer::new(&name, "flood").workers(50).prefetch(PREFETCH).handle(move |_| {
            let count = count.fetch_add(1, Relaxed);
            if count % 200 == 0 {
                most.fetch_max(resident(), Relaxed);
            }
            // Slower than messages arrive.
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok(())
            }
        })
    };
    let client = Client::builder(broker.uri()).queue(queue).consumer(consumer).start().await.unwrap();
    while client.stats().consumers[0].acknowledged < messages as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (most, passed) = (most.load(Relaxed), (messages * size) >> 20);
    println!("{size} bytes: {before} MiB before, {most} MiB at most, {passed} MiB passed through");
    let bound = before + ((PREFETCH * size) >> 20) + SLACK;
    assert!(most < bound, "{size} bytes: {before} MiB before, {most} MiB at most");
    client.shutdown(Duration::from_secs(10)).await;
}

/// Small bodies, which are copied out of the read buffer, and larger ones, which keep their part of it.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded_by_the_prefetch() {
    let broker = Broker::start().unwrap();
    flood(&broker, 50_000, 4096).await;
    flood(&broker, 7_500, 20_000).await;
}
