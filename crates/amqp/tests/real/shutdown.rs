//! The end: what runs is finished, the rest is given back.

use crate::bed::*;
use gristmill_amqp::{Consumer, Queue};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_is_finished_and_the_rest_given_back() {
    for blocking in [false, true] {
        let orders = name("end");
        let queue = Queue::new(&orders);
        fill(&queue, &orders, 100).await;
        let (started, done) = (Log::default(), Log::default());
        let consumer = Consumer::new(&orders, "ends").workers(4).prefetch(50);
        let consumer = {
            let (started, done) = (started.clone(), done.clone());
            match blocking {
                false => consumer.handle(move |delivery| {
                    let (started, done) = (started.clone(), done.clone());
                    async move {
                        started.add(number(&delivery));
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        done.add(number(&delivery));
                        Ok(())
                    }
                }),
                true => consumer.handle_blocking(move |delivery| {
                    started.add(number(delivery));
                    block_for(Duration::from_millis(300));
                    done.add(number(delivery));
                    Ok(())
                }),
            }
        };
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        started.reaches(4).await;
        let stats = client.shutdown(Duration::from_secs(20)).await;
        let (started, done) = (started.all(), done.all());
        assert_eq!(started.len(), done.len(), "blocking: {blocking}");
        assert_eq!(stats.consumers[0].acknowledged as usize, done.len());
        assert!(done.len() < 50, "what waited was not started");
        let mut rest: Vec<usize> = take_all(&orders, 100 - done.len()).await.iter().map(number).collect();
        rest.extend(done);
        rest.sort_unstable();
        assert_eq!(rest, (0..100).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_finish_in_time_is_given_back() {
    let orders = name("deadline");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 10).await;
    let (started, dropped) = (Log::default(), Log::default());
    struct Noted(Log<usize>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.add(1);
        }
    }
    let consumer = {
        let (started, dropped) = (started.clone(), dropped.clone());
        Consumer::new(&orders, "hangs").workers(3).handle(move |delivery| {
            let (started, dropped) = (started.clone(), dropped.clone());
            async move {
                let _noted = Noted(dropped);
                started.add(number(&delivery));
                std::future::pending().await
            }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    started.reaches(3).await;
    let stats = client.shutdown(Duration::from_millis(300)).await;
    assert_eq!(stats.consumers[0].acknowledged, 0);
    assert_eq!((started.len(), dropped.len()), (3, 3));
    assert_eq!(take_all(&orders, 10).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn begun_and_ended_again_and_again() {
    let orders = name("often");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 3000).await;
    let log = Log::default();
    for round in 0..15 {
        let consumer = noting(&orders, &log).workers(1 + round % 4);
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        log.reaches((round + 1) * 50).await;
        client.shutdown(Duration::from_secs(5)).await;
    }
    let client = builder().queue(queue).consumer(noting(&orders, &log)).start().await.unwrap();
    let mut seen = log.reaches(3000).await;
    until("all acknowledged", async || client.depth(&orders).await.is_ok_and(|(depth, _)| depth == 0)).await;
    client.shutdown(Duration::from_secs(5)).await;
    seen = if seen.len() == 3000 { seen } else { log.all() };
    seen.sort_unstable();
    // In order ended, each is done once.
    assert_eq!(seen, (0..3000).collect::<Vec<_>>());
}
