//! Publishes messages with publisher confirms: each is confirmed by the broker, or its publisher gets an error.
//!
//! Owns the unconfirmed messages. Their number is bounded. Those that a lost connection leaves unconfirmed are sent
//! again on the next, so a message can arrive twice but is not lost.

use crate::{
    error::Error,
    message::Message,
    net::{Channel, Event, Received, Returned},
    reconnect::{ManagedConnection, deadline_after},
    wire::method::Outgoing,
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::Instant,
};

/// Publishes messages and reports their confirmation. Clones share one channel and one bound on unconfirmed messages.
#[derive(Clone)]
pub struct Publisher {
    requests: mpsc::UnboundedSender<Request>,
    permits: Arc<Semaphore>,
    confirm_timeout: Duration,
}

struct Request {
    message: Message,
    deadline: Instant,
    confirm_timeout: Duration,
    reply: oneshot::Sender<Result<(), Error>>,
    _permit: OwnedSemaphorePermit,
}

impl Publisher {
    pub(crate) fn start(broker: ManagedConnection, max_in_flight: usize, confirm_timeout: Duration) -> Self {
        let (requests, incoming) = mpsc::unbounded_channel();
        tokio::spawn(
            PublisherTask {
                broker,
                incoming,
                pending: VecDeque::new(),
                sent: 0,
                first: 1,
                closed: false,
                one_by_one: 0,
                window: usize::MAX,
            }
            .run(),
        );
        Self { requests, permits: Arc::new(Semaphore::new(max_in_flight)), confirm_timeout }
    }

    /// Publishes a message. `Ok` means that the broker has it: on disk, for a persistent message and a durable queue. A
    /// message for which no queue is bound is [`Error::Unroutable`]. Waits while too many are unconfirmed.
    pub async fn publish(&self, message: Message) -> Result<(), Error> {
        self.send(message).await?.await
    }

    /// Publishes many messages concurrently. Returns one result for each, in order.
    pub async fn publish_all(&self, messages: impl IntoIterator<Item = Message>) -> Vec<Result<(), Error>> {
        let mut sent_messages = Vec::new();
        for message in messages {
            sent_messages.push(self.send(message).await);
        }
        let mut results = Vec::with_capacity(sent_messages.len());
        for one in sent_messages {
            results.push(match one {
                Ok(confirmed) => confirmed.await,
                Err(error) => Err(error),
            });
        }
        results
    }

    /// Sends a message once the bound allows it, and returns a future of its confirmation.
    pub async fn send(
        &self,
        message: Message,
    ) -> Result<impl Future<Output = Result<(), Error>> + Send + use<>, Error> {
        message.check()?;
        let confirm_timeout = self.confirm_timeout;
        let permit = Arc::clone(&self.permits).acquire_owned();
        // The broker may block publishers for hours; the timeout reports that.
        let permit = tokio::time::timeout_at(deadline_after(confirm_timeout), permit)
            .await
            .map_err(|_| Error::Unconfirmed(confirm_timeout))?;
        let permit = permit.map_err(|_| Error::Closed)?;
        let (reply, replied) = oneshot::channel();
        let deadline = deadline_after(confirm_timeout);
        let request = Request { message, deadline, confirm_timeout, reply, _permit: permit };
        self.requests.send(request).map_err(|_| Error::Closed)?;
        Ok(async move { replied.await.unwrap_or(Err(Error::Closed)) })
    }
}

/// Window after a channel was closed because of a message.
const REDUCED_WINDOW: usize = 8;

/// Task that owns the channel and the unconfirmed messages.
struct PublisherTask {
    broker: ManagedConnection,
    incoming: mpsc::UnboundedReceiver<Request>,
    /// Messages in the order in which they were sent or will be.
    pending: VecDeque<Pending>,
    /// Number of messages at the front of `pending` that were sent on this channel.
    sent: usize,
    /// Delivery tag of the first of `pending`.
    first: u64,
    /// Set when all publishers are dropped; unconfirmed messages are still confirmed.
    closed: bool,
    /// Number of messages to be sent one by one: one of them closed a channel, and it is unknown which.
    one_by_one: usize,
    /// Maximum number of unconfirmed messages; small after a closed channel, because all of them are sent twice.
    window: usize,
}

struct Pending {
    /// None after the reply; its tag still counts.
    request: Option<Request>,
    returned: Option<Error>,
}

impl Pending {
    /// Replies to the publisher. Returns false if it has a reply already.
    fn reply(&mut self, result: Result<(), Error>) -> bool {
        self.request.take().map(|request| request.reply.send(result)).is_some()
    }
}

