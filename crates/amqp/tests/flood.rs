//! Memory under a flood: what a consumer holds does not grow with what waits for it. In a process of its own, so that
//! nothing else is measured.

use gristmill_amqp::{Client, Consumer, Message, Queue};
use gristmill_broker::Broker;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Two hundred megabytes wait; the broker sends ahead five hundred messages, two of them.
const MESSAGES: usize = 50_000;
const SIZE: usize = 4096;

/// What this process holds, in MiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() / 1024
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_stays_flat() {
    let broker = Broker::start().unwrap();
    let queue = Queue::quorum("flood");
    let publishing = Client::builder(broker.uri()).queue(queue.clone()).start().await.unwrap();
    let publisher = publishing.publisher();
    for _ in 0..MESSAGES / 1000 {
        for result in publisher.publish_all(vec![Message::to_queue("flood", vec![b'x'; SIZE]); 1000]).await {
            result.unwrap();
        }
    }
    let before = resident();
    let (count, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let consumer = {
        let (count, most) = (Arc::clone(&count), Arc::clone(&most));
        Consumer::new("flood", "flood").workers(50).prefetch(500).handle(move |_| {
            let count = count.fetch_add(1, Relaxed);
            if count % 500 == 0 {
                most.fetch_max(resident(), Relaxed);
            }
            // Slower than they come.
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok(())
            }
        })
    };
    let client = Client::builder(broker.uri()).queue(queue).consumer(consumer).start().await.unwrap();
    while client.stats().consumers[0].acknowledged < MESSAGES as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let most = most.load(Relaxed);
    println!("{before} MiB before, {most} MiB at most, {} MiB passed through", (MESSAGES * SIZE) >> 20);
    assert!(most < before + 32, "{before} MiB before, {most} MiB at most");
    client.shutdown(Duration::from_secs(10)).await;
}
