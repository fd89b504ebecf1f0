//! Gristmill's consumer: one run in its own process.
//!
//! It uses default settings: retries, dead letters, statistics and recovery are on, and the queue's dead letter queue
//! is declared. The library acknowledges a message when its handler is done.

use std::{sync::Arc, thread, time::Duration};

use clap::{Args, ValueEnum};
use gristmill_amqp::{Client, Consumer, Queue};
use tokio::sync::Notify;

use super::message_counter::MessageCounter;

/// Maximum duration of a run.
const TIMEOUT: Duration = Duration::from_secs(600);

/// One run of a consumer.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConsumeArgs {
    uri: String,
    queue: String,
    /// Number of messages, or `watch`
    messages: String,
    prefetch: usize,
    handlers: Handlers,
    /// Time that a handler sleeps
    handler_ms: u64,
    workers: usize,
}

/// How handlers run.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Handlers {
    Tasks,
    Threads,
}

/// Consumes, and prints the seconds, the number of handled messages and the number of different ones.
pub(crate) fn run_one(args: &ConsumeArgs) -> Result<(), String> {
    let counter = Arc::new(MessageCounter::new(&args.messages)?);
    let work = Duration::from_millis(args.handler_ms);
    let done = Arc::new(Notify::new());
    let consumer = Consumer::new(&args.queue, "bench").prefetch(args.prefetch).workers(args.workers);
    let consumer = match args.handlers {
        Handlers::Tasks => tasks(consumer, &counter, &done, work),
        Handlers::Threads => threads(consumer, &counter, &done, work),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let client = Client::builder(&args.uri).queue(Queue::existing(&args.queue)).consumer(consumer);
        let client = client.start().await.map_err(|error| error.to_string())?;
        let waited = tokio::time::timeout(TIMEOUT, done.notified()).await;
        client.shutdown(Duration::from_secs(10)).await;
        println!("{}", counter.report());
        waited.map_err(|_| format!("not done after {} s: {}", TIMEOUT.as_secs(), counter.report()))
    })
}

fn tasks(consumer: Consumer, counter: &Arc<MessageCounter>, done: &Arc<Notify>, work: Duration) -> Consumer {
    let (counter, done) = (Arc::clone(counter), Arc::clone(done));
    consumer.handle(move |delivery| {
        let (counter, done) = (Arc::clone(&counter), Arc::clone(&done));
        async move {
            counter.on_start();
            if !work.is_zero() {
                tokio::time::sleep(work).await;
            }
            if counter.on_done(delivery.body()) {
                done.notify_one();
            }
            Ok(())
        }
    })
}

fn threads(consumer: Consumer, counter: &Arc<MessageCounter>, done: &Arc<Notify>, work: Duration) -> Consumer {
    let (counter, done) = (Arc::clone(counter), Arc::clone(done));
    consumer.handle_blocking(move |delivery| {
        counter.on_start();
        if !work.is_zero() {
            #[expect(clippy::disallowed_methods, reason = "the measured work is a sleep")]
            thread::sleep(work);
        }
        if counter.on_done(delivery.body()) {
            done.notify_one();
        }
        Ok(())
    })
}
