//! A broker that is killed repeatedly under load: no confirmed message is lost, and consuming resumes.

use gristmill_amqp::{Client, Consumer, Message, Queue};
use gristmill_broker::Broker;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

const MESSAGES: usize = 100_000;
const KILLS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_confirmed_message_is_handled_although_the_broker_is_killed() {
    let mut broker = Broker::start().unwrap();
    let queue = Queue::quorum("kills");
    let done: Arc<Vec<AtomicBool>> = Arc::new((0..MESSAGES).map(|_| AtomicBool::new(false)).collect());
    let handled = Arc::new(AtomicU64::new(0));
    let consumer = {
        let (done, handled) = (Arc::clone(&done), Arc::clone(&handled));
        Consumer::new("kills", "kills").workers(16).prefetch(500).handle(move |delivery| {
            let number: usize = std::str::from_utf8(delivery.body()).unwrap().parse().unwrap();
            done[number].store(true, SeqCst);
            handled.fetch_add(1, SeqCst);
            async { Ok(()) }
        })
    };
    let consuming = Client::builder(broker.uri()).queue(queue.clone()).consumer(consumer).start().await.unwrap();
    let publishing = Client::builder(broker.uri()).queue(queue).max_in_flight(500).start().await.unwrap();
    let confirmed: Arc<Vec<AtomicBool>> = Arc::new((0..MESSAGES).map(|_| AtomicBool::new(false)).collect());
    let (count, confirmations) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&confirmed));
    let counted = Arc::clone(&count);
    let publisher = publishing.publisher();
    let publish = tokio::spawn(async move {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..MESSAGES {
            let sent = publisher.send(Message::to_queue("kills", number.to_string())).await;
            let (confirmations, counted) = (Arc::clone(&confirmations), Arc::clone(&counted));
            // A message that is not confirmed may be lost, but here there is time enough for all.
            let Ok(sent) = sent else { continue };
            tasks.spawn(async move {
                if sent.await.is_ok() {
                    confirmations[number].store(true, SeqCst);
                    counted.fetch_add(1, SeqCst);
                }
            });
        }
        tasks.join_all().await;
    });
    for kill in 1..=KILLS {
        let enough = MESSAGES / (KILLS + 1) * kill;
        until("enough confirmations", || count.load(SeqCst) >= enough || publish.is_finished()).await;
        broker.kill();
        broker = tokio::task::spawn_blocking(move || {
            broker.restart().unwrap();
            broker
        })
        .await
        .unwrap();
        let (back, before) = (Instant::now(), handled.load(SeqCst));
        until("consuming to resume", || handled.load(SeqCst) > before || publish.is_finished()).await;
        println!("kill {kill}: consuming again {:.1} s after the broker's return", back.elapsed().as_secs_f64());
    }
    publish.await.unwrap();
    let confirmed: Vec<usize> = (0..MESSAGES).filter(|number| confirmed[*number].load(SeqCst)).collect();
    println!("{} of {MESSAGES} confirmed; {} handled, some twice", confirmed.len(), handled.load(SeqCst));
    assert!(confirmed.len() > MESSAGES * 9 / 10, "only {} confirmed", confirmed.len());
    until("every confirmed message done", || confirmed.iter().all(|number| done[*number].load(SeqCst))).await;
    assert!(consuming.stats().consumers[0].channel_losses >= 1);
    until("nothing left", || consuming.stats().consumers[0].in_flight == 0).await;
    consuming.shutdown(Duration::from_secs(10)).await;
    assert_eq!(publishing.queue_depth("kills").await.unwrap().0, 0);
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < Duration::from_secs(120), "timed out waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
