//! The referee's own connection to the broker: publishes, remembers what was confirmed, asks how many wait, and takes the
//! dead letters.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_amqp::{Client, Consumer, Delivery, Error, Message, Queue, header};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::mail::Parcel;
use crate::chance::Chance;
use crate::crew::pause;
use crate::{OrTrouble, Trouble};

/// For what never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Queues where messages wait for another attempt: delays of rounds are short.
const DELAYS: [u32; 5] = [125, 250, 500, 1_000, 2_000];

/// A dead letter.
#[derive(Clone, Debug)]
pub(crate) struct Dead {
    pub(crate) id: String,
    pub(crate) reason: String,
    pub(crate) error: String,
    pub(crate) body: String,
    /// How many attempts have failed, as its header says.
    pub(crate) failed: u32,
}

/// What is done with messages that a full queue refuses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refused {
    Leave,
    PublishAgain,
}

pub(crate) struct Post {
    uri: String,
    queue: String,
    client: Client,
    runtime: Runtime,
    /// How many messages a full queue has refused.
    refused: Arc<AtomicU32>,
}

impl Post {
    /// Connects and makes the queue.
    pub(crate) fn open(uri: &str, queue: &str, quorum: bool, bound: Option<u32>) -> Result<Self, Trouble> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().or_trouble("cannot start threads")?;
        let declared = if quorum { Queue::quorum(queue) } else { Queue::classic(queue) };
        let declared = match bound {
            Some(bound) => declared.max_length(bound),
            None => declared,
        };
        let builder = Client::builder(uri).name("referee").queue(declared).confirm_timeout(PATIENCE);
        let client = runtime.block_on(builder.start()).or_trouble("cannot make a queue")?;
        let refused = Arc::default();
        Ok(Post { uri: uri.to_owned(), queue: queue.to_owned(), client, runtime, refused })
    }

    /// Publishes all of them. Ends with the ids of those that were confirmed.
    pub(crate) fn publish(&self, parcels: &[Parcel]) -> Vec<String> {
        self.runtime.block_on(self.sending(parcels.to_vec(), 1, Duration::ZERO, Refused::Leave))
    }

    /// Publishes all of them in the background, in pieces, within about this time. What a full queue refuses is published
    /// again.
    pub(crate) fn publish_meanwhile(
        &self,
        parcels: Vec<Parcel>,
        within: Duration,
        chance: &mut Chance,
    ) -> JoinHandle<Vec<String>> {
        let pieces = chance.within(1..40);
        self.runtime.spawn(self.sending(parcels, pieces, within, Refused::PublishAgain))
    }

    fn sending(
        &self,
        parcels: Vec<Parcel>,
        pieces: u64,
        within: Duration,
        refused: Refused,
    ) -> impl Future<Output = Vec<String>> + Send + use<> {
        let (publisher, queue) = (self.client.publisher(), self.queue.clone());
        let refusals = Arc::clone(&self.refused);
        async move {
            let each = parcels.len().div_ceil(usize::try_from(pieces).unwrap_or(1)).max(1);
            let wait = within / u32::try_from(pieces).unwrap_or(1);
            let mut confirmed = Vec::new();
            for piece in parcels.chunks(each) {
                let message = |parcel: &Parcel| {
                    Message::to_queue(&queue, parcel.body.clone()).id(&parcel.id).header("tenant", "mill")
                };
                let (mut piece, start) = (piece.to_vec(), Instant::now());
                while !piece.is_empty() {
                    let results = publisher.publish_all(piece.iter().map(message)).await;
                    let mut left = Vec::new();
                    for (parcel, result) in piece.into_iter().zip(results) {
                        match result {
                            Ok(()) => confirmed.push(parcel.id),
                            Err(Error::Nacked) => left.push(parcel),
                            Err(_) => {}
                        }
                    }
                    refusals.fetch_add(u32::try_from(left.len()).unwrap_or(u32::MAX), Relaxed);
                    if refused == Refused::Leave || start.elapsed() > PATIENCE {
                        break;
                    }
                    piece = left;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                tokio::time::sleep(wait).await;
            }
            confirmed
        }
    }

    /// How many messages a full queue has refused.
    pub(crate) fn refused(&self) -> u32 {
        self.refused.load(Relaxed)
    }

    pub(crate) fn wait_for<T: Send + 'static>(&self, task: JoinHandle<T>) -> Result<T, Trouble> {
        self.runtime.block_on(task).or_trouble("the publisher has ended")
    }

    /// How many wait in the queue with this behind its name; none if it is not there.
    pub(crate) fn depth(&self, behind: &str) -> Result<u32, Trouble> {
        let name = format!("{}{behind}", self.queue);
        let start = Instant::now();
        loop {
            match self.runtime.block_on(self.client.queue_depth(&name)) {
                Ok((messages, _)) => return Ok(messages),
                Err(Error::Channel { code: 404, .. }) => return Ok(0),
                Err(error) if start.elapsed() > PATIENCE => {
                    return Err(Trouble::System(format!("cannot ask for the length of {name}: {error}")));
                }
                Err(_) => pause(Duration::from_millis(50)),
            }
        }
    }

    /// How many wait in the queue, or for another attempt.
    pub(crate) fn waiting(&self) -> Result<u32, Trouble> {
        let mut waiting = self.depth("")?;
        for delay in DELAYS {
            waiting += self.depth(&format!(".retry.{delay}"))?;
        }
        Ok(waiting)
    }

    /// Takes the dead letters that are there.
    pub(crate) fn take_dead(&self) -> Result<Vec<Dead>, Trouble> {
        let count = self.depth(".dead")?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let name = format!("{}.dead", self.queue);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&taken);
        let consumer = Consumer::new(&name, "taking").dead_letters("amq.fanout", "").workers(1).handle(
            move |delivery: Delivery| {
                log.lock().unwrap_or_else(PoisonError::into_inner).push(dead(&delivery));
                async { Ok(()) }
            },
        );
        let builder = Client::builder(&self.uri).queue(Queue::existing(&name)).consumer(consumer);
        let client = self.runtime.block_on(builder.start()).or_trouble("cannot read the dead letters")?;
        let read = || taken.lock().unwrap_or_else(PoisonError::into_inner).len();
        let start = Instant::now();
        while read() < count as usize && start.elapsed() < PATIENCE {
            pause(Duration::from_millis(20));
        }
        self.runtime.block_on(client.shutdown(Duration::from_secs(5)));
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut taken))
    }

    pub(crate) fn close(self) {
        self.runtime.block_on(self.client.shutdown(Duration::ZERO));
        self.runtime.shutdown_background();
    }
}

fn dead(delivery: &Delivery) -> Dead {
    let header = |name| delivery.headers().get(name).map(ToString::to_string).unwrap_or_default();
    Dead {
        id: delivery.message_id().unwrap_or_default().to_owned(),
        reason: header(header::REASON),
        error: header(header::ERROR),
        body: String::from_utf8_lossy(delivery.body()).into_owned(),
        failed: header(header::FAILED).parse().unwrap_or(0),
    }
}
