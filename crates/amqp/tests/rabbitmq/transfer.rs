//! Messages moved from one queue to another.

use crate::fixture::*;
use gristmill_amqp::{Client, Queue, Transfer};
use gristmill_broker::Proxy;
use tokio::sync::oneshot;

/// The broker holds the messages of the lost channel until heartbeats are missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_matching_messages_are_moved_when_the_broker_misses_a_cut() {
    let (from, to) = (name("from"), name("to"));
    fill(&Queue::quorum(&from), &from, 5000).await;
    fill(&Queue::quorum(&to), &to, 0).await;
    let observer = client().await;
    depth_is(&observer, &from, 5000).await;
    let proxy = Proxy::to(broker().address()).unwrap();
    let uri = format!("{}?heartbeat=2", proxy.uri(&broker().uri()));
    let client = Client::builder(uri).start().await.unwrap();
    let transfer = Transfer::new(&from, &to).only(|delivery| number(delivery) % 2 == 1);
    let cutting = async {
        until("some moved", async || observer.queue_depth(&to).await.unwrap().0 >= 300).await;
        proxy.cut_unnoticed();
        std::future::pending::<()>().await;
    };
    let moving = client.transfer(&transfer, std::future::pending());
    let (progress, result) = tokio::select! { ended = moving => ended, () = cutting => unreachable!() };
    result.unwrap();
    assert_eq!(progress.connection_losses, 1, "{progress:?}");
    depth_is(&observer, &from, 2500).await;
    let left = observer.peek(&from, 5000).await.unwrap();
    assert_eq!(left.iter().filter(|delivery| number(delivery) % 2 == 1).count(), 0, "{progress:?}");
}

/// Another consumer received messages that were there at the start: more than those whose acknowledgement was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_not_examined_after_a_cut_are_an_error() {
    let (from, to, started, gate) = (name("from"), name("to"), Log::default(), Gate::default());
    fill(&Queue::quorum(&from), &from, 5000).await;
    fill(&Queue::quorum(&to), &to, 0).await;
    let observer = client().await;
    depth_is(&observer, &from, 5000).await;
    let proxy = Proxy::to(broker().address()).unwrap();
    let uri = format!("{}?heartbeat=1", proxy.uri(&broker().uri()));
    let client = Client::builder(uri).start().await.unwrap();
    let transfer = Transfer::new(&from, &to).only(|delivery| number(delivery) % 2 == 1);
    let cutting = async {
        until("some moved", async || observer.queue_depth(&to).await.unwrap().0 >= 300).await;
        proxy.cut();
        let consumer = gated(&from, &started, &gate, None).prefetch(1000);
        let other = builder().queue(Queue::existing(&from)).consumer(consumer).start().await.unwrap();
        until("1000 held", async || other.stats().consumers[0].received == 1000).await;
        proxy.restore();
        std::future::pending::<()>().await;
    };
    let moving = client.transfer(&transfer, std::future::pending());
    let (progress, result) = tokio::select! { ended = moving => ended, () = cutting => unreachable!() };
    let is_named = |error: &gristmill_amqp::Error| error.to_string().contains("messages of queue");
    assert!(result.as_ref().is_err_and(is_named), "{result:?}; {progress:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_can_be_cancelled_without_a_connection() {
    let (from, to) = (name("from"), name("to"));
    fill(&Queue::quorum(&from), &from, 1000).await;
    fill(&Queue::quorum(&to), &to, 0).await;
    let observer = client().await;
    depth_is(&observer, &from, 1000).await;
    let proxy = Proxy::to(broker().address()).unwrap();
    let client = Client::builder(proxy.uri(&broker().uri())).start().await.unwrap();
    for at_start in [false, true] {
        let transfer = Transfer::new(&from, &to);
        let (cancel, cancelled) = oneshot::channel::<()>();
        let moving = client.transfer(&transfer, async move { drop(cancelled.await) });
        let cutting = async {
            if !at_start {
                until("some moved", async || observer.queue_depth(&to).await.unwrap().0 >= 50).await;
            }
            proxy.cut();
            cancel.send(()).unwrap();
        };
        let ((progress, result), ()) = tokio::join!(moving, cutting);
        assert!(result.is_ok() && progress.interrupted, "at the start {at_start}: {result:?} {progress:?}");
    }
}
