//! Connection of the harness to the broker: publishes, returns the confirmed messages, reads queue depths, and takes
//! the dead letters.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_amqp::{Client, Consumer, Delivery, Error as AmqpError, Message, Queue, header};
use gristmill_check::Rng;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::messages::TestMessage;
use crate::process::{pause, wait_until};
use crate::{Error, ErrorContext};

/// Time after which the broker or a consumer is considered stuck.
pub(crate) const BROKER_TIMEOUT: Duration = Duration::from_secs(90);

/// Delays of the retry queues that a round can have.
const RETRY_DELAYS_MS: [u32; 5] = [125, 250, 500, 1_000, 2_000];

/// A dead letter, read from `QUEUE.dead`.
#[derive(Clone, Debug)]
pub(crate) struct DeadLetter {
    pub(crate) id: String,
    pub(crate) reason: String,
    pub(crate) error: String,
    pub(crate) body: String,
    /// Number of failed attempts, from its header.
    pub(crate) failed: u32,
}

/// Reaction to messages that a full queue refuses (nacks).
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnNack {
    Skip,
    Republish,
}

pub(crate) struct BrokerClient {
    uri: String,
    pub(crate) queue: String,
    client: Client,
    runtime: Runtime,
    /// Number of messages that a full queue has refused.
    nacked: Arc<AtomicU32>,
}

impl BrokerClient {
    /// Connects and declares the queue.
    pub(crate) fn open(uri: &str, queue: &str, quorum: bool, max_length: Option<u32>) -> Result<Self, Error> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().context("cannot start threads")?;
        let declared = if quorum { Queue::quorum(queue) } else { Queue::classic(queue) };
        let declared = match max_length {
            Some(max_length) => declared.max_length(max_length),
            None => declared,
        };
        let builder = Client::builder(uri).name("crash-harness").queue(declared).confirm_timeout(BROKER_TIMEOUT);
        let client = runtime.block_on(builder.start()).context("cannot declare a queue")?;
        let nacked = Arc::default();
        Ok(BrokerClient { uri: uri.to_owned(), queue: queue.to_owned(), client, runtime, nacked })
    }

    /// Publishes messages. Returns the ids of the confirmed ones.
    pub(crate) fn publish(&self, messages: &[TestMessage]) -> Vec<String> {
        self.runtime.block_on(self.publish_in_chunks(messages.to_vec(), 1, Duration::ZERO, OnNack::Skip))
    }

    /// Publishes messages in the background, in chunks, over about this time. Messages that a full queue refuses are
    /// published again.
    pub(crate) fn publish_in_background(
        &self,
        messages: Vec<TestMessage>,
        within: Duration,
        rng: &mut Rng,
    ) -> JoinHandle<Vec<String>> {
        let chunks = rng.u64(1..40);
        self.runtime.spawn(self.publish_in_chunks(messages, chunks, within, OnNack::Republish))
    }

    fn publish_in_chunks(
        &self,
        messages: Vec<TestMessage>,
        chunks: u64,
        within: Duration,
        on_nack: OnNack,
    ) -> impl Future<Output = Vec<String>> + Send + use<> {
        let (publisher, queue) = (self.client.publisher(), self.queue.clone());
        let nacks = Arc::clone(&self.nacked);
        async move {
            let chunk_size = messages.len().div_ceil(usize::try_from(chunks).unwrap_or(1)).max(1);
            let wait = within / u32::try_from(chunks).unwrap_or(1);
            let mut confirmed = Vec::new();
            for chunk in messages.chunks(chunk_size) {
                let to_amqp = |message: &TestMessage| {
                    Message::to_queue(&queue, message.body.clone()).id(&message.id).header("tenant", "test")
                };
                let (mut chunk, start) = (chunk.to_vec(), Instant::now());
                while !chunk.is_empty() {
                    let results = publisher.publish_all(chunk.iter().map(to_amqp)).await;
                    let mut nacked_messages = Vec::new();
                    for (message, result) in chunk.into_iter().zip(results) {
                        match result {
                            Ok(()) => confirmed.push(message.id),
                            Err(AmqpError::Nacked) => nacked_messages.push(message),
                            Err(_) => {}
                        }
                    }
                    nacks.fetch_add(u32::try_from(nacked_messages.len()).unwrap_or(u32::MAX), Relaxed);
                    if on_nack == OnNack::Skip || start.elapsed() > BROKER_TIMEOUT {
                        break;
                    }
                    chunk = nacked_messages;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                tokio::time::sleep(wait).await;
            }
            confirmed
        }
    }

    /// Returns the number of messages that a full queue has refused.
    pub(crate) fn nacked(&self) -> u32 {
        self.nacked.load(Relaxed)
    }

    pub(crate) fn wait_for<T: Send + 'static>(&self, task: JoinHandle<T>) -> Result<T, Error> {
        self.runtime.block_on(task).context("the publishing task failed")
    }

    /// Returns the number of messages in the queue with this suffix; 0 if it does not exist.
    pub(crate) fn depth(&self, suffix: &str) -> Result<u32, Error> {
        let name = format!("{}{suffix}", self.queue);
        let start = Instant::now();
        loop {
            match self.runtime.block_on(self.client.queue_depth(&name)) {
                Ok((messages, _)) => return Ok(messages),
                Err(AmqpError::Channel { code: 404, .. }) => return Ok(0),
                Err(error) if start.elapsed() > BROKER_TIMEOUT => {
                    return Err(Error::System(format!("cannot read the depth of {name}: {error}")));
                }
                Err(_) => pause(Duration::from_millis(50)),
            }
        }
    }

    /// Returns the number of messages in the queue and its retry queues.
    pub(crate) fn waiting(&self) -> Result<u32, Error> {
        let mut waiting = self.depth("")?;
        for delay in RETRY_DELAYS_MS {
            waiting += self.depth(&format!(".retry.{delay}"))?;
        }
        Ok(waiting)
    }

    /// Consumes all dead letters.
    pub(crate) fn take_dead_letters(&self) -> Result<Vec<DeadLetter>, Error> {
        let count = self.depth(".dead")?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let name = format!("{}.dead", self.queue);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&taken);
        let consumer = Consumer::new(&name, "taking").dead_letters("amq.fanout", "").workers(1).handle(
            move |delivery: Delivery| {
                log.lock().unwrap_or_else(PoisonError::into_inner).push(read_dead_letter(&delivery));
                async { Ok(()) }
            },
        );
        let builder = Client::builder(&self.uri).queue(Queue::existing(&name)).consumer(consumer);
        let client = self.runtime.block_on(builder.start()).context("cannot read the dead letters")?;
        let read = || taken.lock().unwrap_or_else(PoisonError::into_inner).len();
        wait_until(BROKER_TIMEOUT, || Ok(read() >= count as usize))?;
        self.runtime.block_on(client.shutdown(Duration::from_secs(5)));
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut taken))
    }

    pub(crate) fn close(self) {
        self.runtime.block_on(self.client.shutdown(Duration::ZERO));
        self.runtime.shutdown_background();
    }
}

fn read_dead_letter(delivery: &Delivery) -> DeadLetter {
    let header = |name| delivery.headers().get(name).map(ToString::to_string).unwrap_or_default();
    DeadLetter {
        id: delivery.message_id().unwrap_or_default().to_owned(),
        reason: header(header::REASON),
        error: header(header::ERROR),
        body: String::from_utf8_lossy(delivery.body()).into_owned(),
        failed: header(header::FAILED).parse().unwrap_or(0),
    }
}