impl PublisherTask {
    async fn run(mut self) {
        let mut failed = 0;
        loop {
            let opened = tokio::select! {
                opened = open(self.broker.clone()) => opened,
                () = self.wait_for_timeouts() => return,
            };
            let end = match opened {
                Ok(channel) => {
                    failed = 0;
                    self.serve(channel).await
                }
                Err(error) => Err(error),
            };
            let error = match end {
                Ok(()) | Err(Error::Closed) => return,
                Err(error) => error,
            };
            if self.pending.is_empty() {
                tracing::debug!(%error, "publishing interrupted");
            } else {
                tracing::warn!(%error, unconfirmed = self.pending.len(), "publishing interrupted");
            }
            self.fail_culprit(&error);
            self.pending.retain(|pending| pending.request.is_some());
            (self.sent, self.first) = (0, 1);
            failed += 1;
            let wait = crate::reconnect::BACKOFF.delay(failed);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.wait_for_timeouts() => return,
            }
        }
    }

    /// Enforces timeouts while there is no channel. Returns when all publishers are dropped and nothing is unconfirmed.
    async fn wait_for_timeouts(&mut self) {
        while !self.is_over() {
            let deadline = self.next_timeout();
            tokio::select! {
                request = self.incoming.recv(), if !self.closed => self.add(request),
                () = sleep_until(deadline) => self.time_out(),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.closed && self.pending.iter().all(|pending| pending.request.is_none())
    }

    /// Fails the messages that closed the channel. The broker's text names only a missing exchange: messages to it fail
    /// and the others are sent again. If it names none, all are sent again one by one to find the culprit.
    fn fail_culprit(&mut self, error: &Error) {
        let Error::Channel { text, .. } = error else { return };
        self.window = REDUCED_WINDOW;
        let is_culprit = |pending: &Pending| {
            let exchange = pending.request.as_ref().map(|request| request.message.exchange.as_str());
            exchange.is_some_and(|exchange| !exchange.is_empty() && text.contains(&format!("'{exchange}'")))
        };
        let mut found = false;
        for pending in self.pending.iter_mut().take(self.sent) {
            if is_culprit(pending) {
                found |= pending.reply(Err(error.duplicate()));
            }
        }
        if !found && self.sent == 1 {
            if let Some(only) = self.pending.front_mut() {
                only.reply(Err(error.duplicate()));
            }
        } else if !found {
            self.one_by_one = self.sent;
        }
    }

    /// Publishes through a channel until everything is confirmed and all publishers are dropped.
    async fn serve(&mut self, mut channel: Channel) -> Result<(), Error> {
        while !self.is_over() {
            self.send_rest(&channel)?;
            let deadline = self.next_timeout();
            let writable = channel.writable();
            tokio::select! {
                biased;
                event = channel.next() => {
                    self.on_event(event?);
                    while let Some(event) = channel.try_next() {
                        self.on_event(event?);
                    }
                }
                request = self.incoming.recv(), if !self.closed => self.add(request),
                () = writable, if self.sent < self.pending.len().min(self.window) && self.one_by_one == 0 => {}
                () = sleep_until(deadline) => self.time_out(),
            }
            while let Ok(request) = self.incoming.try_recv() {
                self.add(Some(request));
            }
        }
        Ok(())
    }

    fn add(&mut self, request: Option<Request>) {
        match request {
            Some(request) => self.pending.push_back(Pending { request: Some(request), returned: None }),
            None => self.closed = true,
        }
    }

    fn send_rest(&mut self, channel: &Channel) -> Result<(), Error> {
        while self.one_by_one == 0 || self.sent == 0 {
            let Some(pending) = self.pending.get_mut(self.sent).filter(|_| self.sent < self.window) else {
                break;
            };
            let Some(request) = &pending.request else {
                self.pending.remove(self.sent);
                continue;
            };
            let Message { exchange, key, properties, body } = &request.message;
            match channel.publish(exchange, key, true, properties, body) {
                Ok(false) => break,
                Ok(true) => {
                    self.sent += 1;
                    self.one_by_one = self.one_by_one.saturating_sub(1);
                    if self.one_by_one > 0 {
                        break;
                    }
                }
                Err(error @ Error::Message(_)) => {
                    pending.reply(Err(error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) {
        match event {
            // Comes before the confirmation and has no tag, so it is matched to an equal pending message.
            Event::Returned(returned) => {
                let sent = self.sent;
                let find = |same: fn(&Message, &Received) -> bool| {
                    self.pending.iter().take(sent).position(|pending| {
                        let message = pending.request.as_ref().map(|request| &request.message);
                        pending.returned.is_none() && message.is_some_and(|message| same(message, &returned.message))
                    })
                };
                let found = find(is_same).or_else(|| find(is_alike));
                if let Some(pending) = found.and_then(|at| self.pending.get_mut(at)) {
                    let Returned { text, message: Received { exchange, key, .. } } = *returned;
                    pending.returned = Some(Error::Unroutable { exchange, key, text });
                }
            }
            Event::Confirmed { tag, multiple, acked } => {
                let Some(at) = tag.checked_sub(self.first).map(|at| at as usize) else { return };
                let from = if multiple { 0 } else { at };
                for pending in self.pending.iter_mut().take(self.sent.min(at + 1)).skip(from) {
                    let result = match pending.returned.take() {
                        Some(error) => Err(error),
                        None if acked => Ok(()),
                        None => Err(Error::Nacked),
                    };
                    pending.reply(result);
                }
                self.window = self.window.saturating_mul(2);
                while self.sent > 0 && self.pending.front().is_some_and(|pending| pending.request.is_none()) {
                    self.pending.pop_front();
                    self.sent -= 1;
                    self.first += 1;
                }
            }
            _ => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        // All have the same timeout, so the first expires first.
        self.pending.iter().find_map(|pending| pending.request.as_ref()).map(|request| request.deadline)
    }

    fn time_out(&mut self) {
        let now = Instant::now();
        for pending in &mut self.pending {
            match &pending.request {
                Some(request) if request.deadline <= now => {
                    let timeout = request.confirm_timeout;
                    pending.reply(Err(Error::Unconfirmed(timeout)));
                }
                Some(_) => break,
                None => {}
            }
        }
    }
}

fn is_same(message: &Message, returned: &Received) -> bool {
    is_alike(message, returned) && returned.malformed.is_none() && returned.properties == message.properties
}

/// Ignores the properties: a NaN in a header is not equal to itself.
fn is_alike(message: &Message, returned: &Received) -> bool {
    message.exchange == returned.exchange && message.key == returned.key && message.body == returned.body
}

async fn open(broker: ManagedConnection) -> Result<Channel, Error> {
    let mut channel = broker.channel().await?;
    channel.call(&Outgoing::ConfirmSelect).await?;
    Ok(channel)
}

pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
